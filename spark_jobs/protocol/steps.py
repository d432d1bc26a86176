"""The names of all durable steps, and the seam with which tests observe, stop or kill the product around each of them.

Production code wraps each durable step in ``with step(Step.X):``. The observer is called before and after. The default one does nothing.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from enum import Enum
from typing import Protocol


class Step(Enum):
    """A step whose effect outlives the process."""

    PIPELINE_CREATE = "pipeline.create"
    """The home belongs to this pipeline."""
    REQUEST_CREATE = "request.create"
    """There is a request for a start, a checkpoint, a savepoint or a stop."""
    OWNER_CREATE = "owner.create"
    """A process owns an attempt."""
    CANCEL_CREATE = "cancel.create"
    """The owner of an attempt cancels it."""
    ATTEMPT_CREATE = "attempt.create"
    """The attempt is live, and older ones are fenced."""
    ATTEMPT_BEGIN = "attempt.begin"
    """The attempt is confirmed. Its decisions are valid."""
    ROUND_CREATE = "round.create"
    """The round is bound to its run id."""
    INPUT_PIN = "input.pin"
    """The end of a bounded source, or the version of a static input, is recorded."""
    LOSS_RECORD = "loss.record"
    """The loss ledger has the rows of a source that a stage leaves out from now on."""
    LOSS_ACCEPT = "loss.accept"
    """A person has accepted a loss."""
    LOSS_UNDO = "loss.undo"
    """The input of a loss is read again."""
    LOSS_BACKFILL = "loss.backfill"
    """A complete checkpoint has the rows of a loss."""
    LOSS_REOPEN = "loss.reopen"
    """A loss is open again: the pipeline went back to a checkpoint without its rows."""
    TIDY_FILE = "tidy.file"
    """A file that was read is archived or deleted because all its results are public."""
    TIDY_END = "tidy.end"
    """All files of a source that a round has read are archived or deleted."""
    TABLE_CREATE = "table.create"
    """A sink's Delta table exists."""
    TABLE_ALTER = "table.alter"
    """The table of a sink, or a channel, has the columns that its stage returns."""
    LOG_CREATE = "log.create"
    """Version 0 of a stage's private log exists."""
    LOG_WIDEN = "log.widen"
    """Version 0 of a stage's private log has the new columns of its table."""
    RESTORE_BEGIN = "restore.begin"
    """A work directory is being built from a checkpoint. It cannot be used until it is complete."""
    RESCALE = "rescale"
    """The state of a stage in a work directory under construction has another number of partitions."""
    RESTORE_END = "restore.end"
    """The work directory is complete."""
    STAGE_FILES = "stage.files"
    """The Parquet files of a batch are in the table's directory. No log names them yet."""
    STAGE_VERSION = "stage.version"
    """A batch's version of the private log names its files."""
    LOG_FOLD = "log.fold"
    """A segment contains some versions of a private log."""
    LOG_CHECKPOINT = "log.checkpoint"
    """Readers of a private log begin after the folded versions."""
    LOG_TRIM = "log.trim"
    """Unneeded versions or segments of a private log are deleted."""
    PLAN_BATCH = "plan.batch"
    """An entry of Spark's offset log is written by this package: a drain, a release of the watermark, or a pinned end."""
    COMMIT_BATCH = "commit.batch"
    """An entry of Spark's commit log is written by this package: a batch of an old query counts as a batch of the stage."""
    DRAIN_BEGIN = "drain.begin"
    """The stages of a work directory end before their inputs do. A later attempt can only continue the drain."""
    PACK_FILES = "pack.files"
    """Small staged files are packed into larger ones, which no document names yet."""
    PIN_STATE = "pin.state"
    """The state of a stage at a cut has hard links in the home, which Spark does not delete. They are not durable yet."""
    PERSIST_STATE = "persist.state"
    """The state files of the cut are durable."""
    CHANNEL_CREATE = "channel.create"
    """The part of a stage's private log that a restore needs is durable."""
    ACTIONS_CREATE = "actions.create"
    """A sink's actions of a checkpoint are durable."""
    MANIFEST_CREATE = "manifest.create"
    """The checkpoint is complete."""
    BURY_KEYS = "bury.keys"
    """The deleted keys of a publication are stored. This is part of ``PUBLISH_SINK``, before anything is public."""
    PUBLISH_SINK = "publish.sink"
    """One Delta transaction makes a checkpoint's rows of one sink public."""
    RESPONSE_CREATE = "response.create"
    """A request is answered."""
    COMPACT_KEYS = "compact.keys"
    """The deleted keys of a sink are in fewer files, after a publication."""
    FOLD_KEYS = "fold.keys"
    """Readers of these keys begin at the newest version of their table."""
    TRIM_KEYS = "trim.keys"
    """Unneeded versions and files of that table are deleted."""
    INHERIT_KEYS = "inherit.keys"
    """A new incarnation has the keys that an abandoned one has deleted in public, before that one is closed."""
    INCARNATION_CLOSE = "incarnation.close"
    """Pending publications of an abandoned incarnation cannot succeed in a sink any more."""
    DISCARD = "discard"
    """An unneeded checkpoint is deleted with the files that only it named."""
    SAVEPOINT_BEGIN = "savepoint.begin"
    """A directory is reserved for one savepoint, which is not complete yet."""
    SAVEPOINT_FILES = "savepoint.files"
    """Every file of a savepoint is durable."""
    SAVEPOINT_CREATE = "savepoint.create"
    """The savepoint exists."""
    SAVEPOINT_END = "savepoint.end"
    """The mark that the savepoint was being made is deleted."""
    SAVEPOINT_IMPORT = "savepoint.import"
    """The files of a savepoint are in a home, but no document names them yet."""
    SAVEPOINT_VOID = "savepoint.void"
    """The savepoint does not exist any more. Its files are being deleted."""
    SAVEPOINT_REMOVE = "savepoint.remove"
    """All files of the savepoint are deleted."""
    KEEP_ANSWER = "keep.answer"
    """The answer of an old start, or of a run whose checkpoint is discarded, is kept for the run."""
    FORGET = "forget"
    """A document of an old start or an old request is deleted."""
    SWEEP = "sweep"
    """Staged files that no document names are deleted."""


class StepObserver(Protocol):
    """Called before and after each durable step. Its exceptions are not caught."""

    def before(self, step: Step) -> None: ...

    def after(self, step: Step) -> None: ...


class _Silent:
    def before(self, step: Step) -> None:
        pass

    def after(self, step: Step) -> None:
        pass


_observer: StepObserver = _Silent()


@contextmanager
def observed_by(observer: StepObserver) -> Iterator[None]:
    """Calls ``observer`` for every step of this process while the context is open."""
    global _observer
    previous, _observer = _observer, observer
    try:
        yield
    finally:
        _observer = previous


@contextmanager
def step(which: Step) -> Iterator[None]:
    """Marks a durable step. ``after`` is not called if the step fails."""
    _observer.before(which)
    yield
    _observer.after(which)
