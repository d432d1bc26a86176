"""Finds the inputs of each flow of a project, and calls flows as stages."""

import traceback
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any
from uuid import uuid4

from pyspark.pipelines.flow import Flow
from pyspark.pipelines.output import MaterializedView, Output, TemporaryView
from pyspark.sql import DataFrame, SparkSession

from spark_jobs.api.functions import Function
from spark_jobs.declarative.columns import as_defined
from spark_jobs.declarative.definitions import Definitions
from spark_jobs.declarative.frames import FrameStandIn
from spark_jobs.declarative.names import Identity, parts_of
from spark_jobs.declarative.query_result import result_of
from spark_jobs.declarative.session import NeedsSparkError, ProjectSession, Read, answering, found_as_active
from spark_jobs.declarative.sql import ParserProcess, Relation, SqlError, SqlParser
from spark_jobs.protocol.errors import InvalidPipelineError, StreamPipelineError

_PACE = frozenset({"maxfilespertrigger", "maxbytespertrigger", "skipchangecommits"})
"""Options of a read that control its progress, not its rows."""
_BATCH = "INVALID_FLOW_QUERY_TYPE.BATCH_RELATION_FOR_STREAMING_TABLE"
"""Spark's name for a streaming table whose flow does not read a stream."""
_STREAM = "INVALID_FLOW_QUERY_TYPE.STREAMING_RELATION_FOR_MATERIALIZED_VIEW"
"""Spark's name for a materialized view whose flow reads a stream."""
_ALL_BEFORE = (
    "Read all inputs before the first use of values that only Spark knows, such as columns, a schema or a Spark setting."
)


@dataclass(frozen=True)
class FoundFlow:
    """A flow with its inputs."""

    flow: Flow
    inputs: tuple[str, ...]
    """The names of sources, static inputs and stages, each once."""
    conf: Mapping[str, str]
    """Spark settings of the flow and of the views that it reads."""
    aggregated: bool = False
    """True if its rows are groups, which change when rows are added."""
    streams: bool = True
    """False if it reads no table of the project and no stream: a materialized view that each run computes again."""
    no_stream_because: str = ""
    """The reason why each run computes a materialized view of tables of the project again. Empty if a stream keeps it."""


@dataclass
class FoundInputs:
    """The inputs of a project's flows."""

    outside: dict[str, Read] = field(default_factory=dict)
    """The reads that become sources or static inputs, by name."""

    def name_of(self, read: Read) -> str | None:
        """Returns the name of an input that :meth:`named` has named; None for any other read."""
        return next((name for name, known in self.outside.items() if known == read), None)

    def named(self, read: Read) -> str:
        """Returns the name of an input. Equal reads have one name."""
        known = self.name_of(read)
        if known is not None:
            return known
        name = read.name()
        if name.casefold() in {other.casefold() for other in self.outside}:
            name = f"{name}_{read.digest()}"
        self.outside[name] = read
        return name


class Flows:
    """The flows of a project.

    Args:
        definitions: Definitions of the project's files.
        session: The stand-in for a session that these files have as their variable ``spark``.
        process: Runs Spark's SQL parser before Spark starts.
    """

    def __init__(self, definitions: Definitions, session: ProjectSession, process: ParserProcess) -> None:
        self.definitions = definitions
        self.session = session
        self.process = process
        self.inputs = FoundInputs()

    def find(self, flow: Flow) -> FoundFlow:
        """Calls a flow to find its inputs.

        Raises:
            InvalidPipelineError: The flow fails, or reads something that no stage can read.
        """
        view = self._materialized(flow)
        finding = _Finding(self, flow, materialized=view)
        returned: Any = None
        try:
            with answering(finding), found_as_active(self.session):
                returned = flow.func()
        except NeedsSparkError as error:
            finding.all_found = False
            if view or not finding.streams:
                raise self.definitions.refused(
                    flow.source_code_location,
                    f"the flow {flow.name!r} asks for {error} {'while its inputs are looked for' if view else 'before it reads a stream'}.",
                    "Leave it out." if view else _ALL_BEFORE,
                ) from error
        except StreamPipelineError:
            raise
        except Exception as error:
            raise self._failed(flow, error) from error
        definitions, location = self.definitions, flow.source_code_location
        if finding.all_found and not isinstance(returned, FrameStandIn | DataFrame):
            raise definitions.refused(
                location, f"the flow {flow.name!r} returns {type(returned).__name__}, not a frame.", "Return a streaming frame."
            )
        if finding.all_found and not finding.streams and not view:
            raise definitions.refused(
                location,
                f"the flow {flow.name!r} reads no stream, which it needs as input.",
                "Read one of its inputs with spark.readStream.",
                condition=_BATCH,
            )
        whole = isinstance(returned, FrameStandIn) and returned.whole
        aggregated = isinstance(returned, FrameStandIn) and returned.aggregated
        names = tuple(dict.fromkeys(finding.inputs))
        reasons = {
            f"it also reads {finding.from_outside!r}, which is not of the project": finding.from_outside is not None,
            "it reads a table whose rows an AUTO CDC flow replaces": finding.reads_changed,
            "its query needs all rows": whole,
        }
        reason = next((reason for reason, holds in reasons.items() if holds and view and finding.streams), "")
        return FoundFlow(flow, names, finding.conf, aggregated, finding.streams, reason)

    def _materialized(self, flow: Flow) -> bool:
        return isinstance(self.definitions.find(flow.target), MaterializedView)

    def as_stage(self, found: FoundFlow) -> Function:
        """Returns the function of a flow's stage. It gets its inputs by name."""

        def run(**frames: DataFrame) -> Any:
            session = next(iter(frames.values())).sparkSession if frames else SparkSession.active()
            running = _Running(self, found, frames, session)
            with answering(running), found_as_active(self.session):
                return found.flow.func()

        return run

    def view(self, output: Output) -> Flow:
        """Returns the flow of a view."""
        return next(flow for flow in self.definitions.flows if self.definitions.find(flow.target) is output)

    def _failed(self, flow: Flow, error: Exception) -> InvalidPipelineError:
        file = flow.source_code_location.filename
        lines = [line for frame, line in traceback.walk_tb(error.__traceback__) if frame.f_code.co_filename == file]
        at = f" at line {lines[-1]}" if lines else ""
        return self.definitions.refused(
            flow.source_code_location,
            f"the flow {flow.name!r} failed{at} when its inputs were looked for: {type(error).__name__}: {error}.",
            "Correct that line. A flow reads its inputs and returns a frame made of them.",
        )


class _Finding:
    """Answers the reads of a flow while its inputs are searched."""

    def __init__(self, flows: Flows, flow: Flow, *, materialized: bool) -> None:
        self._flows = flows
        self._flow = flow
        self._materialized = materialized
        self._views: list[str] = []
        self._watermarks: dict[str, tuple[str, str]] = {}
        self.inputs: list[str] = []
        self.conf: dict[str, str] = dict(flow.spark_conf)
        self.streams = False
        self.from_outside: str | None = None
        """The first input from outside of the project."""
        self.reads_changed = False
        """True if it reads a table whose rows an AUTO CDC flow replaces."""
        self.all_found = True

    def dataset(self, name: str, read: Read) -> Any:
        output = self._flows.definitions.find(name)
        if output is None:
            return None
        if is_inlined(output, read):
            return self._of_view(output)
        if not read.streaming and not self._materialized:
            raise self._refused(
                f"reads the table {name!r} of the project as a batch, but the table grows until the pipeline ends.",
                f"Read it as a stream: spark.readStream.table({name!r}), or in SQL: STREAM {name}.",
                condition=_BATCH,
            )
        if isinstance(output, MaterializedView):
            raise self._refused(
                f"reads the materialized view {name!r} as a stream, but its rows change.", "Read the inputs of the view."
            )
        if self._flows.definitions.namespace.identity(output.name) in self._flows.definitions.changes:
            if not self._materialized:
                raise self._refused(
                    f"reads the table {name!r}, whose rows an AUTO CDC flow replaces.",
                    "Read the inputs of the AUTO CDC flow, or make a materialized view of the table.",
                )
            self.reads_changed = True
        options = sorted(option for option in read.options() if option not in _PACE)
        if read.calls[-1].method != "table" or options:
            what = f"with the option {options[0]!r}" if options else "by its change feed"
            raise self._refused(f"reads the table {name!r} of the project {what}.", f"Write spark.readStream.table({name!r}).")
        return self._frame(self._flows.definitions.namespace.short(output.name), streaming=True)

    def outside(self, read: Read) -> Any:
        name = self._flows.inputs.named(read)
        if self._materialized and read.streaming:
            raise self._refused(
                f"reads {name!r} as a stream, but a materialized view has the result for all rows.",
                "Read it with spark.read, or in a streaming table, and read that table here.",
                condition=_STREAM,
            )
        self.from_outside = self.from_outside or name
        return self._frame(name, streaming=read.streaming)

    def sql(self, text: str, *arguments: Any, **options: Any) -> Any:
        in_braces = sorted(set(options) - {"args"})
        if in_braces:
            raise self._refused(
                f"calls spark.sql with {', '.join(in_braces)} in braces.",
                "Name tables and views in the query, and write its values.",
            )
        try:
            query = self._flows.process.parser().query(text)
        except SqlError as error:
            raise self._refused(f"has SQL that cannot run here: {error.problem}", "Correct the query.") from error
        read: dict[Identity, FrameStandIn] = {}
        for relation in query.relations:
            frame = read_relation(self._flows.session, relation)
            if isinstance(frame, FrameStandIn):
                read[tuple(part.casefold() for part in parts_of(relation.name))] = frame
        return replace(result_of(query.plan, read, self._static()), direct=None, mark=self._mark)

    def attribute(self, name: str) -> Any:
        if name in ("createDataFrame", "range"):
            return lambda *arguments, **options: self._static()
        raise NeedsSparkError(name)

    def _static(self) -> FrameStandIn:
        return FrameStandIn(self._flows.session, mark=self._mark, grows=False)

    def _of_view(self, view: Output) -> Any:
        if view.name in self._views:
            raise self._refused(f"reads the view {view.name!r}, which reads itself.", "Let it read another table.")
        self._views.append(view.name)
        flow = self._flows.view(view)
        for key, value in flow.spark_conf.items():
            if self.conf.setdefault(key, value) != value:
                raise self._refused(
                    f"reads the view {view.name!r} with {key}={value!r}, but it has {key}={self.conf[key]!r} itself or of another view.",
                    "Give them the same value.",
                    condition="DUPLICATE_FLOW_SQL_CONF",
                )
        frame = flow.func()
        self._views.pop()
        return frame

    def _frame(self, name: str, *, streaming: bool) -> FrameStandIn:
        self.inputs.append(name)
        self.streams = self.streams or streaming
        return FrameStandIn(self._flows.session, name if streaming else None, mark=self._mark)

    def _mark(self, name: str | None, column: str, delay: str) -> None:
        if self._materialized:
            raise self._refused("sets a watermark, but no row of a materialized view is late.", "Remove it.")
        if name is None:
            raise self._refused(
                "sets a watermark on a frame that is not an input as it was read.",
                "Call withWatermark right after the read. Write a computed event time into a table of its own first.",
            )
        earlier = self._watermarks.setdefault(name, (column, delay))
        if earlier != (column, delay):
            raise self._refused(
                f"reads {name!r} with the watermarks {earlier!r} and {(column, delay)!r}.",
                "Set the same one wherever it is read.",
            )

    def _refused(self, problem: str, remedy: str, *, condition: str | None = None) -> InvalidPipelineError:
        return self._flows.definitions.refused(
            self._flow.source_code_location, f"the flow {self._flow.name!r} {problem}", remedy, condition=condition
        )


class _Running:
    """Answers the reads of a flow that runs as a stage."""

    def __init__(self, flows: Flows, found: FoundFlow, frames: Mapping[str, DataFrame], session: SparkSession) -> None:
        self._flows = flows
        self._flow = found.flow
        self._frames = frames
        self._session = session

    def dataset(self, name: str, read: Read) -> Any:
        output = self._flows.definitions.find(name)
        if output is None:
            return None
        if is_inlined(output, read):
            frame = self._flows.view(output).func()
            return as_defined(output, output.name, frame) if isinstance(output, MaterializedView) else frame
        return self._input(self._flows.definitions.namespace.short(output.name), name)

    def outside(self, read: Read) -> Any:
        return self._input(self._flows.inputs.name_of(read), read.name())

    def sql(self, text: str, *arguments: Any, **options: Any) -> Any:
        query = SqlParser.of(self._session).query(text)
        frames = [read_relation(self._flows.session, each) for each in query.relations]
        names = [f"spark_jobs_{uuid4().hex}" for _ in frames]
        try:
            for frame, name in zip(frames, names, strict=True):
                frame.createOrReplaceTempView(name)
            own = [parts_of(relation.name)[-1] for relation in query.relations]
            return self._session.sql(query.over(names, own), *arguments, **options)
        finally:
            for name in names:
                self._session.catalog.dropTempView(name)

    def attribute(self, name: str) -> Any:
        return getattr(self._session, name)

    def _unexpected(self, what: str) -> InvalidPipelineError:
        return self._flows.definitions.refused(
            self._flow.source_code_location,
            f"the flow {self._flow.name!r} reads {what!r}, which it did not read when its inputs were searched.",
            _ALL_BEFORE,
        )

    def _input(self, name: str | None, what: str) -> DataFrame:
        frame = self._frames.get(name or "")
        if frame is None:
            raise self._unexpected(what)
        return frame


def is_inlined(output: Output, read: Read) -> bool:
    """Returns True if a view is a part of each flow that reads it. A materialized view has the same rows as its query."""
    return isinstance(output, TemporaryView) or (isinstance(output, MaterializedView) and not read.streaming)


def read_relation(spark: ProjectSession, relation: Relation) -> Any:
    """Returns the frame of a relation in SQL, read as a flow in Python would read it."""
    reader, parts = spark.readStream if relation.streaming else spark.read, parts_of(relation.name)
    file = len(parts) == 2 and "/" in parts[1]  # such as parquet.`/data/incoming`
    frame = reader.format(parts[0]).load(parts[1]) if file else reader.table(relation.name)
    return frame if relation.watermark is None else frame.withWatermark(*relation.watermark)
