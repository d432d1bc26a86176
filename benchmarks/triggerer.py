"""A triggerer of Airflow, with tasks that wait in it: what it costs, and when it has seen something."""

import json
import os
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import psutil

TASKS = 20
"""Of one DAG run: the triggerer reads the whole DAG again and again."""
RUN, TASK = "run-", "wait-"
_START_S = 300.0
_COUNTER = """
import os, sys, threading, time
HOMES, COUNTS = os.environ["COUNTED_BELOW"], os.environ["COUNTS"]
count = 0
def hook(event, arguments):
    global count
    if event in ("open", "os.listdir", "os.scandir") and isinstance(arguments[0], str) and arguments[0].startswith(HOMES):
        count += 1
def write():
    while True:
        time.sleep(0.5)
        with open(f"{COUNTS}/{os.getpid()}", "w") as file:
            file.write(str(count))
sys.addaudithook(hook)
threading.Thread(target=write, daemon=True).start()
os.register_at_fork(after_in_child=lambda: threading.Thread(target=write, daemon=True).start())
"""
"""Counts what a process opens and lists below a directory, from Python's own audit events."""


class Triggerer:
    """A running triggerer.

    Args:
        directory: Airflow's home, made for it.
        process: The triggerer.
    """

    def __init__(self, directory: Path, process: psutil.Process) -> None:
        self._directory, self._process = directory, process

    def at_rest(self, seconds: float) -> tuple[float, float]:
        """Percent of one core that it uses for so long, and files opened and directories listed below the homes a second."""
        cpu_s, reads, began_s = self._cpu_s(), self._reads(), time.monotonic()
        time.sleep(seconds)
        used_s, read, took_s = self._cpu_s() - cpu_s, self._reads() - reads, time.monotonic() - began_s
        return 100.0 * used_s / took_s, read / took_s

    def memory_mib(self) -> float:
        """Of all its processes, what they share counted once."""
        return sum(float(process.memory_full_info().pss) for process in self.tree()) / 2**20

    def resumed_at(self) -> dict[int, datetime]:
        """Returns the time at which each resumed task was resumed, by the number of its trigger in the order of creation."""
        sql = "SELECT run_id, task_id, scheduled_dttm FROM task_instance WHERE state = 'scheduled'"
        return {_number(run, task): datetime.fromisoformat(at).replace(tzinfo=UTC) for run, task, at in self._query(sql)}

    def taken(self) -> int:
        """Returns the number of triggers that the triggerer has."""
        return int(self._query("SELECT count(*) FROM trigger WHERE triggerer_id IS NOT NULL")[0][0])

    def log(self) -> str:
        return (self._directory / "triggerer.out").read_text()

    def tree(self) -> list[psutil.Process]:
        """All its processes."""
        return [self._process, *self._process.children(recursive=True)]

    def _cpu_s(self) -> float:
        return sum(float(times.user + times.system) for times in (process.cpu_times() for process in self.tree()))

    def _reads(self) -> int:
        return sum(int(path.read_text() or 0) for path in (self._directory / "counts").iterdir())

    def _query(self, sql: str) -> list[tuple[Any, ...]]:
        connection = sqlite3.connect(f"file:{self._directory}/airflow.db?mode=ro", uri=True, timeout=30.0)
        try:
            return connection.execute(sql).fetchall()
        finally:
            connection.close()


@contextmanager
def waiting(
    directory: Path,
    homes: Path,
    triggers: Sequence[tuple[str, Mapping[str, Any]]],
    tell: Callable[[str], None],
    settled_s: float,
) -> Iterator[Triggerer]:
    """A triggerer that has all of ``triggers``, and is at rest; ends with the context.

    Args:
        directory: Empty.
        homes: Where reads are counted.
        triggers: Class and arguments of each; each is what one deferred task waits for.
        tell: Told what is going on.
        settled_s: From the last trigger's start until all is at rest: they send nothing before 10 s, and look less and less often.
    """
    environment = _environment(directory, homes)
    tell("putting deferred tasks into Airflow's database")
    lines = "".join(json.dumps(each) + "\n" for each in triggers)
    made = subprocess.run(
        [sys.executable, "-m", "benchmarks.deferred_tasks"],
        input=lines,
        env=environment,
        text=True,
        capture_output=True,
        check=False,
    )
    if made.returncode:
        raise RuntimeError(made.stderr[-4000:])
    with (directory / "triggerer.out").open("wb") as output:
        program = str(Path(sys.executable).with_name("airflow"))
        process = subprocess.Popen(
            [program, "triggerer", "--skip-serve-logs"],
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
        )
    found = Triggerer(directory, psutil.Process(process.pid))
    try:
        tell("starting a triggerer")
        _wait(lambda: found.taken() == len(triggers), process)
        time.sleep(settled_s)
        yield found
    finally:
        tree = found.tree()
        process.terminate()
        _, alive = psutil.wait_procs(tree, timeout=30.0)
        for each in alive:
            each.kill()
        process.wait(30.0)


def _wait(condition: Callable[[], bool], process: "subprocess.Popen[bytes]") -> None:
    end_s = time.monotonic() + _START_S
    while not condition():
        if time.monotonic() > end_s or process.poll() is not None:
            raise RuntimeError("the triggerer has not taken all triggers")
        time.sleep(1.0)


def _environment(directory: Path, homes: Path) -> dict[str, str]:
    (directory / "counter").mkdir()
    (directory / "counts").mkdir()
    (directory / "counter" / "sitecustomize.py").write_text(_COUNTER)
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("AIRFLOW")}
    root = str(Path(__file__).parents[1])
    return inherited | {
        "AIRFLOW_HOME": str(directory),
        "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
        "AIRFLOW__CORE__DAGS_FOLDER": str(directory / "counter"),
        "PYTHONPATH": os.pathsep.join([root, str(directory / "counter")]),
        "COUNTED_BELOW": str(homes),
        "COUNTS": str(directory / "counts"),
    }


def _number(run: str, task: str) -> int:
    return int(run.removeprefix(RUN)) * TASKS + int(task.removeprefix(TASK))
