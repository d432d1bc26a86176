"""Documents made by an attacker: readers raise typed errors only, use limited memory, and never wait."""

import json
import tracemalloc
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from spark_jobs.control.status import read_status
from spark_jobs.home.layout import STATUS
from spark_jobs.protocol.codec import NESTING_MAX, Document, decode, encode
from spark_jobs.protocol.documents import ErrorReport, PinnedInput, PipelineDocument, Status
from spark_jobs.protocol.errors import (
    AlreadyExistsError,
    CorruptDocumentError,
    NotFoundError,
    RejectedError,
    UnsupportedFormatError,
)
from spark_jobs.protocol.reports import report_error
from spark_jobs.protocol.start_requests import StartRequest
from spark_jobs.storage.files import read_document
from spark_jobs.storage.local import LocalFiles
from tests.support.documents import SAMPLES
from tests.support.hostile_documents import ALTERED, REPLACED, Random, in_bounds, link, nested, pipe, sealed, sparse
from tests.support.memory_files import MemoryFiles

NAME = "responses/start-3.json"


def check_hostile_document(root: Path, seed: int) -> None:
    """Reads one hostile document. A document that can be read can be written again."""
    rng = Random(seed)
    sample = rng.choice(SAMPLES)
    path = root / f"{seed}.json"
    if rng.random() < 0.8:
        path.write_bytes(rng.choice(ALTERED)(encode(sample), rng))
    else:
        rng.choice(REPLACED)(path, rng)
    try:
        with in_bounds(type(sample).max_bytes):
            encode(read_document(LocalFiles(root), path.name, type(sample)))
    except (CorruptDocumentError, UnsupportedFormatError):
        pass
    except NotFoundError:
        assert path.is_dir()
    path.rmdir() if path.is_dir() and not path.is_symlink() else path.unlink()


def test_a_hostile_document_is_corrupt_or_can_be_written_again(tmp_path: Path) -> None:
    for seed in range(300):
        check_hostile_document(tmp_path, seed)


def check_hostile_store(seed: int) -> None:
    """Reads one hostile document of a store, and a hostile heartbeat by its own reader."""
    rng, files = Random(seed), MemoryFiles()
    sample, status = rng.choice(SAMPLES), next(each for each in SAMPLES if isinstance(each, Status))
    files.create(NAME, rng.choice(ALTERED)(encode(sample), rng))
    files.create(STATUS, rng.choice(ALTERED)(encode(status), rng))
    with in_bounds(type(sample).max_bytes):
        with suppress(CorruptDocumentError, UnsupportedFormatError):
            encode(read_document(files, NAME, type(sample)))
        with suppress(UnsupportedFormatError):
            found = read_status(files)
            assert found is None or encode(found)


def test_a_hostile_document_in_a_store_is_corrupt_or_can_be_written_again() -> None:
    for seed in range(100):
        check_hostile_store(seed)


@pytest.mark.nightly
def test_ten_thousand_hostile_documents_cause_no_untyped_error_in_their_reader(tmp_path: Path) -> None:
    for seed in range(10_000):
        check_hostile_document(tmp_path, 1_000 + seed)
        if seed % 5 == 0:
            check_hostile_store(1_000 + seed)


@pytest.mark.parametrize("replace", [link, pipe, sparse])
def test_a_link_or_a_pipe_in_place_of_a_document_is_neither_followed_nor_waited_for(
    tmp_path: Path, replace: Callable[[Path, Random], None]
) -> None:
    (tmp_path / "responses").mkdir()
    replace(tmp_path / NAME, Random(0))
    with pytest.raises(CorruptDocumentError) as corrupt:
        read_document(LocalFiles(tmp_path), NAME, Status)
    assert NAME in corrupt.value.failed


def test_a_link_below_a_home_is_not_followed_and_a_link_to_the_home_is(tmp_path: Path) -> None:
    home, document = LocalFiles(tmp_path / "home"), SAMPLES[0]
    home.create(NAME, encode(document))
    (tmp_path / "name").symlink_to("home")
    assert read_document(LocalFiles(tmp_path / "name"), NAME, type(document)) == document
    (tmp_path / "home/responses").rename(tmp_path / "elsewhere")
    (tmp_path / "home/responses").symlink_to("../elsewhere")
    with pytest.raises(CorruptDocumentError, match="not a regular file, or is behind a link"):
        home.read(NAME)


def test_a_writer_refuses_a_link_in_place_of_a_document(tmp_path: Path) -> None:
    home = LocalFiles(tmp_path / "home")
    (tmp_path / "elsewhere").write_bytes(b"same")
    home.create("other", b"")
    (tmp_path / "home/a").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(AlreadyExistsError, match="exists with other contents"):
        home.create("a", b"same")


def test_a_large_answer_is_refused_in_little_memory(tmp_path: Path) -> None:
    with (tmp_path / "status.json").open("wb") as stream:
        stream.truncate(1 << 40)
    tracemalloc.start()
    try:
        with pytest.raises(CorruptDocumentError, match="is larger than .* bytes, the limit for its kind"):
            read_document(LocalFiles(tmp_path), "status.json", Status)
        assert tracemalloc.get_traced_memory()[1] < 1 << 20
    finally:
        tracemalloc.stop()


def test_a_list_of_files_may_be_larger_than_an_answer() -> None:
    assert PinnedInput.max_bytes > Status.max_bytes
    files = MemoryFiles()
    files.create("status.json", bytes(Status.max_bytes + 1))
    with pytest.raises(CorruptDocumentError, match="larger than"):
        read_document(files, "status.json", Status)


@pytest.mark.parametrize("value", [nested(NESTING_MAX), nested(260), 1 << 63, "\ud800"], ids=lambda _: "")
def test_a_document_that_no_reader_accepts_is_not_written(value: Any) -> None:
    (request,) = [sample for sample in SAMPLES if isinstance(sample, StartRequest)]
    with pytest.raises(RejectedError, match="cannot be written"):
        encode(request.model_copy(update={"parameters": {"a": value}}))


def test_a_document_may_be_nested_as_deeply_as_the_limit() -> None:
    (request,) = [sample for sample in SAMPLES if isinstance(sample, StartRequest)]
    deep = request.model_copy(update={"parameters": {"a": nested(NESTING_MAX - 4)}})
    assert decode(StartRequest, encode(deep), NAME) == deep


def test_an_infinite_number_that_is_spelled_out_is_refused() -> None:
    (status,) = [sample for sample in SAMPLES if isinstance(sample, Status)]
    envelope = json.loads(encode(status))
    envelope["body"]["stages"]["hourly"]["progress"] = "inf"
    with pytest.raises(CorruptDocumentError, match="the fields of a status"):
        decode(Status, sealed(envelope), NAME)


def test_the_report_of_an_error_is_always_a_document() -> None:
    report = report_error(NotFoundError("It is gone.", number=10**30, nan=float("nan"), least=-(1 << 63)))
    assert report.evidence == {"number": str(10**30), "nan": "NaN", "least": -(1 << 63)}
    assert isinstance(report, ErrorReport)


def test_the_error_shortens_a_long_value() -> None:
    document = next(sample for sample in SAMPLES if isinstance(sample, PipelineDocument))
    envelope: dict[str, Any] = json.loads(encode(document)) | {"kind": "k" * 1_000_000}
    with pytest.raises(CorruptDocumentError) as corrupt:
        decode(PipelineDocument, sealed(envelope), NAME)
    assert len(str(corrupt.value)) < 3_000


def test_every_kind_of_document_has_a_limit_of_its_size() -> None:
    assert all(issubclass(type(sample), Document) and 0 < type(sample).max_bytes <= 256 << 20 for sample in SAMPLES)
