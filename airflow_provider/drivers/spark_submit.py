"""Submits drivers with ``spark-submit``, to the master of a Spark connection, with the command that the Spark provider builds.

Only the command comes from that provider. A driver is known by its home, wherever it runs. Waiting for it, judging its result and ending
it do not depend on how it was started.
"""

import os
import re
import shutil
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from airflow.providers.apache.spark.hooks.spark_submit import SparkSubmitHook
from airflow.sdk import BaseHook, Connection

import spark_jobs
from airflow_provider.drivers.keytabs import keytab_file
from airflow_provider.homes import home_options
from airflow_provider.settings import Settings
from airflow_provider.version_compat import AirflowException, AirflowNotFoundException
from spark_jobs.protocol.errors import InvalidParameterError, MissingRequirementError, RejectedError
from spark_jobs.protocol.ids import RequestId
from spark_jobs.protocol.spark_masters import is_local
from spark_jobs.protocol.spark_settings import PACKAGES, conf_environment, hidden_settings, requested_packages, shown_settings
from spark_jobs.protocol.spark_versions import NEWEST, SUPPORTED, check_spark_version, spark_minor

DELTA_VERSION = "4.4.0"
"""The release of Delta Lake for submitted drivers. It has jars for each Spark version that pipelines run on."""
_SPARK_JARS = ("jars", "lib/python3*/site-packages/pyspark/jars")
"""The directories with Spark's jars, in a distribution and in an installation by pip."""
_SPARK_CORE = re.compile(r"spark-core_2[.]13-(.+)[.]jar")
_DEPLOY_MODE = "spark.submit.deployMode"
_UPLOAD_PATH = "spark.kubernetes.file.upload.path"
_PARAMETER = "SPARK_JOBS_PARAM_"
_SECRET_REFERENCE = "spark.kubernetes.driver.secretKeyRef."
_PROBE_TIMEOUT_S = 60.0

_HOST = r"(?:[^\s/@:,\[\]]+|\[[0-9A-Fa-f:.]+\])"
_STANDALONE = re.compile(rf"spark://{_HOST}:\d+(?:,{_HOST}:\d+)*")


class MasterKind(StrEnum):
    """The kind of cluster that gives a driver its executors."""

    LOCAL = "local"
    STANDALONE = "standalone"
    YARN = "YARN"
    KUBERNETES = "Kubernetes"


class DeployMode(StrEnum):
    """The place where a driver runs."""

    CLIENT = "client"
    """On this host, as a child of ``spark-submit``."""
    CLUSTER = "cluster"
    """On a host that the cluster chooses."""


def parse_master(master: str) -> MasterKind:
    """Returns the kind of a Spark master, by its whole address.

    Raises:
        InvalidParameterError: Spark knows no such address.
    """
    if is_local(master):
        return MasterKind.LOCAL
    if _STANDALONE.fullmatch(master):
        return MasterKind.STANDALONE
    if master == "yarn":
        return MasterKind.YARN
    if master.startswith("k8s://") and _is_kubernetes_address(master.removeprefix("k8s://")):
        return MasterKind.KUBERNETES
    raise InvalidParameterError(
        f"{master!r} is not the address of a Spark master.",
        safe="No driver was started.",
        remedy="Write local[N], spark://HOST:PORT, yarn or k8s://https://HOST:PORT as the host of the Spark connection.",
        master=master,
    )


def _is_kubernetes_address(address: str) -> bool:
    try:
        parts = urlsplit(address if "://" in address else f"https://{address}")
        return parts.scheme in ("http", "https") and bool(parts.hostname) and parts.username is None and parts.port != 0
    except ValueError:  # a port that is no number
        return False


class _CommandBuilder(SparkSubmitHook):
    """The Spark provider's command builder, with the connection and the kind of master given.

    Without a connection, that builder would use the master ``yarn``. It would also guess the kind of a master from words anywhere in its
    address.
    """

    def __init__(self, connection: Connection, **arguments: Any) -> None:
        self._given = connection
        super().__init__(**arguments)

    def get_connection(self, conn_id: str) -> Connection:  # type: ignore[override]  # a class method, called on the instance only
        return self._given

    def _resolve_connection(self) -> dict[str, Any]:
        resolved: dict[str, Any] = super()._resolve_connection()
        self.master: str = resolved["master"]
        self.deploy_mode: str | None = resolved["deploy_mode"]
        self.binary: str = resolved["spark_binary"] or "spark-submit"
        return resolved | {"master": "", "spark_binary": self.binary}

    def command(self, kind: MasterKind, program: str, application: str) -> list[str]:
        self._connection["master"], self._is_kubernetes = self.master, kind is MasterKind.KUBERNETES
        built: list[str] = self._build_spark_submit_command(application)
        return [program, *built[1:]]


@dataclass(frozen=True)
class Submission:
    """The checked settings with which drivers are submitted through one Spark connection."""

    connection: Connection = field(repr=False)
    master: str
    kind: MasterKind
    deploy_mode: DeployMode
    program: str
    """The path of ``spark-submit``."""
    python: str
    """The interpreter of a driver on this host."""
    application: str
    """The path of ``spark_jobs/main.py``, on this host or in the cluster."""
    conf: Mapping[str, str]
    keytab: str | None

    @property
    def driver_is_here(self) -> bool:
        """True if the driver is a child of ``spark-submit``."""
        return self.deploy_mode is DeployMode.CLIENT

    def command(self, *, entry: str, home: str, request: RequestId, work_root: str | None = None) -> list[str]:
        """Returns the arguments that start the driver for a request. They contain no secrets."""
        builder = _CommandBuilder(
            self.connection,
            conf=shown_settings(self.conf),
            name=self.conf.get("spark.app.name", f"{Path(home).name} {request}"),
            deploy_mode=self.deploy_mode.value,
            keytab=self.keytab,
            application_args=[entry, *home_options(home, work_root), "--request", request],
        )
        return builder.command(self.kind, self.program, self.application)

    def environment(self) -> dict[str, str]:
        """Returns the variables that ``spark-submit`` gets in addition to this process's own."""
        chosen = any(key in self.conf for key in ("spark.pyspark.driver.python", "spark.pyspark.python"))
        python = {"PYSPARK_DRIVER_PYTHON": self.python} if self.driver_is_here and not chosen else {}
        return python | conf_environment(self.conf)

    def check_secrets(self, names: list[str]) -> None:
        """Refuses secret parameters for a driver that does not share the environment of ``spark-submit``.

        Raises:
            RejectedError: There are secret parameters.
        """
        if not names or self.driver_is_here:
            return
        variables = [f"{_PARAMETER}{name.upper()}" for name in names]
        remedy = "Use deploy mode client, or let the pipeline read them in its driver with a credentials provider."
        if self.kind is MasterKind.KUBERNETES:
            settings = ", ".join(f"{_SECRET_REFERENCE}{each}=NAME:KEY" for each in variables)
            remedy = f"Remove them from secrets=, and let Kubernetes give them to the driver: {settings} in conf."
        raise RejectedError(
            f"The secret parameters {', '.join(names)} cannot reach a driver in cluster mode: spark-submit would show them.",
            safe="No driver was started.",
            remedy=remedy,
            parameters=names,
        )


def plan_submission(settings: Settings, conf: Mapping[str, str]) -> Submission:
    """Checks the Spark connection and the settings of a submission. Starts nothing.

    Args:
        settings: The settings of the ``stream_pipeline`` connection, which name a Spark connection.
        conf: All Spark settings of the driver.

    Raises:
        RejectedError: The Spark connection or a setting is not allowed.
    """
    assert settings.spark_conn_id is not None
    connection = _connection(settings.spark_conn_id)
    keytab = keytab_file(connection.extra_dejson.get("keytab"))
    try:
        found = _CommandBuilder(connection, keytab=keytab)
    except (AirflowException, TypeError, ValueError) as error:
        raise _refused(
            settings.spark_conn_id, f"cannot be used: {error}", "Correct its extras under Admin, Connections."
        ) from error
    kind = parse_master(found.master)
    left = _checked(conf)
    mode = _deploy_mode(left.pop(_DEPLOY_MODE, "") or found.deploy_mode or DeployMode.CLIENT.value, kind)
    if mode is DeployMode.CLIENT:
        settings.check_python()
    else:
        _check_shown(left)
    program = _program(found.binary, settings.python)
    return Submission(
        connection=connection,
        master=found.master,
        kind=kind,
        deploy_mode=mode,
        program=program,
        python=settings.python,
        application=_application(settings, kind, mode, left),
        conf=_defaults(kind, mode) | left | _delta(left, program),
        keytab=keytab,
    )


def check_spark(submission: Submission) -> str:
    """Runs ``spark-submit --version`` and returns the version of Spark.

    Raises:
        MissingRequirementError: It does not run, or belongs to a Spark version that cannot run pipelines.
    """
    try:
        done = subprocess.run(
            [submission.program, "--version"],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=_PROBE_TIMEOUT_S,
            check=True,
            env=dict(os.environ) | submission.environment(),
        )
    except (OSError, subprocess.SubprocessError) as error:
        said = (getattr(error, "stderr", None) or str(error)).strip().splitlines()
        raise MissingRequirementError(
            f"{submission.program} does not run: {said[-1] if said else type(error).__name__}.",
            remedy="Install Spark with its scripts there, with Java 17 or newer.",
            program=submission.program,
        ) from error
    said = re.search(r"version (\d\S*)", done.stderr + done.stdout)
    version = said[1] if said else "unknown"
    check_spark_version(
        version,
        owner=submission.program,
        remedy="Install one of them there, and put its bin directory first in the workers' PATH.",
    )
    return version


def _connection(conn_id: str) -> Connection:
    try:
        connection = BaseHook.get_connection(conn_id)
    except AirflowNotFoundException as error:
        raise MissingRequirementError(
            f"There is no Airflow connection '{conn_id}'.",
            remedy=f"Create it: airflow connections add {conn_id} --conn-type spark --conn-host spark://HOST --conn-port 7077",
            connection=conn_id,
        ) from error
    if connection.conn_type and connection.conn_type != SparkSubmitHook.conn_type:
        raise InvalidParameterError(
            f"Connection '{conn_id}' has the type '{connection.conn_type}', but spark_conn_id needs the type"
            f" '{SparkSubmitHook.conn_type}'.",
            safe="No driver was started.",
            remedy="Name another connection in the extra spark_conn_id, or change the type under Admin, Connections.",
            connection=conn_id,
            expected=SparkSubmitHook.conn_type,
            found=connection.conn_type,
        )
    return connection


def _checked(conf: Mapping[str, str]) -> dict[str, str]:
    if "spark.master" in conf:
        raise InvalidParameterError(
            "spark.master is set, but the Spark connection already names the master.",
            safe="No driver was started.",
            remedy="Remove spark.master from conf.",
            setting="spark.master",
        )
    shown = sorted(key for key in conf if f".{_PARAMETER}" in key and not key.startswith(_SECRET_REFERENCE))
    if shown:
        raise InvalidParameterError(
            f"{', '.join(shown)} would show the value of a secret parameter to everyone who can see the application.",
            safe="No driver was started.",
            remedy=f"On Kubernetes use {_SECRET_REFERENCE}{_PARAMETER}NAME=SECRET:KEY; elsewhere deploy mode client and secrets=.",
            settings=shown,
        )
    return dict(conf)


def _check_shown(conf: Mapping[str, str]) -> None:
    """Refuses secret settings in cluster mode: only a command line could carry them to the driver, and everyone can read that."""
    hidden = sorted(hidden_settings(conf))
    if hidden:
        raise InvalidParameterError(
            f"{', '.join(hidden)} cannot reach a driver in cluster mode: the command line would show the value to everyone on the host.",
            safe="No driver was started.",
            remedy="Put it into spark-defaults.conf of the host that runs spark-submit, or use deploy mode client.",
            settings=hidden,
        )


def _deploy_mode(mode: str, kind: MasterKind) -> DeployMode:
    try:
        found = DeployMode(mode)
    except ValueError:
        raise InvalidParameterError(
            f"The deploy mode {mode!r} is neither client nor cluster.",
            safe="No driver was started.",
            remedy=f"Correct deploy-mode in the Spark connection's extras, or {_DEPLOY_MODE} in conf.",
            deploy_mode=mode,
        ) from None
    if found is DeployMode.CLUSTER and kind in (MasterKind.LOCAL, MasterKind.STANDALONE):
        why = {
            MasterKind.LOCAL: "a local master has no cluster",
            MasterKind.STANDALONE: "Spark runs no Python application in cluster mode on a standalone cluster",
        }
        raise InvalidParameterError(
            f"Deploy mode cluster is not possible with a {kind} master: {why[kind]}.",
            safe="No driver was started.",
            remedy="Use deploy mode client.",
            deploy_mode=mode,
        )
    return found


def _program(binary: str, python: str) -> str:
    """Returns the ``spark-submit`` on the worker's PATH, or else the one that was installed with the driver's Python."""
    directory = os.path.dirname(shutil.which(python) or python)
    found = shutil.which(binary) or shutil.which(binary, path=directory)
    if found is None:
        raise MissingRequirementError(
            f"{binary} is not a program on this host.",
            safe="No driver was started.",
            remedy="Install Spark on the workers, and add its bin directory to their PATH.",
            program=binary,
        )
    return os.path.abspath(found)


def delta_package(minor: str) -> str:
    """Returns the Maven package of Delta Lake for one of Spark's minor versions."""
    return f"io.delta:delta-spark_{minor}_2.13:{DELTA_VERSION}"


def _spark_minor(program: str) -> str:
    """Returns the minor version of the Spark that a ``spark-submit`` belongs to, by its jars; the newest one without jars.

    Starts nothing. A driver with jars for another Spark version does not start, and its error names the package that it needs.
    """
    own = Path(program).resolve().parent.parent
    homes = [Path(given)] if (given := os.environ.get("SPARK_HOME")) else [own]
    jars = (jar.name for home in homes for place in _SPARK_JARS for jar in home.glob(f"{place}/spark-core_*.jar"))
    minors = (spark_minor(found[1]) for jar in jars if (found := _SPARK_CORE.fullmatch(jar)))
    return next((minor for minor in minors if minor in SUPPORTED), NEWEST)


def _application(settings: Settings, kind: MasterKind, mode: DeployMode, conf: Mapping[str, str]) -> str:
    own = str(Path(spark_jobs.__file__).with_name("main.py"))
    if mode is DeployMode.CLIENT:
        return own
    if settings.spark_main is None and kind is MasterKind.KUBERNETES and _UPLOAD_PATH not in conf:
        raise MissingRequirementError(
            "The path of spark_jobs/main.py in the driver's image is not known.",
            safe="No driver was started.",
            remedy="Set spark_main in the stream_pipeline connection's extras, such as local:///opt/venv/lib/python3.11/site-packages/"
            f"spark_jobs/main.py, or {_UPLOAD_PATH} in conf.",
        )
    return settings.spark_main or own


def _defaults(kind: MasterKind, mode: DeployMode) -> dict[str, str]:
    """Returns the settings of cluster mode.

    ``spark-submit`` ends at once, because a waiting one would keep a JVM on the worker. YARN starts the driver only once, because a
    second driver would find that its attempt has begun.
    """
    if mode is DeployMode.CLIENT:
        return {}
    if kind is MasterKind.YARN:
        return {"spark.yarn.submit.waitAppCompletion": "false", "spark.yarn.maxAppAttempts": "1"}
    return {"spark.kubernetes.submission.waitAppCompletion": "false"}


def _delta(conf: Mapping[str, str], program: str) -> dict[str, str]:
    """Adds Delta's package to the requested packages, unless Spark has it."""
    packages, without_delta = requested_packages(conf)
    if without_delta:
        packages.append(delta_package(_spark_minor(program)))
    return {PACKAGES: ",".join(packages)} if packages else {}


def _refused(conn_id: str, what: str, remedy: str) -> InvalidParameterError:
    return InvalidParameterError(
        f"The Spark connection '{conn_id}' {what}", safe="No driver was started.", remedy=remedy, connection=conn_id
    )
