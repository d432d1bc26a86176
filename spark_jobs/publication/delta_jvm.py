"""Delta's own classes, reached through a Spark session. Imports no Spark: who has a session has it already.

What differs between the releases of Delta is known here alone, and found by asking for it: see :func:`call_fitting`.
"""

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from spark_jobs.protocol.codec import canonical, sha256
from spark_jobs.protocol.delta_log import commit_name
from spark_jobs.protocol.errors import StorageError
from spark_jobs.protocol.ids import AppId, CheckpointId

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_FILE_PREFIX = "spark.databricks.delta.testOnly.dataFileNamePrefix"
_BEGINNING_BYTES = 65_536
_WRITE_CHECKSUM = "spark.databricks.delta.writeChecksumFile.enabled"


def java_class(spark: "SparkSession", name: str) -> Any:
    """A class of the session's JVM by its full name.

    For ``spark._jvm.a.b.C`` py4j asks the JVM what ``a`` is, and what ``a.b`` is, and each time every jar is searched for a class of
    that name: milliseconds, in every batch.
    """
    from py4j.java_gateway import JavaClass

    jvm: Any = spark._jvm
    return JavaClass(name, jvm._gateway_client)


def java_list(spark: "SparkSession", values: Any) -> list[Any]:
    """The elements of a ``java.util.Collection``.

    A Java iterator tells py4j of its end by an exception, and PySpark asks the JVM about two dozen classes before it lets go of one.
    """
    found = java_class(spark, "java.util.ArrayList")(values)  # a list of Scala's would count its way to each element
    return [found.get(index) for index in range(found.size())]


def call_fitting(method: Callable[..., Any], *signatures: tuple[Any, ...]) -> Any:
    """Calls a method of the JVM with the first arguments that it has parameters for.

    Args:
        method: The method of a Java object. py4j looks for one with fitting parameters at each call.
        signatures: The arguments, those of the newest release first.

    Raises:
        Py4JError: There is no such method.
    """
    from py4j.protocol import Py4JError

    *newer, oldest = signatures
    for arguments in newer:
        try:
            return method(*arguments)
        except Py4JError as error:
            if type(error) is not Py4JError:  # the method was called
                raise
    return method(*oldest)


class DeltaJvm:
    """Delta's own classes for one session."""

    def __init__(self, spark: "SparkSession") -> None:
        self.spark = spark
        self._session: Any = spark._jsparkSession
        self._sessions = self.java("org.apache.spark.sql.classic.SparkSession")
        self._utils = self.java("org.apache.spark.util.Utils")
        self._objects: dict[str, Any] = {}
        self.convert = self.java("scala.jdk.javaapi.CollectionConverters")

    def java(self, name: str) -> Any:
        """A class of the JVM by its full name."""
        return java_class(self.spark, name)

    def object(self, name: str) -> Any:
        """A Scala object of Delta. ``Class.forName`` misses jars that were added with ``--packages``."""
        if name not in self._objects:
            self._objects[name] = self._utils.classForName(name, True, False).getField("MODULE$").get(None)
        return self._objects[name]

    def log(self, path: str) -> Any:
        """The ``DeltaLog`` of a table; this thread's session becomes the active one, from which Delta reads its settings."""
        self._sessions.setActiveSession(self._session)
        return self.object("org.apache.spark.sql.delta.DeltaLog$").forTable(self._session, path)

    def forget(self, path: str) -> None:
        """Makes Delta read a log anew that was changed otherwise than by adding versions."""
        location = self.java("org.apache.hadoop.fs.Path")(path)
        self.object("org.apache.spark.sql.delta.DeltaLog$").invalidateCache(self._session, location)

    def checkpoint(self, path: str) -> None:
        """Writes a checkpoint of a table's log, and removes what has expired."""
        none, log = self.java("scala.Option").apply(None), self.log(path)
        log.checkpoint(log.update(False, none, none), none)

    def snapshot(self, path: str) -> tuple[int, dict[str, Any], dict[str, Any]]:
        """The newest version of a table, its metadata and its protocol; version -1 where there is no table."""
        none = self.java("scala.Option").apply(None)
        snapshot = self.log(path).update(False, none, none)
        return (
            int(snapshot.version()),
            json.loads(snapshot.metadata().json())["metaData"],
            json.loads(snapshot.protocol().json())["protocol"],
        )

    def earliest_version(self, path: str) -> int:
        """The first version whose entry is still in a table's log."""
        return int(self.object("org.apache.spark.sql.delta.DeltaHistoryManager$").getEarliestDeltaFile(self.log(path)))

    def commits(self, path: str, first: int, last: int) -> Iterator[tuple[int, list[dict[str, Any]]]]:
        """The actions of each commit between two versions of a table, both included."""
        log, none = self.log(path), self.java("scala.Option").apply(None)
        configuration = log.newDeltaHadoopConf()
        files = call_fitting(log.getChangeLogFiles, (first, last, none, False), (first, last, False))  # the second: Delta 4.0
        while files.hasNext():
            commit = files.next()
            lines = str(log.store().read(commit._2(), configuration).mkString("\n"))  # one call, however many actions there are
            yield int(commit._1()), [json.loads(line) for line in lines.splitlines() if line]

    def has_version(self, path: str, version: int) -> bool:
        """Whether a table's log still tells what the table was at a version."""
        from py4j.protocol import Py4JJavaError

        log, none = self.log(path), self.java("scala.Option").apply(None)
        try:
            call_fitting(log.getSnapshotAt, (version, none, none, False), (version, none, none))  # the second: Delta 4.0
        except Py4JJavaError:
            return False
        return True

    def commit_sha256(self, path: str, version: int) -> str | None:
        """The SHA-256 of the beginning of a commit's file; None where the log no longer has the file.

        The beginning is enough: it has times and names of files, which no two commits share.

        Raises:
            StorageError: The file cannot be read.
        """
        from py4j.protocol import Py4JJavaError

        log = self.log(path)
        file = self.java("org.apache.hadoop.fs.Path")(log.logPath(), commit_name(version))
        try:
            stream = file.getFileSystem(log.newDeltaHadoopConf()).open(file)
            try:
                return sha256(bytes(stream.readNBytes(_BEGINNING_BYTES)))
            finally:
                stream.close()
        except Py4JJavaError as error:
            if any("java.io.FileNotFoundException" in java_class_names(cause) for cause in java_causes(error)):
                return None
            raise StorageError(
                f"Version {version} of the log of table {path} cannot be read: {java_message(error)}",
                safe="Nothing was written to the table.",
                remedy="Look at the storage of the table; a retry reads it again.",
                table=path,
                version=version,
            ) from error

    def files(self, path: str) -> Any:
        """The data files of a table: a frame of Delta's ``AddFile``, for the JVM."""
        none = self.java("scala.Option").apply(None)
        return self.log(path).update(False, none, none).allFiles().toDF()

    def write_files(self, frame: "DataFrame", path: str, prefix: str) -> list[dict[str, Any]]:
        """Writes a frame's rows as Parquet files into a table's directory, without a Delta commit (phase 1).

        Returns:
            Delta's ``add`` actions, with paths relative to the table.
        """
        # The only way to recognise a file that was written and recorded nowhere: Delta's own name for it would be a bare UUID.
        self._session.sessionState().conf().setConfString(_FILE_PREFIX, prefix)
        actions = self.log(path).startTransaction().writeFiles(frame._jdf)
        return [json.loads(action.json())["add"] for action in java_list(self.spark, self.convert.asJava(actions))]

    def add_files(self, adds: Iterable[Mapping[str, Any]]) -> Any:
        """Delta's own objects for ``add`` actions, as a Java list; parsed in one call, as a call for each takes longer than the commit."""
        load = self._utils.classForName
        mapper = self.object("org.apache.spark.sql.delta.util.JsonUtils$").mapper()
        add_file = load("org.apache.spark.sql.delta.actions.AddFile", True, False)
        kind = mapper.getTypeFactory().constructCollectionType(load("java.util.ArrayList", True, False), add_file)
        return mapper.readValue(canonical([dict(add) for add in adds]).decode(), kind)

    def transaction(self, path: str, app: AppId) -> "JvmTransaction":
        """Begins a Delta transaction that is conditional on the version of ``app`` that the table has now.

        Says nothing of that version: to look it up, Delta computes the whole state of the table, every file of it.

        Further commits of this session write no ``.crc`` file: readers take the versions of app ids from it, and it would still
        say that a publication is there when another writer has replaced its commit.
        """
        self._session.sessionState().conf().setConfString(_WRITE_CHECKSUM, "false")
        return JvmTransaction(self, path, app)


class JvmTransaction:
    """A Delta transaction of Spark that has not been committed."""

    def __init__(self, delta: DeltaJvm, path: str, app: AppId) -> None:
        self._delta, self._app = delta, app
        self._transaction = delta.log(path).startTransaction()
        # An app id that counts as read makes a concurrent publication of the same one a conflict.
        self._transaction.readTxn().addOne(app)

    @property
    def read_version(self) -> int:
        """The Delta version that the transaction is conditional on."""
        return int(self._transaction.readVersion())

    @property
    def table_id(self) -> str:
        """The id of the table that the transaction has read."""
        return str(self._transaction.metadata().id())

    @property
    def newest_commit(self) -> tuple[int, int | None]:
        """When the commit of the version that the transaction has read was written, in ms, and its size.

        The size is None where a checkpoint of that version is there.
        """
        segment = self._transaction.snapshot().logSegment()
        deltas = segment.deltas()
        size_bytes = None if deltas.isEmpty() else int(deltas.last().getLen())
        return int(segment.lastCommitFileModificationTimestamp()), size_bytes

    def commit(
        self, adds: Iterable[Mapping[str, Any]], version: CheckpointId, commit_info: Mapping[str, Any], *, replace: bool
    ) -> None:
        """Commits ``adds`` and ``SetTransaction(app, version)`` in one Delta transaction.

        Args:
            adds: Delta's ``add`` actions.
            version: The app id's new version.
            commit_info: Written as JSON to ``userMetadata`` of the commit info.
            replace: Remove all files that the table has, in the same transaction; then every other commit is a conflict.
        """
        java, convert = self._delta.java, self._delta.convert
        some, now_ms = java("scala.Option").apply, int(java("java.lang.System").currentTimeMillis())
        actions = java("java.util.ArrayList")()
        actions.add(java("org.apache.spark.sql.delta.actions.SetTransaction")(self._app, version, some(now_ms)))
        if replace:
            for file in java_list(self._delta.spark, convert.asJava(self._transaction.filterFiles())):
                actions.add(file.remove())
        actions.addAll(self._delta.add_files(adds))
        modes = java("org.apache.spark.sql.streaming.OutputMode")
        operation = java("org.apache.spark.sql.delta.DeltaOperations$StreamingUpdate")(
            modes.Complete() if replace else modes.Append(), self._app, version, some(canonical(dict(commit_info)).decode())
        )
        self._transaction.commit(convert.asScala(actions).toSeq(), operation)


def java_causes(error: Exception) -> list[Any]:
    """The exceptions of the JVM behind an error, the outermost first; none where it did not come from there."""
    found: list[Any] = []
    java: Any = getattr(error, "java_exception", None) or getattr(error, "_origin", None)
    while java is not None:
        found.append(java)
        java = java.getCause()
    return found


def java_class_names(exception: Any) -> set[str]:
    """Returns the names of the class of an exception of the JVM, and of the classes above it."""
    found, kind = set(), exception.getClass()
    while kind is not None:
        found.add(str(kind.getName()))
        kind = kind.getSuperclass()
    return found


def java_message(error: Exception) -> str:
    """What went wrong at the bottom of an error that may have come through the JVM, without the stack traces around it."""
    causes = java_causes(error)
    return str(causes[-1].getMessage() or causes[-1].toString() if causes else error).strip()
