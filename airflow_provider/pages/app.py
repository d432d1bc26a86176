"""The FastAPI app with the pages of this provider. Airflow's API server protects each page as it protects the task instance itself."""

import json
import socket
from base64 import b64encode
from collections.abc import Callable, Iterator, Mapping
from hashlib import sha256
from typing import Annotated, Any

from airflow.api_fastapi.app import get_auth_manager
from airflow.api_fastapi.auth.managers.models.resource_details import DagAccessEntity, DagDetails
from airflow.api_fastapi.common.db.common import SessionDep
from airflow.api_fastapi.core_api.security import GetUserDep, requires_access_dag
from airflow.models.dag import DagModel
from airflow.models.xcom import XComModel
from fastapi import APIRouter, Depends, FastAPI, HTTPException, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import HTMLResponse
from pydantic import BaseModel, ValidationError
from sqlalchemy import select
from sqlalchemy.orm import Session
from starlette.datastructures import MutableHeaders
from starlette.exceptions import HTTPException as StarletteHTTPException
from starlette.types import Message, Receive, Scope, Send

from airflow_provider.links import RECORD_KEY
from airflow_provider.pages import pipelines
from airflow_provider.pages.look_limits import look_with_limit
from airflow_provider.pages.looks import Look, Record, TaskKey, look_at_homes
from airflow_provider.pages.rendering import rendered

LOG_LINES = 200
LINE_MAX_CHARACTERS = 2_000
MANIFEST_MAX_CHARACTERS = 500_000

_STYLE = rendered("style.css", {})
_HEADERS = {
    "Content-Security-Policy": "default-src 'none'; base-uri 'none'; form-action 'none'; frame-ancestors 'self'; "
    f"style-src 'sha256-{b64encode(sha256(_STYLE.encode()).digest()).decode()}'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-store",
}
"""These headers allow no script, no content of other sites, no frame in another site and no copy in a shared cache.

The pipelines page needs a script of this server and sets its own policy.
"""


class _Table(BaseModel):
    table: str
    rows: int
    version: int | None = None
    known: bool = True
    """True if it is known whether the rows are public."""


class _Published(BaseModel):
    """The result of a publishing task for one home; see :func:`airflow_provider.facts.publication_facts`."""

    checkpoint: int
    sinks: dict[str, _Table]


def task_of_path(dag_id: str, run_id: str, task_id: str, map_index: int) -> TaskKey:
    """Returns the task instance of a URL. A URL names nothing else."""
    return TaskKey(dag_id, run_id, task_id, map_index)


def recorded(session: Session, task: TaskKey, key: str) -> Any:
    """Returns an XCom of a task instance; None if there is none. The value is only parsed as JSON, so it cannot create objects."""
    found = session.scalar(
        select(XComModel.value).where(
            XComModel.dag_id == task.dag_id,
            XComModel.run_id == task.run_id,
            XComModel.task_id == task.task_id,
            XComModel.map_index == task.map_index,
            XComModel.key == key,
        )
    )
    try:
        return json.loads(found) if isinstance(found, str) else found
    except ValueError:
        return None


def may_see_dags(user: Any) -> Callable[[str], bool]:
    """Returns a function that says whether a user may see the task instances of a DAG."""

    def may_see(dag_id: str) -> bool:
        details = DagDetails(id=dag_id, team_name=DagModel.get_team_name(dag_id))
        entity = DagAccessEntity.TASK_INSTANCE
        return bool(get_auth_manager().is_authorized_dag(method="GET", access_entity=entity, details=details, user=user))

    return may_see


def looks(task: Annotated[TaskKey, Depends(task_of_path)], session: SessionDep, user: GetUserDep) -> list[Look]:
    """Looks at the homes that the task has recorded."""
    try:
        record = Record.model_validate(recorded(session, task, RECORD_KEY))
    except ValidationError:
        raise HTTPException(
            404,
            "This task instance has recorded no home: it has not run yet, was refused before that, or is no task of a pipeline.",
        ) from None
    return look_with_limit(lambda: list(look_at_homes(task, record, may_see_dags(user))))


Task = Annotated[TaskKey, Depends(task_of_path)]
Looks = Annotated[list[Look], Depends(looks)]

router = APIRouter(
    prefix="/dags/{dag_id}/runs/{run_id}/tasks/{task_id}/{map_index}",
    dependencies=[Depends(requires_access_dag("GET", DagAccessEntity.TASK_INSTANCE))],
)


@router.get("/manifest")
def manifest(task: Task, looks: Looks) -> HTMLResponse:
    """Shows the manifest of each checkpoint that the task works on."""
    texts = {}
    for look in looks:
        if look.manifest is not None:
            text = json.dumps(look.manifest.model_dump(mode="json"), indent=2, ensure_ascii=False)
            cut = f"\n… cut here: it has {len(text):,} characters" if len(text) > MANIFEST_MAX_CHARACTERS else ""
            texts[look.home] = text[:MANIFEST_MAX_CHARACTERS] + cut
    return _page("manifest.html", task, looks=looks, texts=texts)


@router.get("/driver-log", dependencies=[Depends(requires_access_dag("GET", DagAccessEntity.TASK_LOGS))])
def driver_log(task: Task, looks: Looks) -> HTMLResponse:
    """Shows the last lines of each driver's log and output."""
    logs = look_with_limit(lambda: {look.home: list(_logs(look)) for look in looks})
    return _page("driver_log.html", task, looks=looks, logs=logs, count=LOG_LINES, host=socket.gethostname())


@router.get("/tables", dependencies=[Depends(requires_access_dag("GET", DagAccessEntity.XCOM))])
def tables(task: Task, looks: Looks, session: SessionDep) -> HTMLResponse:
    """Shows the tables of each home with their Delta versions."""
    published = _published(recorded(session, task, "return_value"))
    return _page("tables.html", task, looks=looks, tables={look.home: _tables(look, published.get(look.home)) for look in looks})


def _logs(look: Look) -> Iterator[tuple[str, str]]:
    """Yields the last lines of each log by its path, without logs that do not exist."""
    for log in look.logs:
        lines = [line[:LINE_MAX_CHARACTERS] for line in log.last_lines(LOG_LINES)]
        if lines:
            yield str(log), "\n".join(lines)


def _published(value: Any) -> dict[str, _Published]:
    """Returns the results of a publishing task by home. A value of another kind gives none."""
    found = {}
    for home, facts in value.items() if isinstance(value, dict) else ():
        try:
            found[home] = _Published.model_validate(facts)
        except ValidationError:
            continue
    return found


def _tables(look: Look, published: _Published | None) -> dict[str, _Table]:
    """Returns the tables at the end of the task, or the tables of a checkpoint that is not published yet."""
    if look.checkpoint is None:
        return {}
    if published is not None and published.checkpoint == look.checkpoint:
        return published.sinks
    results = look.results()
    if results:
        return {name: _Table(table=sink.table, rows=sink.rows, version=sink.version) for name, sink in results.items()}
    cuts = look.manifest.sinks.items() if look.manifest is not None else ()
    return {name: _Table(table=cut.table, rows=cut.actions.rows, known=False) for name, cut in cuts}


def _page(template: str, task: TaskKey, status_code: int = 200, **values: Any) -> HTMLResponse:
    return HTMLResponse(rendered(template, {"task": task, "style": _STYLE, **values}), status_code)


def _refusal(request: Request, error: Exception) -> HTMLResponse:
    assert isinstance(error, StarletteHTTPException)
    return _refused(error.status_code, error.detail, error.headers)


def _no_address(request: Request, error: Exception) -> HTMLResponse:
    return _refused(422, "This is not the address of a page: the map index has to be a whole number.")


def _refused(status: int, detail: str, headers: Mapping[str, str] | None = None) -> HTMLResponse:
    text = rendered("refusal.html", {"style": _STYLE, "status": status, "detail": detail})
    return HTMLResponse(text, status, headers)


class _Pages(FastAPI):
    """An app that adds the pages' headers to every response, including those of Starlette itself."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in _HEADERS.items():
                    headers.setdefault(name, value)
            await send(message)

        await super().__call__(scope, receive, send_with_headers)


def make_app() -> FastAPI:
    """Creates the app without pages that describe its API, and without redirects, which would be sent before a user has signed in."""
    app = _Pages(title="Stream pipelines", docs_url=None, redoc_url=None, openapi_url=None, redirect_slashes=False)
    app.include_router(router)
    app.include_router(pipelines.router)
    app.add_exception_handler(StarletteHTTPException, _refusal)
    app.add_exception_handler(RequestValidationError, _no_address)
    return app
