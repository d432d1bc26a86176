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
from airflow_provider.settings import read_settings
from spark_jobs.protocol.ids import RequestId
from tests.support.pages import ROOT, files
from tests.support.spark_cluster import SPARK_HOME

pytestmark = [pytest.mark.airflow, pytest.mark.spark]

PAGE = ROOT / "docs/how-to/stores-on-yarn-and-kubernetes.md"
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
            given["metadata"] |= {"uid": f"uid-{len(self.made)}", "resourceVersion": "1", "namespace": "pipelines"}
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


def test_the_drivers_pod_runs_our_main_file_with_the_places_and_secrets_of_the_guides_connection(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    settings = read_settings(json.loads(files(PAGE, "json")["on_kubernetes.json"]), "on_kubernetes")
    home = f"{settings.roots[0]}/views"
    made: list[dict[str, Any]] = []
    with api_server(made) as url:
        spark = {"conn_type": "spark", "host": f"k8s://{url}", "extra": {"deploy-mode": "cluster", "namespace": "pipelines"}}
        monkeypatch.setenv("AIRFLOW_CONN_SPARK_ON_KUBERNETES", json.dumps(spark))
        of_the_task = {"spark.jars.packages": "", REFERENCE: "etl-secrets:token"}  # nothing is downloaded
        submission = plan_submission(settings, settings.driver_conf(of_the_task))
        command = submission.command(
            entry="/opt/pipelines/views.py", home=home, request=RequestId("start-3"), work_root=settings.work_root
        )
        environment = os.environ | {"SPARK_HOME": str(SPARK_HOME), "KUBECONFIG": os.devnull}
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=TIMEOUT_S, check=False)
    assert done.returncode == 0, done.stderr
    (pod,) = (each for each in made if each["kind"] == "Pod")
    (container,) = pod["spec"]["containers"]
    assert (container["image"], pod["spec"]["restartPolicy"]) == ("registry/views:1", "Never")
    arguments = container["args"]
    main = "local:///opt/venv/lib/python3.11/site-packages/spark_jobs/main.py"
    assert arguments[arguments.index(main) :] == [
        *(main, "/opt/pipelines/views.py", "--home", "s3://lake/homes/views", "--work-root", "s3://lake/work"),
        *("--request", "start-3"),
    ]
    variables = {each["name"]: each for each in container["env"]}
    assert (variables["AWS_REGION"]["value"], variables["XDG_CACHE_HOME"]["value"]) == ("eu-central-1", "/tmp/cache")
    secrets = {
        name: each["valueFrom"]["secretKeyRef"] for name, each in variables.items() if "secretKeyRef" in each.get("valueFrom", {})
    }
    assert secrets == {
        "AWS_ACCESS_KEY_ID": {"name": "lake", "key": "key"},
        "AWS_SECRET_ACCESS_KEY": {"name": "lake", "key": "secret"},
        "SPARK_JOBS_PARAM_TOKEN": {"name": "etl-secrets", "key": "token"},
    }
