"""Shared sources. An additional stage stages each of them once, so that all stages have read the same rows at a checkpoint."""

from collections.abc import Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Any

from spark_jobs.api.names import derived_name
from spark_jobs.api.refusals import Place
from spark_jobs.api.settings import NO_SETTINGS
from spark_jobs.api.source import Source, Static
from spark_jobs.api.stage import NO_LIMITS, DeclaredStage, OutputMode
from spark_jobs.protocol.ids import InputName, StageName

Declaration = Source | Static | DeclaredStage


def sharing_stage(source: InputName) -> StageName:
    """Returns the name of the stage that reads a shared source for all others."""
    return StageName(f"{source}_shared")


def with_sharing_stages(pipeline: str, declarations: Mapping[str, Declaration]) -> dict[str, Declaration]:
    """Returns the declarations with a stage between each shared source and its readers, whose arguments keep their names.

    Raises:
        InvalidPipelineError: The stage's name is taken, or is too long for a file's.
    """
    shared = {name: source for name, source in declarations.items() if isinstance(source, Source) and source.shared}
    stage_of = {name: sharing_stage(source.name) for name, source in shared.items()}
    for name, stage in stage_of.items():
        why = f"it is shared, so the stage {stage!r} reads it for all others"
        derived_name(Place(pipeline, "source", name), why, stage, declarations)
    expanded: dict[str, Declaration] = {}
    for name, part in declarations.items():
        expanded[name] = reading(part, stage_of) if isinstance(part, DeclaredStage) else part
        if name in shared:
            expanded[stage_of[name]] = _stage(stage_of[name], shared[name])
    return expanded


def _stage(name: StageName, source: Source) -> DeclaredStage:
    """Returns the stage that stages a source's rows unchanged. Its readers use the event time; the stage itself needs no watermark."""
    return DeclaredStage(
        name=name,
        function=_as_they_are,
        inputs=MappingProxyType({"rows": source.name}),
        sink=None,
        event_time=source.event_time,
        delay_ms=source.delay_ms,
        output_mode=OutputMode.APPEND,
        limits=NO_LIMITS,
        conf=NO_SETTINGS,
    )


def reading(stage: DeclaredStage, stage_of: Mapping[str, StageName]) -> DeclaredStage:
    """Returns the stage with some of its inputs replaced by other stages."""
    inputs = {argument: str(stage_of.get(read, read)) for argument, read in stage.inputs.items()}
    return replace(stage, inputs=MappingProxyType(inputs))


def _as_they_are(rows: Any) -> Any:
    return rows
