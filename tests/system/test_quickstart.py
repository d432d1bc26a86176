"""The quickstart and the README's commands for S3 as a reader types them: their files, their commands in order, and the output."""

import os
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import obstore
import pytest
from deltalake import DeltaTable
from obstore.store import S3Store

from spark_jobs.storage.settings_by_bucket import settings_for
from tests.support.kafka_broker import jars
from tests.support.keyed_changes import query
from tests.support.object_store import S3_JARS
from tests.support.pages import ROOT, blocks, files
from tests.support.short_jvm import SHORT_RUN

pytestmark = pytest.mark.spark

PAGE = ROOT / "docs/quickstart.md"
README = ROOT / "README.md"
SMALL_SPARK = [
    f"--conf={key}={value}" for key, value in ({"spark.master": "local[2]", "spark.ui.enabled": "false"} | SHORT_RUN).items()
]
FOR_PEOPLE = ("source", "mkdir", "export", "airflow", "rm")
"""Commands that prepare a shell, and those of the part with Airflow. That DAG is parsed in tests/airflow."""


def commands() -> Iterator[list[str]]:
    for block in blocks(PAGE, "console"):
        for line in block.text.splitlines():
            words = shlex.split(line, comments=True)
            if words and words[0] not in FOR_PEOPLE:
                yield words


def typed(words: list[str], folder: Path) -> str:
    """Runs a command, which must succeed, and returns its output."""
    program, arguments = words[0], words[1:]
    here = {"python": [sys.executable], "spark-jobs": [sys.executable, "-m", "spark_jobs"]}[program]
    small = SMALL_SPARK if program == "spark-jobs" and arguments[0] == "run" else []
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [*here, *arguments, *small], cwd=folder, env=environment, stdin=subprocess.DEVNULL, capture_output=True, text=True
    )
    assert done.returncode == 0, f"{shlex.join(words)}\n{done.stdout}\n{done.stderr}"
    return done.stdout


def test_the_quickstart_does_what_it_says(tmp_path: Path) -> None:
    for block in blocks(PAGE, "python"):
        assert block.title is not None
        (tmp_path / block.title).parent.mkdir(exist_ok=True)
        (tmp_path / block.title).write_text(block.text)
    (promised,) = (block.text for block in blocks(PAGE, "text") if block.title == "show.py prints")
    said = [(shlex.join(words), typed(words, tmp_path)) for words in commands()]
    ran = [text for command, text in said if " run " in command]
    assert dict(said)["python show.py"] == promised
    assert "Checkpoint 1 is complete: the pipeline is drained." in ran[0]
    assert "Nothing was left to do" in ran[1]
    assert {words.split()[1] for words, _ in said if words.startswith("spark-jobs")} == {
        "validate",
        "run",
        "checkpoints",
        "inspect",
    }


WINDOWS = {"hourly": "hour", "daily": "day"}
"""The length of the windows in each table."""


def upload(source: Path, target: str) -> None:
    """Copies a directory into the store of the environment, as ``aws s3 cp --recursive`` does."""
    store = S3Store.from_url(target, client_options={"allow_http": True})
    for path in source.rglob("*"):
        if path.is_file():
            obstore.put(store, path.relative_to(source).as_posix(), path)


def test_the_readmes_commands_for_s3_fill_the_tables_of_a_batch_query(
    tmp_path: Path, in_s3: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    for name, text in (files(PAGE) | files(README)).items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    typed(["python", "make_views.py"], tmp_path)
    (block,) = (block for block in blocks(README, "console") if "s3://" in block.text)
    lines = block.text.replace("s3://lake", in_s3).splitlines()
    install, export, copy, run = (shlex.split(line, comments=True) for line in lines)

    assert install == ["pip", "install", ".[spark,s3]"]
    assert export[0] == "export"
    assert {word.partition("=")[0] for word in export[1:]} <= set(os.environ), "the test's server is found by these variables"
    assert copy[:4] == ["aws", "s3", "cp", "--recursive"]
    source, target = copy[4:]
    upload(tmp_path / source, target)
    packages = run.index("--packages")
    _, client, version = run[packages + 1].split(":")
    assert [jar for jar in jars(S3_JARS) if jar.endswith(f"{client}-{version}.jar")], (
        "the tests have another version of the client"
    )
    run[packages : packages + 2] = ["--jars", ",".join(jars(S3_JARS))]
    assert "Checkpoint 1 is complete: the pipeline is drained." in typed(run, tmp_path)

    warehouse = f"{in_s3}/warehouse"
    views = DeltaTable(str(tmp_path / source)).to_pyarrow_table()
    for table, unit in WINDOWS.items():
        public = DeltaTable(f"{warehouse}/{table}", storage_options=settings_for(warehouse).for_delta_rs()).to_pyarrow_table()
        end = f"date_trunc('{unit}', viewed_at) + INTERVAL 1 {unit} - INTERVAL 1 MICROSECOND"
        assert query(f"SELECT page, views, {unit}_end FROM public", public=public) == query(
            f"SELECT page, count(*), {end} AS window_end FROM views GROUP BY page, window_end", views=views
        )
