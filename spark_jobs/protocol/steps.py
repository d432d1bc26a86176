"""The name of every durable step, and the one seam through which tests see, stop or kill the product around each of them.

Production code wraps each durable step in ``with step(Step.X):``. The observer is told before and after; by default it does nothing.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from enum import Enum
from typing import Protocol


class Step(Enum):
    """A step whose effect outlives the process."""

    WORKSPACE_CREATE = "workspace.create"
    """The workspace belongs to this home."""
    PIPELINE_CREATE = "pipeline.create"
    """The home belongs to this pipeline."""
    REQUEST_CREATE = "request.create"
    """A start, a checkpoint, a savepoint or a stop is asked for."""
    OWNER_CREATE = "owner.create"
    """Somebody takes charge of an attempt."""
    CANCEL_CREATE = "cancel.create"
    """The owner of an attempt wants it to end."""
    ATTEMPT_CREATE = "attempt.create"
    """The attempt is live, older ones are fenced."""
    ATTEMPT_BEGIN = "attempt.begin"
    """It goes on: what it names counts."""
    ROUND_CREATE = "round.create"
    """The round is bound to its run id."""
    INPUT_PIN = "input.pin"
    """The end of a bounded source, or a static input's version, is recorded."""
    LOSS_RECORD = "loss.record"
    """Rows of a source that a stage leaves out from there on are in the loss ledger."""
    LOSS_ACCEPT = "loss.accept"
    """Somebody has accepted a loss."""
    LOSS_UNDO = "loss.undo"
    """The input of a loss is read again."""
    TIDY_FILE = "tidy.file"
    """A file that was read is archived or deleted, because all that was made of it is public."""
    TIDY_END = "tidy.end"
    """All files of a source that a round has read are."""
    TABLE_CREATE = "table.create"
    """A sink's Delta table exists."""
    TABLE_ALTER = "table.alter"
    """A sink's Delta table, or a channel, has the columns that its stage returns."""
    LOG_CREATE = "log.create"
    """Version 0 of a stage's private log exists."""
    LOG_WIDEN = "log.widen"
    """Version 0 of a stage's private log has the columns that its table has gained."""
    RESTORE_BEGIN = "restore.begin"
    """A work directory is being built from a checkpoint, and is of no use until it is whole."""
    RESCALE = "rescale"
    """A stage's state in a work directory that is being built is in another number of partitions."""
    RESTORE_END = "restore.end"
    """It is whole."""
    STAGE_FILES = "stage.files"
    """A batch's Parquet files are in the table's directory, named by nothing yet."""
    STAGE_VERSION = "stage.version"
    """A batch's version of the private log names its files."""
    LOG_FOLD = "log.fold"
    """A segment holds what some versions of a private log hold."""
    LOG_CHECKPOINT = "log.checkpoint"
    """Readers of a private log begin after what is folded."""
    LOG_TRIM = "log.trim"
    """Versions or segments of a private log that nobody needs are deleted."""
    PLAN_BATCH = "plan.batch"
    """An entry of Spark's offset log is written by hand: a drain, a release of the watermark, or a pinned end."""
    COMMIT_BATCH = "commit.batch"
    """An entry of Spark's commit log is written by hand: a batch of an old query counts as one of the stage's."""
    DRAIN_BEGIN = "drain.begin"
    """The stages of a work directory are ended before their inputs are: a later attempt can only go on with that."""
    PACK_FILES = "pack.files"
    """Small staged files are there a second time, packed into larger ones that nothing names yet."""
    PIN_STATE = "pin.state"
    """A stage's state of a cut has second names in the home, which Spark does not delete; not durable yet."""
    PERSIST_STATE = "persist.state"
    """They are durable."""
    CHANNEL_CREATE = "channel.create"
    """What a restore needs of a stage's private log is durable."""
    ACTIONS_CREATE = "actions.create"
    """A sink's actions of a checkpoint are durable."""
    MANIFEST_CREATE = "manifest.create"
    """The checkpoint is complete."""
    BURY_KEYS = "bury.keys"
    """The keys that a publication deletes are remembered; a part of ``PUBLISH_SINK``, before anything is public."""
    PUBLISH_SINK = "publish.sink"
    """One Delta transaction makes a checkpoint's rows of one sink public."""
    RESPONSE_CREATE = "response.create"
    """A request is answered."""
    COMPACT_KEYS = "compact.keys"
    """The keys that a sink has deleted are in fewer files; after a publication."""
    FOLD_KEYS = "fold.keys"
    """Readers of these keys begin at the newest version of their table."""
    TRIM_KEYS = "trim.keys"
    """Versions and files of that table that nobody needs are deleted."""
    INHERIT_KEYS = "inherit.keys"
    """A new incarnation remembers the keys that an abandoned one has deleted in public; before that one is closed."""
    INCARNATION_CLOSE = "incarnation.close"
    """No pending publication of an abandoned incarnation can land in a sink any more."""
    DISCARD = "discard"
    """A checkpoint that nobody needs does not exist any more; what it alone has named goes."""
    SAVEPOINT_BEGIN = "savepoint.begin"
    """A directory is for one savepoint, which is not whole yet."""
    SAVEPOINT_FILES = "savepoint.files"
    """Every file of a savepoint is durable."""
    SAVEPOINT_CREATE = "savepoint.create"
    """The savepoint exists."""
    SAVEPOINT_END = "savepoint.end"
    """Nothing tells any more that it was being made."""
    SAVEPOINT_IMPORT = "savepoint.import"
    """What a savepoint holds is in a home, named by nothing yet."""
    SAVEPOINT_VOID = "savepoint.void"
    """The savepoint does not exist any more; its files go."""
    SAVEPOINT_REMOVE = "savepoint.remove"
    """Nothing of it is left."""
    KEEP_ANSWER = "keep.answer"
    """The answer of an old start, or of a run whose checkpoint goes, is kept for the run."""
    FORGET = "forget"
    """A document of an old start, or of an old request, is deleted."""
    SWEEP = "sweep"
    """Staged files that nothing names are deleted."""


class StepObserver(Protocol):
    """Told before and after each durable step. What it raises goes through."""

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
    """Tells ``observer`` of every step of this process while the context is open."""
    global _observer
    previous, _observer = _observer, observer
    try:
        yield
    finally:
        _observer = previous


@contextmanager
def step(which: Step) -> Iterator[None]:
    """Marks a durable step. ``after`` is not told when the step itself fails."""
    _observer.before(which)
    yield
    _observer.after(which)
