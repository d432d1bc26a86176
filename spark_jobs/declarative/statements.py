"""SQL files of a project: registers the definitions of their statements."""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from pyspark.pipelines.flow import Flow
from pyspark.pipelines.output import MaterializedView, StreamingTable, TemporaryView
from pyspark.pipelines.source_code_location import SourceCodeLocation

from spark_jobs.api.refusals import Mistakes
from spark_jobs.declarative.definitions import Definitions
from spark_jobs.declarative.names import Namespace
from spark_jobs.declarative.session import ProjectSession
from spark_jobs.declarative.sql import ParserProcess, SqlError, java_values, substituted
from spark_jobs.publication.sql_names import quoted
from spark_jobs.runtime.spark.spark_facts import SPARK_MINOR

_TABLES = {
    "CreateStreamingTable": StreamingTable,
    "CreateStreamingTableAsSelect": StreamingTable,
    "CreateMaterializedViewAsSelect": MaterializedView,
}
_AUTO_CDC = re.compile(r"\b(?:AS|FLOW)\s+AUTO\s+CDC\b", re.IGNORECASE)
"""The beginning of a change flow in the SQL of Spark 4.3."""
_UNSUPPORTED = "PIPELINE_SQL_GRAPH_ELEMENT_REGISTRATION_ERROR"
"""Spark's name for a statement that is SQL, but does not belong into a project."""


class ProjectDefinitions(Definitions):
    """Collects the definitions of a project's Python and SQL files.

    Args:
        folder: The project's folder.
        namespace: The catalog and the schema of names that have none.
        mistakes: Collects refusals.
        session: The project's variable ``spark``.
        process: Spark's parser.
    """

    def __init__(
        self, folder: Path, namespace: Namespace, mistakes: Mistakes, session: ProjectSession, process: ParserProcess
    ) -> None:
        super().__init__(folder, namespace, mistakes)
        self._session = session
        self._process = process

    def register_sql(self, sql_text: str, file_path: Path) -> None:
        _SqlFile(file_path, self, self._session, self._process).define(sql_text)


class _SqlFile:
    """One SQL file of a project.

    Args:
        file: Its path.
        definitions: Receives the definitions.
        session: The project's variable ``spark``. A query runs as ``spark.sql`` in a flow does.
        process: Spark's parser.
    """

    def __init__(self, file: Path, definitions: Definitions, session: ProjectSession, process: ParserProcess) -> None:
        self._file = file
        self._definitions = definitions
        self._session = session
        self._process = process
        self._conf: dict[str, str] = {}
        """Settings of ``SET`` statements. They hold for the flows that follow in the file."""

    def define(self, sql: str) -> None:
        """Registers the definitions of all statements, and notes their mistakes."""
        parser = self._process.parser()
        for first_line, statement in parser.statements(sql):
            with self._definitions.mistakes.noted(), self._errors_at(first_line, statement):
                text = substituted(statement, self._session.conf.settings)
                plan = parser.plan(text)
                location = SourceCodeLocation(str(self._file), first_line + int(plan.origin().line().get()) - 1)
                self._register(location, plan, text)

    def _register(self, location: SourceCodeLocation, plan: Any, text: str) -> None:
        kind, definitions = str(plan.getClass().getSimpleName()), self._definitions
        if kind in _TABLES:
            table = self._table(location, _TABLES[kind], plan)
            definitions.register_output(table)
            if kind.endswith("AsSelect"):
                self._register_flow(location, table.name, table.name, text)
        elif kind == "CreateViewCommand" and plan.viewType().toString() == "LocalTempView":
            if plan.userSpecifiedColumns().size():
                raise definitions.refused(
                    location, f"the view {plan.name().table()!r} has a list of columns.", "Name the columns in its query."
                )
            name = _quoted([str(plan.name().table())])
            definitions.register_output(TemporaryView(name, _optional(plan.comment()), location))
            self._register_flow(location, name, name, text)
        elif kind == "CreateFlowCommand":
            self._register_insert(location, plan, text)
        elif kind == "SetCommand" and plan.kv().isDefined() and plan.kv().get()._2().isDefined():
            self._conf[str(plan.kv().get()._1())] = str(plan.kv().get()._2().get())
        else:
            words = text[int(plan.origin().startIndex().get()) :].split()
            raise definitions.refused(
                location,
                f"{' '.join(words[:3])} … is no statement of a project that runs here ({plan.nodeName()}).",
                "Write CREATE STREAMING TABLE, CREATE MATERIALIZED VIEW, CREATE TEMPORARY VIEW, CREATE FLOW or SET key = value, "
                "and full names instead of USE.",
                condition=_UNSUPPORTED,
            )

    def _register_insert(self, location: SourceCodeLocation, plan: Any, text: str) -> None:
        name, insert = _parts(plan.name().nameParts()), plan.flowOperation()
        if len(name) > 1:
            raise self._definitions.refused(
                location,
                f"the flow {'.'.join(name)!r} has a name of several parts.",
                "Give it a name without a schema.",
                condition="MULTIPART_FLOW_NAME_NOT_SUPPORTED",
            )
        strange = {
            "INSERT OVERWRITE": insert.overwrite(),
            "PARTITION": insert.partitionSpec().size() > 0,
            "a list of columns": insert.userSpecifiedCols().size() > 0,
            "no BY NAME": not insert.byName(),
        }
        for what, has in strange.items():
            if has:
                raise self._definitions.refused(
                    location,
                    f"the flow {name[0]!r} has {what}.",
                    "Write CREATE FLOW name AS INSERT INTO table BY NAME SELECT ….",
                    condition=_UNSUPPORTED,
                )
        self._register_flow(location, _quoted(name), _quoted(_parts(insert.table().multipartIdentifier())), text)

    def _register_flow(self, location: SourceCodeLocation, name: str, target: str, text: str) -> None:
        query = self._process.parser().query_text(text)
        read = partial(self._session.sql, query)
        self._definitions.register_flow(Flow(name, target, dict(self._conf), location, read))

    def _table(self, location: SourceCodeLocation, table: type[Any], plan: Any) -> Any:
        name = _quoted(_parts(plan.name().nameParts()))
        columns = list(java_values(plan.columns()))
        for column in columns:
            if column.defaultValue().isDefined() or column.generationExpression().isDefined():
                raise self._definitions.refused(
                    location,
                    f"the column {column.name()!r} of {name!r} has a default or is generated.",
                    "Compute it in the table's query.",
                )
        partitions, clusters = [], []
        for transform in java_values(plan.partitioning()):
            found = [".".join(reference.fieldNames()) for reference in transform.references()]
            if transform.name() == "identity":
                partitions += found
            elif transform.name() == "cluster_by":
                clusters += found
            else:
                raise self._definitions.refused(
                    location,
                    f"{name!r} is partitioned by {transform.toString()}.",
                    "Partition by a column. Compute it in the table's query.",
                    condition=_UNSUPPORTED,
                )
        specification = plan.tableSpec()
        return table(
            name=name,
            comment=_optional(specification.comment()),
            source_code_location=location,
            table_properties={str(each._1()): str(each._2()) for each in java_values(specification.properties().toSeq())},
            partition_cols=partitions or None,
            cluster_by=clusters or None,
            schema=", ".join(str(column.toV1Column().toDDL()) for column in columns) or None,
            format=_optional(specification.provider()),
        )

    @contextmanager
    def _errors_at(self, first_line: int, statement: str) -> Iterator[None]:
        """Turns an error of the parser into a refusal with its line in the file."""
        try:
            yield
        except SqlError as error:
            location = SourceCodeLocation(str(self._file), first_line + error.line - 1)
            remedy = "Correct that statement."
            if _AUTO_CDC.search(statement):
                remedy = (
                    f"Spark {SPARK_MINOR} has no AUTO CDC in SQL; Spark 4.3 has it. Write dp.create_auto_cdc_flow(target=…, source=…, "
                    "keys=[…], sequence_by=…) in a Python file of the project."
                )
            raise self._definitions.refused(location, error.problem, remedy) from error


def _parts(sequence: Any) -> list[str]:
    return [str(part) for part in java_values(sequence)]


def _quoted(parts: list[str]) -> str:
    """Returns a name for :class:`~spark_jobs.declarative.names.Namespace`, with backticks where it needs them."""
    return ".".join(part if part.replace("_", "").isalnum() else quoted(part) for part in parts)


def _optional(option: Any) -> str | None:
    return str(option.get()) if option.isDefined() else None
