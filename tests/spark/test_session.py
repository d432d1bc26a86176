"""What a session that is started has, and what of it can be seen."""

from contextlib import suppress
from typing import Any

import psutil
import pytest
from pyspark import SparkContext
from pyspark.sql import SparkSession

from tests.spark.conftest import HIDDEN_SETTING

pytestmark = pytest.mark.spark


def test_a_setting_that_is_not_on_the_allow_list_counts_and_is_in_no_command_line_and_on_no_page(spark: SparkSession) -> None:
    ((name, value),) = HIDDEN_SETTING.items()
    gateway: Any = SparkContext._gateway
    jvm = psutil.Process(gateway.proc.pid)
    commands = ["\0".join(jvm.cmdline())]
    for child in jvm.children(recursive=True):
        with suppress(psutil.NoSuchProcess):  # it has ended meanwhile
            commands.append("\0".join(child.cmdline()))
    assert any("spark.sql.shuffle.partitions" in command for command in commands)
    assert [command for command in commands if value in command] == []
    assert spark.sparkContext.getConf().get(name) == value
    pattern: Any = gateway.jvm.java.util.regex.Pattern.compile(spark.sparkContext.getConf().get("spark.redaction.regex"))
    assert pattern.matcher(name).find()
    assert not pattern.matcher("spark.sql.shuffle.partitions").find()
