"""Frames of a flow that is called before Spark starts. They know their inputs, but have neither columns nor rows."""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from pyspark.sql import Column, DataFrame, GroupedData
from pyspark.sql import functions as F

from spark_jobs.declarative.session import NeedsSparkError
from spark_jobs.runtime.spark.columns_at_import import readable_text

_NEED_ALL_ROWS = frozenset({"limit", "offset", "orderBy", "sort"})
"""The methods that Spark cannot run on a stream of single rows."""
_GROUP = frozenset({"agg", "cube", "distinct", "dropDuplicates", "drop_duplicates", "groupBy", "groupby", "rollup"})
"""The methods that make groups. While Spark keeps all groups of a stream up to date, it cannot group groups or joined rows."""
_JOINS = frozenset({"crossJoin", "join"})
_COMPARE = frozenset({"exceptAll", "intersect", "intersectAll", "subtract"})
"""The methods that compare the rows of two frames as a whole."""
_INNER = ("inner", "cross")
_KEEP_LEFT, _KEEP_RIGHT = ("left", "leftouter", "semi", "leftsemi", "anti", "leftanti"), ("right", "rightouter")
"""The joins that Spark can run if only the frame of that side grows."""
_NEEDS_ALL_ROWS = re.compile(r"\bover\s*\(|\b(?:count|sum)_?distinct\s*\(|\(\s*distinct\b", re.IGNORECASE)
"""Finds window functions, and aggregates of distinct values, which Spark cannot run on streams."""
_KEEP_ROWS_AS_READ = frozenset({"alias", "filter", "where"})
"""The methods that leave the columns of an input unchanged."""


@dataclass(frozen=True)
class FrameStandIn:
    """A stand-in for a frame.

    Args:
        spark: The session's stand-in.
        direct: Name of the input whose columns the frame has unchanged; None if it may have others.
        aggregated: True if its rows are groups.
        mark: Called with ``direct`` and the arguments of ``withWatermark``.
        whole: True if its rows can only be computed from all rows of its inputs.
        joined: True if its rows come from a join of inputs that grow.
        grows: True if an input grows while the pipeline runs.
    """

    spark: Any = field(repr=False)
    direct: str | None = None
    aggregated: bool = False
    mark: Callable[[str | None, str, str], None] = field(default=lambda direct, column, delay: None, repr=False)
    whole: bool = False
    joined: bool = False
    grows: bool = True

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
            return _Grouped(self, self.aggregated)  # na and stat

        def call(*arguments: Any, **options: Any) -> Any:
            values = [*arguments, *options.values()]
            given = [each for each in values if isinstance(each, FrameStandIn)]
            frames = (self, *given)
            aggregated = name == "agg" or any(each.aggregated for each in frames)
            whole = any(each.whole for each in frames) or self._needs_all_rows(name, arguments, options, given)
            joined = any(each.joined for each in frames) or (name in _JOINS and all(each.grows for each in frames))
            direct = self.direct if name in _KEEP_ROWS_AS_READ else None
            grows = any(each.grows for each in frames)
            frame = FrameStandIn(self.spark, direct, aggregated, self.mark, whole, joined, grows)
            return frame if gives is DataFrame else _Grouped(frame, True)

        return call

    def _needs_all_rows(
        self, name: str, arguments: Sequence[Any], options: Mapping[str, Any], given: "Sequence[FrameStandIn]"
    ) -> bool:
        """Returns True if a method's result cannot be kept as a stream, although its frames can."""
        if name in _NEED_ALL_ROWS and not self.aggregated:
            return True
        if name in _GROUP and (self.aggregated or self.joined):
            return True
        if any(_NEEDS_ALL_ROWS.search(text) for text in _texts([*arguments, *options.values()])):
            return True
        both = self.grows and any(each.grows for each in given)
        if name in _COMPARE:
            return both
        if name not in _JOINS or not given:
            return False
        how = options.get("how", arguments[2] if len(arguments) > 2 else None)
        kind = str(how or "inner").replace("_", "").casefold()
        if both:
            return kind not in _INNER or self.aggregated or given[0].aggregated
        return kind not in (*_INNER, *(_KEEP_LEFT if self.grows else _KEEP_RIGHT))


class _Grouped:
    """A stand-in for the results of ``groupBy``, ``na`` and ``stat``. Its methods return frames."""

    def __init__(self, frame: FrameStandIn, aggregated: bool) -> None:
        self._frame = frame
        self._aggregated = aggregated

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        if name == "pivot":
            return lambda *arguments, **options: _Grouped(replace(self._frame, whole=True), self._aggregated)

        def call(*arguments: Any, **options: Any) -> FrameStandIn:
            needs_all = any(_NEEDS_ALL_ROWS.search(text) for text in _texts([*arguments, *options.values()]))
            return replace(self._frame, direct=None, aggregated=self._aggregated, whole=self._frame.whole or needs_all)

        return call


def _texts(values: Iterable[Any]) -> Iterator[str]:
    """Yields the texts of the columns and of the SQL expressions among the arguments of a method."""
    for value in values:
        if isinstance(value, str):
            yield value
        elif isinstance(value, Column):
            yield readable_text(value)
        elif isinstance(value, Mapping):
            yield from _texts(value.values())
        elif isinstance(value, list | tuple):
            yield from _texts(value)


def _gives(attribute: Any) -> type | None:
    """Returns the stand-in class for the result of a ``DataFrame`` method: a frame, or an object that makes frames. None for others."""
    function = attribute.fget if isinstance(attribute, property) else attribute
    returned = getattr(function, "__annotations__", {}).get("return")
    name = returned if isinstance(returned, str) else getattr(returned, "__name__", "")
    if name == "DataFrame":
        return DataFrame
    return GroupedData if name in ("GroupedData", "DataFrameNaFunctions", "DataFrameStatFunctions") else None
