"""Reads the homes of all pipelines for the pipelines page, and one pipeline in full.

These functions read homes for every viewer. :class:`Sight` then decides what a viewer may see.
"""

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from hashlib import sha256
from typing import Any

from airflow_provider.homes import open_root
from airflow_provider.hooks.stream_pipeline import StreamPipelineHook
from airflow_provider.pages.read_only import read_only
from airflow_provider.settings import CONN_TYPE
from airflow_provider.tasks.identity import dag_of
from spark_jobs.background import run_all
from spark_jobs.checkpoint.checkpoint_store import CheckpointStore
from spark_jobs.checkpoint.savepoint_list import ListedSavepoint, list_savepoints
from spark_jobs.control.attempts import Attempts
from spark_jobs.control.channel import Channel
from spark_jobs.control.losses import LedgerEntry, LossLedger
from spark_jobs.control.pipeline_look import PipelineOverview, overview
from spark_jobs.control.pipeline_metrics import read_budgets_left
from spark_jobs.control.rounds import Rounds
from spark_jobs.home.layout import HISTORY, history_path, history_tries
from spark_jobs.home.search import find_things
from spark_jobs.protocol.documents import AttemptDocument, RoundDocument, StartResponse
from spark_jobs.protocol.errors import CorruptDocumentError, NotFoundError, StreamPipelineError
from spark_jobs.protocol.history import CheckpointHistory
from spark_jobs.protocol.ids import AttemptNumber, CheckpointId, RunId, StageName
from spark_jobs.storage.files import Files, is_mounted, read_document

ATTEMPTS_SHOWN = 20
LOSSES_SHOWN = 200
FRESH_S = 2.0
FRESH_IN_STORES_S = 15.0
"""Each look at a store costs money."""
SAVEPOINTS_FRESH_S = 30.0


@dataclass(frozen=True)
class Row:
    """One home of the list."""

    conn_id: str
    home: str
    """URL."""
    found: PipelineOverview | None
    problem: str = ""
    """The reason why the home cannot be read."""

    @property
    def key(self) -> str:
        """The name of the home in URLs, so that no URL shows a place."""
        return sha256(self.home.encode()).hexdigest()[:24]

    @property
    def run(self) -> RunId | None:
        """The run of the newest attempt."""
        attempt = self.found.look.attempt if self.found else None
        return attempt.run if attempt else None


@dataclass(frozen=True)
class Listing:
    """The homes below the roots of one connection."""

    conn_id: str
    rows: tuple[Row, ...] = ()
    savepoints: tuple[Files, ...] = ()
    problems: tuple[str, ...] = ()
    """The roots that cannot be read, with the reason."""
    in_store: bool = False


def list_pipelines(conn_id: str) -> Listing:
    """Looks at every home below the home roots of a connection. A root or a home that cannot be read hides no other one."""
    hook = StreamPipelineHook(conn_id)
    try:
        roots, savepoint_roots = hook.settings.roots, hook.settings.savepoint_roots
    except StreamPipelineError as error:
        return Listing(conn_id, problems=(error.failed,))
    homes, savepoints, problems, in_store = dict[str, Files](), dict[str, Files](), list[str](), False
    for root in dict.fromkeys((*roots, *savepoint_roots)):
        try:
            opened = open_root(root)
            in_store = in_store or not is_mounted(opened)
            found = find_things(read_only(opened) if is_mounted(opened) else opened)
        except StreamPipelineError as error:
            problems.append(f"{root}: {error.failed}")
            continue
        if found.left_out:
            problems.append(f"{root}: {found.left_out:,} directories were not looked at, because there are too many.")
        homes |= {each.url: each for each in found.homes if root in roots}
        savepoints |= {each.url: each for each in found.savepoints}
    rows = run_all([partial(_row, hook, url) for url in sorted(homes)])
    return Listing(conn_id, tuple(rows), tuple(savepoints.values()), tuple(problems), in_store)


def _row(hook: StreamPipelineHook, url: str) -> Row:
    try:
        return Row(hook.conn_id, url, overview(read_only(hook.files(url))))
    except CorruptDocumentError as error:  # its text may belong to a DAG that the viewer may not see
        return Row(hook.conn_id, url, None, f"{error.evidence.get('path', url)} cannot be read.")
    except StreamPipelineError as error:
        return Row(hook.conn_id, url, None, error.failed)


@dataclass(frozen=True)
class Detail:
    """One pipeline in full."""

    row: Row
    round: RoundDocument | None = None
    restorable: frozenset[CheckpointId] = frozenset()
    """The checkpoints that exist."""
    attempts: tuple[AttemptDocument, ...] = ()
    """The attempts, the newest first."""
    answers: Mapping[AttemptNumber, StartResponse] = field(default_factory=dict)
    tries: Mapping[str, CheckpointHistory] = field(default_factory=dict)
    """The history of each remembered try by its path, the oldest first. It never changes, so the next look reads only new entries."""
    losses: tuple[LedgerEntry, ...] = ()
    """The newest losses of the ledger, the newest first."""
    budgets_left: Mapping[StageName, int] = field(default_factory=dict)
    """The number of rows that each stage with a tolerance may still pass over."""


def look_at(row: Row, before: Detail | None) -> Detail:
    """Looks at one home in full.

    Raises:
        StreamPipelineError: The home cannot be read.
    """
    files = read_only(StreamPipelineHook(row.conn_id).files(row.home))
    row = Row(row.conn_id, row.home, overview(files))
    names = Attempts(files).numbers()[-ATTEMPTS_SHOWN:][::-1]
    known = {each.attempt: each for each in before.attempts} if before else {}
    attempts = [known.get(number) or Attempts(files).read(number) for number in names]
    answers = dict(before.answers) if before else {}
    channel = Channel(files)
    for each in attempts:
        if each.attempt not in answers and (answer := channel.response(each.request)) is not None:
            answers[each.attempt] = answer
    losses, budgets = _losses(files, row)
    return Detail(
        row,
        Rounds(files).latest(),
        frozenset(CheckpointStore(files).taken()),
        tuple(attempts),
        {each.attempt: answers[each.attempt] for each in attempts if each.attempt in answers},
        _tries(files, before.tries if before else {}),
        losses,
        budgets,
    )


def _losses(files: Files, row: Row) -> tuple[tuple[LedgerEntry, ...], dict[StageName, int]]:
    """Returns the newest losses, the newest first, and the budgets that they leave."""
    ledger = LossLedger(files)
    names = ledger.names()
    losses = tuple(ledger.entries(LOSSES_SHOWN, names)[::-1])
    status = row.found.look.status if row.found else None
    known = {each.recorded.loss.id: each.recorded for each in losses}
    return losses, read_budgets_left(ledger, status, lambda loss: known.get(loss) or ledger.read(loss), names)


def _tries(files: Files, known: Mapping[str, CheckpointHistory]) -> dict[str, CheckpointHistory]:
    paths = [history_path(checkpoint, number) for checkpoint, number in history_tries(files.names(HISTORY))]
    read = run_all([partial(_try, files, path) for path in paths if path not in known])
    new = {path: found for path, found in zip((path for path in paths if path not in known), read, strict=True) if found}
    return {path: found for path in paths if (found := known.get(path) or new.get(path)) is not None}


def _try(files: Files, path: str) -> CheckpointHistory | None:
    try:
        return read_document(files, path, CheckpointHistory)
    except (CorruptDocumentError, NotFoundError):  # the history is only shown
        return None


def savepoints_of(listing: Listing) -> list[ListedSavepoint]:
    """Reads the savepoints below the roots of a connection."""
    return list_savepoints(read_only(place) if is_mounted(place) else place for place in listing.savepoints)


@dataclass(frozen=True)
class Control:
    """The DAG that controls a pipeline."""

    dag_id: str
    conn_id: str
    actions: tuple[str, ...]
    is_paused: bool


@dataclass(frozen=True)
class Sight:
    """The permissions of one viewer.

    A viewer sees a pipeline if they may see the DAG that controls it or the DAG of its newest run, or may read its connection. A viewer
    who may see only one DAG sees nothing of other DAGs' runs in the same home.

    Args:
        may_see: Returns whether the viewer may see the task instances of a DAG.
        may_read: Returns whether the viewer may read a connection.
        controls: The control DAGs, by the URL of the home.
    """

    may_see: Callable[[str], bool]
    may_read: Callable[[str], bool]
    controls: Mapping[str, Sequence[Control]]

    def control_of(self, row: Row) -> Control | None:
        """Returns the first DAG that controls a pipeline and that the viewer may see."""
        found = self.controls.get(row.home, ())
        return next((each for each in found if each.conn_id == row.conn_id and self.may_see(each.dag_id)), None)

    def sees_all(self, row: Row) -> bool:
        return self.control_of(row) is not None or self.may_read(row.conn_id)

    def sees_run(self, run: RunId | None) -> bool:
        return run is not None and (dag_id := dag_of(run)) is not None and self.may_see(dag_id)

    def sees(self, row: Row) -> bool:
        """Returns True if the viewer may know that a pipeline exists."""
        return self.sees_all(row) or self.sees_run(row.run)

    def row(self, row: Row) -> Row:
        """Returns the part of a row that the viewer may see."""
        found = row.found
        if found is None or self.sees_all(row):
            return row
        head = found.head if found.head and self.sees_run(found.head.run) else None
        of_head = {loss.id for loss in head.losses} if head else set()
        return replace(row, found=replace(found, head=head, open_losses=found.open_losses & of_head))

    def detail(self, detail: Detail) -> Detail:
        """Returns the part of a pipeline's details that the viewer may see."""
        if self.sees_all(detail.row):
            return detail
        attempts = tuple(each for each in detail.attempts if self.sees_run(each.run))
        seen = {each.attempt for each in attempts}
        return Detail(
            self.row(detail.row),
            detail.round if detail.round and self.sees_run(detail.round.run) else None,
            detail.restorable,
            attempts,
            {number: answer for number, answer in detail.answers.items() if number in seen},
            {path: each for path, each in detail.tries.items() if each.attempt in seen},
            tuple(each for each in detail.losses if self.sees_run(each.recorded.run)),
        )


def levels(graph: Mapping[str, Any]) -> list[list[tuple[str, list[str]]]]:
    """Returns the stages of a graph in columns, each with its inputs. A stage is to the right of all its inputs."""
    stages: Mapping[str, Any] = graph.get("stages", {})
    reads = {name: list(stage.get("inputs", {}).values()) for name, stage in stages.items()}
    depth: dict[str, int] = {}
    while len(depth) < len(reads):
        ready = {
            name: 1 + max((depth[each] for each in inputs if each in reads), default=-1)
            for name, inputs in reads.items()
            if name not in depth and all(each in depth for each in inputs if each in reads)
        }
        if not ready:  # the document is foreign text: it may contain a circle
            ready = {name: 0 for name in reads if name not in depth}
        depth |= ready
    columns: list[list[tuple[str, list[str]]]] = [[] for _ in range(max(depth.values(), default=-1) + 1)]
    for name in reads:
        columns[depth[name]].append((name, reads[name]))
    return columns


def environment_connections(environment: Mapping[str, str] = os.environ) -> Iterable[str]:
    """Returns the ids of stream pipeline connections in the environment, which Airflow's database does not contain."""
    prefix, types = "AIRFLOW_CONN_", (CONN_TYPE, CONN_TYPE.replace("_", "-"))
    for name, value in environment.items():
        if name.startswith(prefix) and any(each in value for each in types):
            yield name.removeprefix(prefix).lower()
