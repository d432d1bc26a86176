"""The storage port in a world. Each operation is a point at which other actors may run, and some operations fail or take effect late."""

from collections.abc import Generator, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Union

from spark_jobs.protocol.codec import sha256
from spark_jobs.protocol.errors import AlreadyExistsError, NotFoundError, OutcomeUnknownError, StorageError
from spark_jobs.storage.files import READ_MAX_BYTES, Digest, Files, local_path, paths_by_names
from tests.simulation.world import Host, World

Tree = dict[str, Union[bytes, "Tree"]]


@dataclass
class LateCreate:
    """A create whose answer was lost and whose effect is still to come: an object store may do it later."""

    path: str
    data: bytes


class Watcher:
    """Called after each change."""

    def created(self, path: str, data: bytes) -> None: ...

    def replaced(self, path: str) -> None: ...

    def deleted(self, path: str) -> None: ...


class Disk:
    """All files of a world, by absolute path. All hosts of the world see them."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.watcher = Watcher()
        self.late: list[LateCreate] = []
        self.landed = 0
        self.changes = 0
        """The number of writes and deletes so far."""
        self._root: Tree = {}
        self._files: dict[str, bytes] = {}
        """The files of the tree, by path without a leading slash."""
        self._volatile: dict[str, Host] = {}
        world.on_reboot.append(self._lose)
        world.each_step.append(self._land)

    def get(self, path: str) -> bytes | None:
        """Returns a file's bytes. Other actors cannot run at this call."""
        return self._files.get(path.strip("/"))

    def put(self, path: str, data: bytes) -> None:
        above = self._root
        *folders, name = path.strip("/").split("/")
        for folder in folders:
            inner = above.setdefault(folder, {})
            if not isinstance(inner, dict):
                raise AssertionError(f"{path} is below a file")
            above = inner
        above[name] = data
        self._files[path.strip("/")] = data
        self.changes += 1

    def put_volatile(self, path: str, data: bytes) -> None:
        """Writes a file that the host has not made durable."""
        self.put(path, data)
        actor = self.world.current
        if actor is not None:
            self._volatile[path] = actor.process.host

    def synced(self, path: str) -> None:
        self._volatile.pop(path, None)

    def listed(self, path: str) -> list[str]:
        above, name = self._parent(path)
        found = self._root if path.strip("/") == "" else None if above is None else above.get(name)
        return sorted(found) if isinstance(found, dict) else []

    def below(self, path: str) -> list[str]:
        """Returns every file at or below ``path``."""
        if self.get(path) is not None:
            return [path]
        return [each for name in self.listed(path) for each in self.below(f"{path}/{name}")]

    def remove(self, path: str) -> None:
        """Removes a file or an empty directory."""
        above, name = self._parent(path)
        if above is not None and (found := above.pop(name, None)) is not None:
            self.synced(path)
            self._forget(path.strip("/"), found)
            self.changes += 1

    def _forget(self, path: str, removed: Tree | bytes) -> None:
        if isinstance(removed, bytes):
            del self._files[path]
        else:
            for name, inner in removed.items():
                self._forget(f"{path}/{name}", inner)

    def _parent(self, path: str) -> tuple[Tree | None, str]:
        above = self._root
        *folders, name = path.strip("/").split("/")
        for folder in folders:
            inner = above.get(folder)
            if not isinstance(inner, dict):
                return None, name
            above = inner
        return above, name

    def _lose(self, host: Host) -> None:
        for path in [path for path, at in self._volatile.items() if at is host]:
            if self.world.random.random() < 0.5:
                self.world.trace.append(f"lost: {path}")
                self.remove(path)
            self.synced(path)

    def _land(self) -> None:
        if self.late and self.world.random.random() < 0.01:
            late = self.late.pop(self.world.random.randrange(len(self.late)))
            if self.get(late.path) is None:
                self.world.trace.append(f"lands late: {late.path}")
                self.landed += 1
                self.put(late.path, late.data)
                self.watcher.created(late.path, late.data)


class SimulatedFiles:
    """A directory of a world's disk. It keeps the promises of :class:`spark_jobs.storage.files.Files`."""

    def __init__(self, disk: Disk, root: str) -> None:
        self._disk, self._root, self._world = disk, root, disk.world

    @property
    def url(self) -> str:
        return f"file://{self._root}"

    def below(self, directory: str) -> "SimulatedFiles":
        return SimulatedFiles(self._disk, f"{self._root}/{directory}")

    def local(self, path: str = "") -> Path:
        return Path(self._root) / path

    def create(self, path: str, data: bytes) -> None:
        self._point("create", path)
        kinds = ("fails", "is done, unknown", "is not done, unknown")
        fault = self._world.fault(*kinds, *(() if "/work/" in self._path(path) else ("comes late, unknown",) * 3))
        if fault == "fails":
            raise StorageError(f"{path} cannot be written.", path=path)
        if fault == "comes late, unknown":
            self._disk.late.append(LateCreate(self._path(path), data))
        if fault in (None, "is done, unknown"):
            found = self._disk.get(self._path(path))
            if found is not None and found != data:
                raise AlreadyExistsError(f"{path} exists.", path=path)
            self._disk.put(self._path(path), data)
            if found is None:
                self._disk.watcher.created(self._path(path), data)
        if fault is not None:
            raise OutcomeUnknownError(f"Whether {path} was made is unknown.", path=path)

    def create_all(self, files: Iterable[tuple[str, bytes]]) -> None:
        for path, data in files:
            self.create(path, data)

    def replace(self, path: str, data: bytes) -> None:
        self._point("replace", path)
        self._disk.put(self._path(path), data)
        self._disk.watcher.replaced(self._path(path))

    def read(self, path: str, max_bytes: int = READ_MAX_BYTES) -> bytes:
        self._point("read", path)
        self._fail(path)
        found = self._disk.get(self._path(path))
        if found is None:
            raise NotFoundError(f"{path} is not there.", path=path)
        return found

    def chunks(self, path: str) -> Generator[bytes, None, None]:
        yield self.read(path)

    def digest(self, path: str) -> Digest:
        data = self.read(path)
        return Digest(len(data), sha256(data))

    def size_bytes(self, path: str) -> int | None:
        found = self._disk.get(self._path(path))
        return None if found is None else len(found)

    def link_or_copy(self, source: Path, path: str) -> None:
        self._point("link", path)
        data = self._disk.get(str(source))
        if data is None:
            raise NotFoundError(f"{source} is not there.", path=str(source))
        if self._disk.get(self._path(path)) is not None:
            raise AlreadyExistsError(f"{path} exists.", path=path)
        self._disk.put_volatile(self._path(path), data)
        self._disk.watcher.created(self._path(path), data)

    def copy(self, source: Files, named: str, path: str) -> Digest:
        self.link_or_copy(local_path(source, named), path)
        data = self._disk.get(self._path(path)) or b""
        return Digest(len(data), sha256(data))

    def names(self, directory: str) -> list[str]:
        self._point("list", directory)
        self._fail(directory)
        return self._disk.listed(self._path(directory))

    def paths(self, directory: str = "") -> list[str]:
        return paths_by_names(self, directory)

    def delete(self, path: str) -> None:
        """Deletes the files one by one. A crash leaves some of them."""
        for each in self._disk.below(self._path(path)):
            self._point("delete", each.removeprefix(f"{self._root}/"))
            self._disk.remove(each)
            self._disk.watcher.deleted(each)
        self._point("delete", path)
        if not self._disk.below(self._path(path)):
            self._disk.remove(self._path(path))

    def sync(self, *paths: str) -> None:
        self._point("sync", " ".join(paths))
        for path in paths:
            self._disk.synced(self._path(path))

    def remove_unfinished(self, *paths: str) -> None:
        """Does nothing: in a world, a file has its name or does not exist."""

    def write_volatile(self, path: str, data: bytes) -> None:
        """Creates a file if it is absent, and does not make it durable. Spark writes its own logs in this way.

        Raises:
            AlreadyExistsError: The file exists.
        """
        self._point("write", path)
        if self._disk.get(self._path(path)) is not None:
            raise AlreadyExistsError(f"{path} exists.", path=path)
        self._disk.put_volatile(self._path(path), data)

    def _path(self, path: str) -> str:
        return f"{self._root}/{path}" if path else self._root

    def _point(self, operation: str, path: str) -> None:
        self._world.pause(f"{operation} {path}")

    def _fail(self, path: str) -> None:
        if self._world.fault("fails", "goes on") == "fails":
            raise StorageError(f"{path} cannot be read.", path=path)
