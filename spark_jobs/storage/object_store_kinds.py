"""The settings for object stores, known once and given to each client in its own words.

Three clients access a store: obstore for documents, delta-rs for Delta tables, and a Hadoop client for Spark. A driver has the settings in
its environment. Each client reads the credentials from there itself. So no secret is in a setting of Spark, in an argument of a process or
in a document.

Each kind of store has a class of its own, which is chosen by the scheme of a URL. The root of a store is the part of a URL that its
settings are for: the scheme and the bucket, or the scheme, the container and the account.

A process of Airflow may have the settings of several stores, one for each connection: see :func:`use_store`.
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

SPELLINGS: Mapping[str, str] = {spelling: kind.SCHEME for kind in _KINDS.values() for spelling in kind.SPELLINGS}
"""The scheme in documents, by each scheme that users may write for a place in an object store."""
SECRET_VARIABLES = frozenset(name for kind in _KINDS.values() for name in kind.SECRETS)
"""The environment variables with the secrets of stores."""


def is_in_object_store(url: str) -> bool:
    """Returns True for a URL of an object store, in the spelling of documents."""
    return urlsplit(url).scheme in _KINDS


def kind_of(url: str) -> type[ObjectStoreSettings]:
    """Returns the class of the settings for a URL of an object store."""
    return _KINDS[urlsplit(url).scheme]


def root_of(url: str) -> str:
    """Returns the root of the store that has a URL."""
    parts = urlsplit(url)
    return f"{parts.scheme}://{parts.netloc}"


def spark_settings(environment: Mapping[str, str], given: Mapping[str, str]) -> dict[str, str]:
    """Returns the settings of Spark's clients for the stores that an environment names. Settings that the user gives win.

    Raises:
        InvalidParameterError: An endpoint is not a URL, or contains a user.
        RejectedError: The user's settings name another store than the environment.
    """
    return {name: value for kind in _KINDS.values() for name, value in kind.of(environment).for_spark(given).items()}


_lock = Lock()
_of_names: dict[str, ObjectStoreSettings | None] = {}
"""By its name the settings of a store; None: those of the environment."""
_of_roots: dict[str, str] = {}
"""By root the name of its store."""


def use_store(name: str, settings: ObjectStoreSettings | None, roots: Iterable[str]) -> None:
    """Gives this process the settings of a store; again with newer ones.

    A root that nobody has named is in the store of all others of its kind, or in that of the environment if there is none.

    Args:
        name: The store's: the Airflow connection that has its settings.
        settings: Of the store; None: those of the environment.
        roots: Roots that are there.

    Raises:
        InvalidParameterError: A root is in another store, by another name.
    """
    with _lock:
        for root in roots:
            other = _of_roots.get(root, name)
            if other != name and _of_names[other] != settings:
                raise InvalidParameterError(
                    f"{root} has other settings in {other} than in {name}.",
                    exists="One process has one store, and one owner of credentials, for a bucket or a container.",
                    remedy="Name the same store in all connections of pipelines that have a place there.",
                    root=root,
                )
            _of_roots[root] = name
        _of_names[name] = settings


def store_of(url: str) -> ObjectStoreSettings:
    """Returns the settings of the store that has a URL.

    Raises:
        InvalidParameterError: Several stores were named, and the root for none of them; or the environment says what cannot be used.
    """
    kind, named = kind_of(url), set(_named_for(url).values())
    if len(named) > 1:
        root = root_of(url)
        raise InvalidParameterError(
            f"It is not known which store has {root}: the connections of this process name several.",
            exists=f"Known are {', '.join(sorted(_of_roots))}.",
            remedy=f"Keep tables in a {kind.ROOT} of their connection's roots; or name the {kind.ROOT} in its savepoint_root, too.",
            root=root,
        )
    return (named.pop() if named else None) or kind.of(os.environ)


def denied(place: str, reason: str) -> AccessDeniedError:
    """Returns the error of a place to which a store denies access. It names the owner of the credentials, never their values.

    Raise it without its cause: the store's answer may contain the signed text, with a session token.
    """
    kind, (owner, endpoint) = kind_of(place), _asked_as(place)
    ways = "" if connection_of(place) else f" ({kind.CREDENTIALS}, or a role of the host)"
    return AccessDeniedError(
        f"{place}: the store denies access. {reason}",
        exists=f"{endpoint} was asked with the credentials of {owner}.",
        remedy=f"Name a place in a {kind.ROOT} of these credentials; or give them the rights to list, read, write and delete there{ways}.",
        path=place,
        endpoint=endpoint,
        credentials=owner,
    )


def without_root(place: str) -> NotFoundError:
    """Returns the error of a place whose bucket or container does not exist in the store."""
    kind, (owner, endpoint) = kind_of(place), _asked_as(place)
    return NotFoundError(
        f"{place}: the {kind.ROOT} does not exist.",
        exists=f"{endpoint} was asked with the credentials of {owner}.",
        remedy=f"Correct the {kind.ROOT}, or create it. If it is in another store, correct the endpoint "
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
    kind = kind_of(place)
    name, settings = next(iter(_named_for(place).items()), ("", None))
    if settings is not None:
        return f"the Airflow connection {name}", settings.endpoint or kind.CLOUD
    variables = kind.credential_variables(os.environ)
    owner = f"this process's environment ({', '.join(variables)})" if variables else "the role of this host"
    return owner, kind.of(os.environ).endpoint or kind.CLOUD


def _named_for(url: str) -> dict[str, ObjectStoreSettings | None]:
    """Returns the settings that a URL may have, by name: those of its root, or those of all stores of its kind if nobody has named it."""
    with _lock:
        root = _of_roots.get(root_of(url))
        names = _of_names if root is None else {root: _of_names[root]}
        return {name: each for name, each in names.items() if each is None or each.SCHEME == kind_of(url).SCHEME}
