"""The cost of failures: the time until rows are public again, and the rows that are left out because of one bad row."""

import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from statistics import median

from deltalake import DeltaTable
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

from benchmarks.figures import Better, Figure, Kind, Tell, measured_in_turn
from benchmarks.freshness import Arriving, public_versions
from benchmarks.live import Live, remove
from benchmarks.site import Site
from spark_jobs import CheckpointSettings, DeltaSink, Hold, Pipeline, Tolerate
from spark_jobs.protocol.documents import StageState

NEXT_ROW = Kind(
    "the next public row",
    "seconds from the first failure until a table has rows that came after the bad one",
    Better.LESS,
    "after the failure",
    "between two versions before it",
)
LEFT_OUT = Kind("one bad row in a million", "rows that are left out", Better.LESS, "passed over", "the batch skipped")
_HEALTHY, _FAILING, _BEHIND = "copied", "failing", "behind"
_WARM_ROWS, _WARM_VERSIONS = 20_000, 5
_ROWS, _ROWS_A_BATCH, _BAD = 1_000_000, 100_000, 555_555


@dataclass(frozen=True)
class _Failure:
    """A failure that is measured.

    Args:
        name: Its description.
        table: The table whose next rows count.
        tolerate: The tolerance of the stage.
        behind: True if another stage reads the one that fails.
        refuses: True if the table refuses rows. Otherwise one row fails the stage.
    """

    name: str
    table: str = _HEALTHY
    tolerate: Tolerate | None = None
    behind: bool = False
    refuses: bool = False


_FAILURES = (
    _Failure("a stage alone fails: another table"),
    _Failure("a stage and one behind it fail: another table", behind=True),
    _Failure("a table refuses, with a hold: another table", refuses=True),
    _Failure("a bad row is passed over: the stage's own table", table=_FAILING, tolerate=Tolerate(rows="100000 per hour")),
)


def figures(site: Site, *, quick: bool, tell: Tell) -> Iterator[Figure]:
    """A thousand rows a second come into a pipeline with a checkpoint every second. A million rows are in 100 files, or in 1,000."""
    turns = 1 if quick else 2
    for failure in _FAILURES:
        found = []
        for turn in range(turns):
            tell(f"{NEXT_ROW.name}: {failure.name}, turn {turn + 1} of {turns}")
            found.append(_next_row_s(site, failure))
        yield Figure(NEXT_ROW, failure.name, [after for after, _ in found], [before for _, before in found])
    for rows in (10_000,) if quick else (10_000, 1_000):
        directory = site.new()
        site.spark.range(0, _ROWS, 1, _ROWS // rows).write.format("delta").save(str(directory / "rows"))
        yield measured_in_turn(
            LEFT_OUT,
            f"files of {rows:,} rows, batches of {_ROWS_A_BATCH:,}",
            ours=lambda rows=rows, place=directory: _passed_over(site, place / "rows", _ROWS_A_BATCH // rows),  # type: ignore[misc]
            plain=lambda rows=rows, place=directory: _skipped(site, place / "rows", _ROWS_A_BATCH // rows),  # type: ignore[misc]
            turns=1,
            tell=tell,
        )
        remove(directory)


def _scoring(bad: int, failed: Path | None = None) -> Callable[[str], Column]:
    """Returns a function that fails with one row. It creates the file ``failed`` before."""
    mark = None if failed is None else str(failed)

    def score(number):  # type: ignore[no-untyped-def]  # with type hints it would be another kind of UDF
        if number == bad:
            if mark is not None and not Path(mark).exists():
                Path(mark).touch()
            raise ValueError(f"record {number} cannot be scored")
        return number

    return F.udf(score, "long", useArrow=False)


def _next_row_s(site: Site, failure: _Failure) -> tuple[float, float]:
    """Returns the seconds from the failure to the next rows of the table, and the median of those between its versions before."""
    directory = site.new()
    source, failed, table = directory / "arriving", directory / "failed", directory / failure.table
    source.mkdir()
    score = F.col if failure.refuses else _scoring(_WARM_ROWS, failed)
    pipeline = _pipeline(directory, source, failure, score)
    with Live(site, pipeline, directory / "home") as live:
        live.until(live.runs)
        with Arriving(source):
            if failure.refuses:
                live.until(lambda: max((last for last, _ in public_versions(table)), default=0) > _WARM_ROWS)
                forbidden = public_versions(directory / _FAILING)[-1][0] + 5_000
                DeltaTable(str(directory / _FAILING)).alter.add_constraint({"closed": f"id < {forbidden}"})
                live.until(lambda: _is_refused(live))
                failed_s = time.time()
                row = public_versions(table)[-1][0] + 1
            else:
                live.until(failed.exists)
                failed_s, row = failed.stat().st_mtime, _WARM_ROWS + 1
            live.until(lambda: public_versions(table)[-1][0] >= row)
    found = public_versions(table)
    before = [later - earlier for (_, earlier), (_, later) in pairwise(found) if later <= failed_s][_WARM_VERSIONS:]
    after = next(at_s for last, at_s in found if last >= row) - failed_s
    remove(directory)
    return after, median(before)


def _is_refused(live: Live) -> bool:
    status = live.status
    stages = status.stages.values() if status else ()
    return bool(status and status.blocked) or any(stage.state is StageState.RESTARTING for stage in stages)


def _pipeline(directory: Path, source: Path, failure: _Failure, score: Callable[[str], Column]) -> Pipeline:
    pipeline = Pipeline("failures", checkpoint=CheckpointSettings(interval="1 second"))

    @pipeline.source(bounded=False)
    def arriving(spark: SparkSession) -> DataFrame:
        return spark.readStream.schema("id LONG, user INT").json(str(source))

    @pipeline.stage(sink=DeltaSink(str(directory / _HEALTHY)))
    def copied(arriving: DataFrame) -> DataFrame:
        return arriving

    hold = Hold(time="1 hour") if failure.refuses else None

    @pipeline.stage(sink=DeltaSink(str(directory / _FAILING), hold=hold), tolerate=failure.tolerate)
    def failing(arriving: DataFrame) -> DataFrame:
        return arriving.select(score("id").alias("id"))

    if failure.behind:

        @pipeline.stage(sink=DeltaSink(str(directory / _BEHIND)))
        def behind(failing: DataFrame) -> DataFrame:
            return failing

    return pipeline


def _passed_over(site: Site, rows: Path, files_a_batch: int) -> float:
    """Returns the number of rows that a tolerant stage leaves out."""
    directory = site.new()
    pipeline, score = Pipeline("failures"), _scoring(_BAD)

    @pipeline.source(bounded=True)
    def million(spark: SparkSession) -> DataFrame:
        return spark.readStream.format("delta").option("maxFilesPerTrigger", files_a_batch).load(str(rows))

    @pipeline.stage(sink=DeltaSink(str(directory / _FAILING)), tolerate=Tolerate(rows=f"{_ROWS} per hour", after=1))
    def failing(million: DataFrame) -> DataFrame:
        return million.select(score("id").alias("id"))

    pipeline.run(spark=site.spark, home=directory / "home")
    left_out = _ROWS - site.rows(directory / _FAILING)
    remove(directory)
    return left_out


def _skipped(site: Site, rows: Path, files_a_batch: int) -> float:
    """Returns the number of rows that a bare query leaves out if it skips a batch that fails."""
    directory, score = site.new(), _scoring(_BAD)

    def write(frame: DataFrame, batch: int) -> None:
        with suppress(Exception):  # whatever Spark raises if a row fails
            frame.select(score("id").alias("id")).write.format("delta").mode("append").save(str(directory / _FAILING))

    stream = site.spark.newSession().readStream.format("delta").option("maxFilesPerTrigger", files_a_batch).load(str(rows))
    query = stream.writeStream.foreachBatch(write).option("checkpointLocation", str(directory / "checkpoint"))
    query.trigger(availableNow=True).start().awaitTermination()
    left_out = _ROWS - site.rows(directory / _FAILING)
    remove(directory)
    return left_out
