from pathlib import Path

from spark_jobs.checkpoint.savepoint import export
from spark_jobs.protocol.ids import CheckpointId, RequestId
from spark_jobs.storage.local import LocalFiles
from tests.support.command_line import UsedHome, document, spark_jobs
from tests.support.damage import flip
from tests.support.savepoint_site import SavepointSite
from tests.support.staged_pipeline import HOURLY, path_of


def staged(home: UsedHome) -> list[Path]:
    return sorted(path_of(home.staged.tables[HOURLY]).rglob("*.parquet"))


def test_a_whole_home_is_right(drained: UsedHome) -> None:
    shown = spark_jobs("verify", "--home", drained.url)
    assert shown.exit_code == 0
    assert "Every file is there, as it was written." in shown.stdout
    answer = document(spark_jobs("verify", "--home", drained.url, "--output", "json"))
    assert (answer["pipeline"], answer["url"], answer["checkpoints"]) == ("flights", drained.url, [1])
    assert answer["files"] == 10, "per sink a file of actions, three staged ones, and a channel"
    assert answer["size_bytes"] > 0


def test_each_damaged_file_is_named_to_people_and_to_programs(drained: UsedHome) -> None:
    altered, gone, _ = staged(drained)
    flip(altered)
    gone.unlink()
    shown = spark_jobs("verify", "--home", drained.url)
    assert shown.exit_code == 2
    assert all(str(path) in shown.stdout for path in (altered, gone))
    assert "2 files are not as" in shown.stderr
    error = document(spark_jobs("verify", "--home", drained.url, "--output", "json"))["error"]
    assert error["error"] == "CorruptDocumentError"
    assert [each["path"] for each in error["evidence"]["damaged"]] == [f"file://{path}" for path in (altered, gone)]


def test_a_corrupt_manifest_is_damage(drained: UsedHome) -> None:
    flip(Path(drained.files.local("manifests/1.json")))
    assert "1 file is not as" in spark_jobs("verify", "--home", drained.url).stderr


def test_a_savepoint_is_read_as_a_home_is(tmp_path: Path) -> None:
    site = SavepointSite(tmp_path)
    site.complete([(1, "mon"), (2, "tue")])
    target = LocalFiles(tmp_path / "savepoint")
    savepoint = export(site.home, CheckpointId(1), target, request=RequestId("savepoint-a"))
    answer = document(spark_jobs("verify", tmp_path / "savepoint", "--output", "json"))
    assert (answer["url"], answer["files"], answer["size_bytes"]) == (target.url, len(savepoint.files), savepoint.size_bytes)
    damaged = [tmp_path / "savepoint" / file.path for file in savepoint.files[:2]]
    for path in damaged:
        flip(path)
    error = document(spark_jobs("verify", tmp_path / "savepoint", "--output", "json"))["error"]
    assert [each["path"] for each in error["evidence"]["damaged"]] == [f"file://{path}" for path in damaged]


def test_either_a_home_or_a_savepoint_is_read(drained: UsedHome) -> None:
    assert spark_jobs("verify").exit_code == 2
    assert spark_jobs("verify", "somewhere", "--home", drained.url).exit_code == 2
