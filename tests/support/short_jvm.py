"""Settings that make a Spark of one or two minutes cheap: it would end before its code is fully compiled."""

import os

_COMPILER = "-XX:TieredStopAtLevel=1 -XX:ReservedCodeCacheSize=160m"
"""With the first compiler alone a JVM has room for 48 MB of code, which Spark fills: it would go on sweeping and compiling anew."""
_COLLECTOR = "-XX:+UseSerialGC -XX:MetaspaceSize=256m -Xms1g -Xmn400m"
"""A JVM begins with little room, and collects all its garbage each time that its classes, or what lives on, have outgrown it."""
SHORT_RUN = {"spark.driver.extraJavaOptions": f"{_COMPILER} {_COLLECTOR}"}

COMPILED = bool(os.environ.get("SPARK_TESTS_COMPILE"))
"""True for the nightly tests."""
_INTERPRETED = {"spark.sql.codegen.wholeStage": "false", "spark.sql.codegen.factoryMode": "NO_CODEGEN"}
FEW_ROWS = SHORT_RUN | ({} if COMPILED else _INTERPRETED)
"""For a query over a few rows Spark's compiler of expressions costs more than the query. The night's tests compile, and those that
do what a user does: the quickstart and the DAGs."""

SHARED_BY_MANY = {
    **dict.fromkeys(("spark.ui.retainedJobs", "spark.ui.retainedStages", "spark.sql.ui.retainedExecutions"), "20"),
    "spark.ui.retainedTasks": "200",
    "spark.databricks.delta.delta.log.cacheSize": "100",
}
"""Spark keeps the plans of 1,000 queries, and Delta those of 10,000 tables: they fill the memory of a JVM that many tests share."""
