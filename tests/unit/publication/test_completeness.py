"""The event time up to which a public table is complete."""

import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from spark_jobs.protocol.errors import RejectedError
from spark_jobs.protocol.ids import SinkName
from spark_jobs.publication.completeness import complete_until
from spark_jobs.publication.publisher import publish
from spark_jobs.storage.open import open_files
from tests.support.pages import ROOT, files
from tests.support.staged_pipeline import HOURLY, StagedPipeline
from tests.support.watermarked_checkpoints import at, ms, take

END_OF_TIME_MS = 253_402_300_799_000


@pytest.fixture
def pipeline(tmp_path: Path) -> StagedPipeline:
    found = StagedPipeline(open_files(str(tmp_path / "home")), tmp_path)
    found.make_table(HOURLY)
    return found


def found(pipeline: StagedPipeline) -> tuple[int, datetime] | None:
    complete = complete_until(pipeline.files, HOURLY)
    return None if complete is None else (complete.checkpoint, complete.time)


def test_a_home_without_a_checkpoint_is_complete_at_no_time(pipeline: StagedPipeline) -> None:
    assert found(pipeline) is None


def test_the_watermark_of_a_checkpoint_counts_once_the_checkpoint_is_public(pipeline: StagedPipeline) -> None:
    take(pipeline, at(10))
    assert found(pipeline) is None
    publish(pipeline.files)
    assert found(pipeline) == (1, at(10))
    take(pipeline, at(12))
    assert found(pipeline) == (1, at(10))
    publish(pipeline.files)
    assert found(pipeline) == (2, at(12))


def test_a_watermark_that_no_batch_has_seen_yet_does_not_count(pipeline: StagedPipeline) -> None:
    """The windows that it closes are emitted by the next batch, after the checkpoint."""
    take(pipeline, at(10), following=at(12))
    publish(pipeline.files)
    assert found(pipeline) == (1, at(10))


def test_a_watermark_that_a_restore_has_set_back_does_not_count(pipeline: StagedPipeline) -> None:
    take(pipeline, at(12), following=at(10))
    publish(pipeline.files)
    assert found(pipeline) == (1, at(10))


@pytest.mark.parametrize(("before", "expected"), [(at(10), (1, at(10))), (None, None)])
def test_a_drained_table_is_complete_up_to_the_newest_event_and_no_further(
    pipeline: StagedPipeline, before: datetime | None, expected: tuple[int, datetime] | None
) -> None:
    before_ms = None if before is None else ms(before)
    drained: dict[str, Any] = {"drained": True, "drain_batches": 1, "watermark_before_drain_ms": before_ms, "files": ()}
    take(pipeline, None, applied_watermark_ms=END_OF_TIME_MS, watermark_ms=END_OF_TIME_MS, **drained)
    publish(pipeline.files)
    assert found(pipeline) == expected


def said_by_the_table(pipeline: StagedPipeline) -> list[str | None]:
    """Returns the time in each publication's own commit, the newest first."""
    history = DeltaTable(pipeline.tables[HOURLY]).history()
    return [json.loads(each["userMetadata"]).get("complete_until") for each in history if "userMetadata" in each]


def test_each_commit_of_a_publication_has_the_time_up_to_which_the_table_is_complete(pipeline: StagedPipeline) -> None:
    for applied, following, changes in (
        (None, None, {}),
        (at(10), at(12), {}),
        (at(12), at(12), {"files": ()}),  # without state nothing drops late rows
        (at(13), at(13), {}),
    ):
        take(pipeline, applied, following, **changes)
        publish(pipeline.files)
    assert said_by_the_table(pipeline) == ["2026-01-01T13:00:00+00:00", None, "2026-01-01T10:00:00+00:00", None]
    assert DeltaTable(pipeline.tables[HOURLY]).version() == 4


def test_the_time_in_a_publication_does_not_conflict_with_a_concurrent_append(pipeline: StagedPipeline) -> None:
    """A publication with a table property would make it fail."""
    begun = DeltaTable(pipeline.tables[HOURLY])
    take(pipeline, at(10))
    publish(pipeline.files)
    write_deltalake(begun, pa.table({"id": [9], "day": ["x"]}), mode="append")
    assert pipeline.rows(HOURLY) == [(1, "monday"), (9, "x")]


def test_the_code_of_the_guide_reads_the_time_from_the_table(pipeline: StagedPipeline) -> None:
    guide: dict[str, Any] = {}
    exec(files(ROOT / "docs/how-to/finished-hours.md")["complete_until.py"], guide)

    def read() -> datetime | None:
        return guide["complete_until"](pipeline.tables[HOURLY], "hourly")  # type: ignore[no-any-return]

    assert read() is None
    take(pipeline, at(10))
    publish(pipeline.files)
    DeltaTable(pipeline.tables[HOURLY]).optimize.compact()
    assert read() == at(10)
    take(pipeline, at(12), files=())
    publish(pipeline.files)
    assert read() is None


@pytest.mark.parametrize("applied", [None, datetime(1970, 1, 1, tzinfo=UTC)])
def test_a_table_without_a_watermark_is_complete_at_no_time(pipeline: StagedPipeline, applied: datetime | None) -> None:
    take(pipeline, applied)
    publish(pipeline.files)
    assert found(pipeline) is None


def test_a_table_with_late_rows_is_refused(pipeline: StagedPipeline) -> None:
    take(pipeline, at(10), files=())
    publish(pipeline.files)
    with pytest.raises(RejectedError, match="keeps no state"):
        complete_until(pipeline.files, HOURLY)


def test_an_unknown_sink_is_refused(pipeline: StagedPipeline) -> None:
    take(pipeline, at(10))
    with pytest.raises(RejectedError, match="Its sinks are hourly"):
        complete_until(pipeline.files, SinkName("weekly"))
