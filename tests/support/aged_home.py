"""A home after many rounds, made by the product's own code without Spark. Counts storage operations."""

from collections import Counter, defaultdict
from collections.abc import Callable
from datetime import UTC, datetime

from spark_jobs.checkpoint.checkpoint_store import CheckpointStore
from spark_jobs.control.channel import Channel
from spark_jobs.control.checkpoint_requests import CheckpointRequests, request_id
from spark_jobs.control.lease import AttemptLease
from spark_jobs.control.old_starts import forget_old_starts
from spark_jobs.control.rounds import Rounds
from spark_jobs.control.status import write_status
from spark_jobs.home.layout import request_path, savepoint_path
from spark_jobs.protocol.checkpoint_requests import CheckpointRequest, CheckpointResponse, Wanted
from spark_jobs.protocol.documents import (
    AttemptDocument,
    CheckpointKind,
    Manifest,
    OnEnd,
    PinnedInput,
    RoundDocument,
    RunState,
    StartResponse,
    Status,
)
from spark_jobs.protocol.ids import CheckpointId, InputName, PipelineName, RequestId, RunId
from spark_jobs.protocol.start_requests import StartRequest
from spark_jobs.runtime.checkpoints.subsume import Subsumption
from spark_jobs.runtime.start.attempt import begin_attempt
from spark_jobs.runtime.start.decision import Answer, Continue, decide
from spark_jobs.runtime.start.facts import read_facts
from spark_jobs.runtime.start.work_directory import new_work_directory
from spark_jobs.storage.files import READ_MAX_BYTES, create_document
from tests.support import small_pipeline
from tests.support.memory_files import MemoryFiles
from tests.support.staged_pipeline import NOW, a_manifest

GRAPH = small_pipeline.pipeline.graph()


class CountedFiles(MemoryFiles):
    """Counts the operations of each kind.

    A home after many rounds has thousands of files, so a listing reads only one directory's paths.
    """

    def __init__(self) -> None:
        super().__init__()
        self.counts: Counter[str] = Counter()
        self._paths: defaultdict[str, dict[str, None]] = defaultdict(dict)
        """The paths, grouped by the first part of each."""

    def create(self, path: str, data: bytes) -> None:
        self.counts["create"] += 1
        super().create(path, data)
        self._beside(path)[path] = None

    def replace(self, path: str, data: bytes) -> None:
        self.counts["replace"] += 1
        super().replace(path, data)
        self._beside(path)[path] = None

    def read(self, path: str, max_bytes: int = READ_MAX_BYTES) -> bytes:
        self.counts["read"] += 1
        return super().read(path, max_bytes)

    def names(self, directory: str) -> list[str]:
        self.counts["list"] += 1
        prefix = f"{directory}/" if directory else ""
        paths = self._beside(prefix) if prefix else self.contents
        return sorted({path.removeprefix(prefix).split("/")[0] for path in paths if path.startswith(prefix)})

    def delete(self, path: str) -> None:
        self.counts["delete"] += 1
        paths = self._beside(path)
        for found in [path] if path in paths else [found for found in paths if found.startswith(f"{path}/")]:
            del self.contents[found], paths[found]

    def copy_all(self) -> "CountedFiles":
        """Returns a copy of these files, with all counts at zero."""
        made = CountedFiles()
        for path, data in self.contents.items():
            made.create(path, data)
        made.counts.clear()
        return made

    def cost(self, work: Callable[["CountedFiles"], object]) -> Counter[str]:
        """Returns the operations of ``work`` on a copy of these files."""
        copy = self.copy_all()
        work(copy)
        return copy.counts

    def _beside(self, path: str) -> dict[str, None]:
        """Returns the paths with the same first part."""
        return self._paths[path.partition("/")[0]]


def ask(files: MemoryFiles, run: RunId) -> StartRequest:
    return Channel(files).request_start(run, parameters={})


def begin(files: MemoryFiles, request: StartRequest, *, for_backfill: bool = False) -> AttemptDocument:
    """Begins an attempt, as a driver does before its stages run."""
    facts, described = read_facts(files), GRAPH.describe()
    decision = decide(request, facts, request.parameters, described)
    assert not isinstance(decision, Answer)
    attempt = begin_attempt(
        files, Channel(files).claim(PipelineName("small")), GRAPH, request, decision, facts, new_work_directory("host")
    )
    if not isinstance(decision, Continue):
        Rounds(files).begin(
            RoundDocument(
                round=attempt.round, run=request.run, incarnation=attempt.incarnation, on_end=OnEnd.SUSPEND, publish=None,
                parameters=request.parameters, graph=described, for_backfill=for_backfill, begun_at=NOW,
            )
        )  # fmt: skip
    Rounds(files).pin(attempt.round, PinnedInput(input=InputName("events"), pins=()))
    write_status(
        files, Status(attempt=attempt.attempt, run=request.run, state=RunState.RUNNING, updated_at=datetime.now(UTC), stages={})
    )
    return attempt


def end(
    files: MemoryFiles,
    attempt: AttemptDocument,
    kind: CheckpointKind = CheckpointKind.FINAL,
    asked: RequestId | None = None,
) -> Manifest:
    """Completes a checkpoint, by default the final one of a round, and deletes everything that the checkpoint replaces."""
    store, head = CheckpointStore(files), CheckpointStore(files).head()
    number = store.next_id(head.checkpoint) if head else store.first_id(attempt.incarnation)
    manifest = a_manifest(
        number,
        parent=head.checkpoint if head else None,
        checkpoint_kind=kind,
        request=asked,
        incarnation=attempt.incarnation,
        round=attempt.round,
        run=attempt.run,
        attempt=attempt.attempt,
        graph=GRAPH.describe(),
        work_directory=attempt.work_directory.id,
    )
    store.complete(manifest)
    Subsumption(files, MemoryFiles(), 1).after(manifest, [], {})
    return manifest


def answer(
    files: MemoryFiles, request: StartRequest, checkpoint: CheckpointId, kind: CheckpointKind = CheckpointKind.FINAL
) -> StartResponse:
    return Channel(files).respond(
        StartResponse(
            request=request.request, attempt=request.attempt, run=request.run, checkpoint=checkpoint,
            ends_round=kind is CheckpointKind.FINAL, sinks={}, answered_at=datetime.now(UTC),
        )
    )  # fmt: skip


def take(files: MemoryFiles, name: str, wanted: Wanted, attempt: AttemptDocument, checkpoint: CheckpointId) -> RequestId:
    """Creates a request for a checkpoint and its answer."""
    request, requests = request_id(name, wanted), CheckpointRequests(files)
    create_document(files, request_path(request), CheckpointRequest(request=request, requested_at=NOW, wanted=wanted))
    requests.answer(CheckpointResponse(request=request, attempt=attempt.attempt, checkpoint=checkpoint, answered_at=NOW))
    requests.forget_old(datetime.now(UTC))
    return request


def run_round(files: MemoryFiles, run: str, *, requests: bool = False) -> Manifest:
    """Runs a whole round of a pipeline that runs once a day."""
    request = ask(files, RunId(run))
    AttemptLease(files, request.attempt).take(f"task of {run}")
    attempt = begin(files, request)
    forget_old_starts(files, attempt)
    manifest = end(files, attempt)
    if requests:
        for wanted in (Wanted.CHECKPOINT, Wanted.STOP):
            take(files, run, wanted, attempt, manifest.checkpoint)
    answer(files, request, manifest.checkpoint)
    return manifest


def run_until_stopped(files: MemoryFiles, run: str) -> Manifest:
    """Runs a pipeline without an end once.

    One driver is lost. The next one goes on, takes checkpoints, and stops with a savepoint that is kept.
    """
    lost = begin(files, ask(files, RunId(run)))
    forget_old_starts(files, lost)
    end(files, lost, CheckpointKind.PERIODIC)
    request = ask(files, RunId(run))
    AttemptLease(files, request.attempt).take(f"task of {run}")
    attempt = begin(files, request)
    forget_old_starts(files, attempt)
    manifest = end(files, attempt, CheckpointKind.PERIODIC)
    take(files, run, Wanted.SAVEPOINT, attempt, manifest.checkpoint)
    files.create(f"{savepoint_path(request_id(run, Wanted.SAVEPOINT))}/savepoint.json", b"{}")
    manifest = end(files, attempt, CheckpointKind.STOP, request_id(run, Wanted.STOP))
    take(files, run, Wanted.STOP, attempt, manifest.checkpoint)
    files.create(f"{savepoint_path(request_id(run, Wanted.STOP))}/savepoint.json", b"{}")
    answer(files, request, manifest.checkpoint, CheckpointKind.STOP)
    return manifest


def answered_before(files: MemoryFiles, run: str) -> CheckpointId | None:
    """Returns the checkpoint with which a repeated run is answered without a new attempt. Returns None if the run would start again."""
    given = Channel(files).answer(RunId(run))
    if given is not None and given.checkpoint is not None:
        return given.checkpoint
    request = ask(files, RunId(run))
    decision = decide(request, read_facts(files), request.parameters, GRAPH.describe())
    return decision.manifest.checkpoint if isinstance(decision, Answer) else None
