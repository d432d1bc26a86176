import pytest

from spark_jobs.declarative.names import Namespace

NOTHING, SCHEMA, BOTH = Namespace(), Namespace(schema="shop"), Namespace("lake", "shop")


@pytest.mark.parametrize(
    ("namespace", "name", "table"),
    [
        (NOTHING, "orders", "orders"),
        (NOTHING, "shop.orders", "shop.orders"),
        (SCHEMA, "orders", "shop.orders"),
        (SCHEMA, "raw.orders", "raw.orders"),
        (BOTH, "orders", "lake.shop.orders"),
        (BOTH, "raw.orders", "lake.raw.orders"),
        (BOTH, "other.raw.orders", "other.raw.orders"),
        (Namespace("lake"), "orders", "lake.default.orders"),
        (BOTH, "`raw`.`orders`", "lake.raw.orders"),
    ],
)
def test_a_table_name_without_catalog_and_schema_gets_those_of_the_project(namespace: Namespace, name: str, table: str) -> None:
    assert namespace.table(name) == table


@pytest.mark.parametrize("other", ["orders", "Orders", "shop.orders", "LAKE.shop.orders", "`lake`.`shop`.`orders`"])
def test_all_ways_to_write_a_name_mean_one_table(other: str) -> None:
    assert BOTH.identity(other) == ("lake", "shop", "orders")


def test_tables_of_the_same_name_in_two_schemas_are_different() -> None:
    assert NOTHING.identity("orders") == ("spark_catalog", "default", "orders") != NOTHING.identity("raw.orders")


@pytest.mark.parametrize(
    ("name", "short"),
    [
        ("orders", "orders"),
        ("shop.orders", "orders"),
        ("lake.shop.orders", "orders"),
        ("raw.orders", "raw_orders"),
        ("other.shop.orders", "other_shop_orders"),
    ],
)
def test_a_stage_is_named_after_its_table(name: str, short: str) -> None:
    assert BOTH.short(name) == short
