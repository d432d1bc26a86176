"""Airflow connections of object stores: reads one of type ``aws``, ``wasb``, ``adls`` or ``google_cloud_platform`` as settings.

A ``stream_pipeline`` connection names such a connection with ``store_conn_id``. Its fields are those that Airflow's providers for Amazon,
Microsoft Azure and Google define. Those providers are not needed.
"""

import json
import os
from collections.abc import Callable, Mapping
from typing import Any
from urllib.parse import urlsplit

from airflow.sdk import BaseHook

from airflow_provider.hidden_values import hide
from airflow_provider.settings import Settings, read_settings
from airflow_provider.version_compat import AirflowNotFoundException
from spark_jobs.protocol.errors import InvalidParameterError, MissingRequirementError
from spark_jobs.storage.azure_settings import AzureCredentials, AzureSettings
from spark_jobs.storage.google_settings import GoogleSettings
from spark_jobs.storage.object_store_kinds import bucket_of, is_in_object_store
from spark_jobs.storage.object_store_settings import ENDPOINT_FORM, ObjectStoreSettings, is_endpoint
from spark_jobs.storage.open import open_place
from spark_jobs.storage.s3_settings import S3Credentials, S3Settings
from spark_jobs.storage.settings_by_bucket import use_settings

_KNOWN_OF_S3 = frozenset({"aws_session_token", "endpoint_url", "region_name", "service_config", "config_kwargs"})
"""The extras of an ``aws`` connection that may have a value."""
_KNOWN_OF_AZURE = frozenset({"sas_token", "shared_access_key", "tenant_id"})
"""The extras of a ``wasb`` or ``adls`` connection that may have a value."""
_KNOWN_OF_GOOGLE = frozenset({"key_path", "project"})
"""The extras of a ``google_cloud_platform`` connection that may have a value. ``project`` is ignored: no client needs it."""


def use_store_connection(settings: Settings, get_connection: Callable[[str], Any] = BaseHook.get_connection) -> None:
    """Gives this process the settings of the store that a ``stream_pipeline`` connection names, for the buckets of its roots.

    Raises:
        MissingRequirementError: The connection that it names is not there.
        InvalidParameterError: That connection is of another type, or has an extra that is not supported here.
    """
    places = (*settings.roots, *settings.savepoint_roots, settings.work_root or "")
    buckets = {bucket_of(url) for place in places if place and is_in_object_store(url := open_place(place).url)}
    if buckets or settings.store_conn_id:
        name = settings.store_conn_id or "the environment"
        use_settings(name, read_store_connection(settings.store_conn_id, get_connection), buckets)


async def use_store_connection_in_triggerer(conn_id: str) -> Settings:
    """Does the work of :func:`use_store_connection` in a triggerer. Returns the settings of the ``stream_pipeline`` connection."""
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
    use_store_connection(settings, lambda _: store)
    return settings


def read_store_connection(
    store_conn_id: str | None, get_connection: Callable[[str], Any] = BaseHook.get_connection
) -> ObjectStoreSettings | None:
    """Returns the settings in the connection of a store, and has Airflow mask its secrets. Returns None without a connection.

    The errors are those of :func:`use_store_connection`.
    """
    if store_conn_id is None:
        return None
    try:
        connection = get_connection(store_conn_id)
    except AirflowNotFoundException as error:
        raise MissingRequirementError(
            f"There is no Airflow connection '{store_conn_id}', which store_conn_id names.",
            remedy=f"Create it: airflow connections add {store_conn_id} --conn-type aws; the type is wasb or adls for Azure, and "
            "google_cloud_platform for Google Cloud.",
            connection=store_conn_id,
        ) from error
    read = _READERS.get(connection.conn_type)
    if read is None:
        raise _refused(store_conn_id, f"is of type '{connection.conn_type}'", f"Name one of type {', '.join(_READERS)}.")
    return read(store_conn_id, connection)


def _read_s3(store_conn_id: str, connection: Any) -> S3Settings:
    extra = _followed(store_conn_id, connection, _KNOWN_OF_S3)
    secret, token = connection.password or None, extra.get("aws_session_token")
    for each in (secret, token):
        hide(each or "")
    if bool(connection.login) != bool(secret) or (token and not secret):
        raise _refused(
            store_conn_id, "has half of its credentials", "Give it both keys. Or give it none, and give the process a role."
        )
    credentials = S3Credentials(connection.login, secret, token) if secret else None
    service = _service(extra)
    endpoint = service.get("endpoint_url") or extra.get("endpoint_url") or None
    _check_endpoint(store_conn_id, "extra endpoint_url", endpoint)
    style = _json(extra.get("config_kwargs")).get("s3", {}).get("addressing_style", "path" if endpoint else "virtual")
    return S3Settings(
        endpoint, extra.get("region_name"), bucket_in_host=bool(endpoint) and style == "virtual", credentials=credentials
    )


def _read_azure(store_conn_id: str, connection: Any) -> AzureSettings:
    extra = _followed(store_conn_id, connection, _KNOWN_OF_AZURE)
    secret, tenant = connection.password or None, extra.get("tenant_id")
    key, token = extra.get("shared_access_key"), extra.get("sas_token")
    if secret and not tenant:  # as the provider reads a wasb connection: the name of the account, and its key
        key, secret = secret, None
    for each in (key, token, secret):
        hide(each or "")
    if tenant and not (secret and connection.login):
        raise _refused(store_conn_id, "has half of its credentials", "Give it the client as login and the secret as password.")
    if sum(map(bool, (key, token, secret))) > 1:
        raise _refused(
            store_conn_id, "has several credentials", "Give it a key, a token, or a client with its secret and tenant."
        )
    address = urlsplit(connection.host or "")
    emulator = connection.host if address.netloc and not address.netloc.endswith(".core.windows.net") else None
    _check_endpoint(store_conn_id, "host", emulator)
    credentials = AzureCredentials(key, token, connection.login if tenant else None, secret, tenant)
    settings = AzureSettings(emulator, credentials=credentials if key or token or secret else None)
    if variables := settings.replaced_by(os.environ):
        raise _refused(
            store_conn_id,
            f"is not used by all clients, because the environment of this process has {', '.join(variables)}",
            "Remove these variables, or put a key and the endpoint into the connection.",
        )
    return settings


def _read_google(store_conn_id: str, connection: Any) -> GoogleSettings:
    return GoogleSettings(credentials_file=_followed(store_conn_id, connection, _KNOWN_OF_GOOGLE).get("key_path"))


_READERS: Mapping[str, Callable[[str, Any], ObjectStoreSettings]] = {
    "aws": _read_s3,
    "wasb": _read_azure,
    "adls": _read_azure,
    "google_cloud_platform": _read_google,
}
"""The reader of each type of connection."""


def _followed(store_conn_id: str, connection: Any, known: frozenset[str]) -> dict[str, Any]:
    """Returns the extras of a connection, and refuses those that are not followed."""
    extra = {name: value for name, value in connection.extra_dejson.items() if value not in (None, "", [], {})}
    if unknown := sorted(extra.keys() - known):
        raise _refused(
            store_conn_id,
            f"has {', '.join(unknown)}, which the clients of the store do not all follow",
            "Remove these extras. Give it keys, or leave the credentials out and give the process a role.",
        )
    return extra


def _check_endpoint(store_conn_id: str, field: str, endpoint: str | None) -> None:
    """Refuses the endpoint of a connection that a client would interpret in its own way. It is not shown: it may contain a password."""
    if endpoint and not is_endpoint(endpoint):
        raise _refused(
            store_conn_id, f"cannot be used: its {field} is not {ENDPOINT_FORM}", f"Correct the {field} of the connection."
        )


def _service(extra: Mapping[str, Any]) -> Mapping[str, Any]:
    """Returns the settings for S3 alone, which the Amazon provider prefers to those for all services."""
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
