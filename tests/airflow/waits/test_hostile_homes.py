"""A home whose documents an attacker has made: the first look of a task raises typed errors only, and never hangs."""

from contextlib import suppress
from pathlib import Path
from random import Random

import pytest

from airflow_provider.waits.first_looks import first_look
from spark_jobs.control.channel import Channel
from spark_jobs.protocol.errors import StreamPipelineError
from spark_jobs.protocol.ids import RunId
from spark_jobs.storage.local import LocalFiles
from tests.support.hostile_documents import ALTERED, REPLACED, in_bounds

pytestmark = pytest.mark.every_version


def check_hostile_home(root: Path, seed: int) -> None:
    """Looks at a home in which one document is hostile."""
    rng, files = Random(seed), LocalFiles(root)
    Channel(files).request_start(RunId("monday"), parameters={})
    path = rng.choice(sorted(path for path in root.rglob("*.json") if path.is_file()))
    data = path.read_bytes()
    path.unlink()
    if rng.random() < 0.7:
        path.write_bytes(rng.choice(ALTERED)(data, rng))
    else:
        rng.choice(REPLACED)(path, rng)
    with in_bounds(), suppress(StreamPipelineError):
        first_look(files, RunId("monday"), 60.0)


def test_the_first_look_at_a_home_with_a_hostile_document_ends_with_an_answer_or_a_typed_error(tmp_path: Path) -> None:
    for seed in range(100):
        check_hostile_home(tmp_path / str(seed), seed)


@pytest.mark.nightly
def test_two_thousand_hostile_homes_cause_no_untyped_error_in_the_first_look(tmp_path: Path) -> None:
    for seed in range(2_000):
        check_hostile_home(tmp_path / str(seed), 1_000 + seed)
