"""Checks everything that Spark can check before a row is read: functions, stages as streams, and tables.

A start does this before it writes anything, and so do ``spark-jobs run --dry-run`` and ``spark-jobs validate``.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial

from pyspark.sql import SparkSession

from spark_jobs.api.address import TableAddress
from spark_jobs.api.graph import Graph
from spark_jobs.api.parameters import BoundParameters
from spark_jobs.api.refusals import Mistakes
from spark_jobs.api.sink import check_distinct
from spark_jobs.background import beside
from spark_jobs.home.places import check_sources
from spark_jobs.home.source_places import archive_places, source_places
from spark_jobs.protocol.ids import SinkName, StageName
from spark_jobs.runtime.checkpoints.tidying import check_tidied
from spark_jobs.runtime.stages.planned import PlannedStage, plan_stages
from spark_jobs.runtime.start.source_identity import find_folders
from spark_jobs.runtime.tables.outlets import plan_outlet
from spark_jobs.runtime.tables.table_places import TablePlace, locate
from spark_jobs.runtime.tables.tables import PlannedTable, read_ahead
from spark_jobs.storage.files import Files, real_url
from spark_jobs.storage.table_uris import table_files


@dataclass(frozen=True)
class PlannedPipeline:
    """A checked pipeline before its run."""

    stages: Mapping[StageName, PlannedStage]
    tables: Mapping[SinkName, PlannedTable]
    """The plan of each sink's table."""

    @property
    def partitioned(self) -> frozenset[SinkName]:
        """Returns the sinks whose tables are partitioned."""
        return frozenset(sink for sink, table in self.tables.items() if table.partition_by)


def find_places(graph: Graph, parameters: BoundParameters, spark: SparkSession) -> dict[SinkName, TablePlace]:
    """Returns the places of the sinks' tables. Refuses two sinks with one table, also under two names.

    Raises:
        RejectedError: A sink has a mistake. The error lists all of them.
    """
    mistakes, places = Mistakes(), dict[SinkName, TablePlace]()
    for sink, address in graph.tables(parameters).items():
        with mistakes.noted():
            places[sink] = locate(spark, address)
    found = {graph.sinks[sink]: TableAddress(real_url(table_files(place.uri)), named=False) for sink, place in places.items()}
    with mistakes.noted():
        check_distinct(found)
    mistakes.check()
    return places


def plan_pipeline(
    graph: Graph, parameters: BoundParameters, session: SparkSession, places: Mapping[SinkName, TablePlace]
) -> PlannedPipeline:
    """Calls every function, lets Spark check each stage as a stream, and compares the stages with their tables. Writes nothing.

    Args:
        graph: The pipeline.
        parameters: Bound values.
        session: Session of the driver.
        places: Places of the sinks' tables.

    Raises:
        RejectedError: A part has a mistake. The error lists all that can be found.
        StreamPipelineError: An input cannot be read now. Another try may succeed.
    """
    mistakes, tables = Mistakes(), dict[SinkName, PlannedTable]()
    with beside(partial(read_ahead, session, [place.uri for place in places.values()])):
        stages = plan_stages(graph, session, parameters.values, mistakes)
    with mistakes.noted():
        check_tidied(graph, graph.archives(parameters), session, parameters.values)
    for name, planned in stages.items():
        sink = graph.stages[name].sink
        if sink and sink.name in places:
            with mistakes.noted():
                tables[sink.name] = plan_outlet(sink, planned.frame.sparkSession, planned.frame, places[sink.name])
    mistakes.check()
    return PlannedPipeline(stages, tables)


def check_pipeline(graph: Graph, parameters: BoundParameters, session: SparkSession, home: Files | None = None) -> None:
    """Checks a pipeline without starting it.

    Args:
        graph: The pipeline.
        parameters: Bound values.
        session: Session of the driver.
        home: The home, which may not exist yet. It is compared with the sources. None compares only the tables.

    Raises:
        RejectedError: A part has a mistake. The error lists all of them.
        StreamPipelineError: As in :func:`plan_pipeline`.
    """
    mistakes, places = Mistakes(), dict[SinkName, TablePlace]()
    with mistakes.noted():
        places = find_places(graph, parameters, session)
    with mistakes.noted():
        planned = plan_pipeline(graph, parameters, session, places)
        tables = {sink: place.uri for sink, place in places.items()}
        sources = source_places(find_folders(graph, session, parameters.values))
        check_sources(home, tables, [*sources, *archive_places(graph.archives(parameters))], planned.partitioned)
    mistakes.check()
