"""The table of a pipeline's metrics. Airflow's metrics, the driver's OpenTelemetry, the dashboard and the reference all use it.

A metric has Flink's name and unit if Flink has the same one. The names are in snake case, because OpenTelemetry ignores case. All are
gauges. Times are in milliseconds, as in Flink.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from functools import lru_cache
from typing import NamedTuple

from spark_jobs.control.channel import Channel
from spark_jobs.control.losses import LossLedger, rows_passed_over
from spark_jobs.home.layout import STATE, LossNames
from spark_jobs.home.manifests import newest_manifest
from spark_jobs.protocol.documents import InputLag, Manifest, RecordedLoss, StageState, StageStatus, Status, ToleratedRows
from spark_jobs.protocol.errors import StreamPipelineError
from spark_jobs.protocol.ids import AttemptNumber, CheckpointId, LossId, StageName
from spark_jobs.protocol.options import INTERVAL_MAX_MS
from spark_jobs.storage.files import Files

PREFIX = "stream_pipeline"
_LOSSES_KEPT = 1_000
"""The number of records of losses that are kept, because they never change."""


class Scope(StrEnum):
    """The thing that a value is about."""

    PIPELINE = "pipeline"
    STAGE = "stage"
    """Each value has the tag ``stage``."""
    INPUT = "input"
    """Each value has the tags ``stage`` and ``input``."""


class Unit(StrEnum):
    """A unit, in the notation of OpenTelemetry."""

    MILLISECONDS = "ms"
    BYTES = "By"
    VERSIONS = "{version}"
    FILES = "{file}"
    RECORDS = "{record}"
    RECORDS_PER_SECOND = "{record}/s"
    ATTEMPTS = "{attempt}"
    CHECKPOINTS = "{checkpoint}"
    LOSSES = "{loss}"
    RESTARTS = "{restart}"
    STAGES = "{stage}"


@dataclass(frozen=True)
class PipelineFacts:
    """The documents from which all metrics are computed."""

    status: Status
    head: Manifest | None
    """The newest checkpoint from which the pipeline can be restored."""
    now_s: float
    """Seconds since 1970."""
    passed_over: tuple[RecordedLoss, ...] | None = ()
    """The records of rows that tolerant stages have passed over. None: the loss ledger could not be read yet."""
    open_losses: int | None = None
    """The number of losses that nobody has accepted or backfilled. None as for :attr:`passed_over`."""

    def age_ms(self, then_s: float) -> float:
        """Returns the time since ``then_s``. Clocks differ between hosts, so it is never negative."""
        return max(self.now_s - then_s, 0.0) * 1000


class Value(NamedTuple):
    """One value of a metric."""

    value: float
    tags: dict[str, str]


@dataclass(frozen=True)
class Metric:
    """One row of the table."""

    name: str
    unit: Unit
    scope: Scope
    is_flinks: bool
    """True if Flink has a metric with this name, meaning and unit."""
    description: str
    values: Callable[[PipelineFacts], Iterator[Value]]
    """Yields the values that exist now."""

    @property
    def flinks_name(self) -> str | None:
        """Flink's name, or None."""
        first, *others = self.name.split("_")
        return first + "".join(map(str.title, others)) if self.is_flinks else None

    @property
    def full_name(self) -> str:
        return f"{PREFIX}.{self.name}"


def _pipeline(
    name: str, unit: Unit, description: str, value: Callable[[PipelineFacts], float | None], *, flink: bool = False
) -> Metric:
    def values(facts: PipelineFacts) -> Iterator[Value]:
        found = value(facts)
        if found is not None:
            yield Value(found, {})

    return Metric(name, unit, Scope.PIPELINE, flink, description, values)


def _head(name: str, unit: Unit, description: str, value: Callable[[Manifest], float], *, flink: bool = False) -> Metric:
    """Returns a metric of the newest checkpoint."""
    return _pipeline(name, unit, description, lambda facts: None if facts.head is None else value(facts.head), flink=flink)


def _stage(
    name: str, unit: Unit, description: str, value: Callable[[PipelineFacts, StageStatus], float | None], *, flink: bool = False
) -> Metric:
    def values(facts: PipelineFacts) -> Iterator[Value]:
        for stage, status in facts.status.stages.items():
            found = value(facts, status)
            if found is not None:
                yield Value(found, {"stage": stage})

    return Metric(name, unit, Scope.STAGE, flink, description, values)


def _input(name: str, unit: Unit, description: str, value: Callable[[InputLag], float | None], *, flink: bool = False) -> Metric:
    def values(facts: PipelineFacts) -> Iterator[Value]:
        for stage, status in facts.status.stages.items():
            for each, lag in status.lag.items():
                found = value(lag)
                if found is not None:
                    yield Value(found, {"stage": stage, "input": each})

    return Metric(name, unit, Scope.INPUT, flink, description, values)


def _age_ms(facts: PipelineFacts) -> float | None:
    return None if facts.head is None else facts.age_ms(facts.head.completed_at.timestamp())


def _blocked_ms(facts: PipelineFacts) -> float:
    blocked = facts.status.blocked
    return 0.0 if blocked is None else facts.age_ms(blocked.since.timestamp())


def _failed_stages(facts: PipelineFacts) -> int:
    return sum(stage.state is StageState.FAILED for stage in facts.status.stages.values())


def _duration_ms(head: Manifest) -> float:
    return max((head.completed_at - head.began_at).total_seconds(), 0.0) * 1000


def _full_size_bytes(head: Manifest) -> int:
    return sum(file.size_bytes for cut in head.stages.values() for file in cut.files)


def _new_size_bytes(head: Manifest) -> int:
    def is_new(stage: StageName, stored: str) -> bool:
        return stored.startswith(f"{STATE}/{stage}/{head.checkpoint}-")

    return sum(file.size_bytes for stage, cut in head.stages.items() for file in cut.files if is_new(stage, file.stored))


def _rows(head: Manifest) -> int:
    return sum(cut.actions.rows for cut in head.sinks.values())


def _watermark_lag_ms(facts: PipelineFacts, stage: StageStatus) -> float | None:
    return facts.age_ms(stage.watermark_ms / 1000) if stage.watermark_ms else None


def _since(tolerated: ToleratedRows, now_s: float) -> datetime:
    """Returns the time since when lost rows count. The heartbeat may have any number, so the time is bounded."""
    interval_ms = min(max(tolerated.interval_ms, 0), INTERVAL_MAX_MS)
    return datetime.fromtimestamp(now_s, UTC) - timedelta(milliseconds=interval_ms)


def budgets_since(status: Status, now_s: float) -> datetime | None:
    """Returns the time since when lost rows count for a stage with a tolerance; None if there is no such stage."""
    return min((_since(stage.tolerates, now_s) for stage in status.stages.values() if stage.tolerates is not None), default=None)


def budgets_left(status: Status, passed_over: Sequence[RecordedLoss], now_s: float) -> dict[StageName, int]:
    """Returns the number of rows that each stage with a tolerance may still pass over.

    Args:
        status: The heartbeat.
        passed_over: The records of rows that stages have passed over since :func:`budgets_since`.
        now_s: Seconds since 1970.
    """
    tolerated = {name: stage.tolerates for name, stage in status.stages.items() if stage.tolerates is not None}
    return {
        name: max(each.rows - rows_passed_over(passed_over, name, _since(each, now_s)), 0) for name, each in tolerated.items()
    }


def read_budgets_left(
    ledger: LossLedger,
    status: Status | None,
    read: Callable[[LossId], RecordedLoss] | None = None,
    names: LossNames | None = None,
) -> dict[StageName, int]:
    """Reads the number of rows that each stage with a tolerance may still pass over now. Reads no loss without such a stage.

    Args:
        ledger: The losses of the home.
        status: The newest heartbeat of the home, if there is one.
        read: See :meth:`LossLedger.passed_over`.
        names: See :meth:`LossLedger.passed_over`.
    """
    now_s = time.time()
    since = budgets_since(status, now_s) if status else None
    if status is None or since is None:
        return {}
    return budgets_left(status, ledger.passed_over(since, read, names), now_s)


def _budget_left(facts: PipelineFacts) -> Iterator[Value]:
    if facts.passed_over is not None:
        for name, left in budgets_left(facts.status, facts.passed_over, facts.now_s).items():
            yield Value(left, {"stage": name})


METRICS = (
    _pipeline(
        "last_checkpoint_age",
        Unit.MILLISECONDS,
        "age of the newest checkpoint from which the pipeline can be restored",
        _age_ms,
    ),
    _head("last_checkpoint_duration", Unit.MILLISECONDS, "duration of the newest checkpoint", _duration_ms, flink=True),
    _head("last_checkpoint_size", Unit.BYTES, "state that the newest checkpoint has stored", _new_size_bytes, flink=True),
    _head(
        "last_checkpoint_full_size",
        Unit.BYTES,
        "whole state of the newest checkpoint, with the files that it shares with earlier ones",
        _full_size_bytes,
        flink=True,
    ),
    _head("last_checkpoint_records", Unit.RECORDS, "rows that the newest checkpoint adds to tables", _rows),
    _pipeline(
        "number_of_completed_checkpoints",
        Unit.CHECKPOINTS,
        "checkpoints that this attempt has completed",
        lambda facts: facts.status.completed_checkpoints,
        flink=True,
    ),
    _pipeline(
        "number_of_failed_checkpoints",
        Unit.CHECKPOINTS,
        "tries at a checkpoint that have failed in this attempt",
        lambda facts: facts.status.failed_checkpoints,
        flink=True,
    ),
    _pipeline(
        "blocked_publication_time",
        Unit.MILLISECONDS,
        "time for which a table has refused a publication; 0 if none does",
        _blocked_ms,
    ),
    _pipeline(
        "num_open_losses",
        Unit.LOSSES,
        "losses of input that nobody has accepted or backfilled",
        lambda facts: facts.open_losses,
    ),
    _pipeline("num_failed_stages", Unit.STAGES, "stages that have failed for good", _failed_stages),
    _pipeline("attempt", Unit.ATTEMPTS, "number of the attempt", lambda facts: facts.status.attempt),
    _stage("num_records_in", Unit.RECORDS, "rows that this attempt has read", lambda _, stage: stage.rows_in, flink=True),
    _stage(
        "num_records_in_per_second",
        Unit.RECORDS_PER_SECOND,
        "rows per second in the newest batch",
        lambda _, stage: stage.rows_per_s,
        flink=True,
    ),
    _stage(
        "busy_time_ms_per_second",
        Unit.MILLISECONDS,
        "time per second in which the stage works; near 1000 it is too slow for its input",
        lambda _, stage: None if stage.busy is None else stage.busy * 1000,
        flink=True,
    ),
    _stage(
        "num_late_records_dropped",
        Unit.RECORDS,
        "rows that this attempt has dropped as late",
        lambda _, stage: stage.late_rows,
        flink=True,
    ),
    _stage("num_restarts", Unit.RESTARTS, "restarts of the stage in this attempt", lambda _, stage: stage.restarts, flink=True),
    _stage("watermark_lag", Unit.MILLISECONDS, "time that the watermark lags behind the clock", _watermark_lag_ms, flink=True),
    Metric(
        "budget_left",
        Unit.RECORDS,
        Scope.STAGE,
        False,
        "rows that the stage may still pass over, of its `tolerate=`",
        _budget_left,
    ),
    _input("pending_records", Unit.RECORDS, "rows that the stage has not read", lambda lag: lag.rows, flink=True),
    _input("pending_bytes", Unit.BYTES, "size of the rows that the stage has not read", lambda lag: lag.size_bytes, flink=True),
    _input("pending_versions", Unit.VERSIONS, "versions of a Delta table that the stage has not read", lambda lag: lag.versions),
    _input("pending_files", Unit.FILES, "files that the stage has not read", lambda lag: lag.files),
)
"""All metrics."""


class MetricsReader:
    """Reads the facts of one pipeline. One thread at a time.

    Args:
        files: The home.
    """

    def __init__(self, files: Files) -> None:
        self._files = files
        self._head: Manifest | None = None
        self._head_of: tuple[AttemptNumber, CheckpointId | None] | None = None
        """The attempt and its newest checkpoint when the manifest was read."""
        self._tags: dict[str, str] = {}
        self._ledger = LossLedger(files)
        self._read_loss = lru_cache(_LOSSES_KEPT)(self._ledger.read)
        self._passed_over: tuple[RecordedLoss, ...] | None = None
        self._open_losses: int | None = None

    def facts(self, status: Status, now_s: float) -> PipelineFacts:
        """Returns the facts. Lists the loss ledger, and reads the newest manifest and losses that it has not read yet.

        It reads a manifest if the heartbeat has a new checkpoint, and losses if a stage has a tolerance.
        If the storage fails, the last known facts stay, and everything that needs the home reports the error.

        Args:
            status: The heartbeat.
            now_s: Seconds since 1970.
        """
        head_of = status.attempt, status.checkpoint
        if head_of != self._head_of:
            with suppress(StreamPipelineError):
                self._head = newest_manifest(self._files)
                self._head_of = head_of
        with suppress(StreamPipelineError):
            names = self._ledger.names()
            self._open_losses = len(names.open)
            since = budgets_since(status, now_s)
            self._passed_over = () if since is None else tuple(self._ledger.passed_over(since, self._read_loss, names))
        return PipelineFacts(status, self._head, now_s, self._passed_over, self._open_losses)

    def tags(self) -> dict[str, str]:
        """Returns the tags of all values: the home and, unless the storage fails, the name of the pipeline."""
        if not self._tags:
            with suppress(StreamPipelineError):
                self._tags = {"pipeline": Channel(self._files).claimed().name}
        return {"home": self._files.url} | self._tags
