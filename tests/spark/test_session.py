"""A session applies settings that are not on the allow-list, but shows them nowhere. Its JVM logs no secret."""

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import psutil
import pytest
from pyspark import SparkContext
from pyspark.sql import SparkSession

from spark_jobs.publication.delta_jvm import java_class
from spark_jobs.runtime.spark.masked_log import mask_log
from spark_jobs.runtime.spark.session import cancel_for_good, job_group
from tests.support.shared_application import HIDDEN_SETTING

pytestmark = pytest.mark.spark


def test_a_setting_that_is_not_on_the_allow_list_applies_and_is_on_no_command_line_and_no_page(spark: SparkSession) -> None:
    ((name, value),) = HIDDEN_SETTING.items()
    gateway: Any = SparkContext._gateway
    jvm = psutil.Process(gateway.proc.pid)
    commands = ["\0".join(jvm.cmdline())]
    for child in jvm.children(recursive=True):
        with suppress(psutil.NoSuchProcess):  # it has ended since
            commands.append("\0".join(child.cmdline()))
    assert any("spark.sql.shuffle.partitions" in command for command in commands)
    assert [command for command in commands if value in command] == []
    assert spark.sparkContext.getConf().get(name) == value
    pattern: Any = gateway.jvm.java.util.regex.Pattern.compile(spark.sparkContext.getConf().get("spark.redaction.regex"))
    assert pattern.matcher(name).find()
    assert not pattern.matcher("spark.sql.shuffle.partitions").find()


@contextmanager
def logging_to(spark: SparkSession, file: Path, pattern: str) -> Iterator[Any]:
    """Yields a logger of the JVM with an appender of its own."""
    core = "org.apache.logging.log4j.core"
    configuration = java_class(spark, "org.apache.logging.log4j.LogManager").getContext(False).getConfiguration()
    layout = java_class(spark, f"{core}.layout.PatternLayout").newBuilder().withPattern(pattern).build()
    builder = java_class(spark, f"{core}.appender.FileAppender").newBuilder().setName(str(file)).withFileName(str(file))
    appender = builder.setLayout(layout).setConfiguration(configuration).build()
    appender.start()
    configuration.addAppender(appender)
    configuration.getRootLogger().addAppender(appender, None, None)
    try:
        yield java_class(spark, "org.apache.logging.log4j.LogManager").getLogger("of a cluster")
    finally:
        configuration.removeAppender(str(file))


@pytest.mark.parametrize("pattern", ["%d{yy/MM/dd HH:mm:ss} %p %c{1}: %m%n%ex", "%p %m%n"])
def test_a_jvm_that_others_have_started_logs_no_secret(spark: SparkSession, tmp_path: Path, pattern: str) -> None:
    secret = 'jdbc:pg://ann:o}p{e"n|s\\e$same@db/shop'
    with logging_to(spark, tmp_path / "log", pattern) as logger:
        logger.error(f"before {secret}")
        mask_log(spark, [secret])
        logger.error(f"reads {secret}", java_class(spark, "java.lang.RuntimeException")('no user o}p{e"n|s\\e$same'))
    before, after = (tmp_path / "log").read_text().split("\n", 1)
    assert secret in before
    assert "ERROR" in after
    assert "reads ***" in after
    assert "RuntimeException: no user ***" in after
    assert "s\\e$same" not in after


def test_a_thread_whose_jobs_were_cancelled_for_good_runs_other_jobs_later(spark: SparkSession) -> None:
    context = spark.sparkContext
    with job_group(context, "given up", "does something long"):
        cancel_for_good(context, "given up")
        with pytest.raises(Exception, match="cancelled job group given up"):
            context.parallelize([1]).count()
    assert context.parallelize([1]).count() == 1
