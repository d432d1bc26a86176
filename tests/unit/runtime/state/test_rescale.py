"""Failures of Spark to repartition state, and their meaning for the next attempt."""

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
from pyspark.errors import PySparkException

from spark_jobs.protocol.errors import InterruptedRunError, RejectedError
from spark_jobs.protocol.ids import BatchId
from spark_jobs.runtime.state import rescale
from spark_jobs.runtime.state.rescale import rescale_stage
from tests.support.state_site import HOURLY, Site, cut

REFUSED = "[STATE_REPARTITION_INVALID_CHECKPOINT.UNSUPPORTED_PROVIDER] another store"
FAILED = "Job aborted due to stage failure: the disk is full"


@pytest.mark.parametrize(
    ("message", "kind"), [(REFUSED, RejectedError), (FAILED, InterruptedRunError)], ids=["not supported", "failed"]
)
def test_a_rescale_that_spark_does_not_support_is_refused_and_a_failed_one_is_retried(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, message: str, kind: type[Exception]
) -> None:
    def repartition(directory: str, partitions: int) -> None:
        raise PySparkException(message)

    session = SimpleNamespace(streams=None, _streamingCheckpointManager=SimpleNamespace(repartition=repartition))
    monkeypatch.setattr(rescale, "session_for_run", lambda spark: session)
    site = Site(tmp_path)
    site.batches(1)
    entry = site.log.offsets(BatchId(0))
    as_begun = replace(entry, header=entry.header | {"conf": {"spark.sql.shuffle.partitions": "2"}})
    (site.checkpoint.root / "offsets/0").write_bytes(as_begun.to_bytes())
    with pytest.raises(kind) as caught:
        rescale_stage(session, site.work, 8, HOURLY, cut(0, ()))  # type: ignore[arg-type]
    assert "--state-partitions 2" in str(caught.value)


def test_state_that_is_computed_again_is_not_repartitioned(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    session = SimpleNamespace()  # no Spark session is used
    monkeypatch.setattr(rescale, "session_for_run", lambda spark: session)
    site = Site(tmp_path)
    site.batches(1)
    entry = site.log.offsets(BatchId(0))
    as_begun = replace(entry, header=entry.header | {"conf": {"spark.sql.shuffle.partitions": "2"}})
    (site.checkpoint.root / "offsets/0").write_bytes(as_begun.to_bytes())
    with pytest.raises(InterruptedRunError, match="must first be computed again") as caught:
        rescale_stage(session, site.work, 8, HOURLY, cut(3, ()))  # type: ignore[arg-type]
    assert "--state-partitions 2" in str(caught.value)
    rescale_stage(session, site.work, 2, HOURLY, cut(3, ()))  # type: ignore[arg-type]
