"""Looks at what a run of ``increments.py`` has staged, before anybody else can: exits with 1 and says why if it is not fit to be public.

python audit_increments.py HOME CHECKPOINT --most-cancelled 0.2
"""

import argparse
import sys

from delta import configure_spark_with_delta_pip
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from spark_jobs import read_staged


def delta_session() -> SparkSession:
    builder = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false")
    builder = builder.config("spark.ui.showConsoleProgress", "false")  # it would stand in the line with what is found
    builder = builder.config("spark.sql.extensions", "io.delta.sql.DeltaSparkSessionExtension")
    builder = builder.config("spark.sql.catalog.spark_catalog", "org.apache.spark.sql.delta.catalog.DeltaCatalog")
    return configure_spark_with_delta_pip(builder).getOrCreate()


def problems(hourly: DataFrame, most_cancelled: float) -> list[str]:
    """Returns the problems of the staged hours, one sentence each."""
    total = hourly.agg(F.sum("flights").alias("flights"), F.sum("cancelled").alias("cancelled")).first()
    if total is None or total["flights"] is None:
        return ["There is no staged hour."]
    share = total["cancelled"] / total["flights"]
    found = (
        [f"{share:.0%} of the flights were cancelled, which is more than {most_cancelled:.0%}."] if share > most_cancelled else []
    )
    odd = hourly.where("flights < cancelled OR flights < 1").count()
    return [*found, *([f"{odd} hours have more cancelled flights than flights."] if odd else [])]


def main() -> int:
    parser = argparse.ArgumentParser(description="Audits what a run has staged.")
    parser.add_argument("home")
    parser.add_argument("checkpoint", type=int, help="the one that is to be published: by now there may be a newer one")
    parser.add_argument("--most-cancelled", type=float, default=1.0, metavar="SHARE", help="between 0 and 1")
    given = parser.parse_args()
    spark = delta_session()
    found = problems(read_staged(spark, given.home, "hourly_departures", given.checkpoint), given.most_cancelled)
    spark.stop()
    print("\n".join(found) or "The staged rows are fit to be public.")
    print(
        "No table was changed. Look at the rows: "
        f"from spark_jobs import read_staged; read_staged(spark, {given.home!r}, 'hourly_departures', {given.checkpoint}).show()"
    )
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
