"""Reads and checks the extras of a ``stream_pipeline`` connection."""

import json
import re
import shutil
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from airflow_provider.orders import checkpoint_overrides
from spark_jobs.protocol.checkpointing import CheckpointOverrides
from spark_jobs.protocol.errors import InvalidParameterError, MissingRequirementError
from spark_jobs.protocol.spark_settings import is_shown, sounds_secret
from spark_jobs.storage.object_store_kinds import CANONICAL_SCHEMES

CONN_TYPE = "stream_pipeline"
_PLACES = ("/", "hdfs:", *(f"{scheme}:" for scheme in CANONICAL_SCHEMES))
"""The beginnings of places for work directories."""
EXTRAS = (
    "home_root",
    "work_root",
    "savepoint_root",
    "store_conn_id",
    "python",
    "master",
    "conf",
    "checkpoint",
    "spark_conn_id",
    "spark_main",
)
"""The allowed extras of a connection, which are the fields of its form."""
_PROPERTY = re.compile(r"-D([^\s=]+)=\S")
"""Matches a Java property on a command line."""
_KNOWN_PROPERTY = re.compile(
    r"(log4j2?|javax?|jdk|sun|com[.]sun|user|file|os|net|networkaddress|https?|io[.]netty|derby|delta|arrow)[.]|(stdout|stderr)[.]encoding$"
)
"""Matches Java properties that may appear on the command line of Spark's JVM. Any other one might hold a secret."""
_SECRET_INSIDE = re.compile(
    r"://[^/\s:@]+:[^/\s@]+@|\b(bearer|basic)\s+\S|(^|[?&;\s])(password|pwd|sig|secret|token|AccountKey|SharedAccessKey)=\S",
    re.IGNORECASE,
)
"""Matches a password in a URL, or a secret among the parameters of a URL, a connection or a login."""


@dataclass(frozen=True)
class Settings:
    """The places of homes and savepoints, and the settings with which drivers are started."""

    roots: tuple[str, ...] = ()
    """``home_root``: the directories, or prefixes in stores, that may hold homes; required."""
    savepoint_roots: tuple[str, ...] = ()
    """Further directories, or prefixes in stores, that may hold savepoints."""
    python: str = sys.executable
    master: str | None = None
    conf: Mapping[str, str] = field(default_factory=dict)
    checkpoint: CheckpointOverrides | None = None
    """Overrides for the pipelines' checkpoint settings."""
    spark_conn_id: str | None = None
    """The Spark connection to whose master drivers are submitted. None: a driver is a process of ``python`` on this host."""
    spark_main: str | None = None
    """The path of ``spark_jobs/main.py`` in a cluster."""
    work_root: str | None = None
    """The place for the work directories of homes in stores: a directory, or a URL."""
    store_conn_id: str | None = None
    """The connection with the credentials for an object store. None: those of the environment, or the role of the host."""

    def driver_conf(self, own: Mapping[str, str]) -> dict[str, str]:
        """Returns the Spark settings of one driver: the connection's, overridden by the task's ``own``.

        Raises:
            InvalidParameterError: A setting is or contains a secret. Airflow shows the settings of a task, and every user of a host can
                read command lines.
        """
        master = {"spark.master": self.master} if self.master else {}
        conf = master | dict(self.conf) | dict(own)
        if secrets := sorted(key for key, value in conf.items() if _is_secret(key, value)):
            raise InvalidParameterError(
                f"Spark settings of a connection or a task may not contain secrets: {', '.join(secrets)}.",
                safe="No driver was started.",
                remedy="Put them into spark-defaults.conf of the driver's host, or use a credentials provider.",
                settings=secrets,
            )
        return conf

    def local_conf(self, own: Mapping[str, str]) -> dict[str, str]:
        """Returns :meth:`driver_conf` for a Spark in a process on this host, whatever cluster runs the drivers."""
        return {key: value for key, value in self.driver_conf(own).items() if key != "spark.submit.deployMode"}

    def check_python(self) -> None:
        """Refuses a driver's Python that does not exist, before a start is requested.

        Raises:
            MissingRequirementError: It is no program on this host.
        """
        if shutil.which(self.python) is None:
            raise MissingRequirementError(
                f"The driver's Python {self.python} is not a program on this host.",
                safe="No driver was started.",
                remedy="Set 'python' in the connection's extras to a Python with this package's 'spark' extra.",
                python=self.python,
            )


def _is_secret(key: str, value: str) -> bool:
    properties = _PROPERTY.findall(value)
    if is_shown(key) and not all(map(_KNOWN_PROPERTY.match, properties)):
        return True
    return any(map(sounds_secret, (key, *properties))) or _SECRET_INSIDE.search(value) is not None


def read_settings(extra: Mapping[str, Any], conn_id: str, conn_type: str | None = CONN_TYPE) -> Settings:
    """Reads the extras of a connection. An empty field of the form counts as not given.

    Raises:
        InvalidParameterError: The connection has another type, or an extra is unknown or has an invalid value.
    """
    if conn_type and conn_type != CONN_TYPE:
        raise InvalidParameterError(
            f"Connection '{conn_id}' has the type '{conn_type}', but a pipeline needs the type '{CONN_TYPE}'.",
            remedy="Name another connection in conn_id, or change the type under Admin, Connections. To use a Spark connection, name it in "
            "the extra spark_conn_id.",
            connection=conn_id,
            expected=CONN_TYPE,
            found=conn_type,
        )
    given = {name: value for name, value in extra.items() if value not in (None, "", [], {})}
    if unknown := sorted(set(given) - set(EXTRAS)):
        raise InvalidParameterError(
            f"Connection '{conn_id}' has unknown extras: {', '.join(unknown)}.",
            exists=f"Known extras are: {', '.join(EXTRAS)}.",
            remedy="Correct or remove these extras under Admin, Connections.",
            connection=conn_id,
            extras=unknown,
        )
    for name in ("work_root", "store_conn_id", "python", "master", "spark_conn_id", "spark_main"):
        if not isinstance(given.get(name, ""), str):
            raise _refused(conn_id, name, given[name], "a text")
    if not given.get("work_root", "/").startswith(_PLACES):
        raise _refused(conn_id, "work_root", given["work_root"], "an absolute directory, or an s3:, abfss:, gs: or hdfs: URL")
    conf = given.get("conf", {})
    if isinstance(conf, str):
        try:
            conf = json.loads(conf)
        except ValueError:
            raise _refused(conn_id, "conf", conf, "a JSON object") from None
    if not isinstance(conf, dict) or not all(isinstance(value, str) for value in conf.values()):
        raise _refused(conn_id, "conf", conf, "a JSON object of texts")
    if "master" in given and "spark_conn_id" in given:
        raise InvalidParameterError(
            f"Connection '{conn_id}' has both 'master' and 'spark_conn_id': the Spark connection names the master.",
            remedy="Remove one of them under Admin, Connections.",
            connection=conn_id,
        )
    return Settings(
        roots=_roots(conn_id, "home_root", given),
        work_root=given.get("work_root"),
        savepoint_roots=_roots(conn_id, "savepoint_root", given),
        python=given.get("python", sys.executable),
        master=given.get("master"),
        conf=conf,
        checkpoint=checkpoint_overrides(f"The extra 'checkpoint' of connection '{conn_id}'", given.get("checkpoint")),
        spark_conn_id=given.get("spark_conn_id"),
        spark_main=given.get("spark_main"),
        store_conn_id=given.get("store_conn_id"),
    )


def _roots(conn_id: str, name: str, given: Mapping[str, Any]) -> tuple[str, ...]:
    roots = given.get(name, ())
    if isinstance(roots, str):
        roots = [root.strip() for root in re.split(r"[,\n]", roots) if root.strip()]
    if not isinstance(roots, list | tuple) or not all(isinstance(root, str) for root in roots):
        raise _refused(conn_id, name, roots, "a directory, or several separated by commas")
    return tuple(roots)


def _refused(conn_id: str, name: str, found: Any, wanted: str) -> InvalidParameterError:
    return InvalidParameterError(
        f"The extra '{name}' of connection '{conn_id}' is {type(found).__name__}, not {wanted}.",
        remedy="Correct the extra under Admin, Connections.",
        connection=conn_id,
        extra=name,
    )
