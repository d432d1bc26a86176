import re
import shutil

import pytest

from spark_jobs.protocol.documents import CheckpointKind, ErrorReport
from spark_jobs.protocol.ids import CheckpointId, IncarnationId
from spark_jobs.publication.publisher import publish
from tests.support.command_line import UsedHome, a_try, document, spark_jobs
from tests.support.staged_pipeline import DAILY, HOURLY, path_of


def test_a_home_without_a_checkpoint_says_so(interrupted: UsedHome) -> None:
    assert "has no checkpoint yet" in spark_jobs("checkpoints", "--home", interrupted.url).stdout


def test_a_checkpoint_is_listed_with_its_steps_and_amounts(drained: UsedHome) -> None:
    (entry,) = document(spark_jobs("checkpoints", "--home", drained.url, "--output", "json"))["checkpoints"]
    assert (entry["checkpoint"], entry["outcome"], entry["checkpoint_kind"]) == (1, "complete", "final")
    assert (entry["rows"], entry["files"], entry["drained"]) == (6, 6, True)
    assert entry["steps_s"] == {"cut": 0.25, "persist": 1.5}
    assert entry["duration_s"] == 1.75
    shown = spark_jobs("checkpoints", "--home", drained.url).stdout
    assert "cut 0.25 s, persist 1.50 s" in shown
    assert "staged" in shown


@pytest.mark.parametrize(
    ("width", "left_out"),
    [(240, ""), (100, "of which, of the longest, new state"), (80, "of which, of the longest, new state, cut, round")],
)
def test_a_narrow_terminal_shows_fewer_columns_and_folds_none(drained: UsedHome, width: int, left_out: str) -> None:
    shown = spark_jobs("checkpoints", "--home", drained.url, COLUMNS=f"{width}").stdout
    assert re.search(r"\bfinal +(1 +)?\d{4}-\d\d-\d\d \d\d:\d\d:\d\d UTC +1\.75 s .*staged", shown)
    assert ("of which" in shown.splitlines()[2]) is not bool(left_out)
    assert (f"Not shown because the terminal is too narrow: {left_out}" in " ".join(shown.split())) is bool(left_out)


def test_the_manifest_gives_the_duration_if_there_is_no_history(drained: UsedHome) -> None:
    drained.files.delete("history")
    (entry,) = document(spark_jobs("checkpoints", "--home", drained.url, "--output", "json"))["checkpoints"]
    assert (entry["steps_s"], entry["duration_s"]) == ({}, 2.0)


def test_public_rows_are_shown_by_sink(drained: UsedHome) -> None:
    publish(drained.files, sinks=[HOURLY])
    (entry,) = document(spark_jobs("checkpoints", "--home", drained.url, "--output", "json"))["checkpoints"]
    assert entry["published"] == {"hourly": True, "daily": False}
    assert "1 of 2 sinks" in spark_jobs("checkpoints", "--home", drained.url).stdout


def test_only_checkpoints_that_a_closed_incarnation_had_published_are_public(drained: UsedHome) -> None:
    publish(drained.files)
    drained.begin(2, run="tuesday")
    second = drained.complete(run="tuesday")
    for sink in (HOURLY, DAILY):
        drained.staged.close(sink, second.sinks[sink].app, CheckpointId(1))
    drained.begin(3, run="wednesday", incarnation=IncarnationId("second"))
    drained.complete(run="wednesday", incarnation=IncarnationId("second"))
    entries = document(spark_jobs("checkpoints", "--home", drained.url, "--output", "json"))["checkpoints"]
    assert [list(entry["published"].values()) for entry in entries] == [[True, True], [False, False], [False, False]]
    assert [entry["abandoned"] for entry in entries] == [True, True, False]
    rows = spark_jobs("checkpoints", "--home", drained.url).stdout.splitlines()
    assert [word for row in rows for word in ("yes", "abandoned", "staged") if f" {word} " in row] == [
        "yes",
        "abandoned",
        "staged",
    ]


def test_the_public_and_the_abandoned_sinks_of_a_closed_incarnation_are_shown(drained: UsedHome) -> None:
    publish(drained.files, sinks=[HOURLY])
    manifest = drained.staged.store.manifest(CheckpointId(1))
    drained.staged.close(DAILY, manifest.sinks[DAILY].app, None)
    assert "1 of 2 sinks, abandoned" in spark_jobs("checkpoints", "--home", drained.url).stdout
    shown = spark_jobs("inspect", "--home", drained.url).stdout
    assert ("version 1" in shown, "abandoned" in shown, "staged" in shown) == (True, True, False)


def test_a_missing_table_is_named_and_hides_nothing_else(drained: UsedHome) -> None:
    shutil.rmtree(path_of(drained.staged.tables[HOURLY]))
    result = spark_jobs("checkpoints", "--home", drained.url, "--output", "json")
    assert document(result)["checkpoints"][0]["published"] == {"hourly": None, "daily": False}
    assert "a table is gone" in spark_jobs("checkpoints", "--home", drained.url).stdout


@pytest.mark.parametrize("kind", [CheckpointKind.FINAL, CheckpointKind.PERIODIC])
def test_a_try_that_failed_is_listed_with_its_reason(drained: UsedHome, kind: CheckpointKind) -> None:
    report = ErrorReport(error="StorageFullError", retry="with_backoff", failed="The disk is full.")
    drained.staged.store.record(a_try(2, checkpoint_kind=kind, failure=report))
    shown = spark_jobs("checkpoints", "--home", drained.url)
    assert "Checkpoint 2 has failed: StorageFullError: The disk is full." in shown.stdout
    assert kind.value in shown.stdout


def test_a_corrupt_manifest_is_listed_as_corrupt(drained: UsedHome) -> None:
    drained.files.create("manifests/2.json", b"torn")
    shown = spark_jobs("checkpoints", "--home", drained.url)
    assert shown.exit_code == 0
    assert "Checkpoint 2 is corrupt" in shown.stdout
    assert "manifests/2.json" in shown.stdout


def test_a_try_shows_its_alignment_the_rows_in_flight_and_the_ended_inputs(drained: UsedHome) -> None:
    state = {"new_state_files": 2, "new_state_bytes": 1_500, "reused_state_files": 7, "reused_state_bytes": 2_000_000}
    held = {"alignment_s": 2.5, "finished": (DAILY,), "ended_inputs": {HOURLY: ("events",)}}
    drained.staged.store.record(a_try(2, aligned=True, **held))
    drained.staged.store.record(
        a_try(3, aligned=False, behind=("scored", "best"), in_flight_rows=1_234, in_flight_bytes=5_000, **state, **held)
    )
    shown = spark_jobs("checkpoints", "--home", drained.url).stdout
    assert "aligned, 2.50 s  " in shown
    assert "unaligned without scored, best, 2.50 s, 1,234 rows in flight (5.0 kB)" in shown
    assert "1.5 kB of 2.0 MB" in shown
    assert "At its end in checkpoint 3: stage daily, input events of stage hourly." in shown
    entries = document(spark_jobs("checkpoints", "--home", drained.url, "--output", "json"))["checkpoints"]
    assert [(entry["aligned"], entry["in_flight_bytes"]) for entry in entries] == [(True, 0), (True, 0), (False, 5_000)]
    assert {name: entries[2][name] for name in state} == state
    assert (entries[2]["finished"], entries[2]["ended_inputs"]) == (["daily"], {"hourly": ["events"]})


def test_a_checkpoint_whose_manifest_is_gone_is_subsumed(drained: UsedHome) -> None:
    drained.files.delete("manifests/1.json")
    (entry,) = document(spark_jobs("checkpoints", "--home", drained.url, "--output", "json"))["checkpoints"]
    assert (entry["outcome"], entry["rows"], entry["problem"]) == ("subsumed", 6, None)
    assert "subsumed" in spark_jobs("checkpoints", "--home", drained.url).stdout


def test_only_the_newest_of_many_checkpoints_are_shown_to_people(drained: UsedHome) -> None:
    for k in range(2, 130):
        drained.staged.store.record(a_try(k))
    shown = spark_jobs("checkpoints", "--home", drained.url).stdout
    assert "29 older ones are left out" in shown
    assert len(document(spark_jobs("checkpoints", "--home", drained.url, "--output", "json"))["checkpoints"]) == 129


def test_a_requested_checkpoint_is_distinguished_from_a_periodic_one(drained: UsedHome) -> None:
    drained.complete(checkpoint_kind=CheckpointKind.PERIODIC, request="checkpoint-now")
    shown = spark_jobs("checkpoints", "--home", drained.url).stdout
    assert [word for word in ("final", "requested", "periodic") if f" {word} " in shown] == ["final", "requested"]
