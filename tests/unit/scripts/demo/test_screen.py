from contextlib import suppress
from datetime import UTC, datetime
from io import StringIO

import pytest
from rich.console import Console

from scripts.demo.phases import Phase
from scripts.demo.screen import SILENCE_MAX_S, Screen
from spark_jobs.protocol.documents import RunState, StageState, StageStatus, Status
from spark_jobs.protocol.ids import AttemptNumber, BatchId, RunId, StageName

STATUS = Status(
    attempt=AttemptNumber(1),
    run=RunId("r"),
    state=RunState.RUNNING,
    updated_at=datetime(2026, 1, 1, tzinfo=UTC),
    stages={
        StageName("daily"): StageStatus(state=StageState.WAITING),
        StageName("hourly"): StageStatus(
            state=StageState.RUNNING, batch=BatchId(0), rows_in=111_595, rows_per_s=5_000, progress=0.33
        ),
    },
)


class Clock:
    def __init__(self) -> None:
        self.now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def said() -> StringIO:
    return StringIO()


def test_the_beginning_and_the_duration_of_a_phase_are_printed_without_a_terminal(said: StringIO, clock: Clock) -> None:
    with Screen(Console(file=said), clock) as screen:
        screen.show(Phase.DATABASE)
        clock.now_s = 2.5
        screen.show(Phase.AIRFLOW)
    assert said.getvalue().splitlines() == [
        f"  {Phase.DATABASE.value} …",
        f"  {Phase.DATABASE.value}: 2.5 s",
        f"  {Phase.AIRFLOW.value} …",
    ]


def test_lines_are_printed_at_an_interval_without_a_terminal(said: StringIO, clock: Clock) -> None:
    with Screen(Console(file=said), clock) as screen:
        for tick in range(400):
            clock.now_s = tick / 4
            screen.show(Phase.STAGES, STATUS)
    lines = said.getvalue().splitlines()
    assert len(lines) == pytest.approx(100 / SILENCE_MAX_S, abs=2)
    assert "hourly running: 111,595 rows in 1 batch, 5,000 rows/s" in lines[-1]


def test_a_terminal_gets_a_bar_for_each_stage_in_their_order(said: StringIO, clock: Clock) -> None:
    with Screen(Console(file=said, force_terminal=True, width=120), clock) as screen:
        screen.show(Phase.STAGES, STATUS)
    last = said.getvalue()[said.getvalue().rindex(Phase.STAGES.value) :]
    assert last.index("hourly") < last.index("daily")
    assert "━" in last
    assert "✓" in said.getvalue()


def test_a_phase_that_ended_with_an_error_is_marked(said: StringIO, clock: Clock) -> None:
    screen = Screen(Console(file=said, force_terminal=True, width=120), clock)
    with suppress(RuntimeError), screen:
        screen.show(Phase.DATABASE)
        raise RuntimeError
    assert "✗" in said.getvalue()
