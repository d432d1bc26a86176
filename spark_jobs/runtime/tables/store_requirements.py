"""Tables in stores: their requirements, and the refusals before anything is staged.

Every commit of a table in a store creates the next version of the log, and the store lets only one such create succeed. This holds for
commits of this runtime, of delta-rs, and of Spark with :mod:`spark_jobs.publication.conditional_log_store`.
"""

from collections.abc import Mapping
from functools import partial
from urllib.parse import urlsplit

from pyspark.sql import SparkSession

from spark_jobs.background import run_all
from spark_jobs.home.layout import CHANNELS
from spark_jobs.protocol.ids import SinkName
from spark_jobs.publication.conditional_log_store import check_commits, make_commits_conditional
from spark_jobs.runtime.spark.hadoop_clients import check_clients
from spark_jobs.runtime.tables.table_places import TablePlace
from spark_jobs.storage.files import Files
from spark_jobs.storage.open import check_create_if_absent
from spark_jobs.storage.table_uris import is_in_store, spark_path, table_files, uri_of


def prepare_stores(spark: SparkSession, home: Files, places: Mapping[SinkName, TablePlace]) -> None:
    """Refuses tables that this runtime cannot write into exactly once where they are, and gives Spark the log store for S3.

    Writes nothing into a store.

    Raises:
        MissingRequirementError: Spark has no client of a store, or cannot commit conditionally there.
        RejectedError: Spark has another log store for S3.
        UnsupportedTableError: The home's path has characters that delta-rs cannot address.
    """
    channels = uri_of(home.below(CHANNELS))
    spark_path(channels)  # refuses a home in whose path delta-rs cannot address tables
    uris = [channels, *(place.uri for place in places.values())]
    check_clients(spark, uris)
    for uri in uris:
        make_commits_conditional(spark, uri)


def check_stores(spark: SparkSession, places: Mapping[SinkName, TablePlace], *, are_known: bool = False) -> None:
    """Refuses stores that accept a second create of one name, by this runtime or by Spark, and a Spark with another store.

    Leaves nothing behind. All checks run at the same time, because each consists of many requests.

    Args:
        spark: Session of the driver.
        places: Places of the sinks' tables.
        are_known: True for tables that were tried before. For those in S3 there are fewer requests.

    Raises:
        MissingRequirementError: A store accepts it.
        RejectedError: Spark uses another store than this process.
        StorageError: A store does not answer, or we may not write there.
    """
    in_stores = [place.uri for place in places.values() if is_in_store(place.uri)]
    tried = {uri for uri in in_stores if are_known and urlsplit(uri).scheme == "s3"}
    one_of_each_bucket = {urlsplit(uri)[:2]: uri for uri in in_stores}.values()
    run_all(
        [
            *(partial(check_create_if_absent, table_files(uri)) for uri in in_stores if uri not in tried),
            *(partial(check_commits, spark, uri, is_known=uri in tried) for uri in one_of_each_bucket),
        ]
    )
