"""How a trigger waits: it bears with a storage that is away for a while, and sends nothing before its task has settled."""

import asyncio
import socket
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Hashable, Mapping
from contextlib import aclosing
from operator import eq
from typing import Any, NotRequired, TypedDict, TypeVar, Unpack

from airflow.triggers.base import BaseTrigger, TriggerEvent

from airflow_provider.waits.clocks import monotonic_at
from airflow_provider.waits.shared_looks import Looking, looks, pace_at
from airflow_provider.waits.waiting import Patience
from spark_jobs.control.home import open_home
from spark_jobs.protocol.errors import AccessDeniedError, StorageError, StreamPipelineError
from spark_jobs.protocol.reports import report_error
from spark_jobs.storage.files import Files

T = TypeVar("T")

SETTLE_S = 10.0
"""A trigger that fires right after its task was deferred can fail it.

The worker's process ends a moment after the deferral, and the executor tells the scheduler, which looks once a loop. If the task was
resumed and queued by then, the scheduler takes the end of the first process for the end of the second, which has not begun:
"finished with state success, but the task instance's state attribute is queued" (``process_executor_events``). No row of Airflow's
database says that the scheduler has looked, so that only time helps. Measured on Airflow 3.3.2, LocalExecutor, PostgreSQL, 2 cores at
load 10: from the deferral to the look 1.3 s, the median of 178 deferrals, and 4.8 s at most; without settling 1 of 30 tasks failed. This
is twice the most. Where it is not enough the task fails as a lost worker does, and a retry finds the answer.
"""


class WaitArguments(TypedDict):
    """What every wait for something in a home is told."""

    home: str
    """URL of the home, resolved and allowed by the task."""
    deadline_at: float | None
    """Seconds since 1970; None: no deadline."""
    timeout_s: float | None
    """The wait that ``deadline_at`` ends, for its error."""
    poll_interval_s: float
    """Between two looks at the home, while it changes."""
    max_poll_interval_s: float | None
    """The same, once it has not changed for a while; None: what suits the home's storage."""
    settle_s: NotRequired[float]
    """No event is sent before; :data:`SETTLE_S` unless given."""


class WaitingTrigger(BaseTrigger):
    """A trigger that looks at a home until it has seen enough. Everything it knows is in its arguments, or in the home.

    Args:
        own: What else it is made of, by the names of its constructor's arguments; JSON values.
        waiting: See :class:`WaitArguments`.
    """

    def __init__(self, own: Mapping[str, Any], **waiting: Unpack[WaitArguments]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.settle_s = waiting.get("settle_s", SETTLE_S)
        self._arguments: dict[str, Any] = {**own, **waiting, "settle_s": self.settle_s}
        self.home = waiting["home"]
        self.deadline_at, self.timeout_s = waiting["deadline_at"], waiting["timeout_s"]
        self.pace = pace_at(self.home, waiting["poll_interval_s"], waiting["max_poll_interval_s"])

    def serialize(self) -> tuple[str, dict[str, Any]]:
        """Everything the trigger knows."""
        return f"{type(self).__module__}.{type(self).__qualname__}", self._arguments

    async def run(self) -> AsyncIterator[TriggerEvent]:
        """Waits, and sends one event; a home that cannot be opened here is one, too."""
        try:
            seen = await self.wait(open_home(self.home))
        except StreamPipelineError as error:
            await asyncio.sleep(self.settle_s)
            seen = failed(error)
        yield TriggerEvent({"home": self.home} | self.event_fields() | seen)  # type: ignore[no-untyped-call]

    def event_fields(self) -> dict[str, Any]:
        """What the event says whatever was seen."""
        return {}

    async def wait(self, files: Files) -> dict[str, Any]:
        """What the event says of what was seen; see :meth:`event_of`."""
        raise NotImplementedError

    async def event_of(
        self,
        key: Hashable,
        look: Callable[[], T],
        see: Callable[[T, float | None], Awaitable[bool]],
        same: Callable[[T, T], bool] = eq,
        back: Callable[[], None] = lambda: None,
        *,
        lasting: bool = True,
    ) -> dict[str, Any]:
        """What the wait ends with; see :class:`~airflow_provider.waits.shared_looks.Looking` and :func:`wait_for`."""
        waiting = wait_for(Looking(self.home, key, look, self.pace, same, lasting), see, self.deadline_at, self.log, back)
        return await settled(waiting, self.settle_s)


async def wait_for(
    looking: Looking[T],
    see: Callable[[T, float | None], Awaitable[bool]],
    deadline_at: float | None,
    log: Any,
    back: Callable[[], None] = lambda: None,
) -> dict[str, Any]:
    """Looks until ``see`` has seen enough.

    Args:
        looking: What is looked at.
        see: Told each look, and how many seconds are left; whether it is the last one. It may look further: a storage that is
            away is borne there, too, so that an error which a look has *shown* is no error of its own.
        deadline_at: Seconds since 1970; None: no deadline.
        log: Where a storage that is away is noted.
        back: Told before the first look after it was.

    Returns:
        An event: the error as ``"error"``; empty if there was none.
    """
    end_s = None if deadline_at is None else monotonic_at(deadline_at)
    patience = Patience(end_s)
    while True:
        try:
            async with aclosing(looks(looking)) as found:
                while True:
                    async with asyncio.timeout(looking.pace.rarest_s + patience.look_max_s(time.monotonic())):
                        each = await anext(found)
                    if patience.is_tried:
                        back()
                    async with asyncio.timeout(patience.look_max_s(time.monotonic())):  # it may hang where the look has not
                        over = await see(each, None if end_s is None else end_s - time.monotonic())
                    if over:
                        return {}
                    patience.seen()
        except (StreamPipelineError, OSError) as caught:
            error = _typed(caught)
            if _is_silence(caught) or not patience.tolerates(error, time.monotonic()):
                return failed(error)
            log.warning("The home cannot be read: %s", error)
            await asyncio.sleep(looking.pace.rarest_s)


def failed(error: StreamPipelineError) -> dict[str, Any]:
    """The event of a wait that ends with an error."""
    return {"error": report_error(error).model_dump(mode="json")}


def _is_silence(error: Exception) -> bool:
    """Whether a look has not returned, which another one would not either; what the system reports has a number."""
    return isinstance(error, TimeoutError) and error.errno is None


def _typed(error: StreamPipelineError | OSError) -> StreamPipelineError:
    if isinstance(error, StreamPipelineError):
        return error
    kind = AccessDeniedError if isinstance(error, PermissionError) else StorageError
    return kind(
        f"What a task waits for cannot be looked at on {socket.gethostname()}: {error.strerror or 'the storage does not answer'}.",
        safe="Nothing was changed.",
        remedy="See to the mount on that host; a retry waits again.",
        path=error.filename,
        errno=error.errno,
    )


async def settled(event: Awaitable[dict[str, Any]], settle_s: float) -> dict[str, Any]:
    """The event, not before ``settle_s`` have passed."""
    began_s = time.monotonic()
    found = await event
    await asyncio.sleep(max(0.0, settle_s - (time.monotonic() - began_s)))
    return found
