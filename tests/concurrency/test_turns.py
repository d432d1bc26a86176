"""Publishers of a sink that Spark may publish into take turns: its log is a compare-and-swap only within one process."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Event

import pytest

from spark_jobs.control.liveness import holding
from spark_jobs.protocol.delta_log import DELTA_LOG, PUBLICATION_LOCK
from spark_jobs.protocol.documents import Publisher
from spark_jobs.protocol.errors import ConflictError
from spark_jobs.protocol.ids import AppId, CheckpointId
from spark_jobs.publication import publisher
from spark_jobs.publication.publisher import SinkIncarnation, close_incarnation, publish
from spark_jobs.publication.transactions import Publishers, Transaction
from spark_jobs.storage.table_uris import table_files
from tests.support.sink_kinds import Kind, cut_of
from tests.support.staged_pipeline import HOURLY, StagedPipeline
from tests.support.systems import quick


class InPlaceOfSpark(Publishers):
    """Publishers whose transactions are those of delta-rs, whatever was asked for, and which are told of each."""

    def __init__(self, begun: Callable[[], None]) -> None:
        super().__init__()
        self._begun = begun

    def require(self, publisher: Publisher, what: str) -> None:
        pass

    def begin(self, publisher: Publisher, uri: str, app: AppId) -> Transaction:
        transaction = super().begin(Publisher.DELTA_RS, uri, app)
        self._begun()
        return transaction


@pytest.fixture(params=["by Spark", "by keys"])
def pipeline(tmp_path: Path, request: pytest.FixtureRequest) -> StagedPipeline:
    """With a checkpoint that Spark is to publish; or the next one of its sink."""
    made = StagedPipeline(quick(tmp_path / "home"), tmp_path)
    made.make_table(HOURLY)
    cut = {"publisher": Publisher.SPARK} if request.param == "by Spark" else cut_of(made, Publisher.DELTA_RS, Kind.UPSERT)
    made.checkpoint({HOURLY: [(1, "a")]}, cut=cut)
    return made


def lock_of(pipeline: StagedPipeline) -> Path:
    """Returns the lock of the table, which publishers for every home see."""
    found = table_files(pipeline.tables[HOURLY]).local(f"{DELTA_LOG}/{PUBLICATION_LOCK}")
    assert found is not None
    return found


def publish_by(pipeline: StagedPipeline, publishers: Publishers) -> None:
    publish(pipeline.files, publishers=publishers)


def close_by(pipeline: StagedPipeline, publishers: Publishers) -> None:
    cut = pipeline.store.manifest(CheckpointId(1)).sinks[HOURLY]
    abandoned = SinkIncarnation(HOURLY, cut.table, cut.app, cut.publisher, cut.mode.has_keys)
    close_incarnation(abandoned, CheckpointId(1), publishers)


@pytest.mark.parametrize("second", [publish_by, close_by])
def test_the_second_publisher_waits_until_the_first_is_done(
    pipeline: StagedPipeline, monkeypatch: pytest.MonkeyPatch, second: Callable[[StagedPipeline, Publishers], None]
) -> None:
    first_is_in, second_is_here = Event(), Event()
    order: list[str] = []

    def first_begins() -> None:
        order.append("first begins")
        first_is_in.set()
        assert second_is_here.wait(60)
        order.append("first goes on")

    def second_begins() -> None:
        order.append("second begins")
        second_is_here.set()

    # Who waits for its turn sleeps between two looks.
    monkeypatch.setattr("tenacity.nap.time.sleep", lambda _: second_is_here.set())
    with ThreadPoolExecutor(2) as pool:
        one = pool.submit(publish_by, pipeline, InPlaceOfSpark(first_begins))
        assert first_is_in.wait(60)
        other = pool.submit(second, pipeline, InPlaceOfSpark(second_begins))
        one.result()
        other.result()
    assert order[:2] == ["first begins", "first goes on"]
    assert pipeline.commits(HOURLY)[0] == 1


@pytest.mark.parametrize("second", [publish_by, close_by])
def test_a_publisher_that_waits_too_long_for_its_turn_fails_and_writes_nothing(
    pipeline: StagedPipeline, monkeypatch: pytest.MonkeyPatch, second: Callable[[StagedPipeline, Publishers], None]
) -> None:
    monkeypatch.setattr(publisher, "_TURN_TIMEOUT_S", 0.0)
    with (
        holding(lock_of(pipeline), "another"),
        pytest.raises(ConflictError, match="Another process has been publishing into file:.*/hourly for 0 s"),
    ):
        second(pipeline, InPlaceOfSpark(lambda: None))
    assert pipeline.commits(HOURLY) == []
