"""The command line, ``spark-jobs``: one module a command, each on the API that the Airflow side uses.

Only ``run`` loads the driver's code, when it is called: the others start without Spark.
"""

import sys

from spark_jobs.cli.commands import app
from spark_jobs.cli.terminal import Output, Terminal, delivering, prepare_streams
from spark_jobs.protocol.errors import StorageError

__all__ = ["app", "main"]


def main() -> None:
    """Runs the command line. :data:`~spark_jobs.cli.commands.EXIT_CODES` says what it exits with."""
    prepare_streams()
    try:
        with delivering():  # help and schemas, which are written before a command begins
            app()
    except StorageError as error:
        Terminal(Output.TEXT, sys.stdout).fail(error)
        sys.exit(error.exit_code)
