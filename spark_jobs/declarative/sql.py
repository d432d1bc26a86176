"""Spark's own SQL parser: finds the relations of a query, and splits a file into statements.

A project is loaded before Spark starts, so the parser runs in a Java process of its own, without a Spark session.
"""

import glob
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from subprocess import Popen
from types import TracebackType
from typing import Any

from py4j.java_gateway import GatewayClient, GatewayParameters, JavaClass, JavaGateway, launch_gateway
from py4j.protocol import Py4JJavaError, get_return_value, is_error
from pyspark.errors import ParseException
from pyspark.find_spark_home import _find_spark_home
from pyspark.sql import SparkSession

from spark_jobs.protocol.errors import MissingRequirementError
from spark_jobs.publication.sql_names import quoted
from spark_jobs.runtime.spark.session import check_java

_CATALYST = "org.apache.spark.sql.catalyst"
_VARIABLE = re.compile(r"\$\{(?:(?:spark|sparkconf|hivevar|hiveconf):)?([^\s}]+?)\}")
_POSITION = re.compile(r"\(line (\d+), pos(?:ition)? (\d+)\)")
_REFUSED_IN_STREAM = ("optionsClause", "streamChangesClause", "identifiedByClause")
_REFUSED_IN_TABLE = ("optionsClause", "temporalClause")
"""The clauses of a relation that a flow cannot keep when it reads a stage's frame instead."""
_QUICK_START = ["-XX:TieredStopAtLevel=1", "-Xshare:auto"]


class SqlError(Exception):
    """Raised if a text is not SQL that a project may have.

    Args:
        problem: Spark's message, with the name of the error.
        line: Line in the text.
    """

    def __init__(self, problem: str, line: int = 1) -> None:
        super().__init__(problem)
        self.problem = problem
        self.line = line


@dataclass(frozen=True)
class Span:
    """A part of a text, from its first character to the one after its last."""

    start: int
    stop: int

    def of(self, text: str) -> str:
        return text[self.start : self.stop]

    def contains(self, other: "Span") -> bool:
        return self.start <= other.start and other.stop <= self.stop


@dataclass(frozen=True)
class Relation:
    """A table or a view that a query reads."""

    name: str
    streaming: bool
    watermark: tuple[str, str] | None
    """The column and the delay of its ``WATERMARK … DELAY OF …``."""
    span: Span
    """The relation with its clauses and its alias."""
    name_span: Span
    watermark_span: Span | None
    aliased: bool


@dataclass(frozen=True)
class SqlQuery:
    """A query with the relations that it reads, in the order of the text."""

    text: str
    relations: tuple[Relation, ...]
    plan: Any = field(repr=False, compare=False)
    """Spark's plan, whose names are not resolved."""

    def over(self, names: Sequence[str], parts: Sequence[str]) -> str:
        """Returns the text with other relations, without their watermarks.

        Args:
            names: The names to read instead, one for each relation.
            parts: The last parts of the relations' own names. Columns may be qualified with them.
        """
        text = self.text
        for relation, name, part in reversed(list(zip(self.relations, names, parts, strict=True))):
            alias = "" if relation.aliased else f" AS {quoted(part)}"
            edits = [(relation.name_span, quoted(name)), (Span(relation.span.stop, relation.span.stop), alias)]
            if relation.watermark_span is not None:
                edits.insert(1, (relation.watermark_span, ""))
            for span, replacement in reversed(edits):
                text = text[: span.start] + replacement + text[span.stop :]
        return text


def substituted(text: str, settings: Mapping[str, str]) -> str:
    """Returns the text with the values of settings for ``${key}``, as Spark substitutes them."""
    return _VARIABLE.sub(lambda found: settings.get(found.group(1), found.group()), text)


class SqlParser:
    """Spark's parser in a JVM.

    Args:
        client: py4j's client of the JVM.
    """

    def __init__(self, client: Any) -> None:
        self._client = client
        self._spark = self._java("org.apache.spark.sql.execution.SparkSqlParser")()

    @classmethod
    def of(cls, spark: SparkSession) -> "SqlParser":
        """Returns the parser in the JVM of a session."""
        jvm: Any = spark._jvm
        return cls(jvm._gateway_client)

    def statements(self, text: str) -> list[tuple[int, str]]:
        """Splits a text at its semicolons. Returns each statement with the number of the line on which it starts."""
        utils = self._java(f"{_CATALYST}.util.StringUtils")
        found, start = [], 0
        for statement in java_values(utils.splitSemiColonWithIndex(text, False)):
            found.append((text.count("\n", 0, start) + 1, statement))
            start += len(statement) + 1
        return found

    def plan(self, text: str) -> Any:
        """Returns the plan of a statement, whose names are not resolved.

        Raises:
            SqlError: Spark does not accept it.
        """
        try:
            return self._spark.parsePlan(text)
        except (Py4JJavaError, ParseException) as error:
            raise _as_sql_error(error) from error

    def query_text(self, statement: str) -> str:
        """Returns the query of a statement."""
        _, tree = self._tree(statement)
        return _span(tree.statement().query()).of(statement)

    def query(self, text: str) -> SqlQuery:
        """Returns a query with its relations.

        Raises:
            SqlError: The text is not a query, or it reads something in a way that a flow cannot.
        """
        plan = self.plan(text)
        parser, tree = self._tree(text)
        statement = tree.statement()
        if statement is None or java_kind(statement) != "StatementDefaultContext":
            raise SqlError(f"{plan.nodeName()} is not a query.", _line(statement or tree))
        named = [(_span(each), _span(_enclosing(each, "QueryContext")), each) for each in self._all(tree, parser, "namedQuery")]
        relations = []
        for node in self._all(tree, parser, "relationPrimary"):
            stream = java_kind(node) == "StreamRelationContext"
            table = node.streamRelationPrimary() if stream else node
            if java_kind(table) not in ("StreamTableNameContext", "TableNameContext"):
                continue  # a function, a subquery, or VALUES
            relation = self._relation(text, node, table, stream=stream)
            if not any(
                relation.name.casefold() == _text(each.errorCapturingIdentifier(), text).casefold()
                and scope.contains(relation.span)
                and span.stop <= relation.span.start
                for span, scope, each in named
            ):
                relations.append(relation)
        return SqlQuery(text, tuple(relations), plan)

    def _relation(self, text: str, node: Any, table: Any, *, stream: bool) -> Relation:
        identifier = table.multipartIdentifier() if stream else table.identifierReference()
        name, line = _text(identifier, text), _line(table)
        if not stream and identifier.multipartIdentifier() is None:
            raise SqlError(f"{name} is not a name: its value is not known when the inputs of flows are searched.", line)
        for refused in _REFUSED_IN_STREAM if stream else _REFUSED_IN_TABLE:
            found = getattr(table, refused)()
            if found is not None:
                raise SqlError(f"{name} is read with {_text(found, text)}: write that read in a Python file.", line)
        clause, alias = table.watermarkClause(), table.tableAlias()
        return Relation(
            name,
            stream,
            None if clause is None else self._watermark(clause, text),
            _span(node),
            _span(identifier),
            None if clause is None else _span(clause),
            aliased=bool(alias.getText()),
        )

    def _watermark(self, clause: Any, text: str) -> tuple[str, str]:
        column, delay = _text(clause.namedExpression(), text), _text(clause.interval(), text)
        if not re.fullmatch(r"\w+|`[^`]+`", column):
            raise SqlError(
                f"the watermark is on {column!r}, which is not a column that is read: write it into a table of its own first.",
                _line(clause),
            )
        parsed = self.plan(f"SELECT * FROM STREAM rows WATERMARK at DELAY OF {delay}").children().apply(0)
        return column.strip("`"), str(parsed.delay().toString())

    def _tree(self, text: str) -> tuple[Any, Any]:
        """Returns ANTLR's parser and its tree: the tree knows the positions of all parts, and plans do not."""
        characters = self._java("org.antlr.v4.runtime.CharStreams").fromString(text)
        lexer = self._java(f"{_CATALYST}.parser.SqlBaseLexer")(self._java(f"{_CATALYST}.parser.UpperCaseCharStream")(characters))
        parser = self._java(f"{_CATALYST}.parser.SqlBaseParser")(self._java("org.antlr.v4.runtime.CommonTokenStream")(lexer))
        for each in (lexer, parser):
            each.removeErrorListeners()  # they print, and the plan has been parsed
        return parser, parser.singleStatement()

    def _all(self, tree: Any, parser: Any, rule: str) -> list[Any]:
        return list(self._java("org.antlr.v4.runtime.tree.xpath.XPath").findAll(tree, f"//{rule}", parser))

    def _java(self, name: str) -> Any:
        return JavaClass(name, self._client)


class _ParserClient(GatewayClient):  # type: ignore[misc]
    """Raises the exceptions of the parser's process as py4j does.

    PySpark replaces py4j's conversion of exceptions, and Delta adds to it. Both look each exception up in the process of PySpark's own
    session, which has other objects under the same ids.
    """

    def send_command(self, command: str, retry: bool = True, binary: bool = False) -> Any:
        answer = super().send_command(command, retry, binary)
        if not binary and is_error(answer)[0]:
            get_return_value(answer, self)
        return answer


class _ParserGateway(JavaGateway):  # type: ignore[misc]
    def _create_gateway_client(self) -> GatewayClient:
        return _ParserClient(gateway_parameters=self.gateway_parameters)


class ParserProcess:
    """Starts the Java process of the parser at its first use, and ends it with the context."""

    def __init__(self) -> None:
        self._gateway: JavaGateway | None = None
        self._process: Popen[bytes] | None = None
        self._parser: SqlParser | None = None

    def parser(self) -> SqlParser:
        """Returns the parser.

        Raises:
            MissingRequirementError: Java is missing or too old, or SPARK_HOME has no Spark.
        """
        if self._parser is None:
            check_java()
            jars = os.path.join(_find_spark_home(), "jars")
            py4j = glob.glob(os.path.join(jars, "py4j-*.jar"))
            if not py4j:
                raise MissingRequirementError(
                    f"Spark's parser cannot start: {jars} has no py4j-*.jar.",
                    remedy="Set SPARK_HOME to an installation of Spark, or unset it and install pyspark.",
                )
            port, token, self._process = launch_gateway(
                jarpath=py4j[0],
                classpath=os.path.join(jars, "*"),
                javaopts=_QUICK_START,
                java_path=None,
                die_on_exit=True,
                enable_auth=True,
                return_proc=True,
            )
            self._gateway = _ParserGateway(gateway_parameters=GatewayParameters(port=port, auth_token=token))
            self._parser = SqlParser(self._gateway._gateway_client)
        return self._parser

    def __enter__(self) -> "ParserProcess":
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if self._gateway is not None:
            with suppress(Exception):
                self._gateway.shutdown()
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            for pipe in (self._process.stdin, self._process.stdout):
                if pipe is not None:
                    pipe.close()


def java_values(values: Any) -> Iterable[Any]:
    """Yields the elements of a Scala sequence."""
    for index in range(values.size()):
        yield values.apply(index)


def _as_sql_error(error: Py4JJavaError | ParseException) -> SqlError:
    text = str(error.java_exception.getMessage()) if isinstance(error, Py4JJavaError) else str(error)
    position = _POSITION.search(text)
    message = _POSITION.sub("", text.split("== SQL")[0])
    return SqlError(" ".join(message.split()).rstrip(". ") + ".", int(position.group(1)) if position else 1)


def java_kind(node: Any) -> str:
    """Returns the name of the class of an object."""
    return str(node.getClass().getSimpleName())


def _span(node: Any) -> Span:
    return Span(int(node.getStart().getStartIndex()), int(node.getStop().getStopIndex()) + 1)


def _text(node: Any, text: str) -> str:
    return _span(node).of(text)


def _line(node: Any) -> int:
    return int(node.getStart().getLine())


def _enclosing(node: Any, kind: str) -> Any:
    """Returns the innermost part of the text of a kind that has the node."""
    above = node.getParent()
    while java_kind(above) != kind:
        above = above.getParent()
    return above
