"""Frames of a flow that is called before Spark starts. They know their inputs, but have neither columns nor rows."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from pyspark.sql import DataFrame, GroupedData
from pyspark.sql import functions as F

from spark_jobs.declarative.session import NeedsSparkError

_NEED_ALL_ROWS = frozenset({"limit", "offset", "orderBy", "sort"})
"""The methods that Spark cannot run on a stream of single rows."""
_KEEP_ROWS_AS_READ = frozenset({"alias", "filter", "where"})
"""The methods that leave the columns of an input unchanged."""


@dataclass(frozen=True)
class FrameStandIn:
    """A stand-in for a frame.

    Args:
        spark: The session's stand-in.
        direct: Input whose columns it has, if it has no others.
        aggregated: True if its rows are groups.
        mark: Called with an input and the arguments of ``withWatermark``.
        whole: True if its rows can only be computed from all rows of its inputs.
    """

    spark: Any = field(repr=False)
    direct: str | None = None
    aggregated: bool = False
    mark: Callable[[str | None, str, str], None] = field(default=lambda direct, column, delay: None, repr=False)
    whole: bool = False

    @property
    def sparkSession(self) -> Any:
        return self.spark

    def withWatermark(self, eventTime: str, delayThreshold: str) -> "FrameStandIn":
        self.mark(self.direct, eventTime, delayThreshold)
        return self

    def transform(self, func: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        return func(self, *args, **kwargs)

    def __getitem__(self, item: Any) -> Any:
        return F.col(item) if isinstance(item, str) else self.where(item)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        attribute = getattr(DataFrame, name, None)
        if attribute is None and not name.startswith("_"):
            return F.col(name)
        gives = _gives(attribute)
        if gives is None:
            raise NeedsSparkError(name)
        if not callable(attribute):
            return _Grouped(self, self.aggregated)

        def call(*arguments: Any, **options: Any) -> Any:
            given = [each for each in (*arguments, *options.values()) if isinstance(each, FrameStandIn)]
            aggregated = name == "agg" or any(each.aggregated for each in (self, *given))
            whole = (name in _NEED_ALL_ROWS and not aggregated) or any(each.whole for each in (self, *given))
            direct = self.direct if name in _KEEP_ROWS_AS_READ else None
            frame = FrameStandIn(self.spark, direct, aggregated, self.mark, whole)
            return frame if gives is DataFrame else _Grouped(frame, True)

        return call


class _Grouped:
    """A stand-in for the results of ``groupBy``, ``na`` and ``stat``. Its methods return frames."""

    def __init__(self, frame: FrameStandIn, aggregated: bool) -> None:
        self._frame = frame
        self._aggregated = aggregated

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return lambda *arguments, **options: (
            self
            if name == "pivot"
            else FrameStandIn(self._frame.spark, None, self._aggregated, self._frame.mark, self._frame.whole)
        )


def _gives(attribute: Any) -> type | None:
    """Returns the stand-in class for the result of a ``DataFrame`` method: a frame, or an object that makes frames. None for others."""
    function = attribute.fget if isinstance(attribute, property) else attribute
    returned = getattr(function, "__annotations__", {}).get("return")
    name = returned if isinstance(returned, str) else getattr(returned, "__name__", "")
    if name == "DataFrame":
        return DataFrame
    return GroupedData if name in ("GroupedData", "DataFrameNaFunctions", "DataFrameStatFunctions") else None
