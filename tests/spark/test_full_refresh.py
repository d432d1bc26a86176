"""A full refresh of some tables: their stages start over, and their rows are replaced in the publication of all others."""

import shutil
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from spark_jobs import DeltaSink
from spark_jobs.protocol.errors import RejectedError, UnsupportedTableError
from spark_jobs.publication.publisher import publish
from spark_jobs.publication.transactions import Publishers
from spark_jobs.storage.open import open_files
from tests.spark.conftest import Site
from tests.spark.rows import assert_same, public, public_count
from tests.support import delta_logs
from tests.support.shop import ALL, Shop

pytestmark = pytest.mark.spark


@pytest.fixture
def shop(site: Site) -> Shop:
    """A shop whose first day has run, and whose second day waits."""
    made = Shop(site)
    made.deliver()
    made.run(made.pipeline(*ALL))
    made.deliver()
    return made


def some(events: Any) -> Any:
    return events.where("kind = 'refund' AND id % 3 = 0")


def removals(table: Path) -> int:
    """Returns the number of versions that have removed files."""
    return sum(any("remove" in action for action in commit) for commit in delta_logs.commits(table))


def test_a_refreshed_table_has_the_rows_of_the_changed_query_and_the_others_keep_their_open_windows(shop: Shop) -> None:
    counts = {name: public_count(shop.site.tables / name) for name in ALL}
    changed = shop.pipeline("orders", "hourly")
    changed.stage(sink=DeltaSink(str(shop.site.tables / "refunds")), begin="now", name="refunds")(some)
    shop.run(changed, full_refresh=["refunds"], on_end="drain")
    tables = shop.site.tables
    query = "SELECT id, at, kind FROM events WHERE kind = 'refund' AND id % 3 = 0"
    assert_same(public(tables / "refunds"), shop.batch(query))
    shop.assert_kind("orders", "order")
    shop.assert_hours()
    assert {name: removals(tables / name) for name in ALL} == {"orders": 0, "refunds": 1, "hourly": 0}
    newest = DeltaTable(tables / "refunds").version()
    seen = {DeltaTable(tables / "refunds", version=version).to_pyarrow_table().num_rows for version in range(2, newest)}
    assert seen == {counts["refunds"]}, "readers see the old rows until they see the new ones"


def test_windows_are_computed_again_from_all_rows(shop: Shop) -> None:
    shop.run(shop.pipeline(*ALL), full_refresh=["hourly"], on_end="drain")
    shop.assert_hours()
    shop.assert_kind("orders", "order")
    shop.assert_kind("refunds", "refund")
    assert {name: removals(shop.site.tables / name) for name in ALL} == {"orders": 0, "refunds": 0, "hourly": 1}


def test_a_refresh_is_carried_out_once_in_a_run_and_again_in_the_next_run(shop: Shop) -> None:
    for number, run in enumerate(["a", "a", "b"]):
        shop.run(shop.pipeline(*ALL), full_refresh=["refunds"], run_id=run)
        shop.assert_kind("refunds", "refund")
        assert removals(shop.site.tables / "refunds") == (1, 1, 2)[number]


# test_a_refresh_is_carried_out_once_in_a_run_and_again_in_the_next_run refreshes by day.
@pytest.mark.nightly
def test_all_tables_are_refreshed_without_a_savepoint(shop: Shop) -> None:
    shop.run(shop.pipeline(*ALL), full_refresh=ALL, on_end="drain")
    shop.assert_hours()
    shop.assert_kind("orders", "order")
    assert not (shop.site.home / "savepoints").exists()
    assert {removals(shop.site.tables / name) for name in ALL} == {1}


@pytest.mark.parametrize("refreshed", ["orders", "refunds"])
def test_a_refresh_without_one_of_the_tables_is_refused_and_names_the_way_to_compute_all_again(
    shop: Shop, refreshed: str
) -> None:
    shutil.rmtree(shop.site.tables / "refunds")
    error = shop.refused(shop.pipeline(*ALL), full_refresh=[refreshed])
    assert "Sink refunds: table" in error.failed
    assert "is missing, and checkpoint 1 publishes into it." in error.failed
    assert "--full-refresh-all" in error.remedy


def test_a_refresh_of_a_table_with_rows_of_other_writers_is_refused_before_anything_is_written(shop: Shop) -> None:
    refunds = shop.site.tables / "refunds"
    foreign = pa.table({"id": [1, 2, 3], "at": pa.array([0] * 3, pa.timestamp("us", "UTC")), "kind": ["refund"] * 3})
    write_deltalake(refunds, foreign, mode="append")
    error = shop.refused(shop.pipeline(*ALL), full_refresh=["refunds"])
    assert isinstance(error, UnsupportedTableError)
    assert "has 3 rows that this pipeline has not published" in str(error)
    shop.run(shop.pipeline(*ALL), full_refresh=["orders"])  # the foreign rows do not matter to the other tables
    shop.assert_kind("orders", "order")


def test_rows_that_other_writers_add_before_the_publication_stop_a_refresh(shop: Shop) -> None:
    refunds = shop.site.tables / "refunds"
    shop.run(shop.pipeline(*ALL), full_refresh=["refunds"], publish="external")
    foreign = pa.table({"id": [1], "at": pa.array([0], pa.timestamp("us", "UTC")), "kind": ["foreign"]})
    write_deltalake(refunds, foreign, mode="append")
    home = open_files(str(shop.site.home))
    with pytest.raises(UnsupportedTableError, match="has 1 rows that this pipeline has not published"):
        publish(home, publishers=Publishers(lambda: shop.site.spark))
    assert removals(refunds) == 0
    DeltaTable(refunds).delete("kind = 'foreign'")
    publish(home, publishers=Publishers(lambda: shop.site.spark))
    shop.assert_kind("refunds", "refund")


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"full_refresh": ["refunds"], "fresh": True}, "cannot have both fresh and full_refresh"),
        ({"full_refresh": ["refnds"]}, "it has no table 'refnds' to refresh"),
    ],
)
def test_contradictions_and_unknown_tables_are_refused(shop: Shop, options: dict[str, Any], said: str) -> None:
    error = shop.refused(shop.pipeline(*ALL), **options)
    assert isinstance(error, RejectedError)
    assert said in str(error)
