"""DAGs that run when tables have changed, by either of two events. They read one cut over all tables from the pipeline's home."""

from datetime import UTC, datetime
from typing import Any

from airflow.sdk import DAG, Asset, AssetAlias, AssetWatcher, task

from airflow_provider.hooks.stream_pipeline import StreamPipelineHook
from airflow_provider.triggers.publication import PublicationTrigger

WATCHER = AssetWatcher(name="daily_increment", trigger=PublicationTrigger(home="daily_increment"))
CONSUMERS: dict[str, tuple[str, Any, str]] = {
    "asset_consumer": (
        "write_audit_publish",
        AssetAlias("write_audit_publish_tables"),
        "The task that publishes emits an event for each table, because it has an `AssetAlias` among its outlets.",
    ),
    "watching_consumer": (
        "daily_increment",
        Asset("daily_increment_public", watchers=[WATCHER]),
        "The triggerer watches the home and emits an event for each checkpoint that is public in every table, whoever runs the "
        "pipeline: a DAG, a command, another Airflow.",
    ),
}

for dag_id, (home, asset, emitted_by) in CONSUMERS.items():
    with DAG(
        dag_id,
        description=f"Reads the tables that {home} has made public",
        start_date=datetime(2013, 1, 1, tzinfo=UTC),
        schedule=[asset],
        catchup=False,
        max_active_runs=1,
        tags=["spark", "delta", "example"],
        doc_md=f"""
        ### After a publication of `{home}`

        {emitted_by} This DAG runs on the events and counts the rows of each table in the version that belongs to the newest checkpoint
        which is public everywhere.

        Events coalesce: several publications may be one run of this DAG, and a table may have newer versions by then. So the versions
        come from the pipeline's home, not from the events.

        Needs the connection `stream_pipeline_default`; the home is `{home}` in its first home root.
        """,
    ):

        @task
        def count_rows(home: str) -> dict[str, int]:
            """The rows of each table, all as of one checkpoint."""
            from deltalake import DeltaTable

            from spark_jobs import consistent_versions

            cut = consistent_versions(StreamPipelineHook().files(home).url)
            found = {str(sink): DeltaTable(table, version=version).count() for sink, (table, version) in cut.items()}
            for name, rows in found.items():
                print(f"{name}: {rows:,} rows")
            return found

        count_rows(home)
