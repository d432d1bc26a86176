"""A file of the newest checkpoint's state is damaged. The state is computed again, and no row is staged or published twice."""

import json
import logging
import re
from collections import Counter, defaultdict
from functools import partial
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import write_deltalake
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from spark_jobs import CheckpointSettings, DeltaSink, Pipeline
from spark_jobs.checkpoint.checkpoint_store import CheckpointStore
from spark_jobs.protocol.errors import CorruptDocumentError
from spark_jobs.protocol.ids import StageName
from spark_jobs.protocol.stage_cut import StateFile
from spark_jobs.publication.verification import named_by_home
from spark_jobs.runtime.stages import replay
from spark_jobs.storage.local import LocalFiles
from spark_jobs.storage.open import open_files
from tests.spark.conftest import Site
from tests.spark.rows import answer, assert_same, public, public_count
from tests.support.damage import flip, flipped
from tests.support.growing_table import Events, bounded_at_night
from tests.support.running import Running, lose
from tests.support.running_minutes import all_minutes, closed_minutes, events
from tests.support.staged_pipeline import path_of

__all__ = ["events"]

pytestmark = pytest.mark.spark
MINUTES = StageName("minutes")
STAGED = re.compile(r"[0-9a-f]{16}-\d+-")


def pipeline_of(site: Site, events: Events, retained: int = 3) -> Pipeline:
    """Declares a stage without a sink, windows, and an upsert behind the first one.

    The windows read the first stage. If the input ends, they read the input, because a stage that reads another begins after its end.
    """
    pipeline = Pipeline("damaged", checkpoint=CheckpointSettings(interval="1 second", retained=retained))
    events.source(pipeline)

    @pipeline.stage
    def copied(events: DataFrame) -> DataFrame:
        return events.select("id", "at")

    @pipeline.stage(sink=DeltaSink(str(site.tables / "minutes")), inputs={"rows": "events" if events.bounded else "copied"})
    def minutes(rows: DataFrame) -> DataFrame:
        counts = rows.groupBy(F.window("at", "1 minute").alias("minute")).agg(F.count("*").alias("events"))
        return counts.select(F.col("minute.start").alias("minute"), "events")

    @pipeline.stage(sink=DeltaSink(str(site.tables / "newest"), mode="upsert", keys=["key"], sequence_by="id"))
    def newest(copied: DataFrame) -> DataFrame:
        return copied.select((F.col("id") % 7).alias("key"), "id")

    return pipeline


def newest_answer(site: Site, rows: int) -> DataFrame:
    return site.spark.range(rows).groupBy((F.col("id") % 7).alias("key")).agg(F.max("id").alias("id"))


def wait_for_answer(site: Site, running: Running, rows: int) -> None:
    running.until(lambda: public_count(site.tables / "minutes") == closed_minutes(site, rows).count())
    running.until(lambda: public(site.tables / "newest", ["id"]) == answer(newest_answer(site, rows).select("id")))


def has_cut_after(running: Running, batch: int) -> bool:
    return running.head().stages[MINUTES].batch > batch


def run_with_checkpoints(site: Site, pipeline: Pipeline, events: Events, more: int = 4) -> None:
    with Running(site.spark, pipeline, site.home) as running:
        for _ in range(more):
            if events.bounded:
                running.until(lambda: bool(running.store.ids()))
                before = running.head().stages[MINUTES].batch
                events.add(70)
                running.until(partial(has_cut_after, running, before))
            else:
                events.add(70)
                wait_for_answer(site, running, events.rows)
        running.until(running.is_quiet)


def of_the_newest_alone(site: Site) -> StateFile:
    """Returns a file of state that no older checkpoint needs."""
    *older, head = CheckpointStore(open_files(str(site.home))).manifests()
    others = {file.stored for manifest in older for file in manifest.stages[MINUTES].files}
    return next(file for file in head.stages[MINUTES].files if file.path.endswith(".changelog") and file.stored not in others)


def staged_files(site: Site) -> dict[str, set[str]]:
    """Returns the staged Parquet files by stage and batch. Their names begin with both."""
    found: dict[str, set[str]] = defaultdict(set)
    for directory in (site.tables, site.home / "channels"):
        for path in directory.rglob("*.parquet"):
            if staged := STAGED.match(path.name):
                found[staged[0]].add(path.name)
    return found


def publications(site: Site) -> list[tuple[str, int]]:
    """Returns the checkpoint of each publication into a table, from the tables' own logs."""
    found = []
    for sink, cut in site.manifest().sinks.items():
        for version in sorted((path_of(cut.table) / "_delta_log").glob("*.json")):
            actions = map(json.loads, version.read_text().splitlines())
            found += [
                (str(sink), action["txn"]["version"]) for action in actions if action.get("txn", {}).get("appId") == cut.app
            ]
    return found


@bounded_at_night
@pytest.mark.parametrize("work", ["stays", pytest.param("is lost", marks=pytest.mark.nightly)])
def test_the_state_of_a_file_that_is_damaged_in_all_copies_is_computed_again(
    site: Site, events: Events, caplog: pytest.LogCaptureFixture, work: str
) -> None:
    events.later(*[70] * 5)
    pipeline = pipeline_of(site, events)
    run_with_checkpoints(site, pipeline, events)
    file = of_the_newest_alone(site)
    assert (site.home / file.stored).stat().st_nlink > 1, "the home and the work directory share it"
    flip(site.home / file.stored)
    if work == "is lost":
        lose(site.home / "work")
    before = staged_files(site)
    events.add(70)
    events.end()
    with caplog.at_level(logging.INFO, replay.__name__), Running(site.spark, pipeline, site.home) as running:
        if events.bounded:
            running.stopped()
        else:
            wait_for_answer(site, running, events.rows)
    assert [message for message in caplog.messages if "stage minutes: its state is computed again" in message]
    minutes = all_minutes if events.bounded else closed_minutes
    assert_same(public(site.tables / "minutes"), answer(minutes(site, events.rows)))
    assert_same(public(site.tables / "newest"), answer(newest_answer(site, events.rows)))
    after = staged_files(site)
    again = {batch for batch in before.keys() & after.keys() if after[batch] - before[batch]}
    assert not again, "batches were staged twice"
    assert before.keys() & after.keys(), "files of batches before the damage are still there"
    assert max(Counter(publications(site)).values()) == 1, "a checkpoint was published twice"


@pytest.mark.nightly
def test_the_error_for_a_damaged_file_that_every_checkpoint_needs_names_the_file_and_a_remedy(site: Site, events: Events) -> None:
    pipeline = pipeline_of(site, events, retained=1)
    run_with_checkpoints(site, pipeline, events, more=2)
    head = site.manifest()
    parent = CheckpointStore(open_files(str(site.home))).manifests()[0]
    shared = {file.stored for file in parent.stages[MINUTES].files}
    file = next(file for file in head.stages[MINUTES].files if file.stored in shared and file.path.endswith(".changelog"))
    flip(site.home / file.stored)
    with Running(site.spark, pipeline, site.home) as running:
        error = running.ends()
    assert isinstance(error, CorruptDocumentError)
    assert file.stored in error.failed
    assert str(parent.checkpoint) in error.exists
    assert "--restore" in error.remedy


def test_every_flipped_byte_in_a_log_of_the_runtimes_own_tables_is_found(site: Site, tmp_path: Path) -> None:
    """No document has the hashes of these files. Without Spark, nothing but the runtime writes a checksum."""
    write_deltalake(str(tmp_path / "events"), pa.table({"key": [1, 2], "id": [1, 2]}))
    pipeline = Pipeline("damaged")
    pipeline.source(name="events", bounded=True)(lambda spark: spark.readStream.format("delta").load(str(tmp_path / "events")))
    pipeline.stage(name="copied")(lambda events: events)
    merged = DeltaSink(str(site.tables / "newest"), mode="upsert", keys=["key"], sequence_by="id", apply_as_deletes="id > 9")
    pipeline.stage(name="newest", sink=merged)(lambda copied: copied)
    site.run(pipeline)
    home = LocalFiles(site.home)
    logs = [path for path in site.home.glob("[!w]*/**/_delta_log/*") if path.is_file() and not path.name.startswith(".")]
    assert {path.relative_to(site.home).parts[0] for path in logs} == {"channels", "tombstones"}
    assert named_by_home(home).verify() == []
    for path in logs:
        for at in {0, path.stat().st_size // 2, path.stat().st_size - 1}:
            with flipped(path, at):
                assert path.as_uri() in [error.evidence["path"] for error in named_by_home(home).verify()]
