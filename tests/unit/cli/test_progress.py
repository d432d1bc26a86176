import re
from datetime import UTC, datetime
from io import StringIO
from typing import Any

from rich.console import Console

from spark_jobs.cli.progress import LINE_INTERVAL_S, Progress, ProgressLines, stage_line, stage_table
from spark_jobs.protocol.documents import RunState, StageState, StageStatus, Status, StopStatus
from spark_jobs.protocol.ids import AttemptNumber, BatchId, RequestId, RunId, StageName
from spark_jobs.protocol.states import StopState


def a_status(**states: StageState) -> Status:
    stages = {StageName(name): StageStatus(state=state) for name, state in states.items()}
    now = datetime(2026, 1, 1, tzinfo=UTC)
    return Status(attempt=AttemptNumber(3), run=RunId("r"), state=RunState.RUNNING, updated_at=now, stages=stages)


def a_stage(**fields: Any) -> StageStatus:
    return StageStatus(state=StageState.RUNNING, **fields)


def test_a_change_of_a_stage_is_shown_at_once() -> None:
    lines = ProgressLines()
    assert lines.tick(0.0, "starting", None) == ["starting"]
    running = a_status(hourly=StageState.RUNNING, daily=StageState.WAITING)
    assert lines.tick(0.5, "running", running) == ["running", "stage hourly: running"]
    both = lines.tick(1.0, "running", a_status(hourly=StageState.ENDED, daily=StageState.RUNNING))
    assert both == ["stage hourly: ended", "stage daily: running"]


def test_lines_between_two_changes_come_at_an_interval() -> None:
    lines = ProgressLines()
    printed = []
    for tenth in range(200):
        status = a_status(hourly=StageState.RUNNING)
        stages = {StageName("hourly"): a_stage(batch=BatchId(0), rows_in=tenth)}
        printed.append(bool(lines.tick(tenth / 10, "running", status.model_copy(update={"stages": stages}))))
    assert printed.count(True) == 20 / LINE_INTERVAL_S


def test_an_unchanged_line_is_repeated_less_and_less_often_up_to_once_a_minute() -> None:
    lines, status = ProgressLines(), a_status(hourly=StageState.RUNNING)
    printed = [second for second in range(300) if lines.tick(float(second), "running", status)]
    assert printed == [0, 5, 15, 35, 75, 135, 195, 255]
    assert lines.tick(300.0, "running", a_status(hourly=StageState.ENDED)) == ["stage hourly: ended"]


def test_a_line_names_the_current_activity_if_no_stage_is_running() -> None:
    lines = ProgressLines()
    lines.tick(0.0, "starting Spark", None)
    assert lines.tick(LINE_INTERVAL_S, "starting Spark", None) == ["starting Spark"]


def test_one_line_shows_all_facts_of_a_stage() -> None:
    stage = a_stage(batch=BatchId(3), rows_in=12_345, rows_per_s=99.6, watermark_ms=86_400_000, late_rows=2, progress=0.25)
    stage = stage.model_copy(update={"violations": {"positive": 1_500}})
    assert stage_line("hourly", stage) == (
        "stage hourly: running, batch 3, 12,345 rows of the attempt, 100 rows/s, 25%, watermark 1970-01-02 00:00:00 UTC, 2 late rows, "
        "1,500 violate positive"
    )
    assert stage_line("hourly", a_stage()) == "stage hourly: running"


def test_a_terminal_shows_a_moving_bar_per_stage() -> None:
    screen = StringIO()
    progress = Progress(Console(file=screen, force_terminal=True, width=150), "flights")
    progress.follow(lambda: a_status(hourly=StageState.RUNNING, daily=StageState.WAITING))
    with progress.shown():
        progress.doing("flights is running")
    shown = screen.getvalue()
    assert "flights is running, attempt 3: running" in shown
    assert "hourly" in shown
    assert "daily" in shown
    assert "━" in shown


def test_the_progress_of_a_stop_is_shown_until_it_has_ended() -> None:
    stop = StopStatus(request=RequestId("stop-nightly"), state=StopState.QUIESCED, drain=False)
    stopping = a_status(hourly=StageState.QUIESCED).model_copy(update={"state": RunState.STOPPING, "stop": stop})
    for status, headline in (
        (stopping, "stopping (quiesced)"),
        (stopping.model_copy(update={"state": RunState.RUNNING}), "running"),
    ):
        text = StringIO()
        progress = Progress(Console(file=text, width=150), "stop of flights")
        progress.follow(lambda status=status: status)  # type: ignore[misc]
        with progress.shown():
            pass
        assert re.search(rf"stop of flights, attempt 3: {re.escape(headline)} \(\d+ s\)\n", text.getvalue())


def test_a_stream_that_is_not_a_terminal_gets_lines_without_control_characters() -> None:
    text = StringIO()
    with Progress(Console(file=text, width=150), "starting Spark").shown():
        pass
    assert re.fullmatch(r"starting Spark \(\d+ s\)\n", text.getvalue())


def test_a_watched_driver_is_followed_to_its_end() -> None:
    text = StringIO()
    progress = Progress(Console(file=text, width=150), "flights")

    class Driver:
        status = a_status(hourly=StageState.DRAINING)

    ended = progress.watch(Driver())  # type: ignore[arg-type]
    ended()
    with progress.shown():
        pass
    assert "stage hourly: draining" in text.getvalue()


def test_a_table_without_bars_shows_the_progress_of_a_stage_if_it_is_known() -> None:
    text = StringIO()
    status = a_status(hourly=StageState.RUNNING)
    known = {StageName("hourly"): a_stage(progress=0.5, late_rows=3), StageName("daily"): a_stage()}
    Console(file=text, width=150).print(stage_table(status.model_copy(update={"stages": known}), bars=False))
    assert "50%" in text.getvalue()
    assert "3 late" in text.getvalue()
    assert "━" not in text.getvalue()
