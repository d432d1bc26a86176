"""Tables in stores: their requirements, and the refusals before anything is staged.

Spark only writes data files into a store. Every commit of a table there is made by this runtime: it creates the log's next version, and the
store accepts only one such create. Spark's own commits on S3 have no compare-and-swap, and would silently replace other writers' commits.
"""

from collections.abc import Iterable, Mapping
from contextlib import suppress
from urllib.parse import urlsplit

from pyspark.sql import SparkSession

from spark_jobs.api.sink import Sink
from spark_jobs.home.layout import CHANNELS
from spark_jobs.protocol.documents import Publisher
from spark_jobs.protocol.errors import MissingRequirementError, NotFoundError, UnsupportedTableError
from spark_jobs.protocol.ids import SinkName
from spark_jobs.publication.delta_rs import check_publishable
from spark_jobs.runtime.spark.session import hadoop_version, has_class
from spark_jobs.runtime.tables.table_places import TablePlace
from spark_jobs.storage.files import Files
from spark_jobs.storage.object_store_settings import S3_FILE_SYSTEM
from spark_jobs.storage.open import check_create_if_absent
from spark_jobs.storage.table_uris import is_in_store, table_files, uri_of


def check_stores(spark: SparkSession, home: Files, sinks: Mapping[SinkName, Sink], places: Mapping[SinkName, TablePlace]) -> None:
    """Refuses tables that this runtime cannot write into exactly once where they are. Writes nothing.

    Raises:
        MissingRequirementError: Spark has no client of a store.
        UnsupportedTableError: Only Spark could publish into a table, which is only possible on a shared disk; or a table would be in HDFS.
    """
    channels = uri_of(home.below(CHANNELS))
    uris = [channels, *(place.uri for place in places.values())]
    check_clients(spark, uris)
    for uri in uris:
        if urlsplit(uri).scheme == "hdfs":
            raise UnsupportedTableError(
                f"{uri} cannot have tables: those in HDFS are not supported yet.",
                safe="Nothing was staged.",
                remedy="Give the sink a directory or a place in S3, and a home in HDFS a workspace at its first start (--workspace).",
                table=uri,
            )
    for name, place in places.items():
        if _needs_spark(sinks[name], place):
            refuse_spark(sinks[name], place.uri, channels)


def refuse_spark(sink: Sink, uri: str, channels: str) -> None:
    """Refuses a sink that only Spark could publish, in a place where its commits are not exclusive.

    Args:
        sink: The sink.
        uri: URI of its table.
        channels: URI of the directory for rows that are not staged in the table's directory.

    Raises:
        UnsupportedTableError: Its table, or the home, is in a store.
    """
    if is_in_store(uri):
        where = "its table is in a store"
    elif is_in_store(channels):
        where = "the home is in a store, without a workspace"
    else:
        return
    raise UnsupportedTableError(
        f"Sink '{sink.name}' with mode=\"{sink.mode.value}\" is published by Spark, but {where}.",
        exists="Spark's commits are only exclusive on a shared disk. In a store they could replace commits of other writers.",
        safe="Nothing was staged.",
        remedy='Give the sink a table on a disk, and the pipeline a home in a directory or with a workspace. Or declare mode="append" or '
        '"complete", without cluster_by and for a table that delta-rs can write.',
        sink=sink.name,
        table=uri,
    )


def check_clients(spark: SparkSession, urls: Iterable[str]) -> None:
    """Refuses stores for which Spark has no client.

    Raises:
        MissingRequirementError: The client is missing. The error names its package.
    """
    if any(urlsplit(url).scheme == "s3" for url in urls) and not has_class(spark, S3_FILE_SYSTEM):
        package = f"org.apache.hadoop:hadoop-aws:{hadoop_version(spark)}"
        raise MissingRequirementError(
            "Spark cannot reach S3: it has no Hadoop client for it.",
            safe="Nothing was staged.",
            remedy=f"Give Spark the client: --packages {package}; for a cluster, spark-submit --packages {package}.",
            package=package,
        )


def check_conditional_writes(places: Mapping[SinkName, TablePlace]) -> None:
    """Refuses stores that accept a second create of one name. Leaves nothing behind.

    Raises:
        MissingRequirementError: A store accepts it.
        StorageError: A store does not answer, or we may not write there.
    """
    for place in places.values():
        if is_in_store(place.uri):
            check_create_if_absent(table_files(place.uri))


def _needs_spark(sink: Sink, place: TablePlace) -> bool:
    if sink.merge is not None or sink.design.cluster_by:
        return True
    with suppress(NotFoundError, UnsupportedTableError):  # the plan of the table reports unsupported features
        return check_publishable(place.uri, sink.mode)[1] is Publisher.SPARK
    return False
