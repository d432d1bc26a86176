"""Archives or deletes files that were read, once all rows that were computed from them are public.

The final checkpoint of a round has read every file that the round has pinned. Once all tables have its rows, and no checkpoint of the
middle of the round is kept, nothing in the home reads the files again. The pins say which they are: a file is taken only if it is still the
one that was pinned, by size and time. The end of that is recorded for each round; until then it is repeated.
"""

import logging
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any
from urllib.parse import unquote, urlsplit

from pyspark.sql import DataFrame, SparkSession

from spark_jobs.api.address import TableAddress
from spark_jobs.api.graph import Graph
from spark_jobs.api.refusals import Mistakes
from spark_jobs.api.source import AfterPublication, Source
from spark_jobs.api.stage import Stage
from spark_jobs.checkpoint.checkpoint_store import CheckpointStore
from spark_jobs.control.losses import LossLedger, LossState
from spark_jobs.control.rounds import Rounds
from spark_jobs.protocol.documents import CheckpointKind, Manifest, TidiedInput
from spark_jobs.protocol.errors import RejectedError
from spark_jobs.protocol.ids import InputName
from spark_jobs.protocol.losses import LostFile, LostFiles, SourceFile, said_files, units_of
from spark_jobs.protocol.pins import FilePin, FilesPin
from spark_jobs.protocol.steps import Step, step
from spark_jobs.publication.publisher import published
from spark_jobs.runtime.inputs.file_source import FileSource, files_root
from spark_jobs.runtime.inputs.inputs import source_frame
from spark_jobs.runtime.inputs.source_kind import refused_input
from spark_jobs.runtime.inputs.source_kinds import kind_of
from spark_jobs.runtime.spark.plan import streaming_leaves
from spark_jobs.runtime.spark.session import delete_file, file_statuses, move_file, qualified_path
from spark_jobs.storage.files import Files

_LOG = logging.getLogger(__name__)


def check_tidied(graph: Graph, archives: Mapping[InputName, str], session: SparkSession, params: Any) -> None:
    """Refuses sources that do not read files, or that read their own archive. Writes nothing.

    Args:
        graph: The pipeline.
        archives: Directory to which its files are moved, by source.
        session: Of the driver.
        params: For the functions.

    Raises:
        InvalidPipelineError: A source is refused.
    """
    mistakes = Mistakes()
    for name, source in graph.sources.items():
        if source.after_publication is not None:
            with mistakes.noted():
                _check_tidied(name, source_frame(source, session, params), session, archives.get(name))
    mistakes.check()


def _check_tidied(name: InputName, frame: DataFrame, session: SparkSession, archive: str | None) -> None:
    for leaf in streaming_leaves(frame):
        if not isinstance(kind_of(leaf), FileSource):
            raise refused_input(name, f"has after_publication, but reads {leaf.format}, not files", "Remove after_publication.")
        root = files_root(session, leaf.options["path"])
        place = qualified_path(session, archive) if archive else None
        if place is not None and _in_one_spelling(place).startswith(_in_one_spelling(root)):
            raise refused_input(
                name, f"reads {root} and has its archive in it: {place}", "Give it an archive outside of what it reads."
            )


def _in_one_spelling(url: str) -> str:
    """Returns the location of a directory with a slash at its end. ``s3:`` and ``s3a:`` are the same scheme."""
    return f"{TableAddress(f'{url}/', named=False).location.rstrip('/')}/"


@dataclass(frozen=True)
class Tidying:
    """Archives or deletes the files of sources that ask for it.

    Args:
        home: The home.
        graph: The pipeline.
        archives: Directory to which its files are moved, by source.
        spark: Reaches the files as the sources do.
    """

    home: Files
    graph: Graph
    archives: Mapping[InputName, str]
    spark: SparkSession

    def run(self) -> None:
        """Archives or deletes the files of every completed round whose final checkpoint is kept. Idempotent.

        Raises:
            StreamPipelineError: The home, or the storage of a table, does not answer. The next call continues.
        """
        sources = {name: source for name, source in self.graph.sources.items() if source.after_publication is not None}
        if not sources:
            return
        rounds, manifests = Rounds(self.home), CheckpointStore(self.home).manifests()
        for manifest in manifests:
            if manifest.checkpoint_kind is not CheckpointKind.FINAL or _is_needed(manifest, manifests):
                continue
            tidied = rounds.tidied(manifest.round)
            left = {name: source for name, source in sources.items() if name not in tidied}
            if left and all(result.version is not None for result in published(self.home, manifest.checkpoint).values()):
                for name, source in left.items():
                    rounds.tidy(self._tidy(manifest, name, source))

    def missing_files(self, stages: Sequence[Stage], accepted: Collection[InputName]) -> list[LostFiles]:
        """Returns the files that stages cannot read again, because they were archived or deleted.

        Considers only kept rounds.

        Args:
            stages: Stages that start over, and whose tables are replaced.
            accepted: Sources that are read without their missing files.

        Raises:
            RejectedError: Files of another source are missing.
        """
        read = {node.name for stage in stages for node in stage.inputs.values()}
        tidied = [name for name, source in self.graph.sources.items() if source.after_publication and name in read]
        found = {name: files for name in tidied if (files := self._gone(name))}
        if refused := sorted(found.keys() - set(accepted)):
            name, where = refused[0], self.archives.get(refused[0], "where they came from")
            raise RejectedError(
                "; ".join(f"Source '{each}' would be read without {said_files(found[each])}" for each in refused) + ".",
                exists="They were archived or deleted once their rows were public, and this start would remove those rows.",
                remedy=f"Restore them from {where}. Or keep the rows: without --full-refresh, or with "
                f"--on-rewind keep. Or go on without them: "
                f"{' '.join(f'--accept-data-loss {each}' for each in refused)} (accept_data_loss={refused}).",
                sources=refused,
                source=name,
            )
        return [
            LostFiles(input=name, stage=stage.name, files=tuple(files))
            for name, files in found.items()
            for stage in stages
            if any(node.name == name for node in stage.inputs.values())
        ]

    def _gone(self, name: InputName) -> list[LostFile]:
        """Returns the files of a source that rounds have archived or deleted, and that were not restored."""
        rounds = Rounds(self.home)
        tidied = [each.round for each in rounds.all() if name in rounds.tidied(each.round)]
        pins = [pin for number in tidied if (pinned := rounds.pinned(number, name)) for pin in pinned.pins]
        files = {file.path: file for pin in pins if isinstance(pin, FilesPin) for file in pin.files}
        statuses = file_statuses(self.spark, files)
        return [LostFile(path=path, size_bytes=files[path].size_bytes) for path in files if statuses[path] is None]

    def _tidy(self, manifest: Manifest, name: InputName, source: Source) -> TidiedInput:
        lost = {
            file.path for loss in manifest.losses if isinstance(loss, LostFiles) and loss.input == name for file in loss.files
        }
        losses = [entry.recorded.loss for entry in LossLedger(self.home).entries() if entry.state is LossState.OPEN]
        passed_over = {unit.path for unit in units_of(losses) if isinstance(unit, SourceFile)}  # also those of earlier rounds
        left = []
        pins = [pin for pin in manifest.inputs.get(name, ()) if isinstance(pin, FilesPin)]
        for pin in pins:
            files = {file.path: file for file in pin.files if file.path not in lost | passed_over}
            for path, status in file_statuses(self.spark, files).items():
                file = files[path]
                if status is None:  # an earlier attempt may have archived or deleted it
                    continue
                if status != (file.timestamp_ms, file.size_bytes):
                    left.append(path)
                    continue
                with step(Step.TIDY_FILE):
                    self._take_away(pin, file, source)
        done = sum(len(pin.files) for pin in pins) - len(left)
        _LOG.info("source %s: %d files of round %d are public: %s", name, done, manifest.round, source.after_publication)
        if left:
            _LOG.warning("source %s: %d files stay, because they have changed since they were read: %s", name, len(left), left[0])
        return TidiedInput(round=manifest.round, input=name, tidied_at=datetime.now(UTC), left=tuple(left))

    def _take_away(self, pin: FilesPin, file: FilePin, source: Source) -> None:
        if source.after_publication is AfterPublication.DELETE:
            delete_file(self.spark, file.path)
            return
        path, root = unquote(urlsplit(file.path).path), unquote(urlsplit(files_root(self.spark, pin.path)).path)
        below = path.removeprefix(root).lstrip("/") or path.rpartition("/")[2]
        move_file(self.spark, file.path, f"{self.archives[source.name].rstrip('/')}/{below}", file.timestamp_ms)


def _is_needed(final: Manifest, manifests: Sequence[Manifest]) -> bool:
    """Returns True if a kept checkpoint is in the middle of a completed round: a start from it reads files of the round again."""
    return any(
        each.round == final.round and each.incarnation == final.incarnation and each.checkpoint_kind is not CheckpointKind.FINAL
        for each in manifests
    )
