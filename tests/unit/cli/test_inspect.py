import shutil

from spark_jobs.control.rounds import Rounds
from spark_jobs.protocol.documents import TidiedInput
from spark_jobs.protocol.ids import InputName, LossId, StageName
from spark_jobs.protocol.losses import LostFile, LostFiles
from spark_jobs.protocol.pins import DeltaPin
from spark_jobs.publication.publisher import publish
from tests.support.command_line import UsedHome, document, spark_jobs
from tests.support.staged_pipeline import HOURLY, NOW, path_of


def test_a_checkpoint_is_shown_with_its_stages_sinks_and_inputs(interrupted: UsedHome) -> None:
    pins = (DeltaPin(path="/data/flights", table="t", version=9),)
    interrupted.complete(late_rows=1234, inputs={InputName("events"): pins})
    shown = spark_jobs("inspect", "--home", interrupted.url)
    assert shown.exit_code == 0
    for text in (
        "rows of the checkpoint",
        "late rows of the checkpoint",
        "end of time",
        "1,234",
        "/data/flights at version 9",
        "external",
        "staged",
        "delta-rs",
    ):
        assert text in shown.stdout


def test_a_program_reads_the_facts_in_the_order_of_the_graph(drained: UsedHome) -> None:
    answer = document(spark_jobs("inspect", "--home", drained.url, "--output", "json"))
    assert list(answer["stages"]) == list(answer["sinks"]) == ["hourly", "daily"]
    assert (answer["checkpoint"], answer["run"], answer["drained"]) == (1, "monday", True)
    assert answer["manifest"] == f"{drained.url}/manifests/1.json"
    assert answer["sinks"]["hourly"] | {"table": "", "size_bytes": 0} == {
        "table": "",
        "files": 3,
        "rows": 3,
        "size_bytes": 0,
        "policy": "external",
        "mode": "append",
        "publisher": "delta_rs",
        "published": False,
        "version": None,
        "abandoned": False,
    }


def test_a_published_checkpoint_shows_its_delta_versions(drained: UsedHome) -> None:
    publish(drained.files)
    answer = document(spark_jobs("inspect", "--home", drained.url, "--output", "json"))
    assert {sink: facts["version"] for sink, facts in answer["sinks"].items()} == {"hourly": 1, "daily": 1}
    assert "version 1" in spark_jobs("inspect", "--home", drained.url).stdout


def test_an_older_checkpoint_can_be_named(drained: UsedHome) -> None:
    drained.begin(2, run="tuesday")
    drained.complete(run="tuesday")
    assert document(spark_jobs("inspect", "--home", drained.url, "--output", "json"))["run"] == "tuesday"
    chosen = spark_jobs("inspect", "--home", drained.url, "--checkpoint", 1, "--output", "json")
    assert document(chosen)["run"] == "monday"


def test_a_checkpoint_that_does_not_exist_is_refused(drained: UsedHome) -> None:
    refused = spark_jobs("inspect", "--home", drained.url, "--checkpoint", 7)
    assert refused.exit_code == 2
    assert "no complete checkpoint 7" in refused.stderr


def test_a_corrupt_checkpoint_is_never_half_shown(drained: UsedHome) -> None:
    drained.files.replace("manifests/1.json", b"torn")
    refused = spark_jobs("inspect", "--home", drained.url, "--checkpoint", 1, "--output", "json")
    assert refused.exit_code == 2
    assert document(refused)["error"]["error"] == "CorruptDocumentError"


def test_a_missing_table_is_named(drained: UsedHome) -> None:
    shutil.rmtree(path_of(drained.staged.tables[HOURLY]))
    assert "the table is gone" in spark_jobs("inspect", "--home", drained.url).stdout


def test_lost_and_archived_files_are_shown(interrupted: UsedHome) -> None:
    gone = LostFile(path="file:/in/4.json", size_bytes=20)
    lost = LostFiles(id=LossId("1-2"), input=InputName("events"), stage=StageName("hourly"), files=(gone,))
    manifest = interrupted.complete(losses=(lost,))
    tidied = TidiedInput(round=manifest.round, input=InputName("events"), tidied_at=NOW, left=("file:/in/5.json",))
    Rounds(interrupted.files).tidy(tidied)
    shown = " ".join(spark_jobs("inspect", "--home", interrupted.url).stdout.split())
    assert (
        "Loss 1-2: stage hourly goes on without the lost rows of source events: 1 file with 20 bytes, such as file:/in/4.json."
        in shown
    )
    assert "The files of source events were taken away at" in shown
    assert "1 that have changed since they were read stay, such as file:/in/5.json." in shown
    answer = document(spark_jobs("inspect", "--home", interrupted.url, "--output", "json"))
    assert [loss["stage"] for loss in answer["losses"]] == ["hourly"]
    assert answer["tidied"]["events"]["left"] == ["file:/in/5.json"]
