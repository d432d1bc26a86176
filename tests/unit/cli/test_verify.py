from pathlib import Path

import pytest

from spark_jobs.checkpoint.named_files import NamedFiles
from spark_jobs.checkpoint.savepoint import export
from spark_jobs.protocol.ids import CheckpointId, RequestId
from spark_jobs.protocol.stage_cut import StateFile
from spark_jobs.publication.verification import named_by_home
from spark_jobs.storage.files import Files, local_path
from spark_jobs.storage.local import LocalFiles
from tests.support.command_line import UsedHome, document, spark_jobs
from tests.support.damage import flip
from tests.support.savepoint_site import SavepointSite
from tests.support.staged_pipeline import DAILY, HOURLY, path_of


def staged(home: UsedHome) -> list[Path]:
    return sorted(path_of(home.staged.tables[HOURLY]).rglob("*.parquet"))


def test_an_undamaged_home_passes(drained: UsedHome) -> None:
    shown = spark_jobs("verify", "--home", drained.url)
    assert shown.exit_code == 0
    assert "Every file is there and unchanged." in shown.stdout
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
    assert "2 files are different from the record in" in shown.stderr
    error = document(spark_jobs("verify", "--home", drained.url, "--output", "json"))["error"]
    assert error["error"] == "CorruptDocumentError"
    assert [each["path"] for each in error["evidence"]["damaged"]] == [f"file://{path}" for path in (altered, gone)]


def test_the_remedy_depends_on_the_damaged_files(drained: UsedHome) -> None:
    """A new start repairs damaged state, and no other damage."""
    head = drained.staged.store.head()
    assert head is not None
    stage, cut = next(iter(head.stages.items()))
    drained.files.create("state/a/1-1-1/metadata", b"{}")
    file = StateFile(path="metadata", stored="state/a/1-1-1/metadata", **drained.files.digest("state/a/1-1-1/metadata")._asdict())
    stages = dict(head.stages) | {stage: cut.model_copy(update={"files": (file,)})}
    drained.staged.checkpoint({HOURLY: [], DAILY: []}, stages=stages)
    flip(local_path(drained.files, "state/a/1-1-1/metadata"))

    def remedy() -> str:
        return str(document(spark_jobs("verify", "--home", drained.url, "--output", "json"))["error"]["remedy"])

    assert remedy() == "Start the pipeline: it copies a file of state from another copy, or computes the state again."
    flip(staged(drained)[0])
    assert remedy().startswith("Restore the files that are not below state/ from a backup")
    assert "Start the pipeline" in remedy()
    drained.files.delete("state/a/1-1-1/metadata")
    drained.files.create("state/a/1-1-1/metadata", b"{}")
    assert remedy().startswith("Restore the files from a backup")
    assert "Start the pipeline" not in remedy()


def test_files_that_retention_deletes_meanwhile_are_not_reported_as_damaged(
    drained: UsedHome, monkeypatch: pytest.MonkeyPatch
) -> None:
    def discarded_since(home: Files) -> NamedFiles:
        named = named_by_home(home)
        for path in ("manifests", "checkpoints"):
            home.delete(path)
        return named

    monkeypatch.setattr("spark_jobs.cli.verify.named_by_home", discarded_since)
    assert spark_jobs("verify", "--home", drained.url).exit_code == 0


def test_a_corrupt_manifest_is_reported_as_damaged(drained: UsedHome) -> None:
    flip(local_path(drained.files, "manifests/1.json"))
    assert "1 file is different from the record in" in spark_jobs("verify", "--home", drained.url).stderr


def test_a_savepoint_is_verified_like_a_home(tmp_path: Path) -> None:
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


def test_verify_needs_exactly_one_of_a_home_and_a_savepoint(drained: UsedHome) -> None:
    assert spark_jobs("verify").exit_code == 2
    assert spark_jobs("verify", "somewhere", "--home", drained.url).exit_code == 2
