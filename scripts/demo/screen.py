"""Shows the progress of the demo: as moving bars in a terminal, otherwise as a line every few seconds."""

import time
from collections.abc import Callable
from types import TracebackType

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.spinner import Spinner
from rich.table import Table
from rich.text import Text

from scripts.demo.phases import Phase, Timeline, in_order, stage_in_words, stages_in_words
from spark_jobs.protocol.documents import StageState, Status

SILENCE_MAX_S = 3.0
_BAR_WIDTH = 28


class Screen:
    """Shows the demo's timeline; a context that holds the terminal.

    Args:
        console: Where to.
        clock: In seconds, only forward.
    """

    def __init__(self, console: Console, clock: Callable[[], float] = time.monotonic) -> None:
        self._console, self._clock = console, clock
        self._timeline = Timeline()
        self._status: Status | None = None
        self._end: Text | None = None
        self._spinner = Spinner("dots", style="cyan")
        self._said_s = float("-inf")
        self._live = Live(get_renderable=self._render, console=console, refresh_per_second=8) if console.is_terminal else None

    def __enter__(self) -> "Screen":
        if self._live:
            self._live.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._end = Text("✓", style="green") if error is None else Text("✗", style="red")
        if self._live:
            self._live.stop()

    @property
    def durations_s(self) -> dict[Phase, float]:
        return self._timeline.durations_s(self._clock())

    def show(self, phase: Phase, status: Status | None = None) -> None:
        """Tells where the demo is; called several times a second."""
        now_s = self._clock()
        before = self._timeline.current
        new = self._timeline.see(phase, now_s)
        self._status = status or self._status
        if self._live is None and (new or now_s - self._said_s >= SILENCE_MAX_S):
            if new and before:
                self._print(f"{before.value}: {self.durations_s[before]:.1f} s")
            self._print(f"{phase.value} …" if new else self._progress())
            self._said_s = now_s

    def _progress(self) -> str:
        *_, (current, duration_s) = self.durations_s.items()
        stages = f": {'; '.join(stages_in_words(self._status.stages))}" if current is Phase.STAGES and self._status else ""
        return f"{current.value} … {duration_s:.0f} s{stages}"

    def _print(self, line: str) -> None:
        self._console.print(f"  {line}", soft_wrap=True, highlight=False)

    def _render(self) -> RenderableType:
        lines = Table.grid(padding=(0, 1))
        for phase, duration_s in self.durations_s.items():
            current = phase is self._timeline.current
            mark = (self._end or self._spinner) if current else Text("✓", style="green")
            took = Text(f"{duration_s:5.1f} s", style="cyan" if current else "dim")
            lines.add_row(mark, took, Text(phase.value, style="bold" if current else ""))
        return Group(lines, self._bars()) if Phase.STAGES in self._timeline.began_s else lines

    def _bars(self) -> RenderableType:
        bars = Table.grid(padding=(0, 1))
        if self._status is None:
            return bars
        for name, stage in in_order(self._status.stages).items():
            ended, moving = stage.state is StageState.ENDED, stage.state in (StageState.RUNNING, StageState.DRAINING)
            bar = ProgressBar(
                total=1.0,
                completed=1.0 if ended else stage.progress or 0.0,
                width=_BAR_WIDTH,
                pulse=moving and not stage.progress,
                animation_time=self._clock(),
            )
            bars.add_row(
                "   ", Text(name, style="bold" if moving else ""), bar, Text(stage_in_words(stage), style="dim" if ended else "")
            )
        return bars
