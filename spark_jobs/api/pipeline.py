"""The pipeline: what a user declares, by decorators that leave the functions as they are."""

import dataclasses
import importlib
import os
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Literal, TypeVar, overload

from pydantic import BaseModel

from spark_jobs.api.address import AddressTemplate
from spark_jobs.api.checkpoints import CheckpointSettings, Refusing, declare_checkpoints
from spark_jobs.api.expectations import OnViolation
from spark_jobs.api.functions import Function, function_name, is_rerun
from spark_jobs.api.graph import Graph, build_graph
from spark_jobs.api.names import check_name
from spark_jobs.api.parameters import BoundParameters, bind, schema
from spark_jobs.api.refusals import Mistakes, Place, choice, declaration, suggestion
from spark_jobs.api.restarts import OnStageFailure, RestartStrategy, declare_restart
from spark_jobs.api.restore import checked_partitions, restore_from
from spark_jobs.api.settings import NO_SETTINGS, check_settings
from spark_jobs.api.shared import Declaration
from spark_jobs.api.sink import DeltaSink
from spark_jobs.api.sound_parts import sound_graph
from spark_jobs.api.source import AfterPublication, OnGone, Source, Static, declare_source, declare_static
from spark_jobs.api.stage import DeclaredStage, OutputMode, declare_stage, rate_limits
from spark_jobs.api.tolerance import Tolerate
from spark_jobs.protocol.checkpointing import CheckpointOverrides, overridden
from spark_jobs.protocol.documents import OnEnd, OnRewind, Publish, StartResponse
from spark_jobs.protocol.errors import InvalidPipelineError
from spark_jobs.protocol.ids import PipelineName, RunId

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

F = TypeVar("F", bound=Function)

_CHECKPOINT = CheckpointSettings()


class Pipeline:
    """A set of stages that are checkpointed together and published together.

    Every method that declares something returns the function unchanged: it can still be called, also on batch frames.
    Running a notebook's cell again replaces what it declared.

    Args:
        name: Whose home it is; a letter, then at most 63 letters, digits or ``_``.
        params: A pydantic model. Its validated instance is what functions are given as ``params``.
        on_end: What happens when the inputs have ended: ``"drain"`` flushes everything and the pipeline is finished;
            ``"suspend"`` flushes nothing, and the next run goes on with what arrived since; not with an unbounded source.
        conf: Spark settings of the application.
        checkpoint: When checkpoints are taken while the stages run, and how many are kept.
        restart: How often a failed stage, or a failed driver, is started again, and how long it waits. By default
            ``RestartStrategy.exponential_delay()`` if an input is unbounded. If all inputs end, a failure ends the run by default: whoever
            has started it, such as an Airflow task with its retries, starts it again.
        on_stage_failure: What follows when a stage has failed for good: its restarts are exhausted, or no restart can heal its error.
            ``"isolate"``, the default if an input is unbounded: the stage stays failed until the next start, what it feeds gets nothing
            more, and the other stages run on and publish. The run ends once no stage can work. ``"fail"``, the default if all inputs
            end: the run ends with the stage's error. If all inputs end it is the only choice: no round is complete without the stage.

    Raises:
        InvalidPipelineError: An argument is not allowed; from every method too. Nothing was declared.
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
        self.on_end = choice(place, "on_end", OnEnd, on_end)
        self.conf = check_settings(place, conf)
        self.checkpoint = checkpoint
        self._checkpointing = declare_checkpoints(place, checkpoint)
        self.restart = restart
        self._restart = None if restart is None else declare_restart(place, restart)
        self.on_stage_failure = (
            None if on_stage_failure is None else choice(place, "on_stage_failure", OnStageFailure, on_stage_failure)
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
        """Declares a stream. The function may take ``spark`` and ``params`` and returns what ``spark.readStream`` gives.

        Args:
            bounded: True: it has an end, which is pinned when a round begins. False: it has none, and the pipeline runs until it
                is stopped, drained or cancelled.
            event_time: The column with the event time. The runtime sets the watermark; the function must not.
            watermark_delay: How far the watermark stays behind the newest event time, such as ``"30 minutes"``; later rows are
                late. Without it no row of a bounded source is late: the watermark stays back until its end. An unbounded one with
                ``event_time`` has to give it.
            hold_watermark: With a delay, for a bounded source: the watermark stays back within a round, and moves at its end.
            shared: Of an unbounded source: one stage more reads it, ``<name>_shared``, and stages its rows for all that name it.
                At an aligned checkpoint they have all read the same rows; without it each reads the source on its own.
            after: Of an unbounded source over a Delta table: the bounded source over the same table that it goes on from. It begins
                with the version after that one's pinned end, so that the two together have each row once.
            event_time_zone: The time zone of an event time that has none of its own (``TIMESTAMP_NTZ``), such as ``"Europe/Berlin"``.
                Stages are given the column as the moments that it means there.
            after_publication: Of a bounded source of files: what becomes of the files of a round, once all tables have its rows:
                ``"archive"`` or ``"delete"``. Unless given they stay.
            archive: With ``"archive"``: the directory that they go to, with their paths below the source's. It may have parameters.
            on_gone: What follows when rows are gone for good that a stage has not read (deleted files, vacuumed tables, expired
                records, a Delta version that changes rows). ``"fail"``: the run fails, or is not started. ``"skip"``: the stages go on
                without them, and they are in the loss ledger: ``spark-jobs losses``.
            name: The function's, unless given.
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
            function: Given where the decorator stands without parentheses.
            refresh: ``"round"``: one Delta version for a whole round, pinned by its first attempt; beside an unbounded source each
                attempt pins the newest version. ``"unpinned"``: each batch reads what it finds.
            name: The function's, unless given.
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
        name: str | None = None,
    ) -> F | Callable[[F], F]:
        """Declares a streaming query. The function's arguments are its inputs, by name: sources, static inputs and stages.

        It may take ``params`` too. An argument with a default value is an input only where ``inputs`` names it.

        Args:
            function: Given where the decorator stands without parentheses.
            sink: The table of its rows. None: only other stages read them.
            inputs: Which input an argument is, where the names differ: ``{"events": "eu_events"}``.
            event_time: The event time column of the result, where it cannot be inherited.
            watermark_delay: How far the watermark of its consumers stays behind.
            output_mode: What a batch gives, as in Spark: ``"append"``; ``"update"`` into a sink with ``mode="upsert"``;
                ``"complete"``, the default where the sink has ``mode="complete"``.
            max_files_per_trigger: How many files a batch reads from each stage before it, at most.
            max_bytes_per_trigger: How many bytes a batch reads from each stage before it, about.
            trigger_interval: Between the beginnings of two batches, such as ``"10 seconds"``; only behind an unbounded source.
            max_channel_bytes: How far it may be ahead of the slowest stage that reads it; only where those never end.
            conf: Spark settings of this query alone.
            begin: Where the stage begins to read its sources if it is new in a pipeline that goes on: at their beginning, or after
                what the pipeline has read of them before.
            expect: By name a SQL condition on the result's columns that each row must fulfil, such as ``{"positive": "amount > 0"}``.
                Null does not fulfil it.
            on_violation: What becomes of a row that does not: ``"fail"``, its batch fails; ``"drop"``, it is counted and left out;
                ``"divert"``, the default with ``violations``, it goes into that table.
            violations: The table of diverted rows. It has the stage's columns, ``violated_expectations``, ``violated_in_batch`` and
                ``violated_at``.
            tolerate: Lets the stage go on without rows with which its batch fails each time. Only for a stage whose streams are all
                other stages.
            name: The function's, unless given.
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
        """The checked graph of what is declared so far.

        Args:
            on_end: Instead of the pipeline's own, for one run.
            publish: Instead of every sink's policy, for one run.
            checkpoint: Instead of some of the pipeline's checkpoint settings, for one run.

        Raises:
            InvalidPipelineError: An unknown input, a cycle, a part that nothing uses, an unknown parameter in a path, ...
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
        """The graph of what is right: see :func:`spark_jobs.api.sound_parts.sound_graph`. ``mistakes`` is given what is wrong.

        Raises:
            InvalidPipelineError: An argument is not allowed.
        """
        chosen = self.on_end if on_end is None else choice(Place(self.name), "on_end", OnEnd, on_end)
        override = None if publish is None else choice(Place(self.name), "publish", Publish, publish)
        checkpointing = overridden(Refusing(Place(self.name), "checkpoint"), self._checkpointing, checkpoint)

        def build(parts: Mapping[str, Declaration], mistaken: Collection[str] | None) -> Graph:
            settings = (self.params, chosen, self.conf, override, checkpointing, self._restart, self.on_stage_failure)
            return build_graph(self.name, parts, *settings, mistaken=mistaken)

        return sound_graph(build, self._declarations, self._mistaken, mistakes)

    def bind(self, params: Mapping[str, Any] | BaseModel, *, environment: Mapping[str, str] = os.environ) -> BoundParameters:
        """Validates parameters.

        Args:
            params: Values by field name, as texts (lists and objects as JSON) or typed; or the model's instance.
            environment: Where secrets are looked up, as ``SPARK_JOBS_PARAM_<NAME>``.

        Raises:
            InvalidParameterError: Names every bad field with its reason, and the fields that there are.
        """
        return bind(Place(self.name), self.params, params, environment)

    def schema(self) -> dict[str, Any]:
        """The JSON schema of the parameters, without secrets."""
        return schema(self.params)

    def run(
        self,
        *,
        spark: "SparkSession",
        home: str | os.PathLike[str],
        params: Mapping[str, Any] | BaseModel = NO_SETTINGS,
        run_id: str | None = None,
        on_end: OnEnd | Literal["drain", "suspend"] | None = None,
        publish: Publish | Literal["final", "every_checkpoint", "external"] | None = None,
        fresh: bool = False,
        on_rewind: OnRewind | Literal["refuse", "keep", "replace"] = "refuse",
        adopt_offsets: Mapping[str, str | os.PathLike[str]] = NO_SETTINGS,
        restore: str | os.PathLike[str] | None = None,
        allow_drained: bool = False,
        allow_dropped: bool = False,
        take_pending: bool = False,
        state_partitions: int | None = None,
        new_sources: Sequence[str] = (),
        accept_data_loss: Sequence[str] = (),
        workspace: str | os.PathLike[str] | None = None,
    ) -> StartResponse:
        """Runs the pipeline in this process, as ``spark-jobs run`` does: for notebooks.

        Returns when the final checkpoint, or the checkpoint of a stop that somebody else has asked for, is complete and the tables are
        published by policy; both are durable. The session stays as it is. An interrupted run goes on when this is called again.

        Args:
            spark: A classic (not a Spark Connect) session with Delta.
            home: Where the pipeline's documents are; made if missing.
            params: As for :meth:`bind`.
            run_id: Who asks; the same one gets the same answer, while it is among the newest 1,000. A new one unless given.
            on_end: Instead of the pipeline's own, for the round that this run begins.
            publish: Instead of every sink's policy, for that round.
            fresh: Begin anew instead of going on.
            on_rewind: What becomes of rows that are public when a run begins anew.
            adopt_offsets: By source the checkpoint directory of a plain Spark query, after whose last batch it goes on; only
                where the home is empty, or with ``fresh``.
            restore: The directory of the savepoint to begin with, instead of going on.
            allow_drained: Whether that may be one that was taken after a drain.
            allow_dropped: Whether the state of stages that the pipeline no longer has may be left behind.
            take_pending: Whether rows that it holds staged, for sinks that keep their table, are published first.
            state_partitions: In how many partitions the state is kept from then on; None: in as many as it is.
            new_sources: Sources that the run reads from their beginning once, however often it is started. The state of the stages
                stays. Such a source may be another one than before, for example a table that was dropped and created again.
            accept_data_loss: Sources of which something may be gone for good, such as expired records or deleted files: the run leaves
                out what is gone, and records it. What is there is read.
            workspace: For the first start on a cluster with a home in a store: a directory that driver and executors share.

        Raises:
            RejectedError: The pipeline, a parameter, the session or the home does not allow it. Nothing was written.
            StreamPipelineError: It did not get to its end; the error says whether it can go on.
        """
        launch = importlib.import_module("spark_jobs.runtime.launch")  # the driver imports the API, never the reverse
        options = launch.RunOptions(
            run=None if run_id is None else RunId(run_id),
            on_end=None if on_end is None else choice(Place(self.name), "on_end", OnEnd, on_end),
            publish=None if publish is None else choice(Place(self.name), "publish", Publish, publish),
            fresh=fresh,
            on_rewind=OnRewind(on_rewind),
            adopt_offsets={source: os.fspath(directory) for source, directory in adopt_offsets.items()},
            restore=restore_from(restore, allow_drained, take_pending),
            allow_dropped=allow_dropped,
            state_partitions=checked_partitions(state_partitions),
            new_sources=tuple(new_sources),
            accept_data_loss=tuple(accept_data_loss),
            workspace=None if workspace is None else os.fspath(workspace),
        )
        response: StartResponse = launch.launch_in_session(self, os.fspath(home), params, options, spark)
        return response

    def rewired(self, inputs: Mapping[str, Function], tables: str) -> "Pipeline":
        """A copy for tests: other functions read the inputs, and the tables are somewhere else.

        A source that is read by another function is bounded: a test's rows end. Stages go as fast as they can.

        Args:
            inputs: By source or static input the function to read it with. Those that are not named stay as they are.
            tables: A directory; each sink's table is in it, under the sink's name.

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
        copy._declarations = {name: _for_test(part) for name, part in copy._declarations.items()}
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
        """Keeps a part whose declaration has a mistake without its options, if that is right; see :meth:`sound_graph`."""
        self._mistaken.add(str(function_name(function, name)))
        with suppress(InvalidPipelineError):
            place = self._place(kind, function, name)
            self._declarations.setdefault(place.name, without_options(place, function))

    def _add(self, place: Place, part: Declaration) -> None:
        """Takes a declaration in; the same function's again in its place."""
        same = {known.casefold(): known for known in self._declarations}.get(place.name.casefold())
        if same is not None and not (same == place.name and is_rerun(self._declarations[same].function, part.function)):
            raise place.refused(f"{same!r} is declared already.", 'Give one of them another name with name="...".', declared=same)
        self._declarations[place.name] = part


def _for_test(part: Declaration) -> Declaration:
    """Without the limits that say how a stage runs beside others."""
    if not isinstance(part, DeclaredStage):
        return part
    limits = dataclasses.replace(part.limits, trigger_interval_ms=None, max_channel_bytes=None)
    return dataclasses.replace(part, limits=limits)


def _is_model(params: object) -> bool:
    return params is None or (isinstance(params, type) and issubclass(params, BaseModel))
