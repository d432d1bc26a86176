"""A fresh start goes on with the deletes that were public. Deletes that never were public are forgotten."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import write_deltalake

from spark_jobs import DeltaSink, Pipeline
from spark_jobs.protocol.documents import OnEnd, OnRewind, Publish
from spark_jobs.protocol.steps import Step
from spark_jobs.publication import deleted_keys
from tests.support.crashes import Point, run_into
from tests.support.opened_tables import opened
from tests.support.run_site import RunSite
from tests.support.small_pipeline import Params

pytestmark = pytest.mark.spark

customers_pipeline = Pipeline("customers", params=Params, on_end="suspend")
Change = tuple[str, int, str]


@customers_pipeline.source(bounded=True)
def changes(spark: Any, params: Params) -> Any:
    return spark.readStream.format("delta").load(params.events)


@customers_pipeline.stage(
    sink=DeltaSink("{warehouse}/customers", mode="upsert", keys=["id"], sequence_by="seq", apply_as_deletes="op = 'delete'")
)
def customers(changes: Any) -> Any:
    return changes.where("true")


@pytest.fixture
def customers_site(any_site: RunSite, tmp_path: Path) -> RunSite:
    return replace(any_site, events=tmp_path / "changes", pipeline=customers_pipeline)


def deliver(site: RunSite, *changes: Change, mode: Any = "append") -> None:
    ids, sequence, operations = zip(*changes, strict=True)
    table = pa.table({"id": list(ids), "seq": list(sequence), "op": list(operations)})
    write_deltalake(site.events, table, mode=mode)


def mend(site: RunSite, *changes: Change) -> None:
    """Replaces the input by a new table with the given changes."""
    site.events.rename(site.events.with_name(f"before {len(list(site.events.parent.iterdir()))}"))
    deliver(site, *changes)


def public(site: RunSite) -> list[tuple[str, int]]:
    rows = opened(site.table("customers")).to_pyarrow_table().to_pylist()
    return sorted((row["id"], row["seq"]) for row in rows)


def run_day(site: RunSite, run: str, *changes: Change, **options: Any) -> None:
    deliver(site, *changes)
    site.run(run, on_end=OnEnd.SUSPEND, **options)


def die_between_the_burial_and_its_publication(site: RunSite, run: str, *changes: Change, **options: Any) -> None:
    deliver(site, *changes)
    died = run_into(site, lambda passed: passed.name == (Step.BURY_KEYS, False), run, on_end=OnEnd.SUSPEND, **options)
    assert died is not None


@pytest.mark.parametrize(
    "on_rewind", [OnRewind.REFUSE, *(pytest.param(each, marks=pytest.mark.nightly) for each in (OnRewind.KEEP, OnRewind.REPLACE))]
)
def test_a_delete_that_never_became_public_deletes_no_row_of_a_fresh_start(customers_site: RunSite, on_rewind: OnRewind) -> None:
    die_between_the_burial_and_its_publication(customers_site, "first", ("a", 9, "delete"))
    mend(customers_site, ("a", 1, "insert"))
    customers_site.run("fresh", on_end=OnEnd.SUSPEND, fresh=True, on_rewind=on_rewind)
    assert public(customers_site) == [("a", 1)]


@pytest.mark.nightly
def test_rows_that_were_deleted_in_public_stay_deleted_in_a_fresh_start_that_keeps_rows(customers_site: RunSite) -> None:
    run_day(customers_site, "first", ("a", 5, "delete"), ("b", 1, "insert"))
    die_between_the_burial_and_its_publication(customers_site, "second", ("a", 9, "delete"), ("c", 9, "delete"))
    mend(customers_site, ("a", 4, "insert"), ("b", 2, "insert"), ("c", 8, "insert"))
    customers_site.run("fresh", on_end=OnEnd.SUSPEND, fresh=True, on_rewind=OnRewind.KEEP)
    assert public(customers_site) == [("b", 2), ("c", 8)]
    run_day(customers_site, "late", ("a", 6, "insert"))
    assert public(customers_site) == [("a", 6), ("b", 2), ("c", 8)], "the delete at 9 was never public"


@pytest.mark.nightly
def test_deletes_outlive_incarnations_that_publish_nothing(customers_site: RunSite) -> None:
    run_day(customers_site, "first", ("a", 5, "delete"), ("b", 1, "insert"))
    rewinds = [OnRewind.REPLACE, OnRewind.KEEP]
    for number, on_rewind in enumerate(rewinds):
        run = f"abandoned {number}"
        customers_site.run(run, publish=Publish.EXTERNAL, on_end=OnEnd.SUSPEND, fresh=True, on_rewind=on_rewind)
    mend(customers_site, ("a", 4, "insert"))
    customers_site.run("kept", on_end=OnEnd.SUSPEND, fresh=True, on_rewind=OnRewind.KEEP)
    assert public(customers_site) == [("b", 1)]
    customers_site.run("replaced", on_end=OnEnd.SUSPEND, fresh=True, on_rewind=OnRewind.REPLACE)
    assert public(customers_site) == [("a", 4)]


@pytest.mark.nightly
def test_the_home_keeps_only_the_deletes_of_the_live_incarnation(customers_site: RunSite) -> None:
    run_day(customers_site, "first", ("a", 5, "delete"))
    customers_site.run("fresh", on_end=OnEnd.SUSPEND, fresh=True, on_rewind=OnRewind.KEEP)
    assert len(customers_site.files().names("tombstones")) == 1


FRESH = [(step, before) for step in (Step.INHERIT_KEYS, Step.INCARNATION_CLOSE) for before in (True, False)]


@pytest.mark.parametrize(
    "deaths", [pytest.param(FRESH, marks=pytest.mark.nightly, id="everywhere"), pytest.param(FRESH[1:2], id="once")]
)
def test_a_fresh_start_that_dies_while_it_copies_deletes_loses_none(
    customers_site: RunSite, deaths: list[tuple[Step, bool]]
) -> None:
    run_day(customers_site, "first", ("a", 5, "delete"), ("b", 1, "insert"))
    die_between_the_burial_and_its_publication(customers_site, "second", ("b", 9, "delete"))
    mend(customers_site, ("a", 4, "insert"), ("b", 8, "insert"))
    for wanted in deaths:

        def is_wanted(passed: Point, wanted: tuple[Step, bool] = wanted) -> bool:
            return passed.name == wanted

        died = run_into(customers_site, is_wanted, "fresh", on_end=OnEnd.SUSPEND, fresh=True, on_rewind=OnRewind.KEEP)
        assert died is not None
        assert died.name == wanted
    customers_site.run("fresh", on_end=OnEnd.SUSPEND, fresh=True, on_rewind=OnRewind.KEEP)
    assert public(customers_site) == [("b", 8)]


FOLD = [(step, before) for step in (Step.COMPACT_KEYS, Step.FOLD_KEYS, Step.TRIM_KEYS) for before in (True, False)]


@pytest.mark.parametrize(
    "deaths", [pytest.param(FOLD, marks=pytest.mark.nightly, id="everywhere"), pytest.param(FOLD[4:5], id="once")]
)
def test_a_driver_that_dies_while_it_folds_the_deleted_keys_loses_none_and_brings_none_back(
    customers_site: RunSite, monkeypatch: pytest.MonkeyPatch, deaths: list[tuple[Step, bool]]
) -> None:
    monkeypatch.setattr(deleted_keys, "FOLD_VERSIONS", 1)
    run_day(customers_site, "first", ("a", 5, "delete"), ("b", 1, "insert"))
    run_day(customers_site, "second", ("c", 5, "delete"))
    for number, wanted in enumerate(deaths):

        def is_wanted(passed: Point, wanted: tuple[Step, bool] = wanted) -> bool:
            return passed.name == wanted

        deliver(customers_site, (f"key {number}", 5, "delete"))
        died = run_into(customers_site, is_wanted, f"day {number}", on_end=OnEnd.SUSPEND)
        assert died is not None
        assert died.name == wanted
        run_day(customers_site, f"day {number}", (f"late {number}", 5, "delete"))
    run_day(customers_site, "last", ("d", 5, "delete"))
    (live,) = customers_site.files().names("tombstones")
    versions = customers_site.files().names(f"tombstones/{live}/customers/_delta_log")
    assert 0 < sum(name.endswith(".json") for name in versions) <= 6
    gone = ["a", "c", "d", *(f"{name} {number}" for name in ("key", "late") for number in range(len(deaths)))]
    die_between_the_burial_and_its_publication(customers_site, "never", ("b", 9, "delete"))
    mend(customers_site, *((key, 4, "insert") for key in gone), ("b", 2, "insert"))
    customers_site.run("fresh", on_end=OnEnd.SUSPEND, fresh=True, on_rewind=OnRewind.KEEP)
    assert public(customers_site) == [("b", 2)], "the delete at 9 was never public"
