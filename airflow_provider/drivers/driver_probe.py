"""Finds the versions of Python, Spark, Delta and Java that a driver on this host would use."""

import json
import re
import subprocess
from tempfile import TemporaryDirectory

from spark_jobs.protocol.errors import MissingRequirementError
from spark_jobs.protocol.spark_versions import check_spark_version

_JAVA = 17
"""The oldest version of Java that Spark runs on."""
_PROBE_TIMEOUT_S = 60.0
_PROBE = """
import importlib.metadata as m, json, os, platform, shutil, subprocess
import spark_jobs
home = os.environ.get("JAVA_HOME")
java = shutil.which(os.path.join(home, "bin", "java") if home else "java")
said = subprocess.run([java, "-version"], capture_output=True, text=True).stderr if java else ""
print(json.dumps({"Python": platform.python_version(), "pyspark": m.version("pyspark"), "delta-spark": m.version("delta-spark"),
                  "Java": next((line for line in said.splitlines() if 'version "' in line), None)}))
"""


def probe_driver(python: str) -> dict[str, str]:
    """Starts the driver's Python and returns the versions of Python, Spark, Delta and Java, by name.

    Raises:
        MissingRequirementError: Something is missing, or has a version that cannot run pipelines.
    """
    try:
        with TemporaryDirectory(prefix="spark-jobs-") as empty:  # so that nothing is imported from this process's directory
            probe = subprocess.run(
                [python, "-P", "-c", _PROBE],
                cwd=empty,
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                timeout=_PROBE_TIMEOUT_S,
                check=True,
            )
        found: dict[str, str | None] = json.loads(probe.stdout)
    except (OSError, subprocess.SubprocessError, ValueError) as error:
        said = (getattr(error, "stderr", None) or str(error)).strip().splitlines()
        raise MissingRequirementError(
            f"{python} cannot run a driver: {said[-1] if said else type(error).__name__}.",
            remedy="Install this package with its 'spark' extra there, or name another Python in the connection's extras.",
            python=python,
        ) from error
    if found["Java"] is None:
        raise MissingRequirementError(
            f"{python} finds no Java.", remedy=f"Install Java {_JAVA} or newer there, or set JAVA_HOME.", python=python
        )
    versions = {name: str(version) for name, version in found.items()}
    java = re.search(r'version "(\d+)', versions["Java"])
    if java is None or int(java[1]) < _JAVA:
        raise _unfit(python, versions["Java"], f"Java {_JAVA} or newer")
    check_spark_version(
        versions["pyspark"],
        owner=python,
        remedy="Install this package with its 'spark' extra there, or name another Python in the connection's extras.",
    )
    return versions


def _unfit(python: str, found: str, needed: str) -> MissingRequirementError:
    return MissingRequirementError(
        f"{python} finds {found}; a driver needs {needed}.",
        remedy=f"Install {needed} there, or name another Python in the connection's extras.",
        python=python,
        found=found,
    )
