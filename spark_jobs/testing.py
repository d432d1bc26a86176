"""The test harness for pipelines: rows in, rows out, with the same driver as a real run."""

import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from spark_jobs.api.pipeline import Pipeline
from spark_jobs.api.settings import NO_SETTINGS
from spark_jobs.protocol.ids import InputName


def run_pipeline(
    pipeline: Pipeline,
    inputs: Mapping[str, Any],
    *,
    params: Mapping[str, Any] | BaseModel = NO_SETTINGS,
    spark: Any = None,
) -> dict[str, list[Any]]:
    """Runs a pipeline on some rows to its end, drains it, and returns the rows of its sinks.

    ``run_pipeline(pipeline, {"departures": rows})["hourly"]`` are the rows of the sink ``hourly``. The pipeline's own tables are neither
    read nor written: home and tables are in a temporary directory that is deleted afterwards.

    Args:
        pipeline: The pipeline. It is not changed.
        inputs: Rows by source and static input: everything that ``spark.createDataFrame`` accepts (a list of dictionaries or ``Row``s,
            a pandas frame), or a batch frame. To give no rows, pass an empty frame with the schema. Other inputs are read as declared.
        params: As for :meth:`spark_jobs.Pipeline.bind`.
        spark: A session with Delta. By default the active one; otherwise a local one with two cores is started and left running.

    Returns:
        The rows by sink as ``pyspark.sql.Row``, in no order.

    Raises:
        RejectedError: The pipeline is refused, or an input is not one of its own.
        StreamPipelineError: The run did not reach its end.
    """
    session = spark if spark is not None else _session()
    with tempfile.TemporaryDirectory(prefix="run-pipeline-") as directory:
        readers = {name: _reader(session, pipeline, name, rows, f"{directory}/inputs/{name}") for name, rows in inputs.items()}
        rewired = pipeline.rewired(readers, f"{directory}/tables")
        rewired.run(spark=session, home=f"{directory}/home", params=params, on_end="drain", run_id="test")
        return {sink: session.read.format("delta").load(f"{directory}/tables/{sink}").collect() for sink in rewired.graph().sinks}


def _reader(session: Any, pipeline: Pipeline, name: str, rows: Any, path: str) -> Callable[..., Any]:
    """Writes the rows of an input as a Delta table, and returns the function that reads it."""
    frame = rows if hasattr(rows, "write") else session.createDataFrame(rows)
    source = pipeline.graph().sources.get(InputName(name))
    if source is not None and source.event_time_zone is not None and not hasattr(rows, "write"):
        frame = frame.withColumn(str(source.event_time), frame[source.event_time].cast("timestamp_ntz"))
    frame.write.format("delta").save(path)
    if name in pipeline.graph().statics:
        return lambda spark: spark.read.format("delta").load(path)
    return lambda spark: spark.readStream.format("delta").load(path)


def _session() -> Any:
    from pyspark.sql import SparkSession

    from spark_jobs.runtime.spark.session import start_session

    conf = {
        "spark.master": "local[2]",
        "spark.ui.enabled": "false",
        "spark.sql.shuffle.partitions": "2",
        "spark.sql.warehouse.dir": str(Path(tempfile.gettempdir()) / "spark-warehouse"),
    }
    return SparkSession.getActiveSession() or start_session("run_pipeline", conf)
