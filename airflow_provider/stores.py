"""The stores of connections: an Airflow connection of type ``aws`` as settings for object stores.

Its fields are those that Airflow's Amazon provider defines. That provider is not needed.
"""

import json
from collections.abc import Callable, Mapping
from typing import Any
from urllib.parse import urlsplit

from airflow.sdk import BaseHook

from airflow_provider.hidden_values import hide
from airflow_provider.settings import Settings, read_settings
from airflow_provider.version_compat import AirflowNotFoundException
from spark_jobs.protocol.errors import InvalidParameterError, MissingRequirementError
from spark_jobs.storage.object_store_settings import Credentials, ObjectStoreSettings, use_store

CONN_TYPE = "aws"
_KNOWN = frozenset({"aws_session_token", "endpoint_url", "region_name", "service_config", "config_kwargs"})
"""The extras that are followed."""


def use_store_of(settings: Settings, get_connection: Callable[[str], Any] = BaseHook.get_connection) -> None:
    """Gives this process the store that a ``stream_pipeline`` connection names, for the buckets of its roots.

    Raises:
        MissingRequirementError: The connection that it names is not there.
        InvalidParameterError: That connection is no ``aws`` one, or says something that is not supported here.
    """
    buckets = {
        urlsplit(root).netloc
        for root in (*settings.roots, *settings.savepoint_roots, settings.work_root or "")
        if root.startswith(("s3:", "s3a:"))
    }
    if buckets or settings.store_conn_id:
        use_store(settings.store_conn_id or "the environment", read_store(settings.store_conn_id, get_connection), buckets)


async def use_store_from_afar(conn_id: str) -> Settings:
    """Does what :func:`use_store_of` does, in a triggerer; returns what the ``stream_pipeline`` connection says."""
    try:
        connection = await BaseHook.aget_connection(conn_id)
        settings = read_settings(connection.extra_dejson, conn_id, connection.conn_type)
        store = await BaseHook.aget_connection(settings.store_conn_id) if settings.store_conn_id else None
    except AirflowNotFoundException as error:
        raise MissingRequirementError(
            f"An Airflow connection is gone: {error}",
            remedy="Create it again; a retry waits again.",
            connection=conn_id,
        ) from error
    use_store_of(settings, lambda _: store)
    return settings


def read_store(
    store_conn_id: str | None, get_connection: Callable[[str], Any] = BaseHook.get_connection
) -> ObjectStoreSettings | None:
    """Reads a connection of type ``aws``, and has Airflow mask its secrets; None without one. Errors as of :func:`use_store_of`."""
    if store_conn_id is None:
        return None
    try:
        connection = get_connection(store_conn_id)
    except AirflowNotFoundException as error:
        raise MissingRequirementError(
            f"There is no Airflow connection '{store_conn_id}', which store_conn_id names.",
            remedy=f"Create it: airflow connections add {store_conn_id} --conn-type aws",
            connection=store_conn_id,
        ) from error
    if connection.conn_type != CONN_TYPE:
        raise _refused(store_conn_id, f"is of type '{connection.conn_type}', not 'aws'", "Name one of type aws.")
    extra = {name: value for name, value in connection.extra_dejson.items() if value not in (None, "", [], {})}
    if unknown := sorted(extra.keys() - _KNOWN):
        raise _refused(
            store_conn_id,
            f"has {', '.join(unknown)}, which the clients of the store do not all follow",
            "Give it keys, or neither keys nor these extras and the process a role.",
        )
    secret, token = connection.password or None, extra.get("aws_session_token")
    for each in (secret, token):
        hide(each or "")
    if bool(connection.login) != bool(secret) or (token and not secret):
        raise _refused(store_conn_id, "has half of its credentials", "Give it both keys, or none and the process a role.")
    credentials = Credentials(connection.login, secret, token) if secret else None
    service = _service(extra)
    endpoint = service.get("endpoint_url") or extra.get("endpoint_url")
    checked = ObjectStoreSettings.of({"AWS_ENDPOINT_URL": endpoint} if endpoint else {})
    style = _json(extra.get("config_kwargs")).get("s3", {}).get("addressing_style", "path" if endpoint else "virtual")
    return ObjectStoreSettings(
        checked.endpoint, extra.get("region_name"), bucket_in_host=bool(endpoint) and style == "virtual", credentials=credentials
    )


def _service(extra: Mapping[str, Any]) -> Mapping[str, Any]:
    """Returns what the Amazon provider takes for S3 instead of what it takes for all services."""
    found = _json(extra.get("service_config")).get("s3", {})
    return found if isinstance(found, Mapping) else {}


def _json(value: Any) -> dict[str, Any]:
    """Returns a field that a form keeps as text."""
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except ValueError:
            return {}
    return value if isinstance(value, dict) else {}


def _refused(store_conn_id: str, problem: str, remedy: str) -> InvalidParameterError:
    return InvalidParameterError(
        f"The connection '{store_conn_id}', which store_conn_id names, {problem}.",
        remedy=remedy,
        connection=store_conn_id,
    )
