"""A running Airflow for the tests: ``airflow standalone`` on loopback ports, with PostgreSQL or SQLite as its database."""

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import psutil

from tests.support.servers import free_port

START_S = 300.0
STOP_S = 15.0
DEADLINE_S = 90.0
COMPONENTS = ("scheduler", "dag-processor", "api-server", "triggerer")
_PAUSE_S = 0.2
_USERS = {"admin": "admin", "ann": "user", "bob": "viewer", "eve": ""}
"""The role of each user. A user without a role may do nothing."""
SETTINGS = {
    "CORE__LOAD_EXAMPLES": "False",
    "CORE__PARALLELISM": "4",
    "CORE__TASK_SUCCESS_OVERTIME": "5",
    "CORE__TEST_CONNECTION": "Enabled",
    "CORE__SIMPLE_AUTH_MANAGER_USERS": ",".join(f"{name}:{role}" for name, role in _USERS.items()),
    "API__WORKERS": "1",
    "DAG_PROCESSOR__REFRESH_INTERVAL": "5",
    "DAG_PROCESSOR__MIN_FILE_PROCESS_INTERVAL": "3600",
    "SCHEDULER__ORPHANED_TASKS_CHECK_INTERVAL": "10",
    "SCHEDULER__TASK_INSTANCE_HEARTBEAT_TIMEOUT": "15",
    "SCHEDULER__TASK_INSTANCE_HEARTBEAT_TIMEOUT_DETECTION_INTERVAL": "5",
    "WORKERS__MIN_HEARTBEAT_INTERVAL": "2",
    "TRIGGERER__JOB_HEARTBEAT_SEC": "2",
    "TRIGGERER__TRIGGERER_HEALTH_CHECK_THRESHOLD": "8",
    "LOGGING__LOGGING_LEVEL": "INFO",
}
"""Settings that detect faults within seconds and isolate the Airflows of one host. A DAG file is read once: no file changes, and reading
all of them every half minute would take a fifth of a core."""


def until(condition: Callable[[], Any], what: str, deadline_s: float = DEADLINE_S) -> Any:
    """Waits for a condition and returns its value."""
    end_s = time.monotonic() + deadline_s
    while time.monotonic() < end_s:
        if found := condition():
            return found
        time.sleep(_PAUSE_S)
    raise AssertionError(f"{what}: not within {deadline_s:.0f} s")


@dataclass
class RunningAirflow:
    """A running Airflow. Tests use its REST API, as the UI does, and only kill its processes directly."""

    directory: Path
    environment: Mapping[str, str]
    port: int
    process: "subprocess.Popen[bytes]"
    others: "list[subprocess.Popen[bytes]]" = field(default_factory=list)
    _tokens: dict[str, str] = field(default_factory=dict)

    def call(self, method: str, path: str, body: Any = None, user: str = "admin") -> httpx.Response:
        """Sends one request as a user."""
        headers = {"Authorization": f"Bearer {self._token(user)}"}
        return httpx.request(method, f"http://127.0.0.1:{self.port}{path}", json=body, headers=headers, timeout=30.0)

    def get(self, path: str) -> Any:
        answer = self.call("GET", f"/api/v2/{path}")
        assert answer.status_code == 200, answer.text
        return answer.json()

    def trigger(self, dag_id: str, **conf: Any) -> "TaskRun":
        """Starts a run of a DAG. Returns its task ``run``."""
        self.unpause(dag_id)
        answer = self.call("POST", f"/api/v2/dags/{dag_id}/dagRuns", {"logical_date": None, "conf": conf})
        assert answer.status_code == 200, answer.text
        return TaskRun(self, dag_id, answer.json()["dag_run_id"])

    def unpause(self, dag_id: str) -> None:
        """Unpauses a DAG as soon as Airflow knows it."""
        until(lambda: self.call("GET", f"/api/v2/dags/{dag_id}").status_code == 200, f"DAG {dag_id} is known")
        assert self.call("PATCH", f"/api/v2/dags/{dag_id}", {"is_paused": False}).status_code == 200

    def read_again(self, dag_id: str) -> None:
        """Makes Airflow read the file of a DAG again."""
        token = self.get(f"dags/{dag_id}")["file_token"]
        assert self.call("PUT", f"/api/v2/parseDagFile/{token}").status_code == 201

    def component(self, name: str) -> psutil.Process:
        """Returns the process of a component, such as ``triggerer``."""
        found = self._component(name)
        if found is None:
            raise AssertionError(f"Airflow has no {name}")
        return found

    def kill_triggerer(self) -> None:
        """Kills the triggerer, as if its host lost power."""
        self._kill("triggerer")

    def kill_workers(self) -> None:
        """Kills the workers and the scheduler that started them, as if their host lost power."""
        self._kill("scheduler")

    def _kill(self, name: str) -> None:
        """Kills a component and all its processes. It is suspended first, so that it starts no other process in between."""
        component = self.component(name)
        component.suspend()
        for process in [*component.children(recursive=True), component]:
            process.kill()
        until(lambda: not component.is_running() or component.status() == psutil.STATUS_ZOMBIE, f"the {name} is dead")

    def start_triggerer(self) -> None:
        self.others.append(self._start("triggerer"))

    def start_second_triggerer(self) -> psutil.Process:
        """Starts a second triggerer that shares the waits with the first."""
        port = {"AIRFLOW__LOGGING__TRIGGER_LOG_SERVER_PORT": str(free_port())}
        self.others.append(start(self.directory, dict(self.environment) | port, "triggerer"))
        return psutil.Process(self.others[-1].pid)

    def start_what_is_missing(self) -> None:
        """Starts the missing components, as a service manager does in production. Airflow is ready on return."""
        for name in COMPONENTS:
            if self._component(name) is None:
                self.others.append(self._start(name))
        until(self.is_ready, "Airflow is ready again", START_S)

    def stop_components(self) -> None:
        """Asks each component to end, as a service manager does, and kills those that do not end in time."""
        components = [found for name in COMPONENTS if (found := self._component(name)) is not None]
        everything = self._processes()
        for process in components:
            process.terminate()
        psutil.wait_procs(components, timeout=STOP_S)
        _end(everything, psutil.Process.kill)
        self._reap()

    def restart(self) -> None:
        """Starts Airflow again after :meth:`stop_components`. It is ready on return."""
        self.process, self.others, self._tokens = self._start("standalone"), [], {}
        until(self.is_ready, "Airflow is ready again", START_S)

    def stop(self) -> None:
        """Ends every process of Airflow."""
        _end(self._processes(), psutil.Process.terminate)
        self._reap()

    def is_ready(self) -> bool:
        """Returns True if every component reports that it is healthy."""
        if self.process.poll() is not None:
            raise AssertionError((self.directory / "standalone.log").read_text()[-4000:])
        try:
            health = httpx.get(f"http://127.0.0.1:{self.port}/api/v2/monitor/health", timeout=5.0).json()
        except (httpx.HTTPError, ValueError):
            return False
        return all(health[name]["status"] == "healthy" for name in ("metadatabase", "scheduler", "triggerer", "dag_processor"))

    def _reap(self) -> None:
        for process in [*self.others, self.process]:
            process.wait(STOP_S)

    def _component(self, name: str) -> psutil.Process | None:
        for process in self._processes():
            with suppress(psutil.ZombieProcess, psutil.NoSuchProcess):
                if f" {name}" in " ".join(process.cmdline()) and process.status() != psutil.STATUS_ZOMBIE:
                    return process
        return None

    def _processes(self) -> list[psutil.Process]:
        roots = [psutil.Process(each.pid) for each in (self.process, *self.others) if each.poll() is None]
        return [process for root in roots for process in (root, *root.children(recursive=True))]

    def _start(self, *arguments: str) -> "subprocess.Popen[bytes]":
        return start(self.directory, self.environment, *arguments)

    def _token(self, user: str) -> str:
        if user not in self._tokens:
            passwords = json.loads((self.directory / "simple_auth_manager_passwords.json.generated").read_text())
            body = {"username": user, "password": passwords[user]}
            answer = httpx.post(f"http://127.0.0.1:{self.port}/auth/token", json=body, timeout=30.0)
            assert answer.status_code == 201, answer.text
            self._tokens[user] = answer.json()["access_token"]
        return self._tokens[user]


def _lines(content: list[Any]) -> Iterator[str]:
    for line in content:
        yield " ".join(str(line[part]) for part in ("event", "reason") if part in line) if isinstance(line, dict) else str(line)
        for error in (line.get("error_detail") or []) if isinstance(line, dict) else []:
            yield str(error["exc_value"])


@dataclass(frozen=True)
class TaskRun:
    """The task ``run`` of one DAG run."""

    airflow: RunningAirflow
    dag_id: str
    run_id: str
    task_id: str = "run"

    @property
    def path(self) -> str:
        return f"dags/{self.dag_id}/dagRuns/{self.run_id}/taskInstances/{self.task_id}"

    def facts(self) -> dict[str, Any]:
        found: dict[str, Any] = self.airflow.get(self.path)
        return found

    @property
    def state(self) -> str:
        return str(self.facts()["state"])

    @property
    def run_state(self) -> str:
        """Returns the state of the DAG run. A run that is about to end forgets a task that is cleared in that moment."""
        return str(self.airflow.get(f"dags/{self.dag_id}/dagRuns/{self.run_id}")["state"])

    @property
    def tries(self) -> int:
        return int(self.facts()["try_number"])

    def reaches(self, *states: str, tries: int = 0, deadline_s: float = DEADLINE_S) -> dict[str, Any]:
        """Waits until the task has one of the states, in try ``tries`` or later."""

        def reached() -> dict[str, Any] | None:
            facts = self.facts()
            return facts if facts["state"] in states and facts["try_number"] >= tries else None

        try:
            found: dict[str, Any] = until(reached, f"{self.dag_id} is {' or '.join(states)}", deadline_s)
        except AssertionError as error:
            raise AssertionError(f"{error}: it is {self.facts()['state']}\n{self.log()}") from None
        return found

    def clear(self) -> None:
        body = {
            "dry_run": False,
            "dag_run_id": self.run_id,
            "task_ids": [self.task_id],
            "only_failed": False,
            "reset_dag_runs": True,
        }
        assert self.airflow.call("POST", f"/api/v2/dags/{self.dag_id}/clearTaskInstances", body).status_code == 200

    def mark(self, state: str) -> None:
        assert self.airflow.call("PATCH", f"/api/v2/{self.path}", {"new_state": state}).status_code == 200

    def mark_run(self, state: str) -> None:
        path = f"/api/v2/dags/{self.dag_id}/dagRuns/{self.run_id}"
        assert self.airflow.call("PATCH", path, {"state": state}).status_code == 200

    def process(self) -> psutil.Process:
        """Returns the process that runs the task."""
        return psutil.Process(until(lambda: self.facts()["pid"], "the task has a process"))

    def worker(self) -> psutil.Process:
        """Returns the process of the worker that supervises the task."""
        found = self.process().parent()
        assert found is not None
        return found

    def kill_worker(self) -> None:
        """Kills the worker, as if its host lost power."""
        process, worker = self.process(), self.worker()
        for each in (worker, process):
            each.kill()

    def xcom(self) -> Any:
        value = self.airflow.get(f"{self.path}/xcomEntries/return_value")["value"]
        return json.loads(value) if isinstance(value, str) else value

    def log(self, tried: int | None = None) -> str:
        """Returns the task's log, as the UI shows it."""
        number = self.facts()["try_number"] if tried is None else tried
        answer = self.airflow.call("GET", f"/api/v2/{self.path}/logs/{number}?full_content=true")
        content = answer.json().get("content", []) if answer.status_code == 200 else []
        return "\n".join(_lines(content))


def start(directory: Path, environment: Mapping[str, str], *arguments: str) -> "subprocess.Popen[bytes]":
    """Starts an ``airflow`` command in a session of its own. Its output goes to a file next to the database."""
    with (directory / f"{arguments[0]}.log").open("ab") as output:
        return subprocess.Popen(
            [str(Path(sys.executable).with_name("airflow")), *arguments],
            env=dict(environment),
            cwd=directory,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )


@contextmanager
def running(directory: Path, dags: Path, environment: Mapping[str, str], settings: Mapping[str, str]) -> Iterator[RunningAirflow]:
    """Starts an Airflow. It is ready on entry, and ends when the context closes.

    Args:
        directory: The home of Airflow.
        dags: The directory of its DAGs.
        environment: More environment variables of its processes.
        settings: Airflow's settings, as ``SECTION__NAME``.
    """
    port, ports = free_port(), {f"LOGGING__{name}_LOG_SERVER_PORT": str(free_port()) for name in ("TRIGGER", "WORKER")}
    base = f"http://127.0.0.1:{port}"
    own = {
        "API__PORT": str(port),
        "API__HOST": "127.0.0.1",
        "API__BASE_URL": base,
        "CORE__EXECUTION_API_SERVER_URL": f"{base}/execution/",
        "CORE__DAGS_FOLDER": str(dags),
    }
    variables = {f"AIRFLOW__{name}": value for name, value in (SETTINGS | own | ports | dict(settings)).items()}
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("AIRFLOW")}
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"  # it starts its components by name
    whole = inherited | {"AIRFLOW_HOME": str(directory), "PATH": path} | variables | dict(environment)
    airflow = RunningAirflow(directory, whole, port, start(directory, whole, "standalone"))
    try:
        until(airflow.is_ready, "Airflow is ready", START_S)
        yield airflow
    finally:
        airflow.stop()


def _end(processes: list[psutil.Process], how: Callable[[psutil.Process], None]) -> None:
    for process in processes:
        with suppress(psutil.NoSuchProcess):
            how(process)
    _, alive = psutil.wait_procs(processes, timeout=STOP_S)
    for each in alive:
        each.kill()


def survivors(*directories: Path) -> list[psutil.Process]:
    """Returns every process that works in one of these directories, or names one on its command line."""
    found = []
    for process in psutil.process_iter():
        with suppress(psutil.NoSuchProcess, psutil.AccessDenied):
            told = [process.cwd(), *process.cmdline()]
            ours = any(str(directory) in each for directory in directories for each in told)
            if ours and process.pid != os.getpid() and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process)
    return found
