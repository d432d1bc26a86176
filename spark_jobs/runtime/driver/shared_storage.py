"""Checks that executors on other hosts share the work directories with the driver, because each reads files that others write.

A directory that only looks shared is dangerous: each executor writes to its own disk, and Spark reports success.
"""

from contextlib import suppress

from pyspark.sql import SparkSession

from spark_jobs.control.home import HomeInStore
from spark_jobs.home.layout import WORK, work_probe_path
from spark_jobs.protocol.errors import RejectedError
from spark_jobs.protocol.spark_masters import is_local
from spark_jobs.runtime.spark.hadoop_clients import check_clients
from spark_jobs.runtime.spark.session import spark_failures
from spark_jobs.runtime.spark.spark_errors import summary
from spark_jobs.storage.files import Files, is_mounted

_PARTS_MIN = 2
_PARTS_MAX = 64


def check_shared(spark: SparkSession, home: Files) -> None:
    """Refuses work directories that the executors of a cluster do not share with the driver. Leaves nothing behind.

    As a sample, as many tasks as there are cores write a file each and read it back. This costs two small jobs, only on a cluster.

    Raises:
        RejectedError: They do not share it.
        MissingRequirementError: The work directories are in a store, and Spark has no client of it.
    """
    probe = work_probe_path()
    url = home.below(probe).url
    check_clients(spark, [url])
    master = str(spark.sparkContext.master)
    if is_local(master):
        return
    parts = min(max(spark.sparkContext.defaultParallelism, _PARTS_MIN), _PARTS_MAX)
    directory = home.local(probe)
    made = [] if directory is None else [above for above in directory.parents if not above.exists()]
    try:
        spark.range(0, parts, 1, parts).selectExpr("CAST(id AS STRING) AS value").write.text(url)
        seen = sum(len(home.read(f"{probe}/{name}").split()) for name in home.names(probe) if name.startswith("part-"))
        if seen != parts:
            raise _refused(home, master, f"of {parts} files that executors have written, the driver sees {seen}")
        found = spark.read.text(url).count()
        if found != parts:
            raise _refused(home, master, f"of {parts} lines that the driver sees, executors see {found}")
    except spark_failures() as error:
        raise _refused(home, master, f"executors cannot write and read there ({summary(error)[:500]})") from error
    finally:
        home.delete(probe)
        for above in made:
            with suppress(OSError):  # another start uses it now
                above.rmdir()


def _refused(home: Files, master: str, what: str) -> RejectedError:
    place = home.work if isinstance(home, HomeInStore) else home
    mounted = "a directory that the driver and every executor have mounted at the same path, and can write"
    if not is_mounted(place):
        remedy = "Give the executors the client of that store, and credentials for it, as the driver has them."
    elif isinstance(home, HomeInStore):
        remedy = (
            f"Name a work root, with --work-root or in Airflow with the connection's work_root: a place in the home's store, or {mounted}. "
            "Or run the pipeline with a local master."
        )
    else:
        remedy = f"Put homes and tables into {mounted}. Or put them into a store."
    return RejectedError(
        f"{place.local(WORK) or place.url} is not shared with the executors of {master}: {what}.",
        remedy=remedy,
        home=home.url,
        master=master,
    )
