"""The checkpoints of one home.

Invariants:

1. Checkpoint k exists if and only if ``manifests/<k>.json`` does. All files that it names were made durable before.
2. A corrupt manifest keeps its number for ever and is never used: neither as head, nor as parent, nor for publishing.
3. The name of a file of actions, or of a channel, contains the hash of its content. A repeated try finds its own file, and a try of
   another attempt at the same number can neither collide with it nor replace it.
4. A chain never leaves its incarnation.
"""

import json
import logging
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from contextlib import closing
from typing import Any

from spark_jobs.home.layout import (
    HISTORY,
    MANIFESTS,
    actions_path,
    channel_file_path,
    history_path,
    history_tries,
    manifest_numbers,
    manifest_path,
)
from spark_jobs.home.manifests import newest_manifest, newest_of, read_manifest
from spark_jobs.protocol.codec import canonical, sha256
from spark_jobs.protocol.documents import ActionsFile, CarriedActions, ErrorReport, Manifest, SinkCut
from spark_jobs.protocol.errors import (
    AlreadyExistsError,
    ConflictError,
    CorruptDocumentError,
    FencedError,
    NotFoundError,
    RejectedError,
)
from spark_jobs.protocol.history import CheckpointHistory
from spark_jobs.protocol.ids import CheckpointId, IncarnationId, SinkName, StageName
from spark_jobs.protocol.stage_cut import ChannelCut
from spark_jobs.protocol.steps import Step, step
from spark_jobs.storage.files import (
    READ_MAX_BYTES,
    Digesting,
    Files,
    bounded,
    create_document,
    lines_of,
    read_document,
    sync_readable,
)

_LOG = logging.getLogger(__name__)
_LINE_MAX_BYTES = 64 << 20
HISTORY_KEPT = 1_000
"""Number of tries whose history is kept."""


class CheckpointStore:
    """Reads and writes the checkpoints of one home. It has no state: every call reads the files.

    Every method raises :class:`~spark_jobs.protocol.errors.StorageError` or one of its leaves where the storage fails, and may
    then be repeated.

    Args:
        files: The home.
        line_max_bytes: Maximum size of the line of one staged file or one batch.
    """

    def __init__(self, files: Files, line_max_bytes: int = _LINE_MAX_BYTES) -> None:
        self._files, self._line_max_bytes = files, line_max_bytes
        self.home = files.url
        """The URL."""

    def complete(self, manifest: Manifest) -> None:
        """Completes a checkpoint. Durable on return. The same manifest again is a success.

        Raises:
            AlreadyExistsError: Another manifest has this number. Start over from the head.
            OutcomeUnknownError: The checkpoint may exist. Repeat with the same manifest.
        """
        with step(Step.MANIFEST_CREATE):
            create_document(self._files, manifest_path(manifest.checkpoint), manifest)

    def complete_newest(self, manifest: Manifest) -> None:
        """Completes a checkpoint as :meth:`complete` does. A higher number that is seen afterwards voids it (model rule 'relist').

        Raises:
            FencedError: Another attempt has completed this or a later number. The manifest's attempt is not the live one.
            OutcomeUnknownError: The checkpoint may exist. Repeat with the same manifest.
        """
        lost = FencedError(
            f"Checkpoint {manifest.checkpoint} was completed by another attempt while attempt {manifest.attempt} was taking it.",
            safe="That checkpoint is valid. Nothing was published twice.",
            remedy="Start again: the pipeline continues from the newest checkpoint.",
            checkpoint=manifest.checkpoint,
            attempt=manifest.attempt,
        )
        try:
            self.complete(manifest)
        except ConflictError as error:
            raise lost from error
        if max(self.taken()) > manifest.checkpoint:
            raise lost

    def make_durable(self, checkpoints: Iterable[CheckpointId]) -> None:
        """Makes manifests durable that another process has created. They can be read a moment before they survive a power loss.

        A process that relies on a manifest, such as a publisher, calls this first.
        """
        sync_readable(self._files, *(manifest_path(checkpoint) for checkpoint in checkpoints))

    def write_actions(self, checkpoint: CheckpointId, sink: SinkName, lines: Iterable[Mapping[str, Any]]) -> ActionsFile:
        """Writes the actions that ``checkpoint`` will add to ``sink``, durably.

        Args:
            checkpoint: Number of the future manifest.
            sink: Sink of the files.
            lines: ``{"add": …, "batch": …}`` for each staged file, with Delta's ``add``: its path is relative to the table and
                URL-encoded.

        Returns:
            The entry for the manifest's :class:`~spark_jobs.protocol.documents.SinkCut`.

        Raises:
            RejectedError: A line is not an ``add`` with a row count in its statistics. Nothing was written.
        """
        rows = size_bytes = count = 0
        encoded = []
        for line in lines:
            rows += _rows(sink, line)
            size_bytes += int(line["add"]["size"])
            count += 1
            encoded.append(canonical(dict(line)) + b"\n")
        data = b"".join(encoded)
        digest = sha256(data)
        path = actions_path(checkpoint, sink, digest)
        with step(Step.ACTIONS_CREATE):
            self._files.create(path, data)
        return ActionsFile(path=path, sha256=digest, files=count, rows=rows, size_bytes=size_bytes)

    def read_actions(self, cut: SinkCut | CarriedActions) -> list[dict[str, Any]]:
        """Returns the lines that a checkpoint adds to a sink, as given to :meth:`write_actions`, without carried ones.

        Raises:
            CorruptDocumentError: The file is not the one that the manifest names.
            NotFoundError: The file is missing.
        """
        return self._lines(cut.actions.path, cut.actions.sha256)

    def write_channel(self, checkpoint: CheckpointId, stage: StageName, lines: Iterable[Mapping[str, Any]]) -> tuple[str, str]:
        """Writes the part of a stage's channel that a restore of ``checkpoint`` needs, durably.

        Args:
            checkpoint: Number of the future manifest.
            stage: Stage of the channel.
            lines: One line of the private log for each batch.

        Returns:
            The path and the SHA-256 for the manifest's :class:`~spark_jobs.protocol.stage_cut.ChannelCut`.
        """
        data = b"".join(canonical(dict(line)) + b"\n" for line in lines)
        digest = sha256(data)
        path = channel_file_path(checkpoint, stage, digest)
        with step(Step.CHANNEL_CREATE):
            self._files.create(path, data)
        return path, digest

    def read_channel(self, cut: ChannelCut) -> list[dict[str, Any]]:
        """Reads the lines as they were given to :meth:`write_channel`.

        Raises:
            CorruptDocumentError: The file is not the one that the manifest names.
            NotFoundError: The file is missing.
        """
        return self._lines(cut.path, cut.sha256)

    def taken(self) -> list[CheckpointId]:
        """Returns the numbers that are in use, ascending: those of valid and of corrupt manifests. One listing."""
        return manifest_numbers(self._files.names(MANIFESTS))

    def corrupt(self) -> dict[CheckpointId, CorruptDocumentError]:
        """Returns the numbers whose manifest cannot be used, with the errors."""
        return {k: found for k in self.taken() if isinstance(found := self._try(k), CorruptDocumentError)}

    def ids(self) -> list[CheckpointId]:
        """Returns the checkpoints that exist and can be used, ascending."""
        return [manifest.checkpoint for manifest in self.manifests()]

    def manifests(self) -> list[Manifest]:
        """Returns the manifests that can be used, ascending, each read once."""
        return [found for k in self.taken() if isinstance(found := self._try(k), Manifest)]

    def manifest(self, checkpoint: CheckpointId) -> Manifest:
        """Returns the manifest of one checkpoint.

        Raises:
            NotFoundError: There is no such checkpoint.
            CorruptDocumentError: Its manifest is torn, altered, or another checkpoint's.
            UnsupportedFormatError: A newer version wrote it.
        """
        return read_manifest(self._files, checkpoint)

    def kept(self, checkpoint: CheckpointId) -> Manifest | None:
        """Returns a manifest, or None if it is missing because the checkpoint was discarded."""
        try:
            return self.manifest(checkpoint)
        except NotFoundError:
            return None

    def usable(self, checkpoint: CheckpointId) -> Manifest | None:
        """Returns a manifest, or None if the checkpoint was discarded or is corrupt."""
        try:
            return self.kept(checkpoint)
        except CorruptDocumentError:
            return None

    def head(self) -> Manifest | None:
        """Returns the newest valid manifest, or None if there is no checkpoint. Corrupt newer ones are logged as warnings.

        Raises:
            UnsupportedFormatError: A newer version of this software has written the newest one.
        """
        return newest_manifest(self._files)

    def first_id(self, incarnation: IncarnationId) -> CheckpointId:
        """Returns the number of an incarnation's first checkpoint: one more than the highest number in use.

        If the incarnation has a checkpoint already, returns the number of its newest one. Creating that one fails, which tells the caller
        that another process has begun the incarnation.
        """
        taken = self.taken()  # read once: a checkpoint that is created later has the returned number
        newest = newest_of(self._files, taken)
        if newest is not None and newest.incarnation == incarnation:
            return newest.checkpoint
        return CheckpointId(max(taken, default=0) + 1)

    def next_id(self, parent: CheckpointId) -> CheckpointId:
        """Returns the number of the next checkpoint within an incarnation.

        A number of a *valid* manifest is not skipped. Creating it then fails, which tells the caller that another process went on from
        ``parent``.

        Args:
            parent: Checkpoint that it continues.
        """
        taken = self.taken()
        following = CheckpointId(parent + 1)
        while following in taken and isinstance(self._try(following), CorruptDocumentError):
            following = CheckpointId(following + 1)
        return following

    def ancestry(self, newest: Manifest) -> Iterator[Manifest]:
        """Yields ``newest`` and its ancestors within its incarnation, newest first. The ancestors are read one by one.

        Raises:
            NotFoundError: A manifest of the chain is missing.
            CorruptDocumentError: A manifest of the chain cannot be used.
        """
        yield newest
        manifest = newest
        while manifest.parent is not None and (manifest := self.manifest(manifest.parent)).incarnation == newest.incarnation:
            yield manifest

    def incarnation(self, newest: Manifest) -> Iterator[Manifest]:
        """Yields ``newest`` and the earlier checkpoints of its incarnation that were not discarded, newest first, one by one.

        A corrupt number that was skipped when it was new is skipped here, too.

        Raises:
            CorruptDocumentError: A checkpoint that another continues cannot be used any more.
        """
        yield newest
        parent = newest.parent
        for k in reversed(self.taken()):
            found = self._try(k) if k < newest.checkpoint else None
            if isinstance(found, CorruptDocumentError) and k == parent:
                raise found
            if isinstance(found, Manifest):
                if found.incarnation != newest.incarnation:
                    return
                yield found
                parent = found.parent

    def chain(self, checkpoint: CheckpointId, down_to: CheckpointId | None = None) -> list[Manifest]:
        """Returns the checkpoints that lead to ``checkpoint`` within its incarnation, oldest first.

        Args:
            checkpoint: The last one.
            down_to: Checkpoint before the first one. Its own manifest may be missing. None: the incarnation's beginning.

        Raises:
            RejectedError: ``down_to`` is neither ``checkpoint`` nor one of its ancestors in its incarnation.
            NotFoundError: A manifest of the chain is missing.
            CorruptDocumentError: A manifest of the chain cannot be used.
        """
        if checkpoint == down_to:
            return []
        chain: list[Manifest] = []
        parent: CheckpointId | None = checkpoint
        ancestry = self.ancestry(self.manifest(checkpoint))
        while parent != down_to and (down_to is None or (parent is not None and parent > down_to)):
            ancestor = next(ancestry, None)
            if ancestor is None:
                break
            chain.append(ancestor)
            parent = ancestor.parent
        if down_to is not None and (parent != down_to or self._begins(chain[-1], after=down_to)):
            raise RejectedError(
                f"Checkpoint {down_to} is not on the chain of parents of checkpoint {checkpoint}.",
                exists=f"That chain is {', '.join(str(m.checkpoint) for m in reversed(chain)) or checkpoint}.",
                remedy="See 'a checkpoint that is not on the chain' in docs/troubleshooting.md.",
                checkpoint=checkpoint,
                not_on_chain=down_to,
            )
        return chain[::-1]

    def record(self, history: CheckpointHistory) -> str:
        """Records one try at a checkpoint, and deletes all but the newest :data:`HISTORY_KEPT` records. Durable on return.

        Returns:
            The path, ``history/<k>-<try>.json``, with the first free number of a try.
        """
        tries = self._tries()
        attempt = 1 + max((number for k, number in tries if k == history.checkpoint), default=0)
        while True:
            path = history_path(history.checkpoint, attempt)
            try:
                create_document(self._files, path, history)
            except AlreadyExistsError:
                attempt += 1
            else:
                break
        for k, number in tries[: max(len(tries) + 1 - HISTORY_KEPT, 0)]:
            self._files.delete(history_path(k, number))
        return path

    def history(self, after: int = 0) -> list[CheckpointHistory]:
        """Returns the records of all tries at checkpoints with a number above ``after``, by checkpoint and try.

        Unreadable entries are left out.
        """
        found = [self._remembered(k, number) for k, number in self._tries() if k > after]
        return [each for each in found if each is not None]

    def _lines(self, path: str, expected: str) -> list[dict[str, Any]]:
        place, lines = f"{self._files.url}/{path}", list[Any]()
        with closing(self._files.chunks(path)) as chunks:
            passing = Digesting(bounded(chunks, READ_MAX_BYTES, place))
            rest = iter(passing)
            try:
                lines.extend(json.loads(line) for line in lines_of(rest, self._line_max_bytes, place))
            except (ValueError, RecursionError):
                lines.append(None)
                deque(rest, maxlen=0)
        found = passing.digest.sha256
        if found == expected and all(isinstance(line, dict) for line in lines):
            return lines
        raise CorruptDocumentError(
            f"{self._files.url}/{path} was altered: expected SHA-256 {expected}, found {found}.",
            remedy="Restore the file from a copy, or see 'a corrupt document' in docs/troubleshooting.md.",
            path=place,
            expected=expected,
            found=found,
        )

    def _tries(self) -> list[tuple[CheckpointId, int]]:
        return history_tries(self._files.names(HISTORY))

    def failures_since(self, checkpoint: CheckpointId | None) -> tuple[int, ErrorReport | None]:
        """Returns the number of recorded tries after a checkpoint, and the error of the newest one.

        If ``checkpoint`` is the head, all of them have failed. The error is None if its entry cannot be read.
        """
        since = [each for each in self._tries() if each[0] > (checkpoint or 0)]
        newest = self._remembered(*since[-1]) if since else None
        return len(since), newest.failure if newest else None

    def _remembered(self, checkpoint: CheckpointId, number: int) -> CheckpointHistory | None:
        """Returns an entry of the history. An unreadable entry is logged and left out, because it decides nothing."""
        try:
            return read_document(self._files, history_path(checkpoint, number), CheckpointHistory)
        except (CorruptDocumentError, NotFoundError) as error:
            _LOG.warning("an entry of the history is left out: %s", error)
            return None

    def _begins(self, manifest: Manifest, *, after: CheckpointId) -> bool:
        """Returns True if ``manifest`` begins an incarnation whose origin is ``after``."""
        try:
            return self.manifest(after).incarnation != manifest.incarnation
        except (NotFoundError, CorruptDocumentError):
            return False

    def _try(self, checkpoint: CheckpointId) -> Manifest | CorruptDocumentError | None:
        """Returns a manifest, its error, or None if it was discarded since its number was listed."""
        try:
            return self.kept(checkpoint)
        except CorruptDocumentError as error:
            return error


def _rows(sink: SinkName, line: Mapping[str, Any]) -> int:
    """Returns the rows of a staged file, from its statistics."""
    try:
        return int(json.loads(line["add"]["stats"])["numRecords"])
    except (KeyError, TypeError, ValueError) as error:
        raise RejectedError(
            f"Sink {sink}: a staged action is not an 'add' with a row count in its statistics.",
            safe="No file of actions was written.",
            remedy="Leave spark.databricks.delta.stats.collect switched on. Only added files can be staged.",
            sink=sink,
            action=dict(line),
        ) from error
