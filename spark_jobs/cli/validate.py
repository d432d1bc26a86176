"""``spark-jobs validate``: checks everything that can be checked without reading a row, and shows the effect of a start."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Annotated, Any

import typer
from rich.console import RenderableType
from rich.text import Text
from rich.tree import Tree

from spark_jobs.api.address import TableAddress
from spark_jobs.api.full_refresh import refreshed_stages
from spark_jobs.api.graph import Graph
from spark_jobs.api.load import load_sound_parts
from spark_jobs.api.location import locate_pipeline
from spark_jobs.api.neighbours import neighbours_of
from spark_jobs.api.parameters import BoundParameters
from spark_jobs.api.pipeline import Pipeline
from spark_jobs.api.refusals import Mistakes
from spark_jobs.api.source import Source, Static
from spark_jobs.api.stage import Stage
from spark_jobs.checkpoint.savepoint import read_savepoint
from spark_jobs.checkpoint.savepoint_files import pending_rows
from spark_jobs.cli import words
from spark_jobs.cli.answers import Outlook, StageOutlook, ValidateAnswer
from spark_jobs.cli.options import (
    SPARK_OPTIONS,
    START_OPTIONS,
    Entry,
    FullRefreshAll,
    Params,
    ParamsFile,
    asking_for_parameters,
    parameters,
    start_fields,
    takes,
)
from spark_jobs.cli.outlook import fates_table, outlook, with_work_directory
from spark_jobs.cli.progress import Progress
from spark_jobs.cli.spark import (
    OutputFile,
    SparkStart,
    needing_spark,
    quiet_logging,
    settings_asked,
    spark_options,
    standing_stderr,
)
from spark_jobs.cli.terminal import Output, command, console, output_option
from spark_jobs.control.channel import Channel
from spark_jobs.control.home import open_home
from spark_jobs.home.places import check_places
from spark_jobs.protocol.documents import PipelineDocument, SinkMode
from spark_jobs.protocol.errors import InvalidParameterError, NotFoundError, StreamPipelineError
from spark_jobs.protocol.ids import AttemptNumber, RunId, SinkName, StageName, new_run_id
from spark_jobs.protocol.start_requests import StartOptions, StartRequest, start_request
from spark_jobs.publication.delta_rs import check_publishable
from spark_jobs.publication.pending import is_unfinished, refuse_missing_table
from spark_jobs.publication.staged_files import check_no_file
from spark_jobs.runtime.start.decision import (
    Begin,
    BeginFromSavepoint,
    Continue,
    Decision,
    HomeFacts,
    continued,
    decide,
    stage_fates,
)
from spark_jobs.runtime.start.facts import look_at_savepoint, read_facts
from spark_jobs.storage.files import Files
from spark_jobs.storage.open import open_place
from spark_jobs.storage.table_uris import table_uri

_OPTIONS = {name: option for name, option in START_OPTIONS.items() if name not in ("publish", "adopt_offsets")}


@takes(_OPTIONS, SPARK_OPTIONS)
def validate(
    context: typer.Context,
    entry: Entry,
    home: Annotated[str | None, typer.Option(metavar="URL", help="Also show the effect of a start in this home.")] = None,
    param: Params = None,
    params_file: ParamsFile = None,
    run_id: Annotated[str | None, typer.Option(help="As for run.")] = None,
    full_refresh_all: FullRefreshAll = False,
    no_spark: Annotated[
        bool,
        typer.Option("--no-spark", help="Check without Java: everything except functions, columns, types and places of sources."),
    ] = False,
    output: Annotated[Output, output_option(ValidateAnswer)] = Output.TEXT,
    **options: Any,
) -> None:
    """Check a pipeline and its parameters, let Spark check every stage, and show the effect of a start. Writes nothing."""
    with command(output) as terminal:
        mistakes, bound, tables, files, existing = Mistakes(), None, None, None, dict[SinkName, bool | None]()
        outlook_found = None
        pipeline = load_sound_parts(entry, mistakes, settings_asked(options["conf"]))
        graph = pipeline.sound_graph(mistakes, on_end=options["on_end"])
        declared = not mistakes.found
        with mistakes.noted():
            given = parameters(param, params_file)
            with asking_for_parameters(pipeline, given):
                bound = pipeline.bind(given)
        if graph is not None and bound is not None:
            with mistakes.noted():
                tables = graph.tables(bound)
        if graph is not None and tables:
            existing = _existing(graph, tables, mistakes)
        with mistakes.noted():
            files = open_home(home) if home else None
        with mistakes.noted():
            addresses = {sink: table_uri(table.text) for sink, table in (tables or {}).items() if not table.named}
            check_places(files, addresses, begins=files is not None and Channel(files).pipeline() is None)
        chosen = StartOptions(run=RunId(run_id) if run_id else new_run_id(), **start_fields(context.params))
        if chosen.restore and home is None:
            with mistakes.noted():
                raise InvalidParameterError(
                    "--restore needs a home, but no home is given.",
                    remedy="Add --home URL.",
                )
        if files and declared and graph is not None and bound is not None and tables is not None:
            request = start_request(chosen, AttemptNumber(1), bound.public())
            with _all_told(mistakes), mistakes.noted():
                outlook_found = _outlook(files, graph, request, tables)
        if graph is not None and bound is not None and not no_spark:
            with _all_told(mistakes), mistakes.noted():
                _check_with_spark(entry, pipeline, graph, bound, files, context.params)
        mistakes.check()
        assert graph is not None
        assert bound is not None
        assert tables is not None
        answer = ValidateAnswer(
            pipeline=graph.pipeline,
            on_end=graph.on_end,
            fingerprint=graph.fingerprint(),
            graph=graph.describe(),
            parameters=bound.public(),
            tables={sink: str(table) for sink, table in tables.items()},
            home=files.url if files else None,
            outlook=outlook_found,
            planned=not no_spark,
        )
        terminal.answer(answer, *_text(answer, graph, existing))


def _check_with_spark(
    entry: str, pipeline: Pipeline, graph: Graph, bound: BoundParameters, home: Files | None, given: Mapping[str, Any]
) -> None:
    """Lets Spark check the pipeline, and discards Spark's output.

    Raises:
        RejectedError: A part has a mistake, or Spark is missing. The error lists all mistakes.
        StreamPipelineError: An input cannot be read now.
    """
    with needing_spark("Checking functions, columns and types", _WITHOUT_SPARK):
        from spark_jobs.runtime.launch import check

        neighbours = neighbours_of(locate_pipeline(entry))
        spark = SparkStart(pipeline.name, spark_options(pipeline, given), OutputFile(None), neighbours=neighbours)
        progress = Progress(console(stderr=True, file=standing_stderr()), f"{pipeline.name}: looking at the pipeline")
        try:
            with progress.shown(), quiet_logging():
                check(graph, bound, spark.showing(progress, f"{pipeline.name}: checking stages and tables"), home)
        finally:
            spark.stop()


_WITHOUT_SPARK = "Or add --no-spark to leave out these checks."


def _existing(graph: Graph, tables: Mapping[SinkName, TableAddress], mistakes: Mistakes) -> dict[SinkName, bool | None]:
    """Returns which tables exist, and notes unsupported ones. None for names, which only Spark's catalog knows."""
    found: dict[SinkName, bool | None] = {}
    for sink, table in tables.items():
        found[sink] = None
        if not table.named:
            with mistakes.noted():
                found[sink] = _exists(table_uri(table.text), graph.sinks[sink].mode)
    return found


def _exists(uri: str, mode: SinkMode) -> bool:
    """Returns True if a table exists.

    Raises:
        UnsupportedTableError: The table exists but cannot be published into.
    """
    check_no_file(uri)
    try:
        check_publishable(uri, mode)
    except NotFoundError:
        return False
    return True


@contextmanager
def _all_told(mistakes: Mistakes) -> Iterator[None]:
    """Raises the collected mistakes in place of an error that is no mistake of the user."""
    try:
        yield
    except StreamPipelineError:
        mistakes.check()
        raise


def _outlook(files: Files, graph: Graph, request: StartRequest, tables: Mapping[SinkName, TableAddress]) -> Outlook:
    """Returns the effect of a start.

    Raises:
        RejectedError: The start would be refused.
    """
    channel = Channel(files)
    pipeline = channel.document_or_new(graph.pipeline, channel.pipeline())
    facts, described = look_at_savepoint(request, read_facts(files)), graph.describe()
    decision = decide(request, facts, request.parameters, described, refreshed_stages(graph, request.full_refresh))
    if (kept := continued(decision, facts)) is not None:
        for sink in sorted(kept.sinks.keys() & tables.keys()):
            if not tables[sink].named:
                refuse_missing_table(kept.checkpoint, sink, kept.sinks[sink].table)
    found = outlook(decision)
    if isinstance(decision, Continue | Begin):
        found = with_work_directory(found, files, request, facts)
    behind = ""
    if isinstance(decision, BeginFromSavepoint):
        _check_tables(files, pipeline, request, facts, decision, tables)
        if request.restore and facts.savepoint:
            behind = _left_behind(open_place(request.restore.savepoint), tables)
    found_fates = stage_fates(decision, facts, described)
    stages = tuple(StageOutlook(stage=StageName(each.stage), fate=each.fate.value) for each in found_fates)
    return found.model_copy(update={"explanation": found.explanation + behind, "stages": stages})


def _check_tables(
    files: Files,
    pipeline: PipelineDocument,
    request: StartRequest,
    facts: HomeFacts,
    decision: Decision,
    tables: Mapping[SinkName, TableAddress],
) -> None:
    """Refuses what a start from a savepoint would refuse because of public rows. Tables that only a catalog knows are skipped.

    The savepoint's files are not read: ``inspect`` compares them with their hashes.

    Raises:
        RejectedError: A table would have rows twice, or would lack rows.
    """
    if any(table.named for table in tables.values()):
        return
    # here, because it loads Spark's Python package, which no other validation needs
    from spark_jobs.runtime.start.savepoint_start import savepoint_start
    from spark_jobs.runtime.tables.table_places import TablePlace

    start = savepoint_start(files, pipeline, request, facts, decision, verified=False)
    assert start is not None
    start.check({sink: TablePlace(table_uri(table.text)) for sink, table in tables.items()})


def _left_behind(savepoint: Files, tables: Mapping[SinkName, TableAddress]) -> str:
    """Returns a text about the staged rows that a start would leave out because their sinks have other tables now."""
    manifest, text = read_savepoint(savepoint)[1], ""
    for sink, cut in manifest.sinks.items():
        same = sink in tables and (tables[sink].named or table_uri(tables[sink].text) == cut.table)
        goes_along = sink in tables and is_unfinished(manifest, sink)
        rows = 0 if same or goes_along else pending_rows(savepoint, manifest, sink)
        if rows:
            text += (
                f" {rows} rows of sink {sink} were staged but not known to be public when it was taken: they would stay behind."
            )
    return text


def _text(answer: ValidateAnswer, graph: Graph, existing: Mapping[SinkName, bool | None]) -> list[RenderableType]:
    shown: list[RenderableType] = [_tree(graph, answer.tables, existing)]
    if answer.parameters:
        shown.append(words.facts(*((name, str(value)) for name, value in answer.parameters.items())))
    if answer.outlook:
        shown.append(Text(answer.outlook.explanation, style="cyan"))
        shown += [fates_table(answer.outlook)] if answer.outlook.stages else []
    if answer.planned:
        valid = f"Pipeline {answer.pipeline} is valid: Spark can run every stage, and its rows fit its table."
    else:
        valid = f"Pipeline {answer.pipeline} is valid as declared. Functions, columns and types were not checked."
    return [*shown, Text(valid, style="bold green")]


def _tree(graph: Graph, tables: Mapping[SinkName, str], existing: Mapping[SinkName, bool | None]) -> Tree:
    """Returns the data flow as a tree: each part with the stages that read it. A stage with several inputs is expanded only once."""
    tree = Tree(Text.assemble((graph.pipeline, "bold"), f", on_end={graph.on_end.value}"))
    readers: dict[str, list[Stage]] = {}
    for stage in graph.stages.values():
        for read in stage.inputs.values():
            readers.setdefault(read.name, []).append(stage)
    spelled: set[str] = set()

    def grow(branch: Tree, name: str) -> None:
        for stage in readers.get(name, []):
            if stage.name in spelled:
                branch.add(Text(f"{stage.name} (above)", style="dim"))
                continue
            spelled.add(stage.name)
            grow(branch.add(_stage(stage, tables, existing)), stage.name)

    for node in graph.inputs:
        grow(tree.add(_input(node)), node.name)
    return tree


def _input(node: Source | Static) -> Text:
    if isinstance(node, Static):
        return Text.assemble((node.name, "bold"), f"  static, refresh={node.refresh.value}")
    facts = [f"{'bounded' if node.bounded else 'unbounded'} source{', shared' if node.shared else ''}"]
    if node.event_time:
        facts.append(f"event time {node.event_time}")
    if node.delay_ms is not None:
        facts.append(f"watermark delay {words.duration(node.delay_ms / 1000)}")
    if node.held:
        facts.append("watermark held to the end")
    return Text.assemble((node.name, "bold"), f"  {', '.join(facts)}")


def _stage(stage: Stage, tables: Mapping[SinkName, str], existing: Mapping[SinkName, bool | None]) -> Text:
    sink = stage.sink
    others = [node.name for node in stage.inputs.values()]
    reads = f" (reads {', '.join(others)})" if len(others) > 1 else ""
    if sink is None:
        return Text.assemble((stage.name, "bold"), f"{reads}  no sink")
    news = {True: "there", False: "new", None: "in Spark's catalog"}[existing[sink.name]]
    columns = sink.design.partition_by or sink.design.cluster_by
    by = f", by {', '.join(columns)}" if columns else ""
    table = f" → {tables[sink.name]} ({sink.mode.value}{by}, publish={sink.publish.value}, {news})"
    return Text.assemble((stage.name, "bold"), reads, (table, "green"))
