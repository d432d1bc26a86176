"""One document of each kind with a value in every field, and strategies for any document."""

from datetime import UTC, datetime
from types import UnionType
from typing import Any, Literal, NewType, Union, get_args, get_origin

from hypothesis import strategies as st
from pydantic import BaseModel

from spark_jobs.protocol import checkpoint_requests, documents, history, savepoint, start_requests
from spark_jobs.protocol.checkpoint_requests import AnsweredRequest, CheckpointedSink, CheckpointRequest, CheckpointResponse
from spark_jobs.protocol.checkpointing import Checkpointing, CheckpointOverrides
from spark_jobs.protocol.codec import INTEGER_END, Document
from spark_jobs.protocol.documents import (
    AcceptedLoss,
    ActionsFile,
    AttemptDocument,
    BackfilledLoss,
    BegunAttempt,
    CheckpointKind,
    ErrorReport,
    InputLag,
    Manifest,
    OnEnd,
    OnRewind,
    Origin,
    PinnedInput,
    PipelineDocument,
    Publish,
    RecordedLoss,
    RestoreFrom,
    RoundDocument,
    RunEntry,
    RunState,
    SinkCut,
    SinkResult,
    StageState,
    StageStatus,
    StartResponse,
    Status,
    TidiedInput,
    UndoneLoss,
    WorkDirectory,
)
from spark_jobs.protocol.history import CheckpointHistory, StepTime
from spark_jobs.protocol.ids import (
    AppId,
    AttemptNumber,
    BatchId,
    CheckpointId,
    IncarnationId,
    InputName,
    LossId,
    PipelineName,
    PipelineUuid,
    RequestId,
    RoundNumber,
    RunId,
    SinkName,
    StageName,
    WorkDirectoryId,
)
from spark_jobs.protocol.known_sources import DeltaCommit, KnownDelta, KnownFiles, KnownKafka
from spark_jobs.protocol.losses import LostFile, LostFiles, LostOffsets, LostVersions, OffsetRange, PassedOver, StagedFile
from spark_jobs.protocol.pins import DeltaPin, FilePin, FilesPin, KafkaPin
from spark_jobs.protocol.restart_settings import FixedDelay
from spark_jobs.protocol.savepoint import Savepoint, SavepointFile
from spark_jobs.protocol.stage_cut import ChannelCut, StageCut, StateFile
from spark_jobs.protocol.start_requests import StartRequest
from spark_jobs.protocol.table_shape import StagedFor, StagedSince, TableShape

_NONCE = "0" * 32
_NOON = datetime(2013, 1, 2, 12, 0, 0, 250_000, tzinfo=UTC)
_PIPELINE = PipelineUuid("5a2f7c1e-0000-4000-8000-000000000001")
_INCARNATION = IncarnationId("5a2f7c1e-0000-4000-8000-000000000002")
_WORK = WorkDirectoryId("5a2f7c1e-0000-4000-8000-000000000003")
_RUN = RunId("bounded_flights/scheduled__2013-01-02T00:00:00+00:00/run/-1")
_REQUEST = RequestId("start-3")
_SHA256 = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"
_FAILURE = ErrorReport(
    error="StorageFullError", retry="with_backoff", failed="The disk is full.", safe="Nothing is lost.", remedy="Free space.",
    evidence={"path": "/data/höme", "errno": 28},
)  # fmt: skip
_PIN = DeltaPin(path="file:///data/flights", table="9c0a", version=4)
_FILES = FilesPin(path="/data/in", files=(FilePin(path="/data/in/1.csv", timestamp_ms=1357128000250, size_bytes=90),))
_SHAPE = TableShape(
    table_schema='{"type":"struct","fields":[]}', partition_by=("origin",), configuration={"delta.constraints.positive": "flights > 0"},
    features=("checkConstraints",),
)  # fmt: skip
_STAGED_FOR = StagedFor(table_id="9c0b", since=(StagedSince(first=BatchId(0), shape=_SHAPE),))
_KAFKA = KafkaPin(topics={"clicks": {0: 7, 1: 0}})
_KNOWN = {
    InputName("departures"): (
        KnownDelta(path="/data/flights", table="9c0a", begins=2, seen=DeltaCommit(version=4, sha256="9c0a" * 16)),
        KnownFiles(path="file:///data/in"),
        KnownKafka(cluster="c1", topics={"clicks": "t1"}, begins={"clicks": {0: 3}}),
    )
}
_LOST = {"input": InputName("departures"), "stage": StageName("hourly")}
_LOSSES = (
    LostFiles(**_LOST, files=(LostFile(path="file:///data/in/1.csv", size_bytes=90, rows=9),)),
    LostVersions(**_LOST, path="/data/flights", first=1, last=3, files=(LostFile(path="file:///data/flights/4.parquet"),)),
    LostOffsets(**_LOST, id=LossId("1-3"), topics={"clicks": {0: OffsetRange(first=3, end=5)}}),
    PassedOver(
        **_LOST,
        id=LossId("1-4"),
        unit=StagedFile(batch=BatchId(4), file="0123456789abcdef-4-part-0.parquet", size_bytes=900),
        rows=25,
        error="ValueError: record 230 cannot be scored",
        tries=3,
    ),
)


def _manifest() -> Manifest:
    stage = StageCut(
        query="b0", batch=BatchId(6), offsets_sha256=_SHA256, commits_sha256=_SHA256, watermark_ms=253402300799000, finished=True,
        drained=True, drain_batches=1, watermark_before_drain_ms=1357128000250, rows=336776, late_rows=0,
        files=(StateFile(path="metadata", stored="state/hourly/2-3-1/metadata", size_bytes=45, sha256=_SHA256),),
        channel=ChannelCut(
            metadata={"id": "9c0c"}, protocol={"minReaderVersion": 1}, staged_for=_STAGED_FOR, staged_in="file:///data/hourly",
            path="checkpoints/2.hourly.0123456789abcdef.channel", sha256=_SHA256, first=BatchId(5), last=BatchId(6), in_flight_rows=9,
            in_flight_size_bytes=4096,
        ),
    )  # fmt: skip
    sink = SinkCut(
        stage=StageName("hourly"), table="file:///data/hourly", table_id="9c0b", staged_for=(_SHAPE,),
        partition_by=("origin",), app=AppId(f"{_PIPELINE}/{_INCARNATION}/hourly"),
        actions=ActionsFile(path="checkpoints/2.hourly.0123456789abcdef.actions", sha256=_SHA256, files=3, rows=9, size_bytes=4096),
        publish=Publish.FINAL, known_published=CheckpointId(1),
    )  # fmt: skip
    return Manifest(
        nonce=_NONCE, checkpoint=CheckpointId(2), parent=CheckpointId(1), checkpoint_kind=CheckpointKind.FINAL,
        on_end=OnEnd.DRAIN, pipeline=_PIPELINE, pipeline_name=PipelineName("flights"), incarnation=_INCARNATION,
        round=RoundNumber(1), run=_RUN, attempt=AttemptNumber(3), work_directory=_WORK, request=_REQUEST,
        began_at=_NOON, completed_at=_NOON,
        graph={"stages": {"hourly": ["departures"]}}, parameters={"flights": "/data/flights"},
        settings={"spark.sql.shuffle.partitions": "2"}, spark="4.2", inputs={InputName("departures"): (_PIN, _FILES, _KAFKA)},
        sources=_KNOWN, losses=_LOSSES, stages={StageName("hourly"): stage}, sinks={SinkName("hourly"): sink}, drained=True,
        origin=Origin(savepoint="file:///data/savepoint", pipeline=_PIPELINE, incarnation=_INCARNATION, checkpoint=CheckpointId(9)),
    )  # fmt: skip


SAMPLES: tuple[Document, ...] = (
    PipelineDocument(nonce=_NONCE, name=PipelineName("flights"), uuid=_PIPELINE),
    StartRequest(
        nonce=_NONCE, request=_REQUEST, attempt=AttemptNumber(3), run=_RUN, requested_at=_NOON, parameters={"day": "2013-01-02"},
        on_end=OnEnd.SUSPEND, publish=Publish.EXTERNAL, fresh=True, on_rewind=OnRewind.KEEP,
        checkpoint=CheckpointOverrides(interval_ms=30_000, unaligned=True),
        restore=RestoreFrom(savepoint="file:///data/savepoint", allow_drained=True), state_partitions=8,
        allow_dropped=True, new_sources=(InputName("departures"),), accept_data_loss=(InputName("departures"),),
        full_refresh=("hourly",),
    ),
    AttemptDocument(
        nonce=_NONCE, attempt=AttemptNumber(3), request=_REQUEST, run=_RUN, round=RoundNumber(1), incarnation=_INCARNATION,
        abandons=(_INCARNATION,), begun_by=_REQUEST, highest_round=RoundNumber(1), on_rewind=OnRewind.KEEP, restored_from=CheckpointId(1),
        work_directory=WorkDirectory(id=_WORK, path="/var/work", host="worker-1"), host="worker-1", process=4711, state_partitions=8,
        refreshed=(StageName("hourly"),),
        started_at=_NOON, versions={"pyspark": "4.2.0"},
        checkpointing=Checkpointing(
            interval_ms=30_000, timeout_ms=600_000, min_pause_ms=0, tolerable_failures=0, retained=1, unaligned=True,
            aligned_timeout_ms=None, max_in_flight_bytes=None,
        ),
        restart=FixedDelay(attempts=1, delay_ms=1_000),
    ),
    RoundDocument(
        nonce=_NONCE, round=RoundNumber(1), run=_RUN, incarnation=_INCARNATION, on_end=OnEnd.DRAIN, publish=None,
        parameters={"ratio": 0.5}, graph={"stages": {"hourly": {"inputs": {"departures": "departures"}}}}, begun_at=_NOON, sources=_KNOWN,
        begins_now={StageName("hourly"): _KNOWN},
    ),
    RecordedLoss(
        nonce=_NONCE, loss=_LOSSES[1], incarnation=_INCARNATION, round=RoundNumber(1), attempt=AttemptNumber(3),
        work_directory=WorkDirectoryId("w1"), run=_RUN, recorded_at=_NOON,
    ),
    AcceptedLoss(nonce=_NONCE, loss=LossId("1-1"), reason="The files are of March.", accepted_at=_NOON),
    BackfilledLoss(nonce=_NONCE, loss=LossId("1-4"), run=RunId("run-1"), checkpoint=CheckpointId(3), backfilled_at=_NOON),
    UndoneLoss(nonce=_NONCE, loss=LossId("1-1"), round=RoundNumber(2), undone_at=_NOON),
    TidiedInput(
        nonce=_NONCE, round=RoundNumber(1), input=InputName("departures"), tidied_at=_NOON, left=("file:///data/in/2.csv",)
    ),
    PinnedInput(nonce=_NONCE, input=InputName("departures"), pins=(_PIN, _FILES, _KAFKA)),
    _manifest(),
    StartResponse(
        nonce=_NONCE, request=_REQUEST, attempt=AttemptNumber(3), run=_RUN, checkpoint=CheckpointId(2),
        checkpoint_kind=CheckpointKind.FINAL,
        sinks={SinkName("hourly"): SinkResult(table="file:///data/hourly", checkpoint=CheckpointId(2), version=7, rows=9)},
        error=_FAILURE, answered_at=_NOON,
    ),
    CheckpointRequest(nonce=_NONCE, request=RequestId("checkpoint-a"), requested_at=_NOON),
    CheckpointResponse(
        nonce=_NONCE, request=RequestId("checkpoint-a"), attempt=AttemptNumber(3), checkpoint=CheckpointId(2), duration_s=0.25,
        sinks={SinkName("hourly"): CheckpointedSink(table="file:///data/hourly", version=7, rows=9, size_bytes=4096)},
        error=_FAILURE, answered_at=_NOON,
    ),
    CheckpointHistory(
        nonce=_NONCE, checkpoint=CheckpointId(2), checkpoint_kind=CheckpointKind.FINAL, attempt=AttemptNumber(3), began_at=_NOON,
        steps=(StepTime(step="manifest.create", duration_s=0.125),), files=3, size_bytes=4096, rows=9, failure=_FAILURE,
        aligned=False, alignment_s=1.5, in_flight_rows=4, in_flight_bytes=512, finished=(StageName("daily"),),
        ended_inputs={StageName("hourly"): ("departures",)},
    ),
    Status(
        nonce=_NONCE, attempt=AttemptNumber(3), run=_RUN, state=RunState.RUNNING, updated_at=_NOON,
        stages={StageName("hourly"): StageStatus(state=StageState.DRAINING, batch=BatchId(6), watermark_ms=0, progress=0.5, restarts=2,
            reason="ValueError", lag={"departures": InputLag(rows=5, size_bytes=100)})},
        checkpoint=CheckpointId(1), spark_ui="http://127.0.0.1:4040",
    ),
    Savepoint(
        nonce=_NONCE, pipeline=_PIPELINE, pipeline_name=PipelineName("flights"), incarnation=_INCARNATION,
        checkpoint=CheckpointId(2), drained=True, request=RequestId("stop-a"), taken_at=_NOON, size_bytes=45,
        files=(SavepointFile(path="state/hourly/2-3-1/metadata", size_bytes=45, sha256=_SHA256),),
    ),
    AnsweredRequest(nonce=_NONCE, request=RequestId("stop-nightly"), answered_at=_NOON),
    RunEntry(nonce=_NONCE, attempt=AttemptNumber(3), run=_RUN),
    BegunAttempt(nonce=_NONCE, attempt=AttemptNumber(3)),
)  # fmt: skip
"""One document of each kind, equal in every run."""


def a_sample_manifest(checkpoint: int, stages: dict[StageName, StageCut]) -> Manifest:
    """Returns a manifest without a parent and without sinks."""
    changes = {"checkpoint": CheckpointId(checkpoint), "parent": None, "stages": stages, "sinks": {}}
    return _manifest().model_copy(update=changes)


(ATTEMPT,) = (sample for sample in SAMPLES if isinstance(sample, AttemptDocument))
KINDS: tuple[type[Document], ...] = tuple(type(sample) for sample in SAMPLES)


def kinds_in_the_product() -> set[type[Document]]:
    """Returns every kind of document that these modules of ``protocol`` define."""
    modules = {module.__name__ for module in (documents, checkpoint_requests, history, savepoint, start_requests)}
    return {kind for kind in Document.__subclasses__() if kind.__module__ in modules}


_FLOATS = st.floats(allow_nan=False, allow_infinity=False)
json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-INTEGER_END, INTEGER_END - 1) | _FLOATS | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=4,
)


def _values(annotation: Any) -> st.SearchStrategy[Any]:
    """Returns a strategy for any value of a field with this type."""
    arguments = get_args(annotation)
    origin = get_origin(annotation)
    if isinstance(annotation, NewType):
        return _values(annotation.__supertype__)
    if annotation is Any:
        return json_values
    if annotation is datetime:
        return st.datetimes(timezones=st.just(UTC))
    if annotation is float:
        return _FLOATS
    if annotation is int:
        return st.integers(-INTEGER_END, INTEGER_END - 1)
    if origin is Literal:
        return st.sampled_from(arguments)
    if origin in (Union, UnionType):
        return st.one_of(*map(_values, arguments))
    if origin is tuple:
        return st.lists(_values(arguments[0]), max_size=3).map(tuple)
    if origin is dict:
        return st.dictionaries(_values(arguments[0]), _values(arguments[1]), max_size=3)
    if issubclass(annotation, BaseModel):
        fields = {name: _values(field.annotation) for name, field in annotation.model_fields.items()}
        return st.fixed_dictionaries(fields).map(lambda values: annotation(**values))
    return st.from_type(annotation)


def any_document() -> st.SearchStrategy[Document]:
    """Returns a strategy for any document of any kind, with any allowed values."""
    return st.sampled_from(KINDS).flatmap(_values)
