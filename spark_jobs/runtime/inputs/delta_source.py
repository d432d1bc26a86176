"""Delta tables as sources: pinned at a version, which Spark's offsets count up to."""

import json
from dataclasses import dataclass

from deltalake import DeltaTable
from deltalake.exceptions import DeltaError
from pyspark.sql import DataFrame, SparkSession

from spark_jobs.protocol.adopted_offsets import AdoptedOffsets
from spark_jobs.protocol.ids import InputName
from spark_jobs.protocol.pins import DeltaPin, Pin
from spark_jobs.publication.delta_jvm import DeltaJvm
from spark_jobs.runtime.inputs.bounds import NO_OFFSET, Bound
from spark_jobs.runtime.inputs.old_query import refused
from spark_jobs.runtime.inputs.source_kind import OwnLog, SourceKind
from spark_jobs.runtime.spark.plan import Leaf


class DeltaSource(SourceKind):
    """Streams over Delta tables."""

    def reads(self, leaf: Leaf) -> bool:
        return leaf.node == "StreamingRelation" and leaf.format.lower() == "delta"

    def pin(self, name: InputName, frame: DataFrame, leaf: Leaf) -> DeltaPin:
        path = leaf.options["path"]
        pin = delta_pin(frame.sparkSession, path)
        return pin.model_copy(update={"rows": _rows(path, pin.version)})

    def bound(self, pin: Pin, earlier: Pin | None, leaf: Leaf, log: OwnLog) -> "DeltaBound":
        assert isinstance(pin, DeltaPin)
        before = earlier.rows or 0 if isinstance(earlier, DeltaPin) else 0
        return DeltaBound(pin, None if pin.rows is None else pin.rows - before)

    def check_adopted(self, name: InputName, adopted: AdoptedOffsets, leaf: Leaf, session: SparkSession) -> None:
        path = leaf.options.get("path", "")
        table, expected = delta_pin(session, path).table, json.loads(adopted.offset)["reservoirId"]
        if table != expected:
            raise refused(
                name,
                f"the table at {path} is not the one that the query in {adopted.checkpoint} read",
                "Give the checkpoint directory of the query that read this table; a table that was made anew has no offsets to adopt.",
                path=path,
                expected=expected,
                found=table,
            )

    def begin_adopted(self, name: InputName, adopted: AdoptedOffsets, log: OwnLog) -> str:
        return adopted.offset


@dataclass(frozen=True)
class DeltaBound(Bound):
    """Every row up to a table version."""

    pin: DeltaPin
    rows: int | None = None
    """Rows that the round adds to those before it."""

    def exceeded(self, previous: str | None, line: str) -> bool:
        if line == NO_OFFSET:
            return False
        offset = json.loads(line)
        version, index = offset["reservoirVersion"], offset["index"]
        if offset["isStartingVersion"]:
            return bool(version > self.pin.version)
        return bool(version > self.pin.version + 1 or (version == self.pin.version + 1 and index >= 0))

    def reached(self, line: str | None) -> bool:
        if line is None or line == NO_OFFSET:
            return False
        offset = json.loads(line)
        return not offset["isStartingVersion"] and bool(offset["reservoirVersion"] > self.pin.version)

    def cut_back(self, previous: str | None, line: str) -> str:
        return delta_offset(self.pin.table, self.pin.version + 1)

    def rows_expected(self, line: str | None) -> int | None:
        return self.rows


def delta_offset(table: str, version: int) -> str:
    """The line of Spark's offset log that stands for everything before ``version`` of a Delta table."""
    return json.dumps(
        {"sourceVersion": 1, "reservoirId": table, "reservoirVersion": version, "index": -1, "isStartingVersion": False}
    )


def delta_pin(session: SparkSession, path: str) -> DeltaPin:
    """The newest version of a table; its rows are not counted."""
    version, metadata, _ = DeltaJvm(session).snapshot(path)
    return DeltaPin(path=path, table=metadata["id"], version=version)


def _rows(path: str, version: int) -> int | None:
    """The rows of a table, from the statistics in its log."""
    try:
        counts = DeltaTable(path, version=version).get_add_actions().column("num_records").to_pylist()
    except (DeltaError, KeyError, OSError):
        return None
    return None if None in counts else sum(counts)
