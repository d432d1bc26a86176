"""Runs a pipeline from an entry and a home to an answer: the shared code of ``spark-jobs run``, ``Pipeline.run`` and the test harness."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import cache
from typing import Any, Protocol

from pydantic import BaseModel
from pyspark.errors import AnalysisException
from pyspark.sql import SparkSession

from spark_jobs.api.graph import Graph
from spark_jobs.api.parameters import BoundParameters, environment_mask
from spark_jobs.control.channel import Channel
from spark_jobs.control.home import check_claim, open_home
from spark_jobs.home.places import check_places
from spark_jobs.protocol.checkpointing import CheckpointOverrides
from spark_jobs.protocol.documents import Manifest, OnEnd, Publish, StartResponse
from spark_jobs.protocol.errors import RejectedError
from spark_jobs.protocol.ids import PipelineName, RequestId, new_run_id
from spark_jobs.protocol.start_requests import StartOptions, StartRequest, start_request
from spark_jobs.runtime.application import Application
from spark_jobs.runtime.driver.heartbeat import Heartbeat
from spark_jobs.runtime.inputs.missing_paths import check_paths
from spark_jobs.runtime.planned_pipeline import check_pipeline
from spark_jobs.runtime.spark.session import session_for_run
from spark_jobs.runtime.start.adoption import old_offsets
from spark_jobs.runtime.start.start_plan import StartPlan
from spark_jobs.runtime.tables.table_places import check_address
from spark_jobs.storage.files import Files, side_by_side
from spark_jobs.storage.open import check_writable, open_place
from spark_jobs.storage.table_uris import table_files, table_uri


class RunnablePipeline(Protocol):
    """A pipeline, as a run uses it. See :class:`spark_jobs.Pipeline`, which imports this module only to run."""

    @property
    def name(self) -> PipelineName:
        """The name of the pipeline."""
        ...

    @property
    def conf(self) -> Mapping[str, str]:
        """The Spark settings of the pipeline."""
        ...

    def graph(self, *, on_end: OnEnd | None, publish: Publish | None, checkpoint: CheckpointOverrides | None) -> Graph:
        """Returns the checked graph of its declarations."""
        ...

    def bind(self, params: Mapping[str, Any] | BaseModel, /) -> BoundParameters:
        """Validates its parameters."""
        ...


def launch(
    pipeline: RunnablePipeline,
    home: str | Files,
    parameters: Mapping[str, Any] | BaseModel,
    options: StartOptions,
    start_spark: Callable[[], SparkSession],
    watch: Callable[[Heartbeat], Callable[[], None]] = lambda heartbeat: lambda: None,
    open_directory: Callable[[str], Files] = table_files,
) -> StartResponse:
    """Requests a run and runs it in this process.

    Raises:
        RejectedError: The pipeline, a parameter or the home is refused. Nothing was written.
        StreamPipelineError: The run did not reach its end. The error says whether it can go on.
    """
    files = open_home(home) if isinstance(home, str) else home
    options = _with_urls(options)
    application = _application(pipeline, files, parameters, options, start_spark)
    application = replace(application, watch=watch, open_directory=open_directory)
    channel, values = Channel(files), application.parameters.public()
    if application.begun:
        return application.answer(channel.request_start(options.run or new_run_id(), parameters=values, options=options))
    return application.begin(start_request(options, channel.next_attempt(), values))


def plan(
    pipeline: RunnablePipeline,
    home: Files,
    parameters: Mapping[str, Any] | BaseModel,
    options: StartOptions,
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
    chosen = given or _with_urls(options)
    application = _application(pipeline, home, values, chosen, start_spark)
    request = given or start_request(chosen, channel.next_attempt(), application.parameters.public())
    return request, application.plan(request)


def check(graph: Graph, parameters: BoundParameters, start_spark: Callable[[], SparkSession], home: Files | None) -> None:
    """Lets Spark check a pipeline without starting it: its functions, its stages as streams, its tables, its sources. Writes nothing.

    Raises:
        RejectedError: A part has a mistake. The error lists all of them.
        StreamPipelineError: An input cannot be read now. Another try may succeed.
    """
    check_pipeline(graph, parameters, session_for_run(start_spark()), home)


def _with_urls(options: StartOptions) -> StartOptions:
    """Returns the options with the URLs of the directories whose offsets are adopted."""
    urls = {source: open_place(directory).url for source, directory in options.adopt_offsets.items()}
    return options.model_copy(update={"adopt_offsets": urls})


def _application(
    pipeline: RunnablePipeline,
    home: Files,
    parameters: Mapping[str, Any] | BaseModel,
    chosen: StartOptions,
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
    numbers, begun = side_by_side(home, [channel.attempts.numbers, channel.pipeline])
    if not numbers:  # otherwise the home decides whether offsets are adopted, and knows its sources
        if not isinstance(chosen, StartRequest):
            old_offsets(graph, chosen.adopt_offsets)
        check_paths(graph, bound)
    if begun is None:
        check_writable(home)
    # a table with a name is looked up later, in Spark's catalog
    uris = {sink: table_uri(table.text) for sink, table in tables.items() if not table.named}
    check_places(home, uris, begins=False)
    document = channel.document_or_new(graph.pipeline, begun)
    check_claim(home, begun)
    return Application(graph, bound, home, document, cache(start_spark), begun=begun is not None)


def launch_in_session(
    pipeline: RunnablePipeline,
    home: str,
    parameters: Mapping[str, Any] | BaseModel,
    options: StartOptions,
    spark: SparkSession,
    work_root: str | None = None,
) -> StartResponse:
    """Runs :func:`launch` on an existing session, which stays unchanged. ``work_root`` is as for :func:`open_home`.

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
                    remedy="Build the session with it, or remove it from Pipeline(conf=...).",
                    setting=key,
                ) from error
    return launch(pipeline, open_home(home, work_root), parameters, options, lambda: own)


def launch_requested(
    pipeline: RunnablePipeline,
    home: Files,
    request_id: RequestId,
    start_spark: Callable[[], SparkSession],
    watch: Callable[[Heartbeat], Callable[[], None]] = lambda heartbeat: lambda: None,
) -> StartResponse:
    """Runs an existing start request in this process. The errors are those of :func:`launch`."""
    channel = Channel(home)
    request = channel.request(request_id)
    with channel.refusals_answered(request_id, environment_mask()):
        application = _application(pipeline, home, request.parameters, request, start_spark)
    application = replace(application, watch=watch)
    return application.answer(request) if application.begun else application.begin_requested(request)
