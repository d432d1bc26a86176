"""The command line, ``spark-jobs``: one module a command, each on the API that the Airflow side uses.

Only ``run`` loads the driver's code, when it is called: the others start without Spark.
"""

from spark_jobs.cli.commands import app

__all__ = ["app", "main"]


def main() -> None:
    """Runs the command line. Exit codes: 0 done, 2 refused, 3 failed and can be resumed, 4 outcome unknown, 130 interrupted."""
    app()
