"""The base of triggers that watch a home for new things, for DAGs that are scheduled on an asset."""

import asyncio
import time
from abc import abstractmethod
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Sequence
from contextlib import aclosing
from hashlib import sha256
from typing import Any, ClassVar, Generic, Protocol, TypeVar

from airflow.sdk.exceptions import AirflowRuntimeError
from airflow.triggers.base import BaseEventTrigger, TriggerEvent

from airflow_provider.homes import open_allowed_home
from airflow_provider.store_connections import use_store_connection_in_triggerer
from airflow_provider.task_log import LogsVisibly
from airflow_provider.version_compat import AirflowNotFoundException, asset_store
from airflow_provider.waits.checkpoints import Listing, ListingLook
from airflow_provider.waits.shared_looks import Looking, looks, pace_at
from spark_jobs.background import run_in_lane
from spark_jobs.protocol.errors import StreamPipelineError
from spark_jobs.storage.files import Files
from spark_jobs.waits.limits import LIMITS, WaitLimits

T = TypeVar("T")
Found = TypeVar("Found")
Found_co = TypeVar("Found_co", covariant=True)


class Search(Protocol[Found_co]):
    """A search for new things in a home. Called by one thread at a time."""

    def find(self, listing: Listing) -> Sequence[Found_co]:
        """Returns the things that were not found before, oldest first."""
        ...


class HomeEventTrigger(LogsVisibly, BaseEventTrigger, Generic[Found]):
    """Sends an event for each new thing of one kind in a home. Only reads, and never ends.

    The position is kept in the asset's state store, and a restarted triggerer continues after it. If a triggerer dies within seconds of
    an event, that event may be sent twice, but it is never lost. Airflow below 3.3 has no such store: each start of a triggerer then
    begins like the first one.

    Args:
        home: The pipeline's home, inside the connection's home roots; a relative one starts at the first root.
        conn_id: The connection, of type ``stream_pipeline``.
        poll_interval_s: The pause between two looks while the home changes.
        max_poll_interval_s: The pause after some time without a change; None: 3 s, and 30 s in an object store.

    Raises:
        ValueError: ``poll_interval_s`` is not above 0.
    """

    what: ClassVar[str]
    """The things that it watches, as the triggerer's log calls them."""
    key: ClassVar[str]
    """The prefix of the key in the asset's state store."""
    wait_limits: WaitLimits = LIMITS
    """The time limits of the looks."""
    kept_after_s: float = 5.0
    """The position is stored this long after an event. The triggerer passes an event on within about a second, so no event is lost."""
    retry_after_s: float = 30.0
    """The pause before another try if the home cannot be read or is not allowed."""

    def __init__(
        self,
        *,
        home: str,
        conn_id: str = "stream_pipeline_default",
        poll_interval_s: float = 2.0,
        max_poll_interval_s: float | None = None,
    ) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        if poll_interval_s <= 0:
            raise ValueError("poll_interval_s has to be above 0.")
        self._arguments: dict[str, Any] = {
            "home": home,
            "conn_id": conn_id,
            "poll_interval_s": poll_interval_s,
            "max_poll_interval_s": max_poll_interval_s,
        }
        self.home, self.conn_id = home, conn_id
        self.intervals_s = (poll_interval_s, max_poll_interval_s)
        self._sent: list[tuple[Found, float]] = []
        """The things that were sent and whose position is not stored yet, with the time, oldest first."""
        self._store: Any = None

    def serialize(self) -> tuple[str, dict[str, Any]]:
        """Returns the class and the arguments, which are the whole state of the trigger."""
        return f"{type(self).__module__}.{type(self).__qualname__}", self._arguments

    async def run(self) -> AsyncIterator[TriggerEvent]:
        """Watches until it is cancelled. Errors are in the triggerer's log."""
        while True:
            try:
                async with aclosing(self._events()) as events:
                    async for each in events:
                        yield each
            except (StreamPipelineError, AirflowNotFoundException, AirflowRuntimeError, TimeoutError) as error:
                reason = f"{error}" or "the storage does not answer"
                self.log.warning("The %s of %s cannot be read: %s", self.what, self.home, reason)
                await asyncio.sleep(self.retry_after_s)

    async def _events(self) -> AsyncGenerator[TriggerEvent, None]:
        roots = (await use_store_connection_in_triggerer(self.conn_id)).roots
        files = await self._with_limit(run_in_lane(self.home, open_allowed_home, self.home, roots))
        await self._keep(files, 0.0)  # the position of events from before the error
        search, pace = await self._search(files), pace_at(files.url, *self.intervals_s)
        async with aclosing(looks(Looking(files.url, ("listing", False), ListingLook(files, answers=False), pace))) as listings:
            while True:
                listing = await self._with_limit(anext(listings), pace.rarest_s)
                for found in await self._with_limit(run_in_lane(files.url, search.find, listing)):
                    yield TriggerEvent({"home": files.url} | self.payload(found))  # type: ignore[no-untyped-call]
                    self._sent.append((found, time.monotonic()))
                await self._keep(files, self.kept_after_s)

    async def _with_limit(self, look: Awaitable[T], pause_s: float = 0.0) -> T:
        """Returns the result of a look. Raises TimeoutError if the storage does not answer, and run() then tries again."""
        async with asyncio.timeout(pause_s + self.wait_limits.storage_s):
            return await look

    async def _search(self, files: Files) -> Search[Found]:
        kept: Any = None
        self._store = asset_store(self)
        if self._store is not None:
            try:
                kept = await self._store.aget(self._key(files))
            except ValueError:  # Airflow makes one trigger of two assets' watchers with the same arguments
                self.log.warning(
                    "The position in %s is not stored, because several assets share its watcher. Use one asset, or different intervals.",
                    files.url,
                )
                self._store = None
        return self.search(files, kept if isinstance(kept, dict) else None)

    async def _keep(self, files: Files, after_s: float) -> None:
        now_s = time.monotonic()
        due = [found for found, sent_s in self._sent if now_s - sent_s >= after_s]
        if due and self._store is not None:
            await self._store.aset(self._key(files), self.position(due[-1]))
        del self._sent[: len(due)]

    def _key(self, files: Files) -> str:
        return f"{self.key}-{sha256(files.url.encode()).hexdigest()[:16]}"

    @abstractmethod
    def search(self, files: Files, kept: dict[str, Any] | None) -> Search[Found]:
        """Returns a search that continues after the stored position; None: no position is stored yet."""

    @abstractmethod
    def payload(self, found: Found) -> dict[str, Any]:
        """Returns the fields of an event, without ``home``."""

    @abstractmethod
    def position(self, found: Found) -> dict[str, Any]:
        """Returns the position to store after an event was sent."""
