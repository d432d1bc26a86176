"""Lets Spark commit to Delta tables in S3, by a log store whose commits are conditional writes.

Delta's own log store for S3 takes a lock inside one JVM, so it replaces the commits of other processes. This one is
``ConditionalLogStore.java``, in this directory. The module imports no PySpark: a caller with a session has imported it.
"""

from functools import partial
from threading import Lock
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit
from uuid import uuid4

from spark_jobs.background import run_all
from spark_jobs.protocol.errors import AlreadyExistsError, MissingRequirementError, RejectedError
from spark_jobs.publication.delta_jvm import DeltaJvm, java_class_names, java_message
from spark_jobs.publication.java_sources import JavaSourceError, load_java
from spark_jobs.storage.files import keeps_no_first
from spark_jobs.storage.table_uris import spark_path, table_files

if TYPE_CHECKING:
    from py4j.protocol import Py4JJavaError
    from pyspark.sql import SparkSession

LOG_STORE = "sparkjobs.ConditionalLogStore"
_SETTINGS = ("spark.delta.logStore.s3.impl", "spark.delta.logStore.s3a.impl")
_FOR_ALL = "spark.delta.logStore.class"
_TAKEN = "java.nio.file.FileAlreadyExistsException"
_CLIENT_OF_S3 = (
    "S3 needs Spark 4.1 or newer, because the client of a Hadoop before 3.4.2 creates no file conditionally, and hadoop-aws in the version "
    "of Spark's Hadoop."
)
_LINE = "a trial"
_lock = Lock()


def make_commits_conditional(spark: "SparkSession", uri: str) -> None:
    """Gives a Spark application the log store for S3, if a table is there; idempotent. Writes nothing into the store.

    Args:
        spark: A session of the application, with Delta and with Hadoop's client of S3.
        uri: The table, or its place.

    Raises:
        RejectedError: The application has another log store for S3.
        MissingRequirementError: The log store cannot be compiled here.
    """
    if urlsplit(uri).scheme != "s3":
        return
    context: Any = spark.sparkContext._jsc
    conf = context.sc().conf()
    with _lock:
        chosen = {name: str(conf.get(name)) for name in (*_SETTINGS, _FOR_ALL) if conf.contains(name)}
        for name, found in chosen.items():
            if found != LOG_STORE:
                raise RejectedError(
                    f"Spark has the log store {found} for tables in S3 ({name}).",
                    exists="This runtime and delta-rs commit by conditional writes, and another log store may replace such a commit.",
                    safe="Nothing was staged.",
                    remedy="Remove the setting: this runtime brings a log store whose commits are conditional writes.",
                    setting=name,
                )
        if chosen.keys() >= set(_SETTINGS):
            return
        try:
            load_java(spark, LOG_STORE, "spark_jobs.publication")
        except JavaSourceError as error:
            raise MissingRequirementError(
                f"The log store for tables in S3 cannot be compiled: {error}",
                safe="Nothing was staged.",
                remedy=f"Give Spark Delta's jars as packages or as jars. {_CLIENT_OF_S3}",
            ) from error
        for name in _SETTINGS:
            conf.set(name, LOG_STORE)
        logs = DeltaJvm(spark).object("org.apache.spark.sql.delta.DeltaLog$")
        logs.clearCache()  # each log keeps the store that it was opened with


def check_commits(spark: "SparkSession", uri: str, *, is_known: bool = False) -> None:
    """Lets Spark commit to a log of its own, and refuses a store that accepts the same name once more. Leaves nothing behind.

    Spark and this process each try the name again. The try of this process also shows whether Spark uses the same store.

    Args:
        spark: A session of an application that :func:`make_commits_conditional` has prepared.
        uri: A table in a store, or the place of one.
        is_known: True for a table in S3 that was tried before: the log store is the same, so Spark does not try again.

    Raises:
        MissingRequirementError: The store accepts it, or Spark cannot commit.
        RejectedError: Spark commits in another store than this process.
        StorageError: The store does not answer, or this process may not write there.
    """
    from py4j.protocol import Py4JJavaError

    delta, place = DeltaJvm(spark), table_files(uri)
    name, neighbour = (f"probe-{uuid4().hex}" for _ in range(2))
    log = delta.log(spark_path(uri))
    path = delta.java("org.apache.hadoop.fs.Path")(f"{spark_path(uri)}/{name}")

    def commit() -> None:
        lines = delta.java("java.util.Collections").singletonList(_LINE)
        log.store().write(path, delta.convert.asScala(lines.iterator()), False, log.newDeltaHadoopConf())

    def is_refused() -> bool:
        try:
            commit()
        except Py4JJavaError as error:
            if _TAKEN not in java_class_names(error.java_exception):
                raise
            return True
        return False

    try:
        if not is_known:
            place.create(neighbour, b"")  # some log stores need the directory
        commit()
        if not (is_known or is_refused()):
            raise keeps_no_first(uri, "Spark")
        try:
            place.create(name, b"")
        except AlreadyExistsError:
            return
        spark_files = path.getFileSystem(log.newDeltaHadoopConf())
        if spark_files.getFileStatus(path).getLen() == 0:
            raise keeps_no_first(uri, "this process")
        raise _commits_elsewhere(uri, is_left=not _deleted(spark_files, path))
    except Py4JJavaError as error:
        raise _cannot_commit(uri, error) from error
    finally:
        run_all([partial(place.delete, each) for each in ((name,) if is_known else (name, neighbour))])


def _deleted(spark_files: Any, path: Any) -> bool:
    from py4j.protocol import Py4JJavaError

    try:
        return bool(spark_files.delete(path, False))
    except Py4JJavaError:
        return False


def _cannot_commit(uri: str, error: "Py4JJavaError") -> MissingRequirementError:
    return MissingRequirementError(
        f"Spark cannot commit to tables in {uri}: {java_message(error)}",
        safe="Nothing was staged.",
        remedy=f"Check Spark's credentials for the store. {_CLIENT_OF_S3}",
        table=uri,
    )


def _commits_elsewhere(uri: str, *, is_left: bool) -> RejectedError:
    place = urlsplit(uri)
    endpoint = f"fs.s3a.bucket.{place.netloc}.endpoint, also" if place.scheme == "s3" else "also those"
    return RejectedError(
        f"Spark commits to tables in {uri} in another store than this process.",
        exists="Spark would stage rows in a store that is not published.",
        safe="Nothing was staged." if is_left else "Nothing was staged, and nothing was left in either store.",
        remedy=f"Remove the store's endpoint from Spark's settings ({endpoint} in core-site.xml). "
        "Name the store in the environment, or in the Airflow connection.",
        table=uri,
    )
