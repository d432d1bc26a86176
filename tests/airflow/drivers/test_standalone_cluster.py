"""The operator with a real Spark cluster: ``spark-submit`` starts drivers on this host, and workers start executors."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from airflow_provider.hooks.stream_pipeline import StreamPipelineHook
from spark_jobs.control.channel import Channel
from spark_jobs.control.lease import AttemptLease
from spark_jobs.control.liveness import driver_at_work
from spark_jobs.control.status import read_status
from spark_jobs.protocol.errors import InterruptedRunError, RejectedError, RunCancelledError
from spark_jobs.protocol.ids import RequestId
from tests.airflow.conftest import ROOT, connection
from tests.airflow.deferral import carry_out
from tests.airflow.flights import context, failure
from tests.support import small_pipeline
from tests.support.cluster_tasks import CONF, task, when
from tests.support.run_site import RunSite
from tests.support.spark_cluster import Host, SparkCluster, delta_on_this_host, spark_cluster

pytestmark = [pytest.mark.airflow, pytest.mark.spark]


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkCluster]:
    with spark_cluster(tmp_path_factory.mktemp("spark") / "cluster") as found:
        yield found


@pytest.fixture
def site(tmp_path: Path) -> RunSite:
    """A home in ``homes``, tables next to it, and a day of events."""
    small_pipeline.deliver(tmp_path / "events", 0)
    (tmp_path / "site").mkdir()
    return RunSite(tmp_path / "site", tmp_path / "events")


def connect(monkeypatch: pytest.MonkeyPatch, cluster: SparkCluster, site: RunSite, **conf: str) -> None:
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    monkeypatch.setenv("AIRFLOW_CONN_SPARK_DEFAULT", json.dumps({"conn_type": "spark", "host": cluster.master}))
    given = connection(home_root=str(site.directory), spark_conn_id="spark_default", conf=CONF | delta_on_this_host() | conf)
    monkeypatch.setenv("AIRFLOW_CONN_STREAM_PIPELINE_DEFAULT", given)


@pytest.fixture
def connected(monkeypatch: pytest.MonkeyPatch, cluster: SparkCluster, site: RunSite) -> RunSite:
    connect(monkeypatch, cluster, site)
    return site


def assert_gone(site: RunSite, cluster: SparkCluster) -> None:
    when(lambda: not driver_at_work(site.files()) and not cluster.executors()).join()
    assert not driver_at_work(site.files())
    assert cluster.executors() == []


def in_mid_run(site: RunSite) -> bool:
    status = read_status(site.files())
    return status is not None and any(stage.batch is not None for stage in status.stages.values())


@pytest.mark.nightly
def test_a_pipeline_reaches_its_final_checkpoint_although_an_executor_is_lost(connected: RunSite, cluster: SparkCluster) -> None:
    lost: list[int] = []

    def lose_one() -> None:
        executor = cluster.executors()[0]
        lost.append(executor.pid)
        executor.kill()

    losing = when(lambda: in_mid_run(connected) and cluster.executors(), lose_one)
    facts = carry_out(task(connected), context())
    losing.join()
    assert lost
    assert (facts["attempt"], facts["checkpoint"]) == (1, 1)
    assert {name: sink["version"] for name, sink in facts["sinks"].items()} == {"hourly": 1, "daily": 1}
    connected.assert_answered()
    assert list((connected.home / "work").glob("probe-*")) == []
    assert_gone(connected, cluster)


@pytest.mark.nightly
def test_a_killed_task_ends_its_driver_and_executors_and_a_next_try_goes_on(connected: RunSite, cluster: SparkCluster) -> None:
    doomed = task(connected, deferrable=False)
    killer = when(lambda: in_mid_run(connected) and cluster.executors(), doomed.on_kill)
    assert "The task was killed" in str(failure(doomed, InterruptedRunError))
    killer.join()
    assert_gone(connected, cluster)
    assert connected.public() == {"hourly": [], "daily": []}
    assert carry_out(task(connected), context(token="second try"))["attempt"] == 2
    connected.assert_answered()


@pytest.mark.nightly
def test_a_cancel_through_the_home_alone_ends_a_driver_and_its_executors(connected: RunSite, cluster: SparkCluster) -> None:
    """A trigger on another host cancels like this."""
    hook = StreamPipelineHook()
    waiting = task(connected, deferrable=False)

    def cancel() -> None:
        assert waiting._lease is not None
        assert waiting._lease.held is not None
        attempt, owner = waiting._lease.held
        AttemptLease(hook.files("home"), attempt).cancel(owner, "its task was cleared")

    cancelling = when(lambda: in_mid_run(connected) and waiting._lease, cancel)
    failure(waiting, RunCancelledError)
    cancelling.join()
    assert_gone(connected, cluster)
    answer = Channel(connected.files()).response(RequestId("start-1"))
    assert answer is not None
    assert answer.error is not None


@pytest.mark.nightly
def test_a_home_that_executors_do_not_share_is_refused(tmp_path: Path, site: RunSite, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each worker has its own empty file system at the path of the home."""
    apart = ["unshare", "--map-root-user", "--mount", "sh", "-c", f'mount -t tmpfs none "{site.directory}" && exec "$@"', "sh"]
    with spark_cluster(tmp_path / "apart", workers=[Host(within=apart)]) as cluster:
        connect(monkeypatch, cluster, site)
        refused = failure(task(site), RejectedError)
    assert "is not shared with the executors of spark://127.0.0.1" in str(refused)
    assert site.public() == {"hourly": [], "daily": []}
    assert Channel(site.files()).attempts.numbers() == []


def test_the_test_of_the_connection_names_the_cluster(connected: RunSite, cluster: SparkCluster) -> None:
    well, said = StreamPipelineHook().test_connection()
    assert well, said
    for part in (
        f"standalone master {cluster.master}",
        "deploy mode client",
        "spark-submit of Spark 4.2",
        "The driver has Python",
    ):
        assert part in said
