"""Tasks emit asset events for the tables that they have published."""

from collections import defaultdict
from typing import Any, cast

import pytest
from airflow.sdk import Asset, AssetAlias, Context
from airflow.sdk.bases.operator import BaseOperator

from airflow_provider.assets import emit_tables
from tests.support.asset_events import Events

FACTS = {
    "home": "file:///homes/orders",
    "checkpoint": 4,
    "behind": [],
    "exact": True,
    "sinks": {
        "orders": {"table": "file:///t/orders", "version": 7, "rows": 3},
        "refunds": {"table": "file:///t/ref%20unds", "version": None, "rows": 1},
    },
}


def emitted(*outlets: Any, **changes: Any) -> list[list[tuple[str, Any]]]:
    events: defaultdict[Any, Events] = defaultdict(Events)
    emit_tables(BaseOperator(task_id="run", outlets=list(outlets)), cast(Context, {"outlet_events": events}), FACTS | changes)
    return [events[outlet].added for outlet in outlets]


def test_each_alias_gets_an_event_for_each_public_table_with_its_version() -> None:
    extra = {"home": "file:///homes/orders", "sink": "orders", "checkpoint": 4, "version": 7, "behind": False, "exact": True}
    assert emitted(AssetAlias("shop"), AssetAlias("all")) == [[("file:///t/orders", extra)]] * 2


@pytest.mark.parametrize(("behind", "told"), [(["orders", "refunds"], True), (None, None)])
def test_an_event_says_that_its_table_is_behind_the_others(behind: list[str] | None, told: bool | None) -> None:
    (((_, extra),),) = emitted(AssetAlias("shop"), behind=behind)
    assert extra["behind"] is told


def test_without_an_alias_no_event_is_emitted() -> None:
    assert emitted() == []
    assert emitted(Asset("orders")) == [[]]
