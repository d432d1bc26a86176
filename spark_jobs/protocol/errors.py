"""The error tree. Callers decide by the class of an error, never by its text.

::

    StreamPipelineError
    ├─ RejectedError          nothing happened; the same call will be refused again        fail now
    ├─ ConflictError          another process won                                          look again, retry at once (home in use: with
    │                                                                                      backoff)
    ├─ OutcomeUnknownError    it may have happened                                         retry, read back first
    ├─ CorruptDocumentError   a document is torn or altered                                fail now
    ├─ StorageError           full, unavailable, or denied                                 retry with backoff (denied: fail now)
    ├─ DeadlineExceededError  something still runs                                         retry, reattaches
    ├─ InterruptedRunError    the run failed; what is durable stays                        retry, resumes
    └─ IncompleteError        the savepoint exists, the stop did not finish                retry, rolls forward

Leaves have the policy of their branch, except those that the tree names. Every error says what failed, what exists, what is safe and
what to do. It carries its evidence as fields, so that it can cross a process or be shown by Airflow without parsing text.
"""

import re
from collections.abc import Iterable
from enum import Enum, IntEnum
from typing import Any, ClassVar

from spark_jobs.protocol.visible import visible

BEGIN_ANEW = "start from the beginning with --fresh and --on-rewind keep or replace, and without --restore and --full-refresh"
"""The remedy if there is no other way. Without ``--on-rewind`` a fresh start is refused if rows are public. It is refused with the other
options, too."""


def for_sources(option: str, names: Iterable[str]) -> str:
    """Returns an option for a remedy, once for each source that it may be for."""
    return " or ".join(f"{option} {name}" for name in sorted(names)) or f"{option} SOURCE"


_ENDED_TWICE = re.compile(r"""(?<=[\w)\]}'"`])\.\.(?!\S)|(?<=[?!])\.(?!\S)""")
"""Matches the second full stop after a quoted sentence, but no ellipsis and no directory ``..``."""


class Retry(Enum):
    """The policy of a caller after an error."""

    NEVER = "never"
    AT_ONCE = "at_once"
    WITH_BACKOFF = "with_backoff"


class ExitCode(IntEnum):
    """The exit codes of ``spark-jobs``."""

    DONE = 0
    REFUSED = 2
    FAILED = 3
    UNKNOWN = 4


class StreamPipelineError(Exception):
    """The root of the tree. It is never raised itself. Its text shows hidden characters as signs; its fields keep them.

    Args:
        failed: What failed, in one sentence.
        exists: What exists now, if it matters to the reader.
        safe: What is safe in spite of the failure; None: :attr:`default_safe`.
        remedy: What to do.
        evidence: Ids, paths, expected and found values (JSON values).
    """

    retry: ClassVar[Retry] = Retry.NEVER
    exit_code: ClassVar[ExitCode] = ExitCode.REFUSED
    default_safe: ClassVar[str] = ""
    """The default of ``safe`` for the errors of this branch; empty if it depends on the place of the failure."""
    code: ClassVar[str] = "stream-pipeline"
    """The stable name of the error in the documentation, such as ``storage-full``."""
    documentation: ClassVar[str] = "docs/reference/errors.md"
    """The section of the documentation that explains the error."""

    def __init_subclass__(cls) -> None:
        cls.code = re.sub(r"(?<=[a-z])(?=[A-Z])", "-", cls.__name__.removesuffix("Error")).lower()
        cls.documentation = f"docs/reference/errors.md#{cls.code}"

    def __init__(self, failed: str, *, exists: str = "", safe: str | None = None, remedy: str = "", **evidence: Any) -> None:
        safe = self.default_safe if safe is None else safe
        parts = [_ENDED_TWICE.sub(lambda end: "." * (len(end[0]) - 1), part) for part in (failed, exists, safe, remedy)]
        super().__init__(visible(" ".join(part for part in parts if part)))
        self.failed, self.exists, self.safe, self.remedy = parts
        self.evidence = evidence

    def __reduce__(self) -> tuple[Any, ...]:
        return _rebuild, (type(self), self.failed, self.exists, self.safe, self.remedy, self.evidence)


def _rebuild(
    kind: type[StreamPipelineError], failed: str, exists: str, safe: str, remedy: str, evidence: dict[str, Any]
) -> StreamPipelineError:
    return kind(failed, exists=exists, safe=safe, remedy=remedy, **evidence)


class RejectedError(StreamPipelineError):
    """The pipeline, an argument, a state or a table does not allow the operation. It had no effect."""

    default_safe = "Nothing was changed."


class InvalidPipelineError(RejectedError):
    """The declared pipeline cannot run as it is."""


class InvalidParameterError(RejectedError):
    """A parameter or an option has a value that is not allowed."""


class UnsupportedTableError(RejectedError):
    """A table has a feature, a schema or a property with which this sink cannot keep its guarantees."""


class UnsupportedFormatError(RejectedError):
    """A document was written by a newer version of this software."""


class MissingRequirementError(RejectedError):
    """The machine lacks something: Java, a package, a reachable home."""


class SparkRequiredError(RejectedError):
    """Spark publishes the sink, but this process has no Spark."""


class ConflictError(StreamPipelineError):
    """Another process won. Look again before you repeat the call."""

    retry = Retry.AT_ONCE
    exit_code = ExitCode.FAILED
    default_safe = "This process has changed nothing."


class AlreadyExistsError(ConflictError):
    """A create-if-absent found a file with other content."""


class FencedError(ConflictError):
    """A higher attempt is live. This one stops."""


class HomeInUseError(ConflictError):
    """A driver is working for another run, for an unknown time. Wait before you look again."""

    retry = Retry.WITH_BACKOFF


class OutcomeUnknownError(StreamPipelineError):
    """The operation may have happened. Read back before you repeat it."""

    retry = Retry.AT_ONCE
    exit_code = ExitCode.UNKNOWN


class CorruptDocumentError(StreamPipelineError):
    """A durable document is torn or altered. The evidence has ``path``, ``expected`` and ``found``."""

    default_safe = "The file was not used, and nothing was changed."


class StorageError(StreamPipelineError):
    """The storage is full or does not answer."""

    retry = Retry.WITH_BACKOFF
    exit_code = ExitCode.FAILED


class StorageFullError(StorageError):
    """No space, or no quota, is left."""


class AccessDeniedError(StorageError):
    """The storage denies access. Repeating the call does not help."""

    retry = Retry.NEVER
    exit_code = ExitCode.REFUSED
    default_safe = "Nothing was changed."


class NotFoundError(StorageError):
    """An expected file is missing."""

    retry = Retry.NEVER
    default_safe = "Nothing was changed."


class DeadlineExceededError(StreamPipelineError):
    """The time limit has passed. The error says what is still running."""

    retry = Retry.WITH_BACKOFF
    exit_code = ExitCode.FAILED
    default_safe = "Nothing was lost."


class CheckpointDeclinedError(DeadlineExceededError):
    """A stage was failing until the checkpoint's time limit. The other stages have run on."""


class InterruptedRunError(StreamPipelineError):
    """The run failed. The next start resumes from the durable state."""

    retry = Retry.WITH_BACKOFF
    exit_code = ExitCode.FAILED
    default_safe = "Completed checkpoints and published rows stay."


class RunCancelledError(InterruptedRunError):
    """The owner of the run has cancelled it. The next start resumes."""


class PermanentFailureError(InterruptedRunError):
    """A batch fails in every try. Its rows or the pipeline's code must be changed."""

    retry = Retry.NEVER


class SparkJobFailedError(InterruptedRunError):
    """A Spark job for a checkpoint has failed. The stages run on, and the next checkpoint runs the job again."""


class SourceChangedError(InterruptedRunError):
    """A source has other columns than those that a stage was built with. The stages are built again with the new columns."""


class SourceGoesOnError(SourceChangedError):
    """A source with ``on_gone="skip"`` has lost rows that a stage has not read. The stages are built again and go on without them."""


class RestartsExhaustedError(InterruptedRunError):
    """The restart strategy allows no more restarts, or a stage fails with more rows than it tolerates. A person has to start it again."""

    retry = Retry.NEVER


class IncompleteError(StreamPipelineError):
    """The checkpoint exists, but the work after it is not finished. A retry only rolls forward."""

    retry = Retry.WITH_BACKOFF
    exit_code = ExitCode.FAILED


def first_line(error: BaseException) -> str:
    """Returns the first line of the message of another program's exception that is not empty, or the name of its class."""
    return next(iter(str(error).strip().splitlines()), type(error).__name__)


def missing_package(user: str, package: str | None, extras: str, instead: str = "") -> MissingRequirementError:
    """Returns the error of a Python package that is missing in this environment.

    Args:
        user: What needs the package.
        package: The name of the package.
        extras: The extras of this package that install it, with commas.
        instead: The remedy without the package.
    """
    return MissingRequirementError(
        f"{user} needs the package {package}, which is not installed.",
        remedy=f"Install the extra [{extras}] of this product: in a clone, pip install '.[{extras}]'. For a wheel see "
        f"docs/how-to/install.md. {instead}".strip(),
        package=package,
    )


def _tree(root: type[StreamPipelineError]) -> dict[str, type[StreamPipelineError]]:
    return {root.__name__: root} | {name: kind for child in root.__subclasses__() for name, kind in _tree(child).items()}


def error_class(name: str) -> type[StreamPipelineError] | None:
    """Returns the class of an error by its name. None: a newer version has written the name, or it is no error of this tree."""
    return _tree(StreamPipelineError).get(name)


def error_from(name: str, failed: str, exists: str, safe: str, remedy: str, evidence: dict[str, Any]) -> StreamPipelineError:
    """Rebuilds an error from its parts after it crossed a process.

    An unknown name (a newer writer) becomes :class:`InterruptedRunError`.
    """
    return _rebuild(error_class(name) or InterruptedRunError, failed, exists, safe, remedy, evidence)
