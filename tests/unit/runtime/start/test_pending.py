"""Staged rows of a savepoint: a start in another home publishes them, or drops them and says so."""

from pathlib import Path
from shutil import rmtree
from types import SimpleNamespace
from typing import cast

import pytest

from spark_jobs.api.graph import Graph
from spark_jobs.protocol.documents import PipelineDocument, Publish
from spark_jobs.protocol.errors import RejectedError
from spark_jobs.protocol.ids import CheckpointId, PipelineName
from spark_jobs.protocol.merge_cut import MergeCut
from spark_jobs.publication.delta_rs import open_table
from spark_jobs.publication.pending import CLOSED
from spark_jobs.publication.publisher import WITHOUT_SPARK, publish
from spark_jobs.publication.transactions import Publishers
from spark_jobs.runtime.start.rewind import SavepointTables
from spark_jobs.runtime.start.savepoint_import import OpenedSavepoint
from spark_jobs.runtime.start.savepoint_start import SavepointStart
from spark_jobs.runtime.tables.table_places import TablePlace
from tests.support.savepoint_site import SavepointSite
from tests.support.savepoint_start import beginning, saved
from tests.support.staged_pipeline import ANOTHER, HOURLY, PIPELINE, path_of
from tests.support.systems import quick

EXTERNAL, ALL = Publish.EXTERNAL, [(number, "a") for number in range(1, 5)]


@pytest.fixture
def site(tmp_path: Path) -> SavepointSite:
    """A site with a published checkpoint and a staged one."""
    made = SavepointSite(tmp_path / "origin")
    made.complete([(1, "a")])
    publish(made.home)
    made.complete([(2, "a"), (3, "a")], publish=EXTERNAL, known_published=CheckpointId(1))
    return made


@pytest.fixture
def opened(site: SavepointSite) -> OpenedSavepoint:
    """A savepoint of a third checkpoint, which is staged and not published."""
    return saved(site, site.complete([(4, "a")], publish=EXTERNAL, known_published=CheckpointId(1)))


class Start:
    """A start from the savepoint in another home."""

    def __init__(self, site: SavepointSite, opened: OpenedSavepoint, *, take: bool = True) -> None:
        self.home, self.opened, self.table = quick(site.root / "other"), opened, site.table
        self.take = take

    def goes_on(self, *, table: str | None = None, again: bool = False, publishers: Publishers = WITHOUT_SPARK) -> None:
        start = self.checked(table=table, again=again)
        start.close_origin(publishers)

    def checked(self, *, table: str | None = None, again: bool = False, own: bool = False) -> SavepointStart:
        home = PipelineDocument(name=PipelineName("flights"), uuid=PIPELINE if own else ANOTHER)
        start = SavepointStart(self.home, home, self.opened, take=self.take, again=again)
        start.check({HOURLY: TablePlace(table or self.table)})
        return start


def test_rows_of_a_lost_home_are_published_once_before_its_incarnation_is_closed(
    site: SavepointSite, opened: OpenedSavepoint
) -> None:
    for add in (
        line["add"]
        for k in map(CheckpointId, (2, 3))
        for line in site.pipeline.store.read_actions(site.pipeline.store.manifest(k).sinks[HOURLY])
    ):
        (path_of(site.table) / add["path"]).unlink()
    rmtree(site.root / "home")
    before = sorted(opened.files.paths())
    start = Start(site, opened)
    with pytest.raises(RejectedError, match="3 rows up to checkpoint 3 are staged and not public") as refused:
        Start(site, opened, take=False).checked()
    assert "--take-pending" in refused.value.remedy
    start.goes_on()
    start.goes_on(again=True)
    assert site.pipeline.rows(HOURLY) == ALL
    assert open_table(site.table).transaction_version(opened.manifest.sinks[HOURLY].app) == CLOSED
    assert sorted(opened.files.paths()) == before


def test_rows_that_the_old_home_publishes_at_the_same_time_are_public_once(site: SavepointSite, opened: OpenedSavepoint) -> None:
    start = Start(site, opened).checked()
    publish(site.home)
    start.close_origin(WITHOUT_SPARK)
    assert site.pipeline.rows(HOURLY) == ALL


def test_a_savepoint_whose_staged_rows_cannot_be_taken_is_refused(site: SavepointSite, opened: OpenedSavepoint) -> None:
    """The original home publishes them without the savepoint. An upsert's rows are not staged in the table's directory."""
    start = Start(site, opened)
    with pytest.raises(RejectedError, match="staged and not public"):
        start.checked(own=True)
    cut = opened.manifest.sinks[HOURLY]
    upsert = MergeCut(keys=("id",), sequence_by=None, apply_as_deletes=None, staged_in=site.table, tombstones=None)
    opened.manifest.sinks[HOURLY] = cut.model_copy(update={"merge": upsert})
    with pytest.raises(RejectedError, match="staged and not public"):
        start.checked()
    opened.manifest.sinks[HOURLY] = cut
    site.pipeline.close(HOURLY, cut.app, CheckpointId(1))
    with pytest.raises(RejectedError, match="staged and not public"):
        start.checked(again=True)


def test_rows_that_stay_behind_are_counted_unless_they_are_taken(site: SavepointSite, opened: OpenedSavepoint) -> None:
    elsewhere = (site.root / "elsewhere").as_uri()
    tables = SavepointTables(site.home, PIPELINE, opened, {HOURLY: TablePlace(elsewhere)})
    assert tables.left_behind() == {HOURLY: 3}
    with pytest.raises(RejectedError, match="3 of sink hourly"):
        Start(site, opened).checked(table=elsewhere)
    Start(site, opened, take=False).goes_on(table=elsewhere)
    publish(site.home, CheckpointId(2))
    assert tables.left_behind() == {HOURLY: 1}
    rmtree(path_of(site.table))
    assert tables.left_behind() == {HOURLY: 3}


def test_the_log_has_the_number_of_rows_that_stay_behind(
    site: SavepointSite, opened: OpenedSavepoint, caplog: pytest.LogCaptureFixture
) -> None:
    start = Start(site, opened, take=False)
    begins, nothing = beginning(start.home, site.root), cast(Graph, SimpleNamespace(stages={}))
    checked = start.checked(table=(site.root / "elsewhere").as_uri())
    checked.bring_in(begins.attempt, begins.round, nothing)
    assert "sink hourly goes on without 3 staged, unpublished rows of the savepoint" in caplog.text
