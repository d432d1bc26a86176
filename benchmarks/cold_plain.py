"""The same work as ``cold_pipeline.py``, in a script as anybody would write it: a session with Delta, then a query for each stage."""

import os
from pathlib import Path

from benchmarks.plain_session import plain_session
from benchmarks.site import COLD_SETTINGS, plain_query


def main() -> None:
    spark = plain_session(COLD_SETTINGS)
    output, read = Path(os.environ["COLD_OUTPUT"]), os.environ["COLD_INPUT"]
    for number in range(int(os.environ["COLD_STAGES"])):
        table = str(output / f"stage_{number}")
        plain_query(spark, read, table, str(output / f"checkpoint_{number}")).awaitTermination()
        read = table
    spark.stop()


if __name__ == "__main__":
    main()
