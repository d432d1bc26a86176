"""Remembers the paths of Delta's jars from the first start on.

For a package Spark runs Ivy at every start, which takes seconds although nothing is fetched. The result is the same for the same versions,
so it is stored. If the list is missing, cannot be written or names a missing jar, the start only takes these seconds again. The same
happens if another user may have written the list or a jar, because a jar is code.
"""

import errno
import os
import stat
from collections.abc import Mapping, Sequence
from contextlib import suppress
from importlib.metadata import version
from pathlib import Path
from urllib.parse import unquote, urlsplit

from spark_jobs.protocol.spark_settings import PACKAGES
from spark_jobs.runtime.spark.spark_facts import SPARK_VERSION
from spark_jobs.storage.plain_files import open_plain
from spark_jobs.storage.user_cache import user_cache

_LIST_MAX_BYTES = 1 << 20
_RESOLUTION = (
    PACKAGES,
    "spark.jars.excludes",
    "spark.jars.ivy",
    "spark.jars.ivySettings",
    "spark.jars.repositories",
)
"""Settings that may change Ivy's result. With them nothing is stored."""


class DeltaJars:
    """The list of jars for the installed versions.

    Args:
        settings: Settings of the application, without Delta's.
        packages: Maven packages in addition to Delta's.
        cache: Directory of the lists.
        user: Id of the user who starts Spark; None: the user of this process.
    """

    def __init__(
        self, settings: Mapping[str, str], packages: Sequence[str], cache: Path | None = None, user: int | None = None
    ) -> None:
        self._user = os.getuid() if user is None else user
        self._given = [jar for jar in settings.get("spark.jars", "").split(",") if jar]
        self._usable = not packages and not any(key in settings for key in _RESOLUTION)
        name = f"delta-{version('delta-spark')}-spark-{SPARK_VERSION}.jars"
        self._list = (cache or user_cache() or Path("/nonexistent")) / name  # a user without a home: nothing is remembered

    def setting(self) -> str | None:
        """Returns ``spark.jars`` with the user's own jars and Delta's, or None if Spark has to run Ivy."""
        if not self._usable:
            return None
        try:
            jars = self._read_list().decode().splitlines()
            if not jars or not all(stat.S_ISREG(self._owned(Path(jar).stat(), stat.S_IWOTH).st_mode) for jar in jars):
                return None
        except (OSError, ValueError):
            return None
        return ",".join([*self._given, *jars])

    def remember(self, setting: str) -> None:
        """Stores the value of ``spark.jars`` after a start that has run Ivy."""
        own = {_path(jar) for jar in self._given}
        jars = [path for path in map(_path, setting.split(",")) if path and path not in own]
        if not self._usable or not any(Path(jar).name.startswith("io.delta_delta-spark") for jar in jars):
            return
        unfinished = self._list.with_name(f".{self._list.name}.{os.getpid()}")
        with suppress(OSError):
            self._list.parent.mkdir(parents=True, exist_ok=True)
            self._list.parent.chmod(0o700)  # an error if it belongs to another user
            unfinished.write_text("".join(f"{jar}\n" for jar in jars))
            unfinished.chmod(0o600)
            unfinished.replace(self._list)

    def _read_list(self) -> bytes:
        """Returns the content of the list. It is a small file that only this user or root can have written.

        Raises:
            OSError: The file is missing or not regular, or others own or may write it or its directory.
        """
        path = self._list
        self._owned(path.parent.stat())
        descriptor = open_plain(path.absolute(), root=path.parent.absolute())
        with open(descriptor, "rb") as file:
            if self._owned(os.fstat(descriptor)).st_size > _LIST_MAX_BYTES:
                raise OSError(errno.EFBIG, os.strerror(errno.EFBIG), str(path))
            return file.read()

    def _owned(self, found: os.stat_result, others: int = stat.S_IWGRP | stat.S_IWOTH) -> os.stat_result:
        """Returns the status of a file that belongs to this user or root and that ``others`` may not write.

        Ivy's jars may be writable for the user's group: many hosts have a umask of 002, and Spark would load them from Ivy, too.
        """
        if found.st_uid not in (self._user, 0) or found.st_mode & others:
            raise PermissionError(errno.EPERM, "others may have written it")
        return found


def _path(jar: str) -> str:
    return unquote(urlsplit(jar).path)
