"""Describes this provider to Airflow."""

from typing import Any

from spark_jobs import __version__

_TEXTS: dict[str, Any] = {"type": ["string", "null"]}
_FIELDS: dict[str, Any] = {
    "home_root": {
        "label": "Home roots",
        "description": "Directories, URLs in S3, Azure, Google Cloud or HDFS, separated by commas. Homes are allowed only there.",
        "schema": _TEXTS,
    },
    "work_root": {
        "label": "Work root",
        "description": "For homes in a store and a cluster: a URL in S3, Azure, Google Cloud or HDFS, or a directory that executors share.",
        "schema": _TEXTS,
    },
    "savepoint_root": {
        "label": "Savepoint roots",
        "description": "Further places for savepoints: directories, URLs in S3, Azure, Google Cloud or HDFS, separated by commas.",
        "schema": _TEXTS,
    },
    "store_conn_id": {
        "label": "Store connection",
        "description": "A connection of type aws, wasb, adls or google_cloud_platform with the credentials of a store.",
        "schema": _TEXTS,
    },
    "python": {
        "label": "Driver's Python",
        "description": "A Python with this package's 'spark' extra. Empty: the worker's own.",
        "schema": _TEXTS,
    },
    "master": {
        "label": "Spark master",
        "description": "For example local[4]. Empty: the pipeline's own, or Spark's default.",
        "schema": _TEXTS,
    },
    "conf": {
        "label": "Spark settings",
        "description": "A JSON object of texts, without secrets.",
        "schema": _TEXTS | {"format": "json"},
    },
    "checkpoint": {
        "label": "Checkpoint settings",
        "description": 'A JSON object that overrides the pipelines\' settings, such as {"interval": "30 seconds"}.',
        "schema": _TEXTS | {"format": "json"},
    },
    "spark_conn_id": {
        "label": "Spark connection",
        "description": "Drivers are submitted to its master. Empty: a driver is a process on the worker's host.",
        "schema": _TEXTS,
    },
    "spark_main": {
        "label": "Path of main.py",
        "description": "The path of spark_jobs/main.py in a cluster, such as local:///opt/.../spark_jobs/main.py.",
        "schema": _TEXTS,
    },
}
_MODULES = {
    "hooks": ["airflow_provider.hooks.stream_pipeline"],
    "operators": [
        "airflow_provider.operators.cancel",
        "airflow_provider.operators.losses",
        "airflow_provider.operators.partitions",
        "airflow_provider.operators.publish_checkpoint",
        "airflow_provider.operators.savepoint",
        "airflow_provider.operators.stream_pipeline",
    ],
    "sensors": [
        "airflow_provider.sensors.checkpoint",
        "airflow_provider.sensors.final_checkpoint",
        "airflow_provider.sensors.pipeline_state",
    ],
    "triggers": [
        "airflow_provider.triggers.home",
        "airflow_provider.triggers.losses",
        "airflow_provider.triggers.publication",
        "airflow_provider.triggers.run",
    ],
}
"""The modules by kind, as Airflow lists them."""


def get_provider_info() -> dict[str, Any]:
    """Returns Airflow's description of the package, found through the entry point ``apache_airflow_provider``."""
    package, name = "airflow-provider-spark-jobs", "Spark stream pipelines"
    return {
        "package-name": package,
        "name": name,
        "description": "Runs Spark streaming pipelines with Flink's checkpoint semantics, exactly once into Delta tables.",
        "versions": [__version__],
        "integrations": [
            {
                "integration-name": name,
                "external-doc-url": "https://spark.apache.org/docs/latest/streaming/",
                "tags": ["software"],
            }
        ],
        **{kind: [{"integration-name": name, "python-modules": modules}] for kind, modules in _MODULES.items()},
        "extra-links": [f"airflow_provider.links.{name}" for name in ("ManifestLink", "DriverLogLink", "TablesLink")],
        "connection-types": [
            {
                "connection-type": "stream_pipeline",
                "hook-name": "Stream pipeline",
                "hook-class-name": "airflow_provider.hooks.stream_pipeline.StreamPipelineHook",
                "ui-field-behaviour": {
                    "hidden-fields": ["host", "schema", "login", "password", "port"],
                    "relabeling": {},
                    "placeholders": {},
                },
                "conn-fields": _FIELDS,
            }
        ],
    }
