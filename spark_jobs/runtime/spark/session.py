"""The Spark session of a driver, and the parts of the JVM that are used through it.

:mod:`~spark_jobs.runtime.spark.spark_facts` has the differences between versions of Spark.
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

from py4j.clientserver import ClientServer
from pyspark import SparkConf, SparkContext
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from spark_jobs.api.parameters import environment_mask, environment_secrets
from spark_jobs.protocol.codec import sha256
from spark_jobs.protocol.errors import MissingRequirementError, RejectedError, StorageError, first_line
from spark_jobs.protocol.spark_masters import cores_of_one_jvm
from spark_jobs.protocol.spark_settings import PACKAGES, redaction, requested_packages, shown_settings
from spark_jobs.publication.delta_jvm import java_class
from spark_jobs.runtime.spark.class_archive import archive_path, using
from spark_jobs.runtime.spark.delta_jars import DeltaJars
from spark_jobs.runtime.spark.hadoop_defaults import remove_service_defaults
from spark_jobs.runtime.spark.jvm_options import SHORT_RUN, added
from spark_jobs.runtime.spark.masked_log import mask_log
from spark_jobs.runtime.spark.spark_facts import SPARK_MINOR, check_own_spark, checkpoint_class
from spark_jobs.runtime.spark.starting import ended_unless_started
from spark_jobs.storage.object_store_kinds import spark_client_settings
from spark_jobs.storage.s3_settings import S3Settings

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
"""The settings that the guarantees need.

They are set in the session of the stages, recorded in every manifest, and equal at every start.
"""
_PATHS_OF_THIS_HOST = {"fs.defaultFS": "file:///"}
"""The default file system. A path without a scheme is local for Spark, delta-rs and this process, even if Hadoop's default is HDFS."""
_SCHEMA_LOGS = {"spark.databricks.delta.streaming.schemaTracking.metadataPathCheck.enabled": "false"}
"""Lets schema logs of Delta's streams be anywhere. The runtime writes them at each start, and they belong to no other place."""
CHECKPOINT_FILES = "spark.sql.streaming.checkpointFileManagerClass"
"""The class with which Spark writes offsets, commits and state.

By default Spark starts several processes per file to check whether a name is a link. In a directory, this class writes the same files with
the same rename and without processes. It also refuses a file that does not match its checksum: see
:mod:`~spark_jobs.storage.checksums`.
"""
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
}
SHUFFLE_PARTITIONS = "spark.sql.shuffle.partitions"
"""The setting for the number of state partitions of a new query. An old query keeps the number in its log."""
_REDACTION = "spark.redaction.regex"
_POOL = "spark.scheduler.pool"
_PATH = "org.apache.hadoop.fs.Path"
SPARK_CATALOG = "spark_catalog"
"""The name of Spark's own catalog."""
_CATALOG, _FORGETS = "spark.sql.catalogImplementation", "in-memory"
_SUBMITTED_DEFAULTS = {key: value for key, value in _DEFAULTS.items() if key.startswith(("spark.databricks.", "spark.sql."))}
"""The defaults that also hold under ``spark-submit``. The administrator of a cluster decides about its drivers' logs and scheduler."""


def check_java() -> str:
    """Returns the version of the Java that Spark will use, such as ``17.0.2``.

    Raises:
        MissingRequirementError: Java is missing or too old.
    """
    home = os.environ.get("JAVA_HOME")
    java = os.path.join(home, "bin", "java") if home else shutil.which("java")
    remedy = f"Install a JDK {JAVA_MIN} or newer, or set JAVA_HOME to one."
    if java is None or not os.path.exists(java):
        where = f"JAVA_HOME is {home}, which has no bin/java" if home else "there is no java on the PATH"
        raise MissingRequirementError(f"Spark needs Java {JAVA_MIN} or newer, but {where}.", remedy=remedy)
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
    for_a_short_run: bool = False,
) -> SparkSession:
    """Starts a new Spark session with Delta for a driver.

    Args:
        app_name: Name in Spark's UI.
        conf: The user's settings. They override defaults, but not settings that a guarantee needs.
        packages: Maven coordinates in addition to Delta's.
        jars: Jar files to add.
        py_files: Python files for the executors.
        driver_memory: Memory of the driver, such as ``4g``.
        for_a_short_run: True for a JVM with the options of a short run, unless executors have JVMs of their own.

    Raises:
        MissingRequirementError: Java or Delta's jars are missing, or Delta has no jars for this Spark.
        RejectedError: The settings name another object store than the environment.
    """
    check_own_spark()
    java = check_java()
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)  # otherwise workers run the first python3 on the PATH
    from delta import configure_spark_with_delta_pip

    master = conf.get("spark.master", os.environ.get("MASTER", "local[*]"))
    is_one_jvm = cores_of_one_jvm(master) is not None
    if is_one_jvm:
        os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")  # executors on other hosts could not reach this address
    settings = (
        _DEFAULTS
        | {"spark.master": master, "spark.app.name": app_name}
        | _shuffle_partitions(master)
        | spark_client_settings(os.environ, conf)
        | {_REDACTION: redaction(conf)}
        | dict(conf)
        | _DELTA
    )
    if driver_memory:
        settings["spark.driver.memory"] = driver_memory
    for key, files in (("spark.jars", jars), ("spark.submit.pyFiles", py_files)):
        if files:
            settings[key] = ",".join(files)
    wanted, without_delta = requested_packages(conf, packages)
    delta_jars = DeltaJars(settings, packages)
    known = delta_jars.setting()
    if known is not None:
        settings["spark.jars"] = known
    builder = SparkSession.Builder()
    for key, value in (settings | dict(REQUIRED_SETTINGS) | _PATHS_OF_THIS_HOST).items():
        builder = builder.config(key, value)
    quickly = for_a_short_run and is_one_jvm
    try:
        with ended_unless_started(), using(archive_path(java)), added(SHORT_RUN if quickly else ""):
            if known is None and without_delta:
                builder = configure_spark_with_delta_pip(builder, extra_packages=wanted)
            elif wanted:
                builder = builder.config(PACKAGES, ",".join(wanted))
            session = with_s3(_started(builder))
            if is_one_jvm:
                context: Any = session.sparkContext._jsc
                remove_service_defaults(session, context.hadoopConfiguration())
    except Exception as error:  # Spark reports a failed start with any exception
        raise MissingRequirementError(
            f"Spark did not start: {first_line(error)}.",
            remedy="The lines above give the reason. Delta's jars for the installed delta-spark are fetched once. This needs "
            "a Maven repository that has them, or --jars.",
        ) from error
    if known is None:
        delta_jars.remember(session.sparkContext.getConf().get("spark.jars") or "")
    return session


def _started(builder: SparkSession.Builder) -> SparkSession:
    """Starts the JVM with the settings that may be on its command line. All others reach it through the gateway."""
    if SparkContext._gateway is None:
        mask, given = environment_mask(), {key: str(value) for key, value in builder._options.items()}
        SparkContext._ensure_initialized(
            conf=SparkConf().setAll([(key, value) for key, value in shown_settings(given).items() if mask(value) == value])
        )
    return builder.getOrCreate()


def submitted_session(app_name: str, conf: Mapping[str, str], warehouse: str) -> SparkSession:
    """Returns the session of the Spark that ``spark-submit`` has started for this process.

    Args:
        app_name: Name in Spark's UI, unless ``spark-submit`` was given one.
        conf: The user's settings. Those of ``spark-submit`` override them.
        warehouse: Directory that a Spark without a metastore creates, although it stays empty.

    Raises:
        RejectedError: ``spark-submit`` was given a setting that breaks a guarantee, or that names another object store than the
            environment.
        MissingRequirementError: Spark does not start, or Delta's jars were not given to ``spark-submit``.
    """
    check_own_spark()
    submitted = dict(SparkConf().getAll())
    for key, value in REQUIRED_SETTINGS.items():
        if submitted.get(key, value) != value:
            raise RejectedError(
                f"spark-submit was given {key} = {submitted[key]}, but a guarantee needs {value}.",
                remedy="Remove it from the command and from spark-defaults.conf.",
                setting=key,
            )
    builder = SparkSession.Builder()
    given = dict(conf) | submitted
    aside = {"spark.sql.warehouse.dir": warehouse} if given.get(_CATALOG, _FORGETS) == _FORGETS else {}
    stores = spark_client_settings(os.environ, given)
    for key, value in (
        _SUBMITTED_DEFAULTS
        | _PATHS_OF_THIS_HOST
        | aside
        | {"spark.app.name": app_name, _REDACTION: redaction(given)}
        | stores
        | dict(conf)
        | _DELTA
    ).items():
        if key not in submitted:
            builder = builder.config(key, value)
    try:
        SparkContext._ensure_initialized()
        mask_log(SparkContext, environment_secrets())
        session = builder.getOrCreate()
        session.catalog.databaseExists("default")  # loads Delta's catalog, which getOrCreate alone does not
        with_s3(session)
    except Exception as error:  # Spark reports a failed start with any exception
        lines = str(error).strip().splitlines()
        reason = next((line.lstrip(": ") for line in lines if "Exception: " in line), lines[0])
        raise MissingRequirementError(
            f"Spark with Delta did not start: {reason}",
            remedy=f"Give spark-submit Delta's jars: --packages io.delta:delta-spark_{SPARK_MINOR}_2.13:VERSION.",
        ) from error
    return session


def with_s3(session: SparkSession) -> SparkSession:
    """Gives ``s3:`` the file system of ``s3a:`` unless the session has another one for it. Both schemes name the same place."""
    java_context: Any = session.sparkContext._jsc
    java_context.hadoopConfiguration().setIfUnset("fs.s3.impl", S3Settings.HADOOP_CLIENT.file_system)
    return session


def _shuffle_partitions(master: str) -> dict[str, str]:
    """Sets as many state partitions as cores on a single host. A stage keeps the number for ever, and each one costs a task per batch."""
    cores = cores_of_one_jvm(master)
    return {} if cores is None else {SHUFFLE_PARTITIONS: str(cores)}


def ship_modules(spark: SparkSession, archive: Path) -> None:
    """Makes the modules of a ZIP file importable in Spark's Python workers, unpacked: some read files next to their code."""
    directory = f"{archive.stem}-{sha256(archive.read_bytes())[:12]}"
    context: Any = spark.sparkContext
    context.addArchive(f"{archive}#{directory}")
    if directory not in context._python_includes:
        context._python_includes.append(directory)


def end_jvm(timeout_s: float) -> None:
    """Ends the JVM of this process with its application, which Spark would keep until the interpreter exits. Idempotent.

    Raises:
        subprocess.TimeoutExpired: The JVM has not ended before the timeout.
    """
    gateway: Any = SparkContext._gateway
    if gateway is None or gateway.proc.poll() is not None:
        return
    if SparkContext._active_spark_context is not None:
        SparkContext._active_spark_context.stop()
    gateway.shutdown()
    gateway.proc.stdin.close()
    gateway.proc.wait(timeout_s)


def has_class_archive(spark: SparkSession) -> bool:
    """Returns True if this host has an archive of classes for the Java of a session."""
    java: Any = spark._jvm
    return archive_path(java.System.getProperty("java.version")).is_file()


def session_with(spark: SparkSession, settings: Mapping[str, str]) -> SparkSession:
    """Returns a session of the same application with other settings. The given one is not changed."""
    own = SparkSession(spark.sparkContext, spark._jsparkSession.cloneSession())
    for key, value in settings.items():
        own.conf.set(key, value)
    return own


def session_for_run(spark: SparkSession) -> SparkSession:
    """Returns a session of the same application with the settings that the guarantees need. The given one is not changed.

    Its queries write checkpoints with :data:`CHECKPOINT_FILES` unless the user has set that.

    Raises:
        RejectedError: The session is a Spark Connect session, or has no Delta.
        MissingRequirementError: Delta has no jars for the session's Spark.
    """
    check_own_spark()
    if not hasattr(spark, "_jsparkSession"):
        raise RejectedError(
            "Spark Connect sessions cannot run a pipeline: staging needs Delta's transaction classes in the driver.",
            remedy="Use a classic session (SparkSession.builder.master(...)), or spark-jobs run.",
        )
    for key, value in _DELTA.items():
        if value not in (spark.conf.get(key, "") or "").split(","):
            raise RejectedError(
                f"The Spark session has no Delta Lake: {key} is {spark.conf.get(key, '')!r}.",
                remedy=f"Build it with delta.configure_spark_with_delta_pip and {key}={value}.",
            )
    own = session_with(with_s3(spark), dict(REQUIRED_SETTINGS) | _PATHS_OF_THIS_HOST | _SCHEMA_LOGS)
    if own.conf.get(CHECKPOINT_FILES, None) is None:
        own.conf.set(CHECKPOINT_FILES, spark_checkpoint_files(spark))
    return own


def spark_checkpoint_files(spark: SparkSession) -> str:
    """Returns the class of Spark with which queries write checkpoints, unless the user has set another one."""
    return str(checkpoint_class(spark, _IN_DIRECTORIES).getName())


_FUNCTIONS = threading.RLock()
"""Held while a function of the user is called, because PySpark keeps one active session for the whole process."""


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


def is_of_session(frame: DataFrame, session: SparkSession) -> bool:
    """Returns True if a frame was made in a session, so that its query gets the settings of that session."""
    return bool(frame.sparkSession._jsparkSession == session._jsparkSession)


@contextmanager
def with_settings(session: SparkSession, settings: Mapping[str, str]) -> Iterator[None]:
    """Lets a session analyse frames with other settings while the context is open."""
    before = {key: str(session.conf.get(key)) for key in settings}
    for key, value in settings.items():
        session.conf.set(key, value)
    try:
        yield
    finally:
        for key, value in before.items():
            session.conf.set(key, value)


@contextmanager
def publications_of(spark: SparkSession) -> Iterator[None]:
    """Lets the jobs of this thread share the cores with those of the stages while the context is open, if Spark schedules fairly.

    Otherwise a MERGE with many tasks would delay each small batch, and with it the next checkpoint, until all its tasks have started.
    """
    context = spark.sparkContext
    context.setLocalProperty(_POOL, "publications")
    try:
        yield
    finally:
        context.setLocalProperty(_POOL, None)  # type: ignore[arg-type]


def spark_failures() -> tuple[type[Exception], ...]:
    """Returns the exceptions that a failed Spark job raises."""
    from py4j.protocol import Py4JJavaError

    return Py4JJavaError, PySparkException


def is_wrong_call(error: BaseException) -> bool:
    """Returns True if the JVM has no method for the arguments of a call, such as ``F.col(3)``."""
    from py4j.protocol import Py4JError

    return type(error) is Py4JError


def jvm_has_ended(error: BaseException) -> bool:
    """Returns True if a call failed because the JVM has ended. A failed connection of the user does not count."""
    from py4j.protocol import Py4JNetworkError

    if isinstance(error, ConnectionError):
        return any("py4j" in Path(frame.f_code.co_filename).parts for frame, _ in traceback.walk_tb(error.__traceback__))
    return isinstance(error, Py4JNetworkError)


@contextmanager
def job_group(context: SparkContext, group: str, description: str) -> Iterator[None]:
    """Puts the jobs of this thread into a group while the context is open, if each Python thread has its own JVM thread.

    The thread may do other work later.
    """
    if not pins_threads(context):
        yield
        return
    java_context: Any = context._jsc
    context.setJobGroup(group, description, interruptOnCancel=True)
    try:
        yield
    finally:
        with suppress(Exception):  # the JVM has ended, and its threads with it
            java_context.sc().clearJobGroup()


def pins_threads(context: SparkContext) -> bool:
    """Returns True if each Python thread has its own JVM thread: see ``PYSPARK_PIN_THREAD``."""
    return isinstance(context._gateway, ClientServer)


def cancel_for_good(context: SparkContext, group: str) -> None:
    """Cancels the jobs of a group, including future ones. The group's name must not be used again."""
    java_context: Any = context._jsc
    java_context.sc().cancelJobGroupAndFutureJobs(group)


def application_has_ended(spark: SparkSession) -> bool:
    """Returns True if Spark's application or its JVM has ended."""
    from py4j.protocol import Py4JError

    try:
        return bool(spark.sparkContext._jsc.sc().isStopped())
    except (Py4JError, ConnectionError, AttributeError):
        return True


class QuietQueries:
    """Keeps Spark from logging the end of queries while they are being ended. Any number of threads may use it at once.

    Spark logs a cancelled batch as an error with long Python and Java stacks, as it does for every exception. A stage that has really
    failed reports that itself.
    """

    _LOGGER = "org.apache.spark.sql.execution.streaming"
    _lock = threading.Lock()
    _users = 0
    _level: Any = None

    @classmethod
    @contextmanager
    def during(cls, spark: SparkSession) -> Iterator[None]:
        """Suppresses the logs until the context closes. Does nothing if the JVM has ended or logs in another way."""
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
    """Returns True if the session has a setting whose name begins so."""
    java: Any = spark._jsparkSession
    names = str(java.sessionState().conf().getAllConfs().keys().mkString("\n"))  # one call, however many there are
    return any(name.startswith(beginning) for name in names.splitlines())


def has_class(spark: SparkSession, name: str) -> bool:
    """Returns True if the application's jars have a class."""
    from py4j.protocol import Py4JJavaError

    try:
        java_class(spark, "org.apache.spark.util.Utils").classForName(name, False, False)
    except Py4JJavaError:
        return False
    return True


def hadoop_setting(spark: SparkSession, name: str) -> str | None:
    """Returns the value of a setting of Hadoop in the application, if there is one."""
    java_context: Any = spark.sparkContext._jsc
    found: str | None = java_context.hadoopConfiguration().get(name)
    return found


def hadoop_version(spark: SparkSession) -> str:
    """Returns the version of the Hadoop that Spark runs with, such as ``3.5.0``."""
    return str(java_class(spark, "org.apache.hadoop.util.VersionInfo").getVersion())


class WorkLock:
    """The JVM's lock on a home's work directory. Only its holder runs stages there.

    The JVM holds it because a JVM can outlive its killed Python process and finish a batch.
    """

    def __init__(self, spark: SparkSession, path: str) -> None:
        self._file = java_class(spark, "java.io.RandomAccessFile")(path, "rw")
        self._lock: Any = None

    def try_lock(self) -> bool:
        """Takes the lock. Returns True if it is ours now."""
        from py4j.protocol import Py4JJavaError

        try:
            self._lock = self._file.getChannel().tryLock()
        except Py4JJavaError as error:
            if "OverlappingFileLockException" not in str(error.java_exception):
                raise
            self._lock = None
        return self._lock is not None

    def release(self) -> None:
        """Releases the lock. Idempotent."""
        self._file.close()


def table_location(spark: SparkSession, name: str) -> str | None:
    """Returns the location of the Delta table with this name in the catalog, or None for other tables."""
    rows = spark.sql(f"DESCRIBE TABLE EXTENDED {name}").collect()
    facts = {row["col_name"]: row["data_type"] for row in rows}
    return facts.get("Location") if facts.get("Provider", "").lower() == "delta" else None


def new_table(spark: SparkSession, name: str) -> tuple[str, str] | None:
    """Returns the full name and the URL that a missing table would get in Spark's own catalog. Returns None if another one creates it.

    Raises:
        RejectedError: The catalog forgets its tables when Spark ends, or does not have the schema.
    """
    *schema, table = name.split(".")
    if schema[:-1] not in ([], [SPARK_CATALOG]) or spark.catalog.currentCatalog() != SPARK_CATALOG:
        return None
    if spark.conf.get(_CATALOG) == _FORGETS:
        raise RejectedError(
            f"Table {name} does not exist, and this Spark's catalog forgets its tables when Spark ends.",
            remedy="Give Spark a metastore: --conf spark.sql.catalogImplementation=hive, or in a specification configuration: "
            "{spark.sql.catalogImplementation: hive}. Or give the sink a path.",
            table=name,
        )
    if schema and not spark.catalog.databaseExists(schema[-1]):
        raise RejectedError(
            f"Table {name} cannot be made: Spark's catalog has no schema {schema[-1]}.",
            remedy=f"Run CREATE SCHEMA {schema[-1]} in Spark with this catalog, or correct the name.",
            table=name,
        )
    database = schema[-1] if schema else spark.catalog.currentDatabase()
    there = java_class(spark, "scala.Option").apply(database)
    identifier = java_class(spark, "org.apache.spark.sql.catalyst.TableIdentifier")(table, there)
    session: Any = spark._jsparkSession
    url = session.sessionState().catalog().defaultTablePath(identifier).toString()
    return f"{SPARK_CATALOG}.{database}.{table}", str(url)


def file_statuses(spark: SparkSession, paths: Iterable[str]) -> dict[str, tuple[int, int] | None]:
    """Returns the modification times in ms and the sizes in bytes of files, as Spark's file source sees them; None for missing ones.

    Args:
        spark: The session.
        paths: URLs as in the log of Spark's file source.
    """
    return {path: _local_status(path) if path.startswith("file:") else _file_status(spark, path) for path in paths}


def _local_status(path: str) -> tuple[int, int] | None:
    """Returns the status of a local file without the JVM: a folder may have a million files, and each call takes a millisecond."""
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
    """Reads the first bytes of files, decompressed by their names as Spark does it."""

    def __init__(self, spark: SparkSession) -> None:
        java_context: Any = spark.sparkContext._jsc
        configuration = java_context.hadoopConfiguration()
        self._spark = spark
        self._codecs = java_class(spark, "org.apache.hadoop.io.compress.CompressionCodecFactory")(configuration)
        self._known: dict[str, Any] = {}
        """The compression codec by file extension; None for uncompressed files."""

    def read(self, url: str, size_bytes: int) -> bytes:
        """Returns the first bytes of a file, or the whole file if it is shorter.

        Args:
            url: URL of the file as in the log of Spark's file source.
            size_bytes: Number of bytes.
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
    """Deletes a file through Hadoop's file system. A missing one is a success."""
    location, files = _located(spark, java_class(spark, "java.net.URI")(url))
    files.delete(location, False)


def move_file(spark: SparkSession, url: str, target: str, timestamp_ms: int) -> None:
    """Moves a file, perhaps between two of Hadoop's file systems. Can be repeated after a crash.

    Args:
        spark: The session.
        url: The file.
        target: Target. If another file is there, it stays, and the new name contains the time of the moved file.
        timestamp_ms: Modification time of the file.
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
            safe="The file is in its old place.",
            remedy="Check that the directory can be written. The next run tries again.",
            path=url,
        )


def _located(spark: SparkSession, place: Any) -> tuple[Any, Any]:
    """Returns a path and its file system."""
    java_context: Any = spark.sparkContext._jsc
    location = java_class(spark, _PATH)(place)
    return location, location.getFileSystem(java_context.hadoopConfiguration())


def qualified_path(spark: SparkSession, path: str) -> str:
    """Returns a path as in the log of Spark's file source: an absolute URL with escapes."""
    location, files = _located(spark, path)
    qualified = files.makeQualified(location).toUri()
    return str(java_class(spark, "org.apache.spark.paths.SparkPath").fromUri(qualified).urlEncoded())


def offset_log_header(spark: SparkSession, timestamp_ms: int) -> dict[str, Any]:
    """Returns the header that Spark would write before the offsets of a first batch: no watermark, and the settings for its state."""
    metadata = checkpoint_class(spark, "OffsetSeqMetadata$").getField("MODULE$").get(None)
    header: dict[str, Any] = json.loads(metadata.apply(0, timestamp_ms, spark._jsparkSession.conf()).json())
    conf = {key: spark.conf.get(key, None) if value is None else value for key, value in header["conf"].items()}
    return header | {"conf": conf}
