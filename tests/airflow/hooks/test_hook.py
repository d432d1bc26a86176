"""The hook and its connection."""

import json
import os
import sys
import threading
from contextlib import suppress
from pathlib import Path
from uuid import uuid4

import pytest
from airflow.sdk.log import redact  # type: ignore[attr-defined]

from airflow_provider.drivers.driver_log import LogFile, last_lines, log_last_lines
from airflow_provider.hooks.stream_pipeline import StreamPipelineHook
from airflow_provider.orders import StartOrder
from airflow_provider.settings import Settings, read_settings
from airflow_provider.tasks.driver_lease import DriverLease
from spark_jobs.protocol.checkpointing import CheckpointOverrides
from spark_jobs.protocol.errors import InvalidParameterError, RejectedError, StorageError
from spark_jobs.protocol.ids import AttemptNumber, RunId
from spark_jobs.protocol.spark_settings import conf_of_environment
from tests.airflow.conftest import Homes, connection
from tests.airflow.flights import TaskLog
from tests.support.left_behind import land_left_behind
from tests.support.object_store import BUCKET, object_store
from tests.support.secret_shapes import CORE, SHAPES


@pytest.mark.parametrize(
    ("extra", "expected"),
    [
        ({}, Settings()),
        ({"home_root": "", "python": None, "master": "", "conf": ""}, Settings()),
        ({"home_root": "/a, file:///b\n/c"}, Settings(roots=("/a", "file:///b", "/c"))),
        ({"home_root": ["/a,b", "/c"]}, Settings(roots=("/a,b", "/c"))),
        ({"conf": '{"spark.ui.port": "1"}', "master": "local[2]"}, Settings(master="local[2]", conf={"spark.ui.port": "1"})),
        ({"checkpoint": '{"retained": 2}'}, Settings(checkpoint=CheckpointOverrides(retained=2))),
        ({"checkpoint": {"min_pause": "1 second"}}, Settings(checkpoint=CheckpointOverrides(min_pause_ms=1_000))),
        ({"conf": {"spark.executor.cores": "2"}, "python": "/p"}, Settings(python="/p", conf={"spark.executor.cores": "2"})),
    ],
)  # fmt: skip
def test_a_connection_says_where_homes_are_and_how_a_driver_starts(extra: dict[str, object], expected: Settings) -> None:
    assert read_settings(extra, "c") == expected


@pytest.mark.parametrize(
    "extra",
    [
        {"home_root": 1},
        {"home_root": [1]},
        {"python": ["p"]},
        {"conf": "{"},
        {"conf": {"a": 1}},
        {"conf": "[]"},
        {"checkpoint": {"often": 1}},
    ],
)
def test_a_wrong_extra_is_refused_by_name(extra: dict[str, object]) -> None:
    with pytest.raises(InvalidParameterError, match=next(iter(extra))):
        read_settings(extra, "c")


def test_a_connection_of_another_type_is_refused_by_its_type() -> None:
    with pytest.raises(InvalidParameterError, match="Connection 'c' has the type 'spark', but a pipeline needs the type"):
        read_settings({"deploy-mode": "cluster"}, "c", "spark")
    assert read_settings({}, "c", None) == Settings()  # a connection from a JSON text without a type


def test_the_hook_refuses_a_connection_of_another_type(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AIRFLOW_CONN_SPARK", json.dumps({"conn_type": "spark", "host": "yarn"}))
    with pytest.raises(InvalidParameterError, match="has the type 'spark'"):
        _ = StreamPipelineHook("spark").settings


def test_the_error_for_an_unknown_extra_lists_the_known_extras() -> None:
    """A misspelled extra would otherwise be ignored."""
    with pytest.raises(InvalidParameterError) as refused:
        read_settings({"home_root": "/a", "pyhton": "/p", "verbose": 1, "unused": ""}, "c")
    assert refused.value.failed == "Connection 'c' has unknown extras: pyhton, verbose."
    assert (
        refused.value.exists
        == "Known extras are: home_root, work_root, savepoint_root, store_conn_id, python, master, conf, checkpoint, spark_conn_id, "
        "spark_main."
    )


def test_a_tasks_settings_override_those_of_the_connection() -> None:
    settings = Settings(master="local[2]", conf={"spark.master": "local[3]", "spark.executor.cores": "2"})
    assert settings.driver_conf({"spark.executor.cores": "4"}) == {"spark.master": "local[3]", "spark.executor.cores": "4"}


def test_a_local_master_has_no_deploy_mode() -> None:
    settings = Settings(spark_conn_id="yarn", conf={"spark.submit.deployMode": "cluster", "spark.executor.cores": "2"})
    assert settings.local_conf({}) == {"spark.executor.cores": "2"}


@pytest.mark.parametrize(
    "key",
    [
        "spark.hadoop.fs.s3a.secret.key",
        "spark.hadoop.fs.s3a.access.key",
        "spark.hadoop.fs.azure.account.key.store.dfs.core.windows.net",
        "spark.hadoop.google.cloud.auth.service.account.private.key",
        "spark.ssl.keyPassword",
        "spark.hadoop.javax.jdo.option.ConnectionPassword",
        "spark.kubernetes.authenticate.oauthToken",
        "spark.hadoop.fs.azure.sas.container.account.blob.core.windows.net",
        "spark.hadoop.fs.azure.sas.fixed.token.account.dfs.core.windows.net",
        "spark.hadoop.fs.s3a.encryption.key",
        "spark.sql.catalog.main.credential",
        "spark.executorEnv.API_KEY",
        "spark.executorEnv.AWS_SECRET_ACCESS_KEY",
        "spark.yarn.appMasterEnv.STORAGE_ACCOUNT_KEY",
        "spark.kubernetes.driverEnv.PRIVATE_KEY",
        "spark.executorEnv.PGPASSWD",
        "spark.executorEnv.DB_PWD",
        "spark.executorEnv.PGPASS",
        "spark.shop.credentials",
    ],
)
def test_a_setting_that_is_a_secret_is_on_no_command_line(key: str) -> None:
    with pytest.raises(InvalidParameterError) as caught:
        Settings(conf={key: "hush"}).driver_conf({})
    assert caught.value.evidence == {"settings": [key]}
    assert "hush" not in str(caught.value)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("spark.driver.extraJavaOptions", "-Xmx1g -Djavax.net.ssl.trustStorePassword=hush"),
        ("spark.executor.extraJavaOptions", "-Dmy.api.token=hush"),
        ("spark.driver.extraJavaOptions", "-Dfs.azure.account.key=hush"),
        ("spark.driver.extraJavaOptions", '-Xmx1g "-Dapi.key=hush"'),
        ("spark.jars.repositories", "https://plain.example,https://ci:hush@packages.example/maven"),
        ("spark.hadoop.javax.jdo.option.ConnectionURL", "jdbc:mysql://db/hive?user=u&password=hush"),
        ("spark.hadoop.javax.jdo.option.ConnectionURL", "jdbc:sqlserver://db;user=u;Password=hush"),
        ("spark.executorEnv.STORE", "DefaultEndpointsProtocol=https;AccountName=a;AccountKey=hush"),
        ("spark.executorEnv.BUS", "Endpoint=sb://bus;SharedAccessKeyName=n;SharedAccessKey=hush"),
        ("spark.executorEnv.LANDING", "https://a.blob.core.windows.net/c?sv=2024-01-01&sig=hush"),
        ("spark.executorEnv.LANDING", "sig=hush&sv=2024-01-01"),
        ("spark.driver.extraJavaOptions", "-DDB_PWD=hush"),
        ("spark.driver.extraJavaOptions", "-Dshop=hush"),
        ("spark.executor.extraJavaOptions", "-XX:+UseSerialGC -Dshop=hush"),
        ("spark.sql.catalog.main.header.Authorization", "Bearer hush"),
        ("spark.executorEnv.LOGIN", 'PlainLoginModule required username="u" password="hush";'),
    ],
)
def test_a_secret_inside_a_setting_is_on_no_command_line(key: str, value: str) -> None:
    with pytest.raises(InvalidParameterError) as caught:
        Settings().driver_conf({key: value})
    assert caught.value.evidence == {"settings": [key]}
    assert "hush" not in str(caught.value)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("spark.driver.extraJavaOptions", "-Dlog4j.configurationFile=file:/etc/log4j2.properties -Duser.name=a@b:c"),
        ("spark.executor.extraJavaOptions", "-XX:+UseSerialGC -Duser.timezone=UTC"),
        ("spark.driver.extraJavaOptions", "-Djavax.net.ssl.trustStorePasswordFile=/run/secrets/trust"),
        ("spark.jars.repositories", "https://packages.example:8443/maven"),
        ("spark.executorEnv.AWS_WEB_IDENTITY_TOKEN_FILE", "/var/run/token"),
        ("spark.executorEnv.GOOGLE_APPLICATION_CREDENTIALS", "/etc/key.json"),
        ("spark.executorEnv.BUS", "Endpoint=sb://bus;SharedAccessKeyName=n"),
        ("spark.hadoop.fs.azure.account.auth.type", "SAS"),
        ("spark.hadoop.fs.azure.account.keyprovider.a.dfs.core.windows.net", "org.example.Keys"),
        ("spark.hadoop.fs.azure.account.oauth2.client.endpoint", "https://login.example/tenant/oauth2/token"),
        ("spark.hadoop.fs.azure.sas.token.provider.type", "org.example.Signatures"),
        ("spark.hadoop.fs.s3a.aws.credentials.provider", "org.example.Credentials"),
        ("spark.hadoop.hadoop.security.credential.provider.path", "jceks://file/etc/keys.jceks"),
        ("spark.authenticate.secret.file", "/etc/spark/secret"),
        ("spark.authenticate.secretBitLength", "256"),
        ("spark.io.encryption.keySizeBits", "256"),
        ("spark.io.encryption.keygen.algorithm", "HmacSHA1"),
        ("spark.kubernetes.container.image.pullSecrets", "registry"),
        ("spark.kubernetes.kerberos.tokenSecret.name", "token"),
        ("spark.kerberos.renewal.credentials", "ccache"),
        ("spark.hadoop.dfs.ha.fencing.ssh.private-key-files", "/etc/key"),
        ("spark.security.credentials.hive.enabled", "false"),
        ("spark.ssl.rpc.privateKey", "/etc/spark/key.pem"),
        ("spark.hadoop.fs.s3a.endpoint", "http://127.0.0.1:9000"),
    ],
)
def test_a_setting_whose_name_only_resembles_a_secret_is_on_the_command_line(key: str, value: str) -> None:
    assert Settings().driver_conf({key: value}) == {key: value}


def test_a_driver_runs_in_the_workers_python_by_default() -> None:
    assert Settings().python == sys.executable


def test_the_test_of_a_connection_says_where_it_looked_and_what_it_found(homes: Homes) -> None:
    well, said = StreamPipelineHook().test_connection()
    assert well, said
    for part in (os.uname().nodename, str(homes.root), "pyspark 4", "delta-spark 4", "Java "):
        assert part in said
    assert list(homes.root.iterdir()) == []


def test_the_test_of_a_connection_looks_at_the_roots_of_savepoints(homes: Homes, monkeypatch: pytest.MonkeyPatch) -> None:
    roots = f"{homes.root},s3://{BUCKET}/daily"
    with object_store():
        monkeypatch.setenv("AIRFLOW_CONN_TRIED", connection(home_root=str(homes.root), savepoint_root=roots))
        well, said = StreamPipelineHook("tried").test_connection()
    assert well, said
    assert f"Savepoints can be looked for in {homes.root}, s3://{BUCKET}/daily." in said


@pytest.mark.parametrize(
    ("work_root", "well", "expected"),
    [
        ("", True, "have no work root: drivers use their own disks"),
        (".", True, "work in"),
        ("gone", False, "The work root"),
        (f"s3://{BUCKET}/work", True, f"work in s3://{BUCKET}/work"),
    ],
)
def test_the_test_of_a_connection_looks_at_the_work_root(
    homes: Homes, monkeypatch: pytest.MonkeyPatch, work_root: str, well: bool, expected: str
) -> None:
    """A home in a store needs a directory that the executors share with the driver, if they are on other hosts."""
    extra = {"home_root": f"s3://{BUCKET}/homes", "python": StreamPipelineHook().settings.python}
    if work_root:
        extra["work_root"] = work_root if ":" in work_root else str(homes.root / work_root)
    with object_store():
        monkeypatch.setenv("AIRFLOW_CONN_TRIED", connection(**extra))
        assert StreamPipelineHook("tried").test_connection()[0] is well
        assert expected in StreamPipelineHook("tried").test_connection()[1]
    assert list(homes.root.iterdir()) == []


@pytest.mark.parametrize(
    ("extra", "expected"),
    [
        ({}, "home_root is empty"),
        ({"home_root": "/proc/homes"}, "/proc/homes"),
        ({"home_root": "s3://bucket"}, "s3"),
        ({"savepoint_root": "/proc/savepoints"}, "The savepoint root /proc/savepoints does not exist"),
        ({"savepoint_root": "wasbs://bucket"}, "wasbs: is not supported"),
        ({"python": "/no/such/python"}, "/no/such/python is not a program"),
        ({"python": "false"}, "false cannot run a driver"),
        ({"conf": {"spark.x.password": "p"}}, "spark.x.password"),
    ],
)
def test_the_test_of_a_connection_says_what_is_wrong(
    homes: Homes, monkeypatch: pytest.MonkeyPatch, extra: dict[str, str], expected: str
) -> None:
    root = {"home_root": str(homes.root)} if extra else {}
    monkeypatch.setenv("AIRFLOW_CONN_TRIED", connection(**(root | extra)))
    well, said = StreamPipelineHook("tried").test_connection()
    assert not well
    assert expected in said


def test_the_test_of_a_connection_reports_that_java_is_missing(homes: Homes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JAVA_HOME", str(homes.root))
    well, said = StreamPipelineHook().test_connection()
    assert not well
    assert "no Java" in said


@pytest.mark.parametrize(
    ("pyspark", "java", "expected"),
    [
        ("4.2.1", 'openjdk version "17.0.2" 2022-01-18', None),
        ("4.2.1", 'openjdk version "21" 2023-09-19', None),
        ("4.2.1", 'java version "1.8.0_392"', "a driver needs Java 17 or newer"),
        ("4.2.1", 'openjdk version "11.0.21" 2023-10-17', "a driver needs Java 17 or newer"),
        ("4.0.1", 'openjdk version "17.0.2" 2022-01-18', None),
        ("3.5.9", 'openjdk version "17.0.2" 2022-01-18', "pipelines do not run on it"),
        ("4.3.0", 'openjdk version "17.0.2" 2022-01-18', "Delta Lake has no jars for it"),
    ],
)
def test_the_test_of_a_connection_refuses_versions_that_run_no_pipeline(
    homes: Homes, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, pyspark: str, java: str, expected: str | None
) -> None:
    found = json.dumps({"Python": "3.11.7", "pyspark": pyspark, "delta-spark": "4.4.0", "Java": java})
    python = tmp_path / "python"
    python.write_text(f"#!/bin/sh\necho '{found}'\n")
    python.chmod(0o755)
    monkeypatch.setenv("AIRFLOW_CONN_TRIED", connection(home_root=str(homes.root), python=str(python)))
    well, said = StreamPipelineHook("tried").test_connection()
    assert well is (expected is None), said
    assert (expected or java) in said


def test_the_test_of_a_connection_does_not_wait_for_a_root_that_does_not_respond(
    homes: Homes, monkeypatch: pytest.MonkeyPatch
) -> None:
    back = threading.Event()
    monkeypatch.setattr("airflow_provider.hooks.stream_pipeline.check_roots", lambda *_, **__: back.wait(30.0))
    hook = StreamPipelineHook()
    hook.test_max_s = 0.1
    well, said = hook.test_connection()
    back.set()
    land_left_behind()
    assert not well
    assert f"{homes.root} do not answer" in said


def test_an_unused_home_has_no_answer_no_status_and_no_driver(homes: Homes) -> None:
    hook = StreamPipelineHook()
    assert (hook.answer("flights", RunId("x")), hook.status("flights"), hook.head("flights"), hook.is_at_work("flights")) == (
        None,
        None,
        None,
        False,
    )
    assert list(homes.root.iterdir()) == []


def test_the_last_lines_of_a_log_are_readable(tmp_path: Path) -> None:
    log = tmp_path / "1.log"
    log.write_text(
        "".join(f"line {n}\n" for n in range(500)) + '{"time": "noon", "level": "info", "message": "hello"}\n[1]\n{}\n'
    )
    assert last_lines(log, 4) == ["line 499", "noon info hello", "[1]", "{}"]


def test_the_task_log_shows_the_last_fifty_lines_of_the_driver(tmp_path: Path) -> None:
    log, task_log = tmp_path / "1.log", TaskLog()
    log.write_text("".join(f"line {n}\n" for n in range(500)))
    log_last_lines(task_log, LogFile("logs/driver-1.log", log))
    assert task_log.text.splitlines() == [f"The last 50 lines of {log}:", *(f"line {n}" for n in range(450, 500))]


def test_a_missing_log_has_no_lines(tmp_path: Path) -> None:
    assert last_lines(tmp_path / "1.log", 4) == []


def test_a_missing_root_is_taken_for_an_unmounted_one_and_is_not_created(homes: Homes, monkeypatch: pytest.MonkeyPatch) -> None:
    """In a new home a pipeline would start again and publish every row a second time."""
    missing = homes.root / "share/homes"
    monkeypatch.setenv("AIRFLOW_CONN_AWAY", connection(home_root=f"{homes.root}/others,{missing}", python="true"))
    hook = StreamPipelineHook("away")
    with pytest.raises(StorageError, match="share/homes does not exist"):
        hook.submit(str(missing / "flights"), StartOrder(entry="/pipelines/answers.py", run=RunId("x")))
    well, said = hook.test_connection()
    assert not well
    assert "does not exist" in said
    assert list(homes.root.iterdir()) == []


def test_a_home_inside_another_home_is_refused(homes: Homes) -> None:
    """The inner home's documents would be documents of the outer one. A directory in the place of an answer would stop that pipeline."""
    hook = StreamPipelineHook()
    hook.files("team/flights").create("pipeline.json", b"{}")
    for home in ("team/flights/responses/start-7.json", "team/flights/attempts"):
        with pytest.raises(RejectedError, match="is inside the home .*team/flights"):
            hook.submit(home, StartOrder(entry="/pipelines/answers.py", run=RunId("x")))
    assert sorted(path.name for path in homes.path("team/flights").iterdir()) == ["pipeline.json"]


@pytest.mark.parametrize(
    "name",
    ["spark.executorEnv.LOGIN", "spark.hadoop.shop.login", "spark.sql.catalog.shop.header", "spark.driver.extraJavaOptions"],
)
def test_no_shape_of_a_secret_in_a_setting_is_on_a_command_line(homes: Homes, name: str) -> None:
    settings = StreamPipelineHook().settings
    accepted: dict[str, str] = {}
    for index, secret in enumerate(SHAPES.values()):
        java = f"-Dshop.login={secret}" if "JavaOptions" in name else secret
        conf = {name if "JavaOptions" in name else f"{name}{index}": java}
        with suppress(InvalidParameterError):
            accepted |= settings.driver_conf(conf)
    order = StartOrder(entry="/pipelines/answers.py", run=RunId("x"), conf=accepted | {"spark.executor.cores": "2"})
    _, driver = StreamPipelineHook().submit("flights", order)
    assert driver.wait(30.0)
    (start,) = homes.starts()
    assert CORE not in json.dumps(start["argv"])
    assert start["argv"][-2:] == ["--conf", "spark.executor.cores=2"]
    assert conf_of_environment(start["environment"]) == accepted


def test_secrets_of_all_forms_reach_the_drivers_environment_and_no_place_that_others_read(
    homes: Homes, monkeypatch: pytest.MonkeyPatch
) -> None:
    core = f"core{uuid4().hex}"  # random, because a value that one test masks in logs is masked in all
    shapes = [
        secret.replace(CORE, core) for shape, secret in SHAPES.items() if shape != "a word"
    ]  # Airflow itself masks this one
    secrets = {f"p{number}": secret for number, secret in enumerate(shapes)}
    for name, secret in secrets.items():
        monkeypatch.setenv(f"AIRFLOW_CONN_SHOP_{name.upper()}", json.dumps({"conn_type": "generic", "password": secret}))
    order = StartOrder(entry="/pipelines/answers.py", run=RunId("x"), secrets={name: f"shop_{name}" for name in secrets})
    _, driver = StreamPipelineHook().submit("flights", order)
    assert driver.wait(30.0)
    (start,) = homes.starts()
    assert {name: start["environment"][f"SPARK_JOBS_PARAM_{name.upper()}"] for name in secrets} == secrets
    assert core not in json.dumps(start["argv"])
    documents = [
        path for path in homes.path().rglob("*") if path.is_file() and not path.match(".started-*.json")
    ]  # the fake driver's own files
    assert [path for path in documents if core in path.read_text()] == []
    assert redact({"task log": f"no login as ada with {core}"}) == {"task log": "no login as ada with ***"}


def test_a_task_that_did_not_start_the_driver_hides_its_secrets_from_the_log(
    homes: Homes, monkeypatch: pytest.MonkeyPatch
) -> None:
    core, log = f"core{uuid4().hex}", TaskLog()
    login = SHAPES["a JAAS text"].replace(CORE, core)
    monkeypatch.setenv("AIRFLOW_CONN_SHOP", json.dumps({"conn_type": "generic", "password": login}))
    output = homes.path() / "logs" / "driver-1.out"
    output.parent.mkdir(parents=True)
    output.write_text(f"no login as ada with {core}\n")
    DriverLease(StreamPipelineHook(), "flights", log).log_driver(AttemptNumber(1), {"token": "shop", "other": "gone"})
    assert core in log.text, "as it reaches Airflow's own handlers, which mask it"
    assert redact(log.text.splitlines()[-1]) == "no login as ada with ***"
