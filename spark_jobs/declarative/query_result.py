"""The stand-in for the result of a SQL query. It is computed from Spark's plan, by the methods that a flow in Python would call."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import reduce
from typing import Any

from spark_jobs.declarative.frames import FrameStandIn
from spark_jobs.declarative.names import Identity
from spark_jobs.declarative.sql import java_kind, java_values

_SAME_ROWS = frozenset(
    {
        "NamedStreamingRelation",
        "PipeOperator",
        "RepartitionByExpression",
        "SubqueryAlias",
        "UnresolvedEventTimeWatermark",
        "UnresolvedHint",
        "UnresolvedSubqueryColumnAliases",
    }
)
_EACH_ROW = frozenset({"Filter", "Generate", "UnresolvedHaving", "Unpivot"})
"""The parts of a plan that look at one row of their input at a time."""
_STATIC = frozenset({"LocalRelation", "OneRowRelation", "UnresolvedInlineTable", "UnresolvedTableValuedFunction"})
_USING, _NATURAL = "UsingJoin", "NaturalJoin"


def result_of(plan: Any, relations: Mapping[Identity, FrameStandIn], static: FrameStandIn) -> FrameStandIn:
    """Returns the stand-in for the rows of a plan. A part that is not known here needs all rows.

    Args:
        plan: A plan of Spark's parser, whose names are not resolved.
        relations: The frames of the relations that the query reads, by the parts of their names in lower case.
        static: A frame whose rows are known before the pipeline starts.
    """
    kind, inputs = java_kind(plan), [*java_values(plan.children())]
    if kind == "UnresolvedRelation":
        return relations.get(tuple(str(part).casefold() for part in java_values(plan.multipartIdentifier())), static)
    if kind == "UnresolvedWith":
        return _with_named(plan, relations, static)
    if kind in _STATIC:
        return static
    if kind == "Filter" and java_kind(inputs[0]) == "Join" and not inputs[0].condition().isDefined() and not _subqueries(plan):
        return _join(inputs[0], relations, static, plan)  # FROM a, b WHERE a.id = b.id
    frame: FrameStandIn = _combined(plan, kind, [result_of(each, relations, static) for each in inputs] or [static])
    return replace(frame, whole=True) if _subqueries(plan) else frame


def _combined(plan: Any, kind: str, frames: Sequence[Any]) -> Any:
    frame, texts = frames[0], _texts(plan)
    if kind in _SAME_ROWS:
        return frame
    if kind in _EACH_ROW:
        return frame.where(*texts)
    if kind == "Project":
        return frame.select(*texts)
    if kind in ("Aggregate", "Distinct"):
        return frame.agg(*texts)
    if kind == "Sort":
        return frame.orderBy(*texts)
    if kind in ("GlobalLimit", "LocalLimit", "Offset"):
        return frame.limit(1)
    if kind == "Union":
        return reduce(lambda one, other: one.union(other), frames)
    if kind == "Join":
        return _joined(plan, frames[0], frames[1], plan)
    aggregated, grows = any(each.aggregated for each in frames), any(each.grows for each in frames)
    return replace(frame, aggregated=aggregated, grows=grows, whole=True)


def _with_named(plan: Any, relations: Mapping[Identity, FrameStandIn], static: FrameStandIn) -> FrameStandIn:
    known = dict(relations)
    for named in java_values(plan.cteRelations()):
        known[(str(named._1()).casefold(),)] = result_of(named._2(), known, static)
    return result_of(plan.child(), known, static)


def _join(plan: Any, relations: Mapping[Identity, FrameStandIn], static: FrameStandIn, condition: Any) -> FrameStandIn:
    left, right = (result_of(each, relations, static) for each in java_values(plan.children()))
    return _joined(plan, left, right, condition)


def _joined(plan: Any, left: FrameStandIn, right: FrameStandIn, condition: Any) -> FrameStandIn:
    """Returns the stand-in for a join. ``condition`` is the part of the plan whose expressions are its condition."""
    how = plan.joinType()
    if java_kind(how) in (_USING, _NATURAL):
        return left.joined_with(right, str(how.tpe().toString()), by_equality=True)
    by_equality = any(map(_compares_columns, java_values(condition.expressions())))
    return left.joined_with(right, str(how.toString()), by_equality=by_equality)


def _compares_columns(condition: Any) -> bool:
    kind, parts = java_kind(condition), [*java_values(condition.children())]
    if kind in ("EqualTo", "EqualNullSafe"):
        return all(java_kind(part) != "Literal" for part in parts)
    return kind == "And" and any(map(_compares_columns, parts))


def _subqueries(plan: Any) -> bool:
    return bool(plan.subqueries().size())


def _texts(plan: Any) -> list[str]:
    """Returns the expressions of a part of a plan as texts, in the form that :class:`FrameStandIn` searches."""
    return [_text(each) for each in java_values(plan.expressions())]


def _text(expression: Any) -> str:
    kind = java_kind(expression)
    if kind == "Literal":
        return ""
    parts = ", ".join(_text(each) for each in java_values(expression.children()))
    if kind == "UnresolvedAttribute":
        return str(expression.name())
    if kind == "UnresolvedFunction":
        name = ".".join(str(part) for part in java_values(expression.nameParts()))
        return f"{name}({'DISTINCT ' if expression.isDistinct() else ''}{parts})"
    if kind in ("UnresolvedWindowExpression", "WindowExpression"):
        return f"{parts} OVER ()"
    return f"{kind}({parts})"
