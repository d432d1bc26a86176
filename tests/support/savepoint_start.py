"""A savepoint, and the incarnation of a home that begins with it, without Spark."""

from dataclasses import replace
from pathlib import Path

from spark_jobs.checkpoint.savepoint import export
from spark_jobs.protocol.documents import AttemptDocument, Manifest, OnEnd, PipelineDocument, RoundDocument, WorkDirectory
from spark_jobs.protocol.ids import (
    AttemptNumber,
    IncarnationId,
    PipelineName,
    PipelineUuid,
    RequestId,
    RoundNumber,
    RunId,
    WorkDirectoryId,
)
from spark_jobs.runtime.start.savepoint_import import Beginning, OpenedSavepoint, open_savepoint
from spark_jobs.storage.files import Files
from tests.support.savepoint_site import COPIED, STAGE, SavepointSite
from tests.support.staged_pipeline import CHECKPOINTING, NOW
from tests.support.systems import quick

NEW = IncarnationId("new")


def saved(site: SavepointSite, manifest: Manifest, name: str = "savepoint") -> OpenedSavepoint:
    """Makes a savepoint of a checkpoint and opens it."""
    target = quick(site.root / name)
    export(site.home, manifest.checkpoint, target, request=RequestId("savepoint-a"))
    return replace(open_savepoint(target.url), files=target)


def beginning(home: Files, root: Path, *, kept: bool = False) -> Beginning:
    """Returns an incarnation whose tables are below ``root``. With ``kept``, the sink keeps the table of the savepoint."""
    attempt = AttemptDocument(
        attempt=AttemptNumber(4), request=RequestId("start-4"), run=RunId("tuesday"), round=RoundNumber(2), incarnation=NEW,
        restored_from=None, work_directory=WorkDirectory(id=WorkDirectoryId("w2"), path="work/w2", host="h"), host="h", process=1,
        started_at=NOW, versions={}, checkpointing=CHECKPOINTING,
    )  # fmt: skip
    round_document = RoundDocument(
        round=RoundNumber(2), run=RunId("tuesday"), incarnation=NEW, on_end=OnEnd.SUSPEND, publish=None, parameters={"day": 2},
        graph={"stages": {}, "sources": {"events": {}}}, begun_at=NOW,
    )  # fmt: skip
    return Beginning(
        home=home,
        pipeline=PipelineDocument(name=PipelineName("flights"), uuid=PipelineUuid("another")),
        attempt=attempt,
        round=round_document,
        staged_in={STAGE: (root / "tables/hourly").as_uri(), COPIED: (root / "channels/new/copied").as_uri()},
        kept=frozenset({STAGE} if kept else ()),
    )
