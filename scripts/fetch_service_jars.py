"""Puts the jars of a Kafka broker, of Spark's sources for Kafka and Avro, and of stores into Ivy's cache, and lists them in files.

For the tests only. Who runs pipelines names a source to Spark: ``--packages org.apache.spark:spark-sql-kafka-0-10_2.13:VERSION``.
"""

import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyspark
from pyspark.java_gateway import launch_gateway

from scripts.jar_hashes import write_list

BROKER = ("org.apache.kafka:kafka_2.13:4.3.1", "org.slf4j:slf4j-simple:1.7.36")
_SPARK = {"4.0.4": "4.0.2"}.get(pyspark.__version__, pyspark.__version__)
"""The version of Spark's sources: the newest of this minor version that mirrors hold."""
SOURCES = (
    f"org.apache.spark:spark-avro_2.13:{_SPARK}",
    f"org.apache.spark:spark-sql-kafka-0-10_2.13:{_SPARK}",
    "org.apache.spark:spark-token-provider-kafka-0-10_2.13:4.0.0",  # the newest release that mirrors hold; used with tokens only
    "org.apache.kafka:kafka-clients:3.9.2",
    "org.apache.commons:commons-pool2:2.13.1",
)
"""All that Spark does not bring itself, by name, because a mirror may lack one of the versions that they ask for."""

HDFS = (
    "org.apache.hadoop:hadoop-client-minicluster:3.5.0",
    "ch.qos.reload4j:reload4j:1.2.25",  # its classes ask for it, and do not bring it
    "org.slf4j:slf4j-simple:1.7.36",
)
S3 = (
    "org.apache.hadoop:hadoop-aws:3.5.0",
    "software.amazon.awssdk:s3:2.35.4",
    "software.amazon.awssdk:s3-transfer-manager:2.35.4",
    "software.amazon.awssdk:sts:2.35.4",
)
AZURE = ("org.apache.hadoop:hadoop-azure:3.5.0",)
WITHOUT = "software.amazon.awssdk:bundle,io.netty:*,commons-logging:*,commons-codec:*,org.apache.httpcomponents:*,org.slf4j:*"
"""The bundle has the whole of AWS, 686 MB; the others Spark brings itself, in versions of its own."""


def main(broker: Path, sources: Path, hdfs: Path, s3: Path, azure: Path) -> None:
    scala = [str(jar) for jar in (Path(pyspark.__file__).parent / "jars").glob("scala-library-*.jar")]  # Spark never fetches it
    with _java() as jvm:
        write_list(broker, _resolved(jvm, BROKER, transitive=True) + scala)
        write_list(sources, _resolved(jvm, SOURCES, transitive=False))
        write_list(hdfs, _resolved(jvm, HDFS, transitive=True))
        write_list(s3, _resolved(jvm, S3, transitive=True, without=WITHOUT))
        write_list(azure, _resolved(jvm, AZURE, transitive=True, without=WITHOUT))


def fetched(package: str) -> list[Path]:
    """Returns the jar of a package, without those that the package needs."""
    with _java() as jvm:
        return [Path(jar) for jar in _resolved(jvm, [package], transitive=False)]


@contextmanager
def _java() -> Iterator[Any]:
    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    launch: Any = launch_gateway
    gateway = launch()
    try:
        yield gateway.jvm
    finally:
        gateway.shutdown()
        gateway.proc.stdin.close()
        gateway.proc.wait()


def _resolved(jvm: Any, packages: Sequence[str], *, transitive: bool, without: str = "") -> list[str]:
    """As ``--packages`` does it, but without a Spark application and its class path."""
    settings = jvm.scala.Option.apply(None)
    jars = jvm.org.apache.spark.util.DependencyUtils.resolveMavenDependencies(
        transitive, without, ",".join(packages), None, None, settings
    )
    return [str(jar) for jar in jvm.scala.jdk.javaapi.CollectionConverters.asJava(jars)]


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:]))
