"""Static tables. Each attempt of a live pipeline pins the newest version, unless it repeats a planned batch. A bounded round reads one."""

import logging
import shutil
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from spark_jobs import CheckpointSettings, DeltaSink, Pipeline, RestartStrategy
from spark_jobs.api.source import Refresh, Static
from spark_jobs.control.pins import pins_of_attempt
from spark_jobs.protocol.errors import InterruptedRunError, RejectedError, RestartsExhaustedError
from spark_jobs.protocol.ids import AttemptNumber, InputName, StageName
from spark_jobs.protocol.pins import DeltaPin, Pin
from spark_jobs.protocol.start_requests import StartOptions
from spark_jobs.runtime import round_run
from spark_jobs.runtime.inputs.inputs import static_frame
from spark_jobs.storage.open import open_files
from tests.spark.conftest import Site
from tests.spark.failing import failing_from
from tests.spark.rows import public
from tests.support.live_pipeline import Events
from tests.support.running import Running

pytestmark = pytest.mark.spark

NAMES = InputName("names")
AGAIN = RestartStrategy.fixed_delay(attempts=1000, delay="100 milliseconds")


class Names:
    """A Delta table with one row per version. Every event is joined with all rows."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.version = -1
        self.add()

    def add(self) -> None:
        self.version += 1
        write_deltalake(str(self.path), pa.table({"name": [f"v{self.version}"]}), mode="append")

    def upto(self, version: int) -> list[str]:
        return [f"v{number}" for number in range(version + 1)]


@pytest.fixture
def names(tmp_path: Path) -> Names:
    return Names(tmp_path / "names")


@pytest.fixture
def events(tmp_path: Path) -> Events:
    found = Events(tmp_path / "events")
    found.add(1)
    return found


def named(
    site: Site,
    events: Events,
    names: Names,
    *,
    interval: str = "1 second",
    restart: RestartStrategy = AGAIN,
    switch: Path | None = None,
    history: Events | None = None,
) -> Pipeline:
    """Declares a join of each event with every name. The stage fails while ``switch`` exists, and also reads a ``history`` that ends."""
    pipeline = Pipeline("named", checkpoint=CheckpointSettings(interval=interval), restart=restart)
    there, path, directory = str(switch), str(events.path), str(names.path)
    past_path = str(history.path) if history else path

    def fails(number):  # type: ignore[no-untyped-def]  # with type hints it would be another kind of UDF
        if Path(there).exists():
            raise ConnectionError("the switch is there")
        return number

    @pipeline.source(bounded=False, name="events")
    def present(spark: SparkSession) -> DataFrame:
        return spark.readStream.format("delta").load(path)

    @pipeline.static(name="names")
    def table(spark: SparkSession) -> DataFrame:
        return spark.read.format("delta").load(directory)

    def joined(rows: DataFrame, names: DataFrame) -> DataFrame:
        return rows.select(F.udf(fails, "long", useArrow=False)("id").alias("id")).crossJoin(names)

    sink = DeltaSink(str(site.tables / "named"))
    if history is None:
        pipeline.stage(sink=sink, name="named")(lambda events, names: joined(events, names))
    else:

        @pipeline.source(bounded=True)
        def past(spark: SparkSession) -> DataFrame:
            return spark.readStream.format("delta").load(past_path)

        pipeline.stage(sink=sink, name="named")(lambda events, past, names: joined(events.union(past), names))
    return pipeline


def names_of(site: Site, number: int) -> list[str]:
    """Returns the names joined with an event in the table; none while the event is not public."""
    path = site.tables / "named"
    rows = public(path, ["id", "name"]).elements() if DeltaTable.is_deltatable(str(path)) else ()
    return sorted(name for event, name in rows if event == number)


def is_public(site: Site, number: int) -> Callable[[], bool]:
    return lambda: bool(names_of(site, number))


def version_in(pins: tuple[Pin, ...]) -> int:
    (pin,) = pins
    assert isinstance(pin, DeltaPin)
    return pin.version


def version_of(running: Running, attempt: int) -> int:
    """Returns the version that an attempt has pinned."""
    pinned = pins_of_attempt(running.files, AttemptNumber(attempt)).pinned(NAMES)
    assert pinned
    return version_in(pinned.pins)


def test_the_next_attempt_reads_the_newest_version_and_its_checkpoints_name_it(site: Site, events: Events, names: Names) -> None:
    pipeline = named(site, events, names)
    with Running(site.spark, pipeline, site.home) as running:
        running.until(is_public(site, 0))
        names.add()
        events.add(1)
        running.until(is_public(site, 1))
        first = running.head()
    events.add(1)
    with Running(site.spark, pipeline, site.home) as running:
        running.until(is_public(site, 2))
        second = running.head()
    assert (names_of(site, 0), names_of(site, 1), names_of(site, 2)) == (names.upto(0), names.upto(0), names.upto(1))
    assert (version_of(running, 1), version_of(running, 2)) == (0, 1)
    assert (version_in(first.inputs[NAMES]), version_in(second.inputs[NAMES])) == (0, 1)


def test_a_stage_that_is_restarted_alone_keeps_the_version_of_its_attempt(
    site: Site, events: Events, names: Names, tmp_path: Path
) -> None:
    switch = tmp_path / "switch"
    with Running(site.spark, named(site, events, names, switch=switch), site.home) as running:
        running.until(is_public(site, 0))
        switch.touch()
        events.add(1)
        running.until(lambda: running.status and running.status.stages[StageName("named")].restarts)
        names.add()
        switch.unlink()
        running.until(is_public(site, 1))
    assert names_of(site, 1) == names.upto(0)


@pytest.mark.nightly
def test_a_stage_that_goes_on_without_an_ended_input_keeps_the_version_of_its_attempt(
    site: Site, events: Events, names: Names, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The stage is built again once the history is read. It gets its first rows here after the table has changed."""
    caplog.set_level(logging.INFO)
    switch = tmp_path / "switch"
    switch.touch()
    history = Events(tmp_path / "history")
    history.rows = 100
    history.add(1)
    with Running(site.spark, named(site, events, names, switch=switch, history=history), site.home) as running:
        running.until(lambda: running.status and running.status.stages[StageName("named")].restarts)
        names.add()
        switch.unlink()
        running.until(lambda: "stage named goes on without past, which has ended" in caplog.text)
        events.add(1)
        running.until(is_public(site, 1))
    assert names_of(site, 1) == names_of(site, 100) == names.upto(0)


class TestABatchThatIsComputedAgain:
    """An attempt has planned and staged the batch, and died before Spark committed it."""

    @pytest.fixture
    def died(self, site: Site, events: Events, names: Names) -> None:
        """Runs two batches and removes the second commit. The table then gets another version."""
        with Running(site.spark, named(site, events, names, interval="1 hour"), site.home) as running:
            running.until(lambda: commits(site))
            events.add(1)
            running.until(lambda: len(commits(site)) > 1)
        last = commits(site)[-1]
        last.with_name(f".{last.name}.crc").unlink()
        last.unlink()
        names.add()

    def test_joins_the_pinned_version_while_that_exists(self, site: Site, events: Events, names: Names, died: None) -> None:
        pipeline = named(site, events, names, restart=RestartStrategy.none())
        for number, version in ((2, 0), (3, 1)):
            with Running(site.spark, pipeline, site.home) as running:
                events.add(1)
                running.until(is_public(site, number))
            assert version_of(running, number) == version
        found = [names_of(site, number) for number in range(4)]
        assert found == [names.upto(0), names.upto(0), names.upto(0), names.upto(1)]

    def test_would_have_other_rows_with_the_newest_version(
        self, site: Site, events: Events, names: Names, died: None, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The test shows why the rule is needed."""
        monkeypatch.setattr(round_run, "keep_pinned_versions", lambda *arguments: frozenset())
        with Running(site.spark, named(site, events, names, restart=RestartStrategy.none()), site.home) as running:
            error = running.ends()
        assert isinstance(error, RestartsExhaustedError)
        assert "was computed twice and had 2 rows after 1" in error.failed


def commits(site: Site) -> list[Path]:
    """Returns Spark's marks of committed batches, the newest last."""
    found = [path for path in site.home.glob("work/*/stages/named/checkpoint/commits/*") if path.name.isdigit()]
    return sorted(found, key=lambda path: int(path.name))


def make_anew(path: Path, older: Path) -> None:
    shutil.rmtree(path)
    for name in ("other", "rows"):
        write_deltalake(str(path), pa.table({"name": [name]}), mode="append")


def go_back(path: Path, older: Path) -> None:
    shutil.rmtree(path)
    shutil.copytree(older, path)


def go_back_and_on(path: Path, older: Path) -> None:
    go_back(path, older)
    write_deltalake(str(path), pa.table({"name": ["another row"]}), mode="append")


def forget_old_versions(path: Path, older: Path) -> None:
    table = DeltaTable(str(path))
    write_deltalake(str(path), pa.table({"name": ["newest"]}), mode="append")
    table.update_incremental()
    table.create_checkpoint()
    for version in range(table.version()):
        (path / f"_delta_log/{version:020}.json").unlink()


def delete_old_files(path: Path, older: Path) -> None:
    write_deltalake(str(path), pa.table({"name": ["newest"]}), mode="overwrite")
    DeltaTable(str(path)).vacuum(0, enforce_retention_duration=False, dry_run=False)


def two_events(site: Site, events: Events, names: Names, flag: Path) -> Pipeline:
    """Declares a join of each event with every name, one event a batch. The second one fails while the flag exists."""
    pipeline = Pipeline("named", on_end="suspend")
    pipeline.source(name="events", bounded=True)(
        lambda spark: spark.readStream.format("delta").option("maxFilesPerTrigger", 1).load(str(events.path))
    )
    pipeline.static(name="names")(lambda spark: spark.read.format("delta").load(str(names.path)))

    @pipeline.stage(sink=DeltaSink(str(site.tables / "named")))
    def named(events: DataFrame, names: DataFrame) -> DataFrame:
        return events.select(failing_from(1, flag)("id").alias("id")).crossJoin(names)

    return pipeline


@pytest.fixture
def interrupted(site: Site, events: Events, names: Names, tmp_path: Path) -> Pipeline:
    """Interrupts a round after its first batch, which was joined with version 1 of the names."""
    events.add(1)
    shutil.copytree(names.path, tmp_path / "older")
    names.add()
    pipeline, flag = two_events(site, events, names, tmp_path / "fail"), tmp_path / "fail"
    flag.touch()
    with pytest.raises(InterruptedRunError, match="as told"):
        site.run(pipeline, run_id="only")
    flag.unlink()
    return pipeline


@pytest.mark.parametrize(
    ("replace", "why"),
    [
        (make_anew, "it has the id"),
        (go_back, "it is at version 0 now"),
        (go_back_and_on, "it has another version 1 than was there"),
    ],
)
def test_another_table_in_place_of_the_pinned_table_is_refused_until_that_is_back(
    site: Site, names: Names, interrupted: Pipeline, tmp_path: Path, replace: Callable[[Path, Path], None], why: str
) -> None:
    """The new version 1 would be joined with the rest of the round's events."""
    shutil.copytree(names.path, tmp_path / "kept")
    replace(names.path, tmp_path / "older")
    with pytest.raises(RejectedError, match=f"Static input 'names' must still be read at version 1 .*{why}"):
        site.run(interrupted, run_id="only")
    shutil.rmtree(names.path)
    shutil.copytree(tmp_path / "kept", names.path)
    site.run(interrupted, run_id="only")
    assert public(site.tables / "named", ["id", "name"]) == Counter((n, name) for n in (0, 1) for name in names.upto(1))


@pytest.mark.parametrize(
    ("replace", "error", "now"),
    [
        (make_anew, RejectedError, ["other", "rows"]),
        (forget_old_versions, RejectedError, ["v0", "v1", "newest"]),
        (delete_old_files, InterruptedRunError, ["newest"]),
    ],
)
def test_a_round_goes_on_with_the_newest_version_if_the_pinned_one_is_gone_for_good(
    site: Site,
    names: Names,
    interrupted: Pipeline,
    tmp_path: Path,
    replace: Callable[[Path, Path], None],
    error: type[Exception],
    now: list[str],
) -> None:
    """The round has no checkpoint, so all of its events are joined again."""
    replace(names.path, tmp_path / "older")
    with pytest.raises(error) as caught:
        site.run(interrupted, run_id="only")
    assert "--new-source" in str(caught.value)
    site.run(interrupted, run_id="only", new_sources=["names"])
    assert public(site.tables / "named", ["id", "name"]) == Counter((n, name) for n in (0, 1) for name in now)


# test_a_table_that_is_taken_as_new_is_joined_after_the_newest_checkpoint takes a table as new by day.
@pytest.mark.nightly
def test_a_table_that_is_replaced_twice_in_a_run_has_to_be_taken_as_new_twice(
    site: Site, names: Names, interrupted: Pipeline, tmp_path: Path
) -> None:
    make_anew(names.path, tmp_path)
    (tmp_path / "fail").touch()
    with pytest.raises(InterruptedRunError, match="as told"):
        site.run(interrupted, run_id="only", new_sources=["names"])
    write_deltalake(str(names.path), pa.table({"name": ["newer"]}), mode="append")
    with pytest.raises(InterruptedRunError, match="as told"):
        site.run(interrupted, run_id="only", new_sources=["names"])
    pins = [pins_of_attempt(open_files(str(site.home)), AttemptNumber(number)).pinned(NAMES) for number in (1, 2, 3)]
    assert [version_in(pinned.pins) for pinned in pins if pinned] == [1, 1, 1]  # the run takes an unchanged table only once
    go_back(names.path, tmp_path / "older")
    (tmp_path / "fail").unlink()
    site.run(interrupted, run_id="only", new_sources=["names"])
    assert public(site.tables / "named", ["id", "name"]) == Counter((n, "v0") for n in (0, 1))


def test_a_table_that_is_taken_as_new_is_joined_after_the_newest_checkpoint(
    site: Site, events: Events, names: Names, tmp_path: Path
) -> None:
    switch = tmp_path / "switch"
    pipeline = named(site, events, names, switch=switch, restart=RestartStrategy.none())
    with Running(site.spark, pipeline, site.home) as running:
        running.until(is_public(site, 0))
        switch.touch()
        events.add(1)
        assert "the switch is there" in str(running.ends())
    switch.unlink()
    make_anew(names.path, tmp_path)
    with Running(site.spark, pipeline, site.home) as running:
        assert "--new-source names" in str(running.ends())
    with Running(site.spark, pipeline, site.home, options=StartOptions(new_sources=("names",))) as running:
        running.until(is_public(site, 1))
    assert (names_of(site, 0), names_of(site, 1)) == (names.upto(0), ["other", "rows"])


def test_another_table_cannot_be_taken_as_new_while_batches_are_computed_again(site: Site, names: Names, tmp_path: Path) -> None:
    """They must give the rows that are staged."""
    static = Static(NAMES, lambda spark: spark.read.format("delta").load(str(names.path)), Refresh.ROUND)
    pinned = static_frame(static, site.spark, None, None)[1]
    make_anew(names.path, tmp_path)
    for is_replayed in (False, True):
        with pytest.raises(RejectedError) as caught:
            static_frame(static, site.spark, None, pinned, is_replayed=is_replayed)
        assert ("--new-source" in caught.value.remedy) is not is_replayed
