"""The trigger that watches what a running pipeline makes public, for DAGs that are scheduled on an asset."""

import asyncio
import time
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable
from contextlib import aclosing
from hashlib import sha256
from typing import Any, TypeVar

from airflow.sdk import BaseHook
from airflow.sdk.exceptions import AirflowNotFoundException, AirflowRuntimeError
from airflow.triggers.base import BaseEventTrigger, TriggerEvent

from airflow_provider.homes import open_home
from airflow_provider.settings import read_settings
from airflow_provider.waits.looking import ListingLook
from airflow_provider.waits.public_checkpoints import PublicationSearch, PublicCheckpoint
from airflow_provider.waits.shared_looks import Looking, looks, pace_at
from airflow_provider.waits.threads import in_thread
from airflow_provider.waits.waiting import LOOK_PATIENCE_S
from spark_jobs.protocol.errors import StreamPipelineError
from spark_jobs.protocol.ids import CheckpointId, PipelineUuid
from spark_jobs.storage.files import Files

T = TypeVar("T")

_KEPT_AFTER_S = 5.0
"""The triggerer hands an event on within about a second; what was sent is noted after that, so that no event is lost with it."""
_HINDERED_S = 30.0
"""Between two tries where the home cannot be read, or is not allowed."""


class PublicationTrigger(BaseEventTrigger):
    """Sends an event for each checkpoint of a home that has become public in every table. Only reads; never ends.

    For an :class:`airflow.sdk.AssetWatcher`. The event has the ``home``, the ``checkpoint``, and ``tables``: by sink its ``table``, a
    URI, and ``version``, the Delta version right after it became public. Under ``behind`` it has the sinks whose tables show less than the
    others. Events coalesce: a DAG that was busy sees several as one run,
    so that consumers ask the home what is public (:func:`spark_jobs.consistent_versions`).

    What was sent is kept in the asset's state store: a triggerer that is started anew goes on after it. One that dies within seconds
    of an event may send that event twice, never not at all. Where nothing is kept yet, the newest public checkpoint is sent.

    Args:
        home: The pipeline's home, inside the connection's home roots; a relative one starts at the first root.
        conn_id: The connection, of type ``stream_pipeline``.
        poll_interval_s: Between two looks at the home, while it changes.
        max_poll_interval_s: The same, once it has not changed for a while; None: 3 s, and 30 s in an object store.

    Raises:
        ValueError: ``poll_interval_s`` is not above 0.
    """

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
        self._sent: list[tuple[PublicCheckpoint, float]] = []
        """What was sent and not kept yet, and when; oldest first."""

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
                self.log.warning(
                    "What %s makes public cannot be seen: %s", self.home, f"{error}" or "the storage does not answer"
                )
                await asyncio.sleep(_HINDERED_S)

    async def _events(self) -> AsyncGenerator[TriggerEvent, None]:
        connection = await BaseHook.aget_connection(self.conn_id)
        roots = read_settings(connection.extra_dejson, self.conn_id, connection.conn_type).roots
        files = await self._in_time(in_thread(self.home, open_home, self.home, roots))
        await self._keep(files, 0.0)  # what was sent before it was hindered
        search, pace = await self._search(files), pace_at(files.url, *self.intervals_s)
        async with aclosing(looks(Looking(files.url, ("listing", False), ListingLook(files, answers=False), pace))) as listings:
            while True:
                listing = await self._in_time(anext(listings), pace.rarest_s)
                for found in await self._in_time(in_thread(files.url, search.find, listing)):
                    yield _event(files, found)
                    self._sent.append((found, time.monotonic()))
                await self._keep(files, _KEPT_AFTER_S)

    @staticmethod
    async def _in_time(look: Awaitable[T], pause_s: float = 0.0) -> T:
        """What is seen; a storage that does not answer is told of, and asked again."""
        async with asyncio.timeout(pause_s + LOOK_PATIENCE_S):
            return await look

    async def _search(self, files: Files) -> PublicationSearch:
        kept: Any = None
        if self.asset_state_store is not None:
            try:
                kept = await self.asset_state_store.aget(_key(files))
            except ValueError:  # two assets have watchers with the same arguments, which Airflow makes one trigger of
                self.log.warning(
                    "What is sent for %s is not kept: give it one asset, or each watcher intervals of its own", files.url
                )
                self.asset_state_store = None
        if not isinstance(kept, dict):
            return PublicationSearch(files, None, None)
        return PublicationSearch(files, PipelineUuid(str(kept["pipeline"])), CheckpointId(int(kept["checkpoint"])))

    async def _keep(self, files: Files, after_s: float) -> None:
        now_s = time.monotonic()
        due = [found for found, sent_s in self._sent if now_s - sent_s >= after_s]
        if due and self.asset_state_store is not None:
            await self.asset_state_store.aset(_key(files), {"pipeline": due[-1].pipeline, "checkpoint": due[-1].checkpoint})
        del self._sent[: len(due)]


def _key(files: Files) -> str:
    return f"stream_pipeline-{sha256(files.url.encode()).hexdigest()[:16]}"


def _event(files: Files, found: PublicCheckpoint) -> TriggerEvent:
    tables = {str(sink): {"table": table, "version": version} for sink, (table, version) in found.tables.items()}
    payload = {"home": files.url, "checkpoint": found.checkpoint, "tables": tables, "behind": list(found.tables.behind)}
    return TriggerEvent(payload)  # type: ignore[no-untyped-call]
