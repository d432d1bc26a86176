"""Homes as commands see them: the owner of a home, and the public part of its checkpoints."""

from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import cache
from graphlib import TopologicalSorter
from typing import Any

from spark_jobs.control.channel import Channel
from spark_jobs.control.home import open_home as open_home_files
from spark_jobs.control.rounds import Rounds
from spark_jobs.control.status import read_status
from spark_jobs.home.layout import manifest_path
from spark_jobs.protocol.documents import Manifest, PipelineDocument, SinkCut, Status
from spark_jobs.protocol.errors import NotFoundError, RejectedError, StreamPipelineError
from spark_jobs.protocol.ids import AppId, CheckpointId, StageName
from spark_jobs.publication.delta_rs import open_table
from spark_jobs.publication.evidence import version_with
from spark_jobs.publication.pending import CLOSED
from spark_jobs.storage.files import Files
from spark_jobs.storage.open import check_directory


def open_home(url: str, work_root: str | None = None) -> tuple[Files, PipelineDocument]:
    """Opens an existing home, and returns it with the document of its pipeline.

    Args:
        url: The home.
        work_root: The place for its work directories; only for commands that run stages.

    Raises:
        InvalidParameterError: The URL is not that of a directory that can be opened.
        RejectedError: No pipeline has run there.
    """
    files = open_home_files(url, work_root)
    try:
        return files, Channel(files).claimed()
    except RejectedError:
        check_directory(files)
        raise


def manifest_url(files: Files, manifest: Manifest) -> str:
    return f"{files.url}/{manifest_path(manifest.checkpoint)}"


def ordered_stages(graph: Mapping[str, Any]) -> list[StageName]:
    """Returns the stages, each after those that it reads. A document does not keep the order of its fields."""
    stages = graph.get("stages", {})
    sorter = TopologicalSorter({name: sorted(stage["inputs"].values()) for name, stage in sorted(stages.items())})
    return [StageName(name) for name in sorter.static_order() if name in stages]


def heartbeats(files: Files) -> Callable[[], Status | None]:
    """Returns a function that reads a home's newest heartbeat, with stages in the order of the graph; None if there is none."""
    order: list[StageName] = []
    with suppress(StreamPipelineError):  # the order is only for display
        if latest := Rounds(files).latest():
            order = ordered_stages(latest.graph)

    def read() -> Status | None:
        heartbeat = read_status(files)
        if heartbeat is None:
            return None
        names = [name for name in dict.fromkeys([*order, *heartbeat.stages]) if name in heartbeat.stages]
        return heartbeat.model_copy(update={"stages": {name: heartbeat.stages[name] for name in names}})

    return read


class Publications:
    """The published part of a home's checkpoints. Opens each table only once if possible."""

    def __init__(self) -> None:
        self._reached = cache(_reached)

    def published(self, cut: SinkCut, checkpoint: CheckpointId) -> bool | None:
        """Returns True if the checkpoint is public in the sink, None if the table is missing."""
        try:
            reached = self._reached(cut.table, cut.app)
            return self.version(cut, checkpoint) is not None if reached == CLOSED else (reached or 0) >= checkpoint
        except NotFoundError:
            return None

    def abandoned(self, cut: SinkCut) -> bool:
        """Returns True if a fresh start has closed the cut's incarnation in the table. Rows that are not public will never be."""
        try:
            return self._reached(cut.table, cut.app) == CLOSED
        except NotFoundError:
            return False

    def version(self, cut: SinkCut, checkpoint: CheckpointId) -> int | None:
        """Returns the Delta version in which the checkpoint is public, or None.

        Raises:
            NotFoundError: The table is missing.
        """
        found = version_with(cut, checkpoint)
        closed = found is not None and open_table(cut.table, found).transaction_version(cut.app) == CLOSED
        return None if closed else found


def _reached(table: str, app: AppId) -> CheckpointId | None:
    return open_table(table).transaction_version(app)
