"""A stop, with and without a drain, of pipelines with several stages in a row."""

import time
from collections.abc import Iterator

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from benchmarks.figures import Better, Figure, Kind, Tell
from benchmarks.live import Arrivals, Live, read, remove
from benchmarks.site import Site
from spark_jobs import CheckpointSettings, DeltaSink, Pipeline
from spark_jobs.protocol.checkpoint_requests import Wanted
from spark_jobs.protocol.ids import StageName

STOP = Kind("a stop by stages", "seconds from the request", Better.LESS, "so many stages", "the fewest")
_ROWS = 10_000


def figures(site: Site, *, quick: bool, tell: Tell) -> Iterator[Figure]:
    """Cascades of windows; each is stopped once, or drained once, and exactly one checkpoint is made for it."""
    turns, numbers = (1, (1, 4)) if quick else (3, (1, 2, 4, 8))
    arrivals = Arrivals(site, site.directory / "cascade")
    arrivals.add(_ROWS)
    for drain in (False, True):
        saved: dict[int, list[float]] = {stages: [] for stages in numbers}
        ended: dict[int, list[float]] = {stages: [] for stages in numbers}
        for turn in range(turns + 1):
            for stages in numbers:
                tell(
                    f"a {'drain' if drain else 'stop'} of {stages} stages, {f'turn {turn} of {turns}' if turn else 'warming up'}"
                )
                one = _stop_s(site, arrivals, stages, drain=drain)
                if turn:
                    saved[stages].append(one[0])
                    ended[stages].append(one[1])
        first, *others = numbers
        for stages in others:
            what = f"{'drained' if drain else 'stopped'}, {stages} stages against {first}"
            yield Figure(STOP, f"the savepoint exists: {what}", saved[stages], saved[first])
            yield Figure(STOP, f"the pipeline has ended: {what}", ended[stages], ended[first])
    remove(arrivals.path)


def _stop_s(site: Site, arrivals: Arrivals, stages: int, *, drain: bool) -> tuple[float, float]:
    directory = site.new()
    pipeline = Pipeline("benchmark", checkpoint=CheckpointSettings(interval="1 hour"))
    read(pipeline, arrivals)
    before = "arrivals"
    for number in range(stages):
        name = f"stage_{number}"
        pipeline.stage(sink=DeltaSink(str(directory / name)), name=name, inputs={"frame": before})(_window)
        before = name
    with Live(site, pipeline, directory / "home") as live:
        live.until(lambda: live.has_read("stage_0", arrivals.rows))
        live.until(lambda: live.batches(before) > 0)
        began_s = time.monotonic()
        answer, saved_s = live.ask(Wanted.STOP, drain=drain)
        live.ended()
        ended_s = time.monotonic() - began_s
        made = live.store.history()
        if [each.checkpoint for each in made] != [answer.checkpoint] or answer.drained is not drain:
            raise AssertionError(f"there is not one checkpoint but {made}")
        if drain and not all(
            live.store.manifest(made[0].checkpoint).stages[StageName(f"stage_{n}")].drained for n in range(stages)
        ):
            raise AssertionError("a stage was not drained")
    remove(directory)
    return saved_s, ended_s


def _window(frame: DataFrame) -> DataFrame:
    counts = frame.groupBy(F.window("at", "10 seconds").alias("window")).agg(F.count("*").alias("rows"))
    return counts.select(F.window_time("window").alias("at"), "rows")
