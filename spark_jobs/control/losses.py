"""The loss ledger of a home: the rows of inputs that stages have left out, and the state of each loss.

Invariants:

1. A loss is recorded before the first batch that leaves its rows out. So each input row was read, or is in the ledger.
2. Nothing is in the ledger of a round twice.
3. A record never changes. A later state of a loss has its own document.
4. A loss is backfilled only if the newest checkpoint has its rows.
"""

from collections.abc import Callable, Collection, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import StrEnum

from spark_jobs.home.layout import (
    LOSSES,
    LossNames,
    loss_accepted_path,
    loss_backfilled_path,
    loss_id,
    loss_names,
    loss_path,
    loss_undone_path,
    position_of_loss,
)
from spark_jobs.protocol.documents import AcceptedLoss, AttemptDocument, BackfilledLoss, Manifest, RecordedLoss, UndoneLoss
from spark_jobs.protocol.errors import AlreadyExistsError, RejectedError
from spark_jobs.protocol.ids import IncarnationId, InputName, LossId, RoundNumber, RunId, StageName
from spark_jobs.protocol.losses import Loss, PassedOver, StagedFile, beyond, said
from spark_jobs.protocol.steps import Step, step
from spark_jobs.storage.files import Files, create_document, read_document


class LossState(StrEnum):
    """The state of a loss."""

    OPEN = "open"
    """The rows are left out, and no person has accepted that."""
    ACCEPTED = "accepted"
    """A person has accepted it, with the start of the run or later."""
    UNDONE = "undone"
    """The pipeline went back to a point before it, and reads its input again."""
    BACKFILLED = "backfilled"
    """The rows were processed later."""


@dataclass(frozen=True)
class LedgerEntry:
    """A loss and its state."""

    recorded: RecordedLoss
    state: LossState
    acceptance: AcceptedLoss | None = None
    backfill: BackfilledLoss | None = None


class LossLedger:
    """The losses of a home."""

    def __init__(self, files: Files) -> None:
        self.files = files

    def names(self) -> LossNames:
        """Returns the losses and their states, with one listing."""
        return loss_names(self.files.names(LOSSES))

    def record(
        self, number: RoundNumber, attempt: AttemptDocument, losses: Sequence[Loss], accepted: Collection[InputName] = ()
    ) -> tuple[Loss, ...]:
        """Records the rows that a round leaves out from now on. Durable on return.

        Args:
            number: Number of the round.
            attempt: Attempt that leaves them out.
            losses: Losses. Parts that the round has recorded already are not recorded again.
            accepted: Sources whose losses the starter of the run accepts.

        Returns:
            The recorded losses with their ids.
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
        while True:  # a fenced attempt may record losses at the same time
            name = loss_id(number, max((found for _, found in self._of(number)), default=0) + 1)
            numbered = loss.model_copy(update={"id": name})
            document = RecordedLoss(
                loss=numbered,
                incarnation=attempt.incarnation,
                round=number,
                attempt=attempt.attempt,
                work_directory=attempt.work_directory.id,
                run=attempt.run,
                recorded_at=datetime.now(UTC),
            )
            with suppress(AlreadyExistsError), step(Step.LOSS_RECORD):
                create_document(self.files, loss_path(name), document)
                return numbered

    def of_round(self, number: RoundNumber, carried: Sequence[LossId] = (), names: LossNames | None = None) -> tuple[Loss, ...]:
        """Returns the losses of a round that are not undone.

        Args:
            number: The round.
            carried: Losses of earlier rounds that this one leaves out, too.
            names: Result of :meth:`names`, if it is known.
        """
        names = self.names() if names is None else names
        own = [loss for loss, (recorded_in, _) in names.recorded.items() if recorded_in == number]
        return tuple(self.read(loss).loss for loss in [*carried, *own] if loss not in names.undone)

    def passed_over(
        self, since: datetime, read: Callable[[LossId], RecordedLoss] | None = None, names: LossNames | None = None
    ) -> list[RecordedLoss]:
        """Returns the records of rows that stages have passed over since a time and that are not undone, newest first.

        Args:
            since: The time.
            read: Returns the record of a loss. None: :meth:`read`. Records never change, so a caller may keep them.
            names: Result of :meth:`names`, if it is known.
        """
        names, found = self.names() if names is None else names, list[RecordedLoss]()
        for loss in [loss for loss in names.recorded if loss not in names.undone][::-1]:
            recorded = (read or self.read)(loss)
            if recorded.recorded_at < since:
                break
            if isinstance(recorded.loss, PassedOver):
                found.append(recorded)
        return found

    def entries(self, newest: int | None = None, names: LossNames | None = None) -> list[LedgerEntry]:
        """Returns the losses, oldest first.

        Args:
            newest: Number of the newest losses to return. None: all.
            names: Result of :meth:`names`, if it is known.
        """
        names = self.names() if names is None else names
        recorded = list(names.recorded)
        return [self._entry(loss, names) for loss in (recorded if newest is None else recorded[-newest:])]

    def open_of(self, run: RunId, named: Collection[LossId]) -> list[LedgerEntry]:
        """Returns the open losses of a run.

        Args:
            run: The run. The losses that it has recorded are returned.
            named: The losses in its checkpoint. They are returned, too.
        """
        return [
            entry
            for entry in self.entries()
            if entry.state is LossState.OPEN and (entry.recorded.run == run or entry.recorded.loss.id in named)
        ]

    def accept(self, losses: Sequence[LossId], reason: str) -> list[LedgerEntry]:
        """Accepts losses. Durable on return. Idempotent: the first reason stays.

        Raises:
            RejectedError: One of them does not exist, or is undone or backfilled. None was accepted.
        """
        names = self.names()
        for loss in losses:
            if loss not in names.recorded:
                raise _unknown(loss, self.files.url)
            if loss in names.undone:
                raise _is_undone(loss, "accepted")
            if loss in names.backfilled:
                raise _is_backfilled(loss, "accepted")
        for loss in losses:
            if loss not in names.accepted:
                self._accept(loss, reason)
        names = self.names()
        return [self._entry(loss, names) for loss in losses]

    def check_backfill(self, losses: Sequence[LossId], run: RunId, incarnation: IncarnationId | None) -> None:
        """Refuses to backfill a loss that is not open, or whose rows cannot be read again.

        Args:
            losses: The losses.
            run: The run. A loss that it has backfilled itself is not refused, so that it can be repeated.
            incarnation: The incarnation of the home.

        Raises:
            RejectedError: One of them is refused. Nothing was written.
        """
        if not losses:
            return
        names = self.names()
        for loss in losses:
            if loss not in names.recorded:
                raise _unknown(loss, self.files.url)
            if loss in names.undone:
                raise _is_undone(loss, "backfilled")
            entry = self._entry(loss, names)
            if entry.backfill is not None and entry.backfill.run != run:
                raise _is_backfilled(loss, "backfilled")
            if entry.acceptance is not None and entry.backfill is None:
                raise RejectedError(
                    f"Loss {loss} cannot be backfilled: it is accepted.",
                    exists=f"The reason is: {entry.acceptance.reason}",
                    remedy="Leave it out of the command.",
                    loss=loss,
                )
            if not isinstance(entry.recorded.loss, PassedOver):
                raise RejectedError(
                    f"Loss {loss} cannot be backfilled: its rows are gone. It is {said(entry.recorded.loss)}.",
                    remedy="If the rows may stay out, accept the loss: spark-jobs accept.",
                    loss=loss,
                )
            if entry.recorded.incarnation != incarnation:
                raise RejectedError(
                    f"Loss {loss} cannot be backfilled: the pipeline has begun again since, without its files.",
                    exists="A loss that the pipeline still leaves out is in the ledger again, under a newer number.",
                    remedy="Backfill that one: see spark-jobs losses.",
                    loss=loss,
                )

    def lacking(self, manifest: Manifest, names: LossNames | None = None) -> tuple[LossId, ...]:
        """Returns the losses whose rows a checkpoint lacks, ascending. Those that a person has accepted are not among them.

        A loss that the checkpoint names is one of them also if it was undone since: its rows are read for a later checkpoint.

        Args:
            manifest: The checkpoint.
            names: Result of :meth:`names`, if it is known.
        """
        names, named = self.names() if names is None else names, {loss.id for loss in manifest.losses}
        accepted = names.accepted - names.backfilled
        found = []
        for loss, (number, _) in names.recorded.items():
            is_older = number < manifest.round and loss not in manifest.backfilled and loss not in names.undone
            if not (loss in named or is_older) or loss in accepted:
                continue
            entry = self._entry(loss, names)
            is_later = entry.backfill is None or entry.backfill.checkpoint > manifest.checkpoint
            if entry.recorded.incarnation == manifest.incarnation and is_later:
                found.append(loss)
        return tuple(found)

    def is_exact(self, manifest: Manifest, names: LossNames | None = None) -> bool:
        """Returns True if a checkpoint lacks no rows, except those whose loss a person has accepted. See :meth:`lacking`."""
        return not self.lacking(manifest, names)

    def can_be_backfilled(self) -> list[LossId]:
        """Returns the open losses whose rows were passed over, oldest first."""
        return [loss for loss in self.names().open if isinstance(self.read(loss).loss, PassedOver)]

    def backfill(self, manifest: Manifest) -> None:
        """Records that a complete checkpoint has the rows of losses. Durable on return. Idempotent."""
        for loss in manifest.backfilled:
            with suppress(AlreadyExistsError), step(Step.LOSS_BACKFILL):
                document = BackfilledLoss(
                    loss=loss, run=manifest.run, checkpoint=manifest.checkpoint, backfilled_at=manifest.completed_at
                )
                create_document(self.files, loss_backfilled_path(loss), document)

    def reopen(self, losses: Sequence[LossId]) -> None:
        """Opens backfilled and undone losses again, because the pipeline goes on from a checkpoint without their rows. Idempotent."""
        for loss in losses:
            for path in (loss_backfilled_path(loss), loss_undone_path(loss)):
                with step(Step.LOSS_REOPEN):
                    self.files.delete(path)

    def needed_files(self, losses: Sequence[LossId]) -> frozenset[str]:
        """Returns the names of staged files whose rows losses have left out."""
        left = [self.read(loss).loss for loss in losses]
        return frozenset(loss.unit.file for loss in left if isinstance(loss, PassedOver) and isinstance(loss.unit, StagedFile))

    def _accept(self, loss: LossId, reason: str) -> None:
        with suppress(AlreadyExistsError), step(Step.LOSS_ACCEPT):
            document = AcceptedLoss(loss=loss, reason=reason, accepted_at=datetime.now(UTC))
            create_document(self.files, loss_accepted_path(loss), document)

    def forget(self, before: RoundNumber, needed: Collection[LossId]) -> None:
        """Deletes closed losses of old rounds. Open ones stay.

        Args:
            before: Round before which losses are deleted.
            needed: Losses that a later round leaves out, too.
        """
        names = self.names()
        for loss in sorted(names.closed):
            if position_of_loss(loss)[0] < before and loss not in needed:
                paths = (loss_path(loss), loss_accepted_path(loss), loss_undone_path(loss))
                for path in (*paths, *([loss_backfilled_path(loss)] if loss in names.backfilled else [])):
                    with step(Step.FORGET):
                        self.files.delete(path)

    def undo(self, losses: Sequence[LossId], number: RoundNumber) -> None:
        """Records that a round reads the input of losses again. Durable on return. Idempotent."""
        for loss in losses:
            with suppress(AlreadyExistsError), step(Step.LOSS_UNDO):
                document = UndoneLoss(loss=loss, round=number, undone_at=datetime.now(UTC))
                create_document(self.files, loss_undone_path(loss), document)

    def _of(self, number: RoundNumber) -> list[tuple[RoundNumber, int]]:
        """Returns the positions of all losses of a round, also of undone ones."""
        return [each for each in self.names().recorded.values() if each[0] == number]

    def _entry(self, loss: LossId, names: LossNames) -> LedgerEntry:
        accepted, backfilled = loss in names.accepted, loss in names.backfilled
        acceptance = read_document(self.files, loss_accepted_path(loss), AcceptedLoss) if accepted else None
        backfill = read_document(self.files, loss_backfilled_path(loss), BackfilledLoss) if backfilled else None
        state = LossState.ACCEPTED if accepted else LossState.OPEN
        state = LossState.BACKFILLED if backfilled else state
        return LedgerEntry(self.read(loss), LossState.UNDONE if loss in names.undone else state, acceptance, backfill)

    def read(self, loss: LossId) -> RecordedLoss:
        """Returns the record of a loss."""
        return read_document(self.files, loss_path(loss), RecordedLoss)


def rows_passed_over(recorded: Iterable[RecordedLoss], stage: StageName, since: datetime) -> int:
    """Returns the number of rows that a stage has passed over since a time, of these records."""
    return sum(
        each.loss.rows
        for each in recorded
        if isinstance(each.loss, PassedOver) and each.loss.stage == stage and each.recorded_at >= since
    )


def _is_backfilled(loss: LossId, asked: str) -> RejectedError:
    return RejectedError(
        f"Loss {loss} cannot be {asked}: it is backfilled.",
        exists="Its rows are in a checkpoint.",
        remedy="Leave it out of the command.",
        loss=loss,
    )


def _is_undone(loss: LossId, asked: str) -> RejectedError:
    return RejectedError(
        f"Loss {loss} cannot be {asked}: it is undone.",
        exists="The pipeline went back to before it, and reads its input again.",
        remedy="Leave it out of the command. If input is lost again, it is a new loss: see spark-jobs losses.",
        loss=loss,
    )


def _unknown(loss: LossId, home: str) -> RejectedError:
    return RejectedError(
        f"{home} has no loss {loss}.",
        remedy="spark-jobs losses lists its losses.",
        loss=loss,
    )
