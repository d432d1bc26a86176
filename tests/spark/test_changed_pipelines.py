"""A pipeline changes between two rounds: a new or dropped stage, another source, another partition_by. A plain run goes on."""

import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import write_deltalake
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from spark_jobs import CheckpointSettings, DeltaSink, Pipeline
from spark_jobs.checkpoint.savepoint import verify
from spark_jobs.cli.dry_run import plan_answer, plan_text
from spark_jobs.control.liveness import holding
from spark_jobs.home.layout import DRIVER_LOCK
from spark_jobs.protocol.documents import CheckpointKind, Manifest
from spark_jobs.protocol.errors import HomeInUseError, RejectedError, StreamPipelineError, UnsupportedTableError
from spark_jobs.protocol.ids import SinkName
from spark_jobs.protocol.start_requests import StartOptions
from spark_jobs.runtime.launch import plan
from spark_jobs.runtime.stages.stage import StageRun
from spark_jobs.runtime.start.start_plan import StartPlan
from spark_jobs.runtime.tables.table_places import TablePlace
from spark_jobs.storage.open import open_files
from tests.spark.conftest import Site
from tests.spark.rows import answer, assert_same, public, public_count
from tests.support.command_line import spark_jobs
from tests.support.crashes import contents
from tests.support.growing_table import BOUNDED, Events, events_of
from tests.support.pipeline_code import code
from tests.support.running import Running
from tests.support.running_minutes import closed_minutes, ids
from tests.support.shop import ALL, HOURS, Shop, documents
from tests.support.start_decisions import request as asked
from tests.support.stopped_pipelines import has_staged, stopped

pytestmark = pytest.mark.spark


@pytest.fixture
def shop(site: Site) -> Shop:
    made = Shop(site)
    made.deliver()
    return made


def test_a_new_stage_begins_at_the_beginning_of_its_source_and_the_others_go_on(shop: Shop) -> None:
    shop.run(shop.pipeline("orders", "hourly"))
    open_hours = 24 - (public_count(shop.site.tables / "hourly") or 0)
    assert open_hours > 0, "a window has to be open while the pipeline changes"
    shop.deliver()
    shop.run(shop.pipeline(*ALL))
    shop.assert_kind("orders", "order")
    shop.assert_kind("refunds", "refund")
    taken = shop.site.home / "savepoints" / "checkpoint-1"
    assert verify(open_files(str(taken))).checkpoint == 1
    shop.deliver()
    shop.run(shop.pipeline(*ALL), on_end="drain")
    shop.assert_kind("orders", "order")
    shop.assert_kind("refunds", "refund")
    shop.assert_hours()
    assert len(list(taken.parent.iterdir())) == 1, "a round of unchanged code takes no savepoint"


def test_stores_of_known_tables_are_tried_after_the_sources_are_checked_and_those_of_new_tables_after_the_plan(
    shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    tried = list[tuple[list[str], bool]]()

    def check_stores(_: object, places: Mapping[SinkName, TablePlace], *, are_known: bool = False) -> None:
        tried.append((sorted(places), are_known))

    def refuse(*_: object) -> None:
        raise RejectedError("A table is in the folder of a source.")

    monkeypatch.setattr("spark_jobs.runtime.application.check_stores", check_stores)
    shop.run(shop.pipeline("orders"))
    assert tried == [(["orders"], False)]
    tried.clear()
    shop.deliver()
    with monkeypatch.context() as refused:
        refused.setattr("spark_jobs.runtime.start_planner.check_sources", refuse)
        shop.refused(shop.pipeline("orders", "refunds"))
    assert not tried
    shop.run(shop.pipeline("orders", "refunds"))
    assert tried == [(["orders"], True), (["refunds"], False)]


def test_a_new_stage_reads_a_new_source_from_its_beginning(shop: Shop) -> None:
    shop.run(shop.pipeline("hourly"))
    shop.deliver()
    shop.run(shop.pipeline("paid", "hourly"), on_end="drain")
    assert_same(public(shop.site.tables / "paid"), shop.batch("SELECT paid FROM payments"))
    shop.assert_hours()


def test_a_removed_stage_is_dropped_only_if_the_run_allows_it(shop: Shop) -> None:
    shop.run(shop.pipeline(*ALL, "paid"))
    refunds = public(shop.site.tables / "refunds")
    shop.deliver()
    error = shop.refused(shop.pipeline("orders", "hourly"))
    assert "Checkpoint 1 has state of stages that the pipeline no longer has: paid, refunds" in error.failed
    shop.run(shop.pipeline("orders", "hourly"), allow_dropped=True)
    assert public(shop.site.tables / "refunds") == refunds
    shop.deliver()
    shop.run(shop.pipeline("orders", "hourly"), on_end="drain")
    shop.assert_kind("orders", "order")
    shop.assert_hours()


@pytest.mark.nightly
def test_a_dropped_stage_that_is_added_again_is_a_new_stage(shop: Shop) -> None:
    """Rows published under the stage's name stay: a sweep does not take them for unnamed files."""
    shop.run(shop.pipeline("orders", "paid"))
    first = public(shop.site.tables / "paid")
    shop.run(shop.pipeline("orders"), allow_dropped=True)
    shop.deliver()
    error = shop.refused(shop.pipeline("orders", "paid"))
    assert "Stage 'paid' is new" in error.failed
    assert "has 36 rows that this pipeline published before" in error.failed
    shop.begin["paid"] = "now"
    for _ in range(3):
        shop.run(shop.pipeline("orders", "paid"))
    assert public(shop.site.tables / "paid") == first
    shop.deliver()
    shop.run(shop.pipeline("orders", "paid"))
    third = shop.batch(f"SELECT paid FROM payments WHERE paid >= {2 * 36 * 40}")
    assert_same(public(shop.site.tables / "paid"), first + third)
    shop.assert_kind("orders", "order")


class TestAStageThatBeginsNow:
    """Such a stage reads only rows that come after those that the pipeline has read before."""

    @pytest.mark.parametrize("form", ["delta", pytest.param("parquet", marks=pytest.mark.nightly)])
    def test_counts_only_later_rows_in_its_windows(self, shop: Shop, form: str) -> None:
        shop.form, shop.begin["hourly"] = form, "now"
        shop.run(shop.pipeline("orders"))
        for _ in range(2):
            shop.run(shop.pipeline("orders", "hourly"))  # with no new rows
        shop.deliver()
        shop.run(shop.pipeline("orders", "hourly"))
        shop.deliver()
        shop.run(shop.pipeline("orders", "hourly"), on_end="drain")
        since = HOURS.replace("FROM events", f"FROM events WHERE id >= {36 * 40}")
        assert_same(public(shop.site.tables / "hourly"), shop.batch(since))
        shop.assert_kind("orders", "order")

    def test_reads_its_source_from_the_beginning_in_the_first_run(self, shop: Shop) -> None:
        shop.begin["hourly"] = "now"
        shop.run(shop.pipeline("orders", "hourly"), on_end="drain")
        shop.assert_hours()

    def test_reads_a_source_from_the_beginning_if_it_was_replaced_before_the_first_row(self, shop: Shop) -> None:
        shop.begin["paid"] = "now"
        shop.run(shop.pipeline("orders"))
        shop.run(shop.pipeline("orders", "paid"))
        shutil.rmtree(shop.payments)
        write_deltalake(shop.payments, pa.table({"paid": [7, 8]}))
        shop.run(shop.pipeline("orders", "paid"), new_sources=["payments"])
        assert public(shop.site.tables / "paid") == {(7,): 1, (8,): 1}

    @pytest.mark.nightly
    def test_keeps_its_starting_point_in_each_source_until_it_has_read_a_row(self, shop: Shop) -> None:
        def pipeline() -> Pipeline:
            made = shop.pipeline("orders")
            made.source(bounded=True, name="payments")(shop._reading(shop.payments))
            sink = DeltaSink(str(shop.site.tables / "both"))
            both = made.stage(sink=sink, name="both", begin="now")
            both(lambda events, payments: events.select("id").union(payments.select("paid")))
            return made

        shop.run(shop.pipeline("orders"))
        shop.run(pipeline())
        row = {"id": [5000], "at": pa.array([3 * 86400 * 1_000_000], pa.timestamp("us", "UTC")), "kind": ["order"]}
        write_deltalake(shop.events, pa.table(row), mode="append")
        shop.run(pipeline())
        write_deltalake(shop.payments, pa.table({"paid": [6000]}), mode="append")
        shop.run(pipeline())
        assert public(shop.site.tables / "both") == {(5000,): 1, (6000,): 1}

    def test_reads_the_next_rows_of_a_live_source(self, site: Site, tmp_path: Path) -> None:
        events = Events(tmp_path / "events")
        events.add(150)
        with Running(site.spark, code(site, events, "copied"), site.home) as running:
            running.until(lambda: len(ids(site, "copied")) == 151)
            spark_jobs("stop", "--home", site.home)
            running.stopped()
        changed = code(site, events, "copied")
        sink = DeltaSink(str(site.tables / "everything"))
        changed.stage(sink=sink, name="everything", begin="now")(lambda events: events.select("id"))
        with Running(site.spark, changed, site.home) as running:
            running.until(lambda: running.status is not None and "everything" in running.status.stages)
            running.until(lambda: running.store.head() is not None and "everything" in running.head().stages)
            events.add(100)
            running.until(lambda: len(ids(site, "copied")) == 251 and len(ids(site, "everything")) == 100)
        assert ids(site, "everything") == list(range(151, 251))


def test_a_stage_whose_state_does_not_fit_is_refused_by_name(shop: Shop) -> None:
    shop.run(shop.pipeline("orders", "hourly"))
    other = Pipeline("shop", on_end="suspend")
    other.source(bounded=True, name="payments")(shop._reading(shop.payments))
    other.stage(sink=DeltaSink(str(shop.site.tables / "orders")), name="orders")(lambda payments: payments)
    error = shop.refused(other, allow_dropped=True)
    assert isinstance(error, RejectedError)
    assert "checkpoint 1: orders cannot go on: it read events and reads payments" in error.failed
    assert "Run the earlier code" in error.remedy


def test_rows_that_wait_for_an_external_publication_have_to_be_published_before_the_change(shop: Shop) -> None:
    def pipeline(*stages: str) -> Pipeline:
        return shop.pipeline(*stages, orders={"publish": "external"})

    shop.run(pipeline("orders", "hourly"))
    shop.deliver()
    error = shop.refused(pipeline("orders", "hourly", "refunds"))
    assert f"spark-jobs publish --home {shop.site.home.as_uri()} --checkpoint 1." in error.remedy
    assert spark_jobs("publish", "--home", shop.site.home, "--checkpoint", 1).exit_code == 0
    shop.run(pipeline("orders", "hourly", "refunds"))
    assert spark_jobs("publish", "--home", shop.site.home).exit_code == 0
    shop.assert_kind("orders", "order")
    shop.assert_kind("refunds", "refund")


class TestAnotherPartitionBy:
    """Delta cannot change the partitioning in place."""

    @pytest.mark.parametrize(
        "mode", ["append", *(pytest.param(mode, marks=pytest.mark.nightly) for mode in ("upsert", "history"))]
    )
    def test_is_refused_before_anything_is_written_and_accepted_once_the_table_was_rewritten(self, shop: Shop, mode: str) -> None:
        """The rewrite keeps the property that the sink declares, and a constraint that a person has added."""
        sink: dict[str, Any] = {"table_properties": {"delta.logRetentionDuration": "interval 60 days"}}
        if mode != "append":
            sink |= {"mode": mode, "keys": ["id"], "sequence_by": "at"}
        shop.run(shop.pipeline("orders", "hourly", orders=sink))
        shop.site.spark.sql(f"ALTER TABLE delta.`{shop.site.tables}/orders` ADD CONSTRAINT ids CHECK (id >= 0)")
        shop.deliver()
        changed = shop.pipeline("orders", "hourly", orders=sink | {"partition_by": ["kind"]})
        assert isinstance(shop.refused(changed, fresh=True, on_rewind="replace"), UnsupportedTableError)
        error = shop.refused(changed)
        assert isinstance(error, UnsupportedTableError)
        statement = error.remedy[error.remedy.index("spark.read") :].rstrip(".")
        eval(statement, {"spark": shop.site.spark})  # as a person would type it
        shop.run(changed)
        shop.deliver()
        shop.run(changed, on_end="drain")
        (table,) = shop.site.spark.sql(f"DESCRIBE DETAIL delta.`{shop.site.tables}/orders`").collect()
        assert table["partitionColumns"] == ["kind"]
        assert {"delta.logRetentionDuration", "delta.constraints.ids"} <= table["properties"].keys()
        shop.assert_kind("orders", "order")
        shop.assert_hours()

    def test_is_accepted_if_the_sink_gets_another_table(self, shop: Shop) -> None:
        shop.run(shop.pipeline("orders"))
        shop.deliver()
        made = Pipeline("shop", on_end="suspend")
        own: dict[str, Any] = {"event_time": "at", "watermark_delay": "90 minutes", "hold_watermark": True}
        made.source(bounded=True, name="events", **own)(shop._reading(shop.events))
        sink = DeltaSink(str(shop.site.tables / "by kind"), name="orders", partition_by=["kind"])
        made.stage(sink=sink, name="orders")(lambda events: events.where("kind = 'order'"))
        shop.run(made)
        second = "SELECT id, at, kind FROM events WHERE kind = 'order' AND id >= 36 * 40"
        assert_same(public(shop.site.tables / "by kind"), shop.batch(second))


def test_a_round_that_was_interrupted_is_finished_by_the_code_that_began_it(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patched:
        patched.setattr(StageRun, "release", broken)
        with pytest.raises(StreamPipelineError, match="broken"):
            shop.run(shop.pipeline("orders"))
    error = shop.refused(shop.pipeline("orders", "refunds"))
    assert "round 1 was begun with: stages.refunds differ" in error.failed
    assert error.remedy.startswith("Run the earlier code, and stop it (spark-jobs stop) or let it finish the round.")
    shop.run(shop.pipeline("orders"))
    shop.run(shop.pipeline("orders", "refunds"))
    shop.assert_kind("orders", "order")
    shop.assert_kind("refunds", "refund")


def broken(stage: StageRun) -> None:
    raise RuntimeError("broken")


# test_a_bounded_round_that_was_stopped_goes_on_with_other_stages runs by day.
@pytest.mark.nightly
def test_a_live_pipeline_that_was_stopped_goes_on_with_other_stages(site: Site, tmp_path: Path) -> None:
    events = Events(tmp_path / "events")
    events.add(150)
    with Running(site.spark, code(site, events, "copied", "again", "minutes"), site.home) as running:
        running.until(lambda: len(ids(site, "again")) == 151)
    events.add(100)
    changed = code(site, events, "copied", "minutes", "odd", "everything")
    with pytest.raises(RejectedError, match="was begun with") as caught:
        site.run(changed, allow_dropped=True)
    assert "Run the earlier code, and stop it (spark-jobs stop) or let it finish the round." in caught.value.remedy
    with Running(site.spark, code(site, events, "copied", "again", "minutes"), site.home) as running:
        running.until(lambda: len(ids(site, "again")) == 251)
        spark_jobs("stop", "--home", site.home)
        running.stopped()
    assert site.manifest().checkpoint_kind is CheckpointKind.STOP
    events.add(100)
    with Running(site.spark, changed, site.home, options=StartOptions(allow_dropped=True)) as running:
        running.until(lambda: len(ids(site, "copied")) == len(ids(site, "everything")) == 351)
        running.until(lambda: len(ids(site, "odd")) == 50)
        running.until(lambda: public_count(site.tables / "minutes") == closed_minutes(site, 351).count())
    assert ids(site, "copied") == ids(site, "everything") == list(range(351))
    assert ids(site, "again") == list(range(251))
    assert ids(site, "odd") == list(range(251, 351, 2))
    assert_same(public(site.tables / "minutes"), answer(closed_minutes(site, 351)))


@pytest.fixture
def events(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Events:
    made = events_of(request, tmp_path / "events", monkeypatch)
    made.add(150)
    return made


@pytest.mark.parametrize("events", [BOUNDED], indirect=True)
def test_a_bounded_round_that_was_stopped_goes_on_with_other_stages(site: Site, events: Events) -> None:
    """The dropped stage's rows, which only the end of the round would have made public, are not lost with it."""
    events.later(100)
    earlier = code(site, events, "copied", "minutes", "everything", interval="1 hour")
    with Running(site.spark, earlier, site.home) as running:
        running.until(lambda: all(has_staged(running, stage, events.rows)() for stage in ("copied", "everything")))
        spark_jobs("stop", "--home", site.home)
        running.stopped()
    assert public_count(site.tables / "everything") == 0
    events.add(100)
    events.end()
    with pytest.raises(RejectedError, match="151 rows up to checkpoint 1 are staged and not public") as caught:
        site.run(code(site, events, "copied", "minutes", "again"), allow_dropped=True)
    assert caught.value.remedy == "Keep stage 'everything' until the round has ended, then leave it out."
    site.run(code(site, events, "copied", "minutes", "everything", "again"))
    assert ids(site, "copied") == ids(site, "everything") == list(range(events.rows))
    assert ids(site, "again") == list(range(151, events.rows))
    assert sum(count for _, count in public(site.tables / "minutes").elements()) == events.rows


def in_two_steps(site: Site, events: Events, name: str) -> Pipeline:
    """Copies the ids in two steps. A stage without a table gives them a name."""
    pipeline = Pipeline("steps", on_end="suspend", checkpoint=CheckpointSettings(interval="1 hour"))
    events.source(pipeline)

    @pipeline.stage
    def copied(events: DataFrame) -> DataFrame:
        return events.select(F.col("id").alias(name))

    @pipeline.stage(sink=DeltaSink(str(site.tables / "numbers")))
    def numbers(copied: DataFrame) -> DataFrame:
        return copied.select(F.col(name).alias("id"))

    return pipeline


@pytest.mark.parametrize("events", [BOUNDED], indirect=True)
def test_rows_in_flight_are_never_read_under_another_column_name(site: Site, events: Events, tmp_path: Path) -> None:
    """The test covers a stopped round and its savepoint. The earlier code finishes the round; then the name may change."""
    events.later(100)
    stopped(site, in_two_steps(site, events, "id"), events, tmp_path / "savepoint")
    events.add(100)
    events.end()
    changed, before = in_two_steps(site, events, "number"), documents(site.home)
    why = "Stage 'copied' returns number, which 151 waiting rows of its earlier code lack"
    with pytest.raises(RejectedError, match=why):
        site.run(changed)
    assert documents(site.home) == before
    other = Site(site.spark, tmp_path / "other")
    with pytest.raises(RejectedError, match=why):
        other.run(changed, restore=str(tmp_path / "savepoint"))
    assert not documents(other.home)
    site.run(in_two_steps(site, events, "id"))
    assert ids(site, "numbers") == list(range(events.rows))
    site.run(changed)
    assert ids(site, "numbers") == list(range(events.rows))


# test_rows_in_flight_are_never_read_under_another_column_name has rows in flight by day.
@pytest.mark.nightly
@pytest.mark.parametrize("events", [BOUNDED], indirect=True)
def test_rows_in_flight_have_null_in_columns_that_their_source_has_gained_since(
    site: Site, events: Events, tmp_path: Path
) -> None:
    def copying() -> Pipeline:
        pipeline = Pipeline("steps", on_end="suspend", checkpoint=CheckpointSettings(interval="1 hour"))
        events.source(pipeline)
        pipeline.stage(name="copied")(lambda events: events)
        sink = DeltaSink(str(site.tables / "numbers"), schema_evolution="add_columns")
        pipeline.stage(name="numbers", sink=sink)(lambda copied: copied)
        return pipeline

    events.later(100)
    stopped(site, copying(), events, tmp_path / "savepoint")
    site.spark.sql(f"ALTER TABLE delta.`{events.path}` ADD COLUMNS (more STRING)")
    events.add(100)
    events.end()
    site.run(copying())
    assert_same(public(site.tables / "numbers"), answer(site.spark.read.format("delta").load(str(events.path))))
    site.run(copying())
    assert ids(site, "numbers") == list(range(events.rows))


class TestThePlan:
    """A dry run decides what the run would do, and writes nothing."""

    def plan(self, shop: Shop, pipeline: Pipeline, **options: Any) -> StartPlan | Manifest:
        before = contents(shop.site.home.parent)
        try:
            return plan(pipeline, open_files(str(shop.site.home)), {}, StartOptions(**options), lambda: shop.site.spark)[1]
        finally:
            assert contents(shop.site.home.parent) == before

    def test_shows_the_first_run_and_writes_nothing(self, shop: Shop) -> None:
        found = self.plan(shop, shop.pipeline(*ALL))
        assert isinstance(found, StartPlan)
        assert [str(each) for each in found.stages] == [f"{name} starts empty" for name in ALL]
        assert [found.tables[sink].table for sink in found.tables] == [None] * 3
        assert not shop.site.home.exists()

    def test_names_the_fate_of_each_stage_source_and_table_of_changed_code(self, shop: Shop) -> None:
        shop.run(shop.pipeline("orders", "hourly"))
        shop.deliver()
        shop.begin["refunds"] = "now"
        pipeline = shop.pipeline("orders", "refunds", "paid")
        found = self.plan(shop, pipeline, allow_dropped=True)
        assert isinstance(found, StartPlan)
        assert [str(each) for each in found.stages] == [
            "orders continues", "refunds starts empty", "paid starts empty", "hourly is dropped",
        ]  # fmt: skip
        shown = plan_answer(pipeline.graph(), open_files(str(shop.site.home)), asked("b"), found)
        assert [each.begin for each in shown.outlook.stages] == [None, "now", "earliest", None]
        assert [each.sources for each in shown.outlook.stages] == [(), ("events",), ("payments",), ()]
        assert [each.state_bytes is not None for each in shown.outlook.stages] == [True, False, False, False]
        assert [(each.source, each.fate) for each in shown.sources] == [("events", "is the same"), ("payments", "is new")]
        assert [(each.sink, each.fate) for each in shown.tables] == [
            ("orders", "goes on"), ("refunds", "is made"), ("paid", "is made"),
        ]  # fmt: skip
        said = "\n".join(map(str, plan_text(shown)))
        assert "take a savepoint of checkpoint 1, because the code has changed, and begin round 2 with it" in said
        assert found.settled.before.keys() == {"events"}
        assert {sink: planned.table is None for sink, planned in found.tables.items()} == {
            "orders": False, "refunds": True, "paid": True,
        }  # fmt: skip

    def test_is_refused_as_the_run_would_be(self, shop: Shop) -> None:
        shop.run(shop.pipeline("orders", "hourly"))
        for changed in (shop.pipeline("orders"), shop.pipeline("orders", "hourly", orders={"partition_by": ["kind"]})):
            with pytest.raises(StreamPipelineError) as planned:
                self.plan(shop, changed)
            assert str(planned.value) == str(shop.refused(changed))

    def test_is_refused_while_a_driver_is_at_work(self, shop: Shop) -> None:
        shop.run(shop.pipeline("orders"))
        with holding(shop.site.home / DRIVER_LOCK, "start-7"), pytest.raises(HomeInUseError, match="Another driver is at work"):
            self.plan(shop, shop.pipeline("orders"))

    def test_is_the_manifest_if_the_run_has_its_answer(self, shop: Shop) -> None:
        shop.run(shop.pipeline("orders"), on_end="drain")
        found = self.plan(shop, shop.pipeline("orders"))
        assert isinstance(found, Manifest)
        assert found.checkpoint == 1
