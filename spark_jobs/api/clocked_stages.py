"""Stages without a stream: each computes its whole table again, once in a round, or at its ``trigger_interval``.

They read static inputs, or the tables of other stages. The graph gives each of them a clock, a source with one row for each time that the
table is computed. So it is a stage like all others.
"""

import importlib
from collections.abc import Mapping
from dataclasses import replace
from inspect import Parameter, signature
from types import MappingProxyType
from typing import Any

from spark_jobs.api.functions import Function, call
from spark_jobs.api.names import derived_name
from spark_jobs.api.refusals import Place
from spark_jobs.api.shared import Declaration
from spark_jobs.api.source import Source, Static
from spark_jobs.api.stage import DeclaredStage, OutputMode
from spark_jobs.protocol.documents import SinkMode
from spark_jobs.protocol.ids import InputName

MOMENT = "__moment"
"""The column of a clock."""


def is_clocked(stage: DeclaredStage, declarations: Mapping[str, Declaration]) -> bool:
    """Returns True if a stage reads no stream, and its rows can replace those of its table."""
    if stage.reads_tables:
        return True
    reads = [declarations.get(read) for read in stage.inputs.values()]
    return stage.sink is not None and stage.sink.mode is SinkMode.COMPLETE and all(isinstance(each, Static) for each in reads)


def with_clocks(pipeline: str, declarations: Mapping[str, Declaration]) -> dict[str, Declaration]:
    """Returns the declarations with a clock for each stage without a stream.

    Raises:
        InvalidPipelineError: The clock's name is taken, or is too long.
    """
    expanded: dict[str, Declaration] = {}
    for name, part in declarations.items():
        if not isinstance(part, DeclaredStage) or not is_clocked(part, declarations):
            expanded[name] = part
            continue
        clock = f"{name}_clock"
        why = f"it reads no stream, so the source {clock!r} says when it computes its table"
        derived_name(Place(pipeline, "stage", name), why, clock, [*declarations, *part.inputs])
        expanded[clock] = Source(
            name=InputName(clock),
            function=_read_clock,
            bounded=part.reads_tables or part.limits.trigger_interval_ms is None,
            event_time=None,
            delay_ms=None,
            held=False,
        )
        expanded[name] = replace(
            part,
            function=_for_each_moment(part.function, clock),
            inputs=MappingProxyType({clock: clock, **part.inputs}),
            output_mode=OutputMode.APPEND,
        )
    return expanded


def _read_clock(spark: Any) -> Any:
    return importlib.import_module("spark_jobs.runtime.inputs.clock_source").clock(spark, MOMENT)


def _for_each_moment(function: Function, clock: str) -> Function:
    """Returns the function of the stage: a stream that has all rows of the given function for each row of the clock."""

    def whole(**given: Any) -> Any:
        moments = given.pop(clock)
        return moments.hint("broadcast").crossJoin(call(function, given)).drop(MOMENT)

    named = [each.replace(kind=Parameter.KEYWORD_ONLY) for each in signature(function).parameters.values()]
    whole.__signature__ = signature(function).replace(parameters=[Parameter(clock, Parameter.KEYWORD_ONLY), *named])  # type: ignore[attr-defined]
    return whole
