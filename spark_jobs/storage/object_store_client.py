"""The client of object stores: how long it tries, which settings it takes, and what it says of failures, as this product's errors."""

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from functools import lru_cache
from typing import Any

from obstore.exceptions import BaseError, PermissionDeniedError, UnauthenticatedError
from obstore.store import S3Store

from spark_jobs.protocol.errors import (
    AccessDeniedError,
    InvalidParameterError,
    NotFoundError,
    StorageError,
)
from spark_jobs.storage.forks import OneProcess
from spark_jobs.storage.object_store_settings import ObjectStoreSettings, store_of

_CALL_TIMEOUT = timedelta(minutes=2)
"""Of one call with all that it moves, which is never more than a part. Thirty-two of them share a network, and it may be a slow one."""
_TRIES = 1000
"""More than there is time for: how long a call is repeated is told by the clock."""
_ONE_PROCESS = OneProcess("An object store")
"""The threads of its client stay in a process that is forked from."""
_PANIC = "PanicException"
"""What the client's bugs raise; it is no ``Exception``, and its class cannot be imported."""
_ROLE_PATHS = ("/latest/api/token", "/latest/meta-data/iam")
"""Where a host tells of its role: who asks there has found no credentials in the environment."""
_NO_CREDENTIALS = (
    "The environment of this process has no credentials, and its host's role gave none. Start it with AWS_ACCESS_KEY_ID and "
    "AWS_SECRET_ACCESS_KEY; it is the driver that writes a savepoint."
)
_CODE = re.compile(r"<Code>(\w{1,100})</Code>")


def open_client(bucket: str, retry_timeout: timedelta) -> S3Store:
    """The client of a bucket with what the environment says: credentials, region, endpoint. Reads and writes nothing.

    All who open the same bucket share it, and its connections: a triggerer looks at a thousand homes.

    Raises:
        InvalidParameterError: It says what cannot be used: an endpoint that is no URL, half a credential.
    """
    settings = store_of(bucket)  # refused here, before the client guesses what was meant
    said = tuple(sorted((name, value) for name, value in os.environ.items() if name.startswith("AWS_")))
    return _client(bucket, retry_timeout, settings, said)


@lru_cache(maxsize=16)
def _client(bucket: str, retry_timeout: timedelta, settings: ObjectStoreSettings, said: tuple[tuple[str, str], ...]) -> S3Store:
    # Among client_options these would stand instead of all that the environment says of the client.
    config: Any = {"timeout": os.environ.get("AWS_TIMEOUT", _CALL_TIMEOUT), "allow_http": True}  # where the endpoint says so
    known = settings.credentials

    def credentials() -> Any:
        assert known is not None
        return {
            "access_key_id": known.access_key_id,
            "secret_access_key": known.secret_access_key,
            "token": known.session_token,
            "expires_at": None,
        }

    try:
        return S3Store(
            bucket,
            config=config | settings.for_obstore(),
            credential_provider=credentials if known else None,  # its keys alone: never a token of the environment
            retry_config={"retry_timeout": retry_timeout, "max_retries": _TRIES},
        )
    except (BaseError, ValueError) as error:
        raise _unusable(_reason(error)) from error


@contextmanager
def translated_store(place: str, *, writes: bool = False) -> Iterator[None]:
    """The one place where the store's errors become ours.

    Args:
        place: What the calls inside are about.
        writes: Whether they make something: it need not be there, so what is not found is the bucket.

    Raises:
        StorageError: Or one of its kin, for what the client raises inside.
        MissingRequirementError: The process was forked from one that has used the client.
    """
    _ONE_PROCESS.check()
    try:
        yield
    except FileNotFoundError as error:
        if writes:
            raise StorageError(
                f"{place} cannot be written: the bucket, or the upload, is not there.",
                safe="No object is half-written, and the call may be repeated.",
                remedy="Check the bucket.",
                path=place,
            ) from error
        raise NotFoundError(
            f"{place} is not there.",
            safe="Nothing was changed.",
            remedy="Check the bucket and the path.",
            path=place,
        ) from error
    except (PermissionDeniedError, UnauthenticatedError, PermissionError) as error:
        raise AccessDeniedError(
            f"{place}: the store refuses it. {_reason(error)}",
            safe="Nothing was changed.",
            remedy="Give this process credentials that may list, read, write and delete there: AWS_ACCESS_KEY_ID and "
            "AWS_SECRET_ACCESS_KEY, or a role of the host.",
            path=place,
        ) from None  # it may answer with what was signed, and a session's token is signed, too
    except NotImplementedError as error:
        raise _unusable(_reason(error)) from error
    except BaseException as error:
        if not isinstance(error, BaseError) and type(error).__name__ != _PANIC:
            raise
        raise StorageError(
            f"{place}: {_reason(error)}",
            safe="No object is half-written, and the call may be repeated.",
            remedy=_NO_CREDENTIALS
            if any(path in f"{error}" for path in _ROLE_PATHS)
            else "Repeat; if it goes on, check the bucket, the endpoint (AWS_ENDPOINT_URL) and the network.",
            path=place,
        ) from error


def _unusable(reason: str) -> InvalidParameterError:
    return InvalidParameterError(
        f"The environment's settings for object stores cannot be used: {reason}",
        safe="Nothing was read or written.",
        remedy="Correct the variables AWS_… of this process.",
    )


def _reason(error: BaseException) -> str:
    """What has failed, and the store's word for it; not all that it has answered."""
    text = f"{error}"
    code = _CODE.search(text)
    failed = text.partition("\n")[0].partition(": <")[0]
    return f"{failed}: {code[1]}." if code else f"{failed}."
