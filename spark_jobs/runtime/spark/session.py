"""The Spark session of a driver, and what of the JVM is reached through it.

The versions of Spark differ: see :mod:`~spark_jobs.runtime.spark.spark_facts`.
"""

import json
import os
import re
import shutil
import subprocess
import sys
import threading
import traceback
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

from pyspark import SparkConf, SparkContext
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from spark_jobs.api.parameters import environment_mask
from spark_jobs.protocol.codec import sha256
from spark_jobs.protocol.errors import MissingRequirementError, RejectedError, StorageError
from spark_jobs.protocol.spark_settings import REDACTED, shown_settings
from spark_jobs.publication.delta_jvm import java_class
from spark_jobs.runtime.spark.class_archive import archive_path, using
from spark_jobs.runtime.spark.delta_jars import DeltaJars
from spark_jobs.runtime.spark.spark_facts import SPARK_MINOR, check_own_spark, checkpoint_class
from spark_jobs.runtime.spark.starting import ended_unless_started
from spark_jobs.storage.object_store_settings import S3_FILE_SYSTEM, ObjectStoreSettings

JAVA_MIN = 17
REQUIRED_SETTINGS: Mapping[str, str] = {
    "spark.sql.streaming.stateStore.providerClass": "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider",
    "spark.sql.streaming.stateStore.rocksdb.changelogCheckpointing.enabled": "true",
    "spark.sql.streaming.stateStore.checkpointFormatVersion": "2",
    "spark.sql.streaming.offsetLog.formatVersion": "1",
    "spark.sql.streaming.multipleWatermarkPolicy": "min",
    "spark.sql.streaming.noDataMicroBatches.enabled": "true",
    "spark.sql.streaming.fileSource.log.compactInterval": "10",
    "spark.sql.streaming.minBatchesToRetain": "100",
    "spark.sql.streaming.stateStore.rocksdb.trackTotalNumberOfRows": "true",
    "spark.sql.files.ignoreCorruptFiles": "false",
    "spark.sql.files.ignoreMissingFiles": "false",
    "spark.databricks.delta.stats.collect": "true",
}
"""What the guarantees need; set in the session that runs the stages, recorded in every manifest, and the same at every start."""
_PATHS_OF_THIS_HOST = {"fs.defaultFS": "file:///"}
"""A path without a scheme is the same for Spark as for delta-rs and for this process, also where Hadoop's own default is HDFS."""
_SCHEMA_LOGS = {"spark.databricks.delta.streaming.schemaTracking.metadataPathCheck.enabled": "false"}
"""Schema logs of Delta's streams are written by the runtime, at each start, and belong to no other place than where they are."""
CHECKPOINT_FILES = "spark.sql.streaming.checkpointFileManagerClass"
"""How Spark writes offsets, commits and state. Where nobody sets it, Spark starts several processes for each file, to see whether a name
is a link. In a directory, which a home is, this class writes the same files with the same rename, and asks nobody. Unlike the other it
refuses a file that does not fit the checksum beside it: see :mod:`~spark_jobs.storage.checksums`."""
_IN_DIRECTORIES = "FileSystemBasedCheckpointFileManager"
_DELTA = {
    "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
    "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
}
_DEFAULTS = {
    "spark.ui.showConsoleProgress": "false",
    "spark.databricks.delta.snapshotPartitions": "2",
    "spark.sql.streaming.metricsEnabled": "false",
    "spark.log.level": "ERROR",
    "spark.scheduler.mode": "FAIR",
    "spark.redaction.regex": REDACTED,
}
SHUFFLE_PARTITIONS = "spark.sql.shuffle.partitions"
"""Where Spark takes from in how many partitions a new query keeps its state; an old one goes on with what its log says."""
_POOL = "spark.scheduler.pool"
_PATH = "org.apache.hadoop.fs.Path"
_CATALOG, _FORGETS = "spark.sql.catalogImplementation", "in-memory"
_SUBMITTED_DEFAULTS = {
    key: value for key, value in _DEFAULTS.items() if key.startswith(("spark.databricks.", "spark.sql.", "spark.redaction."))
}
"""How much a cluster's driver logs is for whoever has set up the cluster to say."""


def check_java() -> str:
    """The version of the Java that Spark will use, such as ``17.0.2``.

    Raises:
        MissingRequirementError: There is none, or it is too old.
    """
    home = os.environ.get("JAVA_HOME")
    java = os.path.join(home, "bin", "java") if home else shutil.which("java")
    remedy = f"Install a JDK {JAVA_MIN} or newer, or set JAVA_HOME to one."
    if java is None or not os.path.exists(java):
        where = f"JAVA_HOME is {home}, but there is no bin/java in it" if home else "there is no java on the PATH"
        raise MissingRequirementError(f"Spark needs Java {JAVA_MIN} or newer, and {where}.", remedy=remedy)
    answer = subprocess.run([java, "-version"], capture_output=True, text=True, check=False).stderr
    match = re.search(r'version "((?:1\.)?(\d+)[^"]*)"', answer)
    if match is None or int(match.group(2)) < JAVA_MIN:
        found = match.group(0) if match else "no version"
        raise MissingRequirementError(f"Spark needs Java {JAVA_MIN} or newer; {java} answers {found}.", remedy=remedy, java=java)
    return match.group(1)


def start_session(
    app_name: str,
    conf: Mapping[str, str],
    *,
    packages: Sequence[str] = (),
    jars: Sequence[str] = (),
    py_files: Sequence[str] = (),
    driver_memory: str | None = None,
) -> SparkSession:
    """A new Spark session with Delta, for a driver of ours.

    Args:
        app_name: Shown in Spark's UI.
        conf: The user's settings; they win over our defaults, never over what a guarantee needs.
        packages: Maven coordinates to add to Delta's.
        jars: Jar files to add.
        py_files: Python files for the executors.
        driver_memory: Such as ``4g``.

    Raises:
        MissingRequirementError: Java or Delta's jars are missing, or Delta has none for this Spark.
        RejectedError: The settings name another object store than the environment.
    """
    check_own_spark()
    java = check_java()
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)  # else workers run the first python3 on the PATH
    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    from delta import configure_spark_with_delta_pip

    master = conf.get("spark.master", os.environ.get("MASTER", "local[*]"))
    settings = (
        _DEFAULTS
        | {"spark.master": master, "spark.app.name": app_name}
        | _shuffle_partitions(master)
        | ObjectStoreSettings.of(os.environ).for_spark(conf)
        | dict(conf)
        | _DELTA
    )
    if driver_memory:
        settings["spark.driver.memory"] = driver_memory
    for key, files in (("spark.jars", jars), ("spark.submit.pyFiles", py_files)):
        if files:
            settings[key] = ",".join(files)
    delta_jars = DeltaJars(settings, packages)
    known = delta_jars.setting()
    if known is not None:
        settings["spark.jars"] = known
    builder = SparkSession.Builder()
    for key, value in (settings | dict(REQUIRED_SETTINGS) | _PATHS_OF_THIS_HOST).items():
        builder = builder.config(key, value)
    try:
        with ended_unless_started(), using(archive_path(java)):
            if known is not None:
                return _with_s3(_started(builder))
            session = _with_s3(_started(configure_spark_with_delta_pip(builder, extra_packages=list(packages))))
    except Exception as error:  # Spark reports a failed start by whatever it met: a process edge
        raise MissingRequirementError(
            f"Spark did not start: {str(error).strip().splitlines()[0]}.",
            remedy="The lines above say why. Delta's jars, of the version of the package delta-spark, are fetched once; that needs "
            "a Maven repository that has them, or --jars.",
        ) from error
    delta_jars.remember(session.sparkContext.getConf().get("spark.jars") or "")
    return session


def _started(builder: SparkSession.Builder) -> SparkSession:
    """Starts the JVM with the settings that may be on its command line; the others reach it through the gateway."""
    if SparkContext._gateway is None:
        mask, given = environment_mask(), {key: str(value) for key, value in builder._options.items()}
        SparkContext._ensure_initialized(
            conf=SparkConf().setAll([(key, value) for key, value in shown_settings(given).items() if mask(value) == value])
        )
    return builder.getOrCreate()


def submitted_session(app_name: str, conf: Mapping[str, str], warehouse: str) -> SparkSession:
    """The session of the Spark that ``spark-submit`` has started for this process.

    Args:
        app_name: Shown in Spark's UI, unless ``spark-submit`` was given a name.
        conf: The user's settings; what ``spark-submit`` was given wins over them.
        warehouse: The directory that a Spark without a metastore makes, although nothing is put there.

    Raises:
        RejectedError: ``spark-submit`` was given a setting that a guarantee needs otherwise, or that names another object store than the
            environment.
        MissingRequirementError: Spark does not start, or Delta's jars were not given to ``spark-submit``.
    """
    check_own_spark()
    submitted = dict(SparkConf().getAll())
    for key, value in REQUIRED_SETTINGS.items():
        if submitted.get(key, value) != value:
            raise RejectedError(
                f"spark-submit was given {key} = {submitted[key]}, and a guarantee needs {value}.",
                safe="Nothing was started.",
                remedy="Remove it from the command and from spark-defaults.conf.",
                setting=key,
            )
    builder = SparkSession.Builder()
    given = dict(conf) | submitted
    aside = {"spark.sql.warehouse.dir": warehouse} if given.get(_CATALOG, _FORGETS) == _FORGETS else {}
    stores = ObjectStoreSettings.of(os.environ).for_spark(given)
    for key, value in (
        _SUBMITTED_DEFAULTS | _PATHS_OF_THIS_HOST | aside | {"spark.app.name": app_name} | stores | dict(conf) | _DELTA
    ).items():
        if key not in submitted:
            builder = builder.config(key, value)
    try:
        session = builder.getOrCreate()
        session.catalog.databaseExists("default")  # loads Delta's catalog; getOrCreate alone does not miss it
        _with_s3(session)
    except Exception as error:  # Spark reports a failed start by whatever it met: a process edge
        lines = str(error).strip().splitlines()
        reason = next((line.lstrip(": ") for line in lines if "Exception: " in line), lines[0])
        raise MissingRequirementError(
            f"Spark with Delta did not start: {reason}",
            safe="Nothing was started.",
            remedy=f"Give spark-submit Delta's jars: --packages io.delta:delta-spark_{SPARK_MINOR}_2.13:VERSION.",
        ) from error
    return session


def _with_s3(session: SparkSession) -> SparkSession:
    """Gives ``s3:`` the file system of ``s3a:``, unless the cluster has another one for it: they are one place in two spellings."""
    java_context: Any = session.sparkContext._jsc
    java_context.hadoopConfiguration().setIfUnset("fs.s3.impl", S3_FILE_SYSTEM)
    return session


def _shuffle_partitions(master: str) -> dict[str, str]:
    """On one host as many state partitions as cores: a stage's state keeps the number for ever, and each costs a task a batch."""
    cores = re.fullmatch(r"local(?:\[(\d+|\*)(?:,\d+)?\])?", master)
    if cores is None:
        return {}
    number = cores.group(1) or "1"
    return {SHUFFLE_PARTITIONS: str(os.cpu_count() or 1) if number == "*" else number}


def ship_modules(spark: SparkSession, archive: Path) -> None:
    """Makes the modules of a ZIP file importable in Spark's Python workers, unpacked: some read files that lie beside their code."""
    directory = f"{archive.stem}-{sha256(archive.read_bytes())[:12]}"
    context: Any = spark.sparkContext
    context.addArchive(f"{archive}#{directory}")
    if directory not in context._python_includes:
        context._python_includes.append(directory)


def end_jvm(timeout_s: float) -> None:
    """Ends the JVM that this process has started, with its application; Spark keeps it until the interpreter exits. Idempotent.

    Raises:
        subprocess.TimeoutExpired: The JVM has not ended in time.
    """
    gateway: Any = SparkContext._gateway
    if gateway is None or gateway.proc.poll() is not None:
        return
    if SparkContext._active_spark_context is not None:
        SparkContext._active_spark_context.stop()
    gateway.shutdown()
    gateway.proc.stdin.close()
    gateway.proc.wait(timeout_s)


def session_for_run(spark: SparkSession) -> SparkSession:
    """A session of the same application with the settings that the guarantees need; the given one stays as it is.

    Its queries write their checkpoints as :data:`CHECKPOINT_FILES` says, unless somebody has set that.

    Raises:
        RejectedError: It is a Spark Connect session, or has no Delta.
        MissingRequirementError: It is of a Spark for which Delta has no jars.
    """
    check_own_spark()
    if not hasattr(spark, "_jsparkSession"):
        raise RejectedError(
            "Spark Connect sessions cannot run a pipeline: staging needs Delta's transaction classes in the driver.",
            safe="Nothing was started.",
            remedy="Use a classic session (SparkSession.builder.master(...)), or spark-jobs run.",
        )
    for key, value in _DELTA.items():
        if value not in (spark.conf.get(key, "") or "").split(","):
            raise RejectedError(
                f"The Spark session has no Delta Lake: {key} is {spark.conf.get(key, '')!r}.",
                safe="Nothing was started.",
                remedy=f"Build it with delta.configure_spark_with_delta_pip and {key}={value}.",
            )
    own = SparkSession(_with_s3(spark).sparkContext, spark._jsparkSession.cloneSession())
    for key, value in (dict(REQUIRED_SETTINGS) | _PATHS_OF_THIS_HOST | _SCHEMA_LOGS).items():
        own.conf.set(key, value)
    if own.conf.get(CHECKPOINT_FILES, None) is None:
        own.conf.set(CHECKPOINT_FILES, str(checkpoint_class(spark, _IN_DIRECTORIES).getName()))
    return own


_FUNCTIONS = threading.RLock()
"""Held while a function of the user's is called: PySpark keeps one session for a whole process."""


@contextmanager
def as_active(session: SparkSession) -> Iterator[None]:
    """Makes a session the one that ``SparkSession.getActiveSession()`` and ``SparkSession.builder.getOrCreate()`` find."""
    kept: Any = SparkSession
    sessions = java_class(session, "org.apache.spark.sql.classic.SparkSession")
    with _FUNCTIONS:
        before = sessions.getActiveSession(), kept._activeSession, kept._instantiatedSession
        sessions.setActiveSession(session._jsparkSession)
        kept._activeSession = kept._instantiatedSession = session
        try:
            yield
        finally:
            active, kept._activeSession, kept._instantiatedSession = before
            if active.isDefined():
                sessions.setActiveSession(active.get())
            else:
                sessions.clearActiveSession()


@contextmanager
def publications_of(spark: SparkSession) -> Iterator[None]:
    """Lets the jobs of this thread share the cores with those of the stages while the context is open, where Spark schedules fairly.

    Else a MERGE of many tasks would hold up each small batch, and with it the next checkpoint, until the last of them has begun.
    """
    context = spark.sparkContext
    context.setLocalProperty(_POOL, "publications")
    try:
        yield
    finally:
        context.setLocalProperty(_POOL, None)  # type: ignore[arg-type]


def spark_failures() -> tuple[type[Exception], ...]:
    """What is raised where a job of Spark fails."""
    from py4j.protocol import Py4JJavaError

    return Py4JJavaError, PySparkException


def is_wrong_call(error: BaseException) -> bool:
    """Tells whether the JVM has no method for the arguments of a call, such as ``F.col(3)``."""
    from py4j.protocol import Py4JError

    return type(error) is Py4JError


def jvm_has_ended(error: BaseException) -> bool:
    """Returns whether a call failed because the JVM is not there any more. A connection of the user's own is another matter."""
    from py4j.protocol import Py4JNetworkError

    if isinstance(error, ConnectionError):
        return any("py4j" in Path(frame.f_code.co_filename).parts for frame, _ in traceback.walk_tb(error.__traceback__))
    return isinstance(error, Py4JNetworkError)


def cancel_for_good(context: SparkContext, group: str) -> None:
    """Cancels the jobs of a group, also those that it has not begun yet; the group's name must not be used again."""
    java_context: Any = context._jsc
    java_context.sc().cancelJobGroupAndFutureJobs(group)


def application_has_ended(spark: SparkSession) -> bool:
    """Whether Spark's application, or its JVM, is not there any more."""
    from py4j.protocol import Py4JError

    try:
        return bool(spark.sparkContext._jsc.sc().isStopped())
    except (Py4JError, ConnectionError, AttributeError):
        return True


class QuietQueries:
    """Keeps Spark from logging how queries end while somebody ends them; any number of threads at once.

    Spark logs a batch that was turned away as it logs every exception: as an error, with a page of Python's and Java's calls. A stage
    that has really failed says so itself.
    """

    _LOGGER = "org.apache.spark.sql.execution.streaming"
    _lock = threading.Lock()
    _users = 0
    _level: Any = None

    @classmethod
    @contextmanager
    def during(cls, spark: SparkSession) -> Iterator[None]:
        """Until the context closes. Where the JVM has ended, or logs in another way, nothing changes."""
        cls._count(spark, 1)
        try:
            yield
        finally:
            cls._count(spark, -1)

    @classmethod
    def _count(cls, spark: SparkSession, more: int) -> None:
        from py4j.protocol import Py4JError

        with cls._lock:
            cls._users += more
            with suppress(Py4JError, ConnectionError):
                if cls._users == more == 1:
                    cls._level = java_class(spark, "org.apache.logging.log4j.LogManager").getLogger(cls._LOGGER).getLevel()
                    cls._set(spark, java_class(spark, "org.apache.logging.log4j.Level").OFF)
                elif cls._users == 0:
                    cls._set(spark, cls._level)

    @classmethod
    def _set(cls, spark: SparkSession, level: Any) -> None:
        java_class(spark, "org.apache.logging.log4j.core.config.Configurator").setLevel(cls._LOGGER, level)


def has_settings(spark: SparkSession, beginning: str) -> bool:
    """Returns whether the session has a setting whose name begins so."""
    java: Any = spark._jsparkSession
    names = str(java.sessionState().conf().getAllConfs().keys().mkString("\n"))  # one call, however many there are
    return any(name.startswith(beginning) for name in names.splitlines())


def has_class(spark: SparkSession, name: str) -> bool:
    """Returns whether the application's jars have a class."""
    from py4j.protocol import Py4JJavaError

    try:
        java_class(spark, "org.apache.spark.util.Utils").classForName(name, False, False)
    except Py4JJavaError:
        return False
    return True


def hadoop_version(spark: SparkSession) -> str:
    """Returns the version of the Hadoop that Spark runs with, such as ``3.5.0``."""
    return str(java_class(spark, "org.apache.hadoop.util.VersionInfo").getVersion())


class WorkLock:
    """The JVM's lock on a home's work directory: whoever holds it is the only one that runs stages there.

    It is held by the JVM because a JVM can outlive its killed Python process and finish a batch.
    """

    def __init__(self, spark: SparkSession, path: str) -> None:
        self._file = java_class(spark, "java.io.RandomAccessFile")(path, "rw")
        self._lock: Any = None

    def try_lock(self) -> bool:
        """Whether the lock is ours now."""
        from py4j.protocol import Py4JJavaError

        try:
            self._lock = self._file.getChannel().tryLock()
        except Py4JJavaError as error:
            if "OverlappingFileLockException" not in str(error.java_exception):
                raise
            self._lock = None
        return self._lock is not None

    def release(self) -> None:
        """Gives the lock back; idempotent."""
        self._file.close()


def table_location(spark: SparkSession, name: str) -> str | None:
    """Where the Delta table of this name in the catalog is; None where it is not a Delta table."""
    rows = spark.sql(f"DESCRIBE TABLE EXTENDED {name}").collect()
    facts = {row["col_name"]: row["data_type"] for row in rows}
    return facts.get("Location") if facts.get("Provider", "").lower() == "delta" else None


def default_location(spark: SparkSession, name: str) -> str | None:
    """Where Spark's own catalog would put a new table of this name; None where the name is another catalog's.

    Raises:
        RejectedError: The catalog forgets its tables when Spark ends.
    """
    *schema, table = name.split(".")
    if schema[:-1] not in ([], ["spark_catalog"]):
        return None
    if spark.conf.get(_CATALOG) == _FORGETS:
        raise RejectedError(
            f"Table {name} is not there, and this Spark's catalog forgets what is made in it when Spark ends.",
            safe="Nothing was written.",
            remedy="Give the sink a path, or Spark a metastore (spark.sql.catalogImplementation=hive).",
            table=name,
        )
    database = java_class(spark, "scala.Option").apply(schema[-1] if schema else spark.catalog.currentDatabase())
    identifier = java_class(spark, "org.apache.spark.sql.catalyst.TableIdentifier")(table, database)
    session: Any = spark._jsparkSession
    return str(session.sessionState().catalog().defaultTablePath(identifier).getPath())


def file_statuses(spark: SparkSession, paths: Iterable[str]) -> dict[str, tuple[int, int] | None]:
    """The modification time in milliseconds and the size in bytes of files, as Spark's file source sees them; None of one that is gone.

    Args:
        spark: The session.
        paths: URLs, as Spark's file source writes them into its log.
    """
    return {path: _local_status(path) if path.startswith("file:") else _file_status(spark, path) for path in paths}


def _local_status(path: str) -> tuple[int, int] | None:
    """Without the JVM: a folder may have a million files, and each call of it takes a millisecond."""
    try:
        found = os.stat(unquote(urlsplit(path).path))
    except (FileNotFoundError, NotADirectoryError):
        return None
    return found.st_mtime_ns // 1_000_000, found.st_size


def _file_status(spark: SparkSession, path: str) -> tuple[int, int] | None:
    from py4j.protocol import Py4JJavaError

    try:
        location, files = _located(spark, java_class(spark, "java.net.URI")(path))
        status = files.getFileStatus(location)
    except Py4JJavaError as error:
        if "FileNotFoundException" not in str(error.java_exception):
            raise
        return None
    return int(status.getModificationTime()), int(status.getLen())


class FileBeginnings:
    """Reads the first bytes of files, decompressed as Spark does it by their names."""

    def __init__(self, spark: SparkSession) -> None:
        java_context: Any = spark.sparkContext._jsc
        configuration = java_context.hadoopConfiguration()
        self._spark = spark
        self._codecs = java_class(spark, "org.apache.hadoop.io.compress.CompressionCodecFactory")(configuration)
        self._known: dict[str, Any] = {}
        """By the ending of a name how the file is compressed; None where it is not."""

    def read(self, url: str, size_bytes: int) -> bytes:
        """Returns the first bytes of a file; fewer if it has no more.

        Args:
            url: The file, as Spark's file source writes it into its log.
            size_bytes: How many.
        """
        ending = os.path.splitext(url)[1]
        if ending not in self._known:
            self._known[ending] = self._codecs.getCodec(java_class(self._spark, _PATH)(f"/name{ending}"))
        codec = self._known[ending]
        if codec is None and url.startswith("file:"):  # without the JVM, as in file_statuses
            with open(unquote(urlsplit(url).path), "rb") as file:
                return file.read(size_bytes)
        location, files = _located(self._spark, java_class(self._spark, "java.net.URI")(url))
        stream = files.open(location)
        try:
            return bytes((stream if codec is None else codec.createInputStream(stream)).readNBytes(size_bytes))
        finally:
            stream.close()


def delete_file(spark: SparkSession, url: str) -> None:
    """Deletes a file, through Hadoop's file system; a missing one is a success."""
    location, files = _located(spark, java_class(spark, "java.net.URI")(url))
    files.delete(location, False)


def move_file(spark: SparkSession, url: str, target: str, timestamp_ms: int) -> None:
    """Moves a file, through Hadoop's file systems, which may be two. May be repeated after a crash.

    Args:
        spark: The session.
        url: The file.
        target: Where it goes. Another file that is there stays: then the name gets the time of the file that is moved.
        timestamp_ms: When the file was changed.
    """
    location, files = _located(spark, java_class(spark, "java.net.URI")(url))
    moved, archive = _located(spark, target)
    if archive.exists(moved):
        moved = java_class(spark, _PATH)(moved.getParent(), f"{moved.getName()}.{timestamp_ms}")
    archive.mkdirs(moved.getParent())
    if files.getUri().equals(archive.getUri()):
        done = files.rename(location, moved)
    else:
        configuration: Any = spark.sparkContext._jsc
        part = java_class(spark, _PATH)(moved.getParent(), f".{moved.getName()}.part")
        utilities = java_class(spark, "org.apache.hadoop.fs.FileUtil")
        utilities.copy(files, location, archive, part, False, True, configuration.hadoopConfiguration())
        done = archive.rename(part, moved) and files.delete(location, False)
    if not done:
        raise StorageError(
            f"{url} was not moved to {moved.toString()}.",
            safe="It is where it was.",
            remedy="See whether the directory can be written; the next run tries again.",
            path=url,
        )


def _located(spark: SparkSession, place: Any) -> tuple[Any, Any]:
    """A path, and its file system."""
    java_context: Any = spark.sparkContext._jsc
    location = java_class(spark, _PATH)(place)
    return location, location.getFileSystem(java_context.hadoopConfiguration())


def qualified_path(spark: SparkSession, path: str) -> str:
    """A path as Spark's file source writes it into its log: absolute, a URL, with escapes."""
    location, files = _located(spark, path)
    qualified = files.makeQualified(location).toUri()
    return str(java_class(spark, "org.apache.spark.paths.SparkPath").fromUri(qualified).urlEncoded())


def offset_log_header(spark: SparkSession, timestamp_ms: int) -> dict[str, Any]:
    """What Spark would write before the offsets of a first batch: no watermark, and the settings that its state depends on."""
    metadata = checkpoint_class(spark, "OffsetSeqMetadata$").getField("MODULE$").get(None)
    header: dict[str, Any] = json.loads(metadata.apply(0, timestamp_ms, spark._jsparkSession.conf()).json())
    conf = {key: spark.conf.get(key, None) if value is None else value for key, value in header["conf"].items()}
    return header | {"conf": conf}
