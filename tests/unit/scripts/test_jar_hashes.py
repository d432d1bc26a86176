"""Jars with other hashes than those that the project is tested with are found."""

from pathlib import Path

import pytest

from scripts import jar_hashes
from scripts.jar_hashes import main, record, write_list, wrong_jars


@pytest.fixture
def jars(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """Two jars with recorded hashes."""
    found = [tmp_path / "ivy" / name for name in ("a b-1.0.jar", "c-2.0.jar")]
    found[0].parent.mkdir()
    for jar in found:
        jar.write_bytes(jar.name.encode())
    (tmp_path / "list").write_text("".join(f"{jar}\n" for jar in found))
    hashes = tmp_path / "jars.sha256"
    hashes.touch()
    record(tmp_path / "list", hashes)
    monkeypatch.setattr(jar_hashes, "HASHES", hashes)
    monkeypatch.setattr(wrong_jars, "__defaults__", (hashes,))
    return found


def test_known_jars_are_listed(tmp_path: Path, jars: list[Path]) -> None:
    write_list(tmp_path / "new", [str(jar) for jar in jars])
    assert (tmp_path / "new").read_text() == (tmp_path / "list").read_text()
    assert main([str(tmp_path / "new")]) == 0


def test_a_jar_with_other_bytes_is_refused_and_not_listed(
    tmp_path: Path, jars: list[Path], capsys: pytest.CaptureFixture[str]
) -> None:
    jars[1].write_bytes(b"evil")
    with pytest.raises(SystemExit, match=r"c-2\.0\.jar is not the file that the project is tested with"):
        write_list(tmp_path / "list", [str(jar) for jar in jars])
    assert not (tmp_path / "list").exists(), "the list of an earlier set-up"
    (tmp_path / "list").write_text(f"{jars[1]}\n")
    assert main([str(tmp_path / "list")]) == 1
    assert "c-2.0.jar is not the file" in capsys.readouterr().err


def test_an_unknown_jar_is_refused(tmp_path: Path, jars: list[Path]) -> None:
    other = jars[0].rename(tmp_path / "ivy/a b-1.1.jar")
    assert [sentence.partition(" is ")[2][:6] for sentence in wrong_jars([other, jars[0]])] == ["not in", "gone."]
    with pytest.raises(SystemExit):
        write_list(tmp_path / "list", [str(other)])
    record(tmp_path / "list.unfinished", jar_hashes.HASHES)
    write_list(tmp_path / "list", [str(other), str(jars[1])])


@pytest.mark.parametrize("text", [None, ""])
def test_a_missing_or_empty_list_fails_the_check(tmp_path: Path, jars: list[Path], text: str | None) -> None:
    if text is not None:
        (tmp_path / "empty").write_text(text)
    assert main([str(tmp_path / "empty")]) == 1


def test_every_jar_of_delta_and_of_sparks_sources_is_known() -> None:
    names = {line.split("  ", 1)[1] for line in (Path(jar_hashes.__file__).parent / "jars.sha256").read_text().splitlines()}
    for start in (
        "io.delta_delta-spark",
        "io.delta_delta-storage",
        "org.apache.spark_spark-sql-kafka",
        "org.apache.spark_spark-avro",
    ):
        assert any(name.startswith(start) for name in names), start
