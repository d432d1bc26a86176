import json
import shlex
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from spark_jobs.control.channel import Channel
from spark_jobs.control.losses import LossLedger
from spark_jobs.home.layout import manifest_path
from spark_jobs.protocol.documents import AttemptDocument, CheckpointKind, Publish
from spark_jobs.protocol.errors import NotFoundError, RejectedError
from spark_jobs.protocol.ids import CheckpointId, IncarnationId, InputName, LossId, PipelineName, RoundNumber, StageName
from spark_jobs.protocol.losses import LostFile, LostFiles
from spark_jobs.publication import evidence
from spark_jobs.publication.delta_rs import OpenTable, open_table
from spark_jobs.publication.evidence import before_closing, consistent_versions, published_checkpoints, version_with
from spark_jobs.publication.pending import CLOSED, pending_lines
from spark_jobs.publication.publisher import publish
from spark_jobs.storage.local import LocalFiles
from tests.support.command_line import spark_jobs
from tests.support.documents import SAMPLES
from tests.support.staged_pipeline import DAILY, HOURLY, StagedPipeline, path_of

EXTERNAL = Publish.EXTERNAL
(ATTEMPT,) = (sample for sample in SAMPLES if isinstance(sample, AttemptDocument))


def foreign_append(pipeline: StagedPipeline, *, times: int = 1) -> None:
    for _ in range(times):
        write_deltalake(pipeline.tables[HOURLY], pa.table({"id": [9], "day": ["x"]}), mode="append")


def test_all_tables_are_read_at_the_same_checkpoint(pipeline: StagedPipeline) -> None:
    for number in (1, 2):
        pipeline.checkpoint({HOURLY: [(number, "a")], DAILY: [(10 * number, "a")]}, publish=EXTERNAL)
        foreign_append(pipeline)
        publish(pipeline.files)
    foreign_append(pipeline)
    hourly, daily = pipeline.tables[HOURLY], pipeline.tables[DAILY]
    assert consistent_versions(pipeline.files) == {HOURLY: (hourly, 4), DAILY: (daily, 2)}
    assert consistent_versions(pipeline.files, CheckpointId(1)) == {HOURLY: (hourly, 2), DAILY: (daily, 1)}
    assert list(consistent_versions(pipeline.files)) == [HOURLY, DAILY]
    assert pipeline.rows(HOURLY, 2) == [(1, "a"), (9, "x")]


def test_the_newest_cut_is_the_newest_checkpoint_that_every_sink_has(pipeline: StagedPipeline) -> None:
    for number in (1, 2, 3):
        pipeline.checkpoint({HOURLY: [(number, "a")], DAILY: [(number, "a")]}, publish=EXTERNAL)
    publish(pipeline.files)
    pipeline.checkpoint({HOURLY: [(4, "a")], DAILY: [(4, "a")]}, publish=EXTERNAL)
    publish(pipeline.files, sinks=[HOURLY])
    assert {sink: version for sink, (_, version) in consistent_versions(pipeline.files).items()} == {HOURLY: 3, DAILY: 3}
    with pytest.raises(RejectedError) as refused:
        consistent_versions(pipeline.files, CheckpointId(4))
    assert refused.value.evidence == {"checkpoint": 4, "sinks": [DAILY]}


def test_a_cut_names_the_tables_that_are_behind(pipeline: StagedPipeline) -> None:
    for number, behind in ((1, ()), (2, (StageName("daily"),))):
        pipeline.checkpoint({HOURLY: [(number, "a")], DAILY: [(number, "a")]}, publish=EXTERNAL, behind=behind)
        publish(pipeline.files)
    newest = consistent_versions(pipeline.files)
    assert (newest.checkpoint, newest.behind) == (2, (DAILY,))
    assert consistent_versions(pipeline.files, CheckpointId(1)).behind == ()


def test_an_exact_cut_is_before_a_loss_until_the_loss_is_accepted(pipeline: StagedPipeline) -> None:
    ledger, whose = LossLedger(pipeline.files), {"incarnation": IncarnationId("first")}
    gone = LostFiles(input=InputName("events"), stage=StageName("hourly"), files=(LostFile(path="a"),))
    lost = ledger.record(RoundNumber(2), ATTEMPT.model_copy(update=whose), [gone])
    for number, losses in ((1, ()), (2, lost)):
        pipeline.checkpoint({HOURLY: [(number, "a")]}, publish=EXTERNAL, losses=losses)
        publish(pipeline.files)
    said = [json.loads(each["userMetadata"]) for each in DeltaTable(pipeline.tables[HOURLY]).history(2)]
    assert [each.get("losses") for each in said] == [["2-1"], None]
    newest = consistent_versions(pipeline.files)
    assert (newest.checkpoint, newest.losses, newest.exact) == (2, ("2-1",), False)
    assert consistent_versions(pipeline.files, exact=True).checkpoint == 1
    with pytest.raises(RejectedError, match="Checkpoint 2 is not exact: it lacks the rows of 1 loss, such as 2-1"):
        consistent_versions(pipeline.files, CheckpointId(2), exact=True)
    pipeline.files.delete(manifest_path(CheckpointId(1)))
    for undone in ([], [LossId("2-1")]):
        ledger.undo(undone, RoundNumber(2))
        with pytest.raises(RejectedError, match="Checkpoint 2 is not exact"):
            consistent_versions(pipeline.files, exact=True)
    ledger.reopen([LossId("2-1")])
    ledger.accept([LossId("2-1")], "deleted by the vendor")
    assert consistent_versions(pipeline.files, exact=True).checkpoint == 2


def test_a_table_without_public_rows_of_the_round_is_not_behind(pipeline: StagedPipeline) -> None:
    """The stage waits for another stage of its round. Its missing rows become public at the end of the round."""
    rows, behind = {HOURLY: [(1, "a")], DAILY: []}, (StageName("daily"),)
    in_the_round, final = (
        pipeline.checkpoint(rows, publish=Publish.FINAL, checkpoint_kind=kind, behind=behind)
        for kind in (CheckpointKind.PERIODIC, CheckpointKind.FINAL)
    )
    assert (in_the_round.sinks_behind, final.sinks_behind) == ((), (DAILY,))


def test_a_checkpoint_that_became_public_together_with_a_later_one_has_no_cut_of_its_own(pipeline: StagedPipeline) -> None:
    pipeline.checkpoint({HOURLY: [(1, "a")]}, checkpoint_kind=CheckpointKind.PERIODIC)
    pipeline.checkpoint({HOURLY: [(2, "a")]})
    publish(pipeline.files)
    assert consistent_versions(pipeline.files)[HOURLY][1] == 1
    with pytest.raises(RejectedError, match="together with a later one"):
        consistent_versions(pipeline.files, CheckpointId(1))


def test_there_is_no_cut_before_the_first_publication(pipeline: StagedPipeline) -> None:
    def refused() -> RejectedError:
        with pytest.raises(RejectedError, match=f"No checkpoint of {pipeline.files.url} is public") as caught:
            consistent_versions(pipeline.files)
        return caught.value

    assert "not the home of a pipeline" in refused().exists
    Channel(pipeline.files).claim(PipelineName("flights"))
    assert refused().exists == "The home has no complete checkpoint."
    assert f"spark-jobs status --home {pipeline.files.url}" in refused().remedy
    pipeline.checkpoint({HOURLY: [(1, "a")]})
    assert refused().exists == "The newest complete checkpoint is 1; some or all of its rows are only staged."
    with pytest.raises(RejectedError, match="no complete checkpoint 5"):
        consistent_versions(pipeline.files, CheckpointId(5))


@pytest.fixture
def local(tmp_path: Path) -> StagedPipeline:
    """A pipeline whose home is on disk, where a command can open it."""
    pipeline = StagedPipeline(LocalFiles(str(tmp_path / "home")), tmp_path)
    Channel(pipeline.files).claim(PipelineName("flights"))
    pipeline.make_table(HOURLY)
    return pipeline


def follow(error: RejectedError) -> None:
    """Runs the command at the end of a remedy."""
    shown = spark_jobs(*shlex.split(error.remedy.partition("spark-jobs ")[2]))
    assert shown.exit_code == 0, shown.stderr


@pytest.mark.parametrize("asked", [None, CheckpointId(1)])
@pytest.mark.parametrize("policy", [Publish.FINAL, Publish.EXTERNAL])
def test_the_command_in_a_refusal_makes_the_cut_possible(
    local: StagedPipeline, asked: CheckpointId | None, policy: Publish
) -> None:
    local.checkpoint({HOURLY: [(1, "a")]}, publish=policy)
    local.checkpoint({HOURLY: [(2, "b")]}, publish=policy, checkpoint_kind=CheckpointKind.PERIODIC)
    with pytest.raises(RejectedError) as refused:
        consistent_versions(local.files, asked)
    command = f"spark-jobs publish --home {local.files.url} --checkpoint {2 if policy is EXTERNAL and asked is None else 1}"
    assert refused.value.remedy == f"Publish it: {command}"
    follow(refused.value)
    assert consistent_versions(local.files, asked)[HOURLY][1] == (2 if policy is EXTERNAL and asked is None else 1)


@pytest.mark.parametrize("asked", [None, CheckpointId(1)])
def test_a_running_round_has_no_cut_before_its_end(local: StagedPipeline, asked: CheckpointId | None) -> None:
    local.checkpoint({HOURLY: [(1, "a")]}, checkpoint_kind=CheckpointKind.PERIODIC)
    with pytest.raises(RejectedError, match="Run the pipeline on: the rows become public when the round has ended") as refused:
        consistent_versions(local.files, asked)
    follow(refused.value)


def test_a_corrupt_head_does_not_hide_the_cut_before_it(pipeline: StagedPipeline) -> None:
    pipeline.checkpoint({HOURLY: [(1, "a")]})
    publish(pipeline.files)
    pipeline.checkpoint({HOURLY: [(2, "a")]})
    pipeline.files.replace("manifests/2.json", b"torn")
    assert consistent_versions(pipeline.files)[HOURLY][1] == 1


def test_a_new_incarnation_without_publication_leaves_the_old_cut(pipeline: StagedPipeline) -> None:
    old = pipeline.checkpoint({HOURLY: [(1, "a")]})
    publish(pipeline.files)
    pipeline.close(HOURLY, old.sinks[HOURLY].app, CheckpointId(1))
    new = pipeline.checkpoint({HOURLY: [(2, "a")]}, incarnation=IncarnationId("second"))
    assert consistent_versions(pipeline.files)[HOURLY][1] == 1
    assert (published_checkpoints(old), published_checkpoints(new)) == ({HOURLY: CLOSED}, {HOURLY: None})
    publish(pipeline.files)
    assert published_checkpoints(new) == {HOURLY: 2}


def test_a_home_can_be_named_by_its_url(tmp_path: Path) -> None:
    pipeline = StagedPipeline(LocalFiles(str(tmp_path / "home")), tmp_path)
    pipeline.make_table(HOURLY)
    pipeline.checkpoint({HOURLY: [(1, "a")]})
    publish(pipeline.files)
    assert consistent_versions(pipeline.files.url) == consistent_versions(pipeline.files)


def test_the_version_of_every_checkpoint_is_found_among_many_commits(pipeline: StagedPipeline) -> None:
    manifests = []
    expected = []
    for number in range(1, 6):
        foreign_append(pipeline, times=number % 3)
        manifests.append(pipeline.checkpoint({HOURLY: [(number, "a")]}, publish=EXTERNAL))
        publish(pipeline.files)
        expected.append(DeltaTable(pipeline.tables[HOURLY]).version())
    foreign_append(pipeline, times=4)
    assert [version_with(m.sinks[HOURLY], m.checkpoint) for m in manifests] == expected
    assert version_with(manifests[-1].sinks[HOURLY], CheckpointId(6)) is None


def test_the_first_readable_version_is_found_in_a_cleaned_log(pipeline: StagedPipeline) -> None:
    manifest = pipeline.checkpoint({HOURLY: [(1, "a")]})
    publish(pipeline.files)
    foreign_append(pipeline, times=3)
    table = DeltaTable(pipeline.tables[HOURLY])
    table.create_checkpoint()
    foreign_append(pipeline, times=2)
    for path in sorted((path_of(pipeline.tables[HOURLY]) / "_delta_log").glob("*.json"))[:5]:
        path.unlink()
    assert version_with(manifest.sinks[HOURLY], CheckpointId(1)) == 4


def test_publications_of_a_closed_incarnation_are_read_from_the_version_before_the_closing(pipeline: StagedPipeline) -> None:
    app = pipeline.checkpoint({HOURLY: [(1, "a")]}).sinks[HOURLY].app
    publish(pipeline.files)
    foreign_append(pipeline, times=3)
    still_open = open_table(pipeline.tables[HOURLY])
    assert before_closing(still_open, app) is still_open
    pipeline.close(HOURLY, app, CheckpointId(1))
    foreign_append(pipeline, times=3)
    before = before_closing(open_table(pipeline.tables[HOURLY]), app)
    assert (before.facts.version, before.transaction_version(app)) == (4, 1)


@pytest.mark.slow
def test_the_search_for_a_version_opens_only_few_versions(pipeline: StagedPipeline, monkeypatch: pytest.MonkeyPatch) -> None:
    manifest = pipeline.checkpoint({HOURLY: [(1, "a")]})
    foreign_append(pipeline, times=30)
    publish(pipeline.files)
    opened: list[int | None] = []

    def counted(uri: str, version: int | None = None) -> OpenTable:
        opened.append(version)
        return open_table(uri, version)

    monkeypatch.setattr(evidence, "open_table", counted)
    assert version_with(manifest.sinks[HOURLY], CheckpointId(1)) == 31
    assert len(opened) == 2
    foreign_append(pipeline, times=30)
    opened.clear()
    assert version_with(manifest.sinks[HOURLY], CheckpointId(1)) == 31
    assert len(opened) < 13


def test_the_history_of_the_table_names_pipeline_and_checkpoint_of_each_publication(pipeline: StagedPipeline) -> None:
    pipeline.checkpoint({HOURLY: [(1, "a")]})
    publish(pipeline.files)
    newest = DeltaTable(pipeline.tables[HOURLY]).history(1)[0]
    assert json.loads(newest["userMetadata"]) == {
        "pipeline": "flights",
        "pipeline_uuid": "11111111-1111-1111-1111-111111111111",
        "incarnation": "first",
        "sink": "hourly",
        "checkpoint": 1,
        "attempt": 1,
        "round": 1,
        "run": "run-1",
    }


def test_pending_lines_are_exactly_the_lines_that_a_publication_adds(pipeline: StagedPipeline) -> None:
    pipeline.checkpoint({HOURLY: [(1, "a")]}, publish=EXTERNAL)
    pipeline.checkpoint({HOURLY: [(2, "a"), (3, "b")]}, publish=EXTERNAL)
    assert len(pending_lines(pipeline.files, HOURLY)) == 3
    publish(pipeline.files, CheckpointId(1))
    assert pending_lines(pipeline.files, HOURLY, CheckpointId(1)) == []
    pending = pending_lines(pipeline.files, HOURLY)
    assert sorted(line["add"]["partitionValues"]["day"] for line in pending) == ["a", "b"]
    assert pipeline.rows(HOURLY) == [(1, "a")]
    publish(pipeline.files)
    assert pending_lines(pipeline.files, HOURLY) == []


def test_a_missing_table_is_named(pipeline: StagedPipeline) -> None:
    manifest = pipeline.checkpoint({HOURLY: [(1, "a")]})
    for path in (path_of(pipeline.tables[HOURLY]) / "_delta_log").iterdir():
        path.unlink()
    with pytest.raises(NotFoundError, match="hourly"):
        published_checkpoints(manifest)
