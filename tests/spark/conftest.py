"""One Spark session for all tests of a process, and the inputs that they share."""

import gc
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from spark_jobs import Pipeline
from spark_jobs.checkpoint.checkpoint_store import CheckpointStore
from spark_jobs.control.home import open_home
from spark_jobs.home.layout import WORK
from spark_jobs.protocol.documents import Manifest, StartResponse
from spark_jobs.runtime.spark.session import start_session
from spark_jobs.storage.files import Files, local_path
from spark_jobs.storage.open import open_place
from tests.spark import inputs
from tests.support.azurite import azurite
from tests.support.growing_table import BOUNDED, LIVE
from tests.support.hdfs_cluster import hdfs_cluster
from tests.support.permissions import obey_permissions
from tests.support.places import AT_NIGHT, IN_A_STORE, ON_A_DISK
from tests.support.running import lose
from tests.support.session_stores import store_of
from tests.support.shared_application import SHARED_APPLICATION, session_jars
from tests.support.short_jvm import COMPILED


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    conf = SHARED_APPLICATION | {
        "spark.sql.shuffle.partitions": "2" if COMPILED else "1",
        "spark.sql.sources.parallelPartitionDiscovery.parallelism": "2",  # otherwise VACUUM takes 10,000 tasks to list files
        "spark.databricks.delta.snapshotPartitions": "1",
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.warehouse.dir": str(tmp_path_factory.mktemp("spark-warehouse")),
        "spark.sql.execution.arrow.pyspark.enabled": "true",
        "spark.sql.streaming.stateStore.maintenanceInterval": "1s",
    }
    obey_permissions()
    session = start_session("tests", conf, jars=session_jars())
    yield session
    session.stop()


@pytest.fixture(scope="module", autouse=True)
def _freed() -> Iterator[None]:
    """Frees the queries and frames of a module. Python seldom looks for cycles, and Java keeps whatever Python has not freed."""
    yield
    gc.collect()


@pytest.fixture(scope="session")
def store(spark: SparkSession, store: str) -> str:
    """A place in an S3 server. The application has the settings of :func:`spark`, because that starts it first."""
    return store


@pytest.fixture(scope="session")
def azure(spark: SparkSession) -> Iterator[str]:
    """A place in Azure."""
    with store_of(spark, azurite()) as place:
        yield place


@dataclass(frozen=True)
class SharedInputs:
    """The places of the shared rows. Tests only read them."""

    events: Path
    """A Delta table with partitions and several versions."""
    payments: Path
    """A directory of Parquet files."""
    places: Path
    """A Delta table."""


@pytest.fixture(scope="session")
def shared(tmp_path_factory: pytest.TempPathFactory) -> SharedInputs:
    root = tmp_path_factory.mktemp("inputs with a space")
    return SharedInputs(
        events=inputs.write_versions(root / "events", inputs.events(), 4, partition_by=["region"]),
        payments=inputs.write_parquet(root / "payments", inputs.payments(), 3),
        places=inputs.write_versions(root / "places", inputs.places(), 1),
    )


@pytest.fixture(scope="session")
def views(spark: SparkSession, shared: SharedInputs) -> SparkSession:
    """A session in which batch SQL finds the shared inputs by name."""
    session = spark.newSession()
    session.conf.set("spark.sql.session.timeZone", "UTC")
    session.read.format("delta").load(str(shared.events)).createOrReplaceTempView("events")
    session.read.parquet(str(shared.payments)).createOrReplaceTempView("payments")
    session.read.format("delta").load(str(shared.places)).createOrReplaceTempView("places")
    return session


class Site:
    """A home and the directory of its tables, on a disk or in a store."""

    def __init__(self, spark: SparkSession, root: Path, store: str | None = None) -> None:
        self.spark, self.root, self.store = spark, root, store
        self.home = root / "home"
        self.tables = root / "tables with a space"

    @property
    def place(self) -> str:
        """Returns the path or the URL of the home."""
        return self.place_for("home")

    @property
    def files(self) -> Files:
        """Returns the home, of which a store has the documents alone."""
        return open_home(self.place)

    @property
    def savepoint(self) -> str:
        """Returns the path or the URL of a savepoint."""
        return self.place_for("savepoint")

    def place_for(self, name: str) -> str:
        """Returns the path or the URL of a place next to the home, such as another home."""
        return f"{self.store or self.root}/{name}"

    def another(self, name: str) -> "Site":
        """Returns a home with tables of its own, on the same disk or in the same store."""
        return Site(self.spark, self.root / name, f"{self.store}/{name}" if self.store else None)

    @property
    def warehouse(self) -> str:
        """Returns the path or the URL of the directory of the tables, with a space where delta-rs can address one."""
        return self.place_for("tables" if self.place.startswith("hdfs:") else "tables with a space")

    def table(self, name: str) -> str:
        """Returns the path or the URL of a table."""
        return f"{self.warehouse}/{name}"

    def run(self, pipeline: Pipeline, **options: Any) -> StartResponse:
        return pipeline.run(spark=self.spark, home=self.place, **options)

    def lose(self) -> None:
        """Removes the home."""
        if self.store is None:
            lose(self.home)
            return
        self.lose_work()
        documents = open_place(self.place)
        for name in documents.names(""):
            documents.delete(name)

    def lose_work(self) -> None:
        """Removes the work directories, and of a home in a store everything that this host has of it."""
        work = local_path(self.files, WORK)
        lose(work.parent if self.store else work)

    def manifest(self, checkpoint: int | None = None) -> Manifest:
        store = CheckpointStore(self.files)
        head = store.head()
        assert head is not None
        return head if checkpoint is None else store.manifest(type(head.checkpoint)(checkpoint))

    def checkpoints(self) -> list[int]:
        return list(CheckpointStore(self.files).ids())


bounded_or_in_a_store_at_night = pytest.mark.parametrize(
    ("events", "bucket"),
    [
        (LIVE, ON_A_DISK),
        pytest.param(BOUNDED, ON_A_DISK, marks=pytest.mark.nightly),
        pytest.param(LIVE, IN_A_STORE, marks=AT_NIGHT),
    ],
    indirect=True,
)
"""Does what :data:`in_a_store_at_night` does for a live input. At night also runs the test on a disk for an input that ends."""


@pytest.fixture
def bucket(request: pytest.FixtureRequest) -> str | None:
    """The store of home and tables, for tests with the parameter ``in a store``. None: they are on a disk."""
    return None if getattr(request, "param", ON_A_DISK) == ON_A_DISK else request.getfixturevalue("store")


@pytest.fixture
def site(spark: SparkSession, tmp_path: Path, bucket: str | None, request: pytest.FixtureRequest) -> Site:
    """A home and tables, by default on a disk."""
    found: Site = request.getfixturevalue("store_site") if bucket else Site(spark, tmp_path)
    return found


@pytest.fixture
def store_site(spark: SparkSession, store: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Site:
    """A home and tables in a store."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return Site(spark, tmp_path, f"{store}/{tmp_path.name}")


@pytest.fixture
def hdfs_site(spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Site]:
    """A home and tables in HDFS."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    with hdfs_cluster(tmp_path / "hdfs") as cluster:
        monkeypatch.setenv("HADOOP_CONF_DIR", str(cluster.settings))
        yield Site(spark, tmp_path, f"hdfs://{cluster.authority}")


@pytest.fixture
def azure_site(spark: SparkSession, azure: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Site:
    """A home and tables in Azure."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return Site(spark, tmp_path, f"{azure}/{tmp_path.name}")
