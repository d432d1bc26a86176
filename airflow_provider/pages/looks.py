"""Reads a task's homes for its pages. Shows only documents of the task's own run, or of a DAG that the viewer may see.

A task has recorded its homes, but everyone who may edit XComs can change that record. It is therefore only a hint: the home has to be
inside the connection's roots, and its documents have to name a run that the viewer may see.
"""

import os
import socket
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from shlex import quote

from pydantic import BaseModel, ConfigDict, Field

from airflow_provider.drivers.driver_log import LogFile, driver_log, driver_output
from airflow_provider.hooks.stream_pipeline import StreamPipelineHook
from airflow_provider.pages.read_only import read_only
from airflow_provider.tasks.identity import dag_of, run_id_of
from spark_jobs.checkpoint.checkpoint_store import CheckpointStore
from spark_jobs.control.channel import Channel
from spark_jobs.protocol.documents import Manifest, SinkResult, StartResponse
from spark_jobs.protocol.errors import (
    AccessDeniedError,
    CorruptDocumentError,
    MissingRequirementError,
    RejectedError,
    StreamPipelineError,
    UnsupportedFormatError,
)
from spark_jobs.protocol.ids import AttemptNumber, CheckpointId, SinkName
from spark_jobs.storage.files import Files, is_mounted, local_path

HOMES_MAX = 100


@dataclass(frozen=True)
class TaskKey:
    """A task instance in any of its tries."""

    dag_id: str
    run_id: str
    task_id: str
    map_index: int


class Record(BaseModel):
    """The record of a task about its homes; see :func:`airflow_provider.links.record_homes`."""

    model_config = ConfigDict(frozen=True, strict=True)

    conn_id: str = Field(max_length=250)
    homes: dict[str, int | None] = Field(max_length=HOMES_MAX)


@dataclass(frozen=True)
class Look:
    """The view of one home on a page."""

    home: str
    attempt: AttemptNumber | None = None
    logs: tuple[LogFile, ...] = ()
    """The files into which its driver, or the process that publishes with Spark, may have written."""
    manifest: Manifest | None = None
    answer: StartResponse | None = None
    problem: str = ""
    remedy: str = ""

    @property
    def checkpoint(self) -> CheckpointId | None:
        """The checkpoint, even if it was discarded since."""
        known = self.manifest or self.answer
        return None if known is None else known.checkpoint

    def results(self) -> dict[SinkName, SinkResult]:
        """Returns the tables at the end of the run; empty while it has not ended."""
        return self.answer.sinks if self.answer is not None else {}


def look_at_homes(task: TaskKey, record: Record, may_see: Callable[[str], bool]) -> Iterator[Look]:
    """Looks at each of a task's homes from this host.

    Args:
        task: The task whose pages are shown.
        record: The record of the task about its homes.
        may_see: Returns whether the viewer may see the task instances of a DAG.
    """
    hook = StreamPipelineHook(record.conn_id)
    unusable = _unusable(hook)
    for home, checkpoint in record.homes.items():
        if unusable:
            yield Look(home, problem=unusable, remedy="Ask a person who edits connections to define it for the API server, too.")
            continue
        files = _allowed(hook, home)
        if files is None:
            yield Look(
                home,
                problem=f"It is not inside the home roots of the connection '{record.conn_id}', or not any more.",
                remedy="Ask a person who edits connections: its home_root names the directories whose homes may be shown.",
            )
            continue
        try:
            found = _look(task, read_only(files), checkpoint, may_see)
        except (CorruptDocumentError, UnsupportedFormatError) as error:
            # The error's text may belong to a DAG that the viewer may not see.
            remedy = f"Ask a person who may read the home to look for damage: spark-jobs checkpoints --home {quote(home)}"
            found = Look(home, problem=f"{error.evidence.get('path', home)} cannot be read.", remedy=remedy)
        except StreamPipelineError as error:
            found = Look(home, problem=error.failed, remedy=error.remedy)
        if checkpoint is not None and not found.problem:
            found = replace(found, logs=(*found.logs, hook.publication_log(home, CheckpointId(checkpoint))))
        yield found


def _unusable(hook: StreamPipelineHook) -> str:
    """Returns the problem of the connection, as far as a viewer may know it; empty if there is none."""
    try:
        hook.settings  # noqa: B018  # read for its error
    except MissingRequirementError:
        return f"The connection '{hook.conn_id}' is not known on {socket.gethostname()}, where Airflow's API server runs."
    except RejectedError:
        return f"The connection '{hook.conn_id}' cannot be used."
    return ""


def _allowed(hook: StreamPipelineHook, home: str) -> Files | None:
    try:
        files = hook.files(home)
    except (AccessDeniedError, RejectedError):
        return None
    return files if files.url == home else None  # a task records the resolved place of its home


def _look(task: TaskKey, files: Files, checkpoint: int | None, may_see: Callable[[str], bool]) -> Look:
    if is_mounted(files) and not os.path.isdir(local_path(files)):  # isdir is also False if this user may not look
        return Look(
            files.url,
            problem=f"It is not on {socket.gethostname()}, where Airflow's API server runs.",
            remedy="Mount it there under the same path, or look from a host that has it: spark-jobs status --home "
            f"{local_path(files)}",
        )
    if checkpoint is None:
        return _own_run(files, task, may_see)
    manifest = CheckpointStore(files).manifest(CheckpointId(checkpoint))
    if not _may_show(task, manifest, may_see):
        return _not_shown(files, manifest.checkpoint)
    return Look(files.url, manifest.attempt, _logs(files, manifest.attempt), manifest)


def _may_show(task: TaskKey, manifest: Manifest, may_see: Callable[[str], bool]) -> bool:
    """Returns True if a viewer may see a manifest: it belongs to the task's own run, or to a DAG that the viewer may see.

    Every manifest passes this check before a page shows it. A home may serve several DAGs, and an answer may name any checkpoint.
    """
    return manifest.run == run_id_of(task) or ((dag_id := dag_of(manifest.run)) is not None and may_see(dag_id))


def _not_shown(files: Files, checkpoint: CheckpointId) -> Look:
    return Look(
        files.url,
        problem=f"Checkpoint {checkpoint} does not belong to a DAG that you may see.",
        remedy=f"Look at the home itself: spark-jobs inspect --home {_typed(files)} --checkpoint {checkpoint}",
    )


def _own_run(files: Files, task: TaskKey, may_see: Callable[[str], bool]) -> Look:
    run, channel, store = run_id_of(task), Channel(files), CheckpointStore(files)
    request, answer = channel.newest_request(run), channel.answer(run)
    attempt = request.attempt if request is not None else answer.attempt if answer is not None else None
    if attempt is None:
        return Look(
            files.url,
            problem=f"It has nothing of this run on {socket.gethostname()}, where Airflow's API server runs.",
            remedy="If no driver was started yet, look again later. If drivers run on other hosts, mount a home that is a directory here "
            "under the same path. The documents of old runs are deleted.",
        )
    if answer is not None and answer.checkpoint is not None:
        manifest = store.kept(answer.checkpoint)
    else:
        head = store.head()
        manifest = head if head is not None and head.run == run else None
    if manifest is not None and not _may_show(task, manifest, may_see):
        return _not_shown(files, manifest.checkpoint)
    return Look(files.url, attempt, _logs(files, attempt), manifest, answer)


def _logs(files: Files, attempt: AttemptNumber) -> tuple[LogFile, ...]:
    return driver_log(files, attempt), driver_output(files, attempt)


def _typed(files: Files) -> str:
    """Returns a home as people write it."""
    return str(files.local() or files.url)
