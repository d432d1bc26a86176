"""Java itself takes the options of a short run, alone and beside a collector that a user has chosen."""

import re
import subprocess

import pytest

from spark_jobs.runtime.spark.jvm_options import SHORT_RUN

pytestmark = pytest.mark.spark


@pytest.mark.parametrize("chosen", ["", "G1", "Parallel"])
def test_a_short_run_has_the_serial_collector_unless_the_user_has_chosen_another(chosen: str) -> None:
    options = [*SHORT_RUN.split(), *([f"-XX:+Use{chosen}GC"] if chosen else [])]
    flags = subprocess.run(
        ["java", *options, "-XX:+PrintFlagsFinal", "-version"], capture_output=True, text=True, check=True
    ).stdout
    assert re.findall(r" Use(G1|Parallel|Serial)GC += true", flags) == [chosen or "Serial"]
