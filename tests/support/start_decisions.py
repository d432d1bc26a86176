"""What a home contains when a start decides where to begin."""

from datetime import UTC, datetime
from typing import Any

from spark_jobs.protocol.documents import AttemptDocument, CheckpointKind, Manifest, OnEnd, RoundDocument, WorkDirectory
from spark_jobs.protocol.ids import (
    AttemptNumber,
    CheckpointId,
    IncarnationId,
    PipelineName,
    PipelineUuid,
    RequestId,
    RoundNumber,
    RunId,
    SinkName,
    WorkDirectoryId,
    start_request_id,
)
from spark_jobs.protocol.start_requests import StartRequest
from spark_jobs.runtime.start.decision import HomeFacts
from tests.support.staged_pipeline import CHECKPOINTING

NOW = datetime(2026, 1, 1, tzinfo=UTC)
GRAPH: dict[str, Any] = {"stages": {"hourly": {"inputs": {"departures": "departures"}}}}
READING = GRAPH | {"sources": {"departures": {"bounded": True}}}
PARAMETERS = {"flights": "/data"}
SINK = SinkName("hourly")


def request(run: str, attempt: int = 9, **given: Any) -> StartRequest:
    number = AttemptNumber(attempt)
    return StartRequest(request=start_request_id(number), attempt=number, run=RunId(run), requested_at=NOW, **given)


def attempt(number: int, run: str, round_number: int, incarnation: str = "one", **given: Any) -> AttemptDocument:
    return AttemptDocument(
        attempt=AttemptNumber(number),
        request=RequestId(f"start-{number}"),
        run=RunId(run),
        round=RoundNumber(round_number),
        incarnation=IncarnationId(incarnation),
        restored_from=None,
        work_directory=WorkDirectory(id=WorkDirectoryId(incarnation), path=f"work/{incarnation}", host="h"),
        host="h",
        process=1,
        started_at=NOW,
        versions={},
        checkpointing=CHECKPOINTING,
        **given,
    )


def round_document(number: int, run: str, incarnation: str = "one", **given: Any) -> RoundDocument:
    fields = {"on_end": OnEnd.SUSPEND, "publish": None, "parameters": PARAMETERS, "graph": GRAPH} | given
    return RoundDocument(
        round=RoundNumber(number), run=RunId(run), incarnation=IncarnationId(incarnation), begun_at=NOW, **fields
    )


def manifest(number: int, round_number: int, *, drained: bool = False, incarnation: str = "one") -> Manifest:
    return Manifest(
        checkpoint=CheckpointId(number),
        parent=None,
        checkpoint_kind=CheckpointKind.FINAL,
        on_end=OnEnd.DRAIN if drained else OnEnd.SUSPEND,
        pipeline=PipelineUuid("p"),
        pipeline_name=PipelineName("flights"),
        incarnation=IncarnationId(incarnation),
        round=RoundNumber(round_number),
        run=RunId("r"),
        attempt=AttemptNumber(1),
        work_directory=WorkDirectoryId("w"),
        request=None,
        began_at=NOW,
        completed_at=NOW,
        graph=GRAPH,
        parameters=PARAMETERS,
        settings={},
        spark="4.2",
        inputs={},
        stages={},
        sinks={},
        drained=drained,
    )


def facts(
    attempts: list[AttemptDocument],
    latest: RoundDocument | None,
    *manifests: Manifest,
    published: int | None = None,
    begun_by: StartRequest | None = None,
    staging: bool = True,
    failed_backfill: bool = False,
) -> HomeFacts:
    public = {SINK: CheckpointId(published)} if published else {}
    newest = attempts[-1] if attempts else None
    if newest:
        before = max((each.round for each in attempts[:-1]), default=RoundNumber(0))
        newest = newest.model_copy(update={"highest_round": before})

    def final_of(run: RunId) -> Manifest | None:
        rounds = [each.round for each in attempts if each.run == run]
        return next((each for each in manifests if rounds and each.round == rounds[-1]), None)

    return HomeFacts(
        newest,
        latest,
        final_of,
        lambda: public,
        staging=staging,
        failed_backfill=failed_backfill,
        head=next((each for each in reversed(manifests) if newest and each.incarnation == newest.incarnation), None),
        restored=next((each for each in manifests if newest and each.checkpoint == newest.restored_from), None),
        begun_by=begun_by,
    )
