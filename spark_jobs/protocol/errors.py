"""The error tree. The branch decides what a caller does, never the text.

::

    StreamPipelineError
    ├─ RejectedError          nothing happened; the same call will be refused again        fail now
    ├─ ConflictError          someone else won                                             look again, retry at once (home in use: with
    │                                                                                      backoff)
    ├─ OutcomeUnknownError    it may have happened                                         retry, read back first
    ├─ CorruptDocumentError   a document is torn or altered                                fail now
    ├─ StorageError           full, unavailable, or denied                                 retry with backoff (denied: fail now)
    ├─ DeadlineExceededError  something still runs                                         retry, reattaches
    ├─ InterruptedRunError    the run failed; what is durable stays                        retry, resumes
    └─ IncompleteError        the savepoint exists, the stop did not finish                retry, rolls forward

Leaves carry no policy of their own, but for those that the tree names. Every error says what failed, what exists, what is safe and what
to do, and carries its evidence as fields, so that it can cross a process or be shown by Airflow without parsing text.
"""

import re
from collections.abc import Iterable
from enum import Enum, IntEnum
from typing import Any, ClassVar

BEGIN_ANEW = "begin anew with --fresh and --on-rewind keep or replace"
"""The remedy where nothing else goes on. Without ``--on-rewind`` a fresh start is refused if rows are public."""


def for_sources(option: str, names: Iterable[str]) -> str:
    """Returns an option as a remedy says it, with each source that it may be for."""
    return " or ".join(f"{option} {name}" for name in sorted(names)) or f"{option} SOURCE"


_ENDED_TWICE = re.compile(r"""(?<=[\w)\]}'"`])\.\.(?!\S)|(?<=[?!])\.(?!\S)""")
"""A sentence that ends with what somebody else has said, which has had its own end; no ellipsis, and no directory ``..``."""


class Retry(Enum):
    """What a caller may do after an error."""

    NEVER = "never"
    AT_ONCE = "at_once"
    WITH_BACKOFF = "with_backoff"


class ExitCode(IntEnum):
    """What ``spark-jobs`` exits with."""

    DONE = 0
    REFUSED = 2
    FAILED = 3
    UNKNOWN = 4


class StreamPipelineError(Exception):
    """The root of the tree; never raised itself.

    Args:
        failed: What failed, one sentence.
        exists: What exists now, where that matters to the reader.
        safe: What is safe in spite of it.
        remedy: What to do.
        evidence: Ids, paths, expected and found values (JSON values).
    """

    retry: ClassVar[Retry] = Retry.NEVER
    exit_code: ClassVar[ExitCode] = ExitCode.REFUSED

    def __init__(self, failed: str, *, exists: str = "", safe: str = "", remedy: str = "", **evidence: Any) -> None:
        parts = [_ENDED_TWICE.sub(lambda end: "." * (len(end[0]) - 1), part) for part in (failed, exists, safe, remedy)]
        super().__init__(" ".join(part for part in parts if part))
        self.failed, self.exists, self.safe, self.remedy = parts
        self.evidence = evidence

    def __reduce__(self) -> tuple[Any, ...]:
        return _rebuild, (type(self), self.failed, self.exists, self.safe, self.remedy, self.evidence)


def _rebuild(
    kind: type[StreamPipelineError], failed: str, exists: str, safe: str, remedy: str, evidence: dict[str, Any]
) -> StreamPipelineError:
    return kind(failed, exists=exists, safe=safe, remedy=remedy, **evidence)


class RejectedError(StreamPipelineError):
    """Nothing happened: the pipeline, an argument, a state or a table does not allow it."""


class InvalidPipelineError(RejectedError):
    """The declared pipeline cannot run as it is."""


class InvalidParameterError(RejectedError):
    """A parameter or an option has a value that is not allowed."""


class UnsupportedTableError(RejectedError):
    """A table has a feature, a schema or a property that this sink cannot keep its promises with."""


class UnsupportedFormatError(RejectedError):
    """A document was written by a newer version of this software."""


class MissingRequirementError(RejectedError):
    """The machine lacks something: Java, a package, a reachable home."""


class SparkRequiredError(RejectedError):
    """A sink is published by Spark, and there is none in this process."""


class ConflictError(StreamPipelineError):
    """Somebody else won. Look again before you repeat."""

    retry = Retry.AT_ONCE
    exit_code = ExitCode.FAILED


class AlreadyExistsError(ConflictError):
    """A create-if-absent found other bytes under its name."""


class FencedError(ConflictError):
    """A higher attempt is live; this one stops."""


class HomeInUseError(ConflictError):
    """A driver is at work for another run, and takes as long as it takes: looking again at once would only find it again."""

    retry = Retry.WITH_BACKOFF


class OutcomeUnknownError(StreamPipelineError):
    """It may have happened. Read back before you repeat."""

    retry = Retry.AT_ONCE
    exit_code = ExitCode.UNKNOWN


class CorruptDocumentError(StreamPipelineError):
    """A durable document is torn or altered; carries ``path``, ``expected`` and ``found``."""


class StorageError(StreamPipelineError):
    """The storage is full or does not answer."""

    retry = Retry.WITH_BACKOFF
    exit_code = ExitCode.FAILED


class StorageFullError(StorageError):
    """No space, or no quota, is left."""


class AccessDeniedError(StorageError):
    """The storage refuses us; repeating does not help."""

    retry = Retry.NEVER
    exit_code = ExitCode.REFUSED


class NotFoundError(StorageError):
    """A file that was expected is not there."""

    retry = Retry.NEVER


class DeadlineExceededError(StreamPipelineError):
    """Time is up; says what is still running."""

    retry = Retry.WITH_BACKOFF
    exit_code = ExitCode.FAILED


class CheckpointDeclinedError(DeadlineExceededError):
    """A stage was failing for as long as a checkpoint could wait for it; the other stages ran on meanwhile."""


class InterruptedRunError(StreamPipelineError):
    """The run failed on the way; the next start resumes from what is durable."""

    retry = Retry.WITH_BACKOFF
    exit_code = ExitCode.FAILED


class RunCancelledError(InterruptedRunError):
    """Somebody who had charge of the run has ended it; the next start resumes."""


class PermanentFailureError(InterruptedRunError):
    """A batch fails in the same way however often it is tried: its rows, or the pipeline's code, have to be changed."""

    retry = Retry.NEVER


class SparkJobFailedError(InterruptedRunError):
    """A job of Spark that a checkpoint needs beside its stages has failed; while they run on, the next checkpoint does it again."""


class SourceChangedError(InterruptedRunError):
    """A source has got other columns than those that a stage reads it with; the stages are built again, with the new ones."""


class SourceGoesOnError(SourceChangedError):
    """A source with ``on_gone="skip"`` has lost rows that a stage has not read; the stages are built again, and go on without them."""


class RestartsExhaustedError(InterruptedRunError):
    """A restart strategy allows no more restarts, or a stage fails with more than it tolerates: another start is a person's decision."""

    retry = Retry.NEVER


class IncompleteError(StreamPipelineError):
    """The checkpoint exists, what should have followed did not finish; a retry only rolls forward."""

    retry = Retry.WITH_BACKOFF
    exit_code = ExitCode.FAILED


def _tree(root: type[StreamPipelineError]) -> dict[str, type[StreamPipelineError]]:
    return {root.__name__: root} | {name: kind for child in root.__subclasses__() for name, kind in _tree(child).items()}


def error_from(name: str, failed: str, exists: str, safe: str, remedy: str, evidence: dict[str, Any]) -> StreamPipelineError:
    """Rebuilds an error that crossed a process as its parts. An unknown name (a newer writer) becomes :class:`InterruptedRunError`."""
    return _rebuild(_tree(StreamPipelineError).get(name, InterruptedRunError), failed, exists, safe, remedy, evidence)
