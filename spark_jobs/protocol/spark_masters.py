"""The local masters of Spark, whose executors run on the driver's host."""

import os
import re

_ONE_JVM = re.compile(r"local(?:\[(\*|[1-9]\d*)(?:\s*,\s*\d+)?\])?")
_LOCAL_CLUSTER = re.compile(r"local-cluster\[\s*\d+\s*,\s*\d+\s*,\s*\d+\s*\]")


def is_local(master: str) -> bool:
    """Returns True if executors of this master run on the driver's host, in its JVM or in others."""
    return _ONE_JVM.fullmatch(master) is not None or _LOCAL_CLUSTER.fullmatch(master) is not None


def cores_of_one_jvm(master: str) -> int | None:
    """Returns the number of cores of a Spark that runs in one JVM. Returns None if executors have JVMs of their own."""
    found = _ONE_JVM.fullmatch(master)
    if found is None:
        return None
    number = found[1] or "1"
    return os.cpu_count() or 1 if number == "*" else int(number)
