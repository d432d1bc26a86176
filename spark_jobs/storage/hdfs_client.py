"""The client of HDFS: its time limits, its retries, and the translation of its failures into this product's errors.

The library has no time limit of its own for calls to a name node. So each call runs in a thread that can be abandoned. After a call
without an answer the next one uses a new connection: the name node may have moved to another host, and the old connection would wait as
long as the operating system does.

The library does not repeat a call that changes something once it is sent, and neither does this module. Callers repeat whole operations,
because they can check the result of the earlier try.
"""

import errno
import math
import os
import re
import time
from collections.abc import Callable
from contextlib import suppress
from functools import lru_cache, partial
from threading import Lock
from typing import TypeVar
from urllib.parse import urlsplit
from xml.etree import ElementTree

from hdfs_native import Client

from spark_jobs.background import run_with_deadline
from spark_jobs.protocol.errors import (
    AccessDeniedError,
    ConflictError,
    InvalidParameterError,
    MissingRequirementError,
    NotFoundError,
    StorageError,
    StorageFullError,
    StreamPipelineError,
)
from spark_jobs.storage.forks import OneProcess

T = TypeVar("T")
_TRIES_IN_TIME = 4
"""Number of calls in a row that may remain unanswered, because another name node or another connection may answer."""
_DATA_NODE_S = 60.0
"""Time that the library waits for a data node before it goes on without it."""
_PAUSES_S = (0.1, 2.0)
"""Pauses before an operation is repeated: the first one and the longest one."""
_SETTINGS = {"dfs.client.failover.max.attempts": "3", "dfs.client.failover.sleep.base.millis": "50"}
"""Limits for the library, which otherwise tries for many minutes without an active name node. The caller sets the limit instead."""
_PORT = "8020"
"""Hadoop's default port of a name node."""
_ONE_PROCESS = OneProcess("HDFS")
"""Connections to data nodes belong to the process."""
_PANIC = "PanicException"
"""Name of the class that the library raises for its own bugs. It is no ``Exception``, and cannot be imported."""
_ANSWERED = re.compile(r'(?:Fatal)?RPCError\("(?P<kind>[^"]*)", "(?P<reason>.*)"\)', re.DOTALL)
_TRACE = re.compile(r"(\\n|\n)(\\t|\t)at .*", re.DOTALL)
"""Matches the name node's stack trace in a message."""
_NO_NAME_NODE = "No NameNode hosts found"
_TOO_MANY_FILES = os.strerror(errno.EMFILE)
_SETTING_PREFIXES = ("HADOOP_", "KRB5", "HOME", "USER")
"""Prefixes of environment variables that the library reads."""
_UNUSABLE = re.compile(r"(?:InvalidArgument|UrlParseError|XmlParseError)\b")
_REFUSED = re.compile(r"(?:SASLError|GSSAPIError|NoSASLMechanism)\b")
_NO_DATA_NODE = re.compile(r"could only be (?:written|replicated) to .*? There are (\d+) datanode\(s\) running", re.DOTALL)
_NO_DIRECTORY = re.compile(r"is not a directory|must both be directories")

_KINDS: dict[str, type[StreamPipelineError]] = (
    dict.fromkeys(("AccessControlException", "AuthorizationException", "InvalidToken"), AccessDeniedError)
    | dict.fromkeys(("FileNotFoundException", "ParentNotDirectoryException"), NotFoundError)
    | dict.fromkeys(
        (
            "QuotaExceededException",
            "NSQuotaExceededException",
            "DSQuotaExceededException",
            "QuotaByStorageTypeExceededException",
            "MaxDirectoryItemsExceededException",
        ),
        StorageFullError,
    )
    | dict.fromkeys(
        ("InvalidPathException", "PathComponentTooLongException", "HadoopIllegalArgumentException", "IllegalArgumentException"),
        InvalidParameterError,
    )
    | {"LeaseExpiredException": ConflictError, "UnsupportedOperationException": MissingRequirementError}
)
"""The error class by simple name of the name node's exception."""
_PASSING = frozenset(
    {
        "StandbyException",
        "ObserverRetryOnActiveException",
        "RetriableException",
        "SafeModeException",
        "NotReplicatedYetException",
        "ServerTooBusyException",
    }
)
"""The name node's exceptions while it is starting or not active. Another try may succeed."""
_REMEDIES: dict[type[StreamPipelineError], str] = {
    StorageFullError: "Free space or raise the quota, then repeat.",
    AccessDeniedError: "Let this process's user (HADOOP_USER_NAME, or its Kerberos ticket) list, read, write and delete there.",
    NotFoundError: "Check the path; if the home has lost the file, restore it from a copy.",
    InvalidParameterError: "Use another path: HDFS takes names of up to 255 bytes, without a colon.",
    MissingRequirementError: "Use a file system that can do this.",
    ConflictError: "Read the file, then repeat.",
    StorageError: "Repeat; if it goes on, check the name node, its data nodes and the network.",
}


class HdfsFailure(Exception):
    """A failed call, before its caller has decided what to do.

    Args:
        kind: Class of the error.
        reason: Answer of the service, in one sentence.
        passing: True if another try may succeed.
        in_doubt: True if the operation may have happened, or may still happen.
        exists: True if the name was taken.
    """

    def __init__(
        self, kind: type[StreamPipelineError], reason: str, *, passing: bool = False, in_doubt: bool = False, exists: bool = False
    ) -> None:
        super().__init__(reason)
        self.kind, self.reason = kind, reason.rstrip(".")
        self.passing, self.in_doubt, self.exists = passing, in_doubt, exists

    def as_error(self, place: str) -> StreamPipelineError:
        """Returns the failure as this product's error."""
        return self.kind(
            f"{place}: {self.reason}.",
            safe="No file is partly written, and the call may be repeated.",
            remedy=_REMEDIES[self.kind],
            path=place,
        )


class HdfsClient:
    """The connections of one place to its name nodes.

    Args:
        authority: ``host:port``, a name service of the Hadoop settings, or empty for their default file system.
        retry_timeout_s: Time for which an operation is repeated while the name node does not answer or is not ready.

    Raises:
        InvalidParameterError: There is no such name service, or no default file system; or the settings cannot be read.
        StorageError: This process has too many files open.
    """

    def __init__(self, authority: str, retry_timeout_s: float) -> None:
        self._url = f"hdfs://{authority}/"
        self.retry_timeout_s = retry_timeout_s
        self._lock = Lock()
        self._name_nodes = _name_nodes(authority)
        self._client = self._opened(_SETTINGS)

    def call(self, work: Callable[[Client], T], limit_s: float) -> T:
        """Calls the library once, with a time limit.

        Raises:
            HdfsFailure: The call has failed or had no answer. Without an answer the operation may still happen.
        """
        _ONE_PROCESS.check()
        if limit_s <= 0:
            raise HdfsFailure(StorageError, "There is no answer", passing=True)
        client = self._client
        try:
            return run_with_deadline(lambda: _named(work, client), time.monotonic() + limit_s, _Unanswered)
        except _Unanswered as error:
            self._renew(client)
            raise HdfsFailure(StorageError, f"There was no answer for {limit_s:.0f} s", passing=True, in_doubt=True) from error

    def _renew(self, silent: Client) -> None:
        with self._lock:
            if self._client is silent:
                # The library tries the first name node first until another one has answered, and tries the next one only after a refusal.
                self._name_nodes = {key: [*each[1:], each[0]] for key, each in self._name_nodes.items()}
                order = {key: ",".join(each) for key, each in self._name_nodes.items()}
                self._client = self._opened(_SETTINGS | order)

    def _opened(self, settings: dict[str, str]) -> Client:
        _ONE_PROCESS.check()
        try:
            return self._with_port(settings)
        except (RuntimeError, OSError) as error:
            if _TOO_MANY_FILES in f"{error}":
                raise StorageError(
                    f"{self._url} cannot be opened: this process has too many files open.",
                    safe="Nothing was read or written.",
                    remedy="Raise the limit (ulimit -n), then repeat.",
                    url=self._url,
                ) from error
            reason = "it has no known name node" if _NO_NAME_NODE in f"{error}" else _reason(error)
            raise InvalidParameterError(
                f"{self._url} cannot be opened: {reason}.",
                remedy="Give host:port of the name node, or a name service of the Hadoop settings that HADOOP_CONF_DIR names.",
                url=self._url,
            ) from error

    def _with_port(self, settings: dict[str, str]) -> Client:
        try:
            return Client(self._url, settings)
        except RuntimeError as error:  # a host without a port is only tried as a name service
            host = self._url.removeprefix("hdfs://").rstrip("/")
            if _NO_NAME_NODE not in f"{error}" or not host:
                raise
            return Client(f"hdfs://{host}:{_PORT}/", settings)


def shared_client(authority: str, retry_timeout_s: float) -> HdfsClient:
    """Returns the client of a place for the present environment and Hadoop settings. Reads and writes nothing in HDFS.

    All users of a place share one client, its connections and its threads, because a triggerer checks a thousand homes.

    Raises:
        InvalidParameterError: See :class:`HdfsClient`.
        StorageError: This process has too many files open.
    """
    settings = sorted((name, value) for name, value in os.environ.items() if name.startswith(_SETTING_PREFIXES))
    changed_at_ns = [_changed_at_ns(f"{_settings_directory()}/{file}") for file in ("core-site.xml", "hdfs-site.xml")]
    return _client(authority, retry_timeout_s, tuple(settings), tuple(changed_at_ns))


@lru_cache(maxsize=16)
def _client(authority: str, retry_timeout_s: float, *_: object) -> HdfsClient:
    return HdfsClient(authority, retry_timeout_s)


def _changed_at_ns(path: str) -> int | None:
    try:
        return os.stat(path).st_mtime_ns
    except OSError:
        return None


class Calls:
    """The calls of one operation, which is repeated as a whole if it had no answer.

    No call begins later than the client's ``retry_timeout_s`` after the first failed call, unless the name node answers again. A call waits
    at most a quarter of that time. A call that moves data waits up to a minute longer, because a data node may be gone.
    """

    def __init__(self, client: HdfsClient) -> None:
        self._client = client
        self._until_s = math.inf
        self._answers = True
        self._pause_s = _PAUSES_S[0]

    def __call__(self, work: Callable[[Client], T], *, moves_data: bool = False) -> T:
        """Calls the library once.

        Raises:
            HdfsFailure: The call has failed.
        """
        began_s = time.monotonic()
        limit_s = self._client.retry_timeout_s / _TRIES_IN_TIME + (_DATA_NODE_S if moves_data else 0.0)
        try:
            found = self._client.call(work, limit_s if self._answers else min(limit_s, self._until_s - began_s))
        except HdfsFailure as failure:
            if failure.passing:
                self._until_s = min(self._until_s, began_s + self._client.retry_timeout_s)
                self._answers = False
            raise
        self._answers = True
        return found

    def may_repeat(self) -> bool:
        """Returns True if there is time for another try. Waits until it may begin."""
        if time.monotonic() + self._pause_s >= self._until_s:
            return False
        time.sleep(self._pause_s)
        self._pause_s = min(2 * self._pause_s, _PAUSES_S[1])
        return True


def repeated(client: HdfsClient, place: str, attempt: Callable[[Calls], T]) -> T:
    """Runs an operation, and repeats it while the name node does not answer or is not ready.

    Raises:
        StorageError: The last failure, as this class or a subclass.
    """
    calls = Calls(client)
    while True:
        try:
            return attempt(calls)
        except HdfsFailure as failure:
            if not failure.passing or not calls.may_repeat():
                raise failure.as_error(place) from failure


class _Unanswered(Exception):
    """The time limit has passed."""


def _named(work: Callable[[Client], T], client: Client) -> T:
    """Runs a call, and translates the library's exceptions into failures."""
    try:
        return work(client)
    except FileNotFoundError as error:
        raise HdfsFailure(NotFoundError, "The file does not exist, or is not a file") from error
    except FileExistsError as error:
        raise HdfsFailure(StorageError, _reason(error), exists=True) from error
    except NotImplementedError as error:
        raise HdfsFailure(MissingRequirementError, _reason(error)) from error
    except OSError as error:  # the connection, or the files of Kerberos
        raise HdfsFailure(StorageError, _reason(error), passing=True, in_doubt=True) from error
    except BaseException as error:
        if not isinstance(error, RuntimeError) and type(error).__name__ != _PANIC:
            raise
        raise failure_from_text(f"{error}") from error


def failure_from_text(text: str) -> HdfsFailure:
    """Returns the failure for an error text of the library, which raises one class for all failures."""
    answered = _ANSWERED.match(text)
    if answered is None:
        if _REFUSED.match(text):
            return HdfsFailure(AccessDeniedError, text)
        if _UNUSABLE.match(text):
            return HdfsFailure(InvalidParameterError, text)
        return HdfsFailure(StorageError, text, passing=True, in_doubt=True)
    name = re.split(r"[.$]", answered["kind"])[-1]
    reason = f"{name}: {_TRACE.sub('', answered['reason'])}"
    failure = partial(HdfsFailure, reason=reason)
    if _NO_DIRECTORY.search(reason):  # the name node calls this a refusal, too
        return failure(NotFoundError)
    if none := _NO_DATA_NODE.search(reason):
        return failure(StorageFullError if int(none[1]) else StorageError, passing=True)
    return failure(_KINDS.get(name, StorageError), passing=name in _PASSING, in_doubt=text.startswith("Fatal"))


def _name_nodes(authority: str) -> dict[str, list[str]]:
    """Returns the setting with the name nodes of a service, and its value; empty if there is no such service."""
    service = authority or urlsplit(_setting("core-site.xml", "fs.defaultFS")).netloc
    key = f"dfs.ha.namenodes.{service}"
    found = _setting("hdfs-site.xml", key) or _setting("core-site.xml", key)
    return {key: found.split(",")} if found else {}


def _settings_directory() -> str:
    home = os.environ.get("HADOOP_HOME")
    return os.environ.get("HADOOP_CONF_DIR") or (f"{home}/etc/hadoop" if home else "")


def _setting(file: str, key: str) -> str:
    with suppress(OSError, ElementTree.ParseError):
        for each in ElementTree.parse(f"{_settings_directory()}/{file}").iter("property"):
            if (each.findtext("name") or "").strip() == key:
                return (each.findtext("value") or "").strip()
    return ""


def _reason(error: BaseException) -> str:
    return _TRACE.sub("", f"{error}").rstrip(".")
