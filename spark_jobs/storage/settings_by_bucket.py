"""The settings of each bucket that this process reads or writes.

The settings are those of the process's environment, or those of an Airflow connection. A process of Airflow may have the settings of
several stores, one for each connection: see :func:`use_settings`.
"""

import os
from collections.abc import Iterable
from threading import Lock

from spark_jobs.protocol.errors import InvalidParameterError
from spark_jobs.storage.object_store_kinds import bucket_of, object_store_kind
from spark_jobs.storage.object_store_settings import ObjectStoreSettings

_lock = Lock()
_settings_by_name: dict[str, ObjectStoreSettings | None] = {}
"""The settings of a store, by its name. None: those of the environment."""
_names_by_bucket: dict[str, str] = {}
"""The name of the store that has a bucket, by the URL of the bucket."""


def use_settings(name: str, settings: ObjectStoreSettings | None, buckets: Iterable[str]) -> None:
    """Remembers the settings of a store and its buckets for this process. A second call with a name replaces its settings.

    A bucket that no call has listed belongs to the only store of its kind that a call has named. Without one it belongs to the store of the
    environment.

    Args:
        name: Name of the store: the id of the Airflow connection that has its settings, or a word for the environment.
        settings: Settings of the store; None: those of the environment.
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
        InvalidParameterError: Several stores were named, and the bucket for none of them; or a variable of the environment cannot be used.
    """
    kind, named = object_store_kind(url), set(_named_for(url).values())
    if len(named) > 1:
        bucket = bucket_of(url)
        raise InvalidParameterError(
            f"It is not known which store has {bucket}: the connections of this process name several.",
            exists=f"Known are {', '.join(sorted(_names_by_bucket))}.",
            remedy=f"Keep tables in a {kind.BUCKET} of their connection's roots; or name the {kind.BUCKET} in its savepoint_root, too.",
            root=bucket,
        )
    return (named.pop() if named else None) or kind.from_environment(os.environ)


def connection_of(place: str) -> str | None:
    """Returns the Airflow connection that has the settings for a place, in words; None: the environment has them."""
    name, settings = next(iter(_named_for(place).items()), ("", None))
    return None if settings is None else f"the Airflow connection {name}"


def credentials_and_endpoint(place: str) -> tuple[str, str]:
    """Returns the owner of the credentials with which a place was requested, in words, and the endpoint of its store."""
    kind = object_store_kind(place)
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
            each: settings
            for each, settings in named.items()
            if settings is None or settings.SCHEME == object_store_kind(url).SCHEME
        }
