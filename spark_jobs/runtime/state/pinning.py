"""Keeps the state of a stage at a cut in the home, and copies it back into a work directory.

While the query of the stage continues, Spark deletes files that it does not need any more. So keeping its state takes two steps:

1. :func:`pin` runs at the cut, and is quick. It keeps every file that a restart at the cut needs and that the parent checkpoint does not
   have. Afterwards Spark may delete its own files.
2. :func:`persist` runs later, while the stages continue. It makes the kept files durable.

Neither changes Spark's files. How :func:`pin` keeps a file depends on the place of the work directory and on that of the home:

- If both are on a disk, a file of a state store gets a hard link in the home. A file with two names is one file: a disk fault damages the
  checkpoint and the work directory together. State can then be computed again from an older checkpoint. Spark's records, such as the log of
  a file source, cannot be computed again. They are small, so they are copied. With the setting ``second_copy``, :func:`persist` replaces
  the links by copies. Then no checkpoint refers to a file that shares its bytes with a work directory.
- If the home is in a store, small files that live for a short time are read into memory. :func:`persist` writes them as few objects: see
  :mod:`spark_jobs.checkpoint.bundles`. Every other file gets a hard link in the home's cache, and :func:`persist` copies it into the store.
- If the work directory is in a store, too, there are no links: the other files are copied at the cut. That takes longer. Spark keeps the
  files of a hundred batches, so they are still there.

Invariants:

1. A checkpoint refers to files that it has pinned itself, and to files that its parent refers to. It refers to no file of any other
   checkpoint. So the manifests that exist decide which files may be deleted (model rule ``gcnames``).
2. Each try at a checkpoint has a directory of its own, in which no other try changes a file. The directory stays at least until there is a
   manifest with the number of the checkpoint. If that manifest does not name it, it may be deleted (model rule ``failkeep``).
"""

import json
import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from itertools import chain
from typing import Any

from spark_jobs.background import run_all
from spark_jobs.checkpoint.bundles import StateReader, create_bundle, grouped
from spark_jobs.checkpoint.named_files import state_file
from spark_jobs.home.layout import STATE, state_path, state_try
from spark_jobs.protocol.errors import AlreadyExistsError, ConflictError, CorruptDocumentError, NotFoundError, StorageError
from spark_jobs.protocol.ids import AttemptNumber, BatchId, CheckpointId, StageName
from spark_jobs.protocol.stage_cut import StageCut, StateFile
from spark_jobs.protocol.steps import Step, step
from spark_jobs.runtime.spark.spark_log import SparkLog
from spark_jobs.runtime.state.state_files import grows_with_state, is_short_lived, needed_files, never_reused
from spark_jobs.storage.files import Digest, Files, by_directory, is_mounted, local_path, transfer

_COPIES = "copies"
"""The directory below a try's directory for copies that have replaced links."""
_TRIES = 3
"""Number of times that the files to pin are chosen again, because Spark has deleted some in the meantime."""
_BUNDLED_MAX_BYTES = 32 << 10
"""Maximum size of a file in a bundle."""
_BUNDLED_MAX = 4_096
"""Maximum number of new files of one cut in bundles. They are in memory until they are durable."""
_OPERATOR_FACTS = re.compile(r"state/\d+/_metadata/v2/\d+")
_SCHEMA_FILE = re.compile(r"/state/\d+/_stateSchema/[^/]+/[^/]+$")


@dataclass(frozen=True)
class StateCopies:
    """The state of a stage in two places: in the work directory, where it is Spark's checkpoint, and in the home.

    The methods copy or link files from one place to the other. These are not durable before :meth:`Files.sync`.

    Args:
        home: The home.
        log: Logs of the stage's query in the work directory.
        second_copy: True if the two places may share no file. Otherwise a file of a state store gets a hard link, if possible.
    """

    home: Files
    log: SparkLog
    second_copy: bool = False
    reader: StateReader = field(init=False, compare=False)
    """Reads the files in the home."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "reader", StateReader(self.home))

    @property
    def work(self) -> Files:
        """Returns the work directory."""
        return self.log.files

    def at(self, path: str) -> str:
        """Returns the path of a file of Spark's checkpoint in the work directory."""
        return f"{self.log.directory}/{path}"

    def place(self, file: StateFile, local: Sequence[Files] = ()) -> bool:
        """Copies or links a file of a checkpoint into the work directory. Paths in the file become those of this work directory.

        Args:
            file: The file.
            local: Other work directories that may have the file. The first one with a correct copy gives it.

        Returns:
            True if another work directory gave the file, False if the home did.

        Raises:
            CorruptDocumentError: No other work directory has a correct copy, and the home's copy is missing or damaged.
        """
        target = self.at(file.path)
        is_local = any(self._take_local(other, file) for other in local)
        if not is_local and file.offset is not None:
            self.reader.take_out(file, self.work, target)
        elif not is_local:
            try:
                given = self._give(file, self.home, file.stored, self.work, target)
                found: Digest | None = given or self.work.digest(target)
            except NotFoundError:
                found = None
            if damage := state_file(self.home, file).damage(found):
                raise damage
        if names_its_place(file.path):
            self.work.replace(target, self.repointed(self.work.read(target)))
        return is_local

    def pin(self, path: str, stored: str) -> Digest | None:
        """Keeps a file of Spark's checkpoint in the home, by a hard link or a copy.

        Returns:
            The digest, if the work directory is in a store: the bytes were read. Otherwise None.
        """
        if not is_mounted(self.work):
            return self.home.copy(self.work, self.at(path), stored)
        if grows_with_state(path) or not is_mounted(self.home):
            self.home.link_or_copy(local_path(self.work, self.at(path)), stored)
        else:
            self.home.copy(self.work, self.at(path), stored)
        return None

    def read_small(self, path: str) -> bytes | None:
        """Returns the bytes of a file of Spark's checkpoint that goes into a bundle. Returns None for any other file.

        Raises:
            NotFoundError: The file does not exist.
        """
        if is_mounted(self.home) or not is_short_lived(path):
            return None
        try:
            return self.work.read(self.at(path), _BUNDLED_MAX_BYTES)
        except CorruptDocumentError:  # it is larger
            return None

    def give_back(self, file: StateFile) -> None:
        """Copies or links a file that the home has lost from the work directory into the home."""
        self._give(file, self.work, self.at(file.path), self.home, file.stored)

    def repointed(self, data: bytes) -> bytes:
        """Returns the metadata of an operator, with its absolute paths replaced by those of this work directory.

        Args:
            data: The metadata, as a query in any work directory has written it.

        Raises:
            CorruptDocumentError: The metadata does not have the format that Spark writes.
        """
        version, _, body = data.decode().partition("\n")
        place = self.work.local(self.log.directory)
        here = f"{self.work.url}/{self.log.directory}" if place is None else f"file:{place}"
        facts: dict[str, Any] = json.loads(body)
        for store in facts.get("stateStoreInfo", []):
            for number, named in enumerate(store.get("stateSchemaFilePaths", [])):
                found = _SCHEMA_FILE.search(named)
                if found is None:
                    url = f"{self.work.url}/{self.log.directory}"
                    raise CorruptDocumentError(
                        f"The metadata of an operator in {url} names {named}, which is not a schema file of Spark's state.",
                        exists="The work directory is not used.",
                        safe="Nothing in the home was changed.",
                        remedy="Report this.",
                        path=url,
                        found=named,
                    )
                store["stateSchemaFilePaths"][number] = here + found[0]
        return f"{version}\n{json.dumps(facts, separators=(',', ':'))}".encode()

    def _take_local(self, other: Files, file: StateFile) -> bool:
        """Takes a file from another work directory. Returns False if that has no correct copy or cannot be read."""
        path = self.at(file.path)
        source = local_path(other, path)
        try:
            if source.is_symlink() or source.stat().st_size != file.size_bytes:
                return False
            self.work.link_or_copy(source, path)
            if self.work.digest(path) == (file.size_bytes, file.sha256):
                return True
        except (OSError, StorageError):
            pass
        self.work.delete(path)
        return False

    def _give(self, file: StateFile, source: Files, named: str, target: Files, path: str) -> Digest | None:
        """Copies or links a file from one place to the other. Returns the digest if the bytes were read, otherwise None."""
        if grows_with_state(file.path) and not self.second_copy:
            return transfer(source, named, target, path)
        return target.copy(source, named, path)


@dataclass(frozen=True)
class PinnedState:
    """The files of one stage at one cut, as :func:`pin` has found them."""

    copies: StateCopies
    held: tuple[StateFile, ...]
    """Files that the parent checkpoint has. They are not pinned again."""
    new: tuple[str, ...]
    """Paths of the other files, relative to Spark's checkpoint directory. They were pinned, or read into ``small``."""
    small: Mapping[str, bytes]
    """Contents of the files for bundles, by path."""
    digests: Mapping[str, Digest | None]
    """Digests of the pinned files, by path. None if the bytes were not read."""
    place: str
    """The directory of the try in the home."""


def new_state_directory(home: Files, stage: StageName, checkpoint: CheckpointId, attempt: AttemptNumber) -> str:
    """Returns the path of a new directory in the home for the state files of a try at a checkpoint."""
    tries = [tried for name in home.names(f"{STATE}/{stage}") if (tried := state_try(name))]
    before = [tried.number for tried in tries if (tried.checkpoint, tried.attempt) == (checkpoint, attempt)]
    return state_path(stage, checkpoint, attempt, max(before, default=0) + 1)


def pin(copies: StateCopies, batch: BatchId, place: str, parent: StageCut | None, *, checks_parent: bool = False) -> PinnedState:
    """Pins every file that a restart after ``batch`` needs. The query may be running. The pinned files are not durable yet.

    Args:
        copies: State of the stage.
        batch: The cut: a committed batch, or -1.
        place: Directory of the try, from :func:`new_state_directory`.
        parent: Cut of the stage in the parent checkpoint. Files that it refers to are not pinned again.
        checks_parent: True if another attempt took the parent. Then the home's copies of Spark's records are compared with their hashes,
            and damaged ones are pinned again. The work directory does not show the damage: Spark may have computed the same bytes again.

    Raises:
        ConflictError: Spark has deleted a needed file, also in the last of several tries. Cut again.
        CorruptDocumentError: A file does not have the format that Spark writes.
        UnsupportedFormatError: The state was not written with the settings of our sessions.
    """
    pinned: dict[str, Digest | None] = {}
    small: dict[str, bytes] = {}
    tries = 0
    while True:
        try:
            return _pin_needed(copies, batch, place, parent, pinned, small, checks_parent=checks_parent)
        except NotFoundError as error:
            tries += 1
            if tries == _TRIES:
                missing = error.evidence.get("path")
                raise ConflictError(
                    f"The state of {copies.log.directory} after batch {batch} could not be kept: {missing} was deleted in the meantime.",
                    exists="The stage continues, and the last checkpoint is valid.",
                    safe="No checkpoint refers to the files that were kept.",
                    remedy="Take the checkpoint again. If the error stays, the query runs a hundred batches during one cut.",
                    path=missing,
                    batch=batch,
                ) from error


def persist(pinned: PinnedState) -> tuple[StateFile, ...]:
    """Makes pinned files durable, and returns all files of the cut for a manifest. Can be repeated.

    Reads each new file once to compute its hash, unless the hash is known.

    Raises:
        StorageError: The home is full or does not answer.
    """
    home, linked = pinned.copies.home, [path for path in pinned.new if path not in pinned.small]
    stored = [f"{pinned.place}/{path}" for path in linked]
    if pinned.copies.second_copy:
        stored = run_all([partial(_copied, home, pinned.place, path) for path in linked])
    with step(Step.PERSIST_STATE):
        digesting = [partial(_digest, home, kept, pinned.digests[path]) for path, kept in zip(linked, stored, strict=True)]
        syncing = [partial(home.sync, *paths) for paths in by_directory(stored)]
        bundling = [partial(create_bundle, home, pinned.place, group) for group in grouped(pinned.small)]
        done = run_all([*digesting, *syncing, *bundling])
    replaced = {f"{pinned.place}/{path}" for path in linked} - set(stored)
    run_all([partial(home.delete, name) for name in sorted(replaced)])
    new = [
        StateFile(path=path, stored=kept, size_bytes=digest.size_bytes, sha256=digest.sha256)
        for path, kept, digest in zip(linked, stored, done[: len(linked)], strict=True)
    ]
    bundled = chain.from_iterable(done[len(digesting) + len(syncing) :])
    return tuple(sorted([*pinned.held, *new, *bundled], key=lambda file: file.path))


def _digest(home: Files, path: str, known: Digest | None) -> Digest:
    return known or home.digest(path)


def _copied(home: Files, place: str, path: str) -> str:
    """Returns the path of a file that shares its bytes with no other name. If the pinned file does, this is a new copy of it."""
    kept, copy = f"{place}/{path}", f"{place}/{_COPIES}/{path}"
    if not _is_shared(home, kept):
        return kept
    with suppress(AlreadyExistsError):  # from an earlier call
        home.copy(home, kept, copy)
    return copy


def _is_shared(home: Files, path: str) -> bool:
    """Returns True if a file of the home has several names or is missing. Either way a checkpoint needs a copy of it."""
    here = home.local(path)
    return here is not None and (not here.exists() or here.stat().st_nlink > 1)


def _pin_needed(
    copies: StateCopies,
    batch: BatchId,
    place: str,
    parent: StageCut | None,
    pinned: dict[str, Digest | None],
    small: dict[str, bytes],
    *,
    checks_parent: bool,
) -> PinnedState:
    """Chooses the files of the cut, and pins or reads those that are new.

    Files that were pinned or read before Spark deleted another one are in ``pinned`` and ``small``. The new ones are added to these.
    """
    home, log = copies.home, copies.log
    known = {file.path: file for file in parent.files} if parent else {}
    needed = needed_files(log, batch)
    held = [known[path] for path in needed if path in known and _is_held(log, known[path])]
    if checks_parent:
        held = [file for file in held if never_reused(file.path) or copies.reader.look(file) is None]
    if copies.second_copy:
        held = [file for file in held if not _is_shared(home, file.stored)]
    new = set(needed) - {file.path for file in held}

    def keep(path: str) -> None:
        data = copies.read_small(path) if len(small) < _BUNDLED_MAX else None
        if data is None:
            pinned[path] = copies.pin(path, f"{place}/{path}")
        else:
            small[path] = data

    with step(Step.PIN_STATE):
        missing = sorted(new - pinned.keys() - small.keys())
        if is_mounted(copies.work):  # a link takes less time than a thread
            for path in missing:
                keep(path)
        else:
            run_all([partial(keep, path) for path in missing])
        for path in sorted(pinned.keys() - new):
            home.delete(f"{place}/{path}")
            del pinned[path]
    needed_small = {path: data for path, data in small.items() if path in new}
    return PinnedState(copies, tuple(held), tuple(sorted(new)), needed_small, dict(pinned), place)


def _is_held(log: SparkLog, file: StateFile) -> bool:
    """Returns True if the work directory has the parent's file under this name. The bytes are compared if a name can be reused."""
    return never_reused(file.path) or log.files.digest(f"{log.directory}/{file.path}") == (file.size_bytes, file.sha256)


def names_its_place(path: str) -> bool:
    """Returns True if a file of Spark's checkpoint contains absolute paths: the metadata of an operator has those of its schemas."""
    return _OPERATOR_FACTS.fullmatch(path) is not None
