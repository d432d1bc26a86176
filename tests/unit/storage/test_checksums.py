"""Spark refuses a file whose checksum file belongs to other bytes."""

from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_jobs.protocol.ids import BatchId
from spark_jobs.runtime.inputs.file_source import FileSourceLog
from spark_jobs.runtime.spark.spark_log import OffsetEntry, SparkLog
from spark_jobs.storage.checksums import (
    add_checksum,
    add_missing_checksums,
    checksum_name,
    fits_checksum,
    forget_checksum,
    rewrite,
)
from spark_jobs.storage.local import LocalFiles
from tests.support.damage import flipped, write_checksum

ENTRY = OffsetEntry("v1", {"batchWatermarkMs": 0}, ("{}",))
WRITES: list[tuple[str, Callable[[SparkLog], None]]] = [
    ("offsets/1", lambda log: log.plan(BatchId(1), ENTRY)),
    ("offsets/0", lambda log: log.rewrite(BatchId(0), ENTRY)),
    ("commits/1", lambda log: log.commit(BatchId(1))),
    ("commits/0", lambda log: log.leave_watermark(BatchId(0), 5)),
    ("metadata", lambda log: log.begin("one")),
    ("metadata", lambda log: log.rename("other")),
    ("sources/0/0", lambda log: FileSourceLog(log.files, f"{log.directory}/sources/0").rewrite(0, [{"batchId": 0}])),
]


def put(root: Path, path: str, text: str) -> None:
    """Writes a file with a checksum file, like Spark."""
    target = root / path
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_text(text)
    target.with_name(checksum_name(target.name)).write_text("of these bytes")


def checksums(root: Path) -> list[str]:
    return sorted(path.relative_to(root).as_posix() for path in root.rglob(".*.crc"))


@pytest.mark.parametrize(("written", "write"), WRITES)
def test_files_that_the_runtime_writes_into_logs_of_spark_have_no_checksum_of_old_bytes(
    tmp_path: Path, written: str, write: Callable[[SparkLog], None]
) -> None:
    for path in ("offsets/0", "offsets/2"):
        put(tmp_path, f"q/{path}", ENTRY.to_bytes().decode())
    for path in ("commits/0", "sources/0/0", "sources/0/1"):
        put(tmp_path, f"q/{path}", "v1\n{}")
    put(tmp_path, "q/metadata", '{"id": "one"}')
    (tmp_path / "q/offsets/2").unlink()
    for gone in ("offsets/1", "commits/1"):
        (tmp_path / f"q/{gone}").with_name(".1.crc").write_text("of what a crash has taken")
    before = checksums(tmp_path / "q")
    write(SparkLog(LocalFiles(tmp_path), "q"))
    above, slash, name = written.rpartition("/")
    assert set(before) - set(checksums(tmp_path / "q")) == {f"{above}{slash}{checksum_name(name)}"}


def test_a_crash_during_a_write_leaves_a_readable_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    put(tmp_path, "log/0", "old")
    files = LocalFiles(tmp_path)

    def dies(path: str, data: bytes) -> None:
        raise OSError("as told")

    monkeypatch.setattr(files, "replace", dies)
    with pytest.raises(OSError, match="as told"):
        rewrite(files, "log/0", b"new")
    assert ((tmp_path / "log/0").read_text(), checksums(tmp_path)) == ("old", [])


def test_a_file_without_a_checksum_is_left_as_it_is(tmp_path: Path) -> None:
    (tmp_path / "0").write_text("bytes")
    for path in ("0", "none/0"):
        forget_checksum(LocalFiles(tmp_path), path)
    assert [path.name for path in tmp_path.iterdir()] == ["0"]


@given(data=st.binary(min_size=1, max_size=2_000), at=st.integers(0, 1_999), of_the_file=st.booleans())
def test_a_flipped_byte_of_a_file_or_of_its_checksum_is_noticed(
    tmp_path_factory: pytest.TempPathFactory, data: bytes, at: int, of_the_file: bool
) -> None:
    root = tmp_path_factory.mktemp("one")
    (root / "0").write_bytes(data)
    files = LocalFiles(root)
    assert fits_checksum(files, "0") is None
    write_checksum(root / "0")
    assert fits_checksum(files, "0") is True
    path = root / ("0" if of_the_file else checksum_name("0"))
    begin = 0 if of_the_file else 8  # a checksum with another block size may still match
    with flipped(path, begin + at % (path.stat().st_size - begin)):
        assert fits_checksum(files, "0") is False


@given(data=st.binary(max_size=2_000))
def test_an_added_checksum_equals_the_checksum_of_hadoop(tmp_path_factory: pytest.TempPathFactory, data: bytes) -> None:
    root = tmp_path_factory.mktemp("one")
    (root / "0").write_bytes(data)
    write_checksum(root / "0")
    expected = (root / checksum_name("0")).read_bytes()
    (root / checksum_name("0")).unlink()
    for _ in range(2):
        add_checksum(LocalFiles(root), "0")
    assert (root / checksum_name("0")).read_bytes() == expected


def test_a_checksum_that_exists_is_not_replaced(tmp_path: Path) -> None:
    """It was written with the file. If they differ, the file is damaged."""
    (tmp_path / "0").write_text("bytes")
    write_checksum(tmp_path / "0")
    (tmp_path / "0").write_text("bytez")
    add_checksum(LocalFiles(tmp_path), "0")
    assert fits_checksum(LocalFiles(tmp_path), "0") is False


def test_files_without_checksums_in_a_directory_get_checksums(tmp_path: Path) -> None:
    files = LocalFiles(tmp_path)
    for path in ("log/0.json", "log/_newest", "log/inside/1.json"):
        files.create(path, b"x")
    for _ in range(2):
        add_missing_checksums(files, "log", {"_newest"})
    assert files.names("log") == [".0.json.crc", "0.json", "_newest", "inside"]
    assert fits_checksum(files, "log/0.json")
    assert files.names("log/inside") == ["1.json"]
