"""The command that submits a driver: its options for each master and deploy mode, and refusals. No process is started."""

import base64
import json
import os
import stat
import sys
from importlib.metadata import version
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

import spark_jobs
from airflow_provider.drivers.keytabs import keytab_file
from airflow_provider.drivers.spark_submit import MasterKind, Submission, delta_package, parse_master, plan_submission
from airflow_provider.settings import Settings, read_settings
from spark_jobs.protocol.errors import AccessDeniedError, InvalidParameterError, MissingRequirementError, RejectedError
from spark_jobs.protocol.ids import RequestId
from spark_jobs.protocol.spark_settings import conf_of_environment
from spark_jobs.protocol.spark_versions import NEWEST
from tests.support.secret_shapes import CORE, SHAPES

MAIN = str(Path(spark_jobs.__file__).with_name("main.py"))
DELTA_PACKAGE = delta_package(NEWEST)
STANDALONE, KUBERNETES = "spark://host:7077", "k8s://https://api:6443"
IN_THE_IMAGE = "local:///opt/spark_jobs/main.py"


@pytest.fixture(autouse=True)
def program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A ``spark-submit`` on the path, which is never run."""
    found = tmp_path / "bin" / "spark-submit"
    found.parent.mkdir()
    found.write_text("#!/bin/sh\nexit 1\n")
    found.chmod(0o755)
    monkeypatch.setenv("PATH", str(found.parent), prepend=os.pathsep)
    return found


@pytest.fixture
def spark(monkeypatch: pytest.MonkeyPatch) -> "Spark":
    return Spark(monkeypatch)


class Spark:
    """A Spark connection for ``SparkSubmitOperator``."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._monkeypatch = monkeypatch

    def connection(self, host: str, **extra: Any) -> None:
        document = {"conn_type": "spark", "host": host, "extra": extra}
        self._monkeypatch.setenv("AIRFLOW_CONN_SPARK_DEFAULT", json.dumps(document))

    def plan(self, host: str, mode: str = "", conf: dict[str, str] | None = None, **extra: Any) -> Submission:
        given = {"deploy-mode": mode} if mode else {}
        self.connection(host, **(given | extra))
        main = IN_THE_IMAGE if host == KUBERNETES else None
        return plan_submission(Settings(spark_conn_id="spark_default", spark_main=main), conf or {})


def command(submission: Submission) -> list[str]:
    return submission.command(entry="/pipelines/a.py", home="file:///homes/flights", request=RequestId("start-3"))


def option(argv: list[str], name: str) -> list[str]:
    return [value for each, value in pairwise(argv) if each == name]


@pytest.mark.parametrize(
    ("master", "kind"),
    [
        ("local", MasterKind.LOCAL),
        ("local[4]", MasterKind.LOCAL),
        ("local[*]", MasterKind.LOCAL),
        ("local[4,2]", MasterKind.LOCAL),
        ("local-cluster[2,1,1024]", MasterKind.LOCAL),
        ("spark://host:7077", MasterKind.STANDALONE),
        ("spark://yarn-edge:7077", MasterKind.STANDALONE),
        ("spark://k8s-edge.example:7077,other:7077", MasterKind.STANDALONE),
        ("spark://[::1]:7077", MasterKind.STANDALONE),
        ("yarn", MasterKind.YARN),
        ("k8s://https://yarn.example:6443", MasterKind.KUBERNETES),
        ("k8s://api.example", MasterKind.KUBERNETES),
        ("k8s://http://127.0.0.1:8001/cluster", MasterKind.KUBERNETES),
    ],
)
def test_the_kind_of_a_master_is_recognized_by_its_whole_address(master: str, kind: MasterKind) -> None:
    assert parse_master(master) is kind


@pytest.mark.parametrize(
    "master",
    [
        *("", "host", "yarn://", "yarn-cluster", "local[]", "local[0]", "spark://host", "spark://", "spark://u:p@host:7077"),
        *("mesos://host:5050", "sc://host:15002", "k8s://", "k8s://https://u:p@api:6443", "k8s://ftp://api", "k8s://api:port"),
    ],
)
def test_an_unknown_master_is_refused_by_name(master: str) -> None:
    with pytest.raises(InvalidParameterError, match="not the address of a Spark master") as refused:
        parse_master(master)
    assert refused.value.evidence == {"master": master}


def test_a_driver_on_a_standalone_cluster_runs_in_client_mode_by_default(spark: Spark, program: Path) -> None:
    submission = spark.plan(STANDALONE, conf={"spark.executor.memory": "2g"})
    assert submission.driver_is_here
    assert command(submission) == [
        *(str(program), "--master", STANDALONE, "--conf", "spark.executor.memory=2g"),
        *("--conf", f"spark.jars.packages={DELTA_PACKAGE}", "--name", "flights start-3", "--deploy-mode", "client"),
        *(MAIN, "/pipelines/a.py", "--home", "file:///homes/flights", "--request", "start-3"),
    ]
    assert submission.environment() == {"PYSPARK_DRIVER_PYTHON": sys.executable}


def test_on_yarn_queue_and_principal_come_from_the_connection_and_the_submitter_does_not_wait(
    spark: Spark, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    keytab = base64.b64encode(b"the keytab").decode()
    submission = spark.plan("yarn", "cluster", queue="nightly", principal="etl@EXAMPLE", keytab=keytab)
    argv = command(submission)
    assert not submission.driver_is_here
    assert (option(argv, "--master"), option(argv, "--deploy-mode"), option(argv, "--queue")) == (
        ["yarn"],
        ["cluster"],
        ["nightly"],
    )
    assert option(argv, "--principal") == ["etl@EXAMPLE"]
    assert Path(option(argv, "--keytab")[0]).read_bytes() == b"the keytab"
    assert keytab not in " ".join(argv)
    assert set(option(argv, "--conf")) == {
        "spark.yarn.submit.waitAppCompletion=false",
        "spark.yarn.maxAppAttempts=1",
        f"spark.jars.packages={DELTA_PACKAGE}",
    }
    assert submission.environment() == {}, "it would be given to the driver, where there is no such Python"


def test_on_kubernetes_namespace_and_image_are_given_and_the_submitter_does_not_wait(spark: Spark) -> None:
    argv = command(spark.plan(KUBERNETES, "cluster", {"spark.kubernetes.container.image": "us/spark:1"}, namespace="etl"))
    assert option(argv, "--master") == [KUBERNETES]
    assert {"spark.kubernetes.namespace=etl", "spark.kubernetes.submission.waitAppCompletion=false"} < set(option(argv, "--conf"))
    assert "spark.kubernetes.container.image=us/spark:1" in option(argv, "--conf")
    assert IN_THE_IMAGE in argv


def test_a_master_whose_host_is_named_yarn_gets_no_settings_of_yarn(spark: Spark) -> None:
    argv = command(spark.plan("spark://yarn-k8s:7077", namespace="etl"))
    assert not [setting for setting in option(argv, "--conf") if "kubernetes" in setting or "yarn" in setting]


def test_a_connection_given_as_a_url_has_the_same_master(spark: Spark, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AIRFLOW_CONN_SPARK_DEFAULT", "spark://host:7077?deploy-mode=client")
    assert plan_submission(Settings(spark_conn_id="spark_default"), {}).master == STANDALONE


def test_settings_of_a_task_override_those_of_the_connection(spark: Spark) -> None:
    conf = {"spark.submit.deployMode": "client", "spark.app.name": "mine", "spark.yarn.maxAppAttempts": "2"}
    argv = command(spark.plan("yarn", "cluster", conf))
    assert (option(argv, "--deploy-mode"), option(argv, "--name")) == (["client"], ["mine"])
    cluster = spark.plan("yarn", "cluster", {"spark.yarn.submit.waitAppCompletion": "true"})
    assert "spark.yarn.submit.waitAppCompletion=true" in option(command(cluster), "--conf")


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (None, DELTA_PACKAGE),
        ("g:a:1", f"g:a:1,{DELTA_PACKAGE}"),
        ("g:a:1, io.delta:delta-spark_4.2_2.13:4.4.9", "g:a:1,io.delta:delta-spark_4.2_2.13:4.4.9"),
        ("", ""),
    ],
)
def test_deltas_package_comes_with_the_driver_unless_spark_has_it(spark: Spark, given: str | None, expected: str) -> None:
    conf = {} if given is None else {"spark.jars.packages": given}
    (packages,) = [each for each in option(command(spark.plan(STANDALONE, conf=conf)), "--conf") if ".packages=" in each]
    assert packages == f"spark.jars.packages={expected}"


def test_deltas_package_has_the_version_of_the_installed_delta() -> None:
    assert delta_package("4.1") == f"io.delta:delta-spark_4.1_2.13:{version('delta-spark')}"


@pytest.mark.parametrize("jars", ["jars", "lib/python3.12/site-packages/pyspark/jars"])
@pytest.mark.parametrize(
    ("release", "minor"), [("4.0.4", "4.0"), ("4.1.3-amzn-0", "4.1"), ("4.2.0", "4.2"), ("3.5.9", NEWEST), (None, NEWEST)]
)
def test_deltas_package_fits_the_version_of_spark_submit(
    spark: Spark, program: Path, monkeypatch: pytest.MonkeyPatch, jars: str, release: str | None, minor: str
) -> None:
    monkeypatch.delenv("SPARK_HOME", raising=False)
    if release is not None:
        jar = program.parent.parent / jars / f"spark-core_2.13-{release}.jar"
        jar.parent.mkdir(parents=True)
        jar.touch()
    assert spark.plan(STANDALONE).conf["spark.jars.packages"] == delta_package(minor)


def test_spark_home_says_which_spark_is_submitted_to(spark: Spark, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "spark/jars").mkdir(parents=True)
    (tmp_path / "spark/jars/spark-core_2.13-4.0.4.jar").touch()
    monkeypatch.setenv("SPARK_HOME", str(tmp_path / "spark"))
    assert spark.plan(STANDALONE).conf["spark.jars.packages"] == delta_package("4.0")


def test_a_python_that_is_chosen_for_the_driver_is_left_alone(spark: Spark) -> None:
    assert spark.plan(STANDALONE, conf={"spark.pyspark.python": "/p"}).environment() == {}


@pytest.mark.parametrize(
    ("host", "mode", "conf", "expected"),
    [
        (STANDALONE, "cluster", {}, "no Python application in cluster mode on a standalone cluster"),
        ("local[2]", "cluster", {}, "a local master has no cluster"),
        ("yarn", "remote", {}, "'remote' is neither client nor cluster"),
        ("yarn", "", {"spark.master": "local"}, "the Spark connection already names the master"),
        ("yarn", "cluster", {"spark.yarn.appMasterEnv.SPARK_JOBS_PARAM_TOKEN": "t"}, "would show the value of a secret"),
        (KUBERNETES, "cluster", {"spark.kubernetes.driverEnv.SPARK_JOBS_PARAM_TOKEN": "t"}, "would show the value of a secret"),
        ("mesos://host:5050", "", {}, "not the address of a Spark master"),
    ],
)
def test_a_submission_that_cannot_run_is_refused_when_it_is_planned(
    spark: Spark, host: str, mode: str, conf: dict[str, str], expected: str
) -> None:
    with pytest.raises(InvalidParameterError, match=expected) as refused:
        spark.plan(host, mode, conf)
    assert refused.value.remedy


@pytest.mark.parametrize("extra", [{"rest-port": "many"}, {"spark-binary": "rm"}, {"spark-home": "/opt/spark"}, {"keytab": "a"}])
def test_a_spark_connection_with_a_wrong_extra_is_refused(spark: Spark, extra: dict[str, str]) -> None:
    with pytest.raises(InvalidParameterError, match="Spark connection"):
        spark.plan(STANDALONE, **dict[str, Any](extra))


def test_a_missing_spark_connection_is_an_error_and_not_yarn() -> None:
    with pytest.raises(MissingRequirementError, match="no Airflow connection 'spark_default'"):
        plan_submission(Settings(spark_conn_id="spark_default"), {})


@pytest.mark.parametrize("conn_type", ["stream_pipeline", "spark_connect", "http"])
def test_a_connection_of_another_type_is_refused_as_spark_connection(monkeypatch: pytest.MonkeyPatch, conn_type: str) -> None:
    monkeypatch.setenv("AIRFLOW_CONN_SPARK_DEFAULT", json.dumps({"conn_type": conn_type, "host": STANDALONE}))
    with pytest.raises(InvalidParameterError) as refused:
        plan_submission(Settings(spark_conn_id="spark_default"), {})
    first_line = str(refused.value).splitlines()[0]
    assert f"Connection 'spark_default' has the type '{conn_type}', but spark_conn_id needs the type 'spark'." in first_line


def test_a_spark_connection_that_is_deleted_after_the_plan_does_not_change_the_master(
    spark: Spark, monkeypatch: pytest.MonkeyPatch
) -> None:
    submission = spark.plan(STANDALONE)
    monkeypatch.delenv("AIRFLOW_CONN_SPARK_DEFAULT")
    assert option(command(submission), "--master") == [STANDALONE]


def test_the_error_without_spark_submit_says_what_to_install(
    spark: Spark, program: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    spark.connection(STANDALONE)
    alone = Settings(spark_conn_id="spark_default", python="/bin/sh")
    with pytest.raises(MissingRequirementError, match="spark-submit is not a program"):
        plan_submission(alone, {})


def test_the_spark_submit_next_to_the_drivers_python_is_the_second_choice(
    spark: Spark, program: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    python = program.parent / "python"
    python.symlink_to(sys.executable)
    spark.connection(STANDALONE)
    assert plan_submission(Settings(spark_conn_id="spark_default", python=str(python)), {}).program == str(program)


def test_the_path_of_main_py_in_an_image_is_required(spark: Spark) -> None:
    spark.connection(KUBERNETES, **{"deploy-mode": "cluster"})
    with pytest.raises(MissingRequirementError, match="spark_main|main.py"):
        plan_submission(Settings(spark_conn_id="spark_default"), {})
    uploaded = plan_submission(Settings(spark_conn_id="spark_default"), {"spark.kubernetes.file.upload.path": "s3a://b/up"})
    assert uploaded.application == MAIN


def test_secret_parameters_reach_a_driver_on_this_host_only(spark: Spark) -> None:
    spark.plan("yarn", "client").check_secrets(["token"])
    with pytest.raises(RejectedError, match="token cannot reach a driver in cluster mode") as refused:
        spark.plan("yarn", "cluster").check_secrets(["token"])
    assert "credentials provider" in refused.value.remedy
    with pytest.raises(RejectedError) as refused:
        spark.plan(KUBERNETES, "cluster").check_secrets(["token"])
    assert "spark.kubernetes.driver.secretKeyRef.SPARK_JOBS_PARAM_TOKEN=NAME:KEY" in refused.value.remedy


def test_a_reference_to_a_kubernetes_secret_is_allowed_and_a_token_is_not() -> None:
    reference = {"spark.kubernetes.driver.secretKeyRef.SPARK_JOBS_PARAM_TOKEN": "etl:token"}
    assert Settings().driver_conf(reference) == reference
    with pytest.raises(InvalidParameterError, match="oauthToken"):
        Settings().driver_conf({"spark.kubernetes.authenticate.submission.oauthToken": "t"})


def test_a_connection_with_both_a_master_and_a_spark_connection_is_refused(spark: Spark) -> None:
    with pytest.raises(InvalidParameterError, match="both 'master' and 'spark_conn_id'"):
        read_settings({"master": "local[2]", "spark_conn_id": "spark_default"}, "c")


def test_a_keytab_is_one_file_that_only_its_user_can_read(tmp_path: Path) -> None:
    encoded = base64.b64encode(b"the keytab").decode()
    found = [keytab_file(encoded, tmp_path), keytab_file(encoded, tmp_path)]
    assert found[0] is not None
    assert found[0] == found[1]
    file = Path(found[0])
    assert [stat.S_IMODE(path.stat().st_mode) for path in (file, file.parent)] == [0o600, 0o700]
    assert list(file.parent.iterdir()) == [file]
    assert keytab_file("", tmp_path) is None


def test_no_keytab_is_written_into_a_directory_that_others_can_enter(tmp_path: Path) -> None:
    (tmp_path / f"stream-pipeline-{os.getuid()}").mkdir(mode=0o755)
    with pytest.raises(AccessDeniedError, match="others can enter it"):
        keytab_file(base64.b64encode(b"the keytab").decode(), tmp_path)


@pytest.mark.parametrize("shape", SHAPES)
def test_a_setting_with_a_secret_of_any_shape_is_in_the_environment_of_the_driver_and_in_no_command(
    spark: Spark, shape: str
) -> None:
    login = {"spark.executorEnv.LOGIN": SHAPES[shape]}
    submission = spark.plan(STANDALONE, conf=login)
    assert CORE not in json.dumps(command(submission))
    assert conf_of_environment(submission.environment()) == login


@pytest.mark.parametrize("master", ["yarn", KUBERNETES])
def test_a_secret_setting_is_refused_if_only_a_command_line_could_pass_it(spark: Spark, master: str) -> None:
    with pytest.raises(InvalidParameterError, match="spark.executorEnv.LOGIN cannot reach a driver in cluster mode") as refused:
        spark.plan(master, "cluster", conf={"spark.executorEnv.LOGIN": CORE})
    assert CORE not in str(refused.value)
