"""The demo from its first process to its table."""

import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.markup import escape

from scripts.demo.phases import SINKS, Phase, Sight, phase_of
from scripts.demo.preflight import Stopped
from scripts.demo.processes import AirflowProcess, environment_of
from scripts.demo.report import breakdown, print_next_steps, print_result, verify
from scripts.demo.screen import Screen
from spark_jobs.checkpoint.checkpoint_store import CheckpointStore
from spark_jobs.control.channel import Channel
from spark_jobs.control.status import read_status
from spark_jobs.protocol.documents import Manifest, StartResponse
from spark_jobs.protocol.errors import StreamPipelineError
from spark_jobs.protocol.ids import SinkName
from spark_jobs.storage.files import Files
from spark_jobs.storage.open import open_files

DAG = "bounded_flights"
_POLL_S = 0.25
_LOG_LINES = 15


@dataclass(frozen=True)
class Places:
    """The paths of the demo."""

    root: Path
    """The clone."""
    output: Path

    @property
    def homes(self) -> Path:
        return self.output / "homes"

    @property
    def home(self) -> Path:
        return self.homes / DAG

    @property
    def log(self) -> Path:
        return self.output / "airflow.log"


class FailedError(Exception):
    """The run failed; the message says why and what to do."""


def run(console: Console, root: Path, output: Path) -> int:
    """Runs the DAG, shows it, compares what it published. Returns the exit code."""
    places = Places(root, output)
    places.homes.mkdir(parents=True)
    console.print(
        f"[bold]The flights of 2013 through Airflow, Spark and Delta.[/bold] Everything goes to {output}.", highlight=False
    )
    try:
        with Screen(console) as screen:
            _airflow(places, screen)
            screen.show(Phase.VERIFICATION)
            comparisons, versions = verify(places.home)
            durations_s = screen.durations_s
    except Stopped:
        console.print(f"Stopped: Airflow and its driver have ended. {_left(places)}. 'make demo' starts from the beginning.")
        return 130
    except (FailedError, StreamPipelineError, ValueError) as error:
        console.print(f"[bold red]The demo failed.[/bold red] {escape(str(error))}", highlight=False)
        return 1
    manifest = _manifest(places)
    print_result(console, manifest, comparisons, versions)
    console.print(f"[dim]{breakdown(durations_s)}[/dim]", highlight=False)
    print_next_steps(console, output, places.home, manifest, [manifest.sinks[SinkName(sink)].table for sink in SINKS])
    return 0 if all(found.same for found in comparisons) else 1


def _airflow(places: Places, screen: Screen) -> None:
    """Runs the DAG as anybody would.

    Raises:
        FailedError: Airflow or the pipeline failed.
        Stopped: Somebody asked for it; everything that was started has ended.
    """
    environment = environment_of(places.output, places.root / "dags_examples", places.homes)
    for arguments in (["db", "migrate"], ["dags", "test", DAG]):
        code = _watched(arguments, places, environment, screen)
        if code != 0:
            raise FailedError(f"'airflow {' '.join(arguments)}' ended with exit code {code}. {_said(places)}")


def _watched(arguments: list[str], places: Places, environment: Mapping[str, str], screen: Screen) -> int:
    process = AirflowProcess(arguments, environment=environment, log=places.log, directory=places.root)
    files = open_files(str(places.home))
    try:
        while (code := process.poll()) is None:
            answer = _answer(files)
            if answer is not None and answer.error is not None:
                raise FailedError(f"{answer.error.failed} {answer.error.remedy} {_said(places)}")
            sight = _look(places, files, arguments[0] != "db", answer)
            screen.show(phase_of(sight), sight.status)
            time.sleep(_POLL_S)
        return code
    finally:
        process.end()


def _look(places: Places, files: Files, database_ready: bool, answer: StartResponse | None) -> Sight:
    return Sight(
        database_ready=database_ready,
        loading=(places.output / DAG / "warehouse" / "airlines").exists(),
        requested=bool(files.names("requests")),
        status=read_status(files),
        answered=answer is not None,
    )


def _answer(files: Files) -> StartResponse | None:
    """The answer to the newest request."""
    attempt = Channel(files).attempts.latest()
    return None if attempt is None else Channel(files).response(attempt.request)


def _manifest(places: Places) -> Manifest:
    head = CheckpointStore(open_files(str(places.home))).head()
    if head is None:
        raise FailedError(f"The DAG ended without a checkpoint. {_said(places)}")
    return head


def _left(places: Places) -> str:
    head = CheckpointStore(open_files(str(places.home))).head()
    return "No checkpoint was complete, and nothing is public" if head is None else f"Checkpoint {head.checkpoint} is complete"


def _said(places: Places) -> str:
    try:
        lines = places.log.read_text(errors="replace").splitlines()[-_LOG_LINES:]
    except FileNotFoundError:
        lines = []
    return "\n".join([f"The end of {places.log}:", *lines])
