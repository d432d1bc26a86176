"""The loss ledger of a home: the rows of their inputs that stages have left out, and what became of each loss.

Invariants:

1. A loss is recorded before the first batch that leaves its rows out. So what the stages have read and what is in the ledger is the input.
2. Nothing is in the ledger of a round twice: what is recorded already is not recorded again.
3. A record never changes. What becomes of a loss is a document of its own, created once.
"""

from collections.abc import Collection, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import StrEnum

from spark_jobs.home.layout import (
    LOSSES,
    LossNames,
    loss_accepted_path,
    loss_id,
    loss_names,
    loss_path,
    loss_undone_path,
    position_of_loss,
)
from spark_jobs.protocol.documents import AcceptedLoss, AttemptDocument, RecordedLoss, UndoneLoss
from spark_jobs.protocol.errors import AlreadyExistsError, RejectedError
from spark_jobs.protocol.ids import InputName, LossId, RoundNumber, RunId, StageName
from spark_jobs.protocol.losses import Loss, PassedOver, beyond
from spark_jobs.protocol.steps import Step, step
from spark_jobs.storage.files import Files, create_document, read_document


class LossState(StrEnum):
    """What has become of a loss."""

    OPEN = "open"
    """No person has accepted it."""
    ACCEPTED = "accepted"
    """A person has: with the start of the run, or later."""
    UNDONE = "undone"
    """The pipeline went back to before it, and reads its input again."""


@dataclass(frozen=True)
class LedgerEntry:
    """A loss, and what has become of it."""

    recorded: RecordedLoss
    state: LossState
    acceptance: AcceptedLoss | None = None


class LossLedger:
    """The losses of a home."""

    def __init__(self, files: Files) -> None:
        self.files = files

    def names(self) -> LossNames:
        """Returns which losses there are, and what became of them, by one listing."""
        return loss_names(self.files.names(LOSSES))

    def record(
        self, number: RoundNumber, attempt: AttemptDocument, losses: Sequence[Loss], accepted: Collection[InputName] = ()
    ) -> tuple[Loss, ...]:
        """Records what a round leaves out from here on; durable on return.

        Args:
            number: The round.
            attempt: The attempt that leaves it out.
            losses: What it leaves out. What of that is recorded in the round already is not recorded again.
            accepted: The sources whose losses are accepted by whoever has started the run.

        Returns:
            What was recorded, with its ids.
        """
        if not losses:
            return ()
        before = self.of_round(number)
        new = [left for loss in losses for left in beyond(loss, before)]
        recorded = [(self._record(number, attempt, loss), loss.input) for loss in new]
        for loss, source in recorded:
            if source in accepted and loss.id is not None:
                self._accept(loss.id, f"run {attempt.run} was started with --accept-data-loss {source}")
        return tuple(loss for loss, _ in recorded)

    def _record(self, number: RoundNumber, attempt: AttemptDocument, loss: Loss) -> Loss:
        while True:  # an attempt that is not live any more may record something at the same time
            name = loss_id(number, max((found for _, found in self._of(number)), default=0) + 1)
            numbered = loss.model_copy(update={"id": name})
            document = RecordedLoss(
                loss=numbered,
                incarnation=attempt.incarnation,
                round=number,
                attempt=attempt.attempt,
                run=attempt.run,
                recorded_at=datetime.now(UTC),
            )
            with suppress(AlreadyExistsError), step(Step.LOSS_RECORD):
                create_document(self.files, loss_path(name), document)
                return numbered

    def of_round(self, number: RoundNumber, carried: Sequence[LossId] = ()) -> tuple[Loss, ...]:
        """Returns what a round leaves out: what is undone it reads again.

        Args:
            number: The round.
            carried: The losses of the rounds that it replaces which it leaves out, too.
        """
        names = self.names()
        own = [loss for loss, (recorded_in, _) in names.recorded.items() if recorded_in == number]
        return tuple(self.read(loss).loss for loss in [*carried, *own] if loss not in names.undone)

    def rows_passed_over(self, stage: StageName, since: datetime) -> int:
        """Returns how many rows a stage has passed over since a time, without those of losses that are undone."""
        names, rows = self.names(), 0
        for loss in [loss for loss in names.recorded if loss not in names.undone][::-1]:
            recorded = self.read(loss)
            if recorded.recorded_at < since:
                break
            if isinstance(recorded.loss, PassedOver) and recorded.loss.stage == stage:
                rows += recorded.loss.rows
        return rows

    def entries(self) -> list[LedgerEntry]:
        """Returns every loss, oldest first."""
        names = self.names()
        return [self._entry(loss, undone=loss in names.undone, accepted=loss in names.accepted) for loss in names.recorded]

    def open_of(self, run: RunId, named: Collection[LossId]) -> list[LedgerEntry]:
        """Returns the open losses of a run: those that it has recorded, and those that its checkpoint names."""
        return [
            entry
            for entry in self.entries()
            if entry.state is LossState.OPEN and (entry.recorded.run == run or entry.recorded.loss.id in named)
        ]

    def accept(self, losses: Sequence[LossId], reason: str) -> list[LedgerEntry]:
        """Accepts losses; durable on return. Idempotent: the first reason stands.

        Raises:
            RejectedError: One of them does not exist, or is undone. None was accepted.
        """
        names = self.names()
        for loss in losses:
            if loss not in names.recorded:
                raise _unknown(loss, self.files.url)
            if loss in names.undone:
                raise _is_undone(loss)
        for loss in losses:
            if loss not in names.accepted:
                self._accept(loss, reason)
        return [self._entry(loss, undone=False, accepted=True) for loss in losses]

    def _accept(self, loss: LossId, reason: str) -> None:
        with suppress(AlreadyExistsError), step(Step.LOSS_ACCEPT):
            document = AcceptedLoss(loss=loss, reason=reason, accepted_at=datetime.now(UTC))
            create_document(self.files, loss_accepted_path(loss), document)

    def forget(self, before: RoundNumber, needed: Collection[LossId]) -> None:
        """Deletes what is settled of old rounds: losses that are accepted or undone. Open ones stay.

        Args:
            before: The round before which rounds are forgotten.
            needed: Losses that a later round leaves out, too.
        """
        names = self.names()
        for loss in sorted(names.accepted | names.undone):
            if position_of_loss(loss)[0] < before and loss not in needed:
                for path in (loss_path(loss), loss_accepted_path(loss), loss_undone_path(loss)):
                    with step(Step.FORGET):
                        self.files.delete(path)

    def undo(self, losses: Sequence[LossId], number: RoundNumber) -> None:
        """Records that a round reads the input of losses again; durable on return. Idempotent."""
        for loss in losses:
            with suppress(AlreadyExistsError), step(Step.LOSS_UNDO):
                document = UndoneLoss(loss=loss, round=number, undone_at=datetime.now(UTC))
                create_document(self.files, loss_undone_path(loss), document)

    def _of(self, number: RoundNumber) -> list[tuple[RoundNumber, int]]:
        return [each for each in self.names().recorded.values() if each[0] == number]

    def _entry(self, loss: LossId, *, undone: bool, accepted: bool) -> LedgerEntry:
        recorded = self.read(loss)
        acceptance = read_document(self.files, loss_accepted_path(loss), AcceptedLoss) if accepted else None
        state = LossState.UNDONE if undone else LossState.ACCEPTED if accepted else LossState.OPEN
        return LedgerEntry(recorded, state, acceptance)

    def read(self, loss: LossId) -> RecordedLoss:
        """Returns the record of a loss."""
        return read_document(self.files, loss_path(loss), RecordedLoss)


def _is_undone(loss: LossId) -> RejectedError:
    return RejectedError(
        f"Loss {loss} cannot be accepted: it is undone.",
        exists="The pipeline went back to before it, and reads its input again.",
        safe="Nothing was written.",
        remedy="Leave it out of the command. What is lost of that input again is a loss of its own: see spark-jobs losses.",
        loss=loss,
    )


def _unknown(loss: LossId, home: str) -> RejectedError:
    return RejectedError(
        f"{home} has no loss {loss}.",
        safe="Nothing was written.",
        remedy="See spark-jobs losses for those that it has.",
        loss=loss,
    )
