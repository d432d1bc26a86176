"""``spark-jobs run --dry-run``: the plan of a run, as the run itself would make it."""

from typing import TYPE_CHECKING

from rich.console import RenderableType
from rich.text import Text

from spark_jobs.cli import words
from spark_jobs.cli.answers import PlanAnswer, SourcePlan, StageOutlook, TablePlan
from spark_jobs.cli.outlook import FATE_COLOURS, outlook, with_way_back
from spark_jobs.control.checkpoint_requests import CheckpointRequests
from spark_jobs.protocol.documents import Manifest, StartRequest
from spark_jobs.protocol.ids import InputName, PipelineName, SinkName, StageName
from spark_jobs.runtime.start.decision import Answer, Begin, Continue
from spark_jobs.storage.files import Files

if TYPE_CHECKING:
    from spark_jobs.runtime.start.start_plan import StartPlan


def plan_answer(pipeline: PipelineName, home: Files, request: StartRequest, plan: "StartPlan | Manifest") -> PlanAnswer:
    """Returns what a run would do; reads the requests that are open."""
    asked = tuple(each.request for each in CheckpointRequests(home).open())
    if isinstance(plan, Manifest):
        found = outlook(Answer(plan))
        return PlanAnswer(pipeline=pipeline, home=home.url, run=request.run, outlook=found, state_bytes=None, open_requests=asked)
    found, before = outlook(plan.decision), plan.goes_on_from
    if isinstance(plan.decision, Continue | Begin):
        found = with_way_back(found, home, request, plan.facts)
    stages = tuple(StageOutlook(stage=StageName(each.stage), fate=each.fate.value) for each in plan.stages)
    going_on = {each.stage for each in stages if each.fate == "continues"}
    return PlanAnswer(
        pipeline=pipeline,
        home=home.url,
        run=request.run,
        outlook=found.model_copy(update={"stages": stages}),
        state_bytes=None
        if before is None
        else sum(file.size_bytes for name, cut in before.stages.items() if name in going_on for file in cut.files),
        sources=tuple(_source(name, plan) for name in plan.settled.sources),
        tables=tuple(_table(plan, sink) for sink in plan.tables),
        open_requests=asked,
    )


def plan_text(answer: PlanAnswer) -> list[RenderableType]:
    """Returns the plan for people: one table, and what is not done."""
    found = answer.outlook
    shown = words.table("", "part", "name", "would be")
    for stage in found.stages:
        shown.add_row("stage", Text(stage.stage), Text(stage.fate, style=FATE_COLOURS[stage.fate]))
    for source in answer.sources:
        shown.add_row("source", Text(source.source), Text(source.fate))
    for table in answer.tables:
        columns = f": {', '.join(table.columns)}" if table.columns else ""
        shown.add_row("table", Text(table.sink), Text(f"{table.fate}{columns} ({table.table})"))
    for request in answer.open_requests:
        shown.add_row("request", Text(request), "answered")
    state = "" if answer.state_bytes is None else f" The stages that continue have {words.size(answer.state_bytes)} of state."
    return [
        Text(f"{found.explanation}{state}", style="cyan"),
        *([shown] if shown.row_count else []),
        Text("This was a dry run: nothing was written.", style="bold green"),
    ]


def _source(name: InputName, plan: "StartPlan") -> SourcePlan:
    if name in plan.settled.renewed:
        return SourcePlan(source=name, fate="is another one")
    return SourcePlan(source=name, fate="is the same" if name in plan.sources_before else "is new")


def _table(plan: "StartPlan", name: SinkName) -> TablePlan:
    planned, place = plan.tables[name], str(plan.places[name].path)
    if planned.table is None:
        return TablePlan(sink=name, table=place, fate="is made")
    if planned.grown:
        return TablePlan(sink=name, table=place, fate="gets columns", columns=tuple(planned.grown.names))
    return TablePlan(sink=name, table=place, fate="goes on")
