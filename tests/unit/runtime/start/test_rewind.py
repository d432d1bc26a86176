"""Starts from a savepoint that continue to write to the savepoint's table."""

from pathlib import Path
from shutil import rmtree
from typing import Any

import pytest
from deltalake import DeltaTable

from spark_jobs.checkpoint.retention import discard
from spark_jobs.control.attempts import Attempts
from spark_jobs.control.rounds import Rounds
from spark_jobs.protocol.documents import Manifest, OnEnd, Publish, RoundDocument, SinkCut
from spark_jobs.protocol.errors import ConflictError, RejectedError
from spark_jobs.protocol.ids import CheckpointId, IncarnationId, RoundNumber, RunId, SinkName, app_id
from spark_jobs.protocol.savepoint import Savepoint
from spark_jobs.publication.delta_rs import open_table
from spark_jobs.publication.pending import CLOSED
from spark_jobs.publication.publisher import WITHOUT_SPARK, publish
from spark_jobs.runtime.start.rewind import SavepointTables
from spark_jobs.runtime.start.savepoint_import import OpenedSavepoint
from spark_jobs.runtime.tables.table_places import TablePlace
from spark_jobs.storage.files import Files
from tests.support.attempts import attempt
from tests.support.savepoint_site import SavepointSite
from tests.support.savepoint_start import saved
from tests.support.staged_pipeline import ANOTHER, DAILY, HOURLY, NOW, PIPELINE, StagedPipeline, path_of
from tests.support.systems import quick


@pytest.fixture
def site(tmp_path: Path) -> SavepointSite:
    return SavepointSite(tmp_path / "origin")


class Start:
    """A start from a savepoint: in its own home, or in another one."""

    def __init__(self, site: SavepointSite, opened: OpenedSavepoint, *, elsewhere: bool = False) -> None:
        self.opened = opened
        self.home: Files = quick(site.root / "other") if elsewhere else site.home
        self.pipeline = ANOTHER if elsewhere else PIPELINE
        self.tables = SavepointTables(self.home, self.pipeline, opened, {HOURLY: TablePlace(site.table)})

    def decided(self, *, keep: bool = False, again: bool = False) -> CheckpointId | None:
        (found,) = self.tables.decide(keep=keep, again=again).values()
        return found

    def publishes(self, incarnation: str, checkpoint: int) -> None:
        """Publishes a checkpoint from this home, after the start."""
        table = open_table(self.tables.kept[HOURLY].table)
        table.commit((), app_id(self.pipeline, IncarnationId(incarnation), HOURLY), CheckpointId(checkpoint), {})


def begin(home: Files, *incarnations: str) -> None:
    """Begins one attempt for each of these incarnations."""
    for number, name in enumerate(incarnations, start=1):
        document = attempt(number).model_copy(update={"incarnation": IncarnationId(name)})
        Attempts(home).begin(document, known=Attempts(home).numbers())


def rows(number: int) -> list[tuple[int, str | None]]:
    return [(number, "a")]


everywhere = pytest.mark.parametrize("elsewhere", [False, True], ids=["its own home", "another home"])


@everywhere
def test_a_start_continues_in_a_table_without_rows_after_the_savepoint(site: SavepointSite, elsewhere: bool) -> None:
    site.complete(rows(1))
    manifest = site.complete(rows(2))
    publish(site.home)
    assert Start(site, saved(site, manifest), elsewhere=elsewhere).decided() == manifest.checkpoint


@everywhere
def test_rows_that_were_published_after_the_savepoint_are_refused_unless_they_may_stay(
    site: SavepointSite, elsewhere: bool
) -> None:
    start = Start(site, saved(site, site.complete(rows(1))), elsewhere=elsewhere)
    site.complete(rows(2))
    publish(site.home)
    known = "may have rows of checkpoints up to 2" if elsewhere else "has rows of checkpoint 2"
    with pytest.raises(RejectedError, match=f"{known} of the same incarnation"):
        start.decided()
    assert start.decided(keep=True) == 2


class TwoSinks:
    """A savepoint of checkpoint 1 with rows for both sinks, and the publications after it."""

    def __init__(self, directory: Path) -> None:
        self.pipeline = StagedPipeline(quick(directory / "home"), directory / "tables")
        (directory / "tables").mkdir()
        for sink in (HOURLY, DAILY):
            self.pipeline.make_table(sink)
        manifest = self.publish({HOURLY: rows(1), DAILY: rows(1)})
        savepoint = Savepoint(
            pipeline=PIPELINE, pipeline_name=manifest.pipeline_name, incarnation=manifest.incarnation, checkpoint=manifest.checkpoint,
            request=None, taken_at=NOW, drained=False, size_bytes=0, files=(),
        )  # fmt: skip
        self.opened = OpenedSavepoint(self.pipeline.files, savepoint, manifest)

    def publish(self, rows: dict[SinkName, list[tuple[int, str | None]]], **changes: Any) -> Manifest:
        manifest = self.pipeline.checkpoint(rows, **changes)
        publish(self.pipeline.files)
        return manifest

    def close(self, later: str, reached: int = 1) -> None:
        """Begins a later incarnation in the home, which closes the savepoint's incarnation."""
        begin(self.pipeline.files, "first", later)
        for sink, cut in self.opened.manifest.sinks.items():
            self.pipeline.close(sink, cut.app, CheckpointId(reached))

    def decided(self) -> list[CheckpointId | None]:
        places = {sink: TablePlace(cut.table) for sink, cut in self.opened.manifest.sinks.items()}
        tables = SavepointTables(self.pipeline.files, PIPELINE, self.opened, places)
        return list(tables.decide(keep=False, again=False).values())

    def refused(self) -> str:
        with pytest.raises(RejectedError) as caught:
            self.decided()
        return caught.value.failed.partition(";")[0]


@pytest.fixture
def two(tmp_path: Path) -> TwoSinks:
    return TwoSinks(tmp_path)


def test_the_refusal_names_the_sink_that_has_rows_after_the_savepoint(two: TwoSinks) -> None:
    two.publish({HOURLY: [], DAILY: rows(2)})
    two.publish({HOURLY: [], DAILY: []})
    daily = two.pipeline.tables[DAILY]
    assert two.refused() == f"Sink daily: table {daily} has rows of checkpoint 2 of the same incarnation"


def test_checkpoints_without_rows_after_the_savepoint_do_not_prevent_a_restore(two: TwoSinks) -> None:
    two.publish({HOURLY: [], DAILY: []})
    assert two.decided() == [2, 2]


def test_the_rows_of_a_discarded_checkpoint_are_unknown(two: TwoSinks) -> None:
    for _ in range(2):
        two.publish({HOURLY: [], DAILY: []})
    discard(two.pipeline.files, [CheckpointId(2)])
    assert "may have rows of checkpoints up to 3 of the same incarnation" in two.refused()


def test_checkpoints_of_another_home_with_the_same_numbers_do_not_count(two: TwoSinks, tmp_path: Path) -> None:
    two.publish({HOURLY: [], DAILY: rows(2)})
    two.pipeline.files = quick(tmp_path / "another home")
    another = StagedPipeline(two.pipeline.files, tmp_path / "other tables")
    (tmp_path / "other tables").mkdir()
    for sink in (HOURLY, DAILY):
        another.make_table(sink)
    for _ in range(2):
        another.checkpoint({HOURLY: [], DAILY: []}, incarnation=IncarnationId("another"))
    assert "may have rows of checkpoints up to 2 of the same incarnation" in two.refused()


def test_the_refusal_names_the_sink_that_has_rows_of_a_later_incarnation(two: TwoSinks) -> None:
    two.close("second")
    two.publish({HOURLY: [], DAILY: rows(2)}, incarnation=IncarnationId("second"))
    daily = two.pipeline.tables[DAILY]
    assert two.refused() == f"Sink daily: table {daily} has rows of checkpoint 2 of this home"


def test_a_later_incarnation_without_public_rows_does_not_prevent_a_restore(two: TwoSinks) -> None:
    two.close("second")
    assert two.decided() == [CLOSED, CLOSED]
    two.publish({}, incarnation=IncarnationId("second"), origin=two.opened.origin)
    two.publish({HOURLY: [], DAILY: []})
    assert two.decided() == [CLOSED, CLOSED]


@pytest.mark.parametrize("abandoned", [False, True])
def test_rows_of_a_later_incarnation_are_not_forgotten_with_their_checkpoints(two: TwoSinks, abandoned: bool) -> None:
    two.close("second")
    second = two.publish({HOURLY: [], DAILY: rows(2)}, incarnation=IncarnationId("second"))
    for _ in range(2):
        two.publish({HOURLY: [], DAILY: []})
    if abandoned:  # the next incarnation closes it, with all its rows
        two.pipeline.close(DAILY, second.sinks[DAILY].app, CheckpointId(4))
    discard(two.pipeline.files, map(CheckpointId, [2, 3, 4] if abandoned else [2]))
    del two.opened.manifest.sinks[HOURLY]
    daily = two.pipeline.tables[DAILY]
    assert two.refused() == f"Sink daily: table {daily} may have rows of checkpoints up to 4 of this home"


def test_rows_of_its_own_incarnation_are_not_forgotten_after_a_later_incarnation_has_closed_it(two: TwoSinks) -> None:
    two.publish({HOURLY: [], DAILY: rows(2)})
    two.close("second", reached=2)
    assert "has rows of checkpoint 2 of the same incarnation" in two.refused()
    discard(two.pipeline.files, [CheckpointId(2)])
    assert "may have rows of checkpoints up to 2 of the same incarnation" in two.refused()


def test_rows_published_before_the_savepoints_incarnation_do_not_prevent_a_restore(site: SavepointSite) -> None:
    """The pipeline moves back to this home. The home's own rows are older than the savepoint."""
    start = Start(site, saved(site, site.complete(rows(1))), elsewhere=True)
    begin(start.home, "before")
    start.publishes("before", 7)
    site.pipeline.close(HOURLY, app_id(ANOTHER, IncarnationId("before"), HOURLY), CheckpointId(7))
    publish(site.home)
    assert start.decided() == 1
    start.tables.close_origin({start.tables.kept[HOURLY].app: CheckpointId(1)}, WITHOUT_SPARK)
    assert start.decided(again=True) == CLOSED


def test_rows_that_were_published_under_another_name_of_the_sink_count_too(two: TwoSinks) -> None:
    two.close("second")
    stage = {"inputs": {}, "sink": {"name": "renamed"}}
    Rounds(two.pipeline.files).begin(
        RoundDocument(
            round=RoundNumber(2), run=RunId("b"), incarnation=IncarnationId("second"), on_end=OnEnd.SUSPEND, publish=None,
            parameters={}, graph={"stages": {"copied": {"inputs": {}}, "renamed": stage}}, begun_at=NOW,
        )
    )  # fmt: skip
    renamed = app_id(PIPELINE, IncarnationId("second"), SinkName("renamed"))
    open_table(two.pipeline.tables[DAILY]).commit((), renamed, CheckpointId(2), {})
    assert "may have rows of checkpoints up to 2 of this home" in two.refused()


def test_rows_published_since_a_cleaned_part_of_the_tables_log_are_unknown(two: TwoSinks) -> None:
    two.close("second")
    hourly = two.pipeline.tables[HOURLY]
    DeltaTable(hourly).create_checkpoint()
    for version in (0, 1):
        (path_of(hourly) / f"_delta_log/{version:020}.json").unlink()
    assert two.refused() == (
        f"Sink hourly: table {hourly} may have rows of later checkpoints: its log does not reach back to the closing of their incarnation"
    )


def test_the_first_home_does_not_compute_rows_again_that_a_moved_pipeline_has_published(site: SavepointSite) -> None:
    manifest = site.complete(rows(1))
    opened = saved(site, manifest)
    publish(site.home)
    begin(site.home, "first")
    moved, back = Start(site, opened, elsewhere=True), Start(site, opened)
    moved.tables.close_origin({manifest.sinks[HOURLY].app: moved.decided()}, WITHOUT_SPARK)
    moved.publishes("moved", 2)
    with pytest.raises(RejectedError, match="a start that has closed the savepoint's incarnation"):
        back.decided()
    assert back.decided(keep=True) == CLOSED


def test_rows_of_a_later_incarnation_are_refused_too(site: SavepointSite) -> None:
    manifest = site.complete(rows(1))
    opened = saved(site, manifest)
    publish(site.home)
    begin(site.home, "first", "second")
    site.pipeline.close(HOURLY, manifest.sinks[HOURLY].app, CheckpointId(1))
    assert Start(site, opened).decided() == CLOSED
    site.pipeline.checkpoint({HOURLY: rows(2)}, incarnation=IncarnationId("second"))
    publish(site.home)
    with pytest.raises(RejectedError, match="checkpoint 2 of this home"):
        Start(site, opened).decided()


@everywhere
@pytest.mark.parametrize("keep", [False, True])
def test_rows_that_would_never_become_public_are_refused(site: SavepointSite, elsewhere: bool, keep: bool) -> None:
    site.complete(rows(1))
    publish(site.home)
    site.complete(rows(2), publish=Publish.EXTERNAL, known_published=1)
    manifest = site.complete([(3, "a"), (4, "a")], publish=Publish.EXTERNAL, known_published=1)
    start = Start(site, saved(site, manifest), elsewhere=elsewhere)
    with pytest.raises(RejectedError, match="3 rows up to checkpoint 3 are staged and not public"):
        start.decided(keep=keep)
    publish(site.home)
    assert start.decided() == 3


def test_rows_that_were_public_before_a_later_incarnation_closed_theirs_are_not_lost(site: SavepointSite) -> None:
    first = site.complete(rows(1))
    publish(site.home)
    opened = saved(site, site.complete())
    begin(site.home, "first", "second")
    site.pipeline.close(HOURLY, first.sinks[HOURLY].app, CheckpointId(1))
    assert Start(site, opened).decided() == CLOSED


def test_checkpoints_without_rows_need_not_be_public(site: SavepointSite) -> None:
    assert Start(site, saved(site, site.complete())).decided() is None


def test_an_incarnation_that_another_start_has_closed_is_refused_in_another_home(site: SavepointSite) -> None:
    manifest = site.complete(rows(1))
    publish(site.home)
    start = Start(site, saved(site, manifest), elsewhere=True)
    start.tables.close_origin({manifest.sinks[HOURLY].app: start.decided()}, WITHOUT_SPARK)
    with pytest.raises(RejectedError, match="a start that has closed the savepoint's incarnation"):
        start.decided()
    assert start.decided(again=True) == CLOSED


def test_the_old_incarnation_cannot_publish_once_it_is_closed(site: SavepointSite) -> None:
    manifest = site.complete(rows(1))
    publish(site.home)
    start = Start(site, saved(site, manifest), elsewhere=True)
    decided = {manifest.sinks[HOURLY].app: start.decided()}
    for _ in range(2):
        start.tables.close_origin(decided, WITHOUT_SPARK)
    site.complete(rows(2))
    with pytest.raises(RejectedError, match="was closed"):
        publish(site.home)
    assert site.pipeline.rows(HOURLY) == [(1, "a")]


def test_a_publication_between_the_decision_and_the_closing_is_a_conflict(site: SavepointSite) -> None:
    manifest = site.complete(rows(1))
    publish(site.home)
    start = Start(site, saved(site, manifest), elsewhere=True)
    decided = {manifest.sinks[HOURLY].app: start.decided()}
    site.complete(rows(2))
    publish(site.home)
    with pytest.raises(ConflictError, match="published in the meantime"):
        start.tables.close_origin(decided, WITHOUT_SPARK)


def kept(site: SavepointSite, opened: OpenedSavepoint, places: dict[SinkName, TablePlace]) -> dict[SinkName, SinkCut]:
    """Returns the sinks that still have the table of the savepoint."""
    return SavepointTables(site.home, PIPELINE, opened, places).kept


class TestAForkMayHave:
    """The tables are new. The old ones do not matter."""

    def test_a_table_elsewhere(self, site: SavepointSite) -> None:
        opened = saved(site, site.complete(rows(1)))
        assert kept(site, opened, {HOURLY: TablePlace((site.root / "elsewhere").as_uri())}) == {}

    def test_a_table_that_was_created_again_at_the_same_place(self, site: SavepointSite) -> None:
        opened = saved(site, site.complete(rows(1)))
        rmtree(path_of(site.table))
        assert kept(site, opened, {HOURLY: TablePlace(site.table)}) == {}
        site.pipeline.make_table(HOURLY)
        assert kept(site, opened, {HOURLY: TablePlace(site.table)}) == {}

    def test_no_table_for_a_sink_that_the_pipeline_no_longer_has(self, site: SavepointSite) -> None:
        assert kept(site, saved(site, site.complete(rows(1))), {}) == {}
