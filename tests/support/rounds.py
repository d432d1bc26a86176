"""Rounds of a home."""

from datetime import UTC, datetime

from spark_jobs.protocol.documents import OnEnd, RoundDocument
from spark_jobs.protocol.ids import IncarnationId, RoundNumber, RunId


def begun(number: int, run: str = "a", on_end: OnEnd = OnEnd.DRAIN) -> RoundDocument:
    return RoundDocument(
        round=RoundNumber(number),
        run=RunId(run),
        incarnation=IncarnationId("i"),
        on_end=on_end,
        publish=None,
        parameters={},
        graph={},
        begun_at=datetime(2026, 1, 1, tzinfo=UTC),
    )


ROUND = begun(1)
