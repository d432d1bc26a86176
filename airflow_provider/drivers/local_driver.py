"""A driver as a process on this host. It outlives the task that has started it, and is found again through its home.

- A session of its own: signals for the task's session do not reach it.
- Input from the null device and output into a file: an inherited pipe would hold the worker's slot until the driver ends.
- No environment of Airflow's: connections, variables and keys are none of its business.
"""

import errno
import fcntl
import os
import signal
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from airflow_provider.version_compat import container_of_one_task
from spark_jobs.protocol.errors import InterruptedRunError, MissingRequirementError, RejectedError, StreamPipelineError
from spark_jobs.storage.object_store_settings import VARIABLES, ObjectStoreSettings
from spark_jobs.storage.os_errors import translated
from spark_jobs.storage.system import DIRECTORY_MODE

STOP_GRACE_S = 3.0
"""Between the request to end and the kill. Airflow gives a killed task 5 s."""
_END_MAX_S = 0.5
"""Between a kill and the end of what is killed."""
_AIRFLOWS = ("AIRFLOW__", "AIRFLOW_CONN_", "AIRFLOW_VAR_", "_AIRFLOW_", "__AIRFLOW_")
_NO_PROGRAM = (errno.ENOENT, errno.ENOTDIR, errno.EACCES, errno.ENOEXEC)


_let_go: "list[subprocess.Popen[bytes]]" = []
"""Python warns of a process object that is collected while its process runs."""


class LocalDriver:
    """A driver process that this process has started."""

    def __init__(self, process: "subprocess.Popen[bytes]", output: Path, *, submits: bool = False) -> None:
        self._process = process
        self._stopping = False
        self.output = output
        """Where its standard output and errors go."""
        self.submits = submits
        """It has a cluster start the driver, and is none itself."""

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def exit_code(self) -> int | None:
        """None while it runs."""
        return self._process.returncode if self._stopping else self._process.poll()

    @property
    def was_stopped(self) -> bool:
        """:meth:`stop` has ended it."""
        return self._stopping and self._process.returncode is not None

    def wait(self, timeout_s: float) -> bool:
        """Waits for its end; whether it has ended."""
        try:
            self._process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            return False
        return True

    def let_go(self) -> None:
        """Leaves the driver to itself: this process ends, or goes on with something else, while the driver runs."""
        _let_go.append(self._process)

    def stop(self, grace_s: float = STOP_GRACE_S) -> None:
        """Ends the driver with every process it has started: asks first, kills after ``grace_s``; idempotent.

        Returns when it has ended, or hangs in a storage where no kill reaches it. A driver that has ended by itself is left alone.
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
        # Looked at without reaping: until then its process id, which is its group's too, can be nobody else's.
        try:
            return os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None
        except ChildProcessError:  # a look at its exit code was under way
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
    store: ObjectStoreSettings | None = None,
    directory: Path | None = None,
    alone: bool = False,
    submits: bool = False,
    popen: "Callable[..., subprocess.Popen[bytes]]" = subprocess.Popen,
) -> LocalDriver:
    """Starts ``command`` by the rules of this module.

    Args:
        command: Arguments, never a shell line. Visible to every user of the host: without secrets.
        output: Appended to, or with ``alone`` begun anew; made with its directories, for this user's eyes only.
        environment: Added to this process's, without Airflow's own part of it.
        store: What its environment says of object stores, instead of what this process's says.
        directory: Where it starts, and where Spark starts the Pythons of its workers; made if it is not there. None: where this process is,
            which may be a directory that others write into.
        alone: Only one process at a time with this output; see :func:`is_at_work`.
        submits: It has a cluster start the driver, and ends.
        popen: How a process is made.

    Raises:
        MissingRequirementError: There is no such program, or it cannot be run.
        InterruptedRunError: The host makes no process at the moment.
        StorageError: The output cannot be written.
        BlockingIOError: ``alone``, and one is at work.
    """
    with translated(str(output)):
        for made in (output.parent, *([directory] if directory else [])):
            made.mkdir(DIRECTORY_MODE, parents=True, exist_ok=True)
        descriptor = os.open(output, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    with open(descriptor, "ab") as stream:
        if alone:
            fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
            stream.truncate(0)
        try:
            process = popen(
                list(command),
                cwd=directory,
                stdin=subprocess.DEVNULL,
                stdout=stream,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                env=_environment(store) | dict(environment),
            )
        except OSError as error:
            raise _not_started(command[0], error) from error
    return LocalDriver(process, output, submits=submits)


def _environment(store: ObjectStoreSettings | None) -> dict[str, str]:
    """Returns the environment of this process without Airflow's own part of it, and with another store."""
    found = {name: value for name, value in os.environ.items() if not name.startswith(_AIRFLOWS)}
    if store is None:
        return found
    return {name: value for name, value in found.items() if name not in VARIABLES} | store.environment()


def _not_started(program: str, error: OSError) -> StreamPipelineError:
    safe = "No driver was started."
    if error.errno not in _NO_PROGRAM:  # the host lacks memory, or processes, at the moment
        return InterruptedRunError(
            f"No process could be made for {program}: {error.strerror}.",
            safe=safe,
            remedy="A retry may find the host less busy; else raise this user's limits, or run fewer tasks on it at a time.",
            program=program,
        )
    if Path(program).name.endswith("submit"):
        remedy = "Repair the Spark of this host, or name another spark-submit in the Spark connection."
    else:
        remedy = "Correct 'python' in the connection's extras: a Python with this package's 'spark' extra."
    return MissingRequirementError(f"{program} cannot be run: {error.strerror}.", safe=safe, remedy=remedy, program=program)


def is_at_work(output: Path) -> bool:
    """Whether a process that was started ``alone`` with this output still runs, or one that it has started.

    The lock belongs to the open file that those processes have inherited: it ends with the last of them, however they end. Seen from
    every process of the host, and of other hosts where their file system shares such locks.

    Raises:
        StorageError: The file cannot be looked at.
    """
    with translated(str(output)):
        try:
            with output.open("rb") as stream:
                fcntl.flock(stream, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except FileNotFoundError:
            return False
        except BlockingIOError:
            return True
    return False


def check_host_lasts() -> None:
    """Refuses to start a driver on a host that ends with the task that runs on it.

    Raises:
        RejectedError: It does.
    """
    mark = container_of_one_task()
    if mark is None:
        return
    raise RejectedError(
        f"The driver would be a process of this task's container ({mark} is set), and end with it.",
        safe="No driver was started.",
        remedy="Submit it to a cluster (spark_conn_id of the connection, deploy mode cluster), use an executor with lasting workers, or "
        "set allow_driver_in_pod=True: the task then keeps its container until the run has ended.",
        mark=mark,
    )
