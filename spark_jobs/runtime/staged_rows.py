"""What a checkpoint has staged and not published, as a frame: for whoever audits rows before anyone else sees them."""

import atexit
import shutil
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any
from uuid import uuid4

from pyspark.sql import DataFrame, SparkSession

from spark_jobs.checkpoint.store import CheckpointStore
from spark_jobs.protocol.codec import canonical
from spark_jobs.protocol.ids import CheckpointId, SinkName
from spark_jobs.publication.pending import chosen_manifest, pending_actions, sink_cut
from spark_jobs.publication.staged_files import table_directory
from spark_jobs.runtime.session import DeltaJvm
from spark_jobs.storage.files import Files
from spark_jobs.storage.open import open_files

_LOG = "_delta_log/00000000000000000000.json"


def read_staged(spark: SparkSession, home: str | Files, sink: str, checkpoint: int | None = None) -> DataFrame:
    """The rows that publishing a checkpoint would add to a sink's table, with the table's columns.

    It is what the manifests name, nothing else: rows of a round that is still under way are not in it, and once the checkpoint is
    published the frame is empty. Nothing in the home or in the table is changed. The frame can be read as long as this process
    lives and the staged files are there.

    Args:
        spark: A session with Delta.
        home: The home, or its URL.
        sink: The sink's name.
        checkpoint: The checkpoint; by default the newest valid one. Unpublished checkpoints before it count, as in a publication.

    Raises:
        RejectedError: No such checkpoint or sink, or its incarnation was closed.
        CorruptDocumentError: A manifest or a file of actions was altered.
        NotFoundError: The table or a document is gone.
    """
    files = open_files(home) if isinstance(home, str) else home
    number = None if checkpoint is None else CheckpointId(checkpoint)
    cut = sink_cut(chosen_manifest(CheckpointStore(files), number), SinkName(sink))
    adds = pending_actions(files, SinkName(sink), number)
    _, metadata, protocol = DeltaJvm(spark).snapshot(str(table_directory(cut.table)))
    return spark.read.format("delta").load(str(_scratch_table(cut.table, metadata, protocol, adds)))


def _scratch_table(
    table_uri: str, metadata: Mapping[str, Any], protocol: Mapping[str, Any], adds: Sequence[Mapping[str, Any]]
) -> Path:
    """A Delta log that names the staged files by absolute paths; removed when this process ends.

    It has an id of its own, because Delta keeps what it knows of a table by id.
    """
    directory = Path(tempfile.mkdtemp(prefix="staged-rows-"))
    atexit.register(shutil.rmtree, directory, ignore_errors=True)
    actions: list[dict[str, Any]] = [
        {"commitInfo": {"timestamp": 0, "operation": "READ STAGED", "operationParameters": {}}},
        {"protocol": protocol},
        {"metaData": {**metadata, "id": str(uuid4())}},
        *({"add": {**add, "path": f"{table_uri}/{add['path']}"}} for add in adds),
    ]
    log = directory / _LOG
    log.parent.mkdir()
    log.write_bytes(b"\n".join(canonical(action) for action in actions) + b"\n")
    return directory
