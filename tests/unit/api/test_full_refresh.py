"""The stages that start over in a full refresh, from the graph alone."""

from typing import Any

import pytest

from spark_jobs import DeltaSink, Pipeline
from spark_jobs.api.full_refresh import check_tables, refreshed_stages
from spark_jobs.api.graph import Graph
from spark_jobs.protocol.errors import InvalidPipelineError, RejectedError


def graph() -> Graph:
    """Orders are cleaned and counted by two tables; payments stand alone, and are read from the same source."""
    made = Pipeline("shop", on_end="suspend")

    def stage(name: str, reads: str, sink: DeltaSink | None) -> None:
        def same(rows: Any) -> Any:
            return rows

        made.stage(name=name, sink=sink, inputs={"rows": reads})(same)

    made.source(bounded=True, name="events")(lambda spark: None)
    stage("clean", "events", None)
    stage("orders", "clean", DeltaSink(table="lake.shop.orders"))
    stage("hourly", "orders", DeltaSink("/tables/hourly"))
    stage("totals", "orders", DeltaSink("/tables/totals", mode="complete"))
    stage("paid", "events", DeltaSink("/tables/payments"))
    stage("refunds", "events", DeltaSink(table="refunds"))
    return made.graph()


@pytest.mark.parametrize("name", ["paid", "PAID"])
def test_a_refresh_of_a_table_that_reads_only_a_source_refreshes_no_other_table(name: str) -> None:
    assert refreshed_stages(graph(), [name]) == {"paid"}


@pytest.mark.parametrize("name", ["refunds", "default.refunds", "spark_catalog.default.refunds"])
def test_a_table_in_sparks_own_catalog_is_found_by_each_of_its_names(name: str) -> None:
    assert refreshed_stages(graph(), [name]) == {"refunds"}


@pytest.mark.parametrize("name", ["orders", "shop.orders", "lake.shop.Orders", "`lake`.shop.orders"])
def test_a_refresh_includes_tables_that_read_one_another_stages_without_a_table_and_complete_results(name: str) -> None:
    assert refreshed_stages(graph(), [name, "hourly"]) == {"clean", "orders", "hourly", "totals"}


@pytest.mark.parametrize(("named", "missing"), [("orders", "hourly"), ("hourly", "orders"), ("totals", "orders, hourly")])
def test_a_table_whose_neighbours_are_not_named_is_refused_with_the_names_to_add(named: str, missing: str) -> None:
    with pytest.raises(RejectedError, match=f"A full refresh of {named} also needs {missing}: they read one another") as caught:
        refreshed_stages(graph(), [named])
    words = " ".join(f"--full-refresh {name}" for name in [named, *missing.split(", ")])
    assert words in caught.value.remedy
    assert refreshed_stages(graph(), [named, *missing.split(", ")]) == {"clean", "orders", "hourly", "totals"}


@pytest.mark.parametrize("name", ["oders", "clean", "other.orders", "other.refunds", "payments", ""])
def test_a_name_that_is_no_table_of_the_pipeline_is_refused(name: str) -> None:
    for check in (refreshed_stages, check_tables):
        with pytest.raises(InvalidPipelineError, match=f"it has no table '{name}' to refresh"):
            check(graph(), [name])


def test_no_table_is_refreshed_if_none_is_named() -> None:
    assert refreshed_stages(graph(), []) == frozenset()
