"""The script for ``spark-submit``: ``spark-submit … main.py ENTRY --home URL …`` is ``spark-jobs run`` in the submitted Spark."""

import os
import sys
from importlib.util import find_spec
from pathlib import Path


def main() -> None:
    """Runs a pipeline in the Spark that ``spark-submit`` has started. Exits like ``spark-jobs run``."""
    _import_as_installed()
    import typer

    from spark_jobs.cli.run import SUBMITTED, run
    from spark_jobs.cli.terminal import prepare_streams

    prepare_streams()
    app = typer.Typer(name="main.py", pretty_exceptions_enable=False, add_completion=False)
    app.command()(run)
    app(obj=SUBMITTED if "PYSPARK_GATEWAY_PORT" in os.environ else None)


def _import_as_installed() -> None:
    """Removes the script's own folder from the import path. In our package, modules would be importable without its name.

    The package is the one of the Python that runs this file. The file may belong to another one, or be a copy that a cluster has made.
    """
    package = Path(__file__).resolve().parent
    if Path(sys.path[0]).resolve() != package or not (package / "__init__.py").exists():
        return
    del sys.path[0]
    if find_spec("spark_jobs") is None:
        sys.path.insert(0, str(package.parent))


if __name__ == "__main__":
    main()
