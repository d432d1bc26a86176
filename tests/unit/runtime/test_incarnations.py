"""Which incarnations an attempt closes."""

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest

from spark_jobs.control.attempts import Attempts
from spark_jobs.protocol.documents import AttemptDocument, SinkMode
from spark_jobs.protocol.ids import IncarnationId, app_id, first_incarnation_id
from spark_jobs.publication.delta_rs import open_table
from spark_jobs.publication.pending import CLOSED
from spark_jobs.publication.publisher import WITHOUT_SPARK
from spark_jobs.runtime.incarnations import close_abandoned
from spark_jobs.runtime.tombstones import Tombstones
from tests.support.staged_pipeline import HOURLY, PIPELINE, StagedPipeline
from tests.support.systems import quick
from tests.unit.control.test_channel import attempt

NONE_DELETED = cast(Tombstones, SimpleNamespace(remembered_by=lambda *_: False, inherit=lambda *_: None))


@pytest.fixture
def pipeline(tmp_path: Path) -> StagedPipeline:
    """With two attempts, each of an incarnation of its own."""
    made = StagedPipeline(quick(tmp_path / "home"), tmp_path)
    made.make_table(HOURLY)
    for number, incarnation in ((1, "one"), (2, "two")):
        Attempts(made.files).create(of(number, incarnation))
    return made


def of(number: int, incarnation: str) -> AttemptDocument:
    return attempt(number).model_copy(update={"incarnation": IncarnationId(incarnation)})


@pytest.fixture
def closed_by(pipeline: StagedPipeline) -> Callable[[AttemptDocument], list[str]]:
    """Closes what an attempt has abandoned; which incarnations are closed then."""

    def close(live: AttemptDocument) -> list[str]:
        uri = pipeline.tables[HOURLY]
        close_abandoned(pipeline.files, PIPELINE, live, {HOURLY: (uri, SinkMode.APPEND)}, WITHOUT_SPARK, NONE_DELETED)
        apps = {name: app_id(PIPELINE, IncarnationId(name), HOURLY) for name in ("one", "two")}
        return [name for name, app in apps.items() if open_table(uri).transaction_version(app) == CLOSED]

    return close


def test_an_attempt_closes_the_incarnation_that_it_has_abandoned(closed_by: Callable[[AttemptDocument], list[str]]) -> None:
    assert closed_by(of(2, "two")) == ["one"]


def test_an_attempt_that_is_fenced_and_does_not_know_it_leaves_the_live_incarnation_open(
    closed_by: Callable[[AttemptDocument], list[str]],
) -> None:
    assert closed_by(of(1, "one")) == []


def test_two_first_starts_at_once_begin_the_same_incarnation() -> None:
    assert first_incarnation_id(PIPELINE) == first_incarnation_id(PIPELINE)
