"""The log of a table shows which rows are ours. A replacement keeps the rows of other writers."""

from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from spark_jobs.checkpoint.carried import carried
from spark_jobs.protocol.documents import CheckpointKind, Manifest, Publish, SinkMode
from spark_jobs.protocol.errors import UnsupportedTableError
from spark_jobs.protocol.ids import CheckpointId, IncarnationId, PipelineUuid, StageName
from spark_jobs.publication.delta_rs import log_of, open_table, rows_by_file
from spark_jobs.publication.ownership import rows_of_others
from spark_jobs.publication.publisher import publish
from tests.support.staged_pipeline import DAILY, PIPELINE, SCHEMA, StagedPipeline, a_stage_cut, path_of


@pytest.fixture
def published(pipeline: StagedPipeline) -> StagedPipeline:
    """A table with two rows that we have published."""
    pipeline.checkpoint({DAILY: [(1, "a"), (2, "b")]}, publish=Publish.EVERY_CHECKPOINT)
    publish(pipeline.files)
    return pipeline


def others(pipeline: StagedPipeline, *prefixes: str) -> int:
    uri = pipeline.tables[DAILY]
    return rows_of_others(log_of(uri).commits(), rows_by_file(uri), PIPELINE, prefixes)


def insert(pipeline: StagedPipeline, *rows: tuple[int, str]) -> None:
    ids, days = zip(*rows, strict=True)
    write_deltalake(pipeline.tables[DAILY], pa.table({"id": list(ids), "day": list(days)}, SCHEMA), mode="append")


def compact(table: DeltaTable) -> None:
    table.optimize.compact()


def delete(table: DeltaTable) -> None:
    table.delete("id = 1")


def update(table: DeltaTable) -> None:
    table.update({"day": "'x'"}, predicate="id = 1")


def merge(table: DeltaTable) -> None:
    rows = pa.table({"id": [1, 7], "day": ["m", "m"]}, SCHEMA)
    merging = table.merge(rows, "t.id = s.id", source_alias="s", target_alias="t")
    merging.when_matched_update_all().when_not_matched_insert_all().execute()


@pytest.mark.parametrize("rewrite", [compact, delete, update])
def test_own_rows_that_other_writers_have_rewritten_stay_own_rows(
    published: StagedPipeline, rewrite: Callable[[DeltaTable], None]
) -> None:
    published.checkpoint({DAILY: [(3, "c")]}, publish=Publish.EVERY_CHECKPOINT)
    publish(published.files)
    rewrite(DeltaTable(published.tables[DAILY]))
    assert others(published) == 0


def test_rows_that_other_writers_have_added_are_counted(published: StagedPipeline) -> None:
    insert(published, (3, "c"), (4, "d"), (5, "e"))
    assert others(published) == 3
    compact(DeltaTable(published.tables[DAILY]))
    assert others(published) == 5, "nobody can tell them apart any more"
    DeltaTable(published.tables[DAILY]).delete()
    assert others(published) == 0


def test_all_rows_that_a_merge_of_another_writer_has_written_count_as_foreign(published: StagedPipeline) -> None:
    merge(DeltaTable(published.tables[DAILY]))
    assert others(published) == 2, "the file that it has rewritten"


def test_a_file_whose_commit_was_cleaned_is_known_by_its_name(published: StagedPipeline) -> None:
    insert(published, (3, "c"))
    clean_log(published)
    manifest = published.store.head()
    assert manifest is not None
    lines = published.store.read_actions(manifest.sinks[DAILY])
    assert others(published) == 3
    assert others(published, *(line["add"]["path"][:12] for line in lines)) == 1


def test_a_table_remembers_every_incarnation_that_has_published_into_it(published: StagedPipeline) -> None:
    begun_anew(published)
    publish(published.files)
    table = open_table(published.tables[DAILY])
    assert table.incarnations(PIPELINE) == ["first", "second"]
    assert table.incarnations(PipelineUuid("another")) == []


def clean_log(pipeline: StagedPipeline) -> None:
    """Deletes all commits before a checkpoint of the table's log."""
    DeltaTable(pipeline.tables[DAILY]).create_checkpoint()
    log = path_of(pipeline.tables[DAILY]) / "_delta_log"
    for commit in sorted(log.glob("*.json"))[:-1]:
        commit.unlink()


def begun_anew(pipeline: StagedPipeline, mode: SinkMode = SinkMode.APPEND, **how: Any) -> Manifest:
    second = IncarnationId("second")
    cut = {"mode": mode, "replaces_own": True}
    return pipeline.checkpoint(
        {DAILY: [(9, "z")]}, incarnation=second, replace=True, cut=cut, **{"publish": Publish.EXTERNAL} | how
    )


def test_a_replacement_by_many_checkpoints_finds_its_own_rows_although_the_log_was_cleaned(published: StagedPipeline) -> None:
    published.checkpoint({DAILY: []}, publish=Publish.EVERY_CHECKPOINT)
    publish(published.files)
    clean_log(published)
    assert others(published) == 2, "the log alone does not tell"
    stages = {StageName(DAILY): a_stage_cut(1)}
    first = begun_anew(published, publish=Publish.FINAL, checkpoint_kind=CheckpointKind.PERIODIC, stages=stages)
    before = carried(published.store, CheckpointId(first.checkpoint + 1), first, DAILY, None)
    published.checkpoint({DAILY: [(10, "y")]}, round=first.round, cut={"carried": tuple(before)})
    publish(published.files, by_policy=True)
    assert published.rows(DAILY) == [(10, "y"), (9, "z")]


def refused_until_the_row_is_gone(published: StagedPipeline) -> str:
    """Publishes after another writer has added a row, then publishes again without that row. Returns the remedy of the refusal."""
    insert(published, (3, "c"))
    with pytest.raises(UnsupportedTableError, match="1 rows that this pipeline has not published") as refused:
        publish(published.files)
    assert published.rows(DAILY) == [(1, "a"), (2, "b"), (3, "c")]
    DeltaTable(published.tables[DAILY]).delete("id = 3")
    publish(published.files)
    return refused.value.remedy


def test_a_replacement_is_refused_if_other_writers_have_added_rows_before(published: StagedPipeline) -> None:
    begun_anew(published)
    assert "--on-rewind keep" in refused_until_the_row_is_gone(published)
    assert published.rows(DAILY) == [(9, "z")]


def test_the_first_complete_result_keeps_rows_of_other_writers_and_a_later_one_replaces_them(published: StagedPipeline) -> None:
    begun_anew(published, SinkMode.COMPLETE)
    assert "give the sink another table" in refused_until_the_row_is_gone(published)
    insert(published, (3, "c"))
    begun_anew(published, SinkMode.COMPLETE)
    publish(published.files)
    assert published.rows(DAILY) == [(9, "z")]


def test_a_replacement_keeps_rows_that_other_writers_add_while_it_is_made(
    published: StagedPipeline, monkeypatch: pytest.MonkeyPatch
) -> None:
    came = list[bool]()

    def then_somebody_inserts(uri: str) -> dict[str, int]:
        found = rows_by_file(uri)
        if len(came) < 2:
            came.append(True)
            if len(came) == 2:  # after the check, and before the transaction
                insert(published, (3, "c"))
        return found

    monkeypatch.setattr("spark_jobs.publication.transactions.rows_by_file", then_somebody_inserts)
    begun_anew(published)
    with pytest.raises(UnsupportedTableError, match="1 rows"):
        publish(published.files)
    assert published.rows(DAILY) == [(1, "a"), (2, "b"), (3, "c")]
