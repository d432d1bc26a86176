"""One home with Spark 4.0, 4.1 and 4.2 in turn, each in an environment from ``make matrix``."""

import os
import subprocess
import sys
from collections import Counter
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from spark_jobs.checkpoint.checkpoint_store import CheckpointStore
from spark_jobs.checkpoint.savepoint import export
from spark_jobs.storage.open import open_files
from tests.support.pages import ROOT
from tests.support.short_jvm import SHORT_RUN

pytestmark = [pytest.mark.spark, pytest.mark.matrix]

SPARK = {
    "4.0": str(ROOT / ".venvs/spark-4.0/bin/python"),
    "4.1": str(ROOT / ".venvs/spark-4.1/bin/python"),
    "4.2": sys.executable,
}
SMALL = {"spark.master": "local[2]", "spark.ui.enabled": "false"} | SHORT_RUN
MONDAY = datetime(2026, 3, 2, tzinfo=UTC)
PIPELINE = """
from pydantic import BaseModel
from pyspark.sql import functions as F

from spark_jobs import DeltaSink, Pipeline


class Params(BaseModel):
    views: str
    tables: str


pipeline = Pipeline("views", params=Params, on_end="suspend")


@pipeline.source(bounded=True, event_time="viewed_at", watermark_delay="10 minutes")
def views(spark, params):
    return spark.readStream.format("delta").load(params.views)


@pipeline.stage(sink=DeltaSink("{tables}/hourly"))
def hourly(views):
    counts = views.groupBy(F.window("viewed_at", "1 hour").alias("hour"), "page").agg(F.count("*").alias("views"))
    return counts.select("page", "views", F.col("hour.start").alias("hour"))


@pipeline.stage(sink=DeltaSink("{tables}/newest", mode="upsert", keys=["page"], sequence_by="id"))
def newest(views):
    return views.select("page", "id")
"""


class Site:
    """A home, its source and its tables."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.rows: list[dict[str, Any]] = []
        (root / "views.py").write_text(PIPELINE)

    def add(self, number: int) -> None:
        """Adds rows at intervals of seven minutes, so that windows stay open between rounds."""
        begin = len(self.rows)
        ids = range(begin, begin + number)
        added = [{"id": each, "page": f"/{each % 3}", "viewed_at": MONDAY + timedelta(minutes=7 * each)} for each in ids]
        self.rows += added
        write_deltalake(str(self.root / "views"), pa.Table.from_pylist(added), mode="append")

    def run(self, spark: str, *options: str, home: str = "home", tables: str = "tables") -> subprocess.CompletedProcess[str]:
        places = (f"--param=views={self.root / 'views'}", f"--param=tables={self.root / tables}")
        conf = [f"--conf={key}={value}" for key, value in SMALL.items()]
        return self.command(spark, "run", str(self.root / "views.py"), f"--home={self.root / home}", *places, *conf, *options)

    def command(self, spark: str, *words: str) -> subprocess.CompletedProcess[str]:
        environment = os.environ | {"PYTHONPATH": str(ROOT), "PYSPARK_PYTHON": SPARK[spark]}
        words = (SPARK[spark], "-m", "spark_jobs", *words)
        return subprocess.run(words, cwd=self.root, env=environment, stdin=subprocess.DEVNULL, capture_output=True, text=True)

    def export(self, target: Path) -> None:
        """Creates a savepoint of the newest checkpoint, like a driver."""
        files = open_files(str(self.root / "home"))
        head = CheckpointStore(files).head()
        assert head is not None
        export(files, head.checkpoint, open_files(str(target)), request=None)

    def hourly(self, tables: str = "tables") -> Counter[tuple[str, datetime, int]]:
        rows = DeltaTable(str(self.root / tables / "hourly")).to_pyarrow_table().to_pylist()
        return Counter((row["page"], row["hour"], row["views"]) for row in rows)

    def newest(self) -> dict[str, int]:
        rows = DeltaTable(str(self.root / "tables/newest")).to_pyarrow_table().to_pylist()
        assert len(rows) == 3
        return {row["page"]: row["id"] for row in rows}

    def counted(self) -> Counter[tuple[str, datetime, int]]:
        """Computes the expected rows from the input alone."""
        views = Counter((row["page"], row["viewed_at"].replace(minute=0)) for row in self.rows)
        return Counter((page, hour, number) for (page, hour), number in views.items())


def succeeded(done: subprocess.CompletedProcess[str]) -> str:
    assert done.returncode == 0, f"{done.args}\n{done.stdout}\n{done.stderr}"
    return done.stdout


def test_a_home_moves_to_newer_versions_of_spark_with_open_windows_upserts_and_savepoints(tmp_path: Path) -> None:
    site = Site(tmp_path)
    site.add(50)
    succeeded(site.run("4.0"))
    first = site.hourly()
    savepoint = tmp_path / "savepoint"
    site.export(savepoint)
    site.add(31)
    succeeded(site.run("4.1"))
    older = site.run("4.0")
    assert older.returncode == 2, older.stdout + older.stderr
    assert "was taken with Spark 4.1, but this is Spark 4.0" in " ".join((older.stdout + older.stderr).split())
    site.add(40)
    succeeded(site.run("4.2", "--on-end=drain"))
    assert site.hourly() == site.counted()
    assert site.newest() == {row["page"]: row["id"] for row in site.rows}
    succeeded(site.run("4.2", f"--restore={savepoint}", "--on-end=drain", home="another", tables="forked"))
    assert first + site.hourly("forked") == site.counted()
