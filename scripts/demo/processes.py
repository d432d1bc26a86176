"""Airflow as a process of its own, with everything it starts, and the end of all of it.

Ctrl-C on a DAG's test run does not reach the driver: it has a session of its own, so that it outlives its task. The demo ends it by itself.
Processes are known by id and start time, so that an id which was used again is nobody's.
"""

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path

import psutil

from spark_jobs.runtime.spark.jvm_options import SHORT_RUN

GRACE_S = 5.0
"""Between the request to end and the kill."""
LEDGER = "processes.json"


class AirflowProcess:
    """One Airflow command, and every process that it has started.

    Args:
        arguments: Of the ``airflow`` command.
        environment: Instead of this process's own.
        log: Its output is appended there.
        directory: Where it runs.
    """

    def __init__(self, arguments: Sequence[str], *, environment: Mapping[str, str], log: Path, directory: Path) -> None:
        self._ledger = log.parent / LEDGER
        with log.open("ab") as output:
            self._process = psutil.Popen(
                [sys.executable, "-m", "airflow", *arguments],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                env=dict(environment),
                cwd=directory,
                start_new_session=True,  # Ctrl-C is for the demo, which ends things in their order
            )
        self._seen: set[psutil.Process] = {self._process}
        self._note()

    def poll(self) -> int | None:
        """The exit code, None while it runs. Looks for new processes on the way."""
        try:
            found = set(self._process.children(recursive=True))
        except psutil.NoSuchProcess:
            found = set()
        if found - self._seen:
            self._seen |= found
            self._note()
        code: int | None = self._process.poll()
        return code

    def end(self) -> None:
        """Ends Airflow first, so that it does not retry what is ended next, then everything that it has started; idempotent."""
        self.poll()
        end_processes([self._process])
        end_processes(self._seen)

    def _note(self) -> None:
        entries = [[process.pid, process.create_time()] for process in self._seen if process.is_running()]
        self._ledger.write_text(json.dumps(entries))


def end_processes(processes: Iterable[psutil.Process]) -> None:
    """Asks processes to end, and kills those that still run after :data:`GRACE_S`."""
    for process in (running := [process for process in processes if process.is_running()]):
        _signal(process.terminate)
    _, left = psutil.wait_procs(running, timeout=GRACE_S)
    for process in left:
        _signal(process.kill)
    psutil.wait_procs(left, timeout=GRACE_S)


def end_leftovers(output: Path) -> int:
    """Ends what a demo that was killed has left running; how many processes that were."""
    try:
        noted = json.loads((output / LEDGER).read_text())
    except (FileNotFoundError, ValueError):
        return 0
    found = []
    for pid, created in noted:
        try:
            process = psutil.Process(pid)
        except psutil.NoSuchProcess:
            continue
        if process.create_time() == created and process.status() != psutil.STATUS_ZOMBIE:
            found.append(process)
    end_processes(found)
    return len(found)


def environment_of(output: Path, dags: Path, homes: Path) -> dict[str, str]:
    """An environment in which Airflow has its own directory, an embedded database, and nothing of the user's own Airflow."""
    clean = {name: value for name, value in os.environ.items() if not name.startswith(("AIRFLOW", "_AIRFLOW", "SPARK_JOBS_"))}
    conf = {"spark.ui.enabled": "false", "spark.driver.extraJavaOptions": SHORT_RUN}
    connection = {"conn_type": "stream_pipeline", "extra": {"home_root": str(homes), "master": "local[*]", "conf": conf}}
    return clean | {
        "AIRFLOW_HOME": str(output / "airflow"),
        "AIRFLOW__CORE__DAGS_FOLDER": str(dags),
        "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
        "AIRFLOW_CONN_STREAM_PIPELINE_DEFAULT": json.dumps(connection),
        "SPARK_JOBS_EXAMPLES": str(output),
    }


def _signal(send: Callable[[], object]) -> None:
    try:
        send()
    except psutil.NoSuchProcess:
        return
