import json
from collections.abc import Callable
from threading import Event
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake
from hypothesis import given, settings
from hypothesis import strategies as st

from spark_jobs.checkpoint.retention import discard
from spark_jobs.control.liveness import holding
from spark_jobs.protocol.codec import canonical
from spark_jobs.protocol.delta_log import DELTA_LOG, PUBLICATION_LOCK
from spark_jobs.protocol.documents import CheckpointKind, Publish, Publisher, SinkCut, SinkMode
from spark_jobs.protocol.errors import (
    ConflictError,
    CorruptDocumentError,
    InvalidParameterError,
    NotFoundError,
    OutcomeUnknownError,
    RejectedError,
    SparkRequiredError,
    StorageFullError,
    StreamPipelineError,
    UnsupportedTableError,
)
from spark_jobs.protocol.ids import CheckpointId, IncarnationId, RoundNumber, SinkName
from spark_jobs.protocol.merge_cut import MergeCut
from spark_jobs.publication import delta_rs, pending, publisher, transactions
from spark_jobs.publication.delta_rs import OpenTable, cached_log, open_table
from spark_jobs.publication.pending import alike, refuse_missing_table, refuse_unknown
from spark_jobs.publication.publisher import WITHOUT_SPARK, plan_publication, publish
from spark_jobs.publication.staged_files import missing_files
from spark_jobs.publication.table_log import TableLog
from spark_jobs.publication.transactions import Publishers
from spark_jobs.storage.files import Digesting
from tests.support.memory_files import MemoryFiles
from tests.support.sink_kinds import Kind, cut_of
from tests.support.staged_pipeline import DAILY, HOURLY, StagedPipeline, a_manifest, a_sink_cut, path_of

PERIODIC = CheckpointKind.PERIODIC


@pytest.fixture(autouse=True)
def no_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tenacity.nap.time.sleep", lambda _: None)


def published(pipeline: StagedPipeline) -> dict[SinkName, list[int]]:
    return {sink: pipeline.commits(sink) for sink in (HOURLY, DAILY)}


def test_rows_are_public_after_the_publication_and_not_before(pipeline: StagedPipeline) -> None:
    pipeline.checkpoint({HOURLY: [(1, "a"), (2, "b")], DAILY: [(3, "c")]})
    assert pipeline.rows(HOURLY) == pipeline.rows(DAILY) == []
    results = publish(pipeline.files)
    assert pipeline.rows(HOURLY) == [(1, "a"), (2, "b")]
    assert pipeline.rows(DAILY) == [(3, "c")]
    assert [(sink, result.checkpoint, result.version, result.rows) for sink, result in results.items()] == [
        (HOURLY, 1, 1, 2),
        (DAILY, 1, 1, 1),
    ]


def test_a_repeated_publication_changes_nothing_and_gives_the_same_result(pipeline: StagedPipeline) -> None:
    pipeline.checkpoint({HOURLY: [(1, "a")], DAILY: []})
    first = publish(pipeline.files)
    assert publish(pipeline.files) == first
    assert published(pipeline) == {HOURLY: [1], DAILY: [1]}


def test_a_checkpoint_without_rows_advances_its_sinks(pipeline: StagedPipeline) -> None:
    pipeline.checkpoint({HOURLY: [], DAILY: []})
    publish(pipeline.files)
    pipeline.checkpoint({HOURLY: [(1, "a")], DAILY: []})
    publish(pipeline.files)
    assert published(pipeline) == {HOURLY: [1, 2], DAILY: [1, 2]}


def test_sinks_are_published_in_the_order_of_their_stages(pipeline: StagedPipeline, monkeypatch: pytest.MonkeyPatch) -> None:
    order: list[str] = []
    real = OpenTable.commit

    def commit(self: OpenTable, *given: Any, **named: Any) -> None:
        order.append(self.facts.uri.rpartition("/")[2])
        real(self, *given, **named)

    monkeypatch.setattr(OpenTable, "commit", commit)
    pipeline.checkpoint({DAILY: [], HOURLY: []})
    assert list(publish(pipeline.files)) == [HOURLY, DAILY]
    assert order == ["hourly", "daily"]


@pytest.mark.parametrize("replace", [False, True])
def test_spark_publishes_a_replacement_in_a_table_to_which_delta_rs_can_only_append(
    pipeline: StagedPipeline, replace: bool
) -> None:
    protocol = {"minReaderVersion": 1, "minWriterVersion": 7, "writerFeatures": ["domainMetadata", "rowTracking"]}
    commit = json.dumps({"protocol": protocol}) + "\n"
    (path_of(pipeline.tables[HOURLY]) / DELTA_LOG / f"{1:020}.json").write_text(commit)
    pipeline.checkpoint({HOURLY: [(1, "a")]}, replace=replace)
    planned = plan_publication(pipeline.files)
    assert planned.by_spark == ([HOURLY] if replace else [])
    if not replace:
        planned.carry_out()
        assert pipeline.rows(HOURLY) == [(1, "a")]


def keyed(pipeline: StagedPipeline) -> dict[str, Any]:
    """Returns the fields of a cut whose sink remembers deleted keys, and which delta-rs merges."""
    cut = cut_of(pipeline, Publisher.DELTA_RS, Kind.SEQUENCED)
    return {**cut, "merge": cut["merge"].model_copy(update={"apply_as_deletes": "day = 'gone'"})}


def test_no_table_waits_until_the_deleted_keys_of_another_are_folded(pipeline: StagedPipeline) -> None:
    class Watched(Publishers):
        """Publishers that record which tables are public when deleted keys are folded."""

        def __init__(self) -> None:
            super().__init__()
            self.public: list[dict[SinkName, list[int]]] = []

        def keep_deleted_keys(self, cut: SinkCut, reached: CheckpointId | None) -> None:
            assert reached == 1
            with pytest.raises(BlockingIOError), holding(path_of(cut.table) / DELTA_LOG / PUBLICATION_LOCK, "another process"):
                pass
            self.public.append(published(pipeline))
            super().keep_deleted_keys(cut, reached)

    publishers = Watched()
    pipeline.checkpoint({HOURLY: [(1, "gone")], DAILY: [(2, "b")]}, cut=keyed(pipeline))
    publish(pipeline.files, publishers=publishers)
    assert publishers.public == [{HOURLY: [1], DAILY: [1]}] * 2


def test_a_publication_succeeds_although_deleted_keys_cannot_be_folded(
    pipeline: StagedPipeline, caplog: pytest.LogCaptureFixture
) -> None:
    class Overtaken(Publishers):
        """Publishers whose turn to fold never comes."""

        def keep_deleted_keys(self, cut: SinkCut, reached: CheckpointId | None) -> None:
            raise ConflictError("Another process is publishing.", remedy="Repeat.")

    pipeline.checkpoint({HOURLY: [(1, "gone")]}, cut=keyed(pipeline))
    publish(pipeline.files, publishers=Overtaken())
    assert pipeline.commits(HOURLY) == [1]
    assert "are not folded: Another process is publishing" in caplog.text


def test_the_final_policy_makes_one_delta_transaction_of_all_that_is_pending(pipeline: StagedPipeline) -> None:
    pipeline.checkpoint({HOURLY: [(1, "a")]}, round=RoundNumber(1), checkpoint_kind=PERIODIC)
    pipeline.checkpoint({HOURLY: [(2, "a")]}, round=RoundNumber(1), checkpoint_kind=PERIODIC)
    pipeline.checkpoint({HOURLY: [(3, "b")]}, round=RoundNumber(1))
    results = publish(pipeline.files, by_policy=True)
    assert pipeline.rows(HOURLY) == [(1, "a"), (2, "a"), (3, "b")]
    assert pipeline.commits(HOURLY) == [3]
    assert results[HOURLY].rows == 3


@pytest.mark.parametrize("policy", [Publish.EVERY_CHECKPOINT, Publish.EXTERNAL])
def test_the_other_policies_make_one_delta_transaction_of_each_checkpoint(pipeline: StagedPipeline, policy: Publish) -> None:
    for number in range(1, 4):
        pipeline.checkpoint({HOURLY: [(number, "a")]}, publish=policy, checkpoint_kind=PERIODIC)
    assert publish(pipeline.files)[HOURLY].rows == 1
    assert pipeline.commits(HOURLY) == [1, 2, 3]
    assert [pipeline.rows(HOURLY, version) for version in (1, 2)] == [[(1, "a")], [(1, "a"), (2, "a")]]


def test_a_driver_that_is_behind_publishes_all_missing_checkpoints_in_one_delta_transaction(pipeline: StagedPipeline) -> None:
    for number in range(1, 4):
        pipeline.checkpoint({HOURLY: [(number, "a")]}, publish=Publish.EVERY_CHECKPOINT, checkpoint_kind=PERIODIC)
    assert publish(pipeline.files, CheckpointId(1), by_policy=True)[HOURLY].version == 1
    assert publish(pipeline.files, by_policy=True)[HOURLY].version == 2
    assert (pipeline.commits(HOURLY), pipeline.rows(HOURLY)) == ([1, 3], [(1, "a"), (2, "a"), (3, "a")])
    assert publish(pipeline.files, CheckpointId(2))[HOURLY].version == 2


def test_checkpoints_with_different_merge_rules_share_no_transaction() -> None:
    rule = MergeCut(keys=("id",), sequence_by=None, apply_as_deletes="gone", staged_in="file:///t", tombstones=None)
    rules = [rule, rule.model_copy(update={"tombstones_version": 5}), rule.model_copy(update={"apply_as_deletes": "left"})]
    lacking = [
        a_manifest(number, sinks={HOURLY: a_sink_cut("hourly", mode=SinkMode.UPSERT, merge=each)})
        for number, each in enumerate(rules, start=1)
    ]
    assert [[each.checkpoint for each in group] for group in alike(lacking, HOURLY)] == [[1, 2], [3]]


def test_a_publication_ends_with_the_requested_checkpoint(pipeline: StagedPipeline) -> None:
    for number in range(1, 4):
        pipeline.checkpoint({HOURLY: [(number, "a")]}, publish=Publish.EXTERNAL)
    publish(pipeline.files, CheckpointId(2))
    assert pipeline.rows(HOURLY) == [(1, "a"), (2, "a")]
    publish(pipeline.files)
    assert publish(pipeline.files, CheckpointId(2))[HOURLY].version == 2
    assert pipeline.commits(HOURLY) == [1, 2, 3]


def test_the_publication_by_the_driver_leaves_external_sinks_staged(pipeline: StagedPipeline) -> None:
    pipeline.checkpoint({HOURLY: [(1, "a")]}, publish=Publish.EXTERNAL)
    result = publish(pipeline.files, by_policy=True)[HOURLY]
    assert (result.version, result.rows, pipeline.rows(HOURLY)) == (None, 1, [])


def test_a_final_sink_is_not_published_from_a_periodic_checkpoint(pipeline: StagedPipeline) -> None:
    pipeline.checkpoint({HOURLY: [(1, "a")]}, checkpoint_kind=PERIODIC)
    assert publish(pipeline.files, by_policy=True)[HOURLY].version is None
    with pytest.raises(RejectedError, match="only with final checkpoints"):
        publish(pipeline.files)
    assert pipeline.rows(HOURLY) == []
    publish(pipeline.files, policy=Publish.EVERY_CHECKPOINT)
    assert pipeline.rows(HOURLY) == [(1, "a")]


def test_a_final_sink_is_published_from_a_drained_stop(pipeline: StagedPipeline) -> None:
    pipeline.checkpoint({HOURLY: [(1, "a")]}, checkpoint_kind=CheckpointKind.STOP, drained=True)
    assert publish(pipeline.files, by_policy=True)[HOURLY].version == 1


def test_a_publication_can_use_another_policy_than_the_recorded_one(pipeline: StagedPipeline) -> None:
    pipeline.checkpoint({HOURLY: [(1, "a")]})
    assert publish(pipeline.files, by_policy=True, policy=Publish.EXTERNAL)[HOURLY].version is None


def test_only_the_chosen_sinks_are_published(pipeline: StagedPipeline) -> None:
    pipeline.checkpoint({HOURLY: [(1, "a")], DAILY: [(2, "b")]})
    assert list(publish(pipeline.files, sinks=[DAILY])) == [DAILY]
    assert published(pipeline) == {HOURLY: [], DAILY: [1]}


def test_an_unknown_sink_is_refused_before_anything_is_written(pipeline: StagedPipeline) -> None:
    pipeline.checkpoint({HOURLY: [(1, "a")]})
    with pytest.raises(InvalidParameterError, match="no sink hurly"):
        publish(pipeline.files, sinks=[HOURLY, SinkName("hurly")])
    assert pipeline.commits(HOURLY) == []


def test_a_sink_that_was_added_later_is_published_from_its_first_checkpoint(pipeline: StagedPipeline) -> None:
    pipeline.checkpoint({HOURLY: [(1, "a")]}, publish=Publish.EXTERNAL)
    pipeline.checkpoint({HOURLY: [(2, "a")], DAILY: [(3, "b")]}, publish=Publish.EXTERNAL)
    publish(pipeline.files)
    assert published(pipeline) == {HOURLY: [1, 2], DAILY: [2]}


def test_a_publication_without_a_checkpoint_is_refused(pipeline: StagedPipeline) -> None:
    with pytest.raises(RejectedError, match="no complete checkpoint"):
        publish(pipeline.files)
    with pytest.raises(RejectedError, match="no complete checkpoint 7"):
        publish(pipeline.files, CheckpointId(7))


def test_the_error_of_a_discarded_checkpoint_says_that_it_was_discarded(pipeline: StagedPipeline) -> None:
    for number in (1, 2, 3):
        pipeline.checkpoint({HOURLY: [(number, "a")]}, publish=Publish.EXTERNAL)
    discard(pipeline.files, [CheckpointId(1)])
    with pytest.raises(RejectedError, match="no complete checkpoint 1 in .* any more") as caught:
        publish(pipeline.files, CheckpointId(1))
    assert caught.value.exists.startswith("It has 2, 3. Older ones are deleted")
    with pytest.raises(RejectedError) as caught:
        publish(pipeline.files, CheckpointId(7))
    assert caught.value.exists == "It has 2, 3."


def test_the_rows_of_a_round_are_counted_as_far_as_its_checkpoints_exist(pipeline: StagedPipeline) -> None:
    for number in (1, 2):
        pipeline.checkpoint({HOURLY: [(number, "a")]}, publish=Publish.EVERY_CHECKPOINT, round=RoundNumber(1))
        publish(pipeline.files)
    pipeline.files.delete("manifests/1.json")
    assert publish(pipeline.files)[HOURLY].rows == 1


def test_rows_that_another_writer_appends_in_between_stay(pipeline: StagedPipeline) -> None:
    pipeline.checkpoint({HOURLY: [(1, "a")]})
    write_deltalake(pipeline.tables[HOURLY], pa.table({"id": [9], "day": ["x"]}), mode="append")
    assert publish(pipeline.files)[HOURLY].version == 2
    assert pipeline.rows(HOURLY) == [(1, "a"), (9, "x")]


def test_a_table_that_gained_a_nullable_column_takes_rows_that_were_staged_before(pipeline: StagedPipeline) -> None:
    pipeline.checkpoint({DAILY: [(1, "a")]})
    write_deltalake(pipeline.tables[DAILY], pa.table({"id": [9], "day": ["x"], "new": [5]}), mode="append", schema_mode="merge")
    publish(pipeline.files)
    assert pipeline.rows(DAILY) == [(1, "a"), (9, "x")]


def damage_schema(pipeline: StagedPipeline) -> None:
    write_deltalake(pipeline.tables[DAILY], pa.table({"id": ["text"]}), mode="overwrite", schema_mode="overwrite")


def damage_table_id(pipeline: StagedPipeline) -> None:
    directory = path_of(pipeline.tables[DAILY])
    for path in (directory / "_delta_log").iterdir():
        path.unlink()
    pipeline.make_table(DAILY, partition_by=())


def damage_partitioning(pipeline: StagedPipeline) -> None:
    write_deltalake(
        pipeline.tables[DAILY],
        pa.table({"id": [9], "day": ["x"]}),
        mode="overwrite",
        schema_mode="overwrite",
        partition_by=["day"],
    )


def change_constraints(pipeline: StagedPipeline) -> None:
    DeltaTable(pipeline.tables[DAILY]).alter.add_constraint({"large": "id > 1000"})


def damage_retention(pipeline: StagedPipeline) -> None:
    retention = {"delta.setTransactionRetentionDuration": "interval 1 days"}
    DeltaTable(pipeline.tables[DAILY]).alter.set_table_properties(retention, raise_if_not_exists=False)


def damage_table(pipeline: StagedPipeline) -> None:
    for path in (path_of(pipeline.tables[DAILY]) / "_delta_log").iterdir():
        path.unlink()


def damage_staged_file(pipeline: StagedPipeline) -> None:
    DeltaTable(pipeline.tables[DAILY]).vacuum(retention_hours=0, dry_run=False, enforce_retention_duration=False, full=True)


def damage_part_of_staged_file(pipeline: StagedPipeline) -> None:
    path = next(path_of(pipeline.tables[DAILY]).glob("*part-*.parquet"))
    path.write_bytes(path.read_bytes()[:-1])


def damage_actions(pipeline: StagedPipeline) -> None:
    assert isinstance(pipeline.files, MemoryFiles)
    path = next(path for path in pipeline.files.contents if "daily" in path and path.endswith(".actions"))
    pipeline.files.contents[path] = pipeline.files.contents[path].replace(b"part-", b"part_")


def lose_actions(pipeline: StagedPipeline) -> None:
    pipeline.files.delete(
        next(f"checkpoints/{name}" for name in pipeline.files.names("checkpoints") if name.startswith("1.daily"))
    )


DAMAGES = [
    (damage_schema, UnsupportedTableError),
    (damage_table_id, UnsupportedTableError),
    (damage_partitioning, UnsupportedTableError),
    (change_constraints, SparkRequiredError),
    (damage_retention, UnsupportedTableError),
    (damage_table, NotFoundError),
    (damage_staged_file, NotFoundError),
    (damage_part_of_staged_file, NotFoundError),
    (damage_actions, CorruptDocumentError),
    (lose_actions, NotFoundError),
]


@pytest.mark.parametrize(("damage", "error"), DAMAGES, ids=lambda value: value.__name__)
def test_a_table_that_no_longer_fits_is_refused_before_anything_is_written_to_any_sink(
    pipeline: StagedPipeline, damage: Any, error: type[StreamPipelineError]
) -> None:
    pipeline.checkpoint({HOURLY: [(1, "a")], DAILY: [(2, "b")]})
    damage(pipeline)
    with pytest.raises(error) as refused:
        publish(pipeline.files)
    assert type(refused.value) is error
    assert pipeline.commits(HOURLY) == []
    assert pipeline.rows(HOURLY) == []


def test_a_table_with_another_protocol_takes_rows_that_still_fit(pipeline: StagedPipeline) -> None:
    pipeline.checkpoint({HOURLY: [(1, "a")], DAILY: [(2, "b")]})
    table = DeltaTable(pipeline.tables[DAILY])
    table.alter.set_table_properties({"delta.enableChangeDataFeed": "true"})
    change_constraints(pipeline)
    table.update_incremental()
    table.alter.drop_constraint("large")
    publish(pipeline.files)
    assert pipeline.rows(DAILY) == [(2, "b")]


def test_a_table_would_become_unreadable_without_the_comparison_of_its_schema(
    pipeline: StagedPipeline, monkeypatch: pytest.MonkeyPatch
) -> None:
    pipeline.checkpoint({DAILY: [(2, "b")]})
    damage_schema(pipeline)
    for module in (pending, publisher):
        monkeypatch.setattr(module, "refuse_changed", lambda *_: None)
    publish(pipeline.files)
    with pytest.raises((ValueError, KeyError, pa.ArrowInvalid)):
        pipeline.rows(DAILY)


def test_a_table_would_become_unreadable_without_the_check_of_staged_files(
    pipeline: StagedPipeline, monkeypatch: pytest.MonkeyPatch
) -> None:
    pipeline.checkpoint({DAILY: [(2, "b")]})
    damage_staged_file(pipeline)
    monkeypatch.setattr(pending, "missing_files", lambda *_: [])
    publish(pipeline.files)
    with pytest.raises(FileNotFoundError):
        pipeline.rows(DAILY)


def test_altered_actions_would_become_public_without_the_check_of_their_hash(
    pipeline: StagedPipeline, monkeypatch: pytest.MonkeyPatch
) -> None:
    manifest = pipeline.checkpoint({DAILY: [(2, "b")]})
    (foreign,) = pipeline.stage(DAILY, [(666, "foreign")])
    pipeline.files.replace(manifest.sinks[DAILY].actions.path, canonical(foreign))
    monkeypatch.setattr(Digesting, "digest", SimpleNamespace(sha256=manifest.sinks[DAILY].actions.sha256))
    publish(pipeline.files)
    assert pipeline.rows(DAILY) == [(666, "foreign")]


def test_another_table_at_the_same_path_would_get_the_rows_without_the_check_of_the_table_id(
    pipeline: StagedPipeline, monkeypatch: pytest.MonkeyPatch
) -> None:
    pipeline.checkpoint({DAILY: [(2, "b")]}, publish=Publish.EVERY_CHECKPOINT)
    publish(pipeline.files)
    damage_table_id(pipeline)
    with pytest.raises(UnsupportedTableError, match="another id"):
        publish(pipeline.files)
    for module in (pending, publisher):
        monkeypatch.setattr(module, "refuse_changed", lambda *_: None)
    publish(pipeline.files)
    assert pipeline.commits(DAILY) == [1]


def test_a_file_that_is_gone_because_another_publisher_published_and_vacuumed_is_no_error(
    pipeline: StagedPipeline, monkeypatch: pytest.MonkeyPatch
) -> None:
    pipeline.checkpoint({DAILY: [(2, "b")]})
    raced: list[bool] = []

    def raced_by_another(*given: Any) -> list[str]:
        if not raced:
            raced.append(True)
            publish(pipeline.files)
            for path in path_of(pipeline.tables[DAILY]).glob("*part-*.parquet"):
                path.unlink()
        return missing_files(*given)

    monkeypatch.setattr(pending, "missing_files", raced_by_another)
    assert publish(pipeline.files)[DAILY].version == 1
    assert pipeline.commits(DAILY) == [1]


def before_the_commit(monkeypatch: pytest.MonkeyPatch, happens: Callable[[], Any]) -> None:
    """Calls ``happens`` once, after a table was opened and before its commit."""
    real = OpenTable.commit

    def commit(self: OpenTable, *given: Any, **named: Any) -> None:
        monkeypatch.setattr(OpenTable, "commit", real)
        happens()
        real(self, *given, **named)

    monkeypatch.setattr(OpenTable, "commit", commit)


def test_a_change_between_the_check_and_the_delta_transaction_is_refused(
    pipeline: StagedPipeline, monkeypatch: pytest.MonkeyPatch
) -> None:
    pipeline.checkpoint({DAILY: [(2, "b")]})
    before_the_commit(monkeypatch, lambda: damage_schema(pipeline))
    with pytest.raises(UnsupportedTableError, match=r"has string in id, and had long"):
        publish(pipeline.files)
    assert pipeline.commits(DAILY) == []


def after_the_check(monkeypatch: pytest.MonkeyPatch, happens: Callable[[], Any]) -> None:
    """Calls ``happens`` once, after a sink was checked and before its Delta transaction begins."""

    def prepare_then(*given: Any, **named: Any) -> list[pending.PendingTransaction]:
        prepared = pending.prepare(*given, **named)
        monkeypatch.setattr(publisher, "prepare", pending.prepare)
        happens()
        return prepared

    monkeypatch.setattr(publisher, "prepare", prepare_then)


def test_a_checkpoint_that_another_publisher_published_since_the_check_is_not_published_again(
    pipeline: StagedPipeline, monkeypatch: pytest.MonkeyPatch
) -> None:
    pipeline.checkpoint({DAILY: [(2, "b")]})
    after_the_check(monkeypatch, lambda: publish(pipeline.files))
    assert publish(pipeline.files)[DAILY].version == 1
    assert pipeline.commits(DAILY) == [1]


def test_a_change_since_the_check_is_refused(pipeline: StagedPipeline, monkeypatch: pytest.MonkeyPatch) -> None:
    pipeline.checkpoint({DAILY: [(2, "b")]})
    after_the_check(monkeypatch, lambda: damage_schema(pipeline))
    with pytest.raises(UnsupportedTableError, match=r"has string in id, and had long"):
        publish(pipeline.files)
    assert pipeline.commits(DAILY) == []


def test_a_property_that_is_set_before_the_commit_only_delays_the_publication(
    pipeline: StagedPipeline, monkeypatch: pytest.MonkeyPatch
) -> None:
    pipeline.checkpoint({DAILY: [(2, "b")]})
    before_the_commit(monkeypatch, lambda: open_table(pipeline.tables[DAILY]).set_property("complete_until", "10:00"))
    assert publish(pipeline.files)[DAILY].version == 2
    assert pipeline.rows(DAILY) == [(2, "b")]


@pytest.mark.parametrize("answer", [OutcomeUnknownError("lost"), StorageFullError("full"), ConflictError("other")])
def test_a_delta_transaction_whose_answer_is_lost_is_made_once(
    pipeline: StagedPipeline, monkeypatch: pytest.MonkeyPatch, answer: StreamPipelineError
) -> None:
    pipeline.checkpoint({HOURLY: [(1, "a")], DAILY: [(2, "b")]})
    real = OpenTable.commit

    def commit(self: OpenTable, *given: Any, **named: Any) -> None:
        real(self, *given, **named)
        raise answer

    monkeypatch.setattr(OpenTable, "commit", commit)
    assert publish(pipeline.files)[DAILY].version == 1
    assert published(pipeline) == {HOURLY: [1], DAILY: [1]}
    assert pipeline.rows(HOURLY) == [(1, "a")]


@pytest.mark.parametrize(
    ("answer", "tries"), [(OutcomeUnknownError("lost"), 13), (ConflictError("other"), 13), (StorageFullError("full"), 1)]
)
def test_a_failed_delta_transaction_is_retried_if_that_may_help(
    pipeline: StagedPipeline, monkeypatch: pytest.MonkeyPatch, answer: StreamPipelineError, tries: int
) -> None:
    pipeline.checkpoint({DAILY: [(2, "b")]})
    made = []

    def commit(self: OpenTable, *given: Any, **named: Any) -> None:
        made.append(given)
        raise answer

    monkeypatch.setattr(OpenTable, "commit", commit)
    with pytest.raises(type(answer)):
        publish(pipeline.files)
    assert (len(made), pipeline.rows(DAILY)) == (tries, [])
    monkeypatch.undo()
    publish(pipeline.files)
    assert pipeline.rows(DAILY) == [(2, "b")]


def test_the_error_for_a_table_beyond_the_head_names_both_checkpoints(pipeline: StagedPipeline) -> None:
    first = pipeline.checkpoint({HOURLY: [(1, "a")]}, publish=Publish.EXTERNAL)
    pipeline.checkpoint({HOURLY: [(2, "a")]}, publish=Publish.EXTERNAL)
    app = first.sinks[HOURLY].app
    open_table(pipeline.tables[HOURLY]).commit((), app, CheckpointId(9), {})
    with pytest.raises(RejectedError) as refused:
        publish(pipeline.files)
    assert (refused.value.evidence["checkpoint"], refused.value.evidence["not_on_chain"]) == (2, 9)
    assert pipeline.rows(HOURLY) == []


def test_a_table_with_a_checkpoint_that_is_not_on_the_chain_is_an_error(pipeline: StagedPipeline) -> None:
    pipeline.checkpoint({HOURLY: [(1, "a")]}, publish=Publish.EXTERNAL)
    pipeline.checkpoint({HOURLY: [(2, "a")]}, publish=Publish.EXTERNAL)
    publish(pipeline.files)
    pipeline.files.replace("manifests/2.json", b"torn")
    pipeline.checkpoint({HOURLY: [(3, "a")]}, publish=Publish.EXTERNAL)
    with pytest.raises(RejectedError, match="Checkpoint 2 is not on the chain of parents of checkpoint 3"):
        publish(pipeline.files)
    assert pipeline.commits(HOURLY) == [1, 2]


def test_the_error_for_a_table_with_a_corrupt_checkpoint_beyond_the_head_names_the_manifest(pipeline: StagedPipeline) -> None:
    pipeline.checkpoint({HOURLY: [(1, "a")]}, publish=Publish.EXTERNAL)
    pipeline.checkpoint({HOURLY: [(2, "a")]}, publish=Publish.EXTERNAL)
    publish(pipeline.files)
    pipeline.files.replace("manifests/2.json", b"torn")
    with pytest.raises(CorruptDocumentError, match="manifests/2"):
        publish(pipeline.files)


def test_a_table_that_a_start_continues_must_be_there(pipeline: StagedPipeline) -> None:
    """The start would create it without the rows that were public."""
    cut = pipeline.checkpoint({HOURLY: [(1, "a")]}, publish=Publish.EXTERNAL).sinks[HOURLY]
    refuse_missing_table(CheckpointId(1), HOURLY, cut.table)
    with pytest.raises(NotFoundError, match=r"Sink hourly: table .* is missing, and checkpoint 1 publishes into it\."):
        refuse_missing_table(CheckpointId(1), HOURLY, f"{cut.table}/gone")


def test_a_start_is_refused_if_its_table_has_a_checkpoint_that_the_home_has_lost(pipeline: StagedPipeline) -> None:
    """Otherwise the next checkpoint would have its number, and would count as public."""
    pipeline.checkpoint({HOURLY: [(1, "a")]}, publish=Publish.EXTERNAL)
    cut = pipeline.checkpoint({HOURLY: [(2, "a")]}, publish=Publish.EXTERNAL).sinks[HOURLY]
    publish(pipeline.files)

    def start(newest: int | None) -> None:
        refuse_unknown(pipeline.store, CheckpointId(newest) if newest else None, HOURLY, cut.table, cut.app)

    start(2)
    start(1)  # another attempt has completed and published checkpoint 2: it fences this one
    pipeline.files.replace("manifests/2.json", b"torn")
    with pytest.raises(CorruptDocumentError, match="manifests/2"):
        start(1)
    pipeline.files.delete("manifests/2.json")
    for newest in (1, None):
        with pytest.raises(RejectedError, match=r"has reached checkpoint 2 .* the home does not have it"):
            start(newest)
    pipeline.close(HOURLY, cut.app, CheckpointId(2))
    start(1)


def test_a_table_that_has_lost_a_published_checkpoint_is_refused(pipeline: StagedPipeline) -> None:
    pipeline.checkpoint({HOURLY: [(1, "a")]}, publish=Publish.EXTERNAL)
    pipeline.checkpoint({HOURLY: [(2, "a")]}, publish=Publish.EXTERNAL, known_published=CheckpointId(1))
    with pytest.raises(RejectedError) as refused:
        publish(pipeline.files)
    assert (refused.value.evidence["expected"], refused.value.evidence["found"]) == (1, None)
    assert pipeline.rows(HOURLY) == []


def test_a_publication_never_includes_checkpoints_of_an_earlier_incarnation(pipeline: StagedPipeline) -> None:
    pipeline.checkpoint({HOURLY: [(1, "a")]}, publish=Publish.EXTERNAL)
    pipeline.checkpoint(
        {HOURLY: [(2, "a")]}, publish=Publish.EXTERNAL, incarnation=IncarnationId("second"), parent=CheckpointId(1)
    )
    publish(pipeline.files)
    assert pipeline.rows(HOURLY) == [(2, "a")]
    publish(pipeline.files, CheckpointId(1))
    assert pipeline.rows(HOURLY) == [(1, "a"), (2, "a")]


def test_an_app_id_that_is_not_the_sinks_own_is_refused(pipeline: StagedPipeline) -> None:
    manifest = pipeline.checkpoint({HOURLY: [(1, "a")]})
    pipeline.store.complete(manifest.model_copy(update={"checkpoint": 2, "parent": 1, "incarnation": "second"}))
    with pytest.raises(RejectedError, match="app id"):
        publish(pipeline.files)


def test_no_checkpoint_of_a_closed_incarnation_can_be_published(pipeline: StagedPipeline) -> None:
    manifest = pipeline.checkpoint({HOURLY: [(1, "a")]})
    app = manifest.sinks[HOURLY].app
    for _ in range(2):
        pipeline.close(HOURLY, app, None)
    with pytest.raises(RejectedError, match="was closed"):
        publish(pipeline.files)
    assert pipeline.commits(HOURLY) == [2**63 - 1]
    assert pipeline.rows(HOURLY) == []


def test_an_abandoned_incarnation_that_is_not_closed_would_be_published(pipeline: StagedPipeline) -> None:
    pipeline.checkpoint({HOURLY: [(1, "a")]})
    publish(pipeline.files)
    assert pipeline.rows(HOURLY) == [(1, "a")]


def test_an_incarnation_that_was_published_meanwhile_is_not_closed(pipeline: StagedPipeline) -> None:
    manifest = pipeline.checkpoint({HOURLY: [(1, "a")]})
    publish(pipeline.files)
    with pytest.raises(ConflictError) as refused:
        pipeline.close(HOURLY, manifest.sinks[HOURLY].app, None)
    assert (refused.value.evidence["expected"], refused.value.evidence["found"]) == (None, 1)
    pipeline.close(HOURLY, manifest.sinks[HOURLY].app, CheckpointId(1))
    assert pipeline.commits(HOURLY) == [1, 2**63 - 1]


def test_a_publisher_that_is_faster_than_a_closing_makes_the_closing_decide_again(
    pipeline: StagedPipeline, monkeypatch: pytest.MonkeyPatch
) -> None:
    manifest = pipeline.checkpoint({HOURLY: [(1, "a")]})
    real = OpenTable.commit

    def commit(self: OpenTable, *given: Any, **named: Any) -> None:
        monkeypatch.setattr(OpenTable, "commit", real)
        publish(pipeline.files)
        real(self, *given, **named)

    monkeypatch.setattr(OpenTable, "commit", commit)
    with pytest.raises(ConflictError, match="published in the meantime"):
        pipeline.close(HOURLY, manifest.sinks[HOURLY].app, None)
    assert pipeline.commits(HOURLY) == [1]


def test_the_error_for_a_closing_that_cannot_commit_names_the_cause(pipeline: StagedPipeline) -> None:
    manifest = pipeline.checkpoint({DAILY: [(1, "a")]})
    damage_retention(pipeline)
    with pytest.raises(UnsupportedTableError, match="setTransactionRetentionDuration"):
        pipeline.close(DAILY, manifest.sinks[DAILY].app, None)
    assert pipeline.commits(DAILY) == []


def test_a_closing_whose_answer_is_lost_happens_once(pipeline: StagedPipeline, monkeypatch: pytest.MonkeyPatch) -> None:
    manifest = pipeline.checkpoint({HOURLY: [(1, "a")]})
    real = OpenTable.commit

    def commit(self: OpenTable, *given: Any, **named: Any) -> None:
        real(self, *given, **named)
        raise OutcomeUnknownError("lost")

    monkeypatch.setattr(OpenTable, "commit", commit)
    pipeline.close(HOURLY, manifest.sinks[HOURLY].app, None)
    assert pipeline.commits(HOURLY) == [2**63 - 1]


def begun_anew(pipeline: StagedPipeline) -> None:
    """Publishes one checkpoint, then completes the first two of an incarnation that replaces its rows."""
    pipeline.checkpoint({HOURLY: [(1, "a b%"), (2, None)], DAILY: [(1, "a")]})
    publish(pipeline.files)
    second = IncarnationId("second")
    pipeline.checkpoint({HOURLY: [(3, "c")], DAILY: []}, publish=Publish.EXTERNAL, incarnation=second, replace=True)
    pipeline.checkpoint({HOURLY: [(4, "d")], DAILY: [(4, "d")]}, publish=Publish.EXTERNAL)


@pytest.mark.parametrize("policy", [Publish.FINAL, Publish.EVERY_CHECKPOINT])
def test_the_first_publication_of_a_replacing_incarnation_replaces_the_rows_of_the_earlier_one(
    pipeline: StagedPipeline, policy: Publish
) -> None:
    begun_anew(pipeline)
    DeltaTable(pipeline.tables[HOURLY]).delete("id = 1")
    for _ in range(2):
        publish(pipeline.files, policy=policy)
    assert pipeline.rows(HOURLY) == [(3, "c"), (4, "d")]
    assert pipeline.rows(DAILY) == [(4, "d")]


def test_a_replacement_that_conflicts_with_another_commit_reads_the_table_again(
    pipeline: StagedPipeline, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun_anew(pipeline)
    real = OpenTable.commit

    def commit(self: OpenTable, *given: Any, **named: Any) -> None:
        monkeypatch.setattr(OpenTable, "commit", real)
        DeltaTable(pipeline.tables[HOURLY]).delete("id = 1")
        with pytest.raises(ConflictError):
            real(self, *given, **named)
        raise ConflictError("looks again")

    monkeypatch.setattr(OpenTable, "commit", commit)
    publish(pipeline.files)
    assert pipeline.rows(HOURLY) == [(3, "c"), (4, "d")]


def test_an_append_only_table_is_not_replaced(pipeline: StagedPipeline) -> None:
    DeltaTable(pipeline.tables[DAILY]).alter.set_table_properties({"delta.appendOnly": "true"})
    begun_anew(pipeline)
    with pytest.raises(UnsupportedTableError, match="appendOnly"):
        publish(pipeline.files)
    assert pipeline.rows(HOURLY) == [(1, "a b%"), (2, None)]


def test_a_publication_reads_each_tables_log_once_and_then_only_its_tail(
    pipeline: StagedPipeline, monkeypatch: pytest.MonkeyPatch
) -> None:
    pipeline.checkpoint({HOURLY: [(1, "a")], DAILY: [(1, "a")]}, publish=Publish.EVERY_CHECKPOINT)
    cached_log.cache_clear()  # like a new process, which has seen no table
    read: list[str] = []
    real = TableLog._read

    def counted(log: TableLog, *given: Any) -> Any:
        read.append(log._table)
        return real(log, *given)

    monkeypatch.setattr(TableLog, "_read", counted)
    publish(pipeline.files)
    assert sorted(read) == sorted(pipeline.tables.values())
    pipeline.checkpoint({HOURLY: [(2, "a")], DAILY: [(2, "a")]}, publish=Publish.EVERY_CHECKPOINT)
    publish(pipeline.files)
    assert len(read) == 2


class NoFiles:
    """Stands in for delta-rs, and fails when it would load the list of a table's files."""

    def __init__(self, *_: Any, **__: Any) -> None:
        raise AssertionError("the list of files was loaded")


def test_an_append_never_loads_the_list_of_files(pipeline: StagedPipeline, monkeypatch: pytest.MonkeyPatch) -> None:
    pipeline.checkpoint({HOURLY: [(1, "a")], DAILY: [(1, "a")]})
    monkeypatch.setattr(delta_rs, "DeltaTable", NoFiles)
    assert publish(pipeline.files)[HOURLY].version == 1


@pytest.fixture
def short_logs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(delta_rs, "_CHECKPOINT_INTERVAL", 2)


def many_published(pipeline: StagedPipeline, checkpoints: int, publishers: Publishers) -> None:
    for number in range(checkpoints):
        pipeline.checkpoint({HOURLY: [(number, "a")]}, publish=Publish.EVERY_CHECKPOINT)
        publish(pipeline.files, publishers=publishers)


def log_checkpoints(pipeline: StagedPipeline) -> list[int]:
    log = path_of(pipeline.tables[HOURLY]) / "_delta_log"
    return sorted(int(path.name[:20]) for path in log.glob("*.checkpoint.parquet"))


@pytest.mark.usefixtures("short_logs")
def test_the_log_of_a_small_table_gets_a_checkpoint_at_its_interval(pipeline: StagedPipeline) -> None:
    many_published(pipeline, 5, WITHOUT_SPARK)
    assert log_checkpoints(pipeline) == [2, 4]
    assert open_table(pipeline.tables[HOURLY]).file_count == 5


@pytest.mark.usefixtures("short_logs")
def test_the_log_of_a_large_table_gets_no_checkpoint_without_a_running_spark(
    pipeline: StagedPipeline, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(transactions, "SMALL_FILES", 2)
    many_published(pipeline, 5, Publishers(pytest.fail))  # a Spark session that would have to be started, and is not
    assert log_checkpoints(pipeline) == [2]


class SparkAtWork(Publishers):
    """Publishers of a driver whose Spark writes checkpoints of logs as soon as the test lets it."""

    def __init__(self) -> None:
        super().__init__(pytest.fail, in_driver=True)
        self.asked: list[str] = []
        self.begun, self.released = Event(), Event()

    def _checkpoint_by_spark(self, uri: str) -> None:
        self.asked.append(uri)
        self.begun.set()
        self.released.wait()


@pytest.mark.usefixtures("short_logs")
def test_spark_writes_the_log_checkpoint_of_a_large_table_in_the_background(
    pipeline: StagedPipeline, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(transactions, "SMALL_FILES", 1)
    publishers = SparkAtWork()
    many_published(pipeline, 5, publishers)
    publishers.begun.wait()
    assert publishers.asked == [pipeline.tables[HOURLY]], "publications go on, and one is enough"
    publishers.released.set()
    publishers.finish()
    many_published(pipeline, 1, publishers)
    publishers.finish()
    assert len(publishers.asked) == 2


@pytest.mark.usefixtures("short_logs")
def test_spark_writes_the_log_checkpoint_of_a_table_to_which_only_spark_can_commit(
    pipeline: StagedPipeline, monkeypatch: pytest.MonkeyPatch
) -> None:
    many_published(pipeline, 2, WITHOUT_SPARK)
    log = path_of(pipeline.tables[HOURLY]) / "_delta_log"
    for path in log.glob("*.checkpoint.parquet"):
        path.unlink()
    (log / "_last_checkpoint").unlink()
    cached_log.cache_clear()
    monkeypatch.setattr(OpenTable, "obstacles", lambda *_: ["row tracking"])
    publishers = SparkAtWork()
    publishers.released.set()
    publishers.keep_log_short(open_table(pipeline.tables[HOURLY]))
    publishers.finish()
    assert (publishers.asked, log_checkpoints(pipeline)) == ([pipeline.tables[HOURLY]], [])


@pytest.mark.usefixtures("short_logs")
def test_a_driver_writes_the_log_checkpoint_of_a_small_table_in_the_background(
    pipeline: StagedPipeline, monkeypatch: pytest.MonkeyPatch
) -> None:
    released, create = Event(), DeltaTable.create_checkpoint

    def waits(table: DeltaTable) -> None:
        released.wait()
        create(table)

    monkeypatch.setattr(DeltaTable, "create_checkpoint", waits)
    publishers = Publishers(pytest.fail, in_driver=True)
    many_published(pipeline, 2, publishers)
    assert log_checkpoints(pipeline) == []
    released.set()
    publishers.finish()
    assert log_checkpoints(pipeline) == [2]


@pytest.mark.usefixtures("short_logs")
def test_log_checkpoints_are_written_when_all_tables_are_public(
    pipeline: StagedPipeline, monkeypatch: pytest.MonkeyPatch
) -> None:
    public: list[dict[SinkName, list[int]]] = []
    monkeypatch.setattr(DeltaTable, "create_checkpoint", lambda _: public.append(published(pipeline)))
    for number in range(2):
        pipeline.checkpoint({HOURLY: [(number, "a")], DAILY: [(number, "a")]})
        publish(pipeline.files)
    assert public == [{HOURLY: [1, 2], DAILY: [1, 2]}] * 2


@pytest.mark.usefixtures("short_logs")
def test_a_failed_log_checkpoint_does_not_fail_the_publication(
    pipeline: StagedPipeline, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fails(_: DeltaTable) -> None:
        raise OSError("No space left on device (os error 28)")

    monkeypatch.setattr(DeltaTable, "create_checkpoint", fails)
    many_published(pipeline, 3, WITHOUT_SPARK)
    assert len(pipeline.rows(HOURLY)) == 3
    assert "no checkpoint of the log of table" in caplog.text


EVENTS = st.lists(
    st.one_of(
        st.tuples(st.just("checkpoint"), st.sampled_from(list(Publish)), st.sampled_from(list(CheckpointKind))),
        st.tuples(st.just("publish"), st.booleans()),
    ),
    max_size=8,
)


@settings(max_examples=20)
@given(events=EVENTS)
@pytest.mark.slow
def test_each_row_is_public_once_after_any_history_of_publications(
    events: list[tuple[Any, ...]], tmp_path_factory: pytest.TempPathFactory
) -> None:
    pipeline = StagedPipeline(MemoryFiles(), tmp_path_factory.mktemp("t"))
    pipeline.make_table(HOURLY)
    staged: list[tuple[int, str | None]] = []
    due = 0  # the highest checkpoint that must be public
    for event in events:
        head = pipeline.store.head()
        if event[0] == "checkpoint":
            row = (len(staged), f"day {len(staged) % 2}")
            pipeline.checkpoint({HOURLY: [row]}, publish=event[1], checkpoint_kind=event[2])
            staged.append(row)
        elif head is not None:
            policy, by_policy = head.sinks[HOURLY].publish, event[1]
            final = head.checkpoint_kind is CheckpointKind.FINAL
            try:
                publish(pipeline.files, by_policy=by_policy)
            except RejectedError:
                assert policy is Publish.FINAL
                assert not final
            if {Publish.FINAL: final, Publish.EVERY_CHECKPOINT: True, Publish.EXTERNAL: not by_policy}[policy]:
                due = head.checkpoint
        assert pipeline.rows(HOURLY) == sorted(staged[:due], key=str)
    commits = pipeline.commits(HOURLY)
    assert commits == sorted(set(commits))
