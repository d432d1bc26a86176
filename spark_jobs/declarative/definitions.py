"""The definitions in the files of a project: tables, views and flows, each with its file and line."""

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from pyspark.pipelines.flow import AutoCdcFlow, Flow
from pyspark.pipelines.graph_element_registry import GraphElementRegistry
from pyspark.pipelines.output import MaterializedView, Output, Sink, StreamingTable, TemporaryView
from pyspark.pipelines.source_code_location import SourceCodeLocation

from spark_jobs.api.refusals import Mistakes
from spark_jobs.declarative.names import Identity, Namespace
from spark_jobs.declarative.session import ProjectReader, Read
from spark_jobs.protocol.errors import InvalidPipelineError, RejectedError

_KINDS = {
    MaterializedView: "materialized view",
    StreamingTable: "streaming table",
    TemporaryView: "temporary view",
    Sink: "sink",
}


class Definitions(GraphElementRegistry):
    """Collects the definitions of a project's files. A subclass reads SQL: see :mod:`spark_jobs.declarative.statements`.

    Args:
        folder: The project's folder; files are named relative to it.
        namespace: The catalog and the schema of names that have none.
        mistakes: Collects refusals.
    """

    def __init__(self, folder: Path, namespace: Namespace, mistakes: Mistakes) -> None:
        self._folder = folder
        self.namespace = namespace
        self.mistakes = mistakes
        self.outputs: dict[Identity, Output] = {}
        self.views: dict[str, TemporaryView] = {}
        self.flows: list[Flow] = []
        self.changes: dict[Identity, AutoCdcFlow] = {}
        """The AUTO CDC flow of each target. Its inputs are read by one of the flows."""

    def register_output(self, output: Output) -> None:
        with self.mistakes.noted():
            self._check(output)
            known = self._same_name(output)
            if known is not None:
                raise self.refused(
                    output.source_code_location,
                    f"{self.title(output)} is defined already, at {self.place(known.source_code_location)}.",
                    "Give one of them another name.",
                    condition="PIPELINE_DUPLICATE_IDENTIFIERS.OUTPUT",
                )
            if isinstance(output, TemporaryView):
                self.views[output.name.casefold()] = output
            else:
                self.outputs[self.namespace.identity(output.name)] = output

    def register_flow(self, flow: Flow) -> None:
        self.flows.append(flow)

    def register_auto_cdc_flow(self, flow: AutoCdcFlow) -> None:
        with self.mistakes.noted():
            target = self.namespace.identity(flow.target)
            if target in self.changes:
                raise self.refused(
                    flow.source_code_location,
                    f"a second AUTO CDC flow writes into {flow.target!r}; the first is at "
                    f"{self.place(self.changes[target].source_code_location)}.",
                    "Unite the sources in a table of their own.",
                    condition="AUTOCDC_MULTIPLE_FLOWS_TO_TARGET",
                )
            self.changes[target] = flow
            read = partial(ProjectReader(Read(True, ())).table, flow.source)
            self.register_flow(Flow(flow.name or flow.target, flow.target, {}, flow.source_code_location, read))

    def find(self, name: str) -> Output | None:
        """Returns the view or the table of the project with this name in a flow, or None."""
        view = self.views.get(name.casefold())
        return view if view is not None else self.outputs.get(self.namespace.identity(name))

    def place(self, location: SourceCodeLocation) -> str:
        """Returns the place of a definition, such as ``transformations/orders.py, line 7``."""
        file = Path(location.filename)
        if file.is_relative_to(self._folder):
            file = file.relative_to(self._folder)
        return f"{file}, line {location.line_number}" if location.line_number else str(file)

    def title(self, output: Output) -> str:
        return f"the {_KINDS[type(output)]} {output.name!r}"

    def refused(
        self, location: SourceCodeLocation, problem: str, remedy: str, *, condition: str | None = None, **evidence: Any
    ) -> InvalidPipelineError:
        """Returns the error to raise. ``problem`` and ``remedy`` are one sentence each.

        Args:
            location: The place of the definition.
            problem: What is wrong.
            remedy: What to do.
            condition: Spark's name for the mistake, if it has one.
            evidence: Facts about it.
        """
        if condition is not None:
            problem, evidence = f"[{condition}] {problem}", {"condition": condition, **evidence}
        return InvalidPipelineError(
            f"{self.place(location)}: {problem}",
            remedy=remedy,
            path=location.filename,
            line=location.line_number,
            **evidence,
        )

    @contextmanager
    def defined_at(self, location: SourceCodeLocation) -> Iterator[None]:
        """Adds the place of a definition to refusals inside."""
        try:
            yield
        except RejectedError as error:
            if "line" in error.evidence:
                raise
            raise InvalidPipelineError(
                f"{self.place(location)}: {error.failed}",
                exists=error.exists,
                safe=error.safe or None,
                remedy=error.remedy,
                **{"path": location.filename, "line": location.line_number} | error.evidence,
            ) from error

    def _check(self, output: Output) -> None:
        """Refuses everything but a Delta table that streams fill."""
        if isinstance(output, Sink):
            raise self.refused(
                output.source_code_location,
                f"{self.title(output)} is not supported: a pipeline only writes Delta tables.",
                "Write a streaming table, and let a task or another pipeline pass its rows on.",
            )
        table_format = getattr(output, "format", None)
        if table_format is not None and table_format.lower() != "delta":
            raise self.refused(
                output.source_code_location,
                f"{self.title(output)} has the format {table_format!r}, but a pipeline writes Delta tables.",
                'Write format="delta".',
                format=table_format,
            )

    def _same_name(self, output: Output) -> Output | None:
        if isinstance(output, TemporaryView):
            return self.views.get(output.name.casefold())
        return self.outputs.get(self.namespace.identity(output.name))
