"""Only settings of an allow-list are on command lines and pages."""

import re

import pytest

from spark_jobs.protocol.spark_settings import (
    REDACTED,
    conf_environment,
    conf_of_environment,
    hidden_settings,
    redaction,
    shown_settings,
)

SHOWN = [
    "spark.app.name",
    "spark.master",
    "spark.driver.memory",
    "spark.executor.extraJavaOptions",
    "spark.executor.instances",
    "spark.executor.memory",
    "spark.executorEnv.PYTHONPATH",
    "spark.executorEnv.TZ",
    "spark.hadoop.fs.defaultFS",
    "spark.hadoop.fs.s3a.endpoint",
    "spark.hadoop.fs.s3a.aws.credentials.provider",
    "spark.jars",
    "spark.jars.packages",
    "spark.kubernetes.container.image",
    "spark.kubernetes.driver.secretKeyRef.SPARK_JOBS_PARAM_TOKEN",
    "spark.kubernetes.driverEnv.XDG_CACHE_HOME",
    "spark.pyspark.python",
    "spark.sql.catalog.spark_catalog",
    "spark.sql.shuffle.partitions",
    "spark.submit.deployMode",
    "spark.yarn.appMasterEnv.SPARK_LOCAL_IP",
    "spark.yarn.queue",
]
HIDDEN = [
    "spark.authenticate.secret",
    "spark.driver.DB_PWD",
    "spark.executorEnv.DB_PWD",
    "spark.executorEnv.LOGIN",
    "spark.executorEnv.PGPASS",
    "spark.executorEnv.TZ_OF_THE_SHOP",
    "spark.hadoop.fs.azure.account.key.store",
    "spark.hadoop.fs.s3a.secret.key",
    "spark.hadoop.shop.login",
    "spark.hive.metastore.login",
    "spark.kubernetes.driverEnv.LOGIN",
    "spark.shop",
    "spark.shop.credentials",
    "spark.sql.catalog.shop.header.Authorization",
    "spark.sql.catalog.shop.login",
    "spark.sqlite.login",
    "spark.ui.password",
    "spark.yarn.appMasterEnv.LOGIN",
]


@pytest.mark.parametrize("name", SHOWN)
def test_a_setting_on_the_allow_list_is_shown(name: str) -> None:
    assert shown_settings({name: "x"}) == {name: "x"}
    assert conf_environment({name: "x"}) == {}


@pytest.mark.parametrize("name", HIDDEN)
def test_any_other_setting_is_passed_by_the_environment(name: str) -> None:
    assert shown_settings({name: "x=y z"}) == {}
    assert hidden_settings({name: "x=y z"}) == conf_of_environment(conf_environment({name: "x=y z"})) == {name: "x=y z"}


@pytest.mark.parametrize("name", HIDDEN)
def test_sparks_pages_hide_settings_that_are_not_on_the_allow_list(name: str) -> None:
    assert re.search(REDACTED, name)


def test_sparks_pages_hide_a_setting_of_hadoop_under_hadoops_name_too() -> None:
    pattern = redaction({"spark.hadoop.shop.x-header": "a", "spark.hadoop.fs.defaultFS": "b", "spark.shop.y": "c"})
    assert re.search(pattern, "shop.x-header")
    assert re.search(pattern, "spark.hadoop.shop.x-header")
    assert not re.search(pattern, "fs.defaultFS")
    assert not re.search(pattern, "shop-x-header")
    assert not re.search(pattern, "shop.y")
    assert redaction({}) == REDACTED


@pytest.mark.parametrize(
    "name", ["spark.app.name", "spark.executor.memory", "spark.sql.shuffle.partitions", "spark.jars", "java.home"]
)
def test_sparks_pages_show_settings_on_the_allow_list(name: str) -> None:
    assert not re.search(REDACTED, name)
