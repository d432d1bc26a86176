"""Processes that a test has started or found."""

import os
import subprocess
import time
from pathlib import Path

_READY_S = 180.0


def ready(process: "subprocess.Popen[str]", mark: Path) -> None:
    """Returns when a process, or one that it has started, has written ``mark``."""
    end = time.monotonic() + _READY_S
    while not (mark.exists() and mark.read_text()):
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < end, "it has not come that far"
        time.sleep(0.05)


def ended(pid: int) -> bool:
    """Returns True if the process does not exist any more."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    return False
