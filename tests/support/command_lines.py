"""The command lines of processes, which every user of a host can read."""

import threading

import psutil


class CommandLines:
    """Collects the command lines of all processes while the context is open."""

    def __init__(self) -> None:
        self.seen: set[str] = set()
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._look)

    def __enter__(self) -> "CommandLines":
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._end.set()
        self._thread.join()

    def _look(self) -> None:
        while not self._end.wait(0.05):
            for process in psutil.process_iter(["cmdline"]):
                self.seen.add("\0".join(process.info["cmdline"] or ()))
