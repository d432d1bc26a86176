"""The settings for object stores, known once and given to each client in its own words.

Three clients access a store: obstore for documents, delta-rs for Delta tables, and a Hadoop client for Spark. A driver has the settings in
its environment. Each client reads the credentials from there itself. So no secret is in a setting of Spark, in an argument of a process or
in a document.

Each kind of store has a class of its own, which is chosen by the scheme of a URL. In this package a *bucket* is the
part of a URL that has settings of its own: ``s3://bucket``, ``gs://bucket`` or ``abfss://container@account.dfs.core.windows.net``.

A process of Airflow may have the settings of several stores, one for each connection: see :func:`use_settings`.
"""

import os
from collections.abc import Iterable, Mapping
from threading import Lock
from urllib.parse import urlsplit

from spark_jobs.protocol.errors import AccessDeniedError, InvalidParameterError, NotFoundError
from spark_jobs.storage.azure_settings import AzureSettings
from spark_jobs.storage.google_settings import GoogleSettings
from spark_jobs.storage.object_store_settings import ObjectStoreSettings
from spark_jobs.storage.s3_settings import S3Settings

_KINDS: Mapping[str, type[ObjectStoreSettings]] = {kind.SCHEME: kind for kind in (S3Settings, AzureSettings, GoogleSettings)}

CANONICAL_SCHEMES: Mapping[str, str] = {spelling: kind.SCHEME for kind in _KINDS.values() for spelling in kind.SPELLINGS}
"""The scheme in documents, by each scheme that users may write for a place in an object store."""
SECRET_VARIABLES = frozenset(name for kind in _KINDS.values() for name in kind.SECRETS)
"""The environment variables with the secrets of stores."""


def is_in_object_store(url: str) -> bool:
    """Returns True for a URL of an object store, in the spelling of documents."""
    return urlsplit(url).scheme in _KINDS


def store_kind(url: str) -> type[ObjectStoreSettings]:
    """Returns the class of the settings for a URL of an object store."""
    return _KINDS[urlsplit(url).scheme]


def bucket_of(url: str) -> str:
    """Returns the bucket of a URL, such as ``s3://bucket``, or its container."""
    parts = urlsplit(url)
    return f"{parts.scheme}://{parts.netloc}"


def spark_client_settings(environment: Mapping[str, str], given: Mapping[str, str]) -> dict[str, str]:
    """Returns the settings of Spark's clients for the stores that an environment names. Settings that the user gives win.

    Raises:
        InvalidParameterError: An endpoint is not a URL, or contains a user.
        RejectedError: The user's settings name another store than the environment.
    """
    return {
        name: value for kind in _KINDS.values() for name, value in kind.from_environment(environment).for_spark(given).items()
    }


_lock = Lock()
_settings_by_name: dict[str, ObjectStoreSettings | None] = {}
"""The settings of a store, by its name. None: those of the environment."""
_names_by_bucket: dict[str, str] = {}
"""The name of the store that has a bucket, by the URL of the bucket."""


def use_settings(name: str, settings: ObjectStoreSettings | None, buckets: Iterable[str]) -> None:
    """Gives this process the settings of a store; again with newer ones.

    A bucket without a name belongs to the only named store of its kind, or to the store of the environment if there is none.

    Args:
        name: The store's: the Airflow connection that has its settings.
        settings: Of the store; None: those of the environment.
        buckets: URLs of buckets in the store.

    Raises:
        InvalidParameterError: A bucket is in another store, by another name.
    """
    with _lock:
        for bucket in buckets:
            other = _names_by_bucket.get(bucket, name)
            if other != name and _settings_by_name[other] != settings:
                raise InvalidParameterError(
                    f"{bucket} has other settings in {other} than in {name}.",
                    exists="One process has one store, and one owner of credentials, for a bucket or a container.",
                    remedy="Name the same store in all connections of pipelines that have a place there.",
                    root=bucket,
                )
            _names_by_bucket[bucket] = name
        _settings_by_name[name] = settings


def settings_for(url: str) -> ObjectStoreSettings:
    """Returns the settings of the store that has a URL.

    Raises:
        InvalidParameterError: Several stores were named, and the bucket for none of them; or the environment says what cannot be used.
    """
    kind, named = store_kind(url), set(_named_for(url).values())
    if len(named) > 1:
        bucket = bucket_of(url)
        raise InvalidParameterError(
            f"It is not known which store has {bucket}: the connections of this process name several.",
            exists=f"Known are {', '.join(sorted(_names_by_bucket))}.",
            remedy=f"Keep tables in a {kind.BUCKET} of their connection's roots; or name the {kind.BUCKET} in its savepoint_root, too.",
            root=bucket,
        )
    return (named.pop() if named else None) or kind.from_environment(os.environ)


def access_denied(place: str, reason: str) -> AccessDeniedError:
    """Returns the error of a place to which a store denies access. It names the owner of the credentials, never their values.

    Raise it without its cause: the store's answer may contain the signed text, with a session token.
    """
    kind, (owner, endpoint) = store_kind(place), _asked_as(place)
    ways = "" if connection_of(place) else f" ({kind.CREDENTIALS}, or a role of the host)"
    return AccessDeniedError(
        f"{place}: the store denies access. {reason}",
        exists=f"{endpoint} was asked with the credentials of {owner}.",
        remedy=f"Name a place in a {kind.BUCKET} of these credentials; or give them the rights to list, read, write and delete there"
        f"{ways}.",
        path=place,
        endpoint=endpoint,
        credentials=owner,
    )


def missing_bucket(place: str) -> NotFoundError:
    """Returns the error of a place whose bucket or container does not exist in the store."""
    kind, (owner, endpoint) = store_kind(place), _asked_as(place)
    return NotFoundError(
        f"{place}: the {kind.BUCKET} does not exist.",
        exists=f"{endpoint} was asked with the credentials of {owner}.",
        remedy=f"Correct the {kind.BUCKET}, or create it. If it is in another store, correct the endpoint "
        f"({connection_of(place) or kind.ENDPOINT}) and the credentials.",
        path=place,
        endpoint=endpoint,
        credentials=owner,
    )


def connection_of(place: str) -> str | None:
    """Returns the Airflow connection that has the settings for a place, in words; None: the environment has them."""
    name, settings = next(iter(_named_for(place).items()), ("", None))
    return None if settings is None else f"the Airflow connection {name}"


def _asked_as(place: str) -> tuple[str, str]:
    """Returns the owner of the credentials for a place, in words, and the store that has it."""
    kind = store_kind(place)
    name, settings = next(iter(_named_for(place).items()), ("", None))
    if settings is not None:
        return f"the Airflow connection {name}", settings.endpoint or kind.CLOUD
    variables = kind.credential_variables(os.environ)
    owner = f"this process's environment ({', '.join(variables)})" if variables else "the role of this host"
    return owner, kind.from_environment(os.environ).endpoint or kind.CLOUD


def _named_for(url: str) -> dict[str, ObjectStoreSettings | None]:
    """Returns the settings that a URL may have, by name: those of its bucket, else those of all named stores of its kind."""
    with _lock:
        name = _names_by_bucket.get(bucket_of(url))
        named = _settings_by_name if name is None else {name: _settings_by_name[name]}
        return {
            each: settings for each, settings in named.items() if settings is None or settings.SCHEME == store_kind(url).SCHEME
        }
