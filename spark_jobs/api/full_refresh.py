"""Finds the stages that start over in a full refresh of tables.

A stage keeps no earlier rows for a stage that starts over, and a stage cannot forget rows that it has read. So stages that read one another
start over together.
"""

from collections.abc import Iterable, Sequence

from spark_jobs.api.graph import Graph
from spark_jobs.api.refusals import Place, suggestion
from spark_jobs.api.stage import Stage
from spark_jobs.protocol.documents import SinkMode
from spark_jobs.protocol.errors import RejectedError
from spark_jobs.protocol.ids import StageName

_SPARKS_OWN = ("spark_catalog", "default")
"""The catalog and the schema of names that have none."""


def check_tables(graph: Graph, tables: Sequence[str]) -> None:
    """Refuses names of tables that the pipeline does not have.

    Raises:
        InvalidPipelineError: There is no such table.
    """
    for table in tables:
        _stage_of(graph, table)


def refreshed_stages(graph: Graph, tables: Sequence[str]) -> frozenset[StageName]:
    """Returns the stages that start over in a full refresh: those of the tables, and all that they are connected with.

    Args:
        graph: The pipeline.
        tables: Names of stages with a table, or names of their tables in Spark's catalog.

    Raises:
        InvalidPipelineError: There is no such table.
        RejectedError: Another table is connected with them whose rows would be removed, too. It has to be named.
    """
    named = {_stage_of(graph, table).name for table in tables}
    found = _connected(graph, named)
    missing = [name for name in graph.stages if name in found - named and _must_be_named(graph.stages[name])]
    if missing:
        words = " ".join(f"--full-refresh {name}" for name in [*tables, *missing])
        raise RejectedError(
            f"A full refresh of {', '.join(tables)} also needs {', '.join(missing)}: they read one another. A stage keeps no earlier rows "
            "for a stage that begins again, and cannot forget rows that it has read.",
            exists="The tables have the rows of the newest published checkpoint.",
            remedy=f"Name all of them: {words} (full_refresh={[*tables, *missing]}).",
            tables=missing,
        )
    return frozenset(found)


def _stage_of(graph: Graph, table: str) -> Stage:
    """Returns the stage of a table. A catalog's name may lack its first parts."""
    parts = _parts(table)
    tables = {name: stage for name, stage in graph.stages.items() if stage.sink is not None}
    for name, stage in tables.items():
        assert stage.sink is not None
        address = _parts(stage.sink.address.text) if stage.sink.address.named else []
        whole = [*_SPARKS_OWN[: 3 - len(address)], *address] if address else []
        if parts == [name.casefold()] or parts == whole[-len(parts) :]:
            return stage
    place = Place(graph.pipeline)
    raise place.refused(f"it has no table {table!r} to refresh.", suggestion(table, tables), table=table)


def _parts(name: str) -> list[str]:
    return [part.strip("`").casefold() for part in name.split(".")]


def _connected(graph: Graph, names: Iterable[StageName]) -> set[StageName]:
    found, seen = set(names), set[StageName]()
    reads = {name: stages for name, (stages, _) in graph.reads().items()}
    while found - seen:
        name = (found - seen).pop()
        seen.add(name)
        found.update(reads[name], (other for other, read in reads.items() if name in read))
    return found


def _must_be_named(stage: Stage) -> bool:
    """Returns True if a stage has a table whose rows are not replaced by each checkpoint anyway."""
    return stage.sink is not None and stage.sink.mode is not SinkMode.COMPLETE
