"""Bundles: objects in a store that have the bytes of many small state files, one after the other.

A request for a small object has the same price as one for a megabyte, and takes about as long. So a checkpoint of a home in a store puts
small new state files into bundles, and its manifest says where in a bundle each file begins. A home in a directory has no bundles.

Invariants:

1. The name of a bundle is the SHA-256 of its bytes. A repeated try finds its own bundle, and no try can replace that of another one.
2. Each file has a hash of its own. Damage of one file does not affect the others of its bundle.
3. What sources have recorded is in other bundles than state. State that is lost can be computed again from an older checkpoint, but only
   with these records.
"""

from collections.abc import Generator, Iterable, Mapping
from concurrent.futures import Future
from contextlib import suppress
from functools import partial
from threading import Lock
from typing import cast

from spark_jobs.background import run_in_background
from spark_jobs.checkpoint.named_files import altered, state_file
from spark_jobs.protocol.codec import sha256
from spark_jobs.protocol.errors import CorruptDocumentError, NotFoundError
from spark_jobs.protocol.stage_cut import StateFile
from spark_jobs.storage.files import Digest, Files

BUNDLES = "bundles"
"""The directory below a try's directory for bundles."""
BUNDLE_MAX_BYTES = 8 << 20
"""Maximum size of a bundle. It is written and read at once."""
_KEPT_BYTES = 8 * BUNDLE_MAX_BYTES
"""Maximum size of the bundles that a reader keeps in memory."""


def grouped(small: Mapping[str, bytes]) -> list[dict[str, bytes]]:
    """Divides small files, by their paths in Spark's checkpoint, into groups. Each group fits into one bundle."""
    found: list[dict[str, bytes]] = []
    size_bytes, last = 0, None
    for is_of_source, path in sorted((path.startswith("sources/"), path) for path in small):
        size_bytes += len(small[path])
        if is_of_source != last or size_bytes > BUNDLE_MAX_BYTES:
            found.append({})
            size_bytes, last = len(small[path]), is_of_source
        found[-1][path] = small[path]
    return found


def create_bundle(home: Files, place: str, group: Mapping[str, bytes]) -> list[StateFile]:
    """Creates a bundle of a group. Durable on return. Can be repeated.

    Args:
        home: The home.
        place: Directory of the try.
        group: The files, by their paths in Spark's checkpoint.
    """
    data = b"".join(group.values())
    stored = f"{place}/{BUNDLES}/{sha256(data)}"
    home.create(stored, data)
    files, offset = [], 0
    for path, each in group.items():
        files.append(StateFile(path=path, stored=stored, offset=offset, size_bytes=len(each), sha256=sha256(each)))
        offset += len(each)
    return files


def in_reading_order(files: Iterable[StateFile]) -> list[StateFile]:
    """Returns files in an order in which a :class:`StateReader` reads each bundle once."""
    return sorted(files, key=lambda file: file.stored)


class StateReader:
    """Reads the state files of a home or a savepoint, also those in bundles. Several threads may use it.

    Keeps the last few bundles in memory; see :func:`in_reading_order`.
    """

    def __init__(self, home: Files) -> None:
        self._home = home
        self._lock = Lock()
        self._bundles: dict[str, Future[bytes]] = {}
        """The bundles that were read last, the last one at the end."""

    def read(self, file: StateFile) -> bytes:
        """Returns the bytes of a file. They may be damaged.

        Raises:
            NotFoundError: The file or its bundle is missing.
            CorruptDocumentError: The object is too large.
        """
        if file.offset is None:
            return self._home.read(file.stored)
        return self._bundle(file.stored)[file.offset : file.offset + file.size_bytes]

    def look(self, file: StateFile) -> CorruptDocumentError | None:
        """Reads a file, and returns the error for it if it is missing or damaged.

        Raises:
            StorageError: The file cannot be read.
        """
        if file.offset is None:
            return state_file(self._home, file).look()
        found = None
        with suppress(NotFoundError):
            data = self.read(file)
            found = Digest(len(data), sha256(data))
        return self._damage(file, found)

    def take_out(self, file: StateFile, target: Files, path: str) -> None:
        """Copies a file of a bundle. It is not durable before :meth:`Files.sync`.

        Raises:
            CorruptDocumentError: The file or its bundle is missing or was altered.
            AlreadyExistsError: The name is taken.
        """
        if damage := self.look(file):
            raise damage
        target.copy(cast(Files, _InMemory(self.read(file))), file.path, path)

    def _damage(self, file: StateFile, found: Digest | None) -> CorruptDocumentError | None:
        if found is None:
            return altered(self._home.url, file.stored, file.sha256, None)
        if found != (file.size_bytes, file.sha256):
            return altered(self._home.url, f"{file.stored} from byte {file.offset}", file.sha256, found.sha256)
        return None

    def _bundle(self, stored: str) -> bytes:
        with self._lock:
            begun = self._bundles.pop(stored, None) or run_in_background(partial(self._home.read, stored, BUNDLE_MAX_BYTES))
            self._bundles[stored] = begun
            size_bytes = 0
            for name, each in reversed(list(self._bundles.items())):
                size_bytes += len(each.result()) if each.done() and each.exception() is None else 0
                if size_bytes > _KEPT_BYTES:
                    del self._bundles[name]
        return begun.result()


class _InMemory:
    """The source of a copy: one file in memory."""

    def __init__(self, data: bytes) -> None:
        self._data = data

    def chunks(self, path: str) -> Generator[bytes, None, None]:
        yield self._data
