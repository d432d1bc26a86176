"""Verifies a work directory before an attempt continues it, and replaces damaged files by the home's.

A file of the newest checkpoint is compared with the hash in the manifest: the work directory's copy and, if the home is a directory with
its own copy, the home's. The correct one replaces the damaged one. So a checkpoint of this attempt may refer to files that it has not
changed. Files of later batches are compared with Hadoop's checksums, and the private log with its own hashes.

Invariants:

1. A file is replaced only by one whose hash was compared. No byte of a damaged file is changed in place, because it may also be the home's.
2. A work directory is not continued if one of its files is damaged and no other copy is correct. Correct files of the home are not changed.
"""

import logging
import re
from collections.abc import Iterable
from functools import partial

from spark_jobs.background import run_all
from spark_jobs.checkpoint.named_files import state_file
from spark_jobs.protocol.documents import Manifest
from spark_jobs.protocol.errors import CorruptDocumentError, NotFoundError, UnsupportedFormatError
from spark_jobs.protocol.ids import BatchId, StageName
from spark_jobs.protocol.stage_cut import StageCut, StateFile
from spark_jobs.runtime.spark.session import SHUFFLE_PARTITIONS
from spark_jobs.runtime.spark.spark_log import NO_BATCH, SparkLog, checkpoint_directory
from spark_jobs.runtime.staged.channel_cut import log_directory
from spark_jobs.runtime.staged.private_log import PrivateLog
from spark_jobs.runtime.state.pinning import StateCopies, names_its_place
from spark_jobs.runtime.state.state_files import needed_files, source_files
from spark_jobs.storage.checksums import fits_checksum, forget_checksum
from spark_jobs.storage.files import Files

_LOG = logging.getLogger(__name__)
_UNUSABLE = (CorruptDocumentError, NotFoundError, UnsupportedFormatError)
"""Errors of files that cannot be read as what they are. Damage can make one look like that of another format."""
_LASTING = re.compile(r"^metadata$|/_metadata/|/_stateSchema/")
"""Matches files that every later batch needs. The other files do not show if one is missing."""
_ROUNDS = 3
"""Number of times that the needed files are listed, because a replaced file may name others."""


class _HopelessError(Exception):
    """The reason why a work directory cannot be continued. It is handled in this module, never shown."""


def heal_in_place(
    home: Files, work: Files, head: Manifest | None, stages: Iterable[StageName], *, second_copy: bool = False
) -> str | None:
    """Verifies every file that the stages need in a work directory, and replaces damaged ones.

    Reads the whole state once. Idempotent. Replaced files are durable on return. No query may be running.

    Args:
        home: The home.
        work: The work directory.
        head: Newest checkpoint of its incarnation; None if there is none.
        stages: All stages of the pipeline.
        second_copy: True replaces files by copies, even if a hard link is possible.

    Returns:
        The reason why the work directory cannot be continued, in a few words, or None.

    Raises:
        StorageError: The home or the work directory does not answer.
    """
    try:
        for name in stages:
            cut = head.stages.get(name) if head else None
            log = SparkLog(work, checkpoint_directory(name))
            _StageFiles(StateCopies(home, log, second_copy), cut).heal()
            _check_batches(work, name, log, cut)
    except _HopelessError as error:
        return str(error)
    return None


class _StageFiles:
    """The files of one stage: those of Spark's checkpoint in the work directory, and the home's copies."""

    def __init__(self, copies: StateCopies, cut: StageCut | None) -> None:
        self._copies, self._log, self._at = copies, copies.log, copies.at
        self._home, self._work = copies.home, copies.work
        self._named = {file.path: file for file in cut.files} if cut else {}
        self._batch = cut.batch if cut else NO_BATCH

    def heal(self) -> None:
        """Repairs every needed file.

        Raises:
            _HopelessError: A file is damaged, and there is no correct copy.
        """
        for _ in range(_ROUNDS):
            needed = self._needed()
            replaced = run_all([partial(self._heal, path) for path in needed])
            if not any(replaced):
                return
        raise _HopelessError(f"files of {self._log.directory} are damaged again and again")

    def _needed(self) -> list[str]:
        last = self._log.last_commit()
        lasting = {path for path in self._named if last == self._batch or _LASTING.search(path)}
        try:
            return sorted(lasting | set(needed_files(self._log, last)))
        except _UNUSABLE as error:
            _LOG.warning("%s: %s The files of the newest checkpoint are checked first.", self._log.directory, error.failed)
        run_all([partial(self._heal, path) for path in self._named])
        try:
            return needed_files(self._log, self._log.last_commit())
        except _UNUSABLE as error:
            raise _HopelessError(error.failed.rstrip(".")) from error

    def _heal(self, path: str) -> bool:
        """Repairs one file. Returns True if it was replaced."""
        file = self._named.get(path)
        if file is None:
            if not all(_fits(self._work, self._at(each)) for each in (path, f"{path}.crc")):
                raise _HopelessError(f"{self._at(path)} is newer than the newest checkpoint, and does not match its checksum")
            return False
        if not self._is_right(file):
            self._put_back(file)
            return True
        for each in (path, f"{path}.crc"):  # Hadoop's checksum of the file, and that of Spark's own checksum file
            if not _fits(self._work, self._at(each)):
                self._forget_checksums(path)
        self._heal_home(file)
        return False

    def _is_right(self, file: StateFile) -> bool:
        try:
            if self._work.digest(self._at(file.path)) == (file.size_bytes, file.sha256):
                return True
            if not names_its_place(file.path) or self._copies.reader.look(file):
                return False
            return self._work.read(self._at(file.path)) == self._copies.repointed(self._copies.reader.read(file))
        except NotFoundError:
            return False

    def _put_back(self, file: StateFile) -> None:
        target = self._at(file.path)
        if self._copies.reader.look(file):
            raise _HopelessError(f"{target} is damaged or missing, and so is {self._home.url}/{file.stored}")
        _LOG.warning("%s/%s is damaged or missing: it is copied from %s/%s", self._work.url, target, self._home.url, file.stored)
        self._forget_checksums(file.path)
        self._work.delete(target)
        self._copies.place(file)
        self._work.sync(target)

    def _heal_home(self, file: StateFile) -> None:
        """Replaces the home's copy if it is damaged and not the same file. A store protects its copies itself."""
        here, home = self._work.local(self._at(file.path)), self._home.local(file.stored)
        if here is None or home is None or names_its_place(file.path):
            return
        if (home.exists() and home.samefile(here)) or not state_file(self._home, file).look():
            return
        _LOG.warning("%s/%s is damaged or missing: it is copied from %s", self._home.url, file.stored, here)
        self._home.delete(file.stored)
        self._copies.give_back(file)
        self._home.sync(file.stored)

    def _forget_checksums(self, path: str) -> None:
        for each in (self._at(path), self._at(f"{path}.crc")):
            forget_checksum(self._work, each)
        self._work.delete(self._at(f"{path}.crc"))


def _fits(files: Files, path: str) -> bool:
    """Returns True unless a file is known to be damaged: it matches its checksum, has none, or is missing."""
    try:
        return fits_checksum(files, path) is not False
    except NotFoundError:
        return True


def _check_batches(work: Files, stage: StageName, log: SparkLog, cut: StageCut | None) -> None:
    """Verifies the plans of a stage's batches and their staged rows.

    Raises:
        _HopelessError: An entry is damaged or missing. A batch would read other rows, or its rows would be left out.
    """
    private = PrivateLog(work, log_directory(stage), "")
    last, planned = log.last_commit(), log.last_offsets()
    if not private.exists():
        if last != NO_BATCH:
            raise _HopelessError(f"the private log of stage '{stage}' is missing")
        return
    try:
        private.heal()
        first = max(private.oldest(), cut.channel.first if cut else BatchId(0))
        staged = {each.batch: each.offsets for each in private.between(BatchId(first - 1), BatchId(private.latest() - 1))}
        found = [f"{log.directory}/{path}" for path in source_files(log, planned)] if planned > last else []
    except _UNUSABLE as error:
        raise _HopelessError(error.failed.rstrip(".")) from error
    if last >= private.latest() and not _is_rescaled(log, last):
        raise _HopelessError(f"the private log of stage '{stage}' has lost batch {last}")
    for batch in {last, planned} - {NO_BATCH}:
        path = f"{log.directory}/offsets/{batch}"
        if not _fits(work, path) or staged.get(batch, "") not in ("", log.offsets_text(batch)):
            raise _HopelessError(f"{path} was altered")
    if altered := next((path for path in found if not _fits(work, path)), None):
        raise _HopelessError(f"{altered} was altered")


def _is_rescaled(log: SparkLog, batch: BatchId) -> bool:
    """Returns True if Spark has only changed the number of state partitions in a batch, and staged nothing."""
    if batch == 0:
        return False
    before, after = (log.offsets(BatchId(number)).header.get("conf", {}) for number in (batch - 1, batch))
    return bool(before.get(SHUFFLE_PARTITIONS) != after.get(SHUFFLE_PARTITIONS))
