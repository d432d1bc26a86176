"""The client of HDFS: how long it waits for an answer, how often it asks again, and what it says of failures, as this product's errors.

The library has no time limit of its own for what it asks a name node. Each call is therefore made in a thread that may be left behind,
and after one that had no answer the next goes over a connection of its own: the name node may have moved to another host, and the old
connection would wait for as long as the operating system does.

The library repeats no call that changes something once it has been sent, and neither does this module: only whole operations are repeated,
by whoever knows how to look what has become of the one before.
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
from spark_jobs.storage.beside import in_time
from spark_jobs.storage.forks import OneProcess

T = TypeVar("T")
_TRIES_IN_TIME = 4
"""How many calls in a row may have no answer: another name node may have it, or another connection."""
_DATA_NODE_S = 60.0
"""How long the library waits for a data node before it goes on without it."""
_PAUSES_S = (0.1, 2.0)
"""Before an operation is repeated: at first, and at most."""
_SETTINGS = {"dfs.client.failover.max.attempts": "3", "dfs.client.failover.sleep.base.millis": "50"}
"""The library goes on for many minutes where no name node is active. Here the one who calls says how long."""
_PORT = "8020"
"""Where Hadoop looks for a name node of which nothing else is said."""
_ONE_PROCESS = OneProcess("HDFS")
"""Its connections to data nodes are the process's."""
_PANIC = "PanicException"
"""What the library's bugs raise; it is no ``Exception``, and its class cannot be imported."""
_ANSWERED = re.compile(r'(?:Fatal)?RPCError\("(?P<kind>[^"]*)", "(?P<reason>.*)"\)', re.DOTALL)
_TRACE = re.compile(r"(\\n|\n)(\\t|\t)at .*", re.DOTALL)
"""The name node adds where in its own code it has failed."""
_NO_NAME_NODE = "No NameNode hosts found"
_TOO_MANY_FILES = os.strerror(errno.EMFILE)
_SAYS_HOW = ("HADOOP_", "KRB5", "HOME", "USER")
"""Begins the names of environment variables that the library reads."""
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
"""By the simple name of the exception that the name node answers with."""
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
"""Answers that another try may change: one of a name node that starts, or that is not the active one."""
_REMEDIES: dict[type[StreamPipelineError], str] = {
    StorageFullError: "Free space or raise the quota, then repeat.",
    AccessDeniedError: "Let this process's user (HADOOP_USER_NAME, or its Kerberos ticket) list, read, write and delete there.",
    NotFoundError: "Check the path; if the home has lost the file, restore it from a copy.",
    InvalidParameterError: "Use another path: HDFS takes names of up to 255 bytes, without a colon.",
    MissingRequirementError: "Use a file system that can do this.",
    ConflictError: "Look again, then repeat.",
    StorageError: "Repeat; if it goes on, check the name node, its data nodes and the network.",
}


class HdfsFailure(Exception):
    """A call that has failed, before somebody has decided what follows from it.

    Args:
        kind: The error that it is.
        reason: What was answered, one sentence.
        passing: Whether another try may succeed.
        in_doubt: Whether what was asked for may have happened, or may yet happen.
        exists: Whether the answer was that the name is taken.
    """

    def __init__(
        self, kind: type[StreamPipelineError], reason: str, *, passing: bool = False, in_doubt: bool = False, exists: bool = False
    ) -> None:
        super().__init__(reason)
        self.kind, self.reason = kind, reason.rstrip(".")
        self.passing, self.in_doubt, self.exists = passing, in_doubt, exists

    def told(self, place: str) -> StreamPipelineError:
        """As this product's error."""
        return self.kind(
            f"{place}: {self.reason}.",
            safe="No file is half-written, and the call may be repeated.",
            remedy=_REMEDIES[self.kind],
            path=place,
        )


class HdfsClient:
    """The connections of one place to its name nodes.

    Args:
        authority: ``host:port``, a name service of the Hadoop settings, or empty for their default file system.
        retry_timeout_s: How long an operation that gets no answer, or one of a name node that is not ready, is repeated before it fails.

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
        """Calls the library once, for so long.

        Raises:
            HdfsFailure: It has failed, or had no answer; what was asked for may yet happen then.
        """
        _ONE_PROCESS.check()
        if limit_s <= 0:
            raise HdfsFailure(StorageError, "There is no answer", passing=True)
        client = self._client
        try:
            return in_time(lambda: _named(work, client), time.monotonic() + limit_s, _Unanswered)
        except _Unanswered as error:
            self._renew(client)
            raise HdfsFailure(StorageError, f"There was no answer for {limit_s:.0f} s", passing=True, in_doubt=True) from error

    def _renew(self, silent: Client) -> None:
        with self._lock:
            if self._client is silent:
                # The library begins each call with the first until another has answered, and goes on only if that one refuses.
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
                    remedy="Let it have more (ulimit -n), then repeat.",
                    url=self._url,
                ) from error
            said = "no name node of it is known" if _NO_NAME_NODE in f"{error}" else _reason(error)
            raise InvalidParameterError(
                f"{self._url} cannot be opened: {said}.",
                safe="Nothing was read or written.",
                remedy="Give host:port of the name node, or a name service of the Hadoop settings that HADOOP_CONF_DIR names.",
                url=self._url,
            ) from error

    def _with_port(self, settings: dict[str, str]) -> Client:
        try:
            return Client(self._url, settings)
        except RuntimeError as error:  # a host without a port is taken for a name service only
            host = self._url.removeprefix("hdfs://").rstrip("/")
            if _NO_NAME_NODE not in f"{error}" or not host:
                raise
            return Client(f"hdfs://{host}:{_PORT}/", settings)


def shared_client(authority: str, retry_timeout_s: float) -> HdfsClient:
    """The client of a place with what the environment and Hadoop's settings say by now. Reads and writes nothing in HDFS.

    All who open the same place share it, its connections and its threads: a triggerer looks at a thousand homes.

    Raises:
        InvalidParameterError: See :class:`HdfsClient`.
        StorageError: This process has too many files open.
    """
    said = sorted((name, value) for name, value in os.environ.items() if name.startswith(_SAYS_HOW))
    changed_at_ns = [_changed_at_ns(f"{_settings_directory()}/{file}") for file in ("core-site.xml", "hdfs-site.xml")]
    return _client(authority, retry_timeout_s, tuple(said), tuple(changed_at_ns))


@lru_cache(maxsize=16)
def _client(authority: str, retry_timeout_s: float, *_: object) -> HdfsClient:
    return HdfsClient(authority, retry_timeout_s)


def _changed_at_ns(path: str) -> int | None:
    try:
        return os.stat(path).st_mtime_ns
    except OSError:
        return None


class Calls:
    """The calls of one operation, which is repeated as a whole where it had no answer.

    No call is begun later than the client's ``retry_timeout_s`` after the first that has failed, unless the name node answers again; none
    waits longer than a quarter of that, or a minute longer where data moves, because a data node may be gone.
    """

    def __init__(self, client: HdfsClient) -> None:
        self._client = client
        self._until_s = math.inf
        self._answers = True
        self._pause_s = _PAUSES_S[0]

    def __call__(self, work: Callable[[Client], T], *, moves_data: bool = False) -> T:
        """Calls the library once.

        Raises:
            HdfsFailure: It has failed.
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
        """Whether there is time for another try; returns when it may begin."""
        if time.monotonic() + self._pause_s >= self._until_s:
            return False
        time.sleep(self._pause_s)
        self._pause_s = min(2 * self._pause_s, _PAUSES_S[1])
        return True


def repeated(client: HdfsClient, place: str, attempt: Callable[[Calls], T]) -> T:
    """Does something, again and again while the name node does not answer, or is not ready.

    Raises:
        StorageError: Or one of its kin: the last failure.
    """
    calls = Calls(client)
    while True:
        try:
            return attempt(calls)
        except HdfsFailure as failure:
            if not failure.passing or not calls.may_repeat():
                raise failure.told(place) from failure


class _Unanswered(Exception):
    """Time is up."""


def _named(work: Callable[[Client], T], client: Client) -> T:
    """The one place where what the library raises gets a name."""
    try:
        return work(client)
    except FileNotFoundError as error:
        raise HdfsFailure(NotFoundError, "It is not there, or is no file") from error
    except FileExistsError as error:
        raise HdfsFailure(StorageError, _reason(error), exists=True) from error
    except NotImplementedError as error:
        raise HdfsFailure(MissingRequirementError, _reason(error)) from error
    except OSError as error:  # the connection, or the files of Kerberos
        raise HdfsFailure(StorageError, _reason(error), passing=True, in_doubt=True) from error
    except BaseException as error:
        if not isinstance(error, RuntimeError) and type(error).__name__ != _PANIC:
            raise
        raise failure_told_by(f"{error}") from error


def failure_told_by(text: str) -> HdfsFailure:
    """What follows from an error of the library, by how it shows itself: its class says nothing."""
    answered = _ANSWERED.match(text)
    if answered is None:
        if _REFUSED.match(text):
            return HdfsFailure(AccessDeniedError, text)
        if _UNUSABLE.match(text):
            return HdfsFailure(InvalidParameterError, text)
        return HdfsFailure(StorageError, text, passing=True, in_doubt=True)
    name = re.split(r"[.$]", answered["kind"])[-1]
    reason = f"{name}: {_TRACE.sub('', answered['reason'])}"
    told = partial(HdfsFailure, reason=reason)
    if _NO_DIRECTORY.search(reason):  # which it calls a refusal, too
        return told(NotFoundError)
    if none := _NO_DATA_NODE.search(reason):
        return told(StorageFullError if int(none[1]) else StorageError, passing=True)
    return told(_KINDS.get(name, StorageError), passing=name in _PASSING, in_doubt=text.startswith("Fatal"))


def _name_nodes(authority: str) -> dict[str, list[str]]:
    """The setting that has the name nodes of a service, and what it has; nothing where it is no service, or none is known of."""
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
