"""Source files are archived or deleted once all of their results are public, and never before."""

import json
import os
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from spark_jobs import CheckpointSettings, DeltaSink, InterruptedRunError, Pipeline
from spark_jobs.protocol.errors import InvalidPipelineError, RejectedError, StreamPipelineError
from spark_jobs.protocol.losses import LostFiles
from spark_jobs.protocol.steps import Step, observed_by
from spark_jobs.storage.files import Files
from spark_jobs.storage.open import open_place
from tests.spark.conftest import Site
from tests.spark.rows import public
from tests.support.command_line import spark_jobs
from tests.support.meanwhile import Meanwhile

pytestmark = pytest.mark.spark


@pytest.fixture
def folder(site: Site) -> Path:
    path = site.home.parent / "in box"
    (path / "day=1").mkdir(parents=True)
    return path


def write(path: Path, numbers: Sequence[int]) -> None:
    path.write_text("".join(json.dumps({"n": n}) + "\n" for n in numbers))


def tidying(site: Site, folder: Path | str, *, publish: str = "final", retained: int = 1, **declared: object) -> Pipeline:
    """Declares two tables of one folder. The second one fails at 2 while a flag exists."""
    pipeline = Pipeline("tidy", on_end="suspend", checkpoint=CheckpointSettings(interval="1 hour", retained=retained))
    flag = site.home.parent / "fail"

    @pipeline.source(bounded=True, **declared)  # type: ignore[arg-type]
    def rows(spark: SparkSession) -> DataFrame:
        return spark.readStream.schema("n long").json(f"{folder}/*")

    def fail(n: int) -> int:
        if n == 2 and flag.exists():
            raise RuntimeError("failed as told")
        return n

    pipeline.stage(name="copy", sink=DeltaSink(site.table("copy")))(lambda rows: rows)

    @pipeline.stage(sink=DeltaSink(site.table("other"), publish=publish))  # type: ignore[arg-type]
    def other(rows: DataFrame) -> DataFrame:
        return rows.select(F.udf(fail, "long", useArrow=False)("n").alias("n"))

    return pipeline


def archived(folder: Path) -> list[str]:
    root = folder.parent / "read"
    return sorted(str(path.relative_to(root)) for path in root.rglob("*.json*") if not path.name.startswith("."))


def left(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*.json"))


def copied(site: Site, table: str = "copy") -> list[int]:
    return sorted(row[0] for row in public(site.table(table)).elements())


def archiving(site: Site, folder: Path, **options: object) -> Pipeline:
    archive = str(folder.parent / "read")
    return tidying(site, folder, after_publication="archive", archive=archive, **options)  # type: ignore[arg-type]


def test_files_are_archived_once_every_table_has_their_rows(site: Site, folder: Path) -> None:
    for n in range(4):
        write(folder / f"day=1/part {n}.json", [n])
    pipeline = archiving(site, folder)
    (site.home.parent / "fail").touch()
    with pytest.raises(InterruptedRunError, match="as told"):
        site.run(pipeline, run_id="day 1")
    assert len(left(folder)) == 4
    (site.home.parent / "fail").unlink()
    write(folder / "day=1/later.json", [9])
    site.run(pipeline, run_id="day 1")
    assert left(folder) == ["day=1/later.json"], "it belongs to the next round"
    assert archived(folder) == [f"day=1/part {n}.json" for n in range(4)]
    write(folder / "day=1/part 1.json", [11])
    site.run(pipeline, run_id="day 2")
    assert copied(site) == copied(site, "other") == [0, 1, 2, 3, 9, 11], "a file under the name of an archived one is another one"
    assert left(folder) == []
    assert len(archived(folder)) == 6, "the archive has both"


def test_a_fresh_start_that_would_remove_rows_of_archived_files_is_refused(site: Site, folder: Path) -> None:
    """The test tries each remedy of the refusal: it accepts the files as lost, keeps the rows, and brings the files back."""
    for n in range(3):
        write(folder / f"day=1/{n}.json", [n])
    pipeline = archiving(site, folder)
    site.run(pipeline, run_id="day 1")
    with pytest.raises(RejectedError, match="Source 'rows' would be read without 3 files") as refused:
        site.run(pipeline, run_id="anew", fresh=True, on_rewind="replace")
    assert copied(site) == [0, 1, 2]
    assert f"Restore them from {folder.parent / 'read'}" in refused.value.remedy
    write(folder / "day=1/3.json", [3])
    site.run(pipeline, run_id="kept", fresh=True, on_rewind="keep")
    assert copied(site) == [0, 1, 2, 3]
    for path in (folder.parent / "read").rglob("*.json"):
        path.rename(folder / "day=1" / path.name)
    site.run(pipeline, run_id="replaced", fresh=True, on_rewind="replace")
    assert copied(site) == [0, 1, 2, 3]
    assert not site.manifest().losses
    site.run(pipeline, run_id="accepted", fresh=True, on_rewind="replace", accept_data_loss=["rows"])
    assert copied(site) == []
    lost = site.manifest().losses
    assert {(loss.stage, len(loss.files)) for loss in lost if isinstance(loss, LostFiles)} == {("copy", 4), ("other", 4)}


def test_a_full_refresh_that_would_remove_rows_of_archived_files_is_refused(site: Site, folder: Path) -> None:
    for n in range(3):
        write(folder / f"day=1/{n}.json", [n])
    pipeline = archiving(site, folder)
    site.run(pipeline, run_id="day 1")
    with pytest.raises(RejectedError, match="Source 'rows' would be read without 3 files"):
        site.run(pipeline, run_id="anew", full_refresh=["copy"])
    assert copied(site) == [0, 1, 2]
    site.run(pipeline, run_id="accepted", full_refresh=["copy"], accept_data_loss=["rows"])
    assert (copied(site), copied(site, "other")) == ([], [0, 1, 2])
    assert {loss.stage for loss in site.manifest().losses if isinstance(loss, LostFiles)} == {"copy"}


def test_a_file_that_replaced_a_published_file_is_not_deleted(site: Site, folder: Path) -> None:
    write(folder / "day=1/0.json", [0])
    write(folder / "day=1/1.json", [1])
    pipeline = tidying(site, folder, after_publication="delete")

    class Replacing:
        def before(self, step: Step) -> None:
            if step is Step.MANIFEST_CREATE:
                write(folder / "day=1/1.json", [100, 101])

        def after(self, step: Step) -> None:
            pass

    with observed_by(Replacing()):
        site.run(pipeline, run_id="day 1")
    assert left(folder) == ["day=1/1.json"]
    site.run(pipeline, run_id="day 2")
    assert copied(site) == [0, 1, 100, 101]
    assert left(folder) == []


@pytest.mark.parametrize("before", [True, False])
def test_the_next_attempt_archives_files_that_a_killed_attempt_has_left(site: Site, folder: Path, before: bool) -> None:
    for n in range(3):
        write(folder / f"day=1/{n}.json", [n])
    pipeline = archiving(site, folder)

    class Dying:
        times = 0

        def before(self, step: Step) -> None:
            self._pass(step, here=before)

        def after(self, step: Step) -> None:
            self._pass(step, here=not before)

        def _pass(self, step: Step, *, here: bool) -> None:
            if step is Step.TIDY_FILE and here:
                self.times += 1
                if self.times == 2:
                    raise RuntimeError("died as told")

    with observed_by(Dying()), suppress(StreamPipelineError):
        site.run(pipeline, run_id="day 1")
    assert 0 < len(archived(folder)) < 3
    site.run(pipeline, run_id="day 2")
    assert archived(folder) == ["day=1/0.json", "day=1/1.json", "day=1/2.json"]
    assert left(folder) == []
    assert copied(site) == [0, 1, 2]


def test_files_stay_until_a_table_with_external_publication_is_public(site: Site, folder: Path) -> None:
    write(folder / "day=1/0.json", [0])
    pipeline = archiving(site, folder, publish="external")
    site.run(pipeline, run_id="day 1")
    assert left(folder) == ["day=1/0.json"]
    assert spark_jobs("publish", "--home", site.home).exit_code == 0
    site.run(pipeline, run_id="day 2")
    assert left(folder) == []
    assert copied(site) == copied(site, "other") == [0]


def test_a_file_that_was_changed_after_its_round_is_refused_if_files_are_not_archived(site: Site, folder: Path) -> None:
    """Spark knows the file by its name, and would not read the change."""
    path = folder / "day=1/0.json"
    write(path, [0])
    pipeline = Pipeline("plain", on_end="suspend")
    pipeline.source(name="rows", bounded=True)(lambda spark: spark.readStream.schema("n long").json(f"{folder}/*"))
    pipeline.stage(name="copy", sink=DeltaSink(str(site.tables / "copy")))(lambda rows: rows)
    site.run(pipeline, run_id="day 1")
    write(path, [1, 2])
    os.utime(path, (1_800_000_000, 1_800_000_000))
    with pytest.raises(RejectedError, match="1 files that were changed since they were read"):
        site.run(pipeline, run_id="day 2")
    path.rename(folder / "day=1/1.json")
    site.run(pipeline, run_id="day 2")
    assert copied(site) == [0, 1, 2]


@pytest.mark.stores
def test_an_archive_inside_of_the_source_is_refused_in_each_spelling_of_a_store(store_site: Site) -> None:
    folder, other_spelling = f"{store_site.store}/in", f"{store_site.store}/in/read".replace("s3:", "s3a:")
    open_place(folder).create("day=1/0.json", b'{"n": 0}\n')
    pipeline = tidying(store_site, folder, after_publication="archive", archive=other_spelling)
    with pytest.raises(InvalidPipelineError, match="has its archive in it"):
        store_site.run(pipeline)
    assert open_place(store_site.store or "").paths() == ["in/day=1/0.json"], "nothing was written"


@pytest.mark.parametrize("archive", ["day=1/read", ""])
def test_an_archive_inside_of_the_source_is_refused(site: Site, folder: Path, archive: str) -> None:
    write(folder / "day=1/0.json", [0])
    pipeline = tidying(site, folder, after_publication="archive", archive=str(folder / archive))
    with pytest.raises(InvalidPipelineError, match="has its archive in it"):
        site.run(pipeline)
    assert left(folder) == ["day=1/0.json"]


# By day test_files_are_archived_once_every_table_has_their_rows and test_a_file_that_replaced_a_published_file_is_not_deleted
# archive and delete files on a disk.
@pytest.mark.nightly
@pytest.mark.stores
@pytest.mark.parametrize("after_publication", ["archive", "delete"])
def test_files_in_a_store_are_archived_or_deleted_as_on_a_disk(store_site: Site, after_publication: str) -> None:
    place, archive = open_place(f"{store_site.store}/in box"), open_place(f"{store_site.store}/read files")
    declared: dict[str, Any] = {"archive": archive.url.replace("s3:", "s3a:")} if after_publication == "archive" else {}
    pipeline = tidying(store_site, place.url, after_publication=after_publication, **declared)

    def write(name: str, *numbers: int) -> None:
        place.replace(f"day=1/{name}.json", "".join(f'{{"n": {n}}}\n' for n in numbers).encode())

    def files(of: Files) -> list[str]:
        return [path for path in sorted(of.paths()) if ".json" in path]

    for n in range(3):
        write(f"part {n}", n)
    with observed_by(Meanwhile(lambda: write("later", 9))):
        store_site.run(pipeline, run_id="day 1")
    assert files(place) == ["day=1/later.json"], "it belongs to the next round"
    write("part 1", 11, 12)
    store_site.run(pipeline, run_id="day 2")
    assert copied(store_site) == copied(store_site, "other") == [0, 1, 2, 9, 11, 12], (
        "a file under the name of a read one is another one"
    )
    assert files(place) == []
    kept = files(archive)
    assert len(kept) == (5 if declared else 0)
    if declared:
        assert {"day=1/part 0.json", "day=1/part 1.json", "day=1/part 2.json", "day=1/later.json"} < set(kept)
    with pytest.raises(RejectedError, match="Source 'rows' would be read without 4 files"):
        store_site.run(pipeline, run_id="anew", fresh=True, on_rewind="replace")
    assert copied(store_site) == [0, 1, 2, 9, 11, 12]
