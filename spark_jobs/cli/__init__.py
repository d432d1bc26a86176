"""The command line, ``spark-jobs``: one module a command, each on the API that the Airflow side uses.

Only ``run`` loads the driver's code, when it is called: the others start without Spark.
"""

from spark_jobs.cli.commands import app
from spark_jobs.cli.terminal import prepare_streams

__all__ = ["app", "main"]


def main() -> None:
    """Runs the command line. :data:`~spark_jobs.cli.commands.EXIT_CODES` says what it exits with."""
    prepare_streams()
    app()
