"""Evaluates simple ``apply_as_deletes`` conditions without Spark.

They are comparisons of a column with a literal of its type, ``IS NULL``, ``IN``, a boolean column, and ``AND``, ``OR`` and ``NOT`` of
these. Spark evaluates all other conditions, because only Spark defines the result of functions, casts and mixed comparisons.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pyarrow as pa

_TOKEN = re.compile(
    r"""\s*(?:
        (?P<quoted>`(?:[^`]|``)+`)
      | (?P<text>'[^'\\]*')
      | (?P<number>-?\d+(?![\w.]))
      | (?P<word>[A-Za-z_]\w*)
      | (?P<sign><=>|<=|>=|<>|!=|==|=|<|>|\(|\)|,)
    )""",
    re.VERBOSE | re.ASCII,
)
_INTEGERS = {"byte": 8, "short": 16, "integer": 32, "long": 64}
_RESERVED = frozenset({"and", "or", "not", "in", "is", "null", "true", "false", "between", "like", "case", "exists"})
_COMPARISONS = {"=": "equal", "==": "equal", "<>": "not_equal", "!=": "not_equal"} | {
    "<": "less",
    "<=": "less_equal",
    ">": "greater",
    ">=": "greater_equal",
}
Mask = Callable[["pa.Table"], Any]
"""Returns true, false or null for each row of a table, as SQL does."""


@dataclass(frozen=True)
class DeleteCondition:
    """A condition that can be evaluated without Spark."""

    mask: Mask
    columns: frozenset[str]
    """The columns that the condition reads."""

    def holds(self, rows: "pa.Table") -> Any:
        """Returns True for each row that fulfils the condition. Null does not fulfil it."""
        import pyarrow.compute as pc

        return pc.fill_null(self.mask(rows), False)


def delete_condition(text: str, columns: Mapping[str, str]) -> DeleteCondition | None:
    """Returns a condition to evaluate, or None if only Spark can evaluate it.

    Args:
        text: Condition of the sink.
        columns: Columns of the rows with their types in Delta's notation. Case does not matter, as in Spark.
    """
    try:
        return _Parser(text, columns).parsed()
    except _NotUnderstood:
        return None


class _NotUnderstood(Exception):
    """The condition is not in the language of this module."""


class _Parser:
    """Reads a condition from left to right: ``OR`` binds less than ``AND``, and ``AND`` less than ``NOT``."""

    def __init__(self, text: str, columns: Mapping[str, str]) -> None:
        self._tokens = list(_tokens(text))
        self._columns = columns
        self._used: set[str] = set()

    def parsed(self) -> DeleteCondition:
        mask = self._either()
        if self._tokens:
            raise _NotUnderstood
        return DeleteCondition(mask, frozenset(self._used))

    def _either(self) -> Mask:
        parts = [self._both()]
        while self._take("or"):
            parts.append(self._both())
        return _joined("or_kleene", parts)

    def _both(self) -> Mask:
        parts = [self._negated()]
        while self._take("and"):
            parts.append(self._negated())
        return _joined("and_kleene", parts)

    def _negated(self) -> Mask:
        return _inverted(self._negated()) if self._take("not") else self._single()

    def _single(self) -> Mask:
        if self._take("("):
            inner = self._either()
            self._expect(")")
            return inner
        column, kind = self._column()
        if self._take("is"):
            negated = self._take("not")
            self._expect("null")
            return _null_mask(column, is_null=not negated)
        negated = self._take("not")
        if self._take("in"):
            self._expect("(")
            values = [self._literal(kind)]
            while self._take(","):
                values.append(self._literal(kind))
            self._expect(")")
            mask = _joined("or_kleene", [_compared("equal", column, value) for value in values])
            return _inverted(mask) if negated else mask
        if negated:
            raise _NotUnderstood
        if self._tokens and self._tokens[0] in _COMPARISONS:
            sign = self._tokens.pop(0)
            return _compared(_COMPARISONS[sign], column, self._literal(kind))
        if kind != "boolean":
            raise _NotUnderstood
        return lambda rows: rows[column]

    def _column(self) -> tuple[str, str]:
        """Reads a name. Returns the column and its type."""
        token = self._next()
        name = token[1:-1].replace("``", "`") if token.startswith("`") else token
        if not token.startswith("`") and token in _RESERVED:
            raise _NotUnderstood
        found = [column for column in self._columns if column.casefold() == name.casefold()]
        if len(found) != 1:
            raise _NotUnderstood
        self._used.add(found[0])
        return found[0], self._columns[found[0]]

    def _literal(self, kind: str) -> Any:
        token = self._next()
        if kind == "string" and token.startswith("'"):
            return token[1:-1]
        if kind == "boolean" and token in ("true", "false"):
            return token == "true"
        if kind in _INTEGERS and re.fullmatch(r"-?\d+", token):
            bound = 2 ** (_INTEGERS[kind] - 1)
            if -bound <= int(token) < bound:
                return int(token)
        raise _NotUnderstood

    def _next(self) -> str:
        if not self._tokens:
            raise _NotUnderstood
        return self._tokens.pop(0)

    def _take(self, token: str) -> bool:
        if self._tokens and self._tokens[0] == token:
            del self._tokens[0]
            return True
        return False

    def _expect(self, token: str) -> None:
        if not self._take(token):
            raise _NotUnderstood


def _tokens(text: str) -> Sequence[str]:
    """Returns the words and signs of a condition: words in lower case, names and texts in their quotes."""
    found, place = [], 0
    while text[place:].strip():
        match = _TOKEN.match(text, place)
        if match is None:
            raise _NotUnderstood
        token = match.group(match.lastgroup or 0)
        found.append(token.lower() if match.lastgroup == "word" else token)
        place = match.end()
    return found


def _joined(function: str, parts: Sequence[Mask]) -> Mask:
    import pyarrow.compute as pc

    def mask(rows: "pa.Table") -> Any:
        found = parts[0](rows)
        for part in parts[1:]:
            found = pc.call_function(function, [found, part(rows)])
        return found

    return mask


def _inverted(part: Mask) -> Mask:
    import pyarrow.compute as pc

    return lambda rows: pc.invert(part(rows))


def _null_mask(column: str, *, is_null: bool) -> Mask:
    return lambda rows: rows[column].is_null() if is_null else rows[column].is_valid()


def _compared(function: str, column: str, value: Any) -> Mask:
    import pyarrow as pa
    import pyarrow.compute as pc

    return lambda rows: pc.call_function(function, [rows[column], pa.scalar(value, rows.schema.field(column).type)])
