"""A DAG that runs when tables have changed, and asks the pipeline's home for one cut over all of them."""

from datetime import UTC, datetime

from airflow.sdk import DAG, AssetAlias, task

from airflow_provider.hooks.stream_pipeline import StreamPipelineHook

with DAG(
    "asset_consumer",
    description="Reads the tables that write_audit_publish has made public",
    start_date=datetime(2013, 1, 1, tzinfo=UTC),
    schedule=[AssetAlias("write_audit_publish_tables")],
    catchup=False,
    max_active_runs=1,
    tags=["spark", "delta", "example"],
    doc_md="""
    ### After a publication

    `write_audit_publish` emits an event for each table that it has published. This DAG runs on them and counts the rows of each
    table in the version that belongs to the newest checkpoint which is public everywhere.

    Events coalesce: several publications may be one run of this DAG, and a table may have moved on meanwhile. So the versions
    come from the pipeline's home, not from the events.
    """,
) as dag:

    @task
    def count_rows() -> dict[str, int]:
        """The rows of each table, all as of one checkpoint."""
        from deltalake import DeltaTable

        from spark_jobs import consistent_versions

        home = StreamPipelineHook().files("write_audit_publish").url
        cut = consistent_versions(home)
        found = {str(sink): DeltaTable(table, version=version).count() for sink, (table, version) in cut.items()}
        for name, rows in found.items():
            print(f"{name}: {rows:,} rows")
        return found

    count_rows()
