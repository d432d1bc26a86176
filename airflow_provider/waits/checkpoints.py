"""The wait for a checkpoint, and the search for it."""

from collections.abc import Hashable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from airflow_provider.facts import checkpoint_facts
from spark_jobs.checkpoint.checkpoint_store import CheckpointStore
from spark_jobs.control.channel import Channel
from spark_jobs.protocol.documents import Manifest, StartResponse
from spark_jobs.protocol.errors import CorruptDocumentError, DeadlineExceededError, NotFoundError
from spark_jobs.protocol.ids import AttemptNumber, CheckpointId, RunId
from spark_jobs.storage.files import Files
from spark_jobs.waits.home_wait import HomeWait

ANY_CHECKPOINT = CheckpointId(0)
"""Every checkpoint is newer than this number."""


@dataclass(frozen=True)
class Listing:
    """The names of the checkpoints and answers of a home. They are cheap to list."""

    checkpoints: tuple[CheckpointId, ...]
    """The numbers in use, ascending."""
    answers: tuple[AttemptNumber, ...]
    """The attempts with an answer, ascending; empty if answers are not listed."""


class ListingLook:
    """Lists a home. While nothing changes, a look lists one or two directories, however large the home is. One thread at a time.

    Args:
        files: The home.
        answers: List the answers, too.
    """

    def __init__(self, files: Files, *, answers: bool) -> None:
        self._channel, self._store = Channel(files) if answers else None, CheckpointStore(files)

    def __call__(self) -> Listing:
        return Listing(tuple(self._store.taken()), tuple(self._channel.answered()) if self._channel else ())


@dataclass(frozen=True)
class WantedCheckpoint:
    """The conditions for a checkpoint that a task waits for."""

    final: bool
    """Only a final checkpoint counts."""
    run: RunId | None = None
    """Only a checkpoint of this run counts, or the checkpoint in its answer: another run may have finished the round."""
    newer_than: CheckpointId = ANY_CHECKPOINT
    """Only a checkpoint with a higher number counts."""
    max_age_s: float | None = None
    """Only a checkpoint that is at most that old counts."""

    @property
    def of_a_run(self) -> bool:
        """True if the checkpoint may only be known from the answers."""
        return self.run is not None

    def is_recent(self, at: datetime) -> bool:
        """Returns True if a checkpoint of this time is not too old. A checkpoint that is too old never becomes recent again."""
        return self.max_age_s is None or (datetime.now(UTC) - at).total_seconds() <= self.max_age_s


class CheckpointSearch:
    """Searches a home for a checkpoint. It reads each document only once, because documents never change. One thread at a time.

    Args:
        files: The home.
        wanted: The conditions.
    """

    def __init__(self, files: Files, wanted: WantedCheckpoint) -> None:
        self._channel, self._store, self._wanted = Channel(files), CheckpointStore(files), wanted
        self._unwanted: set[CheckpointId] = set()
        self._read: tuple[AttemptNumber, ...] | None = None
        self._answer: StartResponse | None = None

    def find(self, listing: Listing) -> Manifest | StartResponse | None:
        """Returns the newest checkpoint that fits, or the run's answer if its checkpoint was discarded since; None if there is none.

        Raises:
            StreamPipelineError: The home cannot be read, or not by this version.
        """
        if self._wanted.run is not None and listing.answers != self._read:
            self._answer, self._read = self._channel.answer(self._wanted.run), listing.answers
        for number in reversed(listing.checkpoints):
            if number <= self._wanted.newer_than:
                break
            if number in self._unwanted and not self._is_answer(number):
                continue
            try:
                manifest = self._store.manifest(number)
            except (CorruptDocumentError, NotFoundError):  # a corrupt or deleted checkpoint does not count
                continue
            if self._is_wanted(manifest):
                return manifest
            self._unwanted.add(number)
        return self._answer if self._answers_with_discarded(listing) else None

    def _answers_with_discarded(self, listing: Listing) -> bool:
        """Returns True if the run's answer names a checkpoint that fits and was discarded."""
        answer = self._answer
        if answer is None or answer.error is not None or answer.checkpoint is None or answer.checkpoint in listing.checkpoints:
            return False
        if not self._wanted.is_recent(answer.answered_at):
            return False
        return answer.checkpoint > self._wanted.newer_than and (answer.ends_round or not self._wanted.final)

    def _is_answer(self, number: CheckpointId) -> bool:
        return self._answer is not None and self._answer.checkpoint == number

    def _is_wanted(self, manifest: Manifest) -> bool:
        asked = self._wanted.run in (None, manifest.run) or self._is_answer(manifest.checkpoint)
        return asked and (manifest.ends_round or not self._wanted.final) and self._wanted.is_recent(manifest.completed_at)


def find_checkpoint(files: Files, wanted: WantedCheckpoint) -> Manifest | StartResponse | None:
    """Searches once; see :meth:`CheckpointSearch.find`."""
    return CheckpointSearch(files, wanted).find(ListingLook(files, answers=wanted.of_a_run)())


@dataclass
class CheckpointWait(HomeWait[Listing, dict[str, Any]]):
    """Waits for a checkpoint. Only reads.

    The event has the value of :func:`airflow_provider.facts.checkpoint_facts` as ``"facts"``.

    Args:
        final: Only a final checkpoint counts.
        run: Only a checkpoint of this run counts.
        newer_than: Only a checkpoint with a higher number counts.
        max_age_s: Only a checkpoint that is at most that old counts.
    """

    kind = "checkpoint"

    final: bool
    run: str | None
    newer_than: int
    max_age_s: float | None = None

    def __post_init__(self) -> None:
        run = None if self.run is None else RunId(self.run)
        self._wanted = WantedCheckpoint(self.final, run, CheckpointId(self.newer_than), self.max_age_s)
        self._list = ListingLook(self.files, answers=self._wanted.of_a_run)
        self._search = CheckpointSearch(self.files, self._wanted)
        self._searched: Listing | None = None

    @property
    def key(self) -> Hashable:
        return "listing", self._wanted.of_a_run  # all waits that list the same home share the looks

    def look(self) -> Listing:
        return self._list()

    def reads_home(self, look: Listing) -> bool:
        return look != self._searched

    def judge(self, look: Listing, now_s: float) -> dict[str, Any] | None:
        if not self.reads_home(look):
            return None
        found = self._search.find(look)
        self._searched = look
        return None if found is None else {"facts": checkpoint_facts(self.files, found)}

    def too_late(self, look: Listing, timeout_s: float | None) -> DeadlineExceededError:
        what = "a final checkpoint" if self.final else "a checkpoint"
        whose = f" of run {self.run}" if self.run else ""
        recent = "" if self.max_age_s is None else f" that is at most {self.max_age_s:g} s old"
        newer = f" newer than {self.newer_than}" if self.newer_than or not recent else ""
        return DeadlineExceededError(
            f"{self.files.url} has not had {what}{whose}{newer}{recent} within {timeout_s or 0.0:g} s.",
            safe="Nothing was changed.",
            remedy="See what the pipeline does (spark-jobs status); raise timeout if it takes longer.",
            home=self.files.url,
        )
