"""The pipelines page: the list of all pipelines, and one pipeline in full. The page only reads; the pipeline's control DAG acts."""

import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import Annotated, Any

from airflow.api_fastapi.app import get_auth_manager
from airflow.api_fastapi.auth.managers.models.resource_details import ConnectionDetails, DagAccessEntity, DagDetails
from airflow.api_fastapi.core_api.security import GetUserDep, get_user
from airflow.models.connection import Connection
from airflow.models.dag import DagModel, DagTag
from airflow.models.serialized_dag import SerializedDagModel
from airflow.utils.session import create_session
from fastapi import APIRouter, Depends, HTTPException
from fastapi.responses import HTMLResponse, Response
from sqlalchemy import select

from airflow_provider.control_dag import CONTROL_TAG
from airflow_provider.hooks.stream_pipeline import StreamPipelineHook
from airflow_provider.pages.comparison import alignment, compared, outcome, took
from airflow_provider.pages.kept_looks import Kept, KeptLooks
from airflow_provider.pages.pipeline_looks import (
    FRESH_IN_STORES_S,
    FRESH_S,
    SAVEPOINTS_FRESH_S,
    Control,
    Detail,
    Listing,
    Row,
    Sight,
    environment_connections,
    levels,
    list_pipelines,
    look_at,
    savepoints_of,
)
from airflow_provider.pages.rendering import rendered
from airflow_provider.settings import CONN_TYPE
from airflow_provider.tasks.identity import dag_of
from spark_jobs.checkpoint.savepoint_list import ListedSavepoint
from spark_jobs.protocol.documents import InputLag, RunState, SinkResult
from spark_jobs.protocol.errors import StreamPipelineError
from spark_jobs.protocol.history import CheckpointHistory
from spark_jobs.protocol.ids import SinkName
from spark_jobs.protocol.losses import rows_at_most, said

_POLICY = (
    "default-src 'none'; base-uri 'none'; form-action 'none'; frame-ancestors 'self'; "
    "script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'"
)
"""Allows only scripts and styles of this server, and no inline script."""
_HEADERS = {"Content-Security-Policy": _POLICY}
_STATIC = Path(__file__).with_name("static")
_TYPES = {".js": "text/javascript; charset=utf-8", ".css": "text/css; charset=utf-8"}
_CONTROLS_FRESH_S = 5.0
_ROWS_MAX = 200
"""The number of tries in the table of checkpoints. The plots show all of them."""

_kept = KeptLooks()
router = APIRouter(dependencies=[Depends(get_user)])


def _controls(before: dict[str, list[Control]] | None) -> dict[str, list[Control]]:
    """Finds the control DAGs, by the URL of their home."""
    found: dict[str, list[Control]] = {}
    with create_session() as session:
        dags = (
            select(DagModel.dag_id, DagModel.is_paused).join(DagTag, DagTag.dag_id == DagModel.dag_id).order_by(DagModel.dag_id)
        )
        for dag_id, is_paused in session.execute(dags.where(DagTag.name == CONTROL_TAG, DagModel.is_stale.is_(False))):
            dag = SerializedDagModel.get_dag(dag_id, session=session)
            try:
                assert dag is not None
                params = dag.params
                conn_id, home = str(params["conn_id"]), str(params["home"])
                actions = tuple(map(str, params.get_param("action").schema["enum"]))
                url = StreamPipelineHook(conn_id).files(home).url
            except (AssertionError, KeyError, StreamPipelineError):  # another DAG with that tag, or a home that is not allowed
                continue
            found.setdefault(url, []).append(Control(dag_id, conn_id, actions, bool(is_paused)))
    return found


def sight_of(user: GetUserDep) -> Sight:
    """Returns the permissions of the viewer."""
    manager = get_auth_manager()

    @cache
    def may_see(dag_id: str) -> bool:
        details = DagDetails(id=dag_id, team_name=DagModel.get_team_name(dag_id))
        return bool(
            manager.is_authorized_dag(method="GET", access_entity=DagAccessEntity.TASK_INSTANCE, details=details, user=user)
        )

    @cache
    def may_read(conn_id: str) -> bool:
        details = ConnectionDetails(conn_id=conn_id, team_name=Connection.get_team_name(conn_id))
        return bool(manager.is_authorized_connection(method="GET", details=details, user=user))

    return Sight(may_see, may_read, _kept.get("controls", _controls, _CONTROLS_FRESH_S).value)


SightDep = Annotated[Sight, Depends(sight_of)]


def may_trigger(user: GetUserDep) -> Callable[[str], bool]:
    """Returns a function that says whether the viewer may trigger a DAG."""

    def may(dag_id: str) -> bool:
        details = DagDetails(id=dag_id, team_name=DagModel.get_team_name(dag_id))
        return bool(
            get_auth_manager().is_authorized_dag(method="POST", access_entity=DagAccessEntity.RUN, details=details, user=user)
        )

    return may


def connections(sight: Sight) -> list[str]:
    """Returns the connections whose pipelines are listed: from Airflow's database, the environment and control DAGs."""
    with create_session() as session:
        known = session.scalars(select(Connection.conn_id).where(Connection.conn_type == CONN_TYPE)).all()
    return sorted(
        {*map(str, known), *environment_connections(), *(each.conn_id for found in sight.controls.values() for each in found)}
    )


def _listing(conn_id: str) -> Kept[Listing]:
    in_store = _stores.get(conn_id, False)
    found = _kept.get(("list", conn_id), lambda _: list_pipelines(conn_id), FRESH_IN_STORES_S if in_store else FRESH_S)
    _stores[conn_id] = found.value.in_store
    return found


_stores: dict[str, bool] = {}
"""By connection, whether its roots are in a store, as of the last look."""


@router.get("/pipelines")
def pipelines(sight: SightDep, dag_id: str | None = None) -> HTMLResponse:
    """Lists the pipelines that the viewer may see, those that need attention first; with ``dag_id`` only the pipelines of one DAG."""
    rows, problems, age_s = list[Row](), list[str](), 0.0
    for conn_id in connections(sight):
        try:
            listing = _listing(conn_id)
        except HTTPException as error:
            problems.append(f"{conn_id}: {error.detail}")
            continue
        age_s = max(age_s, listing.age_s)
        rows += [sight.row(row) for row in listing.value.rows if sight.sees(row)]
        if sight.may_read(conn_id):
            problems += [f"{conn_id}: {problem}" for problem in listing.value.problems]
    shown = [_shown_row(row, sight) for row in rows if dag_id is None or dag_id in _dags(row, sight)]
    shown.sort(key=lambda each: (not each.needs, each.name, each.row.home))
    return _page("pipelines.html", depth=0, rows=shown, problems=problems, age_s=age_s, dag_id=dag_id)


@router.get("/pipelines/{conn_id}/{key}")
def pipeline(
    conn_id: str,
    key: str,
    sight: SightDep,
    may: Annotated[Callable[[str], bool], Depends(may_trigger)],
    first: str = "",
    second: str = "",
) -> HTMLResponse:
    """Shows one pipeline in full; with ``first`` and ``second`` also a comparison of two tries at a checkpoint."""
    rows = _listing(conn_id).value.rows if conn_id in connections(sight) else ()
    row = next((each for each in rows if each.key == key and sight.sees(each)), None)
    if row is None:
        raise HTTPException(404, "This pipeline does not exist, or you may not see it.")
    try:
        fresh_s = FRESH_IN_STORES_S if _stores.get(conn_id) else FRESH_S
        kept = _kept.get(("pipeline", row.conn_id, row.home), partial(look_at, row), fresh_s)
        detail, age_s, problem = sight.detail(kept.value), kept.age_s, ""
    except StreamPipelineError as error:
        detail, age_s, problem = (
            sight.detail(Detail(row)),
            0.0,
            row.problem or f"{type(error).__name__}: the home cannot be read.",
        )
    control = sight.control_of(row)
    acts = control is not None and may(control.dag_id)
    head = detail.row.found.head if detail.row.found else None
    graph = detail.round.graph if detail.round else head.graph if head else {}
    tries = {path.rpartition("/")[2].removesuffix(".json"): each for path, each in detail.tries.items()}
    chosen = [name for name in dict.fromkeys((first, second)) if name in tries]
    return _page(
        "pipeline.html",
        depth=2,
        shown=_shown_row(detail.row, sight),
        detail=detail,
        head=head,
        status=detail.row.found.look.status if detail.row.found else None,
        columns=levels(graph),
        said=said,
        rows_at_most=rows_at_most,
        tries=list(tries.items())[: -_ROWS_MAX - 1 : -1],
        plots=_plots(tries.values()),
        chosen=chosen,
        compared=compared(*(tries[name] for name in chosen)) if len(chosen) == 2 else [],
        versions=_versions(detail),
        savepoints=_savepoints(row, head.pipeline if head else None) if sight.sees_all(row) else [],
        control=control,
        acts=acts,
        age_s=age_s,
        problem=problem,
    )


@router.get("/static/{name}")
def static(name: str) -> Response:
    """Returns a script or a style of the pages."""
    path = next((each for each in _STATIC.iterdir() if each.name == name and each.suffix in _TYPES), None)
    if path is None:
        raise HTTPException(404, "This file does not exist.")
    return Response(path.read_bytes(), media_type=_TYPES[path.suffix], headers={"Cache-Control": "private, max-age=300"})


@dataclass(frozen=True)
class ShownRow:
    """A pipeline as a page shows it."""

    row: Row
    name: str
    state: str
    is_well: bool
    reasons: list[str]
    open_losses: int
    dag_id: str | None
    """The DAG of its newest run, if the viewer may see it."""
    control: Control | None
    lags: Sequence[InputLag] = ()
    """The lag of all inputs, if a driver is at work and one is known."""

    @property
    def needs(self) -> bool:
        """True if the pipeline needs attention."""
        return bool(self.reasons)


def _shown_row(row: Row, sight: Sight) -> ShownRow:
    found = row.found
    run_dag = dag_of(row.run) if row.run else None
    dag_id = run_dag if run_dag is not None and sight.may_see(run_dag) else None
    if found is None:
        return ShownRow(
            row, row.home.rpartition("/")[2], "cannot be read", False, [row.problem], 0, dag_id, sight.control_of(row)
        )
    state = found.look.state
    return ShownRow(
        row,
        found.name,
        state.value if state else "nothing has run",
        state is not RunState.FAILED and not found.reasons,
        found.reasons,
        len(found.open_losses),
        dag_id,
        sight.control_of(row),
        _lags(row),
    )


def _dags(row: Row, sight: Sight) -> set[str | None]:
    control = sight.control_of(row)
    return {dag_of(row.run) if row.run else None, control.dag_id if control else None}


def _lags(row: Row) -> list[InputLag]:
    """Returns the lag of all inputs of a pipeline that a driver runs: the sum, as far as it is known."""
    status = row.found.look.status if row.found and row.found.look.at_work else None
    lags = [lag for stage in status.stages.values() for lag in stage.lag.values()] if status else []
    sums = {
        name: sum(known)
        for name in InputLag.model_fields
        if (known := [v for lag in lags if (v := getattr(lag, name)) is not None])
    }
    return [InputLag(**sums)] if sums else []


def _versions(detail: Detail) -> dict[SinkName, SinkResult]:
    """Returns the tables as of the newest attempt that has ended with public rows."""
    ended = [detail.answers[number] for number in sorted(detail.answers, reverse=True)]
    return next((answer.sinks for answer in ended if answer.sinks), {})


def _savepoints(row: Row, pipeline: Any) -> list[ListedSavepoint]:
    """Returns the savepoints of one pipeline, and the incomplete ones in its home."""
    listing = _listing(row.conn_id).value
    kept = _kept.get(("savepoints", row.conn_id), lambda _: savepoints_of(listing), SAVEPOINTS_FRESH_S)
    return [
        each
        for each in kept.value
        if (each.savepoint is not None and each.savepoint.pipeline == pipeline) or each.url.startswith(f"{row.home}/")
    ]


def _plots(history: Iterable[CheckpointHistory]) -> list[dict[str, Any]]:
    """Returns the plots of the checkpoint history. Each try is one point, at the time when it began."""
    tries = sorted(history, key=lambda each: each.began_at)
    if len(tries) < 2:
        return []
    x = [round(each.began_at.timestamp(), 3) for each in tries]
    done = [each.failure is None for each in tries]
    total = [round(took(each), 3) for each in tries]
    steps = list(dict.fromkeys(step.step for each in tries for step in each.steps))
    by_step = {name: [sum(s.duration_s for s in each.steps if s.step == name) for each in tries] for name in steps}

    def line(label: str, values: Iterable[float]) -> dict[str, Any]:
        return {"label": label, "values": list(values)}

    failed = {
        "label": "failed",
        "values": [each if not well else None for each, well in zip(total, done, strict=True)],
        "points": True,
    }
    return [
        {
            "title": "Duration by step",
            "unit": "s",
            "x": x,
            "series": [line("total", total), *(line(name, values) for name, values in by_step.items()), failed],
        },
        {
            "title": "State",
            "unit": "bytes",
            "x": x,
            "series": [
                line("new", (each.new_state_bytes for each in tries)),
                line("reused", (each.reused_state_bytes for each in tries)),
            ],
        },
        {"title": "Alignment", "unit": "s", "x": x, "series": [line("waited", (each.alignment_s for each in tries))]},
        {"title": "In flight", "unit": "rows", "x": x, "series": [line("rows", (each.in_flight_rows for each in tries))]},
    ]


def _page(template: str, *, depth: int, **values: Any) -> HTMLResponse:
    root = "../" * depth
    values |= {
        "root": root,
        "airflow": f"{root}../",
        "as_json": json.dumps,
        "alignment": alignment,
        "outcome": outcome,
        "took": took,
    }
    return HTMLResponse(rendered(template, values), headers=_HEADERS)
