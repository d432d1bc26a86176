"""Computes the lag of a source from Spark's progress reports."""

import json
from collections.abc import Mapping
from typing import Any

from spark_jobs.protocol.documents import InputLag


def source_lag(source: Mapping[str, Any]) -> InputLag:
    """Returns the lag of one source in a progress report, at the time when the batch was planned.

    Kafka's offsets count records per partition. Compacted records and ends of transactions have offsets without rows. A Delta table, files
    and other sources report no lag.
    """
    reached, latest = _partitions(source.get("endOffset")), _partitions(source.get("latestOffset"))
    if reached is None or latest is None:
        return InputLag()
    return InputLag(rows=sum(max(offset - reached.get(partition, 0), 0) for partition, offset in latest.items()))


def _partitions(text: Any) -> dict[tuple[str, str], int] | None:
    """Returns the offsets by topic and partition, or None if the text is something else."""
    try:
        topics = json.loads(text)
    except (TypeError, ValueError):
        return None
    if not isinstance(topics, dict) or not topics or not all(isinstance(each, dict) for each in topics.values()):
        return None
    found = {(topic, number): offset for topic, each in topics.items() for number, offset in each.items()}
    return found if all(isinstance(offset, int) for offset in found.values()) else None
