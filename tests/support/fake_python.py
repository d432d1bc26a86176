"""A fake Python whose ``-P -m spark_jobs run`` is a driver without Spark. Real pipelines and other commands go to the real Python."""

import shlex
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def make_fake_python(directory: Path) -> Path:
    """Makes the program in a directory."""
    program = directory / "fake-python"
    python, script = shlex.quote(sys.executable), shlex.quote(str(ROOT / "tests/airflow/fake_driver.py"))
    program.write_text(
        f"#!/bin/sh\nPYTHONPATH={shlex.quote(str(ROOT))}; export PYTHONPATH\n"
        f'case "$5" in */dags_examples/*|*/small_pipeline.py|*/live_pipeline.py) exec {python} "$@";; esac\n'
        f'[ "$2" = -m ] && exec {python} {script} "$@"\n'
        f'exec {python} "$@"\n'
    )
    program.chmod(0o755)
    return program
