"""The command line ``spark-jobs``: one module per command, on the same API as the Airflow side.

Only ``run`` loads the driver's code, and only when it is called. All other commands start without Spark.
"""

import sys

from spark_jobs.cli.commands import app
from spark_jobs.cli.terminal import Output, Terminal, delivering, prepare_streams
from spark_jobs.protocol.errors import StorageError

__all__ = ["app", "main"]


def main() -> None:
    """Runs the command line. :data:`~spark_jobs.cli.commands.EXIT_CODES` lists its exit codes."""
    prepare_streams()
    try:
        with delivering():  # for help and schemas, which are written before a command begins
            app()
    except StorageError as error:
        Terminal(Output.TEXT, sys.stdout).fail(error)
        sys.exit(error.exit_code)
