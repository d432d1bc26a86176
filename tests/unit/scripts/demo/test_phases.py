from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scripts.demo.independent import QUERIES
from scripts.demo.phases import SINKS, Phase, Sight, Timeline, phase_of, stages_in_words
from spark_jobs.protocol.documents import RunState, StageState, StageStatus, Status
from spark_jobs.protocol.ids import AttemptNumber, BatchId, RunId, StageName


def sight(seen: dict[str, bool], state: RunState | None = None) -> Sight:
    status = Status(attempt=AttemptNumber(1), run=RunId("r"), state=state, updated_at=datetime.now(UTC)) if state else None
    return Sight(**({"database_ready": True, "loading": False, "requested": False, "answered": False} | seen), status=status)


LOADED = {"loading": True}
ASKED = LOADED | {"requested": True}


@pytest.mark.parametrize(
    ("seen", "state", "phase"),
    [
        ({"database_ready": False}, None, Phase.DATABASE),
        ({}, None, Phase.AIRFLOW),
        (LOADED, None, Phase.DATA),
        (ASKED, None, Phase.SPARK),
        (ASKED, RunState.STARTING, Phase.PREPARING),
        (ASKED, RunState.RUNNING, Phase.STAGES),
        (ASKED, RunState.COMPLETING, Phase.CHECKPOINT),
        (ASKED, RunState.PUBLISHING, Phase.PUBLICATION),
        (ASKED, RunState.DONE, Phase.ENDING),
        (ASKED | {"answered": True}, RunState.PUBLISHING, Phase.ENDING),
    ],
)
def test_the_phase_follows_from_the_observed_facts(seen: dict[str, bool], state: RunState | None, phase: Phase) -> None:
    assert phase_of(sight(seen, state)) is phase


@given(st.lists(st.sampled_from(Phase), min_size=1))
def test_a_timeline_only_goes_forward_and_skips_no_phase(phases: list[Phase]) -> None:
    timeline = Timeline()
    for now_s, phase in enumerate(phases):
        timeline.see(phase, now_s)
    furthest = max(phase.number for phase in phases)
    assert timeline.current is list(Phase)[furthest]
    assert list(timeline.durations_s(len(phases))) == list(Phase)[: furthest + 1]


def test_the_durations_add_up_to_the_whole() -> None:
    timeline = Timeline()
    for phase, now_s in ((Phase.DATABASE, 10.0), (Phase.SPARK, 12.0), (Phase.DATA, 13.0), (Phase.STAGES, 20.0)):
        timeline.see(phase, now_s)
    durations_s = timeline.durations_s(25.0)
    assert durations_s[Phase.SPARK] == 8.0
    assert durations_s[Phase.DATA] == 0.0
    assert sum(durations_s.values()) == 15.0


def test_stages_are_shown_in_their_order_once_they_have_begun() -> None:
    stages = {
        StageName("daily"): StageStatus(state=StageState.RUNNING),
        StageName("hourly"): StageStatus(state=StageState.ENDED, batch=BatchId(1), rows_in=336_776, rows_per_s=1234.5),
        StageName("late_spells"): StageStatus(state=StageState.WAITING),
    }
    assert stages_in_words(stages) == ["hourly ended: 336,776 rows in 2 batches, 1,234 rows/s", "daily running"]


def test_every_sink_has_its_independent_answer() -> None:
    assert tuple(QUERIES) == SINKS
