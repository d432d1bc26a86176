"""``spark-jobs status``: shows the activity of the running attempt."""

from datetime import UTC, datetime
from typing import Annotated

import typer
from rich.console import RenderableType
from rich.text import Text

from spark_jobs.checkpoint.checkpoint_store import CheckpointStore
from spark_jobs.cli import words
from spark_jobs.cli.answers import AttemptState, StatusAnswer
from spark_jobs.cli.homes import heartbeats, open_home
from spark_jobs.cli.options import Home
from spark_jobs.cli.pauses import Pauses
from spark_jobs.cli.progress import Progress, stage_table
from spark_jobs.cli.terminal import Output, command, output_option
from spark_jobs.control.attempts import Attempts
from spark_jobs.control.channel import Channel
from spark_jobs.control.liveness import driver_at_work
from spark_jobs.control.losses import LossLedger
from spark_jobs.control.pipeline_metrics import read_budgets_left
from spark_jobs.control.rounds import Rounds
from spark_jobs.protocol.documents import (
    AttemptDocument,
    ErrorReport,
    Manifest,
    PipelineDocument,
    RoundDocument,
    RunState,
    StageState,
)
from spark_jobs.protocol.errors import Retry
from spark_jobs.protocol.ids import RequestId
from spark_jobs.protocol.losses import Loss
from spark_jobs.storage.files import Files

_WATCH_INTERVAL_S = 1.0
_NOTHING_BUT_WATCHING = ErrorReport(
    error="Interrupted",
    retry=Retry.AT_ONCE.value,
    failed="The display was interrupted.",
    safe="The pipeline is not affected: a running driver goes on.",
    remedy="To look again: spark-jobs status. To end the pipeline: spark-jobs stop, or spark-jobs cancel.",
)


def status(
    context: typer.Context,
    home: Home,
    watch: Annotated[bool, typer.Option("--watch", help="Show it until the driver ends.")] = False,
    output: Annotated[Output, output_option(StatusAnswer)] = Output.TEXT,
) -> None:
    """Show the activity of the running attempt, or the end of the last one."""
    with command(output) as terminal:
        files, pipeline = open_home(home)
        if watch:
            terminal.if_interrupted = _NOTHING_BUT_WATCHING
            progress, pauses = Progress(terminal.aside, pipeline.name), Pauses.of(context)
            progress.follow(heartbeats(files))
            with progress.shown():
                while driver_at_work(files):
                    pauses.sleep(_WATCH_INTERVAL_S)
        answer = _answer(files, pipeline)
        terminal.answer(answer, *_text(answer))


def _answer(files: Files, pipeline: PipelineDocument) -> StatusAnswer:
    at_work = driver_at_work(files)  # before the rest, so that the driver's last documents are seen
    store, heartbeat = CheckpointStore(files), heartbeats(files)()
    attempt, head, latest = Attempts(files).latest(), store.head(), Rounds(files).latest()
    failures, failure = store.failures_since(head.checkpoint if head else None)
    ledger = LossLedger(files)
    names = ledger.names()
    return StatusAnswer(
        pipeline=pipeline.name,
        home=files.url,
        at_work=at_work,
        attempt=AttemptState.of(attempt) if attempt else None,
        status=heartbeat,
        round=latest.round if latest else None,
        interrupted=not at_work and _is_open(latest, attempt, head),
        checkpoint=head.checkpoint if head else None,
        behind=head.behind if head and head.sinks_behind else (),
        checkpoint_completed_at=head.completed_at if head else None,
        checkpoint_duration_s=max((head.completed_at - head.began_at).total_seconds(), 0.0) if head else None,
        checkpoint_failures=failures,
        checkpoint_failure=failure,
        drained=head.drained if head else False,
        losses=_left_out(files, latest) if latest else (),
        exact=ledger.is_exact(head, names) if head else None,
        budget_left_rows=read_budgets_left(ledger, heartbeat, names=names),
        error=_newest_error(files),
    )


def _left_out(files: Files, latest: RoundDocument) -> tuple[Loss, ...]:
    """Returns the losses of a round that are not backfilled."""
    backfilled = LossLedger(files).names().backfilled
    return tuple(loss for loss in Rounds(files).losses(latest.round) if loss.id not in backfilled)


def _is_open(round: RoundDocument | None, attempt: AttemptDocument | None, head: Manifest | None) -> bool:
    """Returns True if the newest round belongs to the newest attempt's incarnation and its last checkpoint is not complete."""
    if round is None or attempt is None or round.incarnation != attempt.incarnation:
        return False
    return head is None or head.round != round.round or not head.ends_round


def _newest_error(files: Files) -> ErrorReport | None:
    """Returns the error that answered the newest start, even if no attempt has begun with it."""
    channel = Channel(files)
    number = channel.newest()
    response = None if number is None else channel.response(RequestId(f"start-{number}"))
    return response.error if response else None


def _text(answer: StatusAnswer) -> list[RenderableType]:
    attempt, heartbeat = answer.attempt, answer.status
    shown: list[tuple[str, str | Text]] = [("pipeline", answer.pipeline), ("home", answer.home), ("driver", _driver(answer))]
    if attempt:
        place = f"process {attempt.process} on {attempt.host}, started {words.moment(attempt.started_at)}"
        shown.append(("attempt", f"{attempt.attempt} of run {attempt.run}, round {attempt.round}: {place}"))
    if answer.interrupted:
        shown.append(("round", Text(f"{answer.round} {words.INTERRUPTED}", style="yellow")))
    if heartbeat:
        shown.append(("heartbeat", f"attempt {heartbeat.attempt} {heartbeat.state.value}, {_ago(heartbeat.updated_at)}"))
    if heartbeat and answer.at_work and heartbeat.spark_ui:
        shown.append(("Spark", heartbeat.spark_ui))
    if heartbeat and heartbeat.stop:
        stop = heartbeat.stop
        shown.append(("drain" if stop.drain else "stop", f"{stop.request}: {stop.state.value}"))
    failed = [name for name, stage in heartbeat.stages.items() if stage.state is StageState.FAILED] if heartbeat else []
    if failed:
        runs_on = " The other stages run on." if answer.at_work else ""
        to_do = "stop the pipeline and start it again" if answer.at_work else "start the pipeline again"
        shown.append(("failed", Text(f"{', '.join(failed)}.{runs_on} Remove the cause, then {to_do}.", style="red")))
    if heartbeat and heartbeat.blocked:
        shown.append(("blocked", Text(heartbeat.blocked.summary, style="yellow")))
        if heartbeat.blocked.rows_kept_until is not None:
            until = words.moment(heartbeat.blocked.rows_kept_until)
            shown.append(("rows kept", f"until {until}; then a VACUUM may delete the oldest waiting rows"))
    if answer.error:
        shown.append(("last start", Text(f"{answer.error.error}: {answer.error.failed}", style="yellow")))
        if answer.error.remedy:
            shown.append(("to do", answer.error.remedy))
    shown += [("data loss", Text(lost, style="yellow")) for lost in words.losses(answer.losses)]
    shown += [("may lose", f"{words.count(left)} more rows in stage {name}") for name, left in answer.budget_left_rows.items()]
    shown.append(("checkpoint", _checkpoint(answer)))
    if answer.exact is False:
        shown.append(("exact", words.not_exact()))
    if answer.checkpoint_failure:
        shown.append(("last try", Text(f"{answer.checkpoint_failure.error}: {answer.checkpoint_failure.failed}", style="yellow")))
    return [words.facts(*shown), *([stage_table(heartbeat, bars=False)] if heartbeat else [])]


def _checkpoint(answer: StatusAnswer) -> Text:
    made = Text("none yet" if answer.checkpoint is None else str(answer.checkpoint))
    if answer.checkpoint_completed_at is not None and answer.checkpoint_duration_s is not None:
        made.append(f", {_ago(answer.checkpoint_completed_at)}, took {words.duration(answer.checkpoint_duration_s)}")
    if answer.drained:
        made.append(", the pipeline is drained")
    if answer.behind:
        made.append(f", without {', '.join(answer.behind)}: see spark-jobs checkpoints", style="yellow")
    if answer.checkpoint_failures:
        tries = (
            "1 try has" if answer.checkpoint_failures == 1 else f"{words.count(answer.checkpoint_failures)} tries in a row have"
        )
        made.append(f", {tries} failed since: see spark-jobs checkpoints", style="yellow")
    return made


def _ago(moment: datetime) -> str:
    return words.ago((datetime.now(UTC) - moment).total_seconds())


def _driver(answer: StatusAnswer) -> Text:
    if answer.at_work:
        return Text("at work", style="green")
    ended = answer.status is not None and answer.status.state is RunState.DONE
    if ended or answer.attempt is None:
        return Text("none at work")
    to_do = "" if answer.interrupted else ": run it again to go on"
    return Text(f"none at work, and the last attempt did not finish{to_do}", style="yellow")
