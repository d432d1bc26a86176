"""A checkpoint where one stage is far behind: aligned it waits for the rows in between, unaligned it names them."""

from collections.abc import Iterator

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from benchmarks.figures import Better, Figure, Kind, Tell, measured_in_turn
from benchmarks.live import Arrivals, Live, read, remove
from benchmarks.site import Site
from spark_jobs import CheckpointSettings, DeltaSink, Pipeline
from spark_jobs.protocol.checkpoint_requests import Wanted

BACKPRESSURE = Kind(
    "a checkpoint under backpressure", "seconds from the request to the answer", Better.LESS, "unaligned", "aligned"
)
_BATCH_MS = 2_000
_BEHIND = 20


def figures(site: Site, *, quick: bool, tell: Tell) -> Iterator[Figure]:
    """Twenty batches wait for a stage that needs two seconds for each."""
    yield measured_in_turn(
        BACKPRESSURE,
        f"{_BEHIND} batches of {_BATCH_MS / 1000:g} s behind",
        ours=lambda: _checkpoint_s(site, unaligned=True),
        plain=lambda: _checkpoint_s(site, unaligned=False),
        turns=1 if quick else 2,
        tell=tell,
        goal=10.0,
    )


def _checkpoint_s(site: Site, *, unaligned: bool) -> float:
    directory = site.new()
    arrivals = Arrivals(site, directory / "arrivals")
    arrivals.add(_BEHIND + 2, _BEHIND + 2)
    pipeline = Pipeline("benchmark", checkpoint=CheckpointSettings(interval="1 hour", unaligned=unaligned))
    read(pipeline, arrivals, files_per_trigger=1, timed=False)

    @pipeline.stage
    def fast(arrivals: DataFrame) -> DataFrame:
        return arrivals

    @pipeline.stage(sink=DeltaSink(str(directory / "slow")), max_files_per_trigger=1)
    def slow(fast: DataFrame) -> DataFrame:
        return fast.withColumn("slept", F.expr(f"reflect('java.lang.Thread', 'sleep', {_BATCH_MS}L)"))

    with Live(site, pipeline, directory / "home") as live:
        live.until(lambda: live.batches("fast") >= _BEHIND + 2)
        _, took_s = live.ask(Wanted.CHECKPOINT)
        history = live.store.history()[-1]
        if unaligned and not history.in_flight_rows:
            raise AssertionError(f"nothing was in flight: {history}")
    remove(directory)
    return took_s
