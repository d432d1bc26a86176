"""Two runs on one home in one process, as in a notebook."""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Event

import pytest

from spark_jobs.control.liveness import driver_at_work
from spark_jobs.protocol.errors import ConflictError
from spark_jobs.protocol.steps import Step, observed_by
from tests.support.run_site import RunSite, small_session
from tests.support.small_pipeline import deliver

pytestmark = pytest.mark.spark
TIMEOUT_S = 120


class Held:
    """Holds a run before its first batch is staged until it is let go."""

    def __init__(self) -> None:
        self.reached, self.let_go = Event(), Event()

    def before(self, step: Step) -> None:
        if step is Step.STAGE_FILES and not self.reached.is_set():
            self.reached.set()
            assert self.let_go.wait(TIMEOUT_S)

    def after(self, step: Step) -> None:
        pass


def test_a_second_run_in_the_same_process_is_refused_and_does_not_release_the_lock_of_the_first(tmp_path: Path) -> None:
    deliver(tmp_path / "events", 0)
    site, held = RunSite(tmp_path / "site", tmp_path / "events"), Held()
    small_session()
    with observed_by(held), ThreadPoolExecutor(1) as pool:
        first = pool.submit(site.run, "first")
        try:
            assert held.reached.wait(TIMEOUT_S)
            for _ in range(2):
                with pytest.raises(ConflictError, match="Another driver is at work"):
                    site.run("second")
                assert driver_at_work(site.files())
        finally:
            held.let_go.set()
        first.result(TIMEOUT_S)
    site.assert_answered()
    assert site.attempts() == 1
