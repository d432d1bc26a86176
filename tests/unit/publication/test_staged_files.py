"""A publication checks every staged file first. It names damaged files, and a storage failure does not count as a missing file."""

from pathlib import Path
from typing import Any

import pytest

from spark_jobs.protocol.errors import StorageError
from spark_jobs.publication.staged_files import missing_files


def add(path: str, size: int = 4) -> dict[str, Any]:
    return {"path": path, "size": size}


def test_a_complete_file_with_any_name_is_not_missing(tmp_path: Path) -> None:
    (tmp_path / "day=a b%2F").mkdir()
    (tmp_path / "day=a b%2F" / "part ü.parquet").write_bytes(b"rows")
    assert missing_files(tmp_path.as_uri(), [add("day=a%20b%252F/part%20%C3%BC.parquet")]) == []


def test_files_that_are_missing_truncated_or_directories_are_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"rows")
    (tmp_path / "directory").mkdir()
    size = (tmp_path / "directory").stat().st_size
    adds = [add("gone"), add("file", 5), add("directory", size), add("file/below"), add("file")]
    names = ["gone", "file", "directory", "file/below"]
    assert missing_files(tmp_path.as_uri(), adds) == [str(tmp_path / name) for name in names]


def test_a_storage_failure_does_not_count_as_a_missing_file(tmp_path: Path) -> None:
    (tmp_path / "loop").symlink_to("loop")
    with pytest.raises(StorageError, match="loop") as error:
        missing_files(tmp_path.as_uri(), [add("loop/part.parquet")])
    assert error.value.evidence["path"] == str(tmp_path / "loop/part.parquet")
    assert error.value.remedy
