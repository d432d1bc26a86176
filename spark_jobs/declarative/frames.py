"""Frames of a flow that is called before Spark starts. They know their inputs, but have neither columns nor rows."""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from pyspark.sql import Column, DataFrame, GroupedData
from pyspark.sql import functions as F

from spark_jobs.declarative.session import NeedsSparkError
from spark_jobs.runtime.spark.columns_at_import import readable_text

_ROW_METHODS = """
alias coalesce drop dropna fillna filter hint mapInArrow mapInPandas melt observe repartition repartitionById repartitionByRange replace
select selectExpr to toDF unpivot where withColumn withColumnRenamed withColumns withColumnsRenamed withMetadata
"""
_EACH_ROW = frozenset(_ROW_METHODS.split())
"""The methods that look at one row at a time. A method that no set here has needs all rows."""
_SORT = frozenset({"limit", "offset", "orderBy", "sort"})
"""The methods that Spark can run on a stream of groups, but not on one of single rows."""
_GROUP = frozenset(
    {"agg", "cube", "distinct", "dropDuplicates", "drop_duplicates", "groupBy", "groupby", "groupingSets", "rollup"}
)
"""The methods that make groups. While Spark keeps all groups of a stream up to date, it cannot group groups or joined rows."""
_JOINS = frozenset({"crossJoin", "join"})
_UNITE = frozenset({"union", "unionAll", "unionByName"})
"""The methods that add the rows of two frames. Spark replaces groups and adds other rows, but cannot do both in one stream."""
_INNER = ("inner", "cross")
_KEEP_LEFT, _KEEP_RIGHT = ("left", "leftouter", "semi", "leftsemi", "anti", "leftanti"), ("right", "rightouter")
"""The joins that Spark can run if only the frame of that side grows."""
_EQUALITY = re.compile(r"\b(?:equalTo|eqNullSafe|EqualNullSafe)\(|<=>|(?<![<>!])=", re.IGNORECASE)
"""Finds a comparison that Spark can join two streams by."""
_NEEDS_ALL_ROWS = re.compile(
    r"\bover\s*\(|\b(?:count|sum|listagg|string_agg)_?distinct\s*\(|\(\s*distinct\b"
    r"|\b(?:current_date|current_time|current_timestamp|localtimestamp)\b|\b(?:curdate|now|unix_timestamp)\s*\(\s*\)",
    re.IGNORECASE,
)
"""Finds window functions and aggregates of distinct values, which Spark cannot run on streams. Finds also the current time:
at another time a view may have other rows."""
_AGGREGATE_NAMES = """
    any any_value approx_count_distinct approx_percentile approx_top_k approx_top_k_accumulate approx_top_k_combine array_agg avg bit_and
    bit_or bit_xor bitmap_and_agg bitmap_construct_agg bitmap_or_agg bool_and bool_or collect_list collect_set corr count count_distinct
    count_if count_min_sketch covar_pop covar_samp every first first_value grouping grouping_id histogram_numeric hll_sketch_agg
    hll_union_agg kll_merge_agg_bigint kll_merge_agg_double kll_merge_agg_float kll_sketch_agg_bigint kll_sketch_agg_double
    kll_sketch_agg_float kurtosis last last_value listagg listagg_distinct max max_by mean measure median min min_by mode percentile
    percentile_approx percentile_cont percentile_disc product regr_avgx regr_avgy regr_count regr_intercept regr_r2 regr_slope regr_sxx
    regr_sxy regr_syy skewness some std stddev stddev_pop stddev_samp string_agg string_agg_distinct sum sum_distinct
    theta_intersection_agg theta_sketch_agg theta_union_agg try_avg try_sum tuple_intersection_agg_double tuple_intersection_agg_integer
    tuple_sketch_agg_double tuple_sketch_agg_integer tuple_union_agg_double tuple_union_agg_integer var_pop var_samp variance
"""
AGGREGATES = frozenset(_AGGREGATE_NAMES.split())
"""Spark's functions that make one value of many rows."""
_AGGREGATE = re.compile(rf"(?<![\w.])(?:{'|'.join(sorted(AGGREGATES))})\s*\(", re.IGNORECASE)
_SELECT = frozenset({"select", "selectExpr"})
_AGGREGATE_GROUPS = frozenset({"agg", "avg", "count", "max", "mean", "min", "sum"})
_CHANGE_NULLS = frozenset({"drop", "fill", "replace"})
"""The methods of ``na`` that look at one row at a time."""
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
            return _Grouped(self, False)  # na and stat

        def call(*arguments: Any, **options: Any) -> Any:
            values = [*arguments, *options.values()]
            given = [each for each in values if isinstance(each, FrameStandIn)]
            if name in _JOINS and given:
                named = {**dict(zip(("other", "on", "how"), arguments, strict=False)), **options}
                return self.joined_with(given[0], named.get("how") or "inner", by_equality=_has_equality(named.get("on")))
            frames, texts = (self, *given), [*_texts(values)]
            groups = name == "agg" or (name in _SELECT and any(map(_AGGREGATE.search, texts)))
            frame = FrameStandIn(
                self.spark,
                self.direct if name in _KEEP_ROWS_AS_READ else None,
                groups or any(each.aggregated for each in frames),
                self.mark,
                any(each.whole for each in frames) or self._needs_all_rows("agg" if groups else name, texts, given),
                any(each.joined for each in frames),
                any(each.grows for each in frames),
            )
            return frame if gives is DataFrame else _Grouped(frame, True)

        return call

    def joined_with(self, other: "FrameStandIn", how: str, *, by_equality: bool) -> "FrameStandIn":
        """Returns the stand-in for a join.

        Args:
            other: The right frame.
            how: The kind of the join, as Spark or PySpark writes it.
            by_equality: True if the join compares columns of both frames by equality.
        """
        kind, both = how.replace("_", "").casefold(), self.grows and other.grows
        if both:
            needs_all = kind not in _INNER or not by_equality or self.aggregated or other.aggregated
        else:
            needs_all = kind not in (*_INNER, *(_KEEP_LEFT if self.grows else _KEEP_RIGHT))
        return FrameStandIn(
            self.spark,
            None,
            self.aggregated or other.aggregated,
            self.mark,
            self.whole or other.whole or needs_all,
            self.joined or other.joined or both,
            self.grows or other.grows,
        )

    def _needs_all_rows(self, name: str, texts: Sequence[str], given: "Sequence[FrameStandIn]") -> bool:
        """Returns True if a method's result cannot be kept as a stream, although its frames can."""
        if name not in _EACH_ROW | _SORT | _GROUP | _UNITE:
            return True
        if name in _SORT and not self.aggregated:
            return True
        if name in _GROUP and (self.aggregated or self.joined):
            return True
        if any(map(_NEEDS_ALL_ROWS.search, texts)):
            return True
        return name in _UNITE and any(each.aggregated or each.grows != self.grows for each in (self, *given))


def _has_equality(on: Any) -> bool:
    """Returns True if the condition of a join compares columns by equality. A text is the name of a column that both frames have."""
    each = on if isinstance(on, list | tuple) else [on]
    return any(isinstance(one, str) or (isinstance(one, Column) and _EQUALITY.search(readable_text(one))) for one in each)


class _Grouped:
    """A stand-in for the results of ``groupBy``, ``na`` and ``stat``. Its methods return frames."""

    def __init__(self, frame: FrameStandIn, aggregated: bool) -> None:
        self._frame = frame
        self._aggregated = aggregated

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        if name in ("cogroup", "pivot"):
            return lambda *arguments, **options: _Grouped(replace(self._frame, whole=True), self._aggregated)

        def call(*arguments: Any, **options: Any) -> FrameStandIn:
            needs_all = name not in (_AGGREGATE_GROUPS if self._aggregated else _CHANGE_NULLS)
            needs_all = needs_all or any(map(_NEEDS_ALL_ROWS.search, _texts([*arguments, *options.values()])))
            aggregated = self._aggregated or self._frame.aggregated
            return replace(self._frame, direct=None, aggregated=aggregated, whole=self._frame.whole or needs_all)

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
