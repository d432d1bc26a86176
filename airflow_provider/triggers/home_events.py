"""What the triggers have in common that send an event for each thing which a home gains, for DAGs that are scheduled on an asset."""

import asyncio
import time
from abc import abstractmethod
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Sequence
from contextlib import aclosing
from hashlib import sha256
from typing import Any, ClassVar, Generic, Protocol, TypeVar

from airflow.sdk.exceptions import AirflowRuntimeError
from airflow.triggers.base import BaseEventTrigger, TriggerEvent

from airflow_provider.homes import open_home
from airflow_provider.stores import use_store_from_afar
from airflow_provider.version_compat import AirflowNotFoundException, asset_store
from airflow_provider.waits.looking import Listing, ListingLook
from airflow_provider.waits.shared_looks import Looking, looks, pace_at
from airflow_provider.waits.threads import in_thread
from airflow_provider.waits.waiting import LOOK_PATIENCE_S
from spark_jobs.protocol.errors import StreamPipelineError
from spark_jobs.storage.files import Files

T = TypeVar("T")
Found = TypeVar("Found")
Found_co = TypeVar("Found_co", covariant=True)

_KEPT_AFTER_S = 5.0
"""The triggerer hands an event on within about a second; what was sent is noted after that, so that no event is lost with it."""
_HINDERED_S = 30.0
"""Between two tries where the home cannot be read, or is not allowed."""


class Search(Protocol[Found_co]):
    """Searches a home for what is new in it. One thread at a time."""

    def find(self, listing: Listing) -> Sequence[Found_co]:
        """Returns what was not found before, oldest first."""
        ...


class HomeEventTrigger(BaseEventTrigger, Generic[Found]):
    """Sends an event for each thing of one kind that a home gains. Only reads; never ends.

    What was sent is kept in the asset's state store: a triggerer that is started anew goes on after it. One that dies within seconds
    of an event may send that event twice, never not at all. Airflow below 3.3 keeps nothing: each start of a triggerer searches as the
    first one does.

    Args:
        home: The pipeline's home, inside the connection's home roots; a relative one starts at the first root.
        conn_id: The connection, of type ``stream_pipeline``.
        poll_interval_s: Between two looks at the home, while it changes.
        max_poll_interval_s: The same, once it has not changed for a while; None: 3 s, and 30 s in an object store.

    Raises:
        ValueError: ``poll_interval_s`` is not above 0.
    """

    what: ClassVar[str]
    """What it watches, after "the ", for the triggerer's log."""
    key: ClassVar[str]
    """The beginning of the name under which the asset's state store keeps what was sent."""

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
            raise ValueError("poll_interval_s is above 0.")
        self._arguments: dict[str, Any] = {
            "home": home,
            "conn_id": conn_id,
            "poll_interval_s": poll_interval_s,
            "max_poll_interval_s": max_poll_interval_s,
        }
        self.home, self.conn_id = home, conn_id
        self.intervals_s = (poll_interval_s, max_poll_interval_s)
        self._sent: list[tuple[Found, float]] = []
        """What was sent and not kept yet, and when; oldest first."""
        self._store: Any = None

    def serialize(self) -> tuple[str, dict[str, Any]]:
        """Everything the trigger knows."""
        return f"{type(self).__module__}.{type(self).__qualname__}", self._arguments

    async def run(self) -> AsyncIterator[TriggerEvent]:
        """Watches for ever. What hinders it is in the triggerer's log."""
        while True:
            try:
                async with aclosing(self._events()) as events:
                    async for each in events:
                        yield each
            except (StreamPipelineError, AirflowNotFoundException, AirflowRuntimeError, TimeoutError) as error:
                why = f"{error}" or "the storage does not answer"
                self.log.warning("The %s of %s cannot be seen: %s", self.what, self.home, why)
                await asyncio.sleep(_HINDERED_S)

    async def _events(self) -> AsyncGenerator[TriggerEvent, None]:
        roots = (await use_store_from_afar(self.conn_id)).roots
        files = await self._in_time(in_thread(self.home, open_home, self.home, roots))
        await self._keep(files, 0.0)  # what was sent before it was hindered
        search, pace = await self._search(files), pace_at(files.url, *self.intervals_s)
        async with aclosing(looks(Looking(files.url, ("listing", False), ListingLook(files, answers=False), pace))) as listings:
            while True:
                listing = await self._in_time(anext(listings), pace.rarest_s)
                for found in await self._in_time(in_thread(files.url, search.find, listing)):
                    yield TriggerEvent({"home": files.url} | self.payload(found))  # type: ignore[no-untyped-call]
                    self._sent.append((found, time.monotonic()))
                await self._keep(files, _KEPT_AFTER_S)

    @staticmethod
    async def _in_time(look: Awaitable[T], pause_s: float = 0.0) -> T:
        """What is seen; a storage that does not answer is told of, and asked again."""
        async with asyncio.timeout(pause_s + LOOK_PATIENCE_S):
            return await look

    async def _search(self, files: Files) -> Search[Found]:
        kept: Any = None
        self._store = asset_store(self)
        if self._store is not None:
            try:
                kept = await self._store.aget(self._key(files))
            except ValueError:  # two assets have watchers with the same arguments, which Airflow makes one trigger of
                self.log.warning(
                    "What is sent for %s is not kept: give it one asset, or each watcher intervals of its own", files.url
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
        """Returns a search that goes on after the position which was kept last; None: nothing was kept yet."""

    @abstractmethod
    def payload(self, found: Found) -> dict[str, Any]:
        """Returns the fields of an event, without ``home``."""

    @abstractmethod
    def position(self, found: Found) -> dict[str, Any]:
        """Returns what is kept once the event was sent."""
