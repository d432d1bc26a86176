"""What ``spark-submit`` runs: ``spark-submit … main.py ENTRY --home URL …`` is ``spark-jobs run`` in the Spark that was submitted."""

import os
import sys
from pathlib import Path


def main() -> None:
    """Runs a pipeline in the Spark that ``spark-submit`` has started; exits as ``spark-jobs run`` does."""
    package = Path(__file__).resolve().parent
    if Path(sys.path[0]).resolve() == package:
        sys.path[0] = str(package.parent)  # a script's own folder comes first, and its modules are not to be found bare
    import typer

    from spark_jobs.cli.run import SUBMITTED, run

    app = typer.Typer(name="main.py", pretty_exceptions_enable=False, add_completion=False)
    app.command()(run)
    app(obj=SUBMITTED if "PYSPARK_GATEWAY_PORT" in os.environ else None)


if __name__ == "__main__":
    main()
