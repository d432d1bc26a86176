"""The meaning of delta-rs errors, and of the system errors in their texts."""

import pytest
from deltalake import exceptions as delta_exceptions

from spark_jobs.protocol.errors import (
    AccessDeniedError,
    ConflictError,
    NotFoundError,
    OutcomeUnknownError,
    StorageError,
    StorageFullError,
    StreamPipelineError,
    UnsupportedTableError,
)
from spark_jobs.publication.delta_rs import translated


@pytest.mark.parametrize("name", delta_exceptions.__all__)
@pytest.mark.parametrize("reading", [True, False])
def test_every_exception_of_delta_rs_has_a_meaning(name: str, reading: bool) -> None:
    error = translated(getattr(delta_exceptions, name)("something"), "file:///t", reading=reading)
    expected: dict[str, tuple[type[StreamPipelineError], type[StreamPipelineError]]] = {
        "CommitFailedError": (ConflictError, ConflictError),
        "DeltaError": (StorageError, OutcomeUnknownError),
        "DeltaProtocolError": (UnsupportedTableError, OutcomeUnknownError),
        "SchemaMismatchError": (UnsupportedTableError, OutcomeUnknownError),
        "TableNotFoundError": (NotFoundError, NotFoundError),
    }
    assert type(error) is expected[name][not reading]
    assert error.evidence == {"table": "file:///t", "cause": f"{name}: something"}


@pytest.mark.parametrize(
    ("number", "kind"),
    [
        (28, StorageFullError),
        (122, StorageFullError),
        (13, AccessDeniedError),
        (30, AccessDeniedError),
        (2, NotFoundError),
        (5, StorageError),
    ],
)
@pytest.mark.parametrize("raised", [OSError, delta_exceptions.DeltaError, delta_exceptions.CommitFailedError])
def test_an_error_of_the_operating_system_is_recognized_by_its_number(
    number: int, kind: type[StorageError], raised: type[Exception]
) -> None:
    error = translated(raised(f"Generic LocalFileSystem error (os error {number})"), "file:///t", reading=False)
    assert type(error) is kind
