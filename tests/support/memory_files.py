"""The storage port in memory, for tests of the code above it. Safe for several threads."""

from collections.abc import Generator, Iterable
from contextlib import suppress
from pathlib import Path
from threading import Lock

from spark_jobs.protocol.codec import sha256
from spark_jobs.protocol.errors import AlreadyExistsError, NotFoundError
from spark_jobs.storage.files import READ_MAX_BYTES, Digest, Files, paths_by_names, too_large


class MemoryFiles:
    """Files that live as long as the object. A test may change ``contents``."""

    def __init__(self) -> None:
        self.contents: dict[str, bytes] = {}
        self._lock = Lock()

    @property
    def url(self) -> str:
        return "memory:"

    def below(self, directory: str) -> "MemoryFiles":
        inner = _Below(self, directory)
        return inner

    def local(self, path: str = "") -> None:
        return None

    def create(self, path: str, data: bytes) -> None:
        with self._lock:
            if self.contents.setdefault(path, data) != data:
                raise AlreadyExistsError(f"{path} exists.", path=path)

    def create_all(self, files: Iterable[tuple[str, bytes]]) -> None:
        for path, data in files:
            self.create(path, data)

    def replace(self, path: str, data: bytes) -> None:
        with self._lock:
            self.contents[path] = data

    def read(self, path: str, max_bytes: int = READ_MAX_BYTES) -> bytes:
        with self._lock:
            if path not in self.contents:
                raise NotFoundError(f"{path} is not there.", path=path)
            data = self.contents[path]
        if len(data) > max_bytes:
            raise too_large(path, max_bytes)
        return data

    def chunks(self, path: str) -> Generator[bytes, None, None]:
        yield self.read(path)

    def digest(self, path: str) -> Digest:
        data = self.read(path)
        return Digest(len(data), sha256(data))

    def size_bytes(self, path: str) -> int | None:
        with suppress(NotFoundError):
            return len(self.read(path))
        return None

    def link_or_copy(self, source: Path, path: str) -> None:
        self.create(path, source.read_bytes())

    def copy(self, source: Files, named: str, path: str) -> Digest:
        self.create(path, b"".join(source.chunks(named)))
        return self.digest(path)

    def names(self, directory: str) -> list[str]:
        prefix = f"{directory}/" if directory else ""
        with self._lock:
            return sorted({path.removeprefix(prefix).split("/")[0] for path in self.contents if path.startswith(prefix)})

    def paths(self, directory: str = "") -> list[str]:
        return paths_by_names(self, directory)

    def delete(self, path: str) -> None:
        with self._lock:
            for found in [found for found in self.contents if found == path or found.startswith(f"{path}/")]:
                del self.contents[found]

    def sync(self, *paths: str) -> None:
        pass

    def remove_unfinished(self, *paths: str) -> None:
        pass


class Death(BaseException):
    """The end of the process."""


class DyingFiles(MemoryFiles):
    """The files of a process that dies before one of its changes.

    Args:
        contents: The existing files. They are changed.
        changes: The number of changes before the death.
    """

    def __init__(self, contents: dict[str, bytes], changes: int) -> None:
        super().__init__()
        self.contents, self._left = contents, changes

    def create(self, path: str, data: bytes) -> None:
        self._live()
        super().create(path, data)

    def replace(self, path: str, data: bytes) -> None:
        self._live()
        super().replace(path, data)

    def delete(self, path: str) -> None:
        self._live()
        super().delete(path)

    def _live(self) -> None:
        if self._left == 0:
            raise Death
        self._left -= 1


class _Below(MemoryFiles):
    """A directory of another object's contents."""

    def __init__(self, outer: MemoryFiles, directory: str) -> None:
        super().__init__()
        self._outer, self._directory = outer, directory

    @property
    def url(self) -> str:
        return f"{self._outer.url}/{self._directory}"

    def create(self, path: str, data: bytes) -> None:
        self._outer.create(f"{self._directory}/{path}", data)

    def replace(self, path: str, data: bytes) -> None:
        self._outer.replace(f"{self._directory}/{path}", data)

    def read(self, path: str, max_bytes: int = READ_MAX_BYTES) -> bytes:
        return self._outer.read(f"{self._directory}/{path}", max_bytes)

    def names(self, directory: str) -> list[str]:
        return self._outer.names(f"{self._directory}/{directory}" if directory else self._directory)

    def delete(self, path: str) -> None:
        self._outer.delete(f"{self._directory}/{path}")
