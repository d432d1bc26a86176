"""The query of ``state_sizes.py`` in a script as anybody would write it."""

import os

from benchmarks.plain_session import plain_session
from benchmarks.site import COLD_SETTINGS
from benchmarks.state_sizes import kept
from spark_jobs.runtime.spark.session import REQUIRED_SETTINGS


def main() -> None:
    spark = plain_session({**COLD_SETTINGS, **REQUIRED_SETTINGS})
    source = spark.readStream.format("delta").option("maxFilesPerTrigger", 1).load(os.environ["LIVE_INPUT"])
    rows = source.withWatermark("at", "1 minute")
    writer = kept(rows).writeStream.format("delta").option("checkpointLocation", os.environ["LIVE_CHECKPOINT"])
    writer.start(os.environ["LIVE_OUTPUT"]).awaitTermination()


if __name__ == "__main__":
    main()
