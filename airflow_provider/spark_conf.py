"""Checks the Spark settings of a task, and which of them a DAG run may choose.

A person who may trigger a DAG is not an author of its code. The author may write any setting into the DAG file. A setting that comes from
a template or an expansion may only change the size of a run (docs/adr/0013-what-a-run-may-set.md).
"""

import json
import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from airflow.providers.common.compat.openlineage.utils.spark import inject_parent_job_information_into_spark_properties
from airflow.sdk.definitions.mappedoperator import MappedOperator

from airflow_provider.version_compat import conf as airflow_conf
from spark_jobs.protocol.errors import InvalidParameterError

if TYPE_CHECKING:
    from airflow.sdk import BaseOperator, Context

RUN_MAY_SET = frozenset(
    {
        "spark.cores.max",
        "spark.default.parallelism",
        "spark.driver.cores",
        "spark.driver.maxResultSize",
        "spark.driver.memory",
        "spark.driver.memoryOverhead",
        "spark.driver.memoryOverheadFactor",
        "spark.dynamicAllocation.enabled",
        "spark.dynamicAllocation.executorIdleTimeout",
        "spark.dynamicAllocation.initialExecutors",
        "spark.dynamicAllocation.maxExecutors",
        "spark.dynamicAllocation.minExecutors",
        "spark.dynamicAllocation.shuffleTracking.enabled",
        "spark.executor.cores",
        "spark.executor.instances",
        "spark.executor.memory",
        "spark.executor.memoryOverhead",
        "spark.executor.memoryOverheadFactor",
        "spark.executor.pyspark.memory",
        "spark.locality.wait",
        "spark.memory.fraction",
        "spark.memory.offHeap.enabled",
        "spark.memory.offHeap.size",
        "spark.memory.storageFraction",
        "spark.network.timeout",
        "spark.speculation",
        "spark.speculation.multiplier",
        "spark.speculation.quantile",
        "spark.sql.adaptive.advisoryPartitionSizeInBytes",
        "spark.sql.adaptive.coalescePartitions.enabled",
        "spark.sql.adaptive.enabled",
        "spark.sql.adaptive.skewJoin.enabled",
        "spark.sql.autoBroadcastJoinThreshold",
        "spark.sql.files.maxPartitionBytes",
        "spark.sql.files.maxRecordsPerFile",
        "spark.sql.shuffle.partitions",
        "spark.task.cpus",
        "spark.task.maxFailures",
    }
)
"""Settings that only change the size or the patience of a run. None of them names a class, a file, a host or a user."""
_SIZE = re.compile(r"-?[0-9A-Za-z.]{1,32}")
"""Matches numbers, sizes, times and booleans. It allows no ``$``, which Spark would replace, and no blank, which could split a command
line."""


def checked_conf(task: "BaseOperator", written: object, rendered: object) -> dict[str, str]:
    """Returns the Spark settings of one task instance.

    Args:
        task: The task that is executed.
        written: The argument of its constructor.
        rendered: The same argument after templates were rendered.

    Raises:
        InvalidParameterError: The run has chosen a setting that it may not choose, or the argument is no mapping.
    """
    own = _declared(task, written)
    conf = _mapping(rendered)
    written_so = {key for key, value in own.items() if key in conf and conf[key] == value}
    refused = sorted(str(key) for key, value in conf.items() if key not in written_so and not _is_size(key, value))
    if refused:
        raise InvalidParameterError(
            f"A run may not choose these Spark settings or values: {', '.join(refused)}.",
            remedy="Write them into the DAG file without a template, or into the connection's conf. A run may choose only its size: "
            "memory, cores, executors and partitions (docs/reference/airflow-run.md).",
            settings=refused,
        )
    return {str(key): _text(value) for key, value in conf.items()}


def with_parent_run(conf: Mapping[str, str], context: "Context") -> dict[str, str]:
    """Returns Spark settings that name the task's run as the parent of the driver's own OpenLineage events.

    The option ``[openlineage] spark_inject_parent_job_info`` turns this on, as for the operators of Airflow's Spark provider. Settings that
    already name a parent stay. A driver that outlives its try keeps the try that has started it as its parent.
    """
    if not airflow_conf.getboolean("openlineage", "spark_inject_parent_job_info", fallback=False):
        return dict(conf)
    return {
        str(key): str(value) for key, value in inject_parent_job_information_into_spark_properties(dict(conf), context).items()
    }


def _declared(task: "BaseOperator", written: object) -> Mapping[Any, Any]:
    """Returns the settings in the DAG file.

    For a mapped task these are the settings of ``partial()``, because expanded values are not in the file.
    """
    declared = task.dag.get_task(task.task_id) if task.has_dag() else task  # type: ignore[no-untyped-call]
    if isinstance(declared, MappedOperator):
        written = declared.partial_kwargs.get("conf")
    return written if isinstance(written, Mapping) else {}


def _mapping(rendered: object) -> Mapping[Any, Any]:
    """Returns the rendered settings. A template for all of them may render to a mapping or to JSON."""
    found = rendered
    if isinstance(rendered, str) and rendered.strip():
        try:
            found = json.loads(rendered)
        except ValueError:
            found = rendered
    if not found:
        return {}
    if not isinstance(found, Mapping):
        raise InvalidParameterError(
            f"conf is {type(found).__name__}, not a mapping of Spark settings.",
            remedy="Correct conf= of the task. A template for all settings has to render to JSON, as with the filter 'tojson'.",
            argument="conf",
        )
    return found


def _is_size(key: object, value: object) -> bool:
    return key in RUN_MAY_SET and isinstance(value, str | int | float) and _SIZE.fullmatch(_text(value)) is not None


def _text(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
