"""Stages: streaming queries of a pipeline, as declared and as placed in its graph."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from types import MappingProxyType

from spark_jobs.api.address import AddressTemplate
from spark_jobs.api.expectations import Expectations, declare_expectations
from spark_jobs.api.functions import PARAMS, SPARK, Function, arguments
from spark_jobs.api.refusals import Place, suggestion
from spark_jobs.api.settings import NO_SETTINGS, check_stage_settings
from spark_jobs.api.sink import DeltaSink, Sink, declare_sink
from spark_jobs.api.source import Source, Static, check_event_time
from spark_jobs.api.tolerance import Tolerance, Tolerate, declare_tolerance
from spark_jobs.protocol.documents import Publish, SinkMode
from spark_jobs.protocol.ids import StageName
from spark_jobs.protocol.options import choice, interval_ms, whole_number


class OutputMode(StrEnum):
    """The rows that a batch of a stage gives to its sink and its consumers, by Spark's output modes."""

    APPEND = "append"
    """Rows that will not change any more."""
    UPDATE = "update"
    """Rows that have changed, for a sink with ``mode="upsert"``."""
    COMPLETE = "complete"
    """The whole result, for a sink with ``mode="complete"``."""


class BeginAt(StrEnum):
    """The position at which a new stage of a running pipeline begins to read its sources.

    In a first run every stage reads from the start.
    """

    EARLIEST = "earliest"
    """The beginning of each source."""
    NOW = "now"
    """After the rows that the pipeline has read before. In an unbounded source and in a new one: after the rows that exist now."""


_OUTPUT_MODES = {
    None: (OutputMode.APPEND,),
    SinkMode.APPEND: (OutputMode.APPEND,),
    SinkMode.UPSERT: (OutputMode.APPEND, OutputMode.UPDATE),
    SinkMode.INSERT: (OutputMode.APPEND,),
    SinkMode.HISTORY: (OutputMode.APPEND,),
    SinkMode.COMPLETE: (OutputMode.COMPLETE,),
}
"""The output modes that each mode of the sink allows. The first one is the default."""


@dataclass(frozen=True)
class RateLimits:
    """The limits on a stage's pace. None: no limit."""

    max_files_per_trigger: int | None = None
    """Maximum number of files that a batch reads from each stage upstream."""
    max_bytes_per_trigger: int | None = None
    """Approximate maximum of bytes that a batch reads from each stage upstream."""
    trigger_interval_ms: int | None = None
    """Minimum time from the beginning of one batch to the beginning of the next. None: a batch starts as soon as there is data."""
    max_channel_bytes: int | None = None
    """Maximum of staged bytes that the slowest consumer has not read. Beyond it, the stage's next batch waits."""


NO_LIMITS = RateLimits()


@dataclass(frozen=True, eq=False, kw_only=True)
class DeclaredStage:
    """A stage whose inputs are names that are not looked up yet. The other fields are as in :class:`Stage`."""

    name: StageName
    function: Function
    inputs: Mapping[str, str]
    """The name of a source, a static input or a stage, by argument."""
    sink: Sink | None
    event_time: str | None
    delay_ms: int | None
    output_mode: OutputMode
    limits: RateLimits
    conf: Mapping[str, str]
    begin: BeginAt = BeginAt.EARLIEST
    expectations: Expectations | None = None
    tolerance: Tolerance | None = None
    reads_tables: bool = False

    @property
    def sinks(self) -> tuple[Sink, ...]:
        """The sink of its rows and the sink of its violations."""
        violations = self.expectations.violations if self.expectations else None
        return tuple(sink for sink in (self.sink, violations) if sink is not None)

    def moved(self, address: Callable[[Sink], AddressTemplate]) -> "DeclaredStage":
        """Returns the stage with its tables at other addresses."""
        sink = replace(self.sink, address=address(self.sink)) if self.sink else None
        expectations = self.expectations
        if expectations is not None and expectations.violations is not None:
            violations = expectations.violations
            expectations = replace(expectations, violations=replace(violations, address=address(violations)))
        return replace(self, sink=sink, expectations=expectations)

    def placed(self, inputs: "Mapping[str, Source | Static | Stage]", publish: Publish | None, *, endless: bool) -> "Stage":
        """Returns the stage with its inputs looked up.

        Args:
            inputs: Inputs by argument.
            publish: Overrides the sink's own policy.
            endless: True if any input of the pipeline has no end. Then no sink may wait for the end of all.

        Raises:
            InvalidPipelineError: The sink waits for an end that never comes.
        """
        unbounded = any(
            (isinstance(node, Source) and not node.bounded) or (isinstance(node, Stage) and node.unbounded)
            for node in inputs.values()
        )
        return Stage(
            name=self.name,
            function=self.function,
            inputs=inputs,
            unbounded=unbounded,
            sink=self.sink.published(publish, unbounded=endless) if self.sink else None,
            event_time=self.event_time,
            delay_ms=self.delay_ms,
            output_mode=self.output_mode,
            limits=self.limits,
            conf=self.conf,
            begin=self.begin,
            expectations=self.expectations,
            tolerance=self.tolerance,
            reads_tables=self.reads_tables,
        )


@dataclass(frozen=True, eq=False, kw_only=True)
class Stage:
    """A stage in its graph. ``function`` is called with its input frames by argument name, and ``params`` if it names that."""

    name: StageName
    function: Function
    inputs: "Mapping[str, Source | Static | Stage]" = field(repr=False)
    """The inputs by argument, in the function's order."""
    unbounded: bool
    """True if a source upstream has no end. Then the stage has none either."""
    sink: Sink | None
    """None: only other stages read this one."""
    event_time: str | None
    """The event time column of the stage's result. None: inherited, where one column still carries the watermark."""
    delay_ms: int | None
    """Distance from the newest event time to the watermark of the stage's consumers. None: inherited."""
    output_mode: OutputMode
    limits: RateLimits
    conf: Mapping[str, str]
    """Spark settings of this stage's query alone."""
    begin: BeginAt = BeginAt.EARLIEST
    expectations: Expectations | None = None
    """None: every row is accepted."""
    tolerance: Tolerance | None = None
    """None: a row that the stage cannot process fails it."""
    reads_tables: bool = False
    """True if it gets the tables of the stages that it reads, as batch frames, instead of streams of their rows."""

    @property
    def streamed(self) -> "tuple[Stage, ...]":
        """Returns the stages whose rows it reads as streams."""
        return () if self.reads_tables else tuple(node for node in self.inputs.values() if isinstance(node, Stage))


def declare_stage(
    place: Place,
    function: Function,
    *,
    inputs: Mapping[str, str] | None,
    sink: DeltaSink | None = None,
    event_time: str | None = None,
    watermark_delay: str | None = None,
    output_mode: str | None = None,
    limits: RateLimits = NO_LIMITS,
    conf: Mapping[str, str] = NO_SETTINGS,
    begin: str = "earliest",
    expect: Mapping[str, str] | None = None,
    on_violation: str | None = None,
    violations: DeltaSink | None = None,
    tolerate: Tolerate | None = None,
    reads_tables: bool = False,
) -> DeclaredStage:
    """Returns a stage, checked as far as possible on its own; see :meth:`spark_jobs.Pipeline.stage`."""
    declared = None if sink is None else declare_sink(place, sink)
    if reads_tables and (declared is None or declared.mode is not SinkMode.COMPLETE):
        raise place.refused(
            "it reads tables, so each round computes all of its rows again.", 'Give it a sink with mode="complete".'
        )
    return DeclaredStage(
        name=StageName(place.name),
        function=function,
        inputs=_inputs(place, function, {} if inputs is None else inputs),
        sink=declared,
        event_time=event_time,
        delay_ms=check_event_time(place, event_time, watermark_delay),
        output_mode=_output_mode(place, output_mode, declared),
        limits=limits,
        conf=check_stage_settings(place, conf),
        begin=choice(place.refused, "begin", BeginAt, begin),
        expectations=declare_expectations(place, expect, on_violation, violations, declared),
        tolerance=declare_tolerance(place, tolerate, declared),
        reads_tables=reads_tables,
    )


def rate_limits(place: Place, *, trigger_interval: str | None, **numbers: int | None) -> RateLimits:
    """Returns a stage's limits, checked as far as possible without its neighbours; see :meth:`spark_jobs.Pipeline.stage`."""
    found = {
        name: None if value is None else whole_number(place.refused, name, value, least=1) for name, value in numbers.items()
    }
    if trigger_interval is None:
        return RateLimits(**found)
    return RateLimits(**found, trigger_interval_ms=interval_ms(place.refused, "trigger_interval", trigger_interval, least_ms=1))


def _output_mode(place: Place, output_mode: str | None, sink: Sink | None) -> OutputMode:
    allowed = _OUTPUT_MODES[sink.mode if sink else None]
    if output_mode is None:
        return allowed[0]
    if output_mode not in allowed:
        needs = f'a sink with mode="{sink.mode.value}"' if sink else "a stage without a sink"
        raise place.refused(
            f"output_mode={str(output_mode)!r} cannot be used with {needs}.",
            f"It may be: {', '.join(mode.value for mode in allowed)}.",
            output_mode=str(output_mode),
        )
    return OutputMode(output_mode)


def _inputs(place: Place, function: Function, renamed: Mapping[str, str]) -> Mapping[str, str]:
    """Returns the input's name by argument. An argument with a default is an input only if ``renamed`` names it."""
    takes = arguments(place, function)
    candidates = [argument for argument in takes if argument not in (PARAMS, SPARK)]
    if takes.get(SPARK):
        raise place.refused(
            "the function takes 'spark', which only sources and static inputs get.",
            "Remove it; a frame's session is frame.sparkSession.",
        )
    for argument, name in renamed.items():
        if argument not in candidates:
            problem = f"inputs= names {argument!r}, which is not an argument for an input."
            raise place.refused(problem, suggestion(str(argument), candidates), argument=str(argument))
        if not isinstance(name, str):
            raise place.refused(f"inputs= maps {argument!r} to {name!r}, which is not a name.", "Give the input's name.")
    inputs = {argument: renamed.get(argument, argument) for argument in candidates if takes[argument] or argument in renamed}
    return MappingProxyType(inputs)
