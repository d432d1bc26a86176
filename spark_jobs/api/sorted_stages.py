"""Stages that drop or divert rows. The graph gets additional stages that sort their rows by violated expectations.

The stage itself keeps its name and its state. It stages every row once, with the names of the expectations that the row violates.
"""

from collections.abc import Callable, Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Any

from spark_jobs.api.expectations import VIOLATED, VIOLATION_COLUMNS
from spark_jobs.api.names import derived_name
from spark_jobs.api.refusals import Place
from spark_jobs.api.shared import Declaration, reading
from spark_jobs.api.sink import Sink
from spark_jobs.api.stage import NO_LIMITS, DeclaredStage, OutputMode, RateLimits
from spark_jobs.protocol.ids import StageName


def accepting_stage(stage: StageName) -> StageName:
    """Returns the name of the stage that passes on the rows without violations."""
    return StageName(f"{stage}_accepted")


def diverting_stage(stage: StageName) -> StageName:
    """Returns the name of the stage that passes on the rows with violations."""
    return StageName(f"{stage}_violations")


def with_sorting_stages(pipeline: str, declarations: Mapping[str, Declaration]) -> dict[str, Declaration]:
    """Returns the declarations with sorting stages. Readers of a sorted stage read its rows without violations.

    Raises:
        InvalidPipelineError: The name of such a stage is taken, or is too long for a file's.
    """
    sorted_here = {
        name: part
        for name, part in declarations.items()
        if isinstance(part, DeclaredStage) and part.expectations is not None and part.expectations.sorts
    }
    accepted = {name: accepting_stage(part.name) for name, part in sorted_here.items()}
    expanded: dict[str, Declaration] = {}
    for name, part in declarations.items():
        expanded[name] = reading(part, accepted) if isinstance(part, DeclaredStage) else part
        if name not in sorted_here:
            continue
        stage = sorted_here[name]
        expanded[name] = replace(reading(stage, accepted), sink=None)
        place = Place(pipeline, "stage", name)
        limits = RateLimits(max_channel_bytes=stage.limits.max_channel_bytes)
        for added in (
            _handing_on(accepted[name], stage, _accepted, stage.sink, limits),
            *_diverting(stage),
        ):
            derived_name(place, f"the stage {added.name!r} passes on some of its rows", added.name, declarations)
            expanded[added.name] = added
    return expanded


def _diverting(stage: DeclaredStage) -> tuple[DeclaredStage, ...]:
    violations = stage.expectations.violations if stage.expectations else None
    return () if violations is None else (_handing_on(diverting_stage(stage.name), stage, _violating, violations, NO_LIMITS),)


def _handing_on(
    name: StageName, stage: DeclaredStage, function: Callable[[Any], Any], sink: Sink | None, limits: RateLimits
) -> DeclaredStage:
    return DeclaredStage(
        name=name,
        function=function,
        inputs=MappingProxyType({"rows": stage.name}),
        sink=sink,
        event_time=None,
        delay_ms=None,
        output_mode=OutputMode.APPEND,
        limits=limits,
        conf=stage.conf,
    )


def _accepted(rows: Any) -> Any:
    return rows.where(f"{VIOLATED} IS NULL").drop(*VIOLATION_COLUMNS)


def _violating(rows: Any) -> Any:
    return rows.where(f"{VIOLATED} IS NOT NULL")
