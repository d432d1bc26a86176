"""``spark-jobs run --dry-run``: shows the plan of a run, made by the code of the run itself."""

from typing import TYPE_CHECKING

from rich.console import RenderableType
from rich.text import Text

from spark_jobs.api.continuation import Fate, StageFate
from spark_jobs.api.graph import Graph, Reads
from spark_jobs.cli import words
from spark_jobs.cli.answers import PlanAnswer, SourcePlan, StageOutlook, TablePlan
from spark_jobs.cli.outlook import FATE_COLOURS, outlook, with_work_directory
from spark_jobs.control.checkpoint_requests import CheckpointRequests
from spark_jobs.protocol.documents import Manifest
from spark_jobs.protocol.ids import InputName, SinkName, StageName
from spark_jobs.protocol.losses import said
from spark_jobs.protocol.start_requests import StartRequest
from spark_jobs.runtime.start.decision import Answer, Begin, Continue
from spark_jobs.storage.files import Files
from spark_jobs.storage.table_uris import spark_path

if TYPE_CHECKING:
    from spark_jobs.runtime.start.start_plan import StartPlan


def plan_answer(graph: Graph, home: Files, request: StartRequest, plan: "StartPlan | Manifest") -> PlanAnswer:
    """Returns the plan of a run. Also reads the open requests."""
    pipeline = graph.pipeline
    asked = tuple(each.request for each in CheckpointRequests(home).open())
    if isinstance(plan, Manifest):
        return PlanAnswer(pipeline=pipeline, home=home.url, run=request.run, outlook=outlook(Answer(plan)), open_requests=asked)
    found, reads = outlook(plan.decision), graph.reads()
    if isinstance(plan.decision, Continue | Begin):
        found = with_work_directory(found, home, request, plan.facts)
    return PlanAnswer(
        pipeline=pipeline,
        home=home.url,
        run=request.run,
        outlook=found.model_copy(update={"stages": tuple(_stage(each, plan, reads) for each in plan.stages)}),
        sources=tuple(_source(name, plan) for name in plan.settled.sources),
        tables=tuple(_table(plan, sink) for sink in plan.tables),
        losses=(*plan.losses, *plan.gone),
        open_requests=asked,
    )


def plan_text(answer: PlanAnswer) -> list[RenderableType]:
    """Returns the plan for people: one table, and a sentence that nothing was done."""
    found = answer.outlook
    shown = words.table("", "part", "name", "would be")
    for stage in found.stages:
        shown.add_row("stage", Text(stage.stage), Text(f"{stage.fate}{_how(stage)}", style=FATE_COLOURS[stage.fate]))
    for source in answer.sources:
        shown.add_row("source", Text(source.source), Text(source.fate))
    for table in answer.tables:
        columns = f": {', '.join(table.columns)}" if table.columns else ""
        shown.add_row("table", Text(table.sink), Text(f"{table.fate}{columns} ({table.table})"))
    for request in answer.open_requests:
        shown.add_row("request", Text(request), "answered")
    return [
        Text(found.explanation, style="cyan"),
        *([shown] if shown.row_count else []),
        *(
            Text(f"Stage {loss.stage} would continue without the lost rows of source {loss.input}: {said(loss)}.", style="yellow")
            for loss in answer.losses
        ),
        Text("This was a dry run: nothing was written.", style="bold green"),
    ]


def _stage(found: StageFate, plan: "StartPlan", reads: Reads) -> StageOutlook:
    name, before = StageName(found.stage), plan.goes_on_from
    begin = state_bytes = None
    if before is not None and found.fate is Fate.STARTS_EMPTY:
        begin = "now" if name in plan.begins_now else "earliest"
    if before is not None and found.fate is Fate.CONTINUES and name in before.stages:
        state_bytes = sum(file.size_bytes for file in before.stages[name].files)
    before_it, sources = reads.get(name, ((), ())) if begin is not None else ((), ())
    fields = {"begin": begin, "stages": before_it, "sources": sources, "state_bytes": state_bytes}
    return StageOutlook.model_validate({"stage": name, "fate": found.fate.value} | fields)


def _how(stage: StageOutlook) -> str:
    if stage.state_bytes is not None:
        return f" with {words.size(stage.state_bytes)} of state"
    if stage.begin is None:
        return ""
    begins = [f"at the beginning of {', '.join(stage.sources)}"] if stage.sources else []
    begins += [f"with what {', '.join(stage.stages)} will stage"] if stage.stages else []
    return ", and begins now" if stage.begin == "now" else f", {' and '.join(begins)}"


def _source(name: InputName, plan: "StartPlan") -> SourcePlan:
    if name in plan.settled.renewed:
        return SourcePlan(source=name, fate="is another one")
    return SourcePlan(source=name, fate="is the same" if name in plan.settled.before else "is new")


def _table(plan: "StartPlan", name: SinkName) -> TablePlan:
    planned, place = plan.tables[name], spark_path(plan.places[name].uri)
    if planned.table is None:
        return TablePlan(sink=name, table=place, fate="is made")
    if planned.grown:
        return TablePlan(sink=name, table=place, fate="gets columns", columns=tuple(planned.grown.names))
    return TablePlan(sink=name, table=place, fate="goes on")
