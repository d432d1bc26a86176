"""A driver whose Spark keeps its catalog: ``python -m tests.support.metastore_driver DIRECTORY TABLE SCHEMA``.

The last argument is the place of the table's schema. Runs a pipeline from the Delta table ``events`` of the directory into the table of
that name. Prints as JSON the answer of the run and the later state of the catalog.
"""

import json
import sys
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession

from spark_jobs import DeltaSink, Pipeline
from spark_jobs.runtime.spark.session import start_session
from tests.support.kafka_broker import jars
from tests.support.object_store import S3_JARS
from tests.support.run_site import APPLICATION, SMALL


def metastore_session(directory: Path) -> SparkSession:
    """Returns a session with a Hive metastore in an embedded database, which the next process finds again."""
    database = f"jdbc:derby:;databaseName={directory / 'metastore'};create=true"
    java = f"{APPLICATION['spark.driver.extraJavaOptions']} -Dderby.stream.error.file={directory / 'derby.log'}"
    settings = {
        "spark.driver.extraJavaOptions": java,
        "spark.sql.catalogImplementation": "hive",
        "spark.sql.warehouse.dir": str(directory / "warehouse"),
        "spark.hadoop.javax.jdo.option.ConnectionURL": database,
        "spark.hadoop.hive.exec.scratchdir": str(directory / "scratch"),
        "spark.hadoop.hive.exec.local.scratchdir": str(directory / "scratch"),
    }
    return start_session("metastore", APPLICATION | SMALL | settings, jars=jars(S3_JARS))


def pipeline_into(table: str, events: Path) -> Pipeline:
    """Declares a copy of the events into the table of this name."""
    pipeline = Pipeline("named", on_end="suspend")

    @pipeline.source(bounded=True)
    def rows(spark: SparkSession) -> DataFrame:
        return spark.readStream.format("delta").load(str(events))

    @pipeline.stage(sink=DeltaSink(table=table, comment="made by its name"))
    def copy(rows: DataFrame) -> DataFrame:
        return rows

    return pipeline


def main(directory: Path, table: str, schema: str) -> None:
    """Runs the pipeline once."""
    spark = metastore_session(directory)
    spark.sql(f"CREATE SCHEMA IF NOT EXISTS {table.rpartition('.')[0]} LOCATION '{schema}'")
    existed = spark.catalog.tableExists(table)
    answer = pipeline_into(table, directory / "events").run(spark=spark, home=directory / "home")
    detail = spark.sql(f"DESCRIBE DETAIL {table}").first()
    assert detail is not None
    (sink,) = (answer.sinks or {}).values()
    found = {
        "existed": existed,
        "published into": sink.table,
        "location": detail["location"],
        "description": detail["description"],
        "type": spark.catalog.getTable(table).tableType,
        "ids": sorted(row["id"] for row in spark.table(table).collect()),
    }
    spark.stop()
    sys.stdout.write(json.dumps(found))


if __name__ == "__main__":
    main(Path(sys.argv[1]), *sys.argv[2:])
