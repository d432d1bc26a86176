from types import SimpleNamespace
from typing import Any, cast

import pytest

from spark_jobs.protocol.documents import SinkMode
from spark_jobs.protocol.errors import RejectedError
from spark_jobs.protocol.ids import InputName, LossId, StageName
from spark_jobs.protocol.losses import PassedOver, SourceFile
from spark_jobs.runtime.stages.backfill import check_backfill
from spark_jobs.runtime.stages.stage import StageRun

LOSS = PassedOver(
    id=LossId("1-1"),
    input=InputName("orders"),
    stage=StageName("scored"),
    unit=SourceFile(path="file:/in/4.json", timestamp_ms=0),
    rows=3,
    error="cannot be scored",
    tries=3,
)


def a_run(name: str = "scored", reads: str = "orders", **facts: Any) -> StageRun:
    sink = SimpleNamespace(name=name, mode=facts.pop("mode", SinkMode.APPEND))
    merge = SimpleNamespace(sequence_by=facts.pop("sequence_by", None)) if sink.mode is not SinkMode.APPEND else None
    stage = SimpleNamespace(name=name, inputs={"rows": SimpleNamespace(name=reads)}, sink=sink)
    return cast(
        StageRun, SimpleNamespace(stage=stage, outlet=SimpleNamespace(merge=merge), stateful=facts.pop("stateful", False))
    )


def test_rows_are_backfilled_through_stateless_stages_into_tables_that_accept_older_rows() -> None:
    check_backfill(LOSS, [a_run()])
    check_backfill(LOSS, [a_run(), a_run("totals", "scored", mode=SinkMode.UPSERT, sequence_by="at")])
    check_backfill(LOSS, [a_run(), a_run("first_seen", "scored", mode=SinkMode.INSERT)])


@pytest.mark.parametrize(
    ("reached", "why"),
    [
        ([], "no stage 'scored' reads 'orders' any more"),
        ([a_run(reads="refunds")], "no stage 'scored' reads 'orders' any more"),
        ([a_run(), a_run("counted", "scored", stateful=True)], "stage 'counted' keeps a state"),
        ([a_run(), a_run("newest", "scored", mode=SinkMode.UPSERT)], "sink 'newest' is an upsert without sequence_by="),
    ],
)
def test_a_loss_is_refused_if_its_backfill_would_give_other_tables_than_a_run_without_it(
    reached: list[StageRun], why: str
) -> None:
    with pytest.raises(RejectedError, match=why) as refused:
        check_backfill(LOSS, reached)
    assert refused.value.remedy
