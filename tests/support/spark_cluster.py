"""A standalone Spark cluster on this host, with a master and workers. Each is a JVM of its own."""

import os
import re
import subprocess
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from shutil import rmtree

import psutil
import pyspark

from spark_jobs.runtime.spark.delta_jars import DeltaJars

STARTED = re.compile(r"Starting Spark master at (spark://\S+)")
REGISTERED = "Successfully registered with master"
DEADLINE_S = 60.0
SPARK_HOME = Path(pyspark.__file__).parent
DAEMON = {
    "SPARK_HOME": str(SPARK_HOME),
    "SPARK_DAEMON_MEMORY": "256m",
    "SPARK_DAEMON_JAVA_OPTS": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
    "SPARK_MASTER_OPTS": "-Dspark.master.rest.enabled=false",
}


@dataclass(frozen=True)
class Host:
    """Where a part of the cluster runs."""

    address: str = "127.0.0.1"
    within: Sequence[str] = ()
    """A command that runs the part."""


HERE = Host()


@dataclass
class SparkCluster:
    """A running cluster."""

    directory: Path
    master: str = ""
    processes: list["subprocess.Popen[bytes]"] = field(default_factory=list)

    def executors(self) -> list[psutil.Process]:
        """Returns the processes that run tasks."""
        found = []
        for process in self.processes:
            for child in psutil.Process(process.pid).children(recursive=True):
                with suppress(psutil.NoSuchProcess):  # it ended in between
                    found += [child] if "CoarseGrainedExecutorBackend" in " ".join(child.cmdline()) else []
        return found

    def lose_disks(self) -> None:
        """Deletes everything that executors have on their disks. Waits until none is running."""
        pause = threading.Event()
        for _ in range(int(DEADLINE_S / 0.05)):
            if not self.executors():
                break
            pause.wait(0.05)
        for application in self.directory.glob("worker-*/*"):
            rmtree(application)

    def start(self, name: str, host: Host, spark_class: str, *arguments: str, **variables: str) -> Path:
        """Starts a part of the cluster. Returns the path of its log.

        Args:
            name: The name of the log.
            host: The host of the part.
            spark_class: A class of Spark.
            arguments: Arguments of the class.
            variables: Variables of its environment.
        """
        where = ["--host", host.address, "--port", "0", "--webui-port", "0"]
        log = self.directory / f"{name}.log"
        with log.open("wb") as output:
            process = subprocess.Popen(
                [*host.within, str(SPARK_HOME / "bin/spark-class"), spark_class, *where, *arguments],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                env=os.environ | DAEMON | {"SPARK_LOCAL_IP": host.address} | variables,
            )
        self.processes.append(process)
        return log


def said(log: Path, words: str) -> re.Match[str]:
    """Waits until a log contains the words. Returns the match."""
    pause = threading.Event()
    for _ in range(int(DEADLINE_S / 0.05)):
        if found := re.search(words, log.read_text(errors="replace")):
            return found
        pause.wait(0.05)
    raise AssertionError(log.read_text(errors="replace"))


def delta_on_this_host() -> dict[str, str]:
    """Returns settings without which Spark would look for jars or send them around. Driver and executors find Delta on this host."""
    jars = DeltaJars({}, ()).setting()
    if jars is None:
        return {}
    own = [jar for jar in jars.split(",") if Path(jar).name.startswith(("io.delta_", "io.unitycatalog_"))]  # Spark has the others
    found = os.pathsep.join(own)
    return {"spark.jars.packages": "", "spark.driver.extraClassPath": found, "spark.executor.extraClassPath": found}


def disk_of(directory: Path, worker: int) -> Path:
    """Returns the directory of a worker's executors."""
    return directory / f"worker-{worker}"


@contextmanager
def spark_cluster(directory: Path, workers: Sequence[Host] = (HERE, HERE), master: Host = HERE) -> Iterator[SparkCluster]:
    """Starts a cluster of workers with one core each. It ends when the context closes.

    Args:
        directory: The directory of its logs and, for each worker, of its executors: see :func:`disk_of`.
        workers: The host of each worker.
        master: The host of the master.
    """
    cluster = SparkCluster(directory)
    for number in range(len(workers)):
        disk_of(directory, number).mkdir(parents=True)
    try:
        cluster.master = said(cluster.start("master", master, "org.apache.spark.deploy.master.Master"), STARTED.pattern)[1]
        logs = []
        for number, worker in enumerate(workers):
            disk = disk_of(directory, number)
            room = ["--cores", "1", "--memory", "1g", "--work-dir", str(disk)]
            spark_class = "org.apache.spark.deploy.worker.Worker"
            scratch = {"SPARK_LOCAL_DIRS": str(disk / "scratch")}  # of state stores and blocks
            logs.append(cluster.start(f"worker-{number}", worker, spark_class, *room, cluster.master, **scratch))
        for log in logs:
            said(log, REGISTERED)
        yield cluster
    finally:
        for process in reversed(cluster.processes):
            process.terminate()
        for process in cluster.processes:
            process.wait(DEADLINE_S)
