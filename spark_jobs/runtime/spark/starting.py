"""Ends the processes of a start of Spark that fails or is interrupted.

PySpark does not publish the JVM that it starts until the JVM has answered. Without this module an earlier interrupt would leave a JVM that
waits for ever.
"""

import signal
import subprocess
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from types import FrameType
from typing import Any

import pyspark.java_gateway
from pyspark import SparkContext

_GRACE_S = 5.0
"""Time between the request to end and the kill. A JVM deletes its temporary files at its end."""
_KILL_S = 5.0
"""Time between a kill and the end of the process."""
_ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class _Start:
    """The processes of one start, and the signal that it has received."""

    def __init__(self) -> None:
        self.processes: list[subprocess.Popen[bytes]] = []
        self.came: int | None = None

    def on_signal(self, number: int, frame: FrameType | None) -> None:
        """Handles signals: the first one asks the processes to end, the second one kills them."""
        again, self.came = self.came is not None, number
        if again:
            self._kill()
        else:
            self._ask()

    def popen(self, *command: Any, **how: Any) -> "subprocess.Popen[bytes]":
        """Starts a process of this start, unless a signal has come."""
        if self.came is None:
            self.processes.append(subprocess.Popen(*command, **how))
        if self.came is not None:
            raise InterruptedError("A signal has ended the start.")
        return self.processes[-1]

    def end(self) -> None:
        """Ends the processes, and makes PySpark forget its JVM if it is one of them. Returns when they have ended, or hang in a storage."""
        self._ask()
        for process in self.processes:
            if process.stdin:
                process.stdin.close()
            with suppress(subprocess.TimeoutExpired):
                process.wait(_GRACE_S + _KILL_S)
        if getattr(SparkContext._gateway, "proc", None) in self.processes:
            SparkContext._gateway = None

    def _ask(self) -> None:
        for process in self.processes:
            process.terminate()
        killing = threading.Timer(_GRACE_S, self._kill)
        killing.daemon = True
        killing.start()

    def _kill(self) -> None:
        for process in self.processes:
            process.kill()


@contextmanager
def ended_unless_started() -> Iterator[None]:
    """Ends every process that PySpark has started inside, if the context closes with an error or a signal was received.

    Signals that would end this process are delayed: they are raised again when the processes have ended.
    """
    start, standing = _Start(), _handlers()
    module: Any = pyspark.java_gateway
    popen = module.Popen
    _handle(dict.fromkeys(standing, start.on_signal))
    module.Popen = start.popen
    started = False
    try:
        yield
        started = start.came is None
    finally:
        _handle(dict.fromkeys(standing, start.on_signal))  # PySpark puts its own handler of SIGINT in their place
        module.Popen = popen
        try:
            if not started:
                start.end()
        finally:
            _handle(standing)
            if start.came is not None:
                signal.raise_signal(start.came)


Handler = Callable[[int, FrameType | None], Any] | int | None


def _handlers() -> dict[signal.Signals, Handler]:
    """Returns the handlers of the signals that would end this process, or nothing in a thread that does not receive signals."""
    if threading.current_thread() is not threading.main_thread():
        return {}
    standing = {number: signal.getsignal(number) for number in _ENDING}
    return {number: handler for number, handler in standing.items() if handler not in (signal.SIG_IGN, None)}


def _handle(handlers: dict[signal.Signals, Any]) -> None:
    for number, handler in handlers.items():
        signal.signal(number, handler)
