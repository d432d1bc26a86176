"""Several drivers on one home, and drivers that lose their JVM or leave one behind."""

import signal
import subprocess
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import psutil
import pytest

from spark_jobs.control.channel import Channel
from spark_jobs.control.liveness import locked
from spark_jobs.home.layout import JVM_LOCK
from spark_jobs.protocol.errors import ExitCode
from spark_jobs.protocol.ids import PipelineName, RunId
from spark_jobs.protocol.steps import Step
from spark_jobs.storage.files import local_path
from tests.support.drivers import SETTINGS, Doomed, Drivers, Ended, ended
from tests.support.spark_cluster import delta_on_this_host, spark_cluster
from tests.support.two_hosts import two_hosts

pytestmark = pytest.mark.spark

LINGERING_S = 15.0
"""The time for which the test checks that a driver waits for another driver's JVM."""


@pytest.mark.nightly
def test_a_driver_whose_jvm_dies_says_so_and_the_next_one_goes_on(drivers: Drivers) -> None:
    found = drivers.run(doom=Doomed("widowed", Step.STAGE_FILES, before=True))
    assert found.code == ExitCode.FAILED, found
    assert found.answer["error"]["error"] == "InterruptedRunError", found
    assert found.answer["error"]["failed"] == "Spark's Java process has ended, or does not answer any more."
    assert drivers.site.public() == {"hourly": [], "daily": []}
    assert drivers.run().code == ExitCode.DONE
    drivers.site.assert_answered()
    assert drivers.site.orphans() == []


def test_a_jvm_that_outlives_its_driver_is_waited_for(drivers: Drivers) -> None:
    """The JVM has stopped before the end of a batch, and would finish it next to the second driver."""
    assert drivers.run(doom=Doomed("orphans", Step.STAGE_VERSION, before=True)).code == -signal.SIGKILL
    (jvm,) = (process for process in drivers.processes() if process.status() == psutil.STATUS_STOPPED)
    assert locked(local_path(drivers.site.files(), JVM_LOCK))
    second = drivers.start()
    with pytest.raises(subprocess.TimeoutExpired):
        second.wait(LINGERING_S)
    assert drivers.site.attempts() == 1, "the second driver has begun nothing"
    jvm.send_signal(signal.SIGCONT)
    psutil.wait_procs([jvm], timeout=30)
    assert ended(second).code == ExitCode.DONE
    drivers.site.assert_answered()
    assert drivers.site.orphans() == []


@pytest.mark.nightly  # needs the rights of root; tests/unit/runtime/spark/test_session.py fails by day for the same reason
def test_executors_on_another_host_reach_a_driver_that_was_told_no_address(
    drivers: Drivers, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("SPARK_LOCAL_IP")
    executors = {"spark.executor.memory": "512m", "spark.executor.cores": "1"}
    with two_hosts() as (here, there), spark_cluster(tmp_path / "cluster", workers=[there], master=here) as cluster:
        settings = SETTINGS | executors | delta_on_this_host() | {"spark.master": cluster.master}
        found = replace(drivers, settings=settings, within=here.within).run()
    assert found.code == ExitCode.DONE, found
    drivers.site.assert_answered()


def both(first: "subprocess.Popen[str]", second: "subprocess.Popen[str]") -> list[Ended]:
    """Waits for two drivers. Returns the one with the lower exit code first."""
    with ThreadPoolExecutor(2) as pool:
        return sorted(pool.map(ended, (first, second)), key=lambda driver: driver.code)


def test_of_two_drivers_for_one_request_one_does_it_and_both_are_content(drivers: Drivers) -> None:
    channel = Channel(drivers.site.files())
    channel.claim(PipelineName("small"))
    request = channel.request_start(RunId("first"), parameters=drivers.site.parameters).request
    asked = f"--request={request}"
    found = both(drivers.start(asked, run=None), drivers.start(asked, run=None))
    assert [driver.code for driver in found] == [ExitCode.DONE, ExitCode.DONE], found
    drivers.site.assert_answered()
    assert drivers.site.attempts() == 1


@pytest.mark.nightly
def test_one_of_two_runs_gets_an_error_that_names_the_driver_at_work(drivers: Drivers) -> None:
    done, refused = both(drivers.start(run="first"), drivers.start(run="second"))
    assert done.code == ExitCode.DONE, done
    assert refused.code == ExitCode.FAILED, refused
    assert refused.answer["error"]["error"] == "HomeInUseError"
    assert "Another driver is at work" in refused.answer["error"]["failed"]
    assert refused.answer["error"]["remedy"]
    drivers.site.assert_answered()
    assert drivers.site.attempts() == 1
