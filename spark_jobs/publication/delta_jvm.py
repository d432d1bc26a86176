"""Access to Delta's own classes through a Spark session. Does not import Spark: the owner of a session has imported it.

This module alone knows the differences between releases of Delta. It finds them by probes: see :func:`call_fitting`.
"""

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from spark_jobs.protocol.codec import canonical, sha256
from spark_jobs.protocol.delta_log import commit_name
from spark_jobs.protocol.errors import StorageError
from spark_jobs.protocol.ids import AppId, CheckpointId
from spark_jobs.protocol.table_shape import CONSTRAINT

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_FILE_PREFIX = "spark.databricks.delta.testOnly.dataFileNamePrefix"
_BEGINNING_BYTES = 65_536
_LAST_VERSION = 2**63 - 1
"""Java's largest number: a version that no table reaches."""
_WRITE_CHECKSUM = "spark.databricks.delta.writeChecksumFile.enabled"


def java_class(spark: "SparkSession", name: str) -> Any:
    """Returns a class of the session's JVM by its full name.

    For ``spark._jvm.a.b.C`` py4j asks the JVM for ``a`` and for ``a.b``, and each time searches every jar for a class of that name. This
    takes milliseconds in every batch.
    """
    from py4j.java_gateway import JavaClass

    jvm: Any = spark._jvm
    return JavaClass(name, jvm._gateway_client)


def java_list(spark: "SparkSession", values: Any) -> list[Any]:
    """Returns the elements of a ``java.util.Collection``.

    A Java iterator ends with an exception, and PySpark asks the JVM about two dozen classes to translate it.
    """
    found = java_class(spark, "java.util.ArrayList")(values)  # access by index is slow in a Scala list
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
    """Delta's own classes in one session."""

    def __init__(self, spark: "SparkSession") -> None:
        self.spark = spark
        self._session: Any = spark._jsparkSession
        self._sessions = self.java("org.apache.spark.sql.classic.SparkSession")
        self._utils = self.java("org.apache.spark.util.Utils")
        self._objects: dict[str, Any] = {}
        self.convert = self.java("scala.jdk.javaapi.CollectionConverters")

    def java(self, name: str) -> Any:
        """Returns a class of the JVM by its full name."""
        return java_class(self.spark, name)

    def object(self, name: str) -> Any:
        """Returns a Scala object of Delta. ``Class.forName`` does not find classes in jars of ``--packages``."""
        if name not in self._objects:
            self._objects[name] = self._utils.classForName(name, True, False).getField("MODULE$").get(None)
        return self._objects[name]

    def log(self, path: str) -> Any:
        """Returns the ``DeltaLog`` of a table. Makes this thread's session the active one, from which Delta reads its settings."""
        self._sessions.setActiveSession(self._session)
        return self.object("org.apache.spark.sql.delta.DeltaLog$").forTable(self._session, path)

    def _newest(self, log: Any) -> Any:
        """Returns the snapshot of a log's newest version."""
        none = self.java("scala.Option").apply(None)
        return log.update(False, none, none)

    def forget(self, path: str) -> None:
        """Makes Delta read a log again that was changed in another way than by new versions."""
        location = self.java("org.apache.hadoop.fs.Path")(path)
        self.object("org.apache.spark.sql.delta.DeltaLog$").invalidateCache(self._session, location)

    def checkpoint(self, path: str) -> None:
        """Writes a checkpoint of a table's log, and removes expired entries."""
        log = self.log(path)
        log.checkpoint(self._newest(log), self.java("scala.Option").apply(None))

    def snapshot(self, path: str) -> tuple[int, dict[str, Any], dict[str, Any]]:
        """Returns the newest version of a table, its metadata and its protocol; version -1 if there is no table."""
        snapshot = self._newest(self.log(path))
        return (
            int(snapshot.version()),
            json.loads(snapshot.metadata().json())["metaData"],
            json.loads(snapshot.protocol().json())["protocol"],
        )

    def count_files(self, path: str) -> int:
        """Returns the number of files of a table's newest version. Delta keeps it for the version."""
        return int(self._newest(self.log(path)).numOfFiles())

    def earliest_version(self, path: str) -> int:
        """Returns the first version whose entry is still in a table's log."""
        return int(self.object("org.apache.spark.sql.delta.DeltaHistoryManager$").getEarliestDeltaFile(self.log(path)))

    def commits(self, path: str, first: int, last: int | None = None) -> Iterator[tuple[int, list[dict[str, Any]]]]:
        """Yields the actions of each commit of a table from ``first`` to ``last``, inclusive; to the newest one if ``last`` is None."""
        log, none = self.log(path), self.java("scala.Option").apply(None)
        configuration = log.newDeltaHadoopConf()
        end = _LAST_VERSION if last is None else last
        files = call_fitting(log.getChangeLogFiles, (first, end, none, False), (first, end, False))  # the second: Delta 4.0
        while files.hasNext():
            commit = files.next()
            lines = str(log.store().read(commit._2(), configuration).mkString("\n"))  # one call for any number of actions
            yield int(commit._1()), [json.loads(line) for line in lines.splitlines() if line]

    def has_version(self, path: str, version: int) -> bool:
        """Returns True if a table's log can still reconstruct a version."""
        from py4j.protocol import Py4JJavaError

        log, none = self.log(path), self.java("scala.Option").apply(None)
        try:
            call_fitting(log.getSnapshotAt, (version, none, none, False), (version, none, none))  # the second: Delta 4.0
        except Py4JJavaError:
            return False
        return True

    def commit_sha256(self, path: str, version: int) -> str | None:
        """Returns the SHA-256 of the beginning of a commit's file, or None if the log no longer has the file.

        The beginning identifies a commit: it contains times and file names, which are unique.

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
                remedy="Check the storage of the table. A retry reads it again.",
                table=path,
                version=version,
            ) from error

    def files(self, path: str) -> Any:
        """Returns the data files of a table as a frame of Delta's ``AddFile``, for the JVM."""
        return self._newest(self.log(path)).allFiles().toDF()

    def write_files(
        self, frame: "DataFrame", path: str, prefix: str, is_checked: Callable[[str], bool] | None = None
    ) -> list[dict[str, Any]]:
        """Writes a frame's rows as Parquet files into a table's directory, without a Delta commit (phase 1).

        Args:
            frame: The rows.
            path: The table.
            prefix: The beginning of the files' names.
            is_checked: Returns True for the names of CHECK constraints that the rows must fulfil. None: they must fulfil all.

        Returns:
            Delta's ``add`` actions, with paths relative to the table.
        """
        # A file that was written but recorded nowhere is only recognized by this prefix. Delta's own names are bare UUIDs.
        self._session.sessionState().conf().setConfString(_FILE_PREFIX, prefix)
        transaction = self.log(path).startTransaction()
        if is_checked is not None:
            self._forget_constraints(transaction, is_checked)
        actions = transaction.writeFiles(frame._jdf)
        return [json.loads(action.json())["add"] for action in java_list(self.spark, self.convert.asJava(actions))]

    def _forget_constraints(self, transaction: Any, is_checked: Callable[[str], bool]) -> None:
        """Changes the metadata that a transaction, which is never committed, writes files with."""
        metadata = json.loads(transaction.metadata().json())["metaData"]
        before = metadata["configuration"]
        kept = {
            name: value
            for name, value in before.items()
            if not name.startswith(CONSTRAINT) or is_checked(name.removeprefix(CONSTRAINT))
        }
        if kept != before:
            actions = self.object("org.apache.spark.sql.delta.actions.Action$")
            described = canonical({"metaData": metadata | {"configuration": kept}}).decode()
            transaction.updateMetadata(actions.fromJson(described), False)

    def add_files(self, adds: Iterable[Mapping[str, Any]]) -> Any:
        """Returns Delta's objects for ``add`` actions as a Java list. One call parses all: a call for each takes longer than the commit."""
        load = self._utils.classForName
        mapper = self.object("org.apache.spark.sql.delta.util.JsonUtils$").mapper()
        add_file = load("org.apache.spark.sql.delta.actions.AddFile", True, False)
        kind = mapper.getTypeFactory().constructCollectionType(load("java.util.ArrayList", True, False), add_file)
        return mapper.readValue(canonical([dict(add) for add in adds]).decode(), kind)

    def rows_of(
        self, path: str, metadata: Mapping[str, Any], protocol: Mapping[str, Any], adds: Iterable[Mapping[str, Any]]
    ) -> Any:
        """Returns the rows of files in a table's directory that its log need not name, as a frame for the JVM.

        Args:
            path: The table.
            metadata: Metadata that the files are read with.
            protocol: Protocol of the same table.
            adds: ``add`` actions, with paths relative to the table.
        """
        log, actions, options = (
            self.log(path),
            self.object("org.apache.spark.sql.delta.actions.Action$"),
            self.java("scala.Option"),
        )
        described = actions.fromJson(canonical({"metaData": dict(metadata)}).decode())
        features = options.apply(actions.fromJson(canonical({"protocol": dict(protocol)}).decode()))
        base = log.logPath(), log, described
        snapshot = call_fitting(
            self.java("org.apache.spark.sql.delta.DummySnapshot"), (*base, options.apply(None), features), (*base, features)
        )
        files = self.convert.asScala(self.add_files(adds)).toList()
        return log.createDataFrame(snapshot, files, False, options.apply(None))

    def transaction(self, path: str, app: AppId) -> "JvmTransaction":
        """Begins a Delta transaction that is conditional on the present version of ``app`` in the table.

        It does not return that version: to look it up, Delta computes the whole state of the table with every file.

        Further commits of this session write no ``.crc`` file. Readers take the versions of app ids from it, and it would still list a
        publication after another writer has replaced its commit.
        """
        self._session.sessionState().conf().setConfString(_WRITE_CHECKSUM, "false")
        return JvmTransaction(self, path, app)


class JvmTransaction:
    """A Delta transaction of Spark that is not committed yet. Its commit writes no checkpoint of the log."""

    def __init__(self, delta: DeltaJvm, path: str, app: AppId) -> None:
        self._delta, self._app = delta, app
        self._transaction = delta.log(path).startTransaction()
        # Reading the app id makes a concurrent publication of the same app id a conflict.
        self._transaction.readTxn().addOne(app)
        # Otherwise every tenth commit would also write a checkpoint of the log, which reads the list of all files.
        self._transaction.postCommitHooks().subtractOne(delta.object("org.apache.spark.sql.delta.hooks.CheckpointHook$"))

    @property
    def read_version(self) -> int:
        """Returns the Delta version that the transaction is conditional on."""
        return int(self._transaction.readVersion())

    @property
    def table_id(self) -> str:
        """Returns the id of the table that the transaction has read."""
        return str(self._transaction.metadata().id())

    @property
    def newest_commit(self) -> tuple[int, int | None]:
        """Returns the time of the commit that the transaction has read, in ms, and its size.

        The size is None if that version has a checkpoint.
        """
        segment = self._transaction.snapshot().logSegment()
        deltas = segment.deltas()
        size_bytes = None if deltas.isEmpty() else int(deltas.last().getLen())
        return int(segment.lastCommitFileModificationTimestamp()), size_bytes

    def stored_commit(self) -> tuple[int, int] | None:
        """Returns what :attr:`newest_commit` would be if the log was read now; None if it does not have that version any more."""
        from py4j.protocol import Py4JJavaError

        log = self._transaction.deltaLog()
        file = self._delta.java("org.apache.hadoop.fs.Path")(log.logPath(), commit_name(self.read_version))
        try:
            found = file.getFileSystem(log.newDeltaHadoopConf()).getFileStatus(file)
        except Py4JJavaError as error:
            if "java.io.FileNotFoundException" in java_class_names(error.java_exception):
                return None
            raise
        return int(found.getModificationTime()), int(found.getLen())

    def commit(
        self, adds: Iterable[Mapping[str, Any]], version: CheckpointId, commit_info: Mapping[str, Any], *, replace: bool
    ) -> None:
        """Commits ``adds`` and ``SetTransaction(app, version)`` in one Delta transaction.

        Args:
            adds: Delta's ``add`` actions.
            version: New version of the app id.
            commit_info: Written as JSON to ``userMetadata`` of the commit info.
            replace: Remove all present files in the same transaction. Then every other commit is a conflict.
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
    """Returns the JVM's exceptions behind an error, the outermost first; empty if it does not come from the JVM."""
    found: list[Any] = []
    java: Any = getattr(error, "java_exception", None) or getattr(error, "_origin", None)
    while java is not None:
        found.append(java)
        java = java.getCause()
    return found


def java_class_names(exception: Any) -> set[str]:
    """Returns the class names of a JVM exception and of its superclasses."""
    found, kind = set(), exception.getClass()
    while kind is not None:
        found.add(str(kind.getName()))
        kind = kind.getSuperclass()
    return found


def java_message(error: Exception) -> str:
    """Returns the innermost message of an error that may come from the JVM, without stack traces."""
    causes = java_causes(error)
    return str(causes[-1].getMessage() or causes[-1].toString() if causes else error).strip()
