"""The input of most tests of whole pipelines: a table that grows, or has an end.

The promises of a pipeline are the same for both. A test runs for both if it is marked with :data:`bounded_too`.
"""

from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession

from spark_jobs import Pipeline
from spark_jobs.runtime.stages.stage_output import StageOutput
from tests.support import live_pipeline

LIVE, BOUNDED = "live", "bounded"

bounded_too = pytest.mark.parametrize("events", [LIVE, BOUNDED], indirect=True)
"""Runs a test for a live input, and for an input that ends."""
bounded_at_night = pytest.mark.parametrize("events", [LIVE, pytest.param(BOUNDED, marks=pytest.mark.nightly)], indirect=True)
"""Runs a test for a live input, and at night for an input that ends."""


class Events:
    """A Delta table. ``id`` counts its rows, and ``at`` is one second later for each row.

    In a bounded table, all rows exist when the first run begins, and :meth:`add` lets the runs read the next ones. The last row comes with
    :meth:`end`: no run ends by itself before.
    """

    def __init__(self, path: Path, *, bounded: bool = False) -> None:
        self.path, self.bounded, self.rows = path, bounded, 0
        self.has_ended = False
        self._table = live_pipeline.Events(path)
        self._later: list[int] = []
        self._batches = 0
        self._sealed = False
        self.add(1)

    @property
    def furthest(self) -> str:
        """Returns the stage of ``three_stages`` that is the last one to read rows before the end of the input."""
        return "copied" if self.bounded else "again"

    @property
    def next_rows(self) -> int:
        """Returns the number of rows of the next batch that exist already."""
        return (self._later or [1])[0] if self.bounded and not self.has_ended else 0

    def later(self, *rows: int) -> None:
        """Declares the rows that will be added once runs have begun."""
        self._later += rows

    def add(self, rows: int) -> None:
        if self._sealed:
            assert rows == self._later.pop(0), "an input that ends has these rows from the beginning: see later()"
        else:
            self._table.add(rows)
        self.rows += rows
        self._batches += 1

    def end(self) -> None:
        """Lets runs read the last row, if there is one."""
        if self.bounded:
            self._seal()
            self.rows, self.has_ended = self._table.rows, True

    def source(self, pipeline: Pipeline, delay: str = "10 seconds") -> None:
        """Declares the table as the pipeline's source."""
        path, bounded = str(self.path), self.bounded
        if bounded:
            self._seal()

        @pipeline.source(bounded=bounded, event_time="at", watermark_delay=delay)
        def events(spark: SparkSession) -> DataFrame:
            reader = spark.readStream.format("delta")
            return (reader.option("maxFilesPerTrigger", 1) if bounded else reader).load(path)

    def may_stage(self, batches: int) -> bool:
        """Returns True if a stage with ``batches`` staged batches may go on. Each addition is one batch of the stages that read it."""
        return not self.bounded or self.has_ended or batches < self._batches

    def _seal(self) -> None:
        if not self._sealed:
            for rows in (*self._later, 1):
                self._table.add(rows)
        self._sealed = True


def events_of(request: pytest.FixtureRequest, path: Path, monkeypatch: pytest.MonkeyPatch) -> Events:
    """Returns the input for a test's parameter, by default a live one. A stage waits before each batch that comes later."""
    made = Events(path, bounded=getattr(request, "param", LIVE) == BOUNDED)
    has_room = StageOutput.has_room

    def has_room_and_input(output: StageOutput, *limits: Any) -> bool:
        return made.may_stage(output.log.latest()) and has_room(output, *limits)

    if made.bounded:
        monkeypatch.setattr(StageOutput, "has_room", has_room_and_input)
    return made
