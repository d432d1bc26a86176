"""The operator with a real YARN of one node. Drivers run in its containers and on this host. Needs Maven for Hadoop's jars."""

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from airflow_provider.operators.stream_pipeline import StreamPipelineOperator
from spark_jobs.control.attempts import Attempts
from spark_jobs.control.channel import Channel
from spark_jobs.protocol.documents import StartResponse
from spark_jobs.protocol.errors import InterruptedRunError, RunCancelledError
from spark_jobs.protocol.ids import RequestId
from tests.airflow.conftest import ROOT, connection
from tests.airflow.deferral import carry_out
from tests.airflow.flights import context, failure
from tests.support import small_pipeline
from tests.support.cluster_tasks import CONF, DEADLINE_S, task, when
from tests.support.run_site import RunSite
from tests.support.spark_cluster import SPARK_HOME, delta_on_this_host, said

pytestmark = [pytest.mark.airflow, pytest.mark.spark, pytest.mark.nightly]

MINI_YARN = ROOT / "tests/support/mini_yarn"
FIRST = RequestId("start-1")


@pytest.fixture(scope="module")
def yarn(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The directory with YARN's client settings."""
    directory = tmp_path_factory.mktemp("yarn")
    fetch = ["mvn", "-q", "-B", "-f", str(MINI_YARN), "dependency:copy-dependencies", f"-DoutputDirectory={directory / 'lib'}"]
    subprocess.run(fetch, check=True, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
    java = ["java", "-Xmx512m", "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-cp", f"{directory}/lib/*"]
    log = directory / "yarn.log"
    with log.open("wb") as output:
        process = subprocess.Popen(
            [*java, str(MINI_YARN / "MiniYarn.java"), str(directory)],
            stdin=subprocess.PIPE,
            stdout=output,
            stderr=subprocess.STDOUT,
            cwd=directory,
        )
    try:
        said(log, "(?m)^READY$")
        yield directory / "conf"
    finally:
        process.communicate(timeout=DEADLINE_S)


@pytest.fixture
def site(tmp_path: Path) -> RunSite:
    small_pipeline.deliver(tmp_path / "events", 0)
    (tmp_path / "site").mkdir()
    return RunSite(tmp_path / "site", tmp_path / "events")


def connect(monkeypatch: pytest.MonkeyPatch, yarn: Path, site: RunSite, mode: str) -> None:
    conf = {
        "spark.executor.instances": "1",
        "spark.yarn.jars": f"local:{SPARK_HOME}/jars/*",
        "spark.yarn.stagingDir": f"file://{site.directory.parent}",
        "spark.pyspark.python": sys.executable,
        "spark.yarn.appMasterEnv.PYTHONPATH": str(ROOT),
        "spark.yarn.appMasterEnv.SPARK_LOCAL_IP": "127.0.0.1",
    }
    for name, value in {"HADOOP_CONF_DIR": str(yarn), "SPARK_HOME": str(SPARK_HOME), "PYTHONPATH": str(ROOT)}.items():
        monkeypatch.setenv(name, value)
    spark = {"conn_type": "spark", "host": "yarn", "extra": {"deploy-mode": mode}}
    monkeypatch.setenv("AIRFLOW_CONN_YARN", json.dumps(spark))
    given = connection(home_root=str(site.directory), spark_conn_id="yarn", conf=CONF | delta_on_this_host() | conf)
    monkeypatch.setenv("AIRFLOW_CONN_STREAM_PIPELINE_DEFAULT", given)


def response(site: RunSite) -> StartResponse | None:
    return Channel(site.files()).response(FIRST)


def commands_above(process: int) -> str:
    """Returns the command lines of a process's parents."""
    return "\n".join(" ".join(parent.cmdline()) for parent in psutil.Process(process).parents())


@pytest.mark.parametrize("mode", ["client", "cluster"])
def test_a_pipeline_reaches_its_final_checkpoint(monkeypatch: pytest.MonkeyPatch, yarn: Path, site: RunSite, mode: str) -> None:
    connect(monkeypatch, yarn, site, mode)
    above: list[str] = []

    def look() -> None:
        live = Attempts(site.files()).latest()
        assert live is not None
        above.append(commands_above(live.process))

    looking = when(lambda: Attempts(site.files()).numbers(), look)
    assert carry_out(task(site), context())["checkpoint"] == 1
    looking.join()
    site.assert_answered()
    in_a_container = "org.apache.spark.deploy.yarn.ApplicationMaster" in above[0]
    assert in_a_container is (mode == "cluster")
    assert ("org.apache.spark.deploy.SparkSubmit" in above[0]) is (mode == "client")


def test_a_driver_that_yarn_starts_for_a_cancelled_attempt_ends_by_itself(
    monkeypatch: pytest.MonkeyPatch, yarn: Path, site: RunSite
) -> None:
    connect(monkeypatch, yarn, site, "cluster")
    doomed = task(site, deferrable=False)

    def handed_over(operator: StreamPipelineOperator) -> bool:
        return operator._lease is not None and operator._lease.driver is not None and operator._lease.driver.exit_code == 0

    killing = when(lambda: handed_over(doomed), doomed.on_kill)
    assert "The task was killed" in str(failure(doomed, InterruptedRunError))
    killing.join()
    assert response(site) is None, "no driver has begun yet"
    when(lambda: response(site)).join()
    answer = response(site)
    assert answer is not None
    assert answer.error is not None
    assert answer.error.error == RunCancelledError.__name__
    assert Attempts(site.files()).numbers() == []
