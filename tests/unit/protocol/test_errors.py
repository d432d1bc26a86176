"""The error tree: the branch of an error decides the caller's reaction, and errors keep all their fields between processes."""

import copy
import pickle
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_jobs.protocol import errors
from spark_jobs.protocol.errors import ExitCode, InterruptedRunError, Retry, StreamPipelineError, error_from

DECISIONS = {
    "RejectedError": (Retry.NEVER, ExitCode.REFUSED),
    "InvalidPipelineError": (Retry.NEVER, ExitCode.REFUSED),
    "InvalidParameterError": (Retry.NEVER, ExitCode.REFUSED),
    "UnsupportedTableError": (Retry.NEVER, ExitCode.REFUSED),
    "UnsupportedFormatError": (Retry.NEVER, ExitCode.REFUSED),
    "MissingRequirementError": (Retry.NEVER, ExitCode.REFUSED),
    "SparkRequiredError": (Retry.NEVER, ExitCode.REFUSED),
    "ConflictError": (Retry.AT_ONCE, ExitCode.FAILED),
    "AlreadyExistsError": (Retry.AT_ONCE, ExitCode.FAILED),
    "FencedError": (Retry.AT_ONCE, ExitCode.FAILED),
    "HomeInUseError": (Retry.WITH_BACKOFF, ExitCode.FAILED),
    "OutcomeUnknownError": (Retry.AT_ONCE, ExitCode.UNKNOWN),
    "CorruptDocumentError": (Retry.NEVER, ExitCode.REFUSED),
    "StorageError": (Retry.WITH_BACKOFF, ExitCode.FAILED),
    "StorageFullError": (Retry.WITH_BACKOFF, ExitCode.FAILED),
    "AccessDeniedError": (Retry.NEVER, ExitCode.REFUSED),
    "NotFoundError": (Retry.NEVER, ExitCode.FAILED),
    "DeadlineExceededError": (Retry.WITH_BACKOFF, ExitCode.FAILED),
    "CheckpointDeclinedError": (Retry.WITH_BACKOFF, ExitCode.FAILED),
    "InterruptedRunError": (Retry.WITH_BACKOFF, ExitCode.FAILED),
    "RunCancelledError": (Retry.WITH_BACKOFF, ExitCode.FAILED),
    "PermanentFailureError": (Retry.NEVER, ExitCode.FAILED),
    "SparkJobFailedError": (Retry.WITH_BACKOFF, ExitCode.FAILED),
    "SourceChangedError": (Retry.WITH_BACKOFF, ExitCode.FAILED),
    "SourceGoesOnError": (Retry.WITH_BACKOFF, ExitCode.FAILED),
    "RestartsExhaustedError": (Retry.NEVER, ExitCode.FAILED),
    "IncompleteError": (Retry.WITH_BACKOFF, ExitCode.FAILED),
}
"""The caller's reaction to each error. Add each new error class here."""


def _below(kind: type[StreamPipelineError]) -> list[type[StreamPipelineError]]:
    return [leaf for child in kind.__subclasses__() if child.__module__ == errors.__name__ for leaf in (child, *_below(child))]


KINDS = _below(StreamPipelineError)

texts = st.text()
json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | texts,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3),
    max_leaves=5,
)
evidence = st.dictionaries(
    texts.filter(lambda name: name not in ("self", "failed", "exists", "safe", "remedy")), json_values, max_size=3
)


def _parts(error: StreamPipelineError) -> tuple[Any, ...]:
    return type(error), error.failed, error.exists, error.safe, error.remedy, error.evidence, str(error)


def test_every_error_has_a_retry_and_an_exit_code() -> None:
    assert {kind.__name__ for kind in KINDS} == set(DECISIONS)


@pytest.mark.parametrize("kind", KINDS)
def test_the_kind_alone_decides_retry_and_exit_code(kind: type[StreamPipelineError]) -> None:
    error = kind("It failed.", remedy="Do nothing.", retry="at once", exit_code=0)
    assert (error.retry, error.exit_code) == DECISIONS[kind.__name__]


def test_every_branch_of_errors_is_a_direct_child_of_the_root() -> None:
    branches = {child.__name__ for child in StreamPipelineError.__subclasses__() if child.__module__ == errors.__name__}
    assert branches == {
        "RejectedError",
        "ConflictError",
        "OutcomeUnknownError",
        "CorruptDocumentError",
        "StorageError",
        "DeadlineExceededError",
        "InterruptedRunError",
        "IncompleteError",
    }


def test_an_error_without_its_own_text_about_safety_has_that_of_its_branch() -> None:
    assert errors.UnsupportedTableError("No.", remedy="Else.").safe == "Nothing was changed."
    assert errors.RunCancelledError("It was cancelled.").safe == "Completed checkpoints and published rows stay."
    assert errors.RejectedError("No.", safe="Nothing was deleted.").safe == "Nothing was deleted."
    assert errors.RejectedError("No.", safe="").safe == ""


def test_an_error_has_a_code_and_a_section_in_the_documentation() -> None:
    assert errors.StorageFullError.code == "storage-full"
    assert errors.StorageFullError("No space.").documentation == "docs/reference/errors.md#storage-full"
    assert len({kind.code for kind in KINDS}) == len(KINDS)


def test_a_failure_never_exits_like_a_success() -> None:
    assert all(kind.exit_code is not ExitCode.DONE for kind in KINDS)


def test_the_text_says_what_failed_what_exists_what_is_safe_and_what_to_do_in_this_order() -> None:
    error = StreamPipelineError("Failed.", remedy="Repeat.", safe="All is safe.", exists="Checkpoint 7 exists.", checkpoint=7)
    assert str(error) == "Failed. Checkpoint 7 exists. All is safe. Repeat."
    assert str(StreamPipelineError("Failed.", remedy="Repeat.")) == "Failed. Repeat."
    assert error.evidence == {"checkpoint": 7}


@given(kind=st.sampled_from(KINDS), failed=texts, exists=texts, safe=texts, remedy=texts, evidence=evidence)
def test_an_error_keeps_all_fields_between_processes(
    kind: type[StreamPipelineError], failed: str, exists: str, safe: str, remedy: str, evidence: dict[str, Any]
) -> None:
    error = kind(failed, exists=exists, safe=safe, remedy=remedy, **evidence)
    assert _parts(pickle.loads(pickle.dumps(error))) == _parts(error)
    assert _parts(copy.deepcopy(error)) == _parts(error)
    assert _parts(error_from(kind.__name__, failed, exists, safe, remedy, evidence)) == _parts(error)


def test_an_error_of_a_newer_version_is_read_as_an_interrupted_run() -> None:
    error = error_from("LaterError", "It failed.", "", "All is safe.", "Upgrade.", {"a": 1})
    assert type(error) is InterruptedRunError
    assert _parts(error)[1:6] == ("It failed.", "", "All is safe.", "Upgrade.", {"a": 1})


@pytest.mark.parametrize(
    ("written", "read"),
    [
        ("It cannot be read: no such file..", "It cannot be read: no such file."),
        ("It cannot be read: no such file.. Nothing follows.", "It cannot be read: no such file. Nothing follows."),
        ("days: unknown. Did you mean 'day'?.", "days: unknown. Did you mean 'day'?"),
        ("'it' failed: it said \"no.\"..", "'it' failed: it said \"no.\"."),
        ("It goes on...", "It goes on..."),
        ("It is in /data/..", "It is in /data/.."),
        ("Leave a..b as it is.", "Leave a..b as it is."),
    ],
)
def test_a_message_that_ends_with_a_quoted_sentence_has_one_full_stop(written: str, read: str) -> None:
    error = StreamPipelineError(written, exists=written, safe=written, remedy=written)
    assert {error.failed, error.exists, error.safe, error.remedy} == {read}
    assert str(error) == " ".join([read] * 4)


@pytest.mark.parametrize(
    ("message", "line"), [("one\ntwo", "one"), ("\n[PARSE] near 'x'\n== SQL ==", "[PARSE] near 'x'"), ("", "OSError")]
)
def test_the_reason_of_another_programs_exception_is_never_empty(message: str, line: str) -> None:
    assert errors.first_line(OSError(message)) == line
