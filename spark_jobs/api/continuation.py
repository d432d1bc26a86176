"""The fate of each stage when changed code resumes from a checkpoint: its state is restored, new or dropped, as in Flink.

The module compares two descriptions of a graph, :meth:`spark_jobs.api.graph.Graph.describe`.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

_OF_THE_TABLE = ("path", "table", "partition_by")
"""The fields of a sink that say where its table is and how it is laid out. The state of the stage does not depend on them."""


class Fate(StrEnum):
    """The fate of a stage when changed code resumes."""

    CONTINUES = "continues"
    """The stage keeps its state and continues after the last batch of the checkpoint."""
    STARTS_EMPTY = "starts empty"
    """The stage is new and has no state. It reads sources from their beginning, and from other stages only what they stage from now on."""
    DROPPED = "is dropped"
    """The pipeline no longer has the stage. Its state is left behind."""
    IMPOSSIBLE = "cannot go on"
    """The state of the stage does not fit the changed stage."""


@dataclass(frozen=True)
class StageFate:
    """The fate of one stage, and the reason if it is not obvious."""

    stage: str
    fate: Fate
    why: str = ""

    def __str__(self) -> str:
        return f"{self.stage} {self.fate}{f': {self.why}' if self.why else ''}"


def fates(before: Mapping[str, Any], after: Mapping[str, Any]) -> tuple[StageFate, ...]:
    """Returns the fate of each stage: first the stages of the new graph in their order, then the dropped ones.

    Args:
        before: Description of the graph of the checkpoint.
        after: Description of the graph that resumes.
    """
    old, new = before.get("stages", {}), after.get("stages", {})
    found = [_fate(name, before, after) if name in old else StageFate(name, Fate.STARTS_EMPTY) for name in new]
    return (*found, *(StageFate(name, Fate.DROPPED) for name in old if name not in new))


def with_fate(found: Iterable[StageFate], fate: Fate) -> list[StageFate]:
    """Returns the stages with one fate."""
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
    """Returns True if a field may change between two runs: only the delay of a watermark, if both runs have one."""
    return field == "delay_ms" and None not in (old.get(field), new.get(field))


def _without_table(stage: Mapping[str, Any]) -> dict[str, Any]:
    sink = stage.get("sink")
    kept = {key: value for key, value in sink.items() if key not in _OF_THE_TABLE} if sink else sink
    return {**stage, "sink": kept}


def _read(stage: Mapping[str, Any]) -> str:
    return ", ".join(str(name) for name in stage.get("inputs", {}).values()) or "nothing"


def _input(name: str, graph: Mapping[str, Any]) -> str:
    """Returns a description of the properties of an input that the state of its readers depends on."""
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
