"""The trigger that waits for a checkpoint."""

from typing import Any, Unpack

from airflow_provider.facts import checkpoint_facts
from airflow_provider.triggers.patience import WaitArguments, WaitingTrigger
from airflow_provider.waits.looking import CheckpointSearch, Listing, ListingLook, WantedCheckpoint
from airflow_provider.waits.threads import in_thread
from spark_jobs.protocol.documents import Manifest, StartResponse
from spark_jobs.protocol.errors import DeadlineExceededError
from spark_jobs.protocol.ids import CheckpointId, RunId
from spark_jobs.storage.files import Files


class CheckpointTrigger(WaitingTrigger):
    """Waits for a checkpoint. Only reads; can be started again at any time, in any triggerer that sees the home.

    The event has the ``"home"``, and what :func:`airflow_provider.facts.checkpoint_facts` says as ``"facts"``, or an error of
    :mod:`spark_jobs.protocol.errors` as ``"error"``.

    Args:
        final: Only a final one counts.
        run: Only one of this run counts.
        newer_than: Only one with a higher number counts.
        waiting: As for every :class:`~airflow_provider.triggers.patience.WaitArguments`.
    """

    def __init__(
        self,
        *,
        final: bool,
        run: str | None,
        newer_than: int,
        **waiting: Unpack[WaitArguments],
    ) -> None:
        super().__init__({"final": final, "run": run, "newer_than": newer_than}, **waiting)
        self.wanted = WantedCheckpoint(final, None if run is None else RunId(run), CheckpointId(newer_than))

    async def wait(self, files: Files) -> dict[str, Any]:
        """The checkpoint."""
        search = CheckpointSearch(files, self.wanted)
        found: Manifest | StartResponse | None = None
        searched: Listing | None = None

        async def see(listing: Listing, left_s: float | None) -> bool:
            nonlocal found, searched
            if listing != searched:
                found = await in_thread(self.home, search.find, listing)
                searched = listing
            if found is None and left_s is not None and left_s <= 0:
                raise self._too_late()
            return found is not None

        look = ListingLook(files, answers=self.wanted.of_a_run)
        key = ("listing", self.wanted.of_a_run)  # whatever else is searched for there: these waits for one home share the looks
        event = await self.event_of(key, look, see)
        return event | ({"facts": checkpoint_facts(files.url, found)} if found is not None else {})

    def _too_late(self) -> DeadlineExceededError:
        what = "a final checkpoint" if self.wanted.final else "a checkpoint"
        whose = f" of run {self.wanted.run}" if self.wanted.run else ""
        return DeadlineExceededError(
            f"{self.home} has not had {what}{whose} newer than {self.wanted.newer_than} within {self.timeout_s:g} s.",
            safe="Nothing was changed.",
            remedy="See what the pipeline does (spark-jobs status); raise timeout if it takes longer.",
            home=self.home,
        )
