"""Files that a document names, and their comparison with its record."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any
from urllib.parse import unquote

from spark_jobs.background import run_all
from spark_jobs.protocol.errors import CorruptDocumentError, NotFoundError
from spark_jobs.protocol.ids import CheckpointId
from spark_jobs.protocol.stage_cut import StateFile
from spark_jobs.storage.checksums import fits_checksum
from spark_jobs.storage.files import Digest, Files, sync_readable

DIGEST_TAG = "sha256"
"""The tag of a Delta ``add`` action with the SHA-256 of its file when it was staged."""


@dataclass(frozen=True)
class NamedFile:
    """A file that a document names."""

    source: Files
    path: str
    """The path below ``source``."""
    size_bytes: int | None = None
    """The size in the document; None where it has none."""
    sha256: str | None = None

    @property
    def url(self) -> str:
        """The URL of the file."""
        return f"{self.source.url}/{self.path}"

    def is_right(self, found: Digest) -> bool:
        """Returns True if the digest matches the document's record of the file."""
        return found == (found.size_bytes if self.size_bytes is None else self.size_bytes, self.sha256 or found.sha256)

    def damage(self, found: Digest | None) -> CorruptDocumentError | None:
        """Returns the error for a file that differs from the document, or None.

        If the document has no hash, the file is compared with its Hadoop checksum, if there is one.

        Args:
            found: Digest of the file; None if it is missing.

        Raises:
            StorageError: The file cannot be read.
        """
        if found is None:
            return altered(self.source.url, self.path, self.sha256, None)
        if not self.is_right(found):
            expected, here = (self.sha256, found.sha256) if self.sha256 else (f"{self.size_bytes} bytes", f"{found.size_bytes}")
            return altered(self.source.url, self.path, expected, here)
        if self.sha256 is None and fits_checksum(self.source, self.path) is False:
            return altered(self.source.url, self.path, "the bytes of its checksum", "others")
        return None

    def look(self) -> CorruptDocumentError | None:
        """Reads the file, of any size, and returns the error for it, or None.

        Raises:
            StorageError: The file cannot be read.
        """
        try:
            return self.damage(self.source.digest(self.path))
        except NotFoundError:
            return self.damage(None)


@dataclass(frozen=True)
class NamedFiles:
    """All files that some documents name."""

    checkpoints: list[CheckpointId]
    """The checkpoints of the documents, ascending."""
    files: list[NamedFile]
    """The files, each once."""
    damage: list[CorruptDocumentError] = field(default_factory=list)
    """Damaged documents. The files that they name are not in ``files``."""

    @property
    def size_bytes(self) -> int:
        """Returns the number of bytes to read, as far as sizes are recorded."""
        return sum(file.size_bytes or 0 for file in self.files)

    def verify(self, progress: Callable[[int], object] = lambda size_bytes: None) -> list[CorruptDocumentError]:
        """Reads every file; writes nothing.

        Args:
            progress: Called with the size of each file once it was read, from several threads.

        Returns:
            The errors, each with the file's URL as its ``path``.

        Raises:
            StorageError: A file cannot be read.
        """

        def look(file: NamedFile) -> CorruptDocumentError | None:
            found = file.look()
            progress(file.size_bytes or 0)
            return found

        return [*self.damage, *filter(None, run_all([partial(look, file) for file in self.files]))]


def with_digest(add: Mapping[str, Any], digest: Digest) -> dict[str, Any]:
    """Returns an ``add`` action with the hash of its file."""
    return dict(add) | {"tags": (add.get("tags") or {}) | {DIGEST_TAG: digest.sha256}}


def make_durable(directory: Files, adds: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Makes staged files durable before they are named, which Spark leaves to the operating system.

    Args:
        directory: Directory of the files.
        adds: Their Delta ``add`` actions.

    Returns:
        The actions, each with the SHA-256 of its file. The bytes are read while they are in the page cache and others are being flushed.
    """
    paths = [unquote(add["path"]) for add in adds]
    digesting = [partial(directory.digest, path) for path in paths]
    digests = run_all([partial(sync_readable, directory, *paths), *digesting])[1:] if paths else []
    return [with_digest(add, digest) for add, digest in zip(adds, digests, strict=True)]


def state_file(home: Files, file: StateFile) -> NamedFile:
    """Returns the object of a home or a savepoint that has a file of a stage's state: the file itself, or its bundle."""
    if file.offset is None:
        return NamedFile(home, file.stored, file.size_bytes, file.sha256)
    return NamedFile(home, file.stored, sha256=file.stored.rpartition("/")[2])


def staged_file(directory: Files, add: Mapping[str, Any], path: str) -> NamedFile:
    """Returns the file of an ``add`` action.

    Args:
        directory: Directory of the file.
        add: The action.
        path: Path below ``directory``.
    """
    return NamedFile(directory, path, int(add["size"]), (add.get("tags") or {}).get(DIGEST_TAG))


def altered(root: str, path: str, expected: object, found: object) -> CorruptDocumentError:
    """Returns the error for a file that differs from its document. ``found`` is None if the file is missing."""
    what = "is missing" if found is None else f"was altered: expected {expected}, found {found}"
    return CorruptDocumentError(
        f"{root}/{path} {what}.",
        remedy="Restore the file from a copy, or see 'a corrupt document' in docs/troubleshooting.md.",
        path=f"{root}/{path}",
        expected=expected,
        found=found,
    )
