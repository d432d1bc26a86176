"""A run dies around a publication of a history. After the next run, the table is the history of all changes."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import write_deltalake

from spark_jobs import DeltaSink, Pipeline
from spark_jobs.protocol.documents import OnEnd
from spark_jobs.protocol.steps import Step
from tests.support.crashes import Point, run_into
from tests.support.opened_tables import opened
from tests.support.run_site import RunSite
from tests.support.small_pipeline import Params

pytestmark = pytest.mark.spark

history_pipeline = Pipeline("versions", params=Params, on_end="suspend")
Change = tuple[str, int, str]


@history_pipeline.source(bounded=True)
def changes(spark: Any, params: Params) -> Any:
    return spark.readStream.format("delta").load(params.events)


@history_pipeline.stage(
    sink=DeltaSink("{warehouse}/versions", mode="history", keys=["id"], sequence_by="seq", apply_as_deletes="op = 'delete'")
)
def versions(changes: Any) -> Any:
    return changes.where("true")


def _deliver(site: RunSite, *changes: Change) -> None:
    ids, sequence, operations = zip(*changes, strict=True)
    write_deltalake(site.events, pa.table({"id": list(ids), "seq": list(sequence), "op": list(operations)}), mode="append")


def _public(site: RunSite) -> list[tuple[str, str, int, int | None]]:
    rows = opened(site.table("versions")).to_pyarrow_table().to_pylist()
    assert all(row["is_current"] is (row["valid_to"] is None) for row in rows)
    return sorted(((row["id"], row["op"], row["valid_from"], row["valid_to"]) for row in rows), key=str)


DEATHS = [(step, before) for step in (Step.BURY_KEYS, Step.PUBLISH_SINK) for before in (True, False)]


@pytest.mark.parametrize("deaths", [DEATHS[1:3], pytest.param(DEATHS, marks=pytest.mark.nightly)], ids=["twice", "everywhere"])
def test_the_table_has_the_versions_of_all_changes(any_site: RunSite, tmp_path: Path, deaths: list[tuple[Step, bool]]) -> None:
    here = replace(any_site, events=tmp_path / "changes", pipeline=history_pipeline)
    _deliver(here, ("a", 1, "first"), ("a", 9, "last"), ("b", 5, "delete"))
    here.run("day 0", on_end=OnEnd.SUSPEND)
    for number, wanted in enumerate(deaths):
        _deliver(here, ("a", 3 + number, f"late {number}"), ("b", number, f"early {number}"), ("a", 8, "delete"))

        def is_wanted(passed: Point, wanted: tuple[Step, bool] = wanted) -> bool:
            return passed.name == wanted

        died = run_into(here, is_wanted, f"day {number + 1}", on_end=OnEnd.SUSPEND)
        assert died is not None
        assert died.name == wanted
        here.run(f"day {number + 1}", on_end=OnEnd.SUSPEND)
    newest = len(deaths) - 1
    expected: list[tuple[str, str, int, int | None]] = [("a", "first", 1, 3), ("a", "last", 9, None)]
    for number in range(len(deaths)):
        expected.append(("a", f"late {number}", 3 + number, 8 if number == newest else 4 + number))
        expected.append(("b", f"early {number}", number, 5 if number == newest else 1 + number))
    assert _public(here) == sorted(expected, key=str)
