"""What a pipeline is doing, in words for a task's log; much of it at first, and no more than is read. No I/O, no clock of its own."""

from datetime import UTC, datetime
from typing import Any

from spark_jobs.protocol.documents import RunState, StageStatus, Status

_RARER = 1.1
"""By this the pause between two reports of progress grows: from ten seconds to a minute in nine minutes, and to five in an hour."""


class ProgressLog:
    """Picks the progress that is worth a line in a task's log: much at first, and less of what goes on for weeks.

    Args:
        interval_s: Between the first two reports at least, while the run's state does not change.
        longest_s: Between any two at most, where there is something to tell.
    """

    def __init__(self, interval_s: float = 10.0, longest_s: float = 300.0) -> None:
        self._shortest_s, self._longest_s = interval_s, longest_s
        self._interval_s = interval_s
        self._said: list[str] = []
        self._state: tuple[RunState, bool] | None = None
        """Of the last report, and whether a publication was blocked."""
        self._due_s = float("-inf")

    def lines(self, status: Status | None, now_s: float) -> list[str]:
        """What to log now; nothing too often, nothing twice."""
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


class ChangeLog:
    """Logs what an attempt is doing, each time that it is something else.

    Args:
        log: Of the task.
    """

    def __init__(self, log: Any) -> None:
        self._log = log
        self._said: str | None = None

    def see(self, doing: str | None) -> None:
        """Told what each look shows; None where nobody is at work."""
        if doing is not None and doing != self._said:
            self._log.info(doing)
            self._said = doing


def doing(status: Status) -> str:
    """What an attempt is doing, how far a stop is that it was asked for, and which publication is blocked."""
    return ". ".join([_attempt(status), *_blocked(status)])


def progress(status: Status) -> list[str]:
    """A heartbeat in words: the attempt, what is blocked, then each stage that has begun."""
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
