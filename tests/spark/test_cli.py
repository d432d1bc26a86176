"""The command line with a real Spark. Each command is a process of its own."""

import json
import os
import re
import signal
import subprocess
import sys
from importlib.metadata import version
from itertools import takewhile
from pathlib import Path
from typing import Any

import pyspark
import pytest
from deltalake import DeltaTable

from spark_jobs import consistent_versions
from tests.support import small_pipeline
from tests.support.short_jvm import FEW_ROWS

pytestmark = pytest.mark.spark

ROOT = Path(__file__).parents[2]
ENTRY = str(Path(small_pipeline.__file__))
CONF = [
    "spark.master=local[2]",
    "spark.ui.enabled=false",
    "spark.sql.shuffle.partitions=2",
    "spark.driver.memory=1g",
    *(f"{key}={value}" for key, value in FEW_ROWS.items()),
]


class CommandLine:
    """``spark-jobs`` for one home."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.home = str(directory / "home")
        self.run_options = [option for setting in CONF for option in ("--conf", setting)]
        for name in ("events", "warehouse"):
            self.run_options += ["--param", f"{name}={directory / name}"]
        small_pipeline.deliver(directory / "events", 0)

    def command(self, name: str, *options: str) -> list[str]:
        entry = [ENTRY, *self.run_options] if name == "run" else []
        return [sys.executable, "-m", "spark_jobs", name, *entry, "--home", self.home, *options]

    def text(self, name: str, *options: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(self.command(name, *options), capture_output=True, text=True, check=False, cwd=ROOT)

    def answer(self, name: str, *options: str) -> Any:
        """Returns the document that a command answers with."""
        done = self.text(name, *options, "--output", "json")
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    def submitted(self, *options: str) -> subprocess.CompletedProcess[str]:
        """Does the same as ``run``, in a Spark that ``spark-submit`` has started."""
        spark = Path(pyspark.__file__).parent
        delta = f"io.delta:delta-spark_{'.'.join(pyspark.__version__.split('.')[:2])}_2.13:{version('delta-spark')}"
        settings = [option for setting in CONF for option in ("--conf", setting)]
        parameters = [option for option in self.run_options if option not in settings]
        command = [str(spark / "bin" / "spark-submit"), "--packages", delta, *settings, str(ROOT / "spark_jobs" / "main.py")]
        return subprocess.run(
            [*command, ENTRY, *parameters, "--home", self.home, *options],
            capture_output=True,
            text=True,
            check=False,
            cwd=self.directory,
            env=os.environ | {"SPARK_HOME": str(spark)},
        )

    def rows(self, sink: str) -> int:
        return int(DeltaTable(self.directory / "warehouse" / sink).count())


def test_a_pipeline_is_run_inspected_published_and_run_again(tmp_path: Path) -> None:
    cli, expected = CommandLine(tmp_path), small_pipeline.answer([0])
    done = cli.text("run", "--run-id", "monday", "--publish", "external", "--output", "json")
    assert done.returncode == 0, done.stderr
    assert "WARN" not in done.stderr, "what the JVM prints is in the home"
    log = (tmp_path / "home" / "work" / "spark.log").read_text()
    assert "WARN" in log
    assert "A short run is expected" in log
    ran = json.loads(done.stdout)
    assert (ran["ran"], ran["checkpoint"], ran["drained"], ran["run"]) == (True, 1, True, "monday")
    assert {sink: (result["version"], result["rows"]) for sink, result in ran["sinks"].items()} == {
        sink: (None, len(rows)) for sink, rows in expected.items()
    }
    assert cli.rows("hourly") == 0

    status = cli.answer("status")
    assert (status["at_work"], status["status"]["state"], status["checkpoint"]) == (False, "done", 1)
    assert list(status["status"]["stages"]) == ["known", "hourly", "daily"]
    (entry,) = cli.answer("checkpoints")["checkpoints"]
    assert entry["published"] == {"hourly": False, "daily": False}
    inspected = cli.answer("inspect")
    assert {stage["drained"] for stage in inspected["stages"].values()} == {True}
    assert inspected["sinks"]["hourly"]["rows"] == len(expected["hourly"])

    assert cli.answer("publish")["newly_published"] == ["hourly", "daily"]
    assert {sink: cli.rows(sink) for sink in expected} == {sink: len(rows) for sink, rows in expected.items()}
    assert {sink: number for sink, (_, number) in consistent_versions(cli.home).items()} == {"hourly": 1, "daily": 1}

    again = cli.text("run", "--run-id", "tuesday")
    assert again.returncode == 0
    assert "Nothing was left to do" in again.stdout
    assert "version 1" in again.stdout
    assert "starting Spark" not in again.stderr


def test_a_dry_run_shows_the_plan_and_writes_nothing(tmp_path: Path) -> None:
    cli = CommandLine(tmp_path)
    found = cli.answer("run", "--run-id", "monday", "--dry-run")
    assert (found["run"], found["outlook"]["decision"], found["outlook"]["round"]) == ("monday", "begin_incarnation", 1)
    assert [each["fate"] for each in found["outlook"]["stages"]] == ["starts empty"] * 3
    assert {each["begin"] for each in found["outlook"]["stages"]} == {None}, "a first run has no other stages"
    assert found["sources"] == [{"source": "events", "fate": "is new"}]
    assert {each["sink"]: each["fate"] for each in found["tables"]} == {"hourly": "is made", "daily": "is made"}
    assert [path.name for path in tmp_path.iterdir()] == ["events"]


@pytest.mark.nightly
def test_an_interrupted_run_names_the_command_to_continue_and_spark_submit_can_continue_it(tmp_path: Path) -> None:
    cli = CommandLine(tmp_path)
    process = subprocess.Popen(
        cli.command("run", "--run-id", "monday"),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=ROOT,
        start_new_session=True,
    )
    assert process.stderr is not None
    seen = list(takewhile(lambda line: not line.startswith("stage"), process.stderr))
    os.killpg(process.pid, signal.SIGINT)
    out, err = process.communicate()
    assert (process.returncode, out) == (130, "")
    assert "Interrupted: Run monday was interrupted." in err
    assert re.search(r"Go on with it: spark-jobs run .+ --run-id monday", " ".join(err.split()))
    assert "Traceback" not in err
    assert any("starting Spark" in line for line in seen)

    finished = cli.submitted("--run-id", "monday")
    assert finished.returncode == 0, finished.stderr
    assert "Checkpoint 1 is complete: the pipeline is drained." in finished.stdout
    assert {sink: cli.rows(sink) for sink in small_pipeline.SINKS} == {
        sink: len(rows) for sink, rows in small_pipeline.answer([0]).items()
    }


MISTAKEN = """
from pyspark.sql import functions as F

from spark_jobs import DeltaSink, Pipeline

pipeline = Pipeline("mistaken")


@pipeline.source(bounded=True, event_time="at")
def events(spark):
    return spark.readStream.format("delta").load({events!r})


@pipeline.stage(sink=DeltaSink({tables!r} + "/named"))
def named(events):
    return events.select("orign")


@pipeline.stage(sink=DeltaSink({tables!r} + "/lost"))
def lost(events):
    return events.withColumn("at", F.col("at") + F.expr("INTERVAL 1 HOUR")).groupBy(F.window("at", "1 hour")).count()


@pipeline.stage(sink=DeltaSink({tables!r} + "/known", mode="upsert"))
def known(events):
    return events.where(F.lit(events.origin.unknown("EWR")))
"""


def test_validate_reports_every_mistake_of_every_stage_without_spark_plans_and_stack_traces(tmp_path: Path) -> None:
    small_pipeline.deliver(tmp_path / "events", 0)
    entry = tmp_path / "mistaken.py"
    entry.write_text(MISTAKEN.format(events=str(tmp_path / "events"), tables=str(tmp_path / "tables")))
    before = sorted(tmp_path.rglob("*"))
    options = [option for setting in CONF for option in ("--conf", setting)]
    command = [sys.executable, "-m", "spark_jobs", "validate", str(entry), "--home", str(tmp_path / "home"), *options]
    done = subprocess.run([*command, "--output", "json"], capture_output=True, text=True, check=False, cwd=ROOT)
    assert done.returncode == 2, done.stderr
    mistakes = json.loads(done.stdout)["error"]["evidence"]["mistakes"]
    assert [mistake.get("stage", mistake.get("part")) for mistake in mistakes] == ["sink known", "named", "lost", "known"]
    assert ["UNRESOLVED_COLUMN" in mistakes[1]["failed"], "watermark" in mistakes[2]["failed"]] == [True, True]
    assert [mistake["line"] for mistake in mistakes if "line" in mistake] == [16, 26]
    assert all(mistake["remedy"] for mistake in mistakes)
    told = done.stdout + done.stderr
    assert not any(word in told for word in ("\tat ", "\\tat ", "+- ", "SQLSTATE", "Traceback")), told
    assert [path for path in sorted(tmp_path.rglob("*")) if "__pycache__" not in path.parts] == before
