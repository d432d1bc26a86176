"""The pipeline that a user declares with decorators. The decorators return the functions unchanged."""

import dataclasses
import importlib
import os
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Literal, TypeVar, Unpack, overload

from pydantic import BaseModel

from spark_jobs.api.address import AddressTemplate
from spark_jobs.api.checkpoints import CheckpointSettings, Refusing, declare_checkpoints
from spark_jobs.api.clocked_stages import is_clocked
from spark_jobs.api.expectations import OnViolation
from spark_jobs.api.functions import Function, function_name, is_rerun
from spark_jobs.api.graph import Graph, build_graph
from spark_jobs.api.names import check_name
from spark_jobs.api.parameters import BoundParameters, bind, schema
from spark_jobs.api.refusals import Mistakes, Place, declaration, suggestion
from spark_jobs.api.restarts import OnStageFailure, RestartStrategy, declare_restart
from spark_jobs.api.settings import NO_SETTINGS, check_settings
from spark_jobs.api.shared import Declaration
from spark_jobs.api.sink import DeltaSink
from spark_jobs.api.sound_parts import sound_graph
from spark_jobs.api.source import AfterPublication, OnGone, Source, Static, declare_source, declare_static
from spark_jobs.api.stage import DeclaredStage, OutputMode, declare_stage, rate_limits
from spark_jobs.api.tolerance import Tolerate
from spark_jobs.protocol.checkpointing import CheckpointOverrides, overridden
from spark_jobs.protocol.documents import OnEnd, Publish, StartResponse
from spark_jobs.protocol.errors import InvalidPipelineError
from spark_jobs.protocol.ids import PipelineName, RunId
from spark_jobs.protocol.options import choice
from spark_jobs.protocol.start_requests import StartArguments, StartOptions, read_start_arguments, takes_start_arguments
from spark_jobs.storage.open import open_place

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

F = TypeVar("F", bound=Function)

_CHECKPOINT = CheckpointSettings()


class Pipeline:
    """A set of stages that are checkpointed together and published together.

    Every method that declares something returns the function unchanged, so that it can still be called, also on batch frames.
    If a notebook's cell runs again, its declarations replace the earlier ones.

    Args:
        name: Name of the pipeline and of its home: a letter, then at most 63 letters, digits or ``_``.
        params: A pydantic model. Functions get its validated instance as ``params``.
        on_end: What happens when the inputs have ended. ``"drain"`` flushes everything, and the pipeline is finished. ``"suspend"``
            flushes nothing, and the next run goes on with the rows that arrived since; not with an unbounded source.
        conf: Spark settings of the application.
        checkpoint: When checkpoints are taken while the stages run, and how many are kept.
        restart: How often a failed stage or a failed driver is started again, and how long it waits. The default with an unbounded
            input is ``RestartStrategy.exponential_delay()``. If all inputs end, a failure ends the run by default. Whoever started the
            run, such as an Airflow task with retries, starts it again.
        on_stage_failure: What happens when a stage has failed permanently: its restarts are exhausted, or no restart can heal its error.
            ``"isolate"`` is the default with an unbounded input. The stage stays failed until the next start, its consumers get no more
            rows, and the other stages run on and publish. The run ends when no stage can work. ``"fail"`` is the default if all inputs
            end, and then the only choice, because a round is complete only with all stages. The run ends with the stage's error.

    Raises:
        InvalidPipelineError: An argument is not allowed. Every method raises it, too. Nothing was declared.
    """

    def __init__(
        self,
        name: str,
        *,
        params: type[BaseModel] | None = None,
        on_end: OnEnd | Literal["drain", "suspend"] = "drain",
        conf: Mapping[str, str] = NO_SETTINGS,
        checkpoint: CheckpointSettings = _CHECKPOINT,
        restart: RestartStrategy | None = None,
        on_stage_failure: OnStageFailure | Literal["fail", "isolate"] | None = None,
    ) -> None:
        place = Place(str(name))
        self.name = PipelineName(check_name(place, name))
        if not _is_model(params):
            raise place.refused(
                f"params={params!r} is not a pydantic model.", "Give a class that derives from pydantic.BaseModel."
            )
        self.params = params
        self.on_end = choice(place.refused, "on_end", OnEnd, on_end)
        self.conf = check_settings(place, conf)
        self.checkpoint = checkpoint
        self._checkpointing = declare_checkpoints(place, checkpoint)
        self.restart = restart
        self._restart = None if restart is None else declare_restart(place, restart)
        self.on_stage_failure = (
            None if on_stage_failure is None else choice(place.refused, "on_stage_failure", OnStageFailure, on_stage_failure)
        )
        self._declarations: dict[str, Declaration] = {}
        self._mistaken: set[str] = set()

    def __repr__(self) -> str:
        return f"Pipeline({self.name!r})"

    def source(
        self,
        *,
        bounded: bool,
        event_time: str | None = None,
        watermark_delay: str | None = None,
        hold_watermark: bool | None = None,
        shared: bool = False,
        after: str | None = None,
        event_time_zone: str | None = None,
        after_publication: AfterPublication | Literal["archive", "delete"] | None = None,
        archive: str | os.PathLike[str] | None = None,
        on_gone: OnGone | Literal["fail", "skip"] = "fail",
        name: str | None = None,
    ) -> Callable[[F], F]:
        """Declares a stream. The function may take ``spark`` and ``params``, and returns the frame of ``spark.readStream``.

        Args:
            bounded: True: the stream has an end, which is pinned when a round begins. False: it has none, and the pipeline runs until it is
                stopped, drained or cancelled.
            event_time: The column with the event time. The runtime sets the watermark; the function must not. A stage may set another one.
            watermark_delay: Distance from the newest event time to the watermark, such as ``"30 minutes"``. Rows behind the watermark are
                late. Without a delay no row of a bounded source is late: the watermark waits for its end. An unbounded source with
                ``event_time`` needs a delay.
            hold_watermark: With a delay, for a bounded source: the watermark stays back within a round, and moves at its end.
            shared: For an unbounded source: an additional stage, ``<name>_shared``, reads it and stages its rows for all stages that name
                it. At an aligned checkpoint these stages have all read the same rows. Otherwise each stage reads the source on its own.
            after: For an unbounded source of a Delta table: the bounded source of the same table that it continues. It begins with the
                version after the pinned end of that source, so that the two together have each row once.
            event_time_zone: The time zone of an event time without one (``TIMESTAMP_NTZ``), such as ``"Europe/Berlin"``. Stages get the
                column as timestamps in that zone.
            after_publication: For a bounded source of files: what happens to the files of a round when all tables have its rows,
                ``"archive"`` or ``"delete"``. By default they stay.
            archive: With ``"archive"``: the directory for the files, with their paths below the source's. It may have parameters.
            on_gone: What happens when rows that a stage has not read are lost (deleted files, vacuumed tables, expired records, a Delta
                version that changes rows). ``"fail"``: the run fails, or is not started. ``"skip"``: the stages go on without them, and
                the loss ledger records them: ``spark-jobs losses``.
            name: Name of the source; by default that of the function.
        """

        def without_options(place: Place, function: Function) -> Declaration:
            return declare_source(place, function, bounded=bounded is not False)

        def declare(function: F) -> F:
            with declaration(lambda: self._keep("source", function, name, without_options)):
                place = self._place("source", function, name)
                source = declare_source(
                    place,
                    function,
                    bounded=bounded,
                    event_time=event_time,
                    watermark_delay=watermark_delay,
                    hold_watermark=hold_watermark,
                    shared=shared,
                    after=after,
                    event_time_zone=event_time_zone,
                    after_publication=after_publication,
                    archive=archive,
                    on_gone=on_gone,
                )
                self._add(place, source)
            return function

        return declare

    @overload
    def static(self, function: F, /) -> F: ...

    @overload
    def static(
        self, function: None = None, /, *, refresh: Literal["round", "unpinned"] = "round", name: str | None = None
    ) -> Callable[[F], F]: ...

    def static(
        self, function: F | None = None, /, *, refresh: Literal["round", "unpinned"] = "round", name: str | None = None
    ) -> F | Callable[[F], F]:
        """Declares a table that stages join with. The function may take ``spark`` and ``params`` and returns a batch frame.

        Args:
            function: Set if the decorator is written without parentheses.
            refresh: ``"round"``: one Delta version for a whole round, pinned by its first attempt. In a pipeline with an unbounded source
                each attempt pins the newest version. ``"unpinned"``: each batch reads the version that it finds.
            name: Name of the input; by default that of the function.
        """

        def declare(function: F) -> F:
            with declaration(lambda: self._keep("static", function, name, declare_static)):
                place = self._place("static", function, name)
                self._add(place, declare_static(place, function, refresh=refresh))
            return function

        return declare if function is None else declare(function)

    @overload
    def stage(self, function: F, /) -> F: ...

    @overload
    def stage(
        self,
        function: None = None,
        /,
        *,
        sink: DeltaSink | None = None,
        inputs: Mapping[str, str] | None = None,
        event_time: str | None = None,
        watermark_delay: str | None = None,
        output_mode: OutputMode | Literal["append", "update", "complete"] | None = None,
        max_files_per_trigger: int | None = None,
        max_bytes_per_trigger: int | None = None,
        trigger_interval: str | None = None,
        max_channel_bytes: int | None = None,
        conf: Mapping[str, str] = NO_SETTINGS,
        begin: Literal["earliest", "now"] = "earliest",
        expect: Mapping[str, str] | None = None,
        on_violation: OnViolation | Literal["fail", "drop", "divert"] | None = None,
        violations: DeltaSink | None = None,
        tolerate: Tolerate | None = None,
        reads_tables: bool = False,
        name: str | None = None,
    ) -> Callable[[F], F]: ...

    def stage(
        self,
        function: F | None = None,
        /,
        *,
        sink: DeltaSink | None = None,
        inputs: Mapping[str, str] | None = None,
        event_time: str | None = None,
        watermark_delay: str | None = None,
        output_mode: OutputMode | Literal["append", "update", "complete"] | None = None,
        max_files_per_trigger: int | None = None,
        max_bytes_per_trigger: int | None = None,
        trigger_interval: str | None = None,
        max_channel_bytes: int | None = None,
        conf: Mapping[str, str] = NO_SETTINGS,
        begin: Literal["earliest", "now"] = "earliest",
        expect: Mapping[str, str] | None = None,
        on_violation: OnViolation | Literal["fail", "drop", "divert"] | None = None,
        violations: DeltaSink | None = None,
        tolerate: Tolerate | None = None,
        reads_tables: bool = False,
        name: str | None = None,
    ) -> F | Callable[[F], F]:
        """Declares a streaming query. The function's arguments are its inputs, by name: sources, static inputs and stages.

        It may take ``params``, too. An argument with a default value is an input only if ``inputs`` names it.

        ``withWatermark`` on an argument sets the watermark of that input for this stage, instead of the declared one. The runtime moves it.

        A stage whose inputs are all static is no stream. Its sink has ``mode="complete"``, and each round computes the whole table again.

        Args:
            function: Set if the decorator is written without parentheses.
            sink: The table of its rows. None: only other stages read them.
            inputs: Names of the inputs by argument, if they differ: ``{"events": "eu_events"}``.
            event_time: The event time column of the result, if it cannot be inherited.
            watermark_delay: Distance from the newest event time to the watermark of its consumers.
            output_mode: What a batch gives, as in Spark: ``"append"``; ``"update"`` into a sink with ``mode="upsert"``; ``"complete"``, the
                default if the sink has ``mode="complete"``.
            max_files_per_trigger: Maximum number of files that a batch reads from each stage upstream.
            max_bytes_per_trigger: Approximate maximum of bytes that a batch reads from each stage upstream.
            trigger_interval: Time between the beginnings of two batches, such as ``"10 seconds"``; only with an unbounded source upstream.
                A stage whose inputs are all static computes its table again at this interval, and is unbounded.
            max_channel_bytes: Maximum of bytes that it may be ahead of the slowest stage that reads it; only if its readers never end.
            conf: Spark settings of this query alone.
            begin: Where a stage that is new in a running pipeline begins to read its sources: at their beginning, or after the rows that
                the pipeline has read before.
            expect: SQL conditions on the result's columns, by name, that each row must fulfil, such as ``{"positive": "amount > 0"}``. Null
                does not fulfil a condition. ``current_watermark`` is the watermark of the inputs before the batch.
            on_violation: What happens to a row that violates one: ``"fail"`` fails its batch; ``"drop"`` counts it and leaves it out;
                ``"divert"``, the default with ``violations``, writes it to that table.
            violations: The table of diverted rows. It has the stage's columns, ``violated_expectations``, ``violated_in_batch`` and
                ``violated_at``.
            tolerate: Lets the stage continue without rows that fail its batch each time.
            reads_tables: Gives the function the tables of the stages that it reads, as batch frames with the rows of this checkpoint,
                instead of streams of their rows. Each round computes the whole table again when these stages have ended. All inputs are
                stages with a table, or static. The sink has ``mode="complete"``.
            name: Name of the stage; by default that of the function.
        """

        def without_options(place: Place, function: Function) -> Declaration:
            return declare_stage(place, function, inputs=inputs)

        def declare(function: F) -> F:
            with declaration(lambda: self._keep("stage", function, name, without_options)):
                place = self._place("stage", function, name)
                stage = declare_stage(
                    place,
                    function,
                    inputs=inputs,
                    sink=sink,
                    event_time=event_time,
                    watermark_delay=watermark_delay,
                    output_mode=output_mode,
                    limits=rate_limits(
                        place,
                        trigger_interval=trigger_interval,
                        max_files_per_trigger=max_files_per_trigger,
                        max_bytes_per_trigger=max_bytes_per_trigger,
                        max_channel_bytes=max_channel_bytes,
                    ),
                    conf=conf,
                    begin=begin,
                    expect=expect,
                    on_violation=on_violation,
                    violations=violations,
                    tolerate=tolerate,
                    reads_tables=reads_tables,
                )
                self._add(place, stage)
            return function

        return declare if function is None else declare(function)

    def graph(
        self,
        *,
        on_end: OnEnd | Literal["drain", "suspend"] | None = None,
        publish: Publish | Literal["final", "every_checkpoint", "external"] | None = None,
        checkpoint: CheckpointOverrides | None = None,
    ) -> Graph:
        """Returns the checked graph of the declarations.

        Args:
            on_end: Overrides the pipeline's own setting for one run.
            publish: Overrides the policies of all sinks for one run.
            checkpoint: Overrides some of the pipeline's checkpoint settings for one run.

        Raises:
            InvalidPipelineError: The graph has an unknown input, a cycle, a part that nothing uses, an unknown parameter in a path, ...
        """
        mistakes = Mistakes()
        graph = self.sound_graph(mistakes, on_end=on_end, publish=publish, checkpoint=checkpoint)
        mistakes.check()
        assert graph is not None
        return graph

    def sound_graph(
        self,
        mistakes: Mistakes,
        *,
        on_end: OnEnd | Literal["drain", "suspend"] | None = None,
        publish: Publish | Literal["final", "every_checkpoint", "external"] | None = None,
        checkpoint: CheckpointOverrides | None = None,
    ) -> Graph | None:
        """Returns the graph of the correct parts and adds the errors to ``mistakes``; see :func:`spark_jobs.api.sound_parts.sound_graph`.

        Raises:
            InvalidPipelineError: An argument is not allowed.
        """
        chosen = self.on_end if on_end is None else choice(Place(self.name).refused, "on_end", OnEnd, on_end)
        override = None if publish is None else choice(Place(self.name).refused, "publish", Publish, publish)
        checkpointing = overridden(Refusing(Place(self.name), "checkpoint"), self._checkpointing, checkpoint)

        def build(parts: Mapping[str, Declaration], mistaken: Collection[str] | None) -> Graph:
            settings = (self.params, chosen, self.conf, override, checkpointing, self._restart, self.on_stage_failure)
            return build_graph(self.name, parts, *settings, mistaken=mistaken)

        return sound_graph(build, self._declarations, self._mistaken, mistakes)

    def bind(self, params: Mapping[str, Any] | BaseModel, *, environment: Mapping[str, str] = os.environ) -> BoundParameters:
        """Validates parameters.

        Args:
            params: Values by field name, as texts (lists and objects as JSON) or typed; or an instance of the model.
            environment: Environment variables with the secrets, as ``SPARK_JOBS_PARAM_<NAME>``.

        Raises:
            InvalidParameterError: A field has a bad value. The error names every bad field with its reason, and all existing fields.
        """
        return bind(Place(self.name), self.params, params, environment)

    def schema(self) -> dict[str, Any]:
        """Returns the JSON schema of the parameters, without secrets."""
        return schema(self.params)

    @takes_start_arguments
    def run(
        self,
        *,
        spark: "SparkSession",
        home: str | os.PathLike[str],
        params: Mapping[str, Any] | BaseModel = NO_SETTINGS,
        run_id: str | None = None,
        work_root: str | os.PathLike[str] | None = None,
        **options: Unpack[StartArguments],
    ) -> StartResponse:
        """Runs the pipeline in this process, as ``spark-jobs run`` does: for notebooks.

        Returns when the final checkpoint is complete and the tables are published by policy. If somebody stops the pipeline, the checkpoint
        of the stop is the final one. Both are durable then. The session stays as it is. If a run was interrupted, a second call goes on
        with it.

        Args:
            spark: A classic (not a Spark Connect) session with Delta.
            home: Directory of the pipeline's documents; created if missing.
            params: As for :meth:`bind`.
            run_id: Id of the run. The same id gets the same answer while it is among the newest 1,000. By default a new one.
            work_root: On a cluster with a home in a store: a place in a store, or a directory that driver and executors share.
            options: The options of the start.

        Raises:
            RejectedError: The pipeline, a parameter, the session or the home does not allow it. Nothing was written.
            StreamPipelineError: The run did not reach its end. The error says whether it can go on.
        """
        launch = importlib.import_module("spark_jobs.runtime.launch")  # the driver imports the API, never the reverse
        fields = read_start_arguments(options, lambda place: open_place(place).url)
        chosen = StartOptions(run=None if run_id is None else RunId(run_id), **fields)
        work = None if work_root is None else os.fspath(work_root)
        response: StartResponse = launch.launch_in_session(self, os.fspath(home), params, chosen, spark, work)
        return response

    def rewired(self, inputs: Mapping[str, Function], tables: str) -> "Pipeline":
        """Returns a copy for tests: other functions read the inputs, and the tables are in another place.

        A source that another function reads is bounded, because the rows of a test end. Stages run without rate limits.

        Args:
            inputs: Functions to read inputs with, by source or static input. All other inputs stay as they are.
            tables: A directory. Each sink's table is in it, under the sink's name.

        Raises:
            InvalidPipelineError: A name is not an input of the pipeline.
        """
        copy = Pipeline(
            self.name,
            params=self.params,
            on_end=self.on_end,
            conf=self.conf,
            checkpoint=self.checkpoint,
            restart=self.restart,
            on_stage_failure=None if self.on_stage_failure is OnStageFailure.ISOLATE else self.on_stage_failure,
        )
        copy._declarations = dict(self._declarations)
        known = [name for name, part in copy._declarations.items() if not isinstance(part, DeclaredStage)]
        for name, function in inputs.items():
            part = copy._declarations.get(name)
            if not isinstance(part, Source | Static):
                raise Place(self.name).refused(f"{name!r} is not one of its inputs.", suggestion(name, known), input=name)
            if isinstance(part, Source):
                copy._declarations[name] = dataclasses.replace(
                    part, function=function, bounded=True, after=None, after_publication=None
                )
            else:
                copy._declarations[name] = dataclasses.replace(part, function=function)
        declared = copy._declarations
        copy._declarations = {
            name: part if isinstance(part, DeclaredStage) and is_clocked(part, declared) else _for_test(part)
            for name, part in declared.items()
        }
        directory = tables.replace("{", "{{").replace("}", "}}")
        for name, part in copy._declarations.items():
            if isinstance(part, DeclaredStage):
                copy._declarations[name] = part.moved(lambda sink: AddressTemplate(f"{directory}/{sink.name}", (), named=False))
        return copy

    def _place(self, kind: str, function: object, name: str | None) -> Place:
        chosen = function_name(function, name)
        place = Place(self.name, kind, str(chosen))
        check_name(place, chosen)
        return place

    def _keep(
        self, kind: str, function: Function, name: str | None, without_options: Callable[[Place, Function], Declaration]
    ) -> None:
        """Keeps a part with a mistaken declaration without its options, if the rest is correct; see :meth:`sound_graph`."""
        self._mistaken.add(str(function_name(function, name)))
        with suppress(InvalidPipelineError):
            place = self._place(kind, function, name)
            self._declarations.setdefault(place.name, without_options(place, function))

    def _add(self, place: Place, part: Declaration) -> None:
        """Adds a declaration. A second declaration of the same function replaces the first."""
        same = {known.casefold(): known for known in self._declarations}.get(place.name.casefold())
        if same is not None and not (same == place.name and is_rerun(self._declarations[same].function, part.function)):
            raise place.refused(f"{same!r} is declared already.", 'Give one of them another name with name="...".', declared=same)
        self._declarations[place.name] = part


def _for_test(part: Declaration) -> Declaration:
    """Returns the part without limits on the pace of a stage."""
    if not isinstance(part, DeclaredStage):
        return part
    limits = dataclasses.replace(part.limits, trigger_interval_ms=None, max_channel_bytes=None)
    return dataclasses.replace(part, limits=limits)


def _is_model(params: object) -> bool:
    return params is None or (isinstance(params, type) and issubclass(params, BaseModel))
