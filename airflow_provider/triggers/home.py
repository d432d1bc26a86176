"""Triggers that wait for something in a home.

They tolerate a storage that is unavailable for a while, and send nothing before their task has settled.
"""

import asyncio
import socket
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import aclosing
from typing import Any, NotRequired, TypedDict, TypeVar, Unpack

from airflow.triggers.base import BaseTrigger, TriggerEvent

from airflow_provider.store_connections import use_store_connection_in_triggerer
from airflow_provider.task_log import LogsVisibly
from airflow_provider.waits.checkpoints import CheckpointWait
from airflow_provider.waits.clocks import monotonic_at
from airflow_provider.waits.pipeline_states import StateWait
from airflow_provider.waits.shared_looks import Looking, looks, pace_at
from spark_jobs.background import run_in_lane
from spark_jobs.control.home import open_home
from spark_jobs.protocol.documents import ErrorReport
from spark_jobs.protocol.errors import AccessDeniedError, StorageError, StreamPipelineError
from spark_jobs.protocol.reports import report_error, reported_error
from spark_jobs.storage.files import Files
from spark_jobs.storage.object_store_kinds import is_in_object_store
from spark_jobs.waits.ends import EndWait
from spark_jobs.waits.home_wait import HomeWait
from spark_jobs.waits.limits import LIMITS, WaitLimits
from spark_jobs.waits.patience import Patience
from spark_jobs.waits.requests import RequestWait

L = TypeVar("L")
R = TypeVar("R")
T = TypeVar("T")

SETTLE_S = 10.0
"""The shortest time from a deferral to the event. An earlier event could fail the task.

The worker's process ends a moment after the deferral, and its executor reports this to the scheduler, which reads it once per loop. If
the task was resumed and queued before that, the scheduler takes the end of the first process for the end of the second one, which has
not begun: "finished with state success, but the task instance's state attribute is queued" (``process_executor_events``). Airflow's
database does not show whether the scheduler has read the report, so only time helps. Measured on Airflow 3.3.2 with LocalExecutor,
PostgreSQL, 2 cores and a load of 10: the time from the deferral to the read was 1.3 s in the median of 178 deferrals, and 4.8 s at
most. Without settling, 1 of 30 tasks failed. This value is twice the maximum. If it is too short, the task fails like one with a lost
worker, and a retry finds the answer.
"""

WAITS: dict[str, type[HomeWait[Any, Any]]] = {kind.kind: kind for kind in (CheckpointWait, EndWait, RequestWait, StateWait)}
"""The waits of :class:`HomeTrigger`, by the names in Airflow's database."""


class WaitArguments(TypedDict):
    """The arguments of every trigger that waits for something in a home."""

    home: str
    """The URL of the home, resolved and allowed by the task."""
    deadline_at: float | None
    """Seconds since 1970; None: no deadline."""
    timeout_s: float | None
    """The configured time for ``deadline_at``, for its error."""
    poll_interval_s: float
    """The pause between two looks at the home while it changes."""
    max_poll_interval_s: float | None
    """The pause after some time without a change; None: 3 s, and 30 s in an object store."""
    conn_id: NotRequired[str]
    """The connection of the task, which may name the store of the home; without it the environment names the store."""
    settle_s: NotRequired[float]
    """The shortest time until the event; :data:`SETTLE_S` unless given."""


class WaitingTrigger(LogsVisibly, BaseTrigger):
    """A trigger that looks at a home until the wait is over. Its arguments and the home contain its whole state.

    Args:
        own: The arguments of the subclass; JSON values.
        waiting: See :class:`WaitArguments`.
    """

    wait_limits: WaitLimits = LIMITS
    """The time limits of the wait that no DAG chooses."""

    def __init__(self, own: Mapping[str, Any], **waiting: Unpack[WaitArguments]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.settle_s = waiting.get("settle_s", SETTLE_S)
        self._arguments: dict[str, Any] = {**own, **waiting, "settle_s": self.settle_s}
        self.home, self.conn_id = waiting["home"], waiting.get("conn_id")
        self.deadline_at, self.timeout_s = waiting["deadline_at"], waiting["timeout_s"]
        self.pace = pace_at(self.home, waiting["poll_interval_s"], waiting["max_poll_interval_s"])

    def serialize(self) -> tuple[str, dict[str, Any]]:
        """Returns the class and the arguments, from which any triggerer can start it again."""
        return f"{type(self).__module__}.{type(self).__qualname__}", self._arguments

    async def run(self) -> AsyncIterator[TriggerEvent]:
        """Waits, and sends one event. If the home cannot be opened, the event has that error."""
        try:
            if self.conn_id is not None and is_in_object_store(self.home):
                await use_store_connection_in_triggerer(self.conn_id)
            found = await self.wait(open_home(self.home))
        except StreamPipelineError as error:
            await asyncio.sleep(self.settle_s)
            found = failed(error)
        yield TriggerEvent({"home": self.home} | self.event_fields() | found)  # type: ignore[no-untyped-call]

    def event_fields(self) -> dict[str, Any]:
        """Returns the fields of every event."""
        return {}

    async def wait(self, files: Files) -> dict[str, Any]:
        """Waits, and returns the result as fields of the event; see :meth:`outcome_of`."""
        raise NotImplementedError

    async def outcome_of(
        self,
        wait: HomeWait[L, R],
        see: Callable[[L, float], Awaitable[None]] | None = None,
        reported: Callable[[StreamPipelineError], Awaitable[StreamPipelineError]] | None = None,
    ) -> R | StreamPipelineError:
        """Waits, and returns the result or the error, not before the task has settled.

        Args:
            wait: The wait.
            see: Gets each look before it is judged, and the time on a monotonic clock.
            reported: Gets the error with which the wait has failed, and returns the error to report.
        """

        async def judge(look: L, left_s: float | None) -> R | StreamPipelineError | None:
            now_s = time.monotonic()
            for line in wait.news(look, now_s):
                self.log.info(line)
            if see is not None:
                await see(look, now_s)
            if wait.reads_home(look):
                return await run_in_lane(self.home, wait.result, look, now_s, left_s, self.timeout_s)
            try:
                return wait.result(look, now_s, left_s, self.timeout_s)
            except StreamPipelineError as error:  # it may be the driver's own, such as a full disk: the home could be read
                return error if reported is None else await reported(error)

        looking = Looking(self.home, wait.key, wait.look, self.pace, wait.same, wait.lasting)
        return await settled(
            wait_for(looking, judge, self.deadline_at, self.log, wait.home_is_back, self.wait_limits), self.settle_s
        )


class HomeTrigger(WaitingTrigger):
    """Waits for something in a home. Any triggerer that sees the home can start it again at any time.

    The event has the ``"home"`` and the ``event_fields`` of the wait. It also has the result of the wait, or an error of
    :mod:`spark_jobs.protocol.errors` as ``"error"``.

    Args:
        kind: The ``kind`` of a :class:`~spark_jobs.waits.home_wait.HomeWait`.
        arguments: The arguments of that wait.
        waiting: See :class:`WaitArguments`.
    """

    def __init__(self, *, kind: str, arguments: Mapping[str, Any], **waiting: Unpack[WaitArguments]) -> None:
        super().__init__({"kind": kind, "arguments": dict(arguments)}, **waiting)
        self.wait_type, self.arguments = WAITS[kind], dict(arguments)

    def event_fields(self) -> dict[str, Any]:
        return {name: self.arguments[name] for name in self.wait_type.event_fields}

    async def wait(self, files: Files) -> dict[str, Any]:
        found = await self.outcome_of(self.wait_type(files, **self.arguments))
        return failed(found) if isinstance(found, StreamPipelineError) else found


async def wait_for(
    looking: Looking[L],
    judge: Callable[[L, float | None], Awaitable[R | None]],
    deadline_at: float | None,
    log: Any,
    home_is_back: Callable[[float], None] = lambda _: None,
    limits: WaitLimits = LIMITS,
) -> R | StreamPipelineError:
    """Looks until the wait is over.

    Args:
        looking: The look.
        judge: Gets each look and the seconds until the deadline, and returns the result, or None if the wait goes on. It may read the home:
            an unavailable storage is tolerated there, too. So a storage error that a look has *found*, such as the driver's, must not be
            raised.
        deadline_at: Seconds since 1970; None: no deadline.
        log: The log for storage errors.
        home_is_back: Called with the time before the first look is judged after the home was unavailable.
        limits: The time limits of the wait.

    Returns:
        The result, or the error if the home was unavailable for too long.
    """
    end_s = None if deadline_at is None else monotonic_at(deadline_at)
    patience = Patience(end_s, limits)
    while True:
        try:
            async with aclosing(looks(looking)) as found:
                while True:
                    async with asyncio.timeout(looking.pace.rarest_s + patience.look_max_s(time.monotonic())):
                        each = await anext(found)
                    if patience.last_look_failed:
                        home_is_back(time.monotonic())
                    async with asyncio.timeout(patience.look_max_s(time.monotonic())):  # it may hang although the look did not
                        result = await judge(each, None if end_s is None else end_s - time.monotonic())
                    if result is not None:
                        return result
                    patience.seen()
        except (StreamPipelineError, OSError) as caught:
            error = _typed(caught)
            if _is_silence(caught) or not patience.tolerates(error, time.monotonic()):
                return error
            log.warning("The home cannot be read: %s", error)
            await asyncio.sleep(looking.pace.rarest_s)


def failed(error: StreamPipelineError) -> dict[str, Any]:
    """Returns the fields of an event for an error."""
    return {"error": report_error(error).model_dump(mode="json")}


def failure_of(event: Mapping[str, Any]) -> StreamPipelineError | None:
    """Returns the error of an event; None if the wait has succeeded."""
    return reported_error(ErrorReport.model_validate(event["error"])) if "error" in event else None


def _is_silence(error: Exception) -> bool:
    """Returns True if a look has hung. Another look would hang, too. A timeout of the operating system has an error number instead."""
    return isinstance(error, TimeoutError) and error.errno is None


def _typed(error: StreamPipelineError | OSError) -> StreamPipelineError:
    """Returns an error of the operating system as one of this package."""
    if isinstance(error, StreamPipelineError):
        return error
    kind = AccessDeniedError if isinstance(error, PermissionError) else StorageError
    return kind(
        f"A task's wait cannot read its home on {socket.gethostname()}: {error.strerror or 'the storage does not answer'}.",
        safe="Nothing was changed.",
        remedy="On that host, check the mount or the connection to the store. A retry continues the wait.",
        path=error.filename,
        errno=error.errno,
    )


async def settled(event: Awaitable[T], settle_s: float) -> T:
    """Returns the event, but not before ``settle_s`` have passed."""
    began_s = time.monotonic()
    found = await event
    await asyncio.sleep(max(0.0, settle_s - (time.monotonic() - began_s)))
    return found
