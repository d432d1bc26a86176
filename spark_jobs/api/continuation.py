"""What becomes of each stage where changed code goes on from a checkpoint (Flink: state that is restored, new, or left behind).

Pure: it compares two descriptions of a graph, :meth:`spark_jobs.api.graph.Graph.describe`.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

_OF_THE_TABLE = ("path", "table", "partition_by")
"""Where the table of a sink is and how it is laid out: the state of the stage does not depend on that."""


class Fate(StrEnum):
    """What becomes of a stage."""

    CONTINUES = "continues"
    """It goes on with its state after the last batch of the checkpoint."""
    STARTS_EMPTY = "starts empty"
    """It is new: it has no state, and reads what other stages stage from now on, and sources from their beginning."""
    DROPPED = "is dropped"
    """The pipeline no longer has it: its state is left behind."""
    IMPOSSIBLE = "cannot go on"
    """Its state does not fit what it has become."""


@dataclass(frozen=True)
class StageFate:
    """What becomes of one stage, and why if it is not plain."""

    stage: str
    fate: Fate
    why: str = ""

    def __str__(self) -> str:
        return f"{self.stage} {self.fate}{f': {self.why}' if self.why else ''}"


def fates(before: Mapping[str, Any], after: Mapping[str, Any]) -> tuple[StageFate, ...]:
    """Returns what becomes of each stage: those that are there in their order, then those that were.

    Args:
        before: The description of the graph that the checkpoint was taken of.
        after: That of the graph that is to go on.
    """
    old, new = before.get("stages", {}), after.get("stages", {})
    found = [_fate(name, before, after) if name in old else StageFate(name, Fate.STARTS_EMPTY) for name in new]
    return (*found, *(StageFate(name, Fate.DROPPED) for name in old if name not in new))


def with_fate(found: Iterable[StageFate], fate: Fate) -> list[StageFate]:
    """Returns the stages of one fate."""
    return [each for each in found if each.fate is fate]


def _fate(name: str, before: Mapping[str, Any], after: Mapping[str, Any]) -> StageFate:
    old, new = _without_table(before["stages"][name]), _without_table(after["stages"][name])
    changed = [
        field
        for field in sorted(old.keys() | new.keys())
        if old.get(field) != new.get(field) and not _may_change(field, old, new)
    ]
    if "inputs" in changed:
        return StageFate(name, Fate.IMPOSSIBLE, f"it read {_read(old)} and reads {_read(new)}")
    if changed:
        said = ", ".join(f"{field} was {old.get(field)!r} and is {new.get(field)!r}" for field in changed)
        return StageFate(name, Fate.IMPOSSIBLE, said)
    for read in new.get("inputs", {}).values():
        was, is_now = _input(read, before), _input(read, after)
        if was != is_now:
            return StageFate(name, Fate.IMPOSSIBLE, f"its input {read} was {was} and is {is_now}")
    return StageFate(name, Fate.CONTINUES)


def _may_change(field: str, old: Mapping[str, Any], new: Mapping[str, Any]) -> bool:
    """Returns whether a field may change: the delay of a watermark may, if both have one."""
    return field == "delay_ms" and None not in (old.get(field), new.get(field))


def _without_table(stage: Mapping[str, Any]) -> dict[str, Any]:
    sink = stage.get("sink")
    kept = {key: value for key, value in sink.items() if key not in _OF_THE_TABLE} if sink else sink
    return {**stage, "sink": kept}


def _read(stage: Mapping[str, Any]) -> str:
    return ", ".join(str(name) for name in stage.get("inputs", {}).values()) or "nothing"


def _input(name: str, graph: Mapping[str, Any]) -> str:
    """Returns in words what of an input the state of its readers depends on."""
    if name in graph.get("statics", {}):
        return "a static input"
    source = graph.get("sources", {}).get(name)
    if source is None:
        return "a stage"
    facts = ["bounded" if source.get("bounded") else "unbounded", f"event_time={source.get('event_time')!r}"]
    facts += [f"watermark_delay={source.get('delay_ms')} ms"] if source.get("bounded") else []
    facts += [f"after={source['after']!r}"] if source.get("after") else []
    timed = source.get("event_time") is not None and source.get("delay_ms") is None
    return f"a source ({', '.join(facts)}{', held' if source.get('held') or timed else ''})"
