"""Finds the graph of the correct parts of a pipeline with mistakes, so that one check also finds the mistakes of its functions."""

import dataclasses
from collections.abc import Callable, Collection, Mapping, Set

from spark_jobs.api.graph import Graph
from spark_jobs.api.refusals import Mistakes
from spark_jobs.api.shared import Declaration
from spark_jobs.api.source import Source
from spark_jobs.api.stage import NO_LIMITS, DeclaredStage
from spark_jobs.protocol.errors import RejectedError

Build = Callable[[Mapping[str, Declaration], Collection[str] | None], Graph]


def sound_graph(build: Build, declarations: Mapping[str, Declaration], mistaken: Set[str], mistakes: Mistakes) -> Graph | None:
    """Returns the graph of the correct parts of a pipeline.

    A part with a mistake stays in the graph without the options that may be wrong. If it is still wrong, it is left out together with the
    stages that read it, because their mistakes cannot be distinguished from its own.

    Args:
        build: Checks declarations against each other. Its second argument names parts whose mistakes are known, None if there are none.
        declarations: The pipeline's parts.
        mistaken: Names of parts that could not be declared as they are.
        mistakes: Collects the mistakes.

    Returns:
        None if no part is left, or if a mistake concerns the whole pipeline, such as a cycle.
    """
    known, bare, gone = bool(mistaken), set(mistaken), set(mistaken) - declarations.keys()
    while True:
        parts = _left(declarations, bare, gone)
        if known and not any(isinstance(part, DeclaredStage) for part in parts.values()):
            return None
        found = Mistakes()
        with found.noted():
            return build(parts, bare if known else None)
        for error in found.found:
            mistakes.add(error)
        names = {_part(error, parts) for error in found.found} & parts.keys()
        if known and not names:
            return None
        known = True
        gone |= names & bare
        bare |= names


def _left(declarations: Mapping[str, Declaration], bare: Set[str], gone: Set[str]) -> dict[str, Declaration]:
    left = {name: _without_options(part) if name in bare else part for name, part in declarations.items()}
    without = set(gone)
    while behind := {name for name, part in left.items() if name not in without and _reads(part, without)}:
        without |= behind
    for name, part in left.items():
        if isinstance(part, Source) and part.after in without:
            left[name] = dataclasses.replace(part, after=None)
    return {name: part for name, part in left.items() if name not in without}


def _reads(part: Declaration, names: Set[str]) -> bool:
    return isinstance(part, DeclaredStage) and not names.isdisjoint(part.inputs.values())


def _without_options(part: Declaration) -> Declaration:
    if isinstance(part, DeclaredStage):
        return dataclasses.replace(part, sink=None, limits=NO_LIMITS, expectations=None)
    if isinstance(part, Source):
        return dataclasses.replace(part, shared=False, after=None, after_publication=None, archive=None)
    return part


def _part(error: RejectedError, parts: Mapping[str, Declaration]) -> str:
    """Returns the name of the declaration that an error is about. A sink is part of its stage."""
    kind, _, name = str(error.evidence.get("part", "")).partition(" ")
    if kind != "sink":
        return name
    stages = (part for part in parts.values() if isinstance(part, DeclaredStage))
    return next((stage.name for stage in stages if name in {sink.name for sink in stage.sinks}), "")
