"""A function of a stage that fails at some rows while a flag exists."""

from collections.abc import Callable
from pathlib import Path

from pyspark.sql import Column
from pyspark.sql import functions as F


def failing_from(first: int, flag: Path) -> Callable[[str], Column]:
    """Returns a function that hands on a column of numbers unchanged. It fails at numbers from ``first`` on while ``flag`` exists."""

    def fail(n: int) -> int:
        if n >= first and flag.exists():
            raise ConnectionError("failed as told")
        return n

    return F.udf(fail, "long", useArrow=False)
