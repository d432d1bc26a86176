"""Rounds: one run of a pipeline's bounded inputs to their pinned ends.

Invariants:

1. ``rounds/<r>.json`` exists before the first batch of round r. Its parameters and the way it ends never change.
2. A pin is created if absent. Once created, it is used even if the source changes.
3. A recorded loss stays a loss in its round, and in the rounds that replace it after a checkpoint with the loss: see
   :mod:`spark_jobs.control.losses`.
"""

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass

from spark_jobs.control.losses import LossLedger
from spark_jobs.control.pins import pins_of_round
from spark_jobs.home.layout import (
    ROUNDS,
    round_numbers,
    round_path,
    round_tidied_path,
    tidied_inputs,
)
from spark_jobs.protocol.documents import PinnedInput, RoundDocument, TidiedInput
from spark_jobs.protocol.errors import AlreadyExistsError, NotFoundError
from spark_jobs.protocol.ids import InputName, LossId, RoundNumber
from spark_jobs.protocol.losses import Loss
from spark_jobs.protocol.steps import Step, step
from spark_jobs.storage.files import Files, create_document, read_document


@dataclass(frozen=True)
class LeftOut:
    """The losses of a round, and facts about the others."""

    losses: tuple[Loss, ...] = ()
    """The losses of the round."""
    backfilled: frozenset[LossId] = frozenset()
    """The losses that the ledger has as backfilled."""
    undone: frozenset[LossId] = frozenset()
    """The losses that the ledger has as undone."""
    needed_files: frozenset[str] = frozenset()
    """Names of staged files whose rows open losses of earlier rounds have left out."""


NOTHING_LEFT_OUT = LeftOut()


class Rounds:
    """The rounds of a home."""

    def __init__(self, files: Files) -> None:
        self.files = files

    def all(self) -> Iterator[RoundDocument]:
        """Yields every round that has begun, newest first, read one by one."""
        numbers = reversed(round_numbers(self.files.names(ROUNDS)))
        yield from (found for number in numbers if (found := self.read(number)))

    def latest(self) -> RoundDocument | None:
        return next(self.all(), None)

    def read(self, number: RoundNumber) -> RoundDocument | None:
        try:
            return read_document(self.files, round_path(number), RoundDocument)
        except NotFoundError:
            return None

    def begin(self, document: RoundDocument) -> RoundDocument:
        """Begins a round, once. Returns the valid document."""
        path = round_path(document.round)
        try:
            with step(Step.ROUND_CREATE):
                create_document(self.files, path, document)
        except AlreadyExistsError:
            return read_document(self.files, path, RoundDocument)
        return document

    def pin(self, number: RoundNumber, pinned: PinnedInput) -> PinnedInput:
        """Records the end of an input in this round, once. Returns the valid pin."""
        return pins_of_round(self.files, number).pin(pinned)

    def pinned(self, number: RoundNumber, name: InputName) -> PinnedInput | None:
        """Returns the pin of an input in this round, or None if it is not made yet."""
        return pins_of_round(self.files, number).pinned(name)

    def losses(self, number: RoundNumber) -> tuple[Loss, ...]:
        """Returns the losses of a round: its own, and those of the rounds that it replaces."""
        begun = self.read(number)
        return LossLedger(self.files).of_round(number, begun.losses if begun else ())

    def left_out(self, begun: RoundDocument) -> LeftOut:
        """Returns the losses of a round, and the other facts that an attempt at it needs to know of the ledger."""
        ledger = LossLedger(self.files)
        names = ledger.names()
        losses = ledger.of_round(begun.round, begun.losses, names)
        own = {loss.id for loss in losses}
        older = [loss for loss in names.open if loss not in own]
        return LeftOut(losses, names.backfilled, names.undone, ledger.needed_files(older))

    def tidy(self, tidied: TidiedInput) -> None:
        """Records that the files of a source that a round has read are archived or deleted. Durable on return."""
        with suppress(AlreadyExistsError), step(Step.TIDY_END):
            create_document(self.files, round_tidied_path(tidied.round, tidied.input), tidied)

    def tidied(self, number: RoundNumber) -> dict[InputName, TidiedInput]:
        """Returns the records of archived or deleted files of a round, by input."""
        names = tidied_inputs(self.files.names(ROUNDS), number)
        return {name: read_document(self.files, round_tidied_path(number, name), TidiedInput) for name in names}
