"""Runs a pipeline from an entry and a home to an answer: the shared code of ``spark-jobs run``, ``Pipeline.run`` and the test harness."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from functools import cache
from typing import Any

from pydantic import BaseModel
from pyspark.errors import AnalysisException
from pyspark.sql import SparkSession

from spark_jobs.api.graph import Graph
from spark_jobs.api.parameters import BoundParameters, environment_mask
from spark_jobs.api.pipeline import Pipeline
from spark_jobs.control.channel import Channel
from spark_jobs.control.home import check_claim, open_home
from spark_jobs.home.places import check_places
from spark_jobs.protocol.checkpointing import CheckpointOverrides
from spark_jobs.protocol.documents import Manifest, OnEnd, OnRewind, Publish, RestoreFrom, StartRequest, StartResponse
from spark_jobs.protocol.errors import RejectedError
from spark_jobs.protocol.ids import AttemptNumber, InputName, LossId, RequestId, RunId, new_run_id, start_request_id
from spark_jobs.runtime.application import Application
from spark_jobs.runtime.driver.heartbeat import Heartbeat
from spark_jobs.runtime.inputs.missing_paths import check_paths
from spark_jobs.runtime.planned_pipeline import check_pipeline
from spark_jobs.runtime.spark.session import session_for_run
from spark_jobs.runtime.start.adoption import old_offsets
from spark_jobs.runtime.start.start_plan import StartPlan
from spark_jobs.runtime.tables.table_places import check_address
from spark_jobs.storage.files import Files
from spark_jobs.storage.open import check_writable, open_files
from spark_jobs.storage.table_uris import table_files, table_uri


@dataclass(frozen=True)
class RunOptions:
    """The options of one run.

    Args:
        run: Id of the run; the same in every retry. By default a new one.
        on_end: Overrides the pipeline's setting for the round that this run begins.
        publish: Overrides every sink's policy for that round.
        fresh: Begin anew.
        on_rewind: What happens to rows that are public when a run begins anew.
        adopt_offsets: Checkpoint directory of the Spark query that a source continues, by source.
        checkpoint: Overrides some of the pipeline's checkpoint settings.
        restore: Savepoint to begin with.
        allow_dropped: True allows leaving behind the state of stages that the pipeline no longer has.
        state_partitions: Number of state partitions from now on.
        new_sources: Sources that are read from their beginning. They may be different ones than before.
        accept_data_loss: Sources that are read without their lost rows.
        backfill: Losses whose rows are processed. The run reads no new rows of bounded sources.
        full_refresh: Tables whose stages begin anew. Their rows are replaced.
        work_root: Directory for the cache of a home in a store; see :func:`spark_jobs.control.home.open_home`.
    """

    run: RunId | None = None
    on_end: OnEnd | None = None
    publish: Publish | None = None
    fresh: bool = False
    on_rewind: OnRewind = OnRewind.REFUSE
    adopt_offsets: Mapping[str, str] = field(default_factory=dict)
    checkpoint: CheckpointOverrides | None = None
    restore: RestoreFrom | None = None
    allow_dropped: bool = False
    state_partitions: int | None = None
    new_sources: Sequence[str] = ()
    accept_data_loss: Sequence[str] = ()
    backfill: Sequence[str] = ()
    full_refresh: Sequence[str] = ()
    work_root: str | None = None

    def adopted(self) -> dict[InputName, str]:
        """Returns the URL of the checkpoint directory whose offsets are adopted, by source."""
        return {InputName(source): open_files(directory).url for source, directory in self.adopt_offsets.items()}

    def request(self, attempt: AttemptNumber, parameters: dict[str, Any]) -> StartRequest:
        """Returns the start request for these options, without writing it."""
        return StartRequest(
            request=start_request_id(attempt),
            attempt=attempt,
            run=self.run or new_run_id(),
            requested_at=datetime.now(UTC),
            parameters=parameters,
            on_end=self.on_end,
            publish=self.publish,
            fresh=self.fresh,
            on_rewind=self.on_rewind,
            adopt_offsets=self.adopted(),
            checkpoint=self.checkpoint,
            restore=self.restore,
            allow_dropped=self.allow_dropped,
            state_partitions=self.state_partitions,
            new_sources=tuple(sorted(InputName(name) for name in self.new_sources)),
            accept_data_loss=tuple(sorted(InputName(name) for name in self.accept_data_loss)),
            backfill=tuple(sorted(LossId(loss) for loss in self.backfill)),
            full_refresh=tuple(sorted(self.full_refresh)),
        )


def launch(
    pipeline: Pipeline,
    home: str | Files,
    parameters: Mapping[str, Any] | BaseModel,
    options: RunOptions,
    start_spark: Callable[[], SparkSession],
    watch: Callable[[Heartbeat], Callable[[], None]] = lambda heartbeat: lambda: None,
    open_directory: Callable[[str], Files] = table_files,
) -> StartResponse:
    """Requests a run and runs it in this process.

    Raises:
        RejectedError: The pipeline, a parameter or the home is refused. Nothing was written.
        StreamPipelineError: The run did not reach its end. The error says whether it can go on.
    """
    files = open_home(home, options.work_root) if isinstance(home, str) else home
    application = _application(pipeline, files, parameters, options, start_spark)
    application = replace(application, watch=watch, open_directory=open_directory)
    channel, public = Channel(files), application.parameters.public()
    if not application.begun:
        return application.begin(options.request(channel.next_attempt(), public))
    return application.answer(channel.ask(options.request(channel.next_attempt(), public)))


def plan(
    pipeline: Pipeline,
    home: Files,
    parameters: Mapping[str, Any] | BaseModel,
    options: RunOptions,
    start_spark: Callable[[], SparkSession],
    request_id: RequestId | None = None,
) -> tuple[StartRequest, StartPlan | Manifest]:
    """Returns the plan of a run. Writes nothing. The errors are those of the run.

    Args:
        pipeline: The pipeline.
        home: Its home, which may not exist yet.
        parameters: Parameters of the pipeline.
        options: Options of the run.
        start_spark: Creates the Spark session. Called only if there is something to run.
        request_id: An existing start request, which has parameters and options.

    Returns:
        The request, and its plan or, if nothing would run, the checkpoint that answers it.
    """
    channel = Channel(home)
    given = channel.request(request_id) if request_id else None
    values = given.parameters if given else parameters
    application = _application(pipeline, home, values, given or options, start_spark)
    request = given or options.request(channel.next_attempt(), application.parameters.public())
    return request, application.plan(request)


def check(graph: Graph, parameters: BoundParameters, start_spark: Callable[[], SparkSession], home: Files | None) -> None:
    """Lets Spark check a pipeline without starting it: its functions, its stages as streams, its tables, its sources. Writes nothing.

    Raises:
        RejectedError: A part has a mistake. The error lists all of them.
        StreamPipelineError: An input cannot be read now. Another try may succeed.
    """
    check_pipeline(graph, parameters, session_for_run(start_spark()), home)


def _application(
    pipeline: Pipeline,
    home: Files,
    parameters: Mapping[str, Any] | BaseModel,
    chosen: RunOptions | StartRequest,
    start_spark: Callable[[], SparkSession],
) -> Application:
    """Checks all that can be checked without Spark. Writes nothing.

    Raises:
        RejectedError: The pipeline, a parameter, the home, or the place of a table is refused.
    """
    graph = pipeline.graph(on_end=chosen.on_end, publish=chosen.publish, checkpoint=chosen.checkpoint)
    bound = pipeline.bind(parameters)
    tables = graph.tables(bound)
    for table in tables.values():
        check_address(table)
    channel = Channel(home)
    if not channel.attempts.numbers():  # otherwise the home decides whether offsets are adopted, and knows its sources
        if isinstance(chosen, RunOptions):
            old_offsets(graph, chosen.adopted())
        check_paths(graph, bound)
    begun = channel.pipeline()
    if begun is None:
        check_writable(home)
    # a table with a name is looked up later, in Spark's catalog
    uris = {sink: table_uri(table.text) for sink, table in tables.items() if not table.named}
    check_places(home, uris, begins=False)
    document = channel.looked_at(graph.pipeline, begun)  # another start may have claimed the home in the meantime
    check_claim(home, begun)
    return Application(graph, bound, home, document, cache(start_spark), begun=begun is not None)


def launch_in_session(
    pipeline: Pipeline, home: str | Files, parameters: Mapping[str, Any] | BaseModel, options: RunOptions, spark: SparkSession
) -> StartResponse:
    """Runs :func:`launch` on an existing session, which stays unchanged.

    Raises:
        RejectedError: The session cannot run a pipeline, or its application has other settings than the pipeline requests. Nothing was
            written.
        StreamPipelineError: As in :func:`launch`.
    """
    own = session_for_run(spark)
    for key, value in pipeline.conf.items():
        try:
            own.conf.set(key, value)
        except AnalysisException as error:
            if own.conf.get(key, None) != value:
                raise RejectedError(
                    f"Pipeline {pipeline.name} sets {key} = {value}, which a running Spark application cannot change.",
                    safe="Nothing was written.",
                    remedy="Build the session with it, or remove it from Pipeline(conf=...).",
                    setting=key,
                ) from error
    return launch(pipeline, home, parameters, options, lambda: own)


def launch_requested(
    pipeline: Pipeline,
    home: str | Files,
    request_id: RequestId,
    start_spark: Callable[[], SparkSession],
    watch: Callable[[Heartbeat], Callable[[], None]] = lambda heartbeat: lambda: None,
    work_root: str | None = None,
) -> StartResponse:
    """Runs an existing start request in this process. The errors are those of :func:`launch`."""
    files = open_home(home, work_root) if isinstance(home, str) else home
    channel = Channel(files)
    request = channel.request(request_id)
    with channel.refusals_answered(request_id, environment_mask()):
        application = _application(pipeline, files, request.parameters, request, start_spark)
    application = replace(application, watch=watch)
    return application.answer(request) if application.begun else application.begin_requested(request)
