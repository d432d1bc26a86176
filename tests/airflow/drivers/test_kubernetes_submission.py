"""``spark-submit`` with an API server that accepts every object. The driver's pod is the one that Kubernetes would start."""

import json
import os
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from airflow_provider.drivers.spark_submit import plan_submission
from airflow_provider.settings import Settings
from spark_jobs.protocol.ids import RequestId
from tests.support.spark_cluster import SPARK_HOME

pytestmark = [pytest.mark.airflow, pytest.mark.spark]

MAIN = "local:///opt/venv/lib/python3.11/site-packages/spark_jobs/main.py"
REFERENCE = "spark.kubernetes.driver.secretKeyRef.SPARK_JOBS_PARAM_TOKEN"
TIMEOUT_S = 120.0


class ApiServer(BaseHTTPRequestHandler):
    """An API server that accepts every object and finds none."""

    made: list[dict[str, Any]]

    def do_GET(self) -> None:
        self._answer(404, {"kind": "Status", "apiVersion": "v1", "status": "Failure", "reason": "NotFound", "code": 404})

    def do_POST(self) -> None:
        given = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if "kind" in given:
            self.made.append(given)
            given["metadata"] |= {"uid": f"uid-{len(self.made)}", "resourceVersion": "1", "namespace": "etl"}
        self._answer(201, given)

    do_PUT = do_PATCH = do_POST

    def _answer(self, code: int, document: dict[str, Any]) -> None:
        body = json.dumps(document).encode()
        self.send_response(code)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:
        """Logs no request."""


@contextmanager
def api_server(made: list[dict[str, Any]]) -> Iterator[str]:
    handler = type("Handler", (ApiServer,), {"made": made})
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            thread.join()


def test_the_drivers_pod_runs_our_main_file_for_the_request_and_gets_secrets_by_reference(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    made: list[dict[str, Any]] = []
    with api_server(made) as url:
        spark = {"conn_type": "spark", "host": f"k8s://{url}", "extra": {"deploy-mode": "cluster", "namespace": "etl"}}
        monkeypatch.setenv("AIRFLOW_CONN_SPARK_DEFAULT", json.dumps(spark))
        conf = {"spark.kubernetes.container.image": "us/spark:1", "spark.jars.packages": "", REFERENCE: "etl-secrets:token"}
        settings = Settings(spark_conn_id="spark_default", spark_main=MAIN)
        submission = plan_submission(settings, settings.driver_conf(conf))
        command = submission.command(entry="pipelines.orders", home="file:///shared/orders", request=RequestId("start-3"))
        environment = os.environ | {"SPARK_HOME": str(SPARK_HOME), "KUBECONFIG": os.devnull}
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=TIMEOUT_S, check=False)
    assert done.returncode == 0, done.stderr
    (pod,) = (each for each in made if each["kind"] == "Pod")
    (container,) = pod["spec"]["containers"]
    assert (container["image"], pod["spec"]["restartPolicy"]) == ("us/spark:1", "Never")
    arguments = container["args"]
    assert arguments[arguments.index(MAIN) :] == [
        *(MAIN, "pipelines.orders", "--home", "file:///shared/orders", "--request", "start-3")
    ]
    (secret,) = (each for each in container["env"] if each["name"] == "SPARK_JOBS_PARAM_TOKEN")
    assert secret["valueFrom"]["secretKeyRef"] == {"name": "etl-secrets", "key": "token"}
