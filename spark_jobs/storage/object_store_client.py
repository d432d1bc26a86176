"""The client of object stores: its time limits, its settings, and the translation of its failures into this product's errors."""

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from functools import lru_cache
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from obstore.exceptions import BaseError, PermissionDeniedError, UnauthenticatedError

from spark_jobs.protocol.errors import (
    InvalidParameterError,
    NotFoundError,
    StorageError,
)
from spark_jobs.storage.forks import OneProcess
from spark_jobs.storage.object_store_errors import access_denied, missing_bucket
from spark_jobs.storage.object_store_kinds import object_store_kind
from spark_jobs.storage.object_store_settings import ObjectStoreSettings
from spark_jobs.storage.settings_by_bucket import connection_of, settings_for

if TYPE_CHECKING:
    from obstore.store import ObjectStore

_CALL_TIMEOUT = timedelta(minutes=2)
"""Time limit of one call with all its data, which is one part at most. Up to 32 calls share a network, which may be slow."""
_TRIES = 1000
"""More tries than the time allows: the retry timeout ends them."""
_ONE_PROCESS = OneProcess("An object store")
"""The threads of the client do not survive a fork."""
_PANIC = "PanicException"
"""The exception of bugs in the client. It is no ``Exception``, and its class cannot be imported."""
_DENIED = re.compile(r"401 Unauthorized|403 Forbidden|\(code: (?:403|AccessDenied)\)")
"""Matches the refusal of a list or of a delete, for which the client has no exception of its own."""
_CODE = re.compile(r"<Code>(\w{1,100})</Code>")


def open_client(bucket: str, retry_timeout: timedelta) -> "ObjectStore":
    """Returns the client of a bucket or a container. Reads and writes nothing.

    Its credentials and endpoint are those of an Airflow connection that has named the store, else of the environment.
    All users of a bucket share one client and its connections, because a triggerer checks a thousand homes.

    Args:
        bucket: URL of the bucket or the container, such as ``s3://bucket``.
        retry_timeout: Time for which a call is repeated.

    Raises:
        InvalidParameterError: The environment has an invalid setting: an endpoint that is not a URL, or an incomplete credential. Or it is
            not known which of several stores has it.
    """
    settings = settings_for(bucket)  # invalid settings are refused here, before the client interprets them
    variables = tuple(
        sorted(
            (name, value)
            for name, value in os.environ.items()
            if name.startswith(settings.VARIABLE_PREFIX) or name in settings.VARIABLES
        )
    )
    return _client(bucket, retry_timeout, settings, variables)


@lru_cache(maxsize=16)
def _client(
    bucket: str, retry_timeout: timedelta, settings: ObjectStoreSettings, variables: tuple[tuple[str, str], ...]
) -> "ObjectStore":
    """Makes a client. The variables only tell clients apart: obstore reads the environment itself."""
    # Given as client_options they would replace all settings that obstore reads from the environment.
    timeout = os.environ.get(f"{settings.VARIABLE_PREFIX}TIMEOUT", _CALL_TIMEOUT)
    config = {"timeout": timeout, "allow_http": True}  # where the endpoint says so
    retries = {"retry_timeout": retry_timeout, "max_retries": _TRIES}
    try:
        return settings.open_obstore(urlsplit(bucket).netloc, config, retries)
    except (BaseError, ValueError) as error:
        raise _unusable(bucket, _reason(error)) from error


@contextmanager
def translated_errors(place: str, *, writes: bool = False) -> Iterator[None]:
    """Translates the store's errors into this product's errors.

    Args:
        place: The object of the calls inside.
        writes: True if the calls create something. Then the missing thing is the bucket.

    Raises:
        StorageError: An exception of the client, as this class or a subclass. Without the bucket, every call but a read is a
            :class:`~spark_jobs.protocol.errors.NotFoundError` that says so.
        MissingRequirementError: The process was forked after its parent had used the client.
    """
    _ONE_PROCESS.check()
    kind = object_store_kind(place)
    try:
        yield
    except FileNotFoundError as error:
        if writes and kind.MISSING_BUCKET in f"{error}":
            raise missing_bucket(place) from None
        if writes:
            raise StorageError(
                f"{place} cannot be written: the {kind.BUCKET} or the upload does not exist.",
                safe="No object is partly written, and the call may be repeated.",
                remedy=f"Check the {kind.BUCKET}.",
                path=place,
            ) from error
        raise NotFoundError(
            f"{place} does not exist.",
            remedy=f"Check the {kind.BUCKET} and the path.",
            path=place,
        ) from error
    except (PermissionDeniedError, UnauthenticatedError, PermissionError) as error:
        raise access_denied(place, _reason(error)) from None
    except NotImplementedError as error:
        raise _unusable(place, _reason(error)) from error
    except BaseException as error:
        if not isinstance(error, BaseError) and type(error).__name__ != _PANIC:
            raise
        if _DENIED.search(f"{error}"):
            raise access_denied(place, _reason(error)) from None
        if kind.MISSING_BUCKET in f"{error}":
            raise missing_bucket(place) from None
        raise StorageError(
            f"{place}: {_reason(error)}",
            safe="No object is partly written, and the call may be repeated.",
            remedy=_without_credentials(place)
            if any(path in f"{error}" for path in kind.ROLE_PATHS)
            else f"Repeat; if the error persists, check the {kind.BUCKET}, the endpoint ({connection_of(place) or kind.ENDPOINT}) and the "
            "network.",
            path=place,
        ) from error


def _without_credentials(place: str) -> str:
    """Returns the remedy if a process has no credentials, and the role of its host gives none."""
    connection = connection_of(place)
    if connection:
        return (
            f"Give credentials to {connection}: it has none, this process's environment has none, and the host's role gave none."
        )
    return (
        "The environment of this process has no credentials, and its host's role gave none. "
        f"Start it with {object_store_kind(place).CREDENTIALS}; savepoints are written by the driver."
    )


def _unusable(place: str, reason: str) -> InvalidParameterError:
    connection, variables = connection_of(place), f"the variables {object_store_kind(place).VARIABLE_PREFIX}… of this process"
    return InvalidParameterError(
        f"The settings of {connection or 'the environment'} for object stores cannot be used: {reason}",
        remedy=f"Correct {connection}, or {variables}, which the client of the store reads, too."
        if connection
        else f"Correct {variables}.",
    )


def _reason(error: BaseException) -> str:
    """Returns the failure and the store's error code, without the rest of its answer."""
    text = f"{error}"
    code = _CODE.search(text)
    failed = text.partition("\n")[0].partition(": <")[0]
    return f"{failed}: {code[1]}." if code else f"{failed}."
