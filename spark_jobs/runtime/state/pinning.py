"""A stage's state in the home: kept as it was at a cut, while its query goes on, and given back to a work directory.

Keeping it takes two steps. :func:`pin` comes at the cut and is quick: every needed file that the parent checkpoint does not hold gets a
second name in the home, so that Spark may purge the first. :func:`persist` comes afterwards, beside the running stages, and makes them
durable. Neither changes anything of Spark's.

A file with two names is one file: what a disk does to it, it does to the checkpoint and to the work directory. Where the settings ask for a
second copy, :func:`persist` puts one in the place of the second name, and files that share their bytes are not referred to.

Invariants:

1. A checkpoint holds a file that it has pinned itself or that its parent holds, never another checkpoint's: so deleting a checkpoint only
   has to ask the manifests that remain (model rule ``gcnames``).
2. A try has a directory of its own, in which no other try ever writes. It stays until a manifest that does not name it has its number
   (model rule ``failkeep``).
"""

import json
import re
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any

from spark_jobs.checkpoint.named_files import state_file
from spark_jobs.home.layout import STATE, state_path, state_try
from spark_jobs.protocol.errors import AlreadyExistsError, ConflictError, CorruptDocumentError, NotFoundError, StorageError
from spark_jobs.protocol.ids import AttemptNumber, BatchId, CheckpointId, StageName
from spark_jobs.protocol.stage_cut import StageCut, StateFile
from spark_jobs.protocol.steps import Step, step
from spark_jobs.runtime.spark.spark_log import SparkLog
from spark_jobs.runtime.state.state_files import needed_files, never_reused
from spark_jobs.storage.beside import at_once
from spark_jobs.storage.files import Digest, Files, by_directory, local_path, take

_COPIES = "copies"
"""Below a try's directory: copies that have taken the place of second names."""
_TRIES = 3
"""How often what to pin is chosen again, because Spark has deleted some of it meanwhile."""
_OPERATOR_FACTS = re.compile(r"state/\d+/_metadata/v2/\d+")
_SCHEMA_FILE = re.compile(r"/state/\d+/_stateSchema/[^/]+/[^/]+$")


@dataclass(frozen=True)
class StateCopies:
    """The state of a stage in two places: in the work directory, as Spark's checkpoint, and in the home.

    A file that the one place is given from the other is not durable before :meth:`Files.sync`.

    Args:
        home: The home.
        log: The logs of the stage's query, in the work directory.
        second_copy: Whether the two share no file. Else a file has two names where it can.
    """

    home: Files
    log: SparkLog
    second_copy: bool = False

    @property
    def work(self) -> Files:
        """The work directory."""
        return self.log.files

    def at(self, path: str) -> str:
        """Returns where a file of Spark's checkpoint is in the work directory."""
        return f"{self.log.directory}/{path}"

    def place(self, file: StateFile, local: Sequence[Files] = ()) -> bool:
        """Gives the work directory a file that a checkpoint names, with the paths that it has there.

        Args:
            file: The file.
            local: Other work directories that may have it, the best first.

        Returns:
            Whether another work directory has had it.

        Raises:
            CorruptDocumentError: It has not, and the file in the home is gone or was altered.
        """
        target = self.at(file.path)
        is_local = any(self._take_local(other, file) for other in local)
        if not is_local:
            try:
                self._give(self.home, file.stored, self.work, target)
                found: Digest | None = self.work.digest(target)
            except NotFoundError:
                found = None
            if damage := state_file(self.home, file).damage(found):
                raise damage
        if names_its_place(file.path):
            self.work.replace(target, self.repointed(self.work.read(target)))
        return is_local

    def give_back(self, file: StateFile) -> None:
        """Gives the home a file that it has lost."""
        self._give(self.work, self.at(file.path), self.home, file.stored)

    def repointed(self, data: bytes) -> bytes:
        """Returns the facts of an operator with the paths that they have in the work directory.

        Raises:
            CorruptDocumentError: They do not say what Spark writes.
        """
        version, _, body = data.decode().partition("\n")
        here = f"file:{local_path(self.work, self.log.directory)}"
        facts: dict[str, Any] = json.loads(body)
        for store in facts.get("stateStoreInfo", []):
            for number, named in enumerate(store.get("stateSchemaFilePaths", [])):
                found = _SCHEMA_FILE.search(named)
                if found is None:
                    url = f"{self.work.url}/{self.log.directory}"
                    raise CorruptDocumentError(
                        f"The facts of an operator in {url} name {named}, which is no schema file of Spark's state.",
                        exists="The work directory is not used.",
                        safe="Nothing in the home was changed.",
                        remedy="Report this.",
                        path=url,
                        found=named,
                    )
                store["stateSchemaFilePaths"][number] = here + found[0]
        return f"{version}\n{json.dumps(facts, separators=(',', ':'))}".encode()

    def _take_local(self, other: Files, file: StateFile) -> bool:
        """Takes a file from another work directory. Returns whether it was right there; an error there only means that it was not."""
        path = self.at(file.path)
        source = local_path(other, path)
        try:
            if source.is_symlink() or source.stat().st_size != file.size_bytes:
                return False
            self.work.adopt(source, path)
            if self.work.digest(path) == (file.size_bytes, file.sha256):
                return True
        except (OSError, StorageError):
            pass
        self.work.delete(path)
        return False

    def _give(self, source: Files, named: str, target: Files, path: str) -> None:
        if self.second_copy:
            target.copy(source, named, path)
        else:
            take(source, named, target, path)


@dataclass(frozen=True)
class PinnedState:
    """What :func:`pin` has found: every file of one stage at one cut."""

    copies: StateCopies
    held: tuple[StateFile, ...]
    """Those that the parent checkpoint holds."""
    new: tuple[str, ...]
    """Those that were pinned, relative to Spark's checkpoint directory."""
    place: str
    """The try's directory in the home."""


def place_of(home: Files, stage: StageName, checkpoint: CheckpointId, attempt: AttemptNumber) -> str:
    """A directory of the home for the state files of a new try at a checkpoint; no other try has had it."""
    tries = [tried for name in home.names(f"{STATE}/{stage}") if (tried := state_try(name))]
    before = [tried.number for tried in tries if (tried.checkpoint, tried.attempt) == (checkpoint, attempt)]
    return state_path(stage, checkpoint, attempt, max(before, default=0) + 1)


def pin(copies: StateCopies, batch: BatchId, place: str, parent: StageCut | None) -> PinnedState:
    """Keeps every file that a restart after ``batch`` needs. The query may run; nothing is durable yet.

    Args:
        copies: The stage's state.
        batch: The cut: a committed batch, or -1.
        place: Where, see :func:`place_of`.
        parent: What the parent checkpoint says of the stage; what it holds is referred to where it lies.

    Raises:
        ConflictError: Spark deletes what is needed faster than it can be pinned, or has purged the batch. Cut again.
        CorruptDocumentError: A file of Spark's is not what Spark writes.
        UnsupportedFormatError: The state was not written with the settings of our sessions.
    """
    pinned: set[str] = set()
    tries = 0
    while True:
        try:
            return _pin_needed(copies, batch, place, parent, pinned)
        except NotFoundError as error:
            tries += 1
            if tries == _TRIES:
                missing = error.evidence.get("path")
                raise ConflictError(
                    f"The state of {copies.log.directory} after batch {batch} could not be kept: {missing} went meanwhile.",
                    exists="The stage goes on, and the last checkpoint stands.",
                    safe="Nothing refers to what was kept of it.",
                    remedy="Take the checkpoint again. If it goes on, the query does a hundred batches while one is cut.",
                    path=missing,
                    batch=batch,
                ) from error


def persist(pinned: PinnedState) -> tuple[StateFile, ...]:
    """Makes what was pinned durable; for a manifest. May be repeated.

    Reads every new file once, for its hash.

    Raises:
        StorageError: The home is full or does not answer.
    """
    home, stored = pinned.copies.home, [f"{pinned.place}/{path}" for path in pinned.new]
    if pinned.copies.second_copy:
        stored = at_once([partial(_copied, home, pinned.place, path) for path in pinned.new])
    with step(Step.PERSIST_STATE):
        digesting = [partial(home.digest, path) for path in stored]
        syncing = [partial(home.sync, *paths) for paths in by_directory(stored)]
        digests = at_once([*digesting, *syncing])[: len(stored)]
    replaced = {f"{pinned.place}/{path}" for path in pinned.new} - set(stored)
    at_once([partial(home.delete, name) for name in sorted(replaced)])
    new = [
        StateFile(path=path, stored=kept, size_bytes=digest.size_bytes, sha256=digest.sha256)
        for path, kept, digest in zip(pinned.new, stored, digests, strict=True)
    ]
    return tuple(sorted([*pinned.held, *new], key=lambda file: file.path))


def _copied(home: Files, place: str, path: str) -> str:
    """Where the bytes of a file are that it does not share: in a copy, if it has several names."""
    kept, copy = f"{place}/{path}", f"{place}/{_COPIES}/{path}"
    if not _is_shared(home, kept):
        return kept
    with suppress(AlreadyExistsError):  # an earlier call's
        home.copy(home, kept, copy)
    return copy


def _is_shared(home: Files, path: str) -> bool:
    """Whether a file has another name, too; also where it is gone, so that nobody refers to it."""
    here = home.local(path)
    return here is not None and (not here.exists() or here.stat().st_nlink > 1)


def _pin_needed(copies: StateCopies, batch: BatchId, place: str, parent: StageCut | None, pinned: set[str]) -> PinnedState:
    """Chooses and pins, as long as nothing of it goes; ``pinned`` is what has been."""
    home, log = copies.home, copies.log
    known = {file.path: file for file in parent.files} if parent else {}
    needed = needed_files(log, batch)
    held = [known[path] for path in needed if path in known and _is_held(log, known[path])]
    if copies.second_copy:
        held = [file for file in held if not _is_shared(home, file.stored)]
    new = set(needed) - {file.path for file in held}
    with step(Step.PIN_STATE):
        for path in sorted(new - pinned):
            home.adopt(local_path(log.files, copies.at(path)), f"{place}/{path}")
            pinned.add(path)
        for path in sorted(pinned - new):
            home.delete(f"{place}/{path}")
            pinned.remove(path)
    return PinnedState(copies, tuple(held), tuple(sorted(new)), place)


def _is_held(log: SparkLog, file: StateFile) -> bool:
    """Whether the file of this name is still the one that the parent holds; the small ones are looked at."""
    return never_reused(file.path) or log.files.digest(f"{log.directory}/{file.path}") == (file.size_bytes, file.sha256)


def names_its_place(path: str) -> bool:
    """Returns whether a file of Spark's checkpoint has absolute paths in it: the facts of an operator have those of its schemas."""
    return _OPERATOR_FACTS.fullmatch(path) is not None
