"""Describes a pipeline's progress for a task's log, often at first and more rarely later. Reads no home and no clock."""

from datetime import UTC, datetime

from spark_jobs.protocol.documents import RunState, StageStatus, Status

_RARER = 1.1
"""The factor by which the pause between two reports grows: from ten seconds to a minute in nine minutes, and to five in an hour."""


class ProgressLog:
    """Chooses the progress reports for a task's log: frequent at first, and rare for a pipeline that runs for weeks.

    Args:
        interval_s: The shortest time between the first two reports, while the run's state does not change.
        longest_s: The longest time between two reports, if there is news.
    """

    def __init__(self, interval_s: float = 10.0, longest_s: float = 300.0) -> None:
        self._shortest_s, self._longest_s = interval_s, longest_s
        self._interval_s = interval_s
        self._said: list[str] = []
        self._state: tuple[RunState, bool] | None = None
        """The state in the last report, and whether a publication was blocked."""
        self._due_s = float("-inf")

    def lines(self, status: Status | None, now_s: float) -> list[str]:
        """Returns the lines to log now. No line is repeated, and none comes too often."""
        state = None if status is None else (status.state, status.blocked is not None)
        if status is None or (now_s < self._due_s and state == self._state):
            return []
        lines = progress(status)
        new = [line for line in lines if line not in self._said]
        if new:
            if state != self._state:
                self._interval_s = self._shortest_s
            self._said, self._state, self._due_s = lines, state, now_s + self._interval_s
            self._interval_s = min(self._longest_s, self._interval_s * _RARER)
        return new


def doing(status: Status) -> str:
    """Describes the activity of an attempt, the progress of a requested stop, and a blocked publication."""
    return ". ".join([_attempt(status), *_blocked(status)])


def progress(status: Status) -> list[str]:
    """Describes a heartbeat: the attempt, a blocked publication, then each stage that has begun."""
    head = _attempt(status)
    if status.checkpoint is not None:
        head += f", checkpoint {status.checkpoint}"
    begun = [(name, stage) for name, stage in status.stages.items() if stage.batch is not None or stage.reason]
    return [head, *_blocked(status), *(_stage_line(name, stage) for name, stage in begun)]


def _attempt(status: Status) -> str:
    stop = f", {status.stop.request}: {status.stop.state.value}" if status.stop else ""
    return f"attempt {status.attempt}: {status.state.value}{stop}"


def _blocked(status: Status) -> list[str]:
    return [status.blocked.summary] if status.blocked else []


def _stage_line(name: str, stage: StageStatus) -> str:
    parts = [f"stage {name}: {stage.state.value}"]
    if stage.batch is not None:
        parts.append(f"batch {stage.batch}")
    if stage.progress is not None:
        parts.append(f"{stage.progress:.0%}")
    parts += [f"{stage.rows_in:,} rows", f"{stage.rows_per_s:,.0f} rows/s"]
    if stage.watermark_ms:
        parts.append(f"watermark {_watermark(stage.watermark_ms)}")
    if stage.late_rows:
        parts.append(f"{stage.late_rows:,} late")
    parts += [f"{rows:,} violate {expectation}" for expectation, rows in stage.violations.items()]
    if stage.reason:
        parts.append(stage.reason)
    return ", ".join(parts)


def _watermark(watermark_ms: int) -> str:
    at = datetime.fromtimestamp(watermark_ms / 1000, UTC)
    return "at the end of time" if at.year == 9999 else f"{at:%Y-%m-%d %H:%M:%SZ}"
