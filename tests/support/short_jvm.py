"""Settings that make a Spark of one or two minutes cheap. Such a JVM ends before its code is fully compiled."""

import os

from spark_jobs.runtime.spark import jvm_options

_HEAP = "-Xms1g -Xmn400m"
"""Options of the heap. A JVM begins with little memory, and runs a full collection each time that it needs more."""
SHORT_RUN = {"spark.driver.extraJavaOptions": f"{jvm_options.SHORT_RUN} {_HEAP}"}

COMPILED = bool(os.environ.get("SPARK_TESTS_COMPILE"))
"""True for the nightly tests."""
INTERPRETED = {} if COMPILED else {"spark.sql.codegen.wholeStage": "false", "spark.sql.codegen.factoryMode": "NO_CODEGEN"}
"""Settings for queries over a few rows, for which Spark's code generation costs more than the query.

The nightly tests compile, and so do the tests of user workflows: the quickstart and the DAGs.
"""
FEW_ROWS = SHORT_RUN | INTERPRETED

SHARED_BY_MANY = {
    **dict.fromkeys(("spark.ui.retainedJobs", "spark.ui.retainedStages", "spark.sql.ui.retainedExecutions"), "20"),
    "spark.ui.retainedTasks": "200",
    "spark.databricks.delta.delta.log.cacheSize": "100",
}
"""Limits of caches.

Spark keeps the plans of 1,000 queries, and Delta those of 10,000 tables: they would fill the memory of a shared JVM.
"""
