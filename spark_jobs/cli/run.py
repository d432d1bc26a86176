"""``spark-jobs run``: runs a pipeline to the end of its inputs, in this process."""

import json
import os
import shlex
import socket
from collections.abc import Callable, Iterable
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import RenderableType
from rich.text import Text

from spark_jobs.api.full_refresh import check_tables
from spark_jobs.api.load import load_pipeline
from spark_jobs.api.location import locate_pipeline
from spark_jobs.api.neighbours import neighbours_of
from spark_jobs.api.parameters import secret_fields
from spark_jobs.api.pipeline import Pipeline
from spark_jobs.checkpoint.checkpoint_store import CheckpointStore
from spark_jobs.cli import words
from spark_jobs.cli.answers import PlanAnswer, RunAnswer, TakenAnswer
from spark_jobs.cli.dry_run import plan_answer, plan_text
from spark_jobs.cli.homes import manifest_url
from spark_jobs.cli.options import (
    CHECKPOINT_OPTIONS,
    CHECKPOINT_SETTINGS,
    SPARK_OPTIONS,
    START_OPTIONS,
    Entry,
    FullRefreshAll,
    Home,
    Params,
    ParamsFile,
    WorkRoot,
    asking_for_parameters,
    checkpoint_overrides,
    parameters,
    refused,
    start_fields,
    takes,
)
from spark_jobs.cli.progress import Progress
from spark_jobs.cli.spark import (
    OutputFile,
    SparkStart,
    needing_spark,
    quiet_logging,
    settings_asked,
    spark_options,
    standing_stderr,
)
from spark_jobs.cli.terminal import Output, Terminal, command, console, output_option
from spark_jobs.control.attempts import Attempts
from spark_jobs.control.channel import Channel
from spark_jobs.control.home import open_home
from spark_jobs.control.liveness import locked, noted
from spark_jobs.control.losses import LossLedger
from spark_jobs.home.layout import DRIVER_LOCK, LOGS, SPARK_LOG
from spark_jobs.protocol.documents import CheckpointKind, ErrorReport, Manifest, StartResponse
from spark_jobs.protocol.errors import (
    FencedError,
    InterruptedRunError,
    InvalidParameterError,
    NotFoundError,
    RejectedError,
    Retry,
    StreamPipelineError,
)
from spark_jobs.protocol.ids import AttemptNumber, RequestId, RunId, new_run_id
from spark_jobs.protocol.masking import HIDDEN, Mask
from spark_jobs.protocol.options import names
from spark_jobs.protocol.spark_settings import is_shown
from spark_jobs.protocol.start_requests import StartOptions
from spark_jobs.storage.files import Files, local_path
from spark_jobs.storage.open import check_directory

if TYPE_CHECKING:
    from spark_jobs.runtime.driver.heartbeat import Heartbeat

Listed = list[str] | None
RunIdOption = Annotated[
    str | None,
    typer.Option(help="Id of the run, the same in every retry: the same run gets the same answer. By default a new one."),
]
Request = Annotated[
    str | None, typer.Option(metavar="start-N", help="Do the run with this request id; the request has the parameters.")
]


@takes(START_OPTIONS, CHECKPOINT_SETTINGS, SPARK_OPTIONS)
def run(
    context: typer.Context,
    entry: Entry,
    home: Home,
    work_root: WorkRoot = None,
    param: Params = None,
    params_file: ParamsFile = None,
    run_id: RunIdOption = None,
    request: Request = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show the plan of the run, and write nothing.")] = False,
    refresh: Annotated[
        Listed, typer.Option(metavar="TABLE", help="Bring this table up to date. A run does so with all tables.")
    ] = None,
    full_refresh_all: FullRefreshAll = False,
    output: Annotated[Output, output_option(RunAnswer | TakenAnswer | PlanAnswer)] = Output.TEXT,
    **options: Any,
) -> None:
    """Run a pipeline, with checkpoints at its interval. When all inputs have ended, it takes one final checkpoint and publishes all tables.

    After an interruption or a failure the same command goes on. A drained pipeline stays as it is.
    """
    with command(output) as terminal:
        if request is not None:
            _check_request(request, _asked(context))
        checkpoint = checkpoint_overrides(context.params)
        files = open_home(home, work_root)
        check_directory(files)
        fields = start_fields(context.params) | {"checkpoint": checkpoint}
        chosen = StartOptions(run=RunId(run_id) if run_id else new_run_id(), **fields)
        order_run(context, terminal, files, chosen, RequestId(request) if request else None, dry_run=dry_run)


def order_run(
    context: typer.Context,
    terminal: Terminal,
    files: Files,
    options: StartOptions,
    request: RequestId | None = None,
    *,
    dry_run: bool = False,
) -> None:
    """Runs a pipeline by the parameters of a command, and answers the command.

    Args:
        context: The command. It has the parameters of :func:`run` that say what runs, and where Spark starts.
        terminal: The command's terminal.
        files: The home.
        options: Options of the run.
        request: Request that contains the options.
        dry_run: True to show the plan only.
    """
    given = context.params
    with ExitStack() as stack:
        if request and not dry_run:
            stack.enter_context(Channel(files).refusals_answered(request, terminal.mask))
        pipeline, values = (
            load_pipeline(given["entry"], settings_asked(given["conf"])),
            parameters(given["param"], given["params_file"]),
        )
        if refresh := given.get("refresh"):
            check_tables(pipeline.graph(), names(refused, "--refresh", refresh))
        writes_nothing = dry_run or Channel(files).pipeline() is None
        spark = SparkStart(
            pipeline.name,
            spark_options(pipeline, given),
            OutputFile(None if writes_nothing else local_path(files, SPARK_LOG)),
            submitted=context.obj == SUBMITTED,
            neighbours=neighbours_of(locate_pipeline(given["entry"])),
            expects_short_run=partial(_expects_short_run, files, pipeline, values, options, request),
        )
        terminal.if_interrupted = _interrupted(context, options.run or new_run_id(), pipeline, terminal.mask)
        order = _Order(terminal, pipeline, files, values, options, request, spark)
        with asking_for_parameters(pipeline, values):
            if dry_run:
                order.show_plan()
                return
            response = order.carry_out()
    if response is not None:
        order.report(response)


def _expects_short_run(
    home: Files, pipeline: Pipeline, values: dict[str, Any], options: StartOptions, request: RequestId | None
) -> bool:
    from spark_jobs.cli.short_runs import expects_short_run

    asked = Channel(home).request(request) if request else None
    parameters = pipeline.bind(asked.parameters if asked else values)
    return expects_short_run(home, pipeline.graph(), parameters, asked or options)


_OF_A_REQUEST = ("param", "params_file", "run_id", *START_OPTIONS, "refresh", "full_refresh_all", *CHECKPOINT_OPTIONS)
"""The parameters of the command that a request contains."""
SUBMITTED = "submitted"
"""The context object of a command that ``spark-submit`` has started."""


@dataclass(frozen=True)
class _Order:
    """A run with its options."""

    terminal: Terminal
    pipeline: Pipeline
    home: Files
    parameters: dict[str, Any]
    options: StartOptions
    request: RequestId | None
    spark: SparkStart

    def carry_out(self) -> StartResponse | None:
        """Runs and waits. Returns None after answering the command if another driver is working on the request."""
        if self.spark.submitted:
            self.spark.options.check_submitted()
        with needing_spark("Running a pipeline"):
            from spark_jobs.runtime.launch import launch, launch_requested

        progress = Progress(console(stderr=True, file=standing_stderr()), f"{self.pipeline.name}: looking at the home")

        start = self.spark.showing(progress, self.pipeline.name)

        def watch(heartbeat: "Heartbeat") -> Callable[[], None]:
            self.spark.output.keep(local_path(self.home, SPARK_LOG))
            return progress.watch(heartbeat)

        try:
            with progress.shown(), quiet_logging():
                if self.request is not None:
                    response = launch_requested(self.pipeline, self.home, self.request, start, watch)
                else:
                    response = launch(self.pipeline, self.home, self.parameters, self.options, start, watch)
                progress.doing(f"{self.pipeline.name}: stopping Spark")
                self.spark.stop()
        except FencedError as error:
            taken = self._taken()
            if taken is None:
                raise error
            who = f"process {taken.process}" if taken.process else "another driver"
            self.terminal.answer(
                taken, f"Attempt {taken.attempt} is being run by {who} on {taken.host}: nothing to do for a second driver."
            )
            return None
        except StreamPipelineError as error:
            self._name_logs(error)
            raise
        return response

    def _name_logs(self, error: StreamPipelineError) -> None:
        """Adds the paths of the logs to an error. A first start that has not begun keeps no log: its error has the last lines."""
        if self.spark.session is None:
            return
        log = self.spark.output.path
        if log is not None or self.spark.submitted:
            logs = [local_path(self.home, LOGS), *([] if log is None or self.spark.submitted else [log])]
            error.evidence.setdefault("logs", [str(path) for path in logs])
        elif not isinstance(error, RejectedError):
            error.evidence.setdefault("lines", self.spark.output.last_lines())

    def show_plan(self) -> None:
        """Answers with the plan of the run and writes nothing."""
        if self.spark.submitted:
            self.spark.options.check_submitted()
        with needing_spark("Running a pipeline"):
            from spark_jobs.runtime.launch import plan

        progress = Progress(console(stderr=True, file=standing_stderr()), f"{self.pipeline.name}: looking at the home")
        start = self.spark.showing(progress, self.pipeline.name)
        with progress.shown(), quiet_logging():
            request, found = plan(self.pipeline, self.home, self.parameters, self.options, start, self.request)
            answer = plan_answer(self.pipeline.graph(), self.home, request, found)
            self.spark.stop()
        self.terminal.answer(answer, *plan_text(answer))

    def report(self, response: StartResponse) -> None:
        """Shows the result of the run."""
        if response.checkpoint is None:
            raise InterruptedRunError(f"{response.request} was answered without a checkpoint.", remedy="Run it again.")
        manifest = CheckpointStore(self.home).kept(response.checkpoint)
        answer = RunAnswer(
            pipeline=self.pipeline.name,
            home=self.home.url,
            run=response.run,
            attempt=response.attempt,
            ran=self.spark.session is not None,
            checkpoint=response.checkpoint,
            round=manifest.round if manifest else None,
            drained=manifest.drained if manifest else None,
            completed_at=manifest.completed_at if manifest else None,
            manifest=manifest_url(self.home, manifest) if manifest else None,
            sinks=response.sinks,
            late_rows={name: cut.late_rows for name, cut in manifest.stages.items() if cut.late_rows} if manifest else {},
            violations={name: cut.violations for name, cut in manifest.stages.items() if cut.violations} if manifest else {},
            losses=manifest.losses if manifest else (),
            exact=LossLedger(self.home).is_exact(manifest) if manifest else None,
            blocked=response.blocked,
        )
        warm_up = [_WARM_UP, words.command_line("spark-jobs", "warm-up")] if self.spark.would_start_faster else []
        self.terminal.answer(answer, *_text(answer, manifest), *warm_up)

    def _taken(self) -> TakenAnswer | None:
        """Returns the other driver that is working on the request, or None."""
        if self.request is None:
            return None
        number, host = AttemptNumber(int(self.request.removeprefix("start-"))), socket.gethostname()
        lock = local_path(self.home, DRIVER_LOCK)
        starting = locked(lock) and noted(lock) == self.request
        try:
            attempt = Attempts(self.home).read(number)
        except NotFoundError:
            return TakenAnswer(request=self.request, attempt=number, host=host, process=None) if starting else None
        if (attempt.host, attempt.process) == (host, os.getpid()):
            return None
        return TakenAnswer(request=self.request, attempt=attempt.attempt, host=attempt.host, process=attempt.process)


def _from_command_line(context: typer.Context, names: Iterable[str]) -> list[str]:
    return [name for name in names if getattr(context.get_parameter_source(name), "name", "") == "COMMANDLINE"]


def _asked(context: typer.Context) -> list[str]:
    """Returns the options on the command line that a request would contain."""
    known = {parameter.name: parameter for parameter in context.command.params}
    return [_option(known[name], context.params[name]) for name in _from_command_line(context, _OF_A_REQUEST)]


def _option(parameter: Any, value: object) -> str:
    """Returns the word on the command line that sets a parameter to a value."""
    return str(parameter.secondary_opts[0] if value is False else parameter.opts[0])


def _interrupted(context: typer.Context, run: RunId, pipeline: Pipeline, mask: Mask) -> ErrorReport:
    """Returns the report of an interrupted command, with the command that goes on with the same run."""
    request = context.params.get("request")
    asker = ["--request", request] if request else ["--run-id", run]
    typed = [*_typed_options(context, pipeline, mask), *asker]
    if context.obj == SUBMITTED:
        how, line = "Submit it again with the arguments", shlex.join(typed)
    else:
        command = ["spark-jobs", "backfill"] if context.command.name == "backfill" else ["spark-jobs", "run"]
        how, line = "Go on with it", shlex.join([*command, *typed])
    filled_in = f", with the values for {HIDDEN}" if any(HIDDEN in word for word in typed) else ""
    return ErrorReport(
        error="Interrupted",
        retry=Retry.AT_ONCE.value,
        failed=f"{request or f'Run {run}'} was interrupted.",
        safe="All durable work is kept.",
        remedy=f"{how}{filled_in}: {line}",
        evidence={"command": line} | ({"request": request} if request else {"run": run}),
    )


def _typed_options(context: typer.Context, pipeline: Pipeline, mask: Mask) -> list[str]:
    """Returns the words of the command line without the ids of run and request, and with hidden secrets."""
    known = {parameter.name: parameter for parameter in context.command.params if parameter.name}
    typed: list[str] = []
    for name in _from_command_line(context, known):
        value, options = context.params[name], known[name].opts
        if name in ("run_id", "request"):
            continue
        if isinstance(value, bool):
            typed.append(_option(known[name], value))
            continue
        for each in value if isinstance(value, list) else [value]:
            text = mask(_without_secret(name, str(each), pipeline))
            typed += [text] if known[name].param_type_name == "argument" else [options[0], text]
    return typed


def _without_secret(option: str, text: str, pipeline: Pipeline) -> str:
    """Returns a value of an option. Hides it in ``NAME=VALUE`` if the name is that of a secret parameter or setting."""
    name, _, _ = text.partition("=")
    secret = option == "param" and name.strip() in secret_fields(pipeline.params)
    hidden = option == "conf" and not is_shown(name.strip())
    return f"{name}={HIDDEN}" if secret or hidden else text


def _check_request(request: str, beside: list[str]) -> None:
    kind, _, number = request.partition("-")
    if kind != "start" or not number.isdecimal():
        raise InvalidParameterError(f"--request {request!r} is not the id of a start request.", remedy="Write start-N.")
    if beside:
        raise InvalidParameterError(
            f"{', '.join(beside)} cannot be given with --request: the request contains it.",
            remedy="Leave it out, or leave out --request to start a run of its own.",
            options=beside,
        )


def _text(answer: RunAnswer, manifest: Manifest | None) -> list[RenderableType]:
    if manifest is None:
        found = f"Nothing was left to do: run {answer.run} was answered with checkpoint {answer.checkpoint}, which was discarded since."
    elif answer.ran:
        found = f"Checkpoint {answer.checkpoint} is complete: {_end(manifest)}."
    else:
        since = f"{_end(manifest)} since checkpoint {answer.checkpoint} of {words.moment(manifest.completed_at)}"
        found = f"Nothing was left to do: {since} (run {manifest.run})."
    headline = Text(found, style="bold green")
    headings = ("sink", words.ROWS_OF_ROUND, "Delta version", "checkpoint", "table")
    sinks = words.table("", *headings, right=(words.ROWS_OF_ROUND, "checkpoint"))
    for name, result in answer.sinks.items():
        row = (words.count(result.rows), words.version(result.version), str(result.checkpoint), Text(result.table))
        sinks.add_row(Text(name), *row)
    late: list[RenderableType] = [
        Text(
            f"{words.count(rows)} {words.ROWS_OF_CHECKPOINT} were late in stage {name} and were dropped, by Spark's count.",
            style="yellow",
        )
        for name, rows in answer.late_rows.items()
    ]
    late += words.violations(answer.violations)
    late += [Text(lost, style="yellow") for lost in words.losses(answer.losses)]
    late += [words.blocked(answer.blocked)] if answer.blocked else []
    if not answer.ran and answer.drained:
        late.append(words.facts(("start over", _START_OVER)))
    shown = [] if manifest is None else [words.facts(("manifest", answer.manifest or "")), *_next_steps(answer, manifest)]
    return [headline, sinks, *late, *shown]


_WARM_UP = Text("  Runs of this pipeline are short. Once on this host, to start each some seconds sooner:")
_START_OVER = "to run it from the beginning, add --fresh and --on-rewind replace or keep; another pipeline needs another --home"


def _end(manifest: Manifest) -> str:
    if manifest.checkpoint_kind is CheckpointKind.STOP:
        return f"{manifest.request} has {'drained' if manifest.drained else 'stopped'} the pipeline"
    return "the pipeline is drained" if manifest.drained else "the round has ended, the next run reads the rows that arrive"


def _next_steps(answer: RunAnswer, manifest: Manifest) -> list[RenderableType]:
    """Returns what to do next.

    Args:
        answer: The command's answer.
        manifest: Manifest of the run's last checkpoint.
    """
    steps: list[RenderableType] = [Text("Next:", style="bold")]
    if manifest.checkpoint_kind is CheckpointKind.STOP and not manifest.drained:
        steps.append(Text(f"  round {manifest.round} {words.INTERRUPTED}"))
    staged = [name for name, result in answer.sinks.items() if result.version is None]
    if any(manifest.ends_round or not manifest.is_published_by_round(name) for name in staged):
        steps.append(words.command_line("spark-jobs", "publish", "--home", answer.home))
    steps.append(words.command_line("spark-jobs", "inspect", "--home", answer.home))
    if not staged:
        read = f"from spark_jobs import consistent_versions; print(consistent_versions({json.dumps(answer.home)}))"
        steps.append(words.command_line("python", "-c", read))
    return steps
