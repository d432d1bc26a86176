"""Compares two tries at a checkpoint, fact by fact, for the pipelines page."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from math import isclose

from rich.filesize import decimal

from airflow_provider.pages.rendering import duration
from spark_jobs.protocol.history import CheckpointHistory


@dataclass(frozen=True)
class Compared:
    """One fact of two tries."""

    name: str
    first: str
    second: str
    difference: str = ""
    """The second minus the first; empty if it is no number or there is no difference."""


def compared(first: CheckpointHistory, second: CheckpointHistory) -> list[Compared]:
    """Returns the facts of two tries."""
    return [*_texts(first, second), *_amounts(first, second)]


def outcome(tried: CheckpointHistory) -> str:
    """Returns the outcome of a try, with the reason of a failure."""
    return f"failed: {tried.failure.error}: {tried.failure.failed}" if tried.failure else "complete"


def alignment(tried: CheckpointHistory) -> str:
    """Returns how a checkpoint was cut; empty if it failed before."""
    cut = {None: "", True: "aligned", False: "unaligned"}[tried.aligned]
    return f"{cut}, without {', '.join(tried.behind)}" if tried.behind else cut


def _texts(first: CheckpointHistory, second: CheckpointHistory) -> Iterator[Compared]:
    texts: dict[str, Callable[[CheckpointHistory], str]] = {
        "Outcome": outcome,
        "Began": lambda tried: f"{tried.began_at:%Y-%m-%d %H:%M:%S}",
        "Kind": lambda tried: tried.checkpoint_kind.value,
        "Attempt": lambda tried: str(tried.attempt),
        "Cut": alignment,
        "Ended stages": lambda tried: ", ".join(tried.finished),
    }
    for name, text in texts.items():
        if text(first) or text(second):
            yield Compared(name, text(first), text(second))


def _amounts(first: CheckpointHistory, second: CheckpointHistory) -> Iterator[Compared]:
    yield _amount("Duration", took(first), took(second), duration)
    for step in dict.fromkeys(each.step for tried in (first, second) for each in tried.steps):
        yield _amount(f"Duration of {step}", took(first, step), took(second, step), duration)
    yield _amount("Alignment", first.alignment_s, second.alignment_s, duration)
    yield _amount("Rows in flight", first.in_flight_rows, second.in_flight_rows, _number)
    yield _amount("Size in flight", first.in_flight_bytes, second.in_flight_bytes, _size)
    yield _amount("Rows for tables", first.rows, second.rows, _number)
    yield _amount("Files for tables", first.files, second.files, _number)
    yield _amount("Size for tables", first.size_bytes, second.size_bytes, _size)
    yield _amount("New state", first.new_state_bytes, second.new_state_bytes, _size)
    yield _amount("New state files", first.new_state_files, second.new_state_files, _number)
    yield _amount("Reused state", first.reused_state_bytes, second.reused_state_bytes, _size)
    yield _amount("Reused state files", first.reused_state_files, second.reused_state_files, _number)


def took(tried: CheckpointHistory, step: str | None = None) -> float:
    """Returns the seconds of a step, or of all steps."""
    return sum(each.duration_s for each in tried.steps if step in (None, each.step))


def _amount(name: str, first: float, second: float, text: Callable[[float], str]) -> Compared:
    if isclose(first, second):
        return Compared(name, text(first), text(second))
    sign = "+" if second > first else "-"
    share = f" ({sign}{abs(second - first) / first:.0%})" if first else ""
    return Compared(name, text(first), text(second), f"{sign}{text(abs(second - first))}{share}")


def _number(value: float) -> str:
    return f"{value:,.0f}"


def _size(value: float) -> str:
    return decimal(round(value))
