"""A small HDFS for the tests: a name node and a data node on loopback with free ports. Also a connection to it that loses answers."""

import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from uuid import uuid4
from xml.sax.saxutils import escape

import pytest

from spark_jobs.protocol.errors import StorageError
from spark_jobs.storage.hdfs import HdfsFiles

DEADLINE_S = 60.0
_JARS = ".hdfs.jars"
_JAVA = ("-Xmx256m", "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn")
_NAME_NODE = "org.apache.hadoop.hdfs.server.namenode.NameNode"
_DATA_NODE = "org.apache.hadoop.hdfs.server.datanode.DataNode"
_SETTINGS = {
    "dfs.replication": 1,
    "dfs.blocksize": 4 << 20,  # so that the tests' files have several blocks
    "dfs.namenode.safemode.extension": 0,
    # The client asks whether a file is complete before the data node has reported it, and then waits for half a second.
    "dfs.namenode.file.close.num-committed-allowed": 1,
    "dfs.heartbeat.interval": 1,
    "dfs.namenode.http-address": "127.0.0.1:0",
    "dfs.datanode.address": "127.0.0.1:0",
    "dfs.datanode.http.address": "127.0.0.1:0",
    "dfs.datanode.ipc.address": "127.0.0.1:0",
}
Process = subprocess.Popen[bytes]


@dataclass
class HdfsCluster:
    """A name node and a data node. They run until a test kills them."""

    directory: Path
    authority: str
    processes: dict[str, Process] = field(default_factory=dict)

    @property
    def settings(self) -> Path:
        """Returns the directory for ``HADOOP_CONF_DIR``."""
        return self.directory / "conf"

    def start_name_node(self) -> None:
        self._start(_NAME_NODE)

    def start_data_node(self) -> None:
        self._start(_DATA_NODE)

    def kill_name_node(self) -> None:
        self._kill(_NAME_NODE)

    def kill_data_node(self) -> None:
        self._kill(_DATA_NODE)

    @contextmanager
    def frozen(self) -> Iterator[None]:
        """Stops the name node while the context is open: it accepts calls, and answers none."""
        process = self.processes[_NAME_NODE].pid
        os.kill(process, signal.SIGSTOP)
        os.waitid(os.P_PID, process, os.WSTOPPED)  # all of its threads have stopped
        try:
            yield
        finally:
            os.kill(process, signal.SIGCONT)

    def wait_until_it_writes(self) -> None:
        probe = HdfsFiles(self.authority, "/ready", DEADLINE_S)
        probe.create(f"{uuid4()}", b"x")

    def admin(self, *arguments: str) -> None:
        """Runs ``hdfs dfsadmin``."""
        self._run("org.apache.hadoop.hdfs.tools.DFSAdmin", *arguments)

    def format(self) -> None:
        self._run(_NAME_NODE, "-format", "-nonInteractive")

    def _run(self, *command: str) -> None:
        with (self.directory / "tools.log").open("ab") as log:
            subprocess.run(self._java(*command), stdin=subprocess.DEVNULL, stdout=log, stderr=log, check=True, timeout=DEADLINE_S)

    def _start(self, main: str) -> None:
        with (self.directory / f"{main.rpartition('.')[2]}.log").open("ab") as log:
            self.processes[main] = subprocess.Popen(
                self._java(main), stdin=subprocess.DEVNULL, stdout=log, stderr=log, cwd=self.directory, start_new_session=True
            )

    def _kill(self, main: str) -> None:
        process = self.processes.pop(main)
        process.kill()
        process.wait(DEADLINE_S)

    def logs(self) -> str:
        """Returns the end of each process's log."""
        return "\n".join(f"{log.name}: {log.read_text(errors='replace')[-4000:]}" for log in sorted(self.directory.glob("*.log")))

    def kill(self) -> None:
        for main in list(self.processes):
            self._kill(main)

    def _java(self, *command: str) -> list[str]:
        stamp, home = Path(sys.prefix) / _JARS, os.environ.get("JAVA_HOME")
        assert stamp.exists(), f"{stamp} is missing: run `make warm`"
        java = str(Path(home) / "bin/java") if home else "java"
        return [
            java,
            *_JAVA,
            f"-Djava.io.tmpdir={tempfile.gettempdir()}",
            "-cp",
            os.pathsep.join([str(self.settings), *stamp.read_text().split("\n")[:-1]]),
            *command,
        ]


@contextmanager
def hdfs_cluster(directory: Path) -> Iterator[HdfsCluster]:
    """Starts HDFS with its data in ``directory``. It accepts files on entry, and ends when the context closes.

    Raises:
        AssertionError: Two clusters, one after the other, accepted no file in time.
    """
    cluster = _cluster_that_writes(directory)
    try:
        yield cluster
    finally:
        cluster.kill()  # its data is thrown away


def _cluster_that_writes(directory: Path) -> HdfsCluster:
    """Returns a cluster that accepts files. If the first one accepts none in time, a second one is tried. The error has the logs of both.

    A port may be taken between its choice and its use, and a data node may close each connection from its start on.
    """
    told = []
    for attempt in ("first", "second"):
        cluster = _started(directory / attempt)
        try:
            cluster.wait_until_it_writes()
        except StorageError as error:
            cluster.kill()
            told.append(f"{error}\n{cluster.logs()}")
        except BaseException:
            cluster.kill()
            raise
        else:
            return cluster
    raise AssertionError("\n".join(told))


def _started(directory: Path) -> HdfsCluster:
    with closing(socket.socket()) as taken:
        taken.bind(("127.0.0.1", 0))
        authority = f"127.0.0.1:{taken.getsockname()[1]}"
    own = {"dfs.namenode.name.dir": f"file://{directory}/names", "dfs.datanode.data.dir": f"file://{directory}/data"}
    write_settings(directory / "conf", {"fs.defaultFS": f"hdfs://{authority}"}, _SETTINGS | own)
    cluster = HdfsCluster(directory, authority)
    cluster.format()
    cluster.start_name_node()
    cluster.start_data_node()
    return cluster


@contextmanager
def default_file_system(cluster: HdfsCluster) -> Iterator[None]:
    """Lets this process and its children find the cluster by their environment while the context is open."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HADOOP_CONF_DIR", str(cluster.settings))
        yield


def write_settings(directory: Path, core: Mapping[str, object], hdfs: Mapping[str, object]) -> None:
    """Writes a directory of Hadoop's settings."""
    directory.mkdir(parents=True, exist_ok=True)
    for name, settings in (("core-site.xml", core), ("hdfs-site.xml", hdfs)):
        properties = "".join(
            f"<property><name>{escape(key)}</name><value>{escape(str(value))}</value></property>\n"
            for key, value in settings.items()
        )
        (directory / name).write_text(f"<configuration>\n{properties}</configuration>\n")


class LossyLine:
    """A connection to a name node that loses one call, or the answer to it, and then breaks once."""

    def __init__(self, authority: str) -> None:
        host, _, port = authority.partition(":")
        self._to = (host, int(port))
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.authority = f"127.0.0.1:{self._listening.getsockname()[1]}"
        self._methods: list[bytes] = []
        self._answer_only = True
        self._silent_after = False
        self.silent = threading.Event()
        """Set when all later data is lost and no connection is closed."""
        self.lost: list[str] = []
        self._ends: list[socket.socket] = []
        self._accepting = threading.Thread(target=self._accept, daemon=True)
        self._accepting.start()

    def lose(self, *methods: str, answer_only: bool = True, silent_after: bool = False) -> None:
        """Loses the next call of the first name, then the next call of the second name, and so on.

        Args:
            methods: The names in ``ClientNamenodeProtocol``.
            answer_only: True if the call arrives and only its answer is lost.
            silent_after: True if the connection then stays open without any data.
        """
        self._answer_only, self._silent_after = answer_only, silent_after
        self._methods = [b"\n" + bytes([len(each)]) + each.encode() + b"\x12" for each in methods]

    def close(self) -> None:
        with suppress(OSError):
            self._listening.shutdown(socket.SHUT_RDWR)  # otherwise one more would be accepted
        self._listening.close()
        self._accepting.join()
        self._hang_up(*self._ends, always=True)

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                client, _ = self._listening.accept()
                server = socket.create_connection(self._to)
                self._ends += [client, server]
                loses = threading.Event()
                for pump in (self._ask, self._answer):
                    threading.Thread(target=pump, args=(client, server, loses), daemon=True).start()

    def _ask(self, client: socket.socket, server: socket.socket, loses: threading.Event) -> None:
        with suppress(OSError):
            while data := client.recv(1 << 16):
                if self._methods and self._methods[0] in data:
                    self.lost.append(self._methods.pop(0)[2:-1].decode())
                    if self._silent_after:
                        self.silent.set()
                    loses.set()
                    if not self._answer_only:
                        self._hang_up(client, server)
                        continue
                elif self.silent.is_set():
                    continue
                server.sendall(data)
        self._hang_up(client, server, always=True)

    def _answer(self, client: socket.socket, server: socket.socket, loses: threading.Event) -> None:
        with suppress(OSError):
            while data := server.recv(1 << 16):
                if self.silent.is_set():
                    continue
                if loses.is_set():
                    break
                client.sendall(data)
        self._hang_up(client, server)

    def _hang_up(self, *ends: socket.socket, always: bool = False) -> None:
        if always or not self.silent.is_set():
            for end in ends:
                with suppress(OSError):
                    end.shutdown(socket.SHUT_RDWR)
                end.close()
