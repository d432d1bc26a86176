"""A pipeline's home and tables without Spark.

pyarrow stages the Parquet files, delta-rs makes the tables, and the product's store writes the manifests.
"""

import json
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from types import MappingProxyType
from typing import Any
from urllib.parse import quote, unquote, urlsplit
from uuid import uuid4

import pyarrow as pa
import pyarrow.parquet as pq
from deltalake import DeltaTable

from spark_jobs.checkpoint.checkpoint_store import CheckpointStore
from spark_jobs.checkpoint.named_files import with_digest
from spark_jobs.protocol.checkpointing import Checkpointing
from spark_jobs.protocol.documents import ActionsFile, CheckpointKind, Manifest, OnEnd, Publish, Publisher, SinkCut
from spark_jobs.protocol.ids import (
    AppId,
    AttemptNumber,
    BatchId,
    CheckpointId,
    IncarnationId,
    PipelineName,
    PipelineUuid,
    RoundNumber,
    RunId,
    SinkName,
    StageName,
    WorkDirectoryId,
    app_id,
    file_prefix,
)
from spark_jobs.protocol.stage_cut import ChannelCut, StageCut
from spark_jobs.protocol.steps import Step
from spark_jobs.publication.delta_rs import open_table
from spark_jobs.publication.publisher import WITHOUT_SPARK, SinkIncarnation, close_incarnation
from spark_jobs.storage.files import Files
from spark_jobs.storage.open import open_files
from tests.support.delta_logs import Action, commits
from tests.support.opened_tables import opened

PIPELINE = PipelineUuid("11111111-1111-1111-1111-111111111111")
ANOTHER = PipelineUuid("another")
HOURLY, DAILY = SinkName("hourly"), SinkName("daily")
SCHEMA = pa.schema([("id", pa.int64()), ("day", pa.string())])
NOW = datetime(2026, 1, 1, tzinfo=UTC)
Row = tuple[int, str | None]


CHECKPOINTING = Checkpointing(
    interval_ms=60_000, timeout_ms=600_000, min_pause_ms=0, tolerable_failures=0, retained=1, unaligned=False,
    aligned_timeout_ms=None, max_in_flight_bytes=None,
)  # fmt: skip
"""The checkpoint settings of a pipeline that declares none."""


def a_manifest(checkpoint: int = 1, **changes: Any) -> Manifest:
    """Returns a valid manifest without sinks. ``changes`` replace fields."""
    fields: dict[str, Any] = {
        "checkpoint": CheckpointId(checkpoint),
        "parent": CheckpointId(checkpoint - 1) if checkpoint > 1 else None,
        "checkpoint_kind": CheckpointKind.FINAL,
        "on_end": OnEnd.SUSPEND,
        "pipeline": PIPELINE,
        "pipeline_name": PipelineName("flights"),
        "incarnation": IncarnationId("first"),
        "round": RoundNumber(checkpoint),
        "run": RunId(f"run-{checkpoint}"),
        "attempt": AttemptNumber(1),
        "work_directory": WorkDirectoryId("work"),
        "request": None,
        "began_at": NOW,
        "completed_at": NOW,
        "graph": {"stages": {"hourly": {"inputs": {"events": "events"}}, "daily": {"inputs": {"hourly": "hourly"}}}},
        "parameters": {},
        "settings": {},
        "spark": "4.2",
        "inputs": {},
        "stages": {},
        "sinks": {},
        "drained": False,
    }
    return Manifest(**(fields | changes))


def a_sink_cut(stage: str, **changes: Any) -> SinkCut:
    """Returns an empty cut of a sink that is published with each checkpoint. ``changes`` replace fields."""
    fields: dict[str, Any] = {
        "stage": StageName(stage),
        "table": f"file:///tables/{stage}",
        "table_id": stage,
        "staged_for": (),
        "partition_by": (),
        "app": AppId(stage),
        "actions": ActionsFile(path="p", sha256="", files=0, rows=0, size_bytes=0),
        "publish": Publish.EVERY_CHECKPOINT,
        "known_published": None,
    }
    return SinkCut(**(fields | changes))


def a_channel(batch: int, **changes: Any) -> ChannelCut:
    """Returns the channel's cut at ``batch`` of a stage. ``changes`` replace fields."""
    fields: dict[str, Any] = {
        "metadata": {},
        "protocol": {},
        "staged_for": None,
        "staged_in": "file:///t",
        "path": "p",
        "sha256": "",
        "first": BatchId(max(batch, 0)),
        "last": BatchId(batch),
        "in_flight_rows": 0,
        "in_flight_size_bytes": 0,
    }
    return ChannelCut(**(fields | changes))


def a_stage_cut(batch: int, **changes: Any) -> StageCut:
    """Returns the cut of a stage at ``batch``. ``changes`` replace fields."""
    fields: dict[str, Any] = {
        "query": "q",
        "batch": BatchId(batch),
        "offsets_sha256": "",
        "commits_sha256": "",
        "watermark_ms": 0,
        "finished": False,
        "drained": False,
        "drain_batches": 0,
        "rows": 0,
        "late_rows": 0,
        "channel": a_channel(batch),
    }
    return StageCut(**(fields | changes))


class Overtaking:
    """Another driver, which completes a checkpoint of that number just before the next manifest is created."""

    def __init__(self, store: CheckpointStore, number: int) -> None:
        self._store = store
        self._left = [a_manifest(number)]

    def before(self, step: Step) -> None:
        if step is Step.MANIFEST_CREATE and self._left:
            self._store.complete(self._left.pop())

    def after(self, step: Step) -> None:
        pass


class StagedPipeline:
    """Makes tables, stages rows and completes checkpoints as the runtime does."""

    def __init__(self, files: Files, directory: Path) -> None:
        self.files, self.directory = files, directory
        self.store = CheckpointStore(files)
        self.tables: dict[SinkName, str] = {}

    def close(self, sink: SinkName, app: AppId, decided_on: CheckpointId | None) -> None:
        """Closes an incarnation in a sink without a JVM."""
        close_incarnation(SinkIncarnation(sink, self.tables[sink], app, Publisher.DELTA_RS), decided_on, WITHOUT_SPARK)

    def make_table(self, sink: SinkName = HOURLY, *, partition_by: Sequence[str] = ("day",), **options: Any) -> str:
        uri = (self.directory / sink).as_uri()
        DeltaTable.create(uri, SCHEMA, partition_by=list(partition_by), **options)
        self.tables[sink] = uri
        return uri

    def make_channel(self, name: str) -> str:
        """Makes a table that an upsert has next to its own: its channel, or its tombstones. Returns the URI."""
        uri = (self.directory / name).as_uri()
        DeltaTable.create(uri, SCHEMA, configuration={"delta.checkpointInterval": "1000000000"})
        return uri

    def stage(
        self, sink: SinkName, rows: Sequence[Row], batch: int = 0, *, prefix: str = "", uri: str | None = None
    ) -> list[dict[str, Any]]:
        """Writes rows next to a table's own files, by default those of the sink's table. One file per partition value."""
        uri = uri or self.tables[sink]
        directory = path_of(uri)
        partitioned = open_table(uri).facts.partition_by == ("day",)
        lines = []
        for day in sorted({day for _, day in rows}, key=str):
            some = [(number, name) for number, name in rows if name == day]
            folder = f"day={'__HIVE_DEFAULT_PARTITION__' if day is None else quote(day, safe=' ')}/" if partitioned else ""
            relative = f"{folder}{prefix}part-{uuid4()}.parquet"
            (directory / relative).parent.mkdir(exist_ok=True)
            columns = {"id": pa.array([number for number, _ in some], pa.int64())}
            if not partitioned:
                columns["day"] = pa.array([name for _, name in some], pa.string())
            pq.write_table(pa.table(columns), directory / relative)
            add = {
                "path": quote(relative, safe="/="),
                "partitionValues": {"day": day} if partitioned else {},
                "size": (directory / relative).stat().st_size,
                "modificationTime": 1_700_000_000_000,
                "dataChange": True,
                "stats": json.dumps({"numRecords": len(some)}),
            }
            add = with_digest(add, open_files(str(directory)).digest(relative))
            lines.append({"add": add, "batch": batch})
        return lines

    def checkpoint(
        self,
        rows: Mapping[SinkName, Sequence[Row]],
        *,
        publish: Publish = Publish.FINAL,
        known_published: CheckpointId | None = None,
        replace: bool = False,
        cut: Mapping[str, Any] = MappingProxyType({}),
        **changes: Any,
    ) -> Manifest:
        """Stages ``rows`` and completes the next checkpoint of the head's incarnation.

        ``cut`` replaces fields of every sink's cut, ``changes`` fields of the manifest.
        """
        head = self.store.head()
        incarnation = changes.get("incarnation", head.incarnation if head else IncarnationId("first"))
        parent = head.checkpoint if head and head.incarnation == incarnation else None
        number = self.store.first_id(incarnation) if parent is None else self.store.next_id(parent)
        cuts = {}
        for sink, added in rows.items():
            prefix = f"{file_prefix(incarnation, StageName(sink))}{number}-"
            facts = open_table(self.tables[sink]).facts
            staged_in = cut["merge"].staged_in if cut.get("merge") else None
            recorded = {
                "stage": StageName(sink),
                "table": self.tables[sink],
                "table_id": facts.table_id,
                "staged_for": (facts.shape,),
                "partition_by": facts.partition_by,
                "app": app_id(PIPELINE, incarnation, sink),
                "actions": self.store.write_actions(number, sink, self.stage(sink, added, number, prefix=prefix, uri=staged_in)),
                "publish": publish,
                "known_published": known_published,
                "replace": replace,
            }
            cuts[sink] = SinkCut(**(recorded | dict(cut)))
        fields: dict[str, Any] = {"parent": parent, "incarnation": incarnation, "sinks": cuts}
        manifest = a_manifest(number, **(fields | changes))
        self.store.complete(manifest)
        return manifest

    def rows(self, sink: SinkName, version: int | None = None) -> list[Row]:
        """Returns the public rows of the table, sorted."""
        table = opened(self.tables[sink], version).to_pyarrow_table()
        return sorted(zip(table["id"].to_pylist(), table["day"].to_pylist(), strict=True), key=str)

    def log(self, sink: SinkName = HOURLY) -> list[list[Action]]:
        """Returns the actions of each version of the table."""
        return commits(path_of(self.tables[sink]))

    def commits(self, sink: SinkName) -> list[int]:
        """Returns the version of each SetTransaction in the table's log, in order, of any writer."""
        return [action["txn"]["version"] for commit in self.log(sink) for action in commit if "txn" in action]


def path_of(uri: str) -> Path:
    return Path(unquote(urlsplit(uri).path))
