"""A reader that polls tables through a whole run."""

import threading
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType

from tests.spark.rows import public_count

_POLL_S = 0.05


class Watcher:
    """A reader that polls every table while the context is open. After each look it checks whether a manifest exists.

    A table is read before the manifest, so rows seen without a manifest were public before the checkpoint was complete.
    """

    def __init__(self, tables: Mapping[str, Path], home: Path) -> None:
        self._tables, self._home = dict(tables), home
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="watcher")
        self.seen: dict[str, list[tuple[int, bool]]] = {name: [] for name in tables}
        """The looks at each table: the number of rows, and whether a manifest existed right after it."""
        self.failure: Exception | None = None

    def __enter__(self) -> "Watcher":
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._stop.set()
        self._thread.join()
        if self.failure is not None:
            raise self.failure

    def _watch(self) -> None:
        last_round = False
        while not last_round:
            last_round = self._stop.wait(_POLL_S)
            try:
                self._look()
            except Exception as error:  # noqa: BLE001 - a thread's edge: raised again where the context ends
                self.failure = error
                return

    def _look(self) -> None:
        for name, path in self._tables.items():
            rows = public_count(path)
            complete = any(self._home.glob("manifests/*.json"))
            if rows is not None:
                self.seen[name].append((rows, complete))
