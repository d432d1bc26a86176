"""Commands that do not run Spark do not import it: they are used often, and on machines without Spark."""

import json
import subprocess
import sys

import pytest

from tests.support.command_line import UsedHome

WITHOUT_SPARK = """
import json, sys
from typer.testing import CliRunner
from spark_jobs.cli import app
commands = json.loads(sys.argv[1])
results = [CliRunner().invoke(app, command).exit_code for command in commands]
heavy = sorted({name.partition(".")[0] for name in sys.modules} & {"pyspark", "py4j", "pandas", "airflow"})
print(json.dumps([results, heavy]))
"""


@pytest.mark.slow
def test_commands_that_only_read_or_publish_load_no_spark(drained: UsedHome) -> None:
    home = ["--home", drained.url]
    commands = [
        ["status", *home],
        ["checkpoints", *home],
        ["inspect", *home],
        ["publish", *home],
        ["schema", drained.entry],
        ["validate", drained.entry, *drained.params, *home, "--no-spark"],
        ["run", "--help"],
    ]
    command = [sys.executable, "-c", WITHOUT_SPARK, json.dumps(commands)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert json.loads(done.stdout) == [[0] * len(commands), []]
