"""The options that name the savepoint from which a run starts."""

from pathlib import Path

import pytest

from spark_jobs.api.restore import restore_from
from spark_jobs.protocol.documents import RestoreFrom
from spark_jobs.protocol.errors import InvalidParameterError


def test_a_directory_is_the_same_from_anywhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    expected = RestoreFrom(savepoint=f"file://{tmp_path}/savepoint", allow_drained=True)
    for name in ("savepoint", tmp_path / "savepoint", f"file://{tmp_path}/savepoint"):
        assert restore_from(name, True) == expected


def test_none_is_none() -> None:
    assert restore_from(None, False) is None


@pytest.mark.parametrize(
    ("directory", "message"), [(None, "no savepoint is given"), ("gs://bucket/savepoint", "is not supported")]
)
def test_what_is_no_savepoint_is_refused(directory: str | None, message: str) -> None:
    with pytest.raises(InvalidParameterError, match=message):
        restore_from(directory, True)
