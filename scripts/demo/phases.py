"""Finds the phase of the demo from the running processes and the pipeline's home. It has no clock of its own."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum

from spark_jobs.protocol.documents import RunState, StageState, StageStatus, Status
from spark_jobs.protocol.ids import StageName

SINKS = ("hourly", "daily", "late_spells")
"""The stages of the pipeline, each with a sink of its name, from first to last."""


class Phase(Enum):
    """The parts of the demo, in their order; each value is shown."""

    DATABASE = "Set up Airflow's database"
    AIRFLOW = "Start Airflow's DAG bounded_flights"
    DATA = "Load the flights (task 'load')"
    SPARK = "Start Spark (task 'run')"
    PREPARING = "Pin the input, make the tables"
    STAGES = "Run and drain the stages"
    CHECKPOINT = "Take the final checkpoint"
    PUBLICATION = "Publish the tables"
    ENDING = "End the DAG run"
    VERIFICATION = "Compare with an independent query"

    @property
    def number(self) -> int:
        return list(Phase).index(self)


@dataclass(frozen=True)
class Sight:
    """The observations at one moment."""

    database_ready: bool
    loading: bool
    """True if the task that loads the data has begun to write."""
    requested: bool
    status: Status | None
    answered: bool


_BY_STATE = {
    RunState.STARTING: Phase.PREPARING,
    RunState.RUNNING: Phase.STAGES,
    RunState.COMPLETING: Phase.CHECKPOINT,
    RunState.PUBLISHING: Phase.PUBLICATION,
    RunState.DONE: Phase.ENDING,
}


def phase_of(sight: Sight) -> Phase:
    """The phase that ``sight`` shows, while Airflow runs."""
    if not sight.database_ready:
        return Phase.DATABASE
    if sight.answered:
        return Phase.ENDING
    if sight.status is not None and sight.status.state in _BY_STATE:
        return _BY_STATE[sight.status.state]
    if sight.requested:
        return Phase.SPARK
    return Phase.DATA if sight.loading else Phase.AIRFLOW


@dataclass
class Timeline:
    """The beginning of each phase. Phases only go forward. A phase that was too short to be seen begins with the next one."""

    began_s: dict[Phase, float] = field(default_factory=dict)

    @property
    def current(self) -> Phase | None:
        return next(reversed(self.began_s), None)

    def see(self, phase: Phase, now_s: float) -> bool:
        """Notes that the demo is in ``phase``; whether that is new."""
        if self.current is not None and phase.number <= self.current.number:
            return False
        first = 0 if self.current is None else self.current.number + 1
        self.began_s |= dict.fromkeys(list(Phase)[first : phase.number + 1], now_s)
        return True

    def durations_s(self, now_s: float) -> dict[Phase, float]:
        """Returns the duration of each phase, of the current one until now."""
        ends_s = [*list(self.began_s.values())[1:], now_s]
        return {phase: end_s - began_s for (phase, began_s), end_s in zip(self.began_s.items(), ends_s, strict=False)}


def stages_in_words(stages: Mapping[StageName, StageStatus]) -> list[str]:
    """One short phrase for each stage that has begun, in their order."""
    begun = {name: stage for name, stage in in_order(stages).items() if stage.state is not StageState.WAITING}
    return [f"{name} {stage_in_words(stage)}" for name, stage in begun.items()]


def in_order(stages: Mapping[StageName, StageStatus]) -> dict[StageName, StageStatus]:
    """The stages from first to last; a document's are in the order of their names."""
    return {name: stages[name] for name in sorted(stages, key=SINKS.index)}


def stage_in_words(stage: StageStatus) -> str:
    """A stage's state, rows, batch and speed."""
    if stage.batch is None:
        return str(stage.state.value)
    speed = f", {stage.rows_per_s:,.0f} rows/s" if stage.rows_per_s else ""
    return f"{stage.state.value}: {stage.rows_in:,} rows in {stage.batch + 1} batch{'es' if stage.batch else ''}{speed}"
