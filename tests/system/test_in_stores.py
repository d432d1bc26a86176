"""A driver whose home and tables are in a store is killed and its disk is lost. Another host continues from the newest checkpoint."""

import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from random import Random
from shutil import rmtree
from subprocess import Popen
from typing import Any, cast
from urllib.parse import quote

import pytest

from spark_jobs.checkpoint.checkpoint_store import CheckpointStore
from spark_jobs.control.home import open_home
from spark_jobs.control.status import read_status
from spark_jobs.home.layout import CHANNELS, TOMBSTONES, WORK, work_directories
from spark_jobs.protocol.ids import SinkName, StageName
from spark_jobs.storage.files import Files
from spark_jobs.storage.open import open_place
from tests.support import live_store_pipeline, small_pipeline, store_pipeline
from tests.support.azurite import AZURE_JARS, KEY
from tests.support.bounded_pipeline import Changes
from tests.support.drivers import ROOT, SETTINGS, Drivers, drivers_on, ended
from tests.support.google_cloud import CONNECTOR, GOOGLE_JARS
from tests.support.host_roles import role_of_this_host
from tests.support.kafka_broker import jars
from tests.support.killed_drivers import PATIENCE_S, KilledDrivers
from tests.support.object_store import S3_JARS, SECRET_KEY, object_store_apart
from tests.support.run_site import RunSite
from tests.support.spark_cluster import Host, SparkCluster, delta_on_this_host, disk_of, spark_cluster

pytestmark = pytest.mark.spark

PARTS = 4
EXECUTORS = {"spark.executor.memory": "512m", "spark.executor.cores": "1"}
HOSTS = ("first host", "second host", "third host")
CLIENTS = {"s3": S3_JARS, "abfss": AZURE_JARS, "gs": GOOGLE_JARS}
"""The list of the jars of Spark's client, by scheme."""
SECRETS = (SECRET_KEY.encode(), KEY.encode())
ADMIT, WINDOWS = StageName("admit"), SinkName("windows")


@dataclass(frozen=True)
class StoreSite:
    """A home and tables in a store."""

    store: str
    marks: Path
    cluster: SparkCluster | None = None
    """The cluster. None: the driver's host runs the tasks."""
    work_root: str | None = None
    """The work root. None: work directories are on the disk of the driver's host."""
    name: str = "orders"
    """The name of the home."""

    @property
    def home(self) -> str:
        return f"{self.store}/homes/{self.name}"

    @property
    def warehouse(self) -> str:
        """Returns a path with a blank, where delta-rs can address one."""
        return "warehouse" if self.store.startswith("hdfs:") else "ware house"

    @property
    def options(self) -> list[str]:
        client = CLIENTS.get(self.store.partition(":")[0])
        work = ["--work-root", self.work_root] if self.work_root else []
        return ["--home", self.home, *work, *(["--jars", ",".join(jars(client))] if client else [])]

    @property
    def parameters(self) -> dict[str, Any]:
        return {"store": self.store, "warehouse": self.warehouse, "marks": str(self.marks)}

    def files(self) -> Files:
        return open_home(self.home)


@pytest.fixture
def changes(tmp_path: Path) -> Changes:
    return Changes(tmp_path, 0)


@pytest.fixture
def cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[SparkCluster]:
    """A cluster whose executors have the credentials of a store that was started before.

    They see nothing of the drivers' disks, nor of each other's. Each has an address of its own: Spark reads the files of executors at its
    own address without asking them.
    """
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    directory, disks = tmp_path / "cluster", [tmp_path / host for host in HOSTS]
    for disk in disks:
        disk.mkdir()
    workers = [Host(f"127.0.0.{2 + number}", without([*disks, disk_of(directory, 1 - number)])) for number in range(2)]
    with spark_cluster(directory, workers) as found:
        yield found


def without(directories: Iterable[Path]) -> list[str]:
    """Returns a command that runs another one, to which the directories are empty."""
    hidden = " && ".join(f'mount -t tmpfs none "{directory}"' for directory in directories)
    return ["unshare", "--map-root-user", "--mount", "sh", "-c", f'{hidden} && exec "$@"', "sh"]


# By day tests/hdfs has the storage in HDFS, tests/contract that in Azure, tests/spark/test_conditional_log_store.py the races of commits
# there, and S3 has a pipeline in a store.
@pytest.fixture(
    params=[
        "all_work_in_s3",
        pytest.param("in_azure", marks=[pytest.mark.azure, pytest.mark.nightly]),
        pytest.param("in_google", marks=[pytest.mark.google, pytest.mark.nightly]),
        pytest.param("all_work_in_azure", marks=[pytest.mark.azure, pytest.mark.nightly]),
        pytest.param("in_s3", marks=pytest.mark.nightly),
        pytest.param("in_hdfs", marks=pytest.mark.nightly),
        pytest.param("in_versitygw", marks=[pytest.mark.versitygw, pytest.mark.nightly]),
        pytest.param("all_work_in_hdfs", marks=pytest.mark.nightly),
        pytest.param("on_a_cluster_in_s3", marks=pytest.mark.nightly),
        pytest.param("on_a_cluster_in_versitygw", marks=[pytest.mark.versitygw, pytest.mark.nightly]),
        pytest.param("on_a_cluster_in_hdfs", marks=pytest.mark.nightly),
    ]
)
def drivers(changes: Changes, request: pytest.FixtureRequest) -> Iterator[Drivers]:
    store = request.getfixturevalue(f"in_{request.param.rpartition('_')[2]}")
    cluster = request.getfixturevalue("cluster") if request.param.startswith("on_a_cluster") else None
    work_root = None if request.param.startswith("in_") else f"{store}/work"
    with _drivers(StoreSite(store, changes.path, cluster, work_root), store_pipeline.__file__) as found:
        yield found


@pytest.fixture
def live_drivers(changes: Changes, in_s3: str, cluster: SparkCluster) -> Iterator[Drivers]:
    """Drivers of a pipeline without an end, with a cluster and everything in S3."""
    with _drivers(StoreSite(in_s3, changes.path, cluster, f"{in_s3}/work"), live_store_pipeline.__file__) as found:
        yield found


@contextmanager
def _drivers(site: StoreSite, entry: str) -> Iterator[Drivers]:
    store_pipeline.deliver_weights(site.store)
    on_cluster = {"spark.master": site.cluster.master, **EXECUTORS, **delta_on_this_host()} if site.cluster else {}
    settings = SETTINGS | on_cluster | (CONNECTOR if site.store.startswith("gs:") else {})
    found = Drivers(cast(RunSite, site), entry, settings=settings)
    try:
        yield found
    finally:
        found.end()


def on_a_new_host(drivers: Drivers, root: Path, monkeypatch: pytest.MonkeyPatch) -> KilledDrivers:
    """Returns drivers whose disk is a new directory."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(root / "cache"))
    return KilledDrivers(replace(drivers, host=root), Random(1))


def with_a_checkpoint(drivers: KilledDrivers, changes: Changes) -> Popen[str]:
    """Delivers the input and starts a driver. Returns it when it has a checkpoint and waits for more input."""
    site = cast(StoreSite, drivers.drivers.site)
    store_pipeline.deliver(site.store, range(PARTS))
    changes.parts = PARTS
    checkpoints = CheckpointStore(drivers.files)
    changes.admit(2, "admit")
    driver = drivers.start()
    drivers.until(lambda: (head := checkpoints.head()) and head.stages[ADMIT].batch >= 1, driver)
    return driver


def test_with_everything_in_a_store_a_lost_disk_costs_the_work_since_the_newest_checkpoint(
    drivers: Drivers, changes: Changes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    site = cast(StoreSite, drivers.site)
    first, second, _ = (tmp_path / host for host in HOSTS)
    killed = on_a_new_host(drivers, first, monkeypatch)
    driver = with_a_checkpoint(killed, changes)
    killed.kill(driver)
    checkpoints = CheckpointStore(killed.files)
    head = checkpoints.head()
    assert head is not None
    rmtree(first)
    changes.forget()

    changes.admit(PARTS, "admit")
    going_on = on_a_new_host(drivers, second, monkeypatch)
    found = going_on.comes_to_its_end(going_on.start(), lambda: (changes.begun(), checkpoints.taken()))
    assert found.code == 0, found.answer
    assert changes.begun()["admit"] == [2, 3], "what the checkpoint has is not read again"
    assert store_pipeline.public(site.store, site.warehouse) == store_pipeline.answer(PARTS)
    last = checkpoints.head()
    assert last is not None
    assert last.drained
    assert last.sinks[WINDOWS].table == f"{site.store}/{quote(site.warehouse)}/windows"
    names = set(open_place(site.home).names(""))
    assert names >= {CHANNELS, TOMBSTONES}, "rows between stages, and deleted keys, are in the store"
    assert WORK not in names
    if site.work_root:
        left = work_directories(open_home(site.home, site.work_root).names(WORK))
        assert left == [last.work_directory], "the killed attempt's is deleted"
    logs = [path.read_bytes() for path in second.glob("cache/spark-jobs/homes/*/logs/*")]
    home = open_place(site.home)
    documents = [home.read(path) for path in home.paths() if home.size_bytes(path) is not None]
    assert logs
    assert not [data for data in (*logs, *documents, found.stderr.encode()) if any(secret in data for secret in SECRETS)]


def has_cut(drivers: KilledDrivers, batch: int) -> bool:
    """Returns True if a checkpoint has a batch of the first stage."""
    head = CheckpointStore(drivers.files).head()
    return head is not None and head.stages[ADMIT].batch >= batch


@pytest.mark.nightly
def test_with_everything_in_a_store_a_daily_round_kills_lost_disks_and_a_savepoint_leave_the_tables_of_a_batch_query(
    drivers: Drivers, changes: Changes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    site = cast(StoreSite, drivers.site)
    first, second, third = (tmp_path / host for host in HOSTS)

    store_pipeline.deliver(site.store, range(1))
    changes.admit(1, "admit")
    today = on_a_new_host(drivers, first, monkeypatch)
    found = today.comes_to_its_end(today.drivers.start("--on-end", "suspend", run="today"), changes.begun)
    assert found.code == 0, found.answer
    today.drivers.wait_gone()
    rmtree(first)

    store_pipeline.deliver(site.store, range(1, PARTS))
    changes.admit(2, "admit")
    killed = on_a_new_host(drivers, second, monkeypatch)
    driver = killed.start()
    killed.until(lambda: has_cut(killed, 1), driver)
    if site.cluster is not None:
        site.cluster.executors()[0].kill()
        changes.admit(3, "admit")
        killed.until(lambda: has_cut(killed, 2), driver)
        for executor in site.cluster.executors():
            executor.kill()
    killed.kill(driver)
    rmtree(second)
    if site.cluster is not None:
        site.cluster.lose_disks()

    stopped = on_a_new_host(drivers, third, monkeypatch)
    driver = stopped.start()
    savepoint = f"{site.store}/savepoints/orders"
    asking = Popen([sys.executable, "-m", "spark_jobs", "stop", "--home", site.home, "--target", savepoint], cwd=ROOT)
    stopped.until(lambda: (status := read_status(stopped.files)) and status.stop, driver)
    changes.admit(PARTS, "admit")  # a batch that waits for its part would hold the stop
    ended(driver)
    assert asking.wait(PATIENCE_S) == 0
    stopped.drivers.wait_gone()
    rmtree(third)

    moved = replace(drivers, site=cast(RunSite, replace(site, name="moved")))
    going_on = on_a_new_host(moved, first, monkeypatch)
    going_on.options = ("--restore", savepoint)
    taken = CheckpointStore(going_on.files)
    found = going_on.comes_to_its_end(going_on.start(), lambda: (changes.begun(), taken.taken()))
    assert found.code == 0, found.answer
    assert store_pipeline.public(site.store, site.warehouse) == store_pipeline.answer(PARTS)


@pytest.mark.nightly
def test_on_a_cluster_without_a_common_disk_a_live_pipeline_gets_rows_and_is_drained(
    live_drivers: Drivers, changes: Changes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    site = cast(StoreSite, live_drivers.site)
    changes.admit(PARTS, "admit")
    store_pipeline.deliver(site.store, range(PARTS - 1))
    live = on_a_new_host(live_drivers, tmp_path / HOSTS[0], monkeypatch)
    driver = live.start()
    live.until(lambda: has_cut(live, PARTS - 2), driver)
    store_pipeline.deliver(site.store, range(PARTS - 1, PARTS))
    live.until(lambda: has_cut(live, PARTS - 1), driver)
    drain(live, driver)
    last = CheckpointStore(live.files).head()
    assert last is not None
    assert last.drained
    assert store_pipeline.public(site.store, site.warehouse) == store_pipeline.answer(PARTS)


@pytest.mark.nightly
@pytest.mark.stores
def test_a_driver_reads_and_writes_with_the_role_of_its_host(tmp_path: Path) -> None:
    """Each client finds the role on its own. By day ``tests/unit/storage/test_s3_settings.py`` leaves the keys out."""
    small_pipeline.deliver(tmp_path / "events", 0)
    with object_store_apart() as store:
        site = RunSite(tmp_path / "site", tmp_path / "events", bucket=store)
        with role_of_this_host(tmp_path) as role, drivers_on(site) as drivers:
            assert drivers.run().code == 0
        site.assert_answered()
    assert role.clients == {"Java", "Rust"}


def drain(drivers: KilledDrivers, driver: Popen[str]) -> None:
    """Stops the pipeline with a drain. Returns when its driver has ended."""
    home = cast(StoreSite, drivers.drivers.site).home
    asking = Popen([sys.executable, "-m", "spark_jobs", "stop", "--drain", "--home", home], cwd=ROOT)
    found = ended(driver)
    assert found.code == 0, found.answer
    assert asking.wait(PATIENCE_S) == 0
    drivers.drivers.wait_gone()
