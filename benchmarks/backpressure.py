"""Checkpoints where one stage is far behind: aligned they wait for the rows in between, unaligned they name them."""

from collections.abc import Callable, Iterator
from pathlib import Path

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from benchmarks.figures import Better, Figure, Kind, Tell, measured_in_turn
from benchmarks.live import Arrivals, Live, read, remove
from benchmarks.site import Site
from spark_jobs import CheckpointSettings, DeltaSink, Pipeline, RestartStrategy
from spark_jobs.protocol.checkpoint_requests import Wanted

BACKPRESSURE = Kind(
    "a checkpoint under backpressure", "seconds from the request to the answer", Better.LESS, "unaligned", "aligned"
)
THROUGHPUT = Kind("throughput under backpressure", "batches a second", Better.MORE, "unaligned", "aligned")
_BATCH_MS = 2_000
_BEHIND = 20
_BATCHES, _SHORT_BATCH_MS, _FAILS_EACH = 24, 1_000, 4


def figures(site: Site, *, quick: bool, tell: Tell) -> Iterator[Figure]:
    """A stage needs one or two seconds for each batch, and the one before it almost nothing."""
    turns = 1 if quick else 2
    yield measured_in_turn(
        BACKPRESSURE,
        f"{_BEHIND} batches of {_BATCH_MS / 1000:g} s behind",
        ours=lambda: _checkpoint_s(site, unaligned=True),
        plain=lambda: _checkpoint_s(site, unaligned=False),
        turns=turns,
        tell=tell,
        goal=10.0,
    )
    for fails in (False, True):
        rates: dict[bool, list[tuple[float, float]]] = {True: [], False: []}
        for turn in range(turns):
            for unaligned, found in rates.items():
                tell(f"{THROUGHPUT.name}, {'with' if fails else 'without'} failures, turn {turn + 1} of {turns}")
                found.append(_rates(site, unaligned=unaligned, fails=fails))
        for at, stage in enumerate(("the stage before the slow one", "the slow stage")):
            name = f"{stage}; {f'each {_FAILS_EACH}th batch fails once' if fails else 'no failure'}"
            yield Figure(THROUGHPUT, name, [each[at] for each in rates[True]], [each[at] for each in rates[False]])


def _checkpoint_s(site: Site, *, unaligned: bool) -> float:
    directory = site.new()
    checkpoint = CheckpointSettings(interval="1 hour", unaligned=unaligned)
    pipeline = _pipeline(site, directory, _BEHIND + 2, _BATCH_MS, checkpoint, lambda number: number)
    with Live(site, pipeline, directory / "home") as live:
        live.until(lambda: live.batches("fast") >= _BEHIND + 2)
        _, took_s = live.ask(Wanted.CHECKPOINT)
        history = live.store.history()[-1]
        if unaligned and not history.in_flight_rows:
            raise AssertionError(f"nothing was in flight: {history}")
    remove(directory)
    return took_s


def _rates(site: Site, *, unaligned: bool, fails: bool) -> tuple[float, float]:
    """Returns the batches a second of both stages, from the first batch to their last, with a checkpoint every second."""
    directory = site.new()
    marks = directory / "failed"
    marks.mkdir()
    alignment = {"unaligned": True} if unaligned else {"aligned_timeout": "never"}
    checkpoint = CheckpointSettings(interval="1 second", **alignment)
    score = _failing_once(marks) if fails else lambda number: number
    pipeline = _pipeline(site, directory, _BATCHES, _SHORT_BATCH_MS, checkpoint, score)
    with Live(site, pipeline, directory / "home") as live:
        live.until(lambda: live.batches("fast") > 0)
        fast_s = live.until(lambda: live.batches("fast") >= _BATCHES)
        slow_s = fast_s + live.until(lambda: live.batches("slow") >= _BATCHES)
    if fails and len(list(marks.iterdir())) != _BATCHES // _FAILS_EACH:
        raise AssertionError(f"{len(list(marks.iterdir()))} batches have failed")
    remove(directory)
    return (_BATCHES - 1) / fast_s, (_BATCHES - 1) / slow_s


def _pipeline(
    site: Site, directory: Path, batches: int, batch_ms: int, checkpoint: CheckpointSettings, score: Callable[[Column], Column]
) -> Pipeline:
    """Returns a pipeline of a fast stage and a slow one, with a table of so many files, each of one row."""
    arrivals = Arrivals(site, directory / "arrivals")
    arrivals.add(batches, batches)
    restart = RestartStrategy.fixed_delay(attempts=1_000, delay="200 milliseconds")
    pipeline = Pipeline("benchmark", checkpoint=checkpoint, restart=restart)
    read(pipeline, arrivals, files_per_trigger=1, timed=False)

    @pipeline.stage
    def fast(arrivals: DataFrame) -> DataFrame:
        return arrivals

    @pipeline.stage(sink=DeltaSink(str(directory / "slow")), max_files_per_trigger=1)
    def slow(fast: DataFrame) -> DataFrame:
        slept = F.expr(f"reflect('java.lang.Thread', 'sleep', {batch_ms}L)")
        return fast.withColumn("slept", slept).withColumn("id", score(F.col("id")))

    return pipeline


def _failing_once(marks: Path) -> Callable[[Column], Column]:
    """Returns a function that fails with each fourth row at the first try, and leaves a file for it."""

    def score(number):  # type: ignore[no-untyped-def]  # with type hints it would be another kind of UDF
        mark = marks / f"{number}"
        if number % _FAILS_EACH == 0 and not mark.exists():
            mark.touch()
            raise ValueError(f"row {number} fails once")
        return number

    return F.udf(score, "long", useArrow=False)
