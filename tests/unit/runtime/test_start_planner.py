"""The tables in stores that a start counts ahead."""

from types import SimpleNamespace
from typing import Any

from spark_jobs.protocol.known_sources import KnownDelta
from spark_jobs.runtime.start_planner import tables_in_stores


def test_tables_of_ended_sources_and_in_directories_are_left_out() -> None:
    def source(path: str, *, ended: bool = False) -> Any:
        return SimpleNamespace(leaves=() if ended else ("leaf",), known=(KnownDelta(path=path, table="id"),))

    sources: Any = {
        "orders": source("s3a://lake/orders"),
        "rates": source("hdfs://host/rates"),
        "old": source("s3a://lake/old", ended=True),
        "local": source("/lake/local"),
        "mounted": source("file:/lake/mounted"),
        "topic": SimpleNamespace(leaves=("leaf",), known=("a topic",)),
    }
    assert tables_in_stores(sources) == {"s3a://lake/orders", "hdfs://host/rates"}
