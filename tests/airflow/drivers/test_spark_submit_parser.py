"""``spark-submit`` itself parses the generated commands: it knows every option, and gets each setting."""

import json
import os
import re
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from airflow_provider.drivers.spark_submit import Submission, plan_submission
from airflow_provider.settings import Settings
from spark_jobs.protocol.ids import RequestId
from tests.support.spark_cluster import SPARK_HOME

pytestmark = [pytest.mark.airflow, pytest.mark.spark]

APPLICATION = ["/pipelines/a.py", "--home", "file:///homes/flights", "--request", "start-3"]
NO_DOWNLOADS = {"spark.jars.packages": ""}
CLOSED_PORT = "127.0.0.1:1"


class Heard:
    """The output of ``spark-submit --verbose`` before it does any work."""

    def __init__(self, lines: Iterator[str]) -> None:
        self.arguments: dict[str, str] = {}
        self.parts: dict[str, list[str]] = {}
        part = ""
        for line in lines:
            if line.startswith("Classpath elements:"):
                return
            if line.rstrip() in ("Main class:", "Arguments:", "Spark config:"):
                part = line.rstrip()
                self.parts[part] = []
            elif part:
                self.parts[part].append(line.strip())
            elif found := re.match(r"  (\w+) +(\S.*)", line):
                self.arguments[found[1]] = found[2].strip()
        raise AssertionError(f"spark-submit has refused it: {self.arguments} {self.parts}")

    def settings(self) -> dict[str, str]:
        pairs = (re.fullmatch(r"\(([^,]+),(.*)\)", line) for line in self.parts["Spark config:"])
        return {pair[1]: pair[2] for pair in pairs if pair}


def heard(submission: Submission, tmp_path: Path) -> Heard:
    command = submission.command(entry=APPLICATION[0], home=APPLICATION[2], request=RequestId(APPLICATION[4]))
    (tmp_path / "hadoop").mkdir()
    process = subprocess.Popen(
        [command[0], "--verbose", *command[1:]],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
        env=os.environ | {"SPARK_HOME": str(SPARK_HOME), "HADOOP_CONF_DIR": str(tmp_path / "hadoop")} | submission.environment(),
    )
    try:
        assert process.stdout is not None
        return Heard(iter(process.stdout))
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate()


@pytest.mark.parametrize(
    ("host", "mode", "conf", "main"),
    [
        (f"spark://{CLOSED_PORT}", "client", {}, "org.apache.spark.deploy.PythonRunner"),
        ("yarn", "client", {}, "org.apache.spark.deploy.PythonRunner"),
        ("yarn", "cluster", {}, "org.apache.spark.deploy.yarn.YarnClusterApplication"),
        (
            f"k8s://https://{CLOSED_PORT}",
            "cluster",
            {"spark.kubernetes.container.image": "us/spark:1"},
            "org.apache.spark.deploy.k8s.submit.KubernetesClientApplication",
        ),
    ],
    ids=["standalone", "yarn-client", "yarn-cluster", "kubernetes-cluster"],
)
def test_spark_submit_accepts_the_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, host: str, mode: str, conf: dict[str, str], main: str
) -> None:
    extra = {"deploy-mode": mode, "queue": "nightly", "namespace": "etl"}
    monkeypatch.setenv("AIRFLOW_CONN_SPARK_DEFAULT", json.dumps({"conn_type": "spark", "host": host, "extra": extra}))
    settings = Settings(spark_conn_id="spark_default", spark_main="local:///opt/spark_jobs/main.py" if "k8s" in host else None)
    given = NO_DOWNLOADS | {"spark.executor.instances": "3", "spark.executor.memory": "2g"} | conf
    submission = plan_submission(settings, given)
    found = heard(submission, tmp_path)
    assert found.parts["Main class:"] == [main]
    assert (found.arguments["master"], found.arguments["deployMode"]) == (host, mode)
    assert found.arguments["name"] == "flights start-3"
    assert found.arguments["primaryResource"].removeprefix("file:") == submission.application
    assert found.arguments["executorMemory"] == "2g"
    assert found.arguments["childArgs"] == f"[{' '.join(APPLICATION)}]"
    passed = found.parts["Arguments:"]
    assert [word for word in passed if word in APPLICATION] == APPLICATION
    arrived = found.settings()
    expected = given | dict(submission.conf)
    expected |= {"spark.kubernetes.namespace": "etl"} if "k8s" in host else {}
    expected |= {"spark.yarn.queue": "nightly"} if host == "yarn" else {}
    assert {key: arrived.get(key) for key in expected if key != "spark.jars.packages"} == {
        key: value for key, value in expected.items() if key != "spark.jars.packages"
    }
