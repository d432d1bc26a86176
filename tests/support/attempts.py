"""Documents of attempts."""

from datetime import UTC, datetime

from spark_jobs.protocol.documents import AttemptDocument, WorkDirectory
from spark_jobs.protocol.ids import AttemptNumber, IncarnationId, RoundNumber, RunId, WorkDirectoryId, start_request_id
from tests.support.staged_pipeline import CHECKPOINTING

NOW = datetime(2026, 1, 1, tzinfo=UTC)
A, B = RunId("a"), RunId("b")


def attempt(number: int, run: RunId = A, process: int = 1) -> AttemptDocument:
    return AttemptDocument(
        attempt=AttemptNumber(number),
        request=start_request_id(AttemptNumber(number)),
        run=run,
        round=RoundNumber(1),
        incarnation=IncarnationId("i"),
        restored_from=None,
        work_directory=WorkDirectory(id=WorkDirectoryId("w"), path="work/w", host="h"),
        host="h",
        process=process,
        started_at=NOW,
        versions={},
        checkpointing=CHECKPOINTING,
    )
