"""Emits asset events for the tables that a task has published, for DAGs that are scheduled on them."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from airflow.sdk import Asset, AssetAlias, BaseOperator

if TYPE_CHECKING:
    from airflow.sdk import Context


def emit_tables(task: BaseOperator, context: "Context", facts: Mapping[str, Any]) -> None:
    """Emits one event for each published table through every :class:`airflow.sdk.AssetAlias` among a task's outlets.

    The asset is the table's URI. Its ``extra`` has ``home``, ``sink``, ``checkpoint``, the table's Delta ``version``, ``behind`` (whether
    the table shows less of the checkpoint than the others) and ``exact`` (False while losses of the checkpoint are open). The last two are
    None if that is no longer known. Airflow may merge several events into one DAG run. A consumer that must not miss a checkpoint asks the
    home (:func:`spark_jobs.consistent_versions`).

    Args:
        task: The task.
        context: The context of its execution.
        facts: The task's result; see :mod:`airflow_provider.facts`. Sinks whose rows are only staged emit nothing.
    """
    aliases = [outlet for outlet in task.outlets if isinstance(outlet, AssetAlias)]
    for name, sink in facts["sinks"].items():
        if sink["version"] is None:
            continue
        behind = None if facts["behind"] is None else name in facts["behind"]
        extra = {"home": facts["home"], "sink": name, "checkpoint": facts["checkpoint"]}
        extra |= {"version": sink["version"], "behind": behind, "exact": facts["exact"]}
        for alias in aliases:
            context["outlet_events"][alias].add(Asset(sink["table"]), extra=extra)
