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
WITHOUT = Kind("throughput without checkpoints", "batches a second", Better.MORE, "unaligned", "no checkpoints")
_BATCHES, _BATCH_MS, _FAILS_EACH = 24, 1_000, 4
_WAYS = {
    "unaligned": CheckpointSettings(interval="1 second", unaligned=True),
    "aligned": CheckpointSettings(interval="1 second", aligned_timeout="never"),
    "no checkpoints": CheckpointSettings(interval="1 hour"),
}
_STAGES = ("the stage before the slow one", "the slow stage")


def figures(site: Site, *, quick: bool, tell: Tell) -> Iterator[Figure]:
    """A stage needs a second for each batch, and the one before it almost nothing."""
    tell("warming up")
    _rates(site, _WAYS[THROUGHPUT.ours], failing=False)
    yield measured_in_turn(
        BACKPRESSURE,
        f"{_BATCHES} batches of {_BATCH_MS / 1000:g} s",
        ours=lambda: _checkpoint_s(site, unaligned=True),
        plain=lambda: _checkpoint_s(site, unaligned=False),
        turns=1,
        tell=tell,
        goal=10.0,
        warm=False,
    )
    kinds_measured = [(False, (THROUGHPUT, WITHOUT)), (True, (THROUGHPUT,))]
    for failing, kinds in kinds_measured[:1] if quick else kinds_measured:
        name = f"each {_FAILS_EACH}th batch fails once" if failing else "no failure"
        found = {}
        for way in (THROUGHPUT.ours, *(kind.plain for kind in kinds)):
            tell(f"{THROUGHPUT.name}, {name}: {way}")
            found[way] = _rates(site, _WAYS[way], failing=failing)
        for kind in kinds:
            for stage, ours, plain in zip(_STAGES, found[kind.ours], found[kind.plain], strict=True):
                yield Figure(kind, f"{stage}; {name}", [ours], [plain])


def _checkpoint_s(site: Site, *, unaligned: bool) -> float:
    directory = site.new()
    pipeline = _pipeline(site, directory, CheckpointSettings(interval="1 hour", unaligned=unaligned))
    with Live(site, pipeline, directory / "home") as live:
        live.until(lambda: live.batches("fast") >= _BATCHES)
        _, took_s = live.ask(Wanted.CHECKPOINT)
        history = live.store.history()[-1]
        if unaligned and not history.in_flight_rows:
            raise AssertionError(f"nothing was in flight: {history}")
    remove(directory)
    return took_s


def _rates(site: Site, checkpoint: CheckpointSettings, *, failing: bool) -> tuple[float, float]:
    """Returns the batches a second of both stages. The time of both begins with the first batch of the first one."""
    directory = site.new()
    marks = directory / "failed"
    marks.mkdir()
    pipeline = _pipeline(site, directory, checkpoint, _failing_once(marks) if failing else None)
    with Live(site, pipeline, directory / "home") as live:
        live.until(lambda: live.batches("fast") > 0)
        fast_s = live.until(lambda: live.batches("fast") >= _BATCHES)
        slow_s = fast_s + live.until(lambda: live.batches("slow") >= _BATCHES)
    failures = len(list(marks.iterdir()))
    if failures != (_BATCHES // _FAILS_EACH if failing else 0):
        raise AssertionError(f"{failures} batches have failed")
    remove(directory)
    return (_BATCHES - 1) / fast_s, _BATCHES / slow_s


def _pipeline(
    site: Site, directory: Path, checkpoint: CheckpointSettings, score: Callable[[str], Column] | None = None
) -> Pipeline:
    """Returns a pipeline of a fast stage and a slow one. They read a table of as many files as batches, each of one row."""
    arrivals = Arrivals(site, directory / "arrivals")
    arrivals.add(_BATCHES, _BATCHES)
    restart = RestartStrategy.fixed_delay(attempts=_BATCHES, delay="200 milliseconds")
    pipeline = Pipeline("benchmark", checkpoint=checkpoint, restart=restart)
    read(pipeline, arrivals, files_per_trigger=1, timed=False)

    @pipeline.stage
    def fast(arrivals: DataFrame) -> DataFrame:
        return arrivals

    @pipeline.stage(sink=DeltaSink(str(directory / "slow")), max_files_per_trigger=1)
    def slow(fast: DataFrame) -> DataFrame:
        slept = fast.withColumn("slept", F.expr(f"reflect('java.lang.Thread', 'sleep', {_BATCH_MS}L)"))
        return slept if score is None else slept.withColumn("id", score("id"))

    return pipeline


def _failing_once(marks: Path) -> Callable[[str], Column]:
    """Returns a function that fails with each fourth row at the first try, and leaves a file for it."""

    def score(number):  # type: ignore[no-untyped-def]  # with type hints it would be another kind of UDF
        mark = marks / f"{number}"
        if number % _FAILS_EACH == 0 and not mark.exists():
            mark.touch()
            raise OSError(f"row {number} fails once")  # another error would not be tried again
        return number

    return F.udf(score, "long", useArrow=False)
