"""Tables into which delta-rs merges staged rows, without a pipeline and without Spark."""

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any
from uuid import uuid4

import pyarrow as pa
import pyarrow.parquet as pq
from deltalake import DeltaTable, QueryBuilder, Schema

from spark_jobs.protocol.documents import ActionsFile, Publish, Publisher, SinkCut, SinkMode
from spark_jobs.protocol.ids import AppId, CheckpointId, StageName
from spark_jobs.protocol.merge_cut import MergeCut
from spark_jobs.publication.delta_rs import open_table
from spark_jobs.publication.delta_rs_merge import publish_merge, why_spark

APP = AppId("pipeline/incarnation/sink")
Row = tuple[Any, ...]


class MergeSite:
    """A table, the deleted keys of its sink, and the directory of its staged rows.

    Args:
        root: Where they are. Tables that are there already are taken as they are.
        mode: The sink's.
        columns: The table's, each with its type as Delta writes it.
        keys: The sink's.
        sequence_by: The same.
        deletes: The sink's ``apply_as_deletes``.
    """

    def __init__(
        self,
        root: Path,
        mode: SinkMode,
        columns: Mapping[str, str],
        *,
        keys: Sequence[str],
        sequence_by: str | None = None,
        deletes: str | None = None,
        **options: Any,
    ) -> None:
        self.root, self.mode, self.checkpoint = root, mode, CheckpointId(0)
        self.uri = (root / "table").as_uri()
        remembers = sequence_by is not None and deletes is not None
        for name, wanted in {"table": columns, "staged": columns, "graves": [*keys, sequence_by] if remembers else ()}.items():
            if wanted and not (root / name).exists():
                made = schema_of({column: columns[str(column)] for column in wanted})
                DeltaTable.create((root / name).as_uri(), made, **(options if name == "table" else {}))
        self.rule = MergeCut(
            keys=tuple(keys),
            sequence_by=sequence_by,
            apply_as_deletes=deletes,
            staged_in=(root / "staged").as_uri(),
            tombstones=(root / "graves").as_uri() if remembers else None,
            spark_above_bytes=2**30,
        )

    @property
    def schema(self) -> pa.Schema:
        """The schema of staged rows."""
        return pa.schema(DeltaTable((self.root / "staged").as_uri()).schema().to_arrow())

    def cut(self) -> SinkCut:
        """Returns a checkpoint's cut of the sink."""
        facts = open_table(self.uri).facts
        return SinkCut(
            stage=StageName("stage"),
            mode=self.mode,
            publisher=Publisher.DELTA_RS,
            table=self.uri,
            table_id=facts.table_id,
            staged_for=(facts.shape,),
            partition_by=facts.partition_by,
            app=APP,
            actions=ActionsFile(path="p", sha256="", rows=0, size_bytes=0, files=0),
            publish=Publish.EVERY_CHECKPOINT,
            known_published=None,
            merge=self.rule,
        )

    def stage(self, rows: pa.Table, batch: int = 0) -> dict[str, Any]:
        """Writes rows into a file; returns its line."""
        path = self.root / "staged" / f"{uuid4()}.parquet"
        pq.write_table(rows.select(self.schema.names).cast(self.schema), path)
        return {"add": {"path": path.name, "size": path.stat().st_size, "partitionValues": {}}, "batch": batch}

    def publish(self, lines: Sequence[Mapping[str, Any]]) -> None:
        """Merges staged files as the next checkpoint."""
        cut, table = self.cut(), open_table(self.uri)
        assert why_spark(cut, table, lines, replace=False) == []
        self.checkpoint = CheckpointId(self.checkpoint + 1)
        publish_merge(table, cut, lines, APP, self.checkpoint, {"checkpoint": self.checkpoint})

    def rows(self, columns: Sequence[str] = ()) -> Counter[Row]:
        """The rows of the table, as delta-rs reads them."""
        listed = ", ".join(f'"{column}"' for column in columns) or "*"
        found = QueryBuilder().register("t", DeltaTable(self.uri)).execute(f"SELECT {listed} FROM t").read_all()
        return Counter(tuple(row.values()) for row in pa.table(found).to_pylist())

    @property
    def version(self) -> int:
        """The table's newest Delta version."""
        return open_table(self.uri).facts.version


def schema_of(columns: Mapping[Any, str]) -> Schema:
    """A Delta schema of columns that may all be null."""
    fields = [{"name": name, "type": kind, "nullable": True, "metadata": {}} for name, kind in columns.items()]
    return Schema.from_json(json.dumps({"type": "struct", "fields": fields}))
