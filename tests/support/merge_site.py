"""Tables into which delta-rs merges staged rows, without a pipeline and without Spark."""

import json
import os
from collections import Counter
from collections.abc import Mapping, Sequence
from io import BytesIO
from pathlib import Path
from typing import Any
from uuid import uuid4

import pyarrow as pa
import pyarrow.parquet as pq
from deltalake import DeltaTable, QueryBuilder, Schema

from spark_jobs.protocol.delta_log import DELTA_LOG
from spark_jobs.protocol.documents import ActionsFile, Publish, Publisher, SinkCut, SinkMode
from spark_jobs.protocol.ids import AppId, CheckpointId, StageName
from spark_jobs.protocol.merge_cut import MergeCut
from spark_jobs.publication.delta_rs import delta_table, open_table
from spark_jobs.publication.delta_rs_merge import publish_merge, why_spark
from spark_jobs.storage.s3_settings import S3Settings
from spark_jobs.storage.table_uris import is_in_store, table_files

APP = AppId("pipeline/incarnation/sink")
Row = tuple[Any, ...]


class MergeSite:
    """A table, the deleted keys of its sink, and the directory of its staged rows.

    Args:
        root: Their directory. Existing tables are used as they are.
        mode: The mode of the sink.
        columns: The columns of the table, each with its type as Delta writes it.
        keys: The keys of the sink.
        sequence_by: The option of the sink.
        deletes: The sink's ``apply_as_deletes``.
        store: A place in a store for the tables, in place of ``root``.
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
        store: str | None = None,
        **options: Any,
    ) -> None:
        self.root, self.mode, self.checkpoint = root, mode, CheckpointId(0)
        place = store or root.as_uri()
        self.uri, staged, graves = f"{place}/table", f"{place}/staged", f"{place}/graves"
        remembers = sequence_by is not None and deletes is not None
        for uri, wanted in {self.uri: columns, staged: columns, graves: [*keys, sequence_by] if remembers else ()}.items():
            if wanted and not table_files(uri).names(DELTA_LOG):
                made = schema_of({column: columns[str(column)] for column in wanted})
                DeltaTable.create(uri, made, storage_options=_options(), **(options if uri == self.uri else {}))
        self.rule = MergeCut(
            keys=tuple(keys),
            sequence_by=sequence_by,
            apply_as_deletes=deletes,
            staged_in=staged,
            tombstones=graves if remembers else None,
            spark_above_bytes=2**30,
        )

    @property
    def schema(self) -> pa.Schema:
        """Returns the schema of staged rows."""
        return pa.schema(delta_table(self.rule.staged_in).schema().to_arrow())

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
        """Writes rows into a file. Returns its line."""
        name, written = f"{uuid4()}.parquet", BytesIO()
        pq.write_table(rows.select(self.schema.names).cast(self.schema), written)
        table_files(self.rule.staged_in).create(name, written.getvalue())
        return {"add": {"path": name, "size": len(written.getvalue()), "partitionValues": {}}, "batch": batch}

    def publish(self, lines: Sequence[Mapping[str, Any]]) -> None:
        """Merges staged files as the next checkpoint."""
        cut, table = self.cut(), open_table(self.uri)
        assert why_spark(cut, table, lines, replace=False) == []
        self.checkpoint = CheckpointId(self.checkpoint + 1)
        publish_merge(table, cut, lines, APP, self.checkpoint, {"checkpoint": self.checkpoint})

    def rows(self, columns: Sequence[str] = ()) -> Counter[Row]:
        """Returns the rows of the table, as delta-rs reads them."""
        if is_in_store(self.uri):  # a query would hold Python's lock, and the store's server may be in this process
            found = delta_table(self.uri).to_pyarrow_table(columns=list(columns) or None)
        else:
            listed = ", ".join(f'"{column}"' for column in columns) or "*"
            found = QueryBuilder().register("t", delta_table(self.uri)).execute(f"SELECT {listed} FROM t").read_all()
        return Counter(tuple(row.values()) for row in pa.table(found).to_pylist())

    @property
    def version(self) -> int:
        """Returns the table's newest Delta version."""
        return open_table(self.uri).facts.version


def _options() -> dict[str, str]:
    return S3Settings.from_environment(os.environ).for_delta_rs()


def schema_of(columns: Mapping[Any, str]) -> Schema:
    """Returns a Delta schema with nullable columns."""
    fields = [{"name": name, "type": kind, "nullable": True, "metadata": {}} for name, kind in columns.items()]
    return Schema.from_json(json.dumps({"type": "struct", "fields": fields}))
