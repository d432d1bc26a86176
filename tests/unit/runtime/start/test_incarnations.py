"""The incarnations that an attempt closes."""

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest

from spark_jobs.control.attempts import Attempts
from spark_jobs.protocol.documents import AttemptDocument, SinkMode
from spark_jobs.protocol.errors import RejectedError
from spark_jobs.protocol.ids import IncarnationId, app_id, first_incarnation_id
from spark_jobs.publication.delta_rs import open_table
from spark_jobs.publication.pending import CLOSED
from spark_jobs.publication.publisher import WITHOUT_SPARK, publish
from spark_jobs.runtime.start.incarnations import close_abandoned
from spark_jobs.runtime.tables.tombstones import Tombstones
from tests.support.attempts import attempt
from tests.support.staged_pipeline import HOURLY, PIPELINE, StagedPipeline
from tests.support.systems import quick

NONE_DELETED = cast(Tombstones, SimpleNamespace(remembered_by=lambda *_: False, inherit=lambda *_: None))


@pytest.fixture
def pipeline(tmp_path: Path) -> StagedPipeline:
    """A pipeline with two attempts, each in its own incarnation."""
    made = StagedPipeline(quick(tmp_path / "home"), tmp_path)
    made.make_table(HOURLY)
    for number, incarnation in ((1, "one"), (2, "two")):
        Attempts(made.files).begin(of(number, incarnation), known=Attempts(made.files).numbers())
    return made


def of(number: int, incarnation: str) -> AttemptDocument:
    abandons = (IncarnationId("one"),) if incarnation == "two" else ()
    return attempt(number).model_copy(update={"incarnation": IncarnationId(incarnation), "abandons": abandons})


@pytest.fixture
def closed_by(pipeline: StagedPipeline) -> Callable[[AttemptDocument], list[str]]:
    """Returns a function that closes the abandoned incarnations of an attempt and returns all closed ones."""

    def close(live: AttemptDocument) -> list[str]:
        uri = pipeline.tables[HOURLY]
        close_abandoned(pipeline.files, PIPELINE, live, {HOURLY: (uri, SinkMode.APPEND)}, WITHOUT_SPARK, NONE_DELETED)
        apps = {name: app_id(PIPELINE, IncarnationId(name), HOURLY) for name in ("one", "two")}
        return [name for name, app in apps.items() if open_table(uri).transaction_version(app) == CLOSED]

    return close


def test_an_attempt_closes_the_incarnation_that_it_has_abandoned(closed_by: Callable[[AttemptDocument], list[str]]) -> None:
    assert closed_by(of(2, "two")) == ["one"]


def test_a_fenced_attempt_leaves_the_live_incarnation_open(
    closed_by: Callable[[AttemptDocument], list[str]],
) -> None:
    assert closed_by(of(1, "one")) == []


@pytest.mark.parametrize(("restores", "remedy"), [(False, "--fresh --on-rewind keep"), (True, "RESTORE TABLE")])
def test_an_incarnation_that_is_published_while_a_start_begins_is_not_closed_and_the_error_has_a_remedy(
    pipeline: StagedPipeline, restores: bool, remedy: str
) -> None:
    app = pipeline.checkpoint({HOURLY: [(1, "a")]}, incarnation=IncarnationId("one")).sinks[HOURLY].app
    publish(pipeline.files)
    sinks, decided = {HOURLY: (pipeline.tables[HOURLY], SinkMode.APPEND)}, {app: None} if restores else None
    with pytest.raises(RejectedError, match="published after this start was decided") as refused:
        close_abandoned(pipeline.files, PIPELINE, of(2, "two"), sinks, WITHOUT_SPARK, NONE_DELETED, decided)
    assert remedy in refused.value.remedy
    assert ("--fresh" in refused.value.remedy) is not restores
    assert open_table(pipeline.tables[HOURLY]).transaction_version(app) == 1


def test_two_simultaneous_first_starts_begin_the_same_incarnation() -> None:
    assert first_incarnation_id(PIPELINE) == first_incarnation_id(PIPELINE)
