"""The progress of a run for people: bars on a terminal, otherwise a line from time to time."""

import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from typing import TYPE_CHECKING

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.spinner import Spinner
from rich.table import Table
from rich.text import Text

from spark_jobs.background import run_every
from spark_jobs.cli import words
from spark_jobs.protocol.documents import RunState, StageState, StageStatus, Status

if TYPE_CHECKING:
    from spark_jobs.runtime.driver.heartbeat import Heartbeat

LINE_INTERVAL_S = 5.0
"""Without a terminal: the longest silence while there is news."""
LONGEST_LINE_INTERVAL_S = 60.0
"""The longest silence without news, as in a pipeline without an end whose inputs are quiet."""
_TICK_S = 0.5
_BAR_WIDTH = 24
_STYLES = {
    StageState.ENDED: "green",
    StageState.RUNNING: "cyan",
    StageState.QUIESCED: "green",
    StageState.DRAINING: "cyan",
    StageState.RESTARTING: "yellow",
    StageState.FAILED: "red",
    StageState.WAITING: "dim",
}


class Progress:
    """Shows the progress on standard error while the context is open.

    Args:
        console: Console to write to.
        doing: The first activity.
    """

    def __init__(self, console: Console, doing: str) -> None:
        self._console = console
        self._doing = doing
        self._began_s = time.monotonic()
        self._spinner = Spinner("dots")
        self._read: Callable[[], Status | None] = lambda: None

    @contextmanager
    def shown(self) -> Iterator["Progress"]:
        """Shows the progress until the context ends."""
        with ExitStack() as stack:
            if self._console.is_terminal:
                live = Live(get_renderable=self._render, console=self._console, refresh_per_second=8, transient=True)
                stack.enter_context(live)
            else:
                stack.enter_context(self._lines())
            yield self

    def doing(self, text: str) -> None:
        """Sets the current activity."""
        self._doing = text

    def watch(self, heartbeat: "Heartbeat") -> Callable[[], None]:
        """Starts to show a driver's stages; the hook of :class:`~spark_jobs.runtime.application.Application`."""
        self.follow(lambda: heartbeat.status)
        return lambda: self.doing("finishing")

    def follow(self, read: Callable[[], Status | None]) -> None:
        """Shows the stages of the status that ``read`` returns."""
        self._read = read

    def _headline(self) -> str:
        status = self._read()
        if not status:
            return self._doing
        how_far = f" ({status.stop.state.value})" if status.stop and status.state is RunState.STOPPING else ""
        blocked = f". {status.blocked.summary}" if status.blocked else ""
        return f"{self._doing}, attempt {status.attempt}: {status.state.value}{how_far}{blocked}"

    def _elapsed(self) -> str:
        return words.duration(round(time.monotonic() - self._began_s))

    def _render(self) -> RenderableType:
        status = self._read()
        place = f"  {status.spark_ui}" if status and status.spark_ui else ""
        self._spinner.update(text=Text.assemble(self._headline(), (f"  {self._elapsed()}{place}", "dim")))
        return Group(self._spinner, stage_table(status, bars=True)) if status else self._spinner

    @contextmanager
    def _lines(self) -> Iterator[None]:
        lines = ProgressLines()

        def write() -> None:
            for line in lines.tick(time.monotonic(), self._headline(), self._read()):
                with suppress(OSError):  # standard error may be full or closed
                    self._console.print(f"{line} ({self._elapsed()})")

        with run_every(_TICK_S, write, "progress", now=True):
            yield


class ProgressLines:
    """Chooses the lines to print without a terminal: the current activity, each change of a stage, and a sign of life in between."""

    def __init__(self) -> None:
        self._headline = ""
        self._states: dict[str, StageState] = {}
        self._printed_s: float | None = None
        self._sign_of_life: list[str] = []
        self._interval_s = LINE_INTERVAL_S

    def tick(self, now_s: float, headline: str, status: Status | None) -> list[str]:
        """Returns the lines to print at ``now_s``. The delay of a repeated line doubles each time, up to a minute."""
        stages = status.stages if status else {}
        changed = [name for name, stage in stages.items() if self._states.get(name, StageState.WAITING) is not stage.state]
        self._states = {name: stage.state for name, stage in stages.items()}
        lines = [headline] if headline != self._headline else []
        self._headline = headline
        lines += [stage_line(name, stages[name]) for name in changed]
        if lines:
            self._sign_of_life, self._interval_s = [], LINE_INTERVAL_S
        elif self._printed_s is None or now_s - self._printed_s >= LINE_INTERVAL_S:
            lines = self._signs_of_life(now_s, headline, status)
        if lines:
            self._printed_s = now_s
        return lines

    def _signs_of_life(self, now_s: float, headline: str, status: Status | None) -> list[str]:
        stages = status.stages if status else {}
        active = [n for n, stage in stages.items() if stage.state in (StageState.RUNNING, StageState.DRAINING)]
        lines = [stage_line(name, stages[name]) for name in active] or [headline]
        if lines != self._sign_of_life:
            self._sign_of_life, self._interval_s = lines, LINE_INTERVAL_S
        elif self._printed_s is not None and now_s - self._printed_s < 2 * self._interval_s:
            return []
        else:
            self._interval_s = min(2 * self._interval_s, LONGEST_LINE_INTERVAL_S / 2)
        return lines


def stage_line(name: str, stage: StageStatus) -> str:
    """Returns a stage in one line."""
    parts = [f"stage {name}: {stage.state.value}"]
    if stage.batch is not None:
        parts.append(
            f"batch {stage.batch}, {words.count(stage.rows_in)} {words.ROWS_OF_ATTEMPT}, {words.count(round(stage.rows_per_s))} rows/s"
        )
    if stage.progress is not None and stage.state is StageState.RUNNING:
        parts.append(f"{stage.progress:.0%}")
    if stage.watermark_ms:
        parts.append(f"watermark {words.watermark(stage.watermark_ms)}")
    if stage.late_rows:
        parts.append(f"{words.count(stage.late_rows)} late rows")
    parts += [f"{words.count(rows)} violate {expectation}" for expectation, rows in stage.violations.items()]
    parts += [text for text in (_lag(stage), _restarts(stage)) if text]
    return ", ".join(parts)


def stage_table(status: Status, *, bars: bool) -> Table:
    """Returns the stages of a heartbeat. With ``bars``, bars move if the amount of input is not known."""
    made = Table.grid(padding=(0, 2))
    for name, stage in status.stages.items():
        made.add_row(
            Text(f"  {name}"),
            _bar(stage) if bars else Text("" if stage.progress is None else f"{stage.progress:.0%}", justify="right"),
            Text(stage.state.value, style=_STYLES[stage.state]),
            Text(f"{words.count(stage.rows_in)} {words.ROWS_OF_ATTEMPT}", justify="right"),
            Text(f"{words.count(round(stage.rows_per_s))} rows/s", justify="right", style="dim"),
            Text(f"watermark {words.watermark(stage.watermark_ms)}" if stage.watermark_ms else "", style="dim"),
            Text(f"{words.count(stage.late_rows)} late" if stage.late_rows else "", style="yellow"),
            Text("" if stage.batch is None or bars else f"batch {stage.batch}", style="dim"),
            Text(", ".join(f"{words.count(rows)} violate {name}" for name, rows in stage.violations.items()), style="yellow"),
            Text(_lag(stage)),
            Text(_restarts(stage), style="yellow", overflow="fold"),
        )
    return made


def _lag(stage: StageStatus) -> str:
    """Returns the lag of the inputs that report one."""
    lags, parts = stage.lag.values(), []
    size_bytes = sum(lag.size_bytes or 0 for lag in lags)
    for unit, counts in (
        ("rows", [lag.rows for lag in lags]),
        ("versions", [lag.versions for lag in lags]),
        ("files", [lag.files for lag in lags]),
    ):
        known = [count for count in counts if count is not None]
        if known:
            amount = f" ({words.size(size_bytes)})" if size_bytes and unit == "rows" else ""
            of = "" if len(known) == len(counts) else f" of {', '.join(_counted(stage.lag, counts))}"
            parts.append(f"{words.count(sum(known))} {unit}{amount}{of}")
    return f"lag {', '.join(parts)}" if parts else ""


def _counted(names: Iterable[str], counts: Iterable[int | None]) -> list[str]:
    return [name for name, count in zip(names, counts, strict=True) if count is not None]


def _restarts(stage: StageStatus) -> str:
    if stage.state is StageState.FAILED:
        return f"after {stage.restarts} restarts: {stage.reason}"
    if stage.reason:
        return f"{stage.restarts}. restart after {stage.reason}"
    return f"{stage.restarts} restarts" if stage.restarts else ""


def _bar(stage: StageStatus) -> ProgressBar:
    if stage.state is StageState.WAITING:
        return ProgressBar(total=1, completed=0, width=_BAR_WIDTH)
    if stage.state is StageState.ENDED:
        return ProgressBar(total=1, completed=1, width=_BAR_WIDTH)
    return ProgressBar(total=1, completed=stage.progress or 0, width=_BAR_WIDTH, pulse=stage.progress is None)
