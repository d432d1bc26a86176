"""Drivers as processes on this host. A driver outlives the task that has started it, and is found again through its home.

- The driver has a session of its own, so that signals for the task's session do not reach it.
- It reads from the null device and writes into a file. An inherited pipe would hold the worker's slot until the driver ends.
- It gets none of Airflow's environment variables, because it needs no connection, variable or key of Airflow.
"""

import errno
import os
import signal
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from airflow_provider.version_compat import container_of_one_task
from spark_jobs.protocol.errors import InterruptedRunError, MissingRequirementError, RejectedError, StreamPipelineError
from spark_jobs.storage.object_store_settings import ObjectStoreSettings
from spark_jobs.storage.os_errors import translated
from spark_jobs.storage.system import DIRECTORY_MODE

STOP_GRACE_S = 3.0
"""The time between SIGTERM and SIGKILL. Airflow gives a killed task 5 s."""
_END_MAX_S = 0.5
"""The time to wait for the end of a process after SIGKILL."""
_AIRFLOWS = ("AIRFLOW__", "AIRFLOW_CONN_", "AIRFLOW_VAR_", "_AIRFLOW_", "__AIRFLOW_")
_NO_PROGRAM = (errno.ENOENT, errno.ENOTDIR, errno.EACCES, errno.ENOEXEC)


_detached: "list[subprocess.Popen[bytes]]" = []
"""Keeps the objects of processes that run on: Python warns if such an object is collected."""


class LocalDriver:
    """A driver process that this process has started."""

    def __init__(self, process: "subprocess.Popen[bytes]", output: Path, *, submits: bool = False) -> None:
        self._process = process
        self._stopping = False
        self.output = output
        """The file with its standard output and errors."""
        self.submits = submits
        """True for ``spark-submit`` in cluster mode: the driver itself runs elsewhere."""

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def exit_code(self) -> int | None:
        """The exit code; None while the process runs."""
        return self._process.returncode if self._stopping else self._process.poll()

    @property
    def was_stopped(self) -> bool:
        """True if :meth:`stop` has ended the process."""
        return self._stopping and self._process.returncode is not None

    def wait(self, timeout_s: float) -> bool:
        """Waits for the end of the process. Returns whether it has ended."""
        try:
            self._process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            return False
        return True

    def detach(self) -> None:
        """Leaves the driver to itself: it runs on when this process ends."""
        _detached.append(self._process)

    def stop(self, grace_s: float = STOP_GRACE_S) -> None:
        """Ends the driver and every process that it has started: sends SIGTERM, and SIGKILL after ``grace_s``. Idempotent.

        Returns when the driver has ended, or when a SIGKILL does not end it because it hangs in a storage. A driver that has already
        ended is left alone.
        """
        if self._process.returncode is not None:
            return
        self._stopping = True
        self._signal_group(signal.SIGTERM)
        end = time.monotonic() + grace_s
        while not self._has_ended() and time.monotonic() < end:
            time.sleep(0.05)
        self._signal_group(signal.SIGKILL)
        self.wait(_END_MAX_S)

    def _has_ended(self) -> bool:
        # WNOWAIT does not reap the process: until it is reaped, no other process or group can get its id.
        try:
            return os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None
        except ChildProcessError:  # another thread reads the exit code right now
            return True

    def _signal_group(self, which: signal.Signals) -> None:
        try:
            os.killpg(self.pid, which)
        except (ProcessLookupError, PermissionError):  # macOS refuses to signal a group of zombies
            return


def start_local_driver(
    command: Sequence[str],
    *,
    output: Path,
    environment: Mapping[str, str],
    store_settings: ObjectStoreSettings | None = None,
    directory: Path | None = None,
    submits: bool = False,
    popen: "Callable[..., subprocess.Popen[bytes]]" = subprocess.Popen,
) -> LocalDriver:
    """Starts ``command`` as this module's docstring says.

    Args:
        command: The arguments, never a shell line. Every user of the host can see them, so they contain no secrets.
        output: The file for the output, made with its directories and readable for this user only. Output is appended.
        environment: Variables that are added to this process's own, without those of Airflow.
        store_settings: Settings of object stores, in place of those in this process's environment.
        directory: The working directory, in which Spark also starts its Python workers. It is made if needed. None: the directory of this
            process, into which others may be able to write.
        submits: The process has a cluster start the driver, and ends.
        popen: Makes the process.

    Raises:
        MissingRequirementError: The program does not exist, or cannot be run.
        InterruptedRunError: The host cannot make another process at the moment.
        StorageError: The output cannot be written.
    """
    with translated(str(output)):
        for made in (output.parent, *([directory] if directory else [])):
            made.mkdir(DIRECTORY_MODE, parents=True, exist_ok=True)
        descriptor = os.open(output, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    with open(descriptor, "ab") as stream:
        try:
            process = popen(
                list(command),
                cwd=directory,
                stdin=subprocess.DEVNULL,
                stdout=stream,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                env=process_environment(store_settings) | dict(environment),
            )
        except OSError as error:
            raise _not_started(command[0], error) from error
    return LocalDriver(process, output, submits=submits)


def process_environment(store_settings: ObjectStoreSettings | None) -> dict[str, str]:
    """Returns the environment of this process without Airflow's own part of it, and with another store; None: with its own."""
    found = {name: value for name, value in os.environ.items() if not name.startswith(_AIRFLOWS)}
    if store_settings is None:
        return found
    return {name: value for name, value in found.items() if name not in store_settings.VARIABLES} | store_settings.environment()


def _not_started(program: str, error: OSError) -> StreamPipelineError:
    safe = "No driver was started."
    if error.errno not in _NO_PROGRAM:  # the host is short of memory or processes at the moment
        return InterruptedRunError(
            f"The host could not start a process for {program}: {error.strerror}.",
            safe=safe,
            remedy="Retry when the host is less busy. Otherwise raise this user's limits, or run fewer tasks at a time on this host.",
            program=program,
        )
    if Path(program).name.endswith("submit"):
        remedy = "Repair the Spark of this host, or name another spark-submit in the Spark connection."
    else:
        remedy = "Correct 'python' in the connection's extras: a Python with this package's 'spark' extra."
    return MissingRequirementError(f"{program} cannot be run: {error.strerror}.", safe=safe, remedy=remedy, program=program)


def check_host_lasts() -> None:
    """Refuses to start a driver on a host that ends with its task.

    Raises:
        RejectedError: The host is the container of one task.
    """
    mark = container_of_one_task()
    if mark is None:
        return
    raise RejectedError(
        f"The driver would end with this task's container ({mark} is set).",
        safe="No driver was started.",
        remedy="Submit it to a cluster (spark_conn_id of the connection, deploy mode cluster), use an executor with lasting workers, or "
        "set allow_driver_in_pod=True: the task then keeps its container until the run has ended.",
        mark=mark,
    )
