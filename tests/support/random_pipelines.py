"""A pipeline of random cases, each with a source, a stage and a sink of its own, and DuckDB's answer for each.

The module is also the entry of real drivers. :data:`DRAWN` gives them the cases and the round.
"""

import json
import os
from collections import Counter
from collections.abc import Mapping
from importlib.resources import files
from itertools import cycle
from pathlib import Path
from random import Random
from typing import Any

import duckdb
from pydantic import BaseModel

from spark_jobs import FEED_DELETES, FEED_SEQUENCE, CheckpointSettings, DeltaSink, Pipeline, RestartStrategy
from tests.support.keyed_changes import DELETES, Row, inserted, query, upserted, versions
from tests.support.opened_tables import on_a_disk
from tests.support.random_inputs import FEEDS, IN_ORDER, TIMED, Case, Columns, Format, Input, Kind, draw_case, topic_of

DRAWN = "RANDOM_PIPELINE"
"""An environment variable: the arguments of :func:`draw_cases`, and the round, as JSON."""
KEYS = ("number", "pair", "part")
OTHERS = ("amount", "moment", "gone", "more", "name", "size")
ROWS = (*KEYS, "seq", *OTHERS)
VERSIONS = ("valid_from", "valid_to", "is_current")
FEED = ("id", "name", "sequence", "deleted")
DELAY = "1 hour"
RECORDS_PER_FILE = 100
"""The number of a topic's records that a batch takes for each file of the limit."""
COLUMNS: Mapping[Kind, tuple[str, ...]] = {
    Kind.APPEND: ROWS,
    Kind.UPSERT: ROWS,
    Kind.INSERT: ROWS,
    Kind.HISTORY: (*ROWS, *VERSIONS),
    Kind.COMPLETE: ("number", "part", "rows", "total"),
    Kind.TOTALS: ("number", "part", "rows", "total"),
    Kind.WINDOWS: ("number", "begin", "rows", "total"),
    Kind.DISTINCT: (*KEYS, "moment"),
}
_FEED_COLUMNS = {kind: (*FEED, *VERSIONS) if kind is Kind.HISTORY else FEED for kind in FEEDS}


def draw_cases(seed: int, count: int, tables: int, part: int = 0, *, topics: bool = False, live: bool = False) -> list[Case]:
    """Draws cases of every kind and every format. Each seed combines them in another way.

    Args:
        seed: The seed of all random choices.
        count: The number of cases.
        tables: The number of tables in each case.
        part: The number of the part, each of ``count`` cases.
        topics: True if sources may be Kafka topics.
        live: True for kinds whose answer does not depend on the order of the rows.
    """
    draw, end = Random(seed), count * (part + 1)
    formats = [format for format in Format if format is not Format.FEED and (topics or format is not Format.KAFKA)]
    kinds = [kind for kind in Kind if not live or kind not in IN_ORDER]
    of_rows = iter(cycle(draw.sample(formats, len(formats))))
    chosen: list[tuple[Kind, Format]] = []
    while len(chosen) < end:
        draw.shuffle(kinds)
        chosen += [(kind, next(of_rows)) for kind in kinds] + [(draw.choice(FEEDS), Format.FEED)]
    drawn = [draw_case(draw, f"case_{number}", kind, format, tables) for number, (kind, format) in enumerate(chosen[:end])]
    return drawn[-count:]


class Params(BaseModel):
    events: str
    warehouse: str


def pipeline_of(cases: list[Case], round: int, interval: str, *, servers: str = "", live: bool = False) -> Pipeline:
    """Returns the pipeline as its code is in a round. Declared schemas have the columns that have arrived by then.

    Args:
        cases: The cases.
        round: The number of the round.
        interval: The interval between two checkpoints.
        servers: The address of the broker of topics.
        live: True if the sources have no end.
    """
    settings: dict[str, Any] = {"restart": RestartStrategy.none()} if live else {"on_end": "suspend"}
    pipeline = Pipeline("random", params=Params, checkpoint=CheckpointSettings(interval=interval), **settings)
    for case in cases:
        _declare(pipeline, case, case.columns(round), servers, live)
    return pipeline


def _declare(pipeline: Pipeline, case: Case, columns: Columns, servers: str, live: bool) -> None:
    timed: dict[str, Any] = (
        {"event_time": "moment", "watermark_delay": DELAY, "hold_watermark": True} if case.kind in TIMED else {}
    )
    source = f"{case.name}_rows"
    pipeline.source(name=source, bounded=not live, **timed)(
        lambda spark, params: _read(spark, f"{params.events}/{case.name}", case, columns, servers)
    )
    limit: dict[str, Any] = {}
    if case.relayed:
        pipeline.stage(name=f"{case.name}_relay", inputs={"rows": source})(lambda rows: rows)
        source, limit = f"{case.name}_relay", {"max_files_per_trigger": case.files_per_batch}
    mode: dict[str, Any] = {"output_mode": "update"} if case.kind is Kind.TOTALS else {}
    pipeline.stage(name=case.name, inputs={"rows": source}, sink=_sink(case, live), **mode, **limit)(
        lambda rows: _stage(rows, case)
    )


def _read(spark: Any, path: str, case: Case, columns: Columns, servers: str) -> Any:
    reader = spark.readStream
    if case.files_per_batch is not None:
        reader = reader.option("maxFilesPerTrigger", case.files_per_batch)
        reader = reader.option("maxOffsetsPerTrigger", RECORDS_PER_FILE * case.files_per_batch)
    match case.format:
        case Format.KAFKA:
            return _read_topic(reader.option("kafka.bootstrap.servers", servers), topic_of(Path(path)), columns)
        case Format.DELTA:
            return reader.format("delta").load(path)
        case Format.FEED:
            return reader.format("delta").option("readChangeFeed", True).option("startingVersion", 0).load(path)
        case _:
            return reader.schema(columns.ddl).format(case.format.value).load(path)


def _read_topic(reader: Any, topic: str, columns: Columns) -> Any:
    from pyspark.sql import functions as F

    records = reader.format("kafka").option("subscribe", topic).option("startingOffsets", "earliest").load()
    return records.select(F.from_json(F.col("value").cast("string"), columns.ddl).alias("row")).select("row.*")


def _sink(case: Case, live: bool) -> DeltaSink:
    early = "every_checkpoint" if case.publish_early or live else "final"
    options: dict[str, Any] = {"publish": early, "schema_evolution": "add_columns"}
    if case.widens:
        options["table_properties"] = {"delta.enableTypeWidening": "true"}
    fed = case.format is Format.FEED
    match case.kind:
        case Kind.UPSERT | Kind.INSERT | Kind.HISTORY:
            options |= {"keys": ["id"] if fed else KEYS, "sequence_by": "sequence" if fed else "seq", "mode": case.kind.value}
            if case.kind is not Kind.INSERT:
                options["apply_as_deletes"] = "deleted" if fed else DELETES
        case Kind.COMPLETE:
            options["mode"] = "complete"
        case Kind.TOTALS:
            options |= {"mode": "upsert", "keys": ["number", "part"]}
    return DeltaSink(f"{{warehouse}}/{case.name}", **options)


def _stage(rows: Any, case: Case) -> Any:
    from pyspark.sql import functions as F

    if case.format is Format.FEED:
        return rows.selectExpr("id", "name", f"{FEED_SEQUENCE} AS sequence", f"{FEED_DELETES} AS deleted")
    totals = F.count("*").alias("rows"), F.sum("size").alias("total")
    match case.kind:
        case Kind.COMPLETE | Kind.TOTALS:
            return rows.groupBy("number", "part").agg(*totals)
        case Kind.WINDOWS:
            windows = rows.groupBy("number", F.window("moment", "30 minutes").alias("window")).agg(*totals)
            return windows.select("number", F.col("window.start").alias("begin"), "rows", "total")
        case Kind.DISTINCT:
            return rows.select(*KEYS, "moment").dropDuplicates([*KEYS, "moment"])
    return rows if case.widens else rows.withColumn("size", F.col("size").cast("long"))


def answer(case: Case, given: Input, round: int, *, drained: bool) -> Counter[Row]:
    """Returns the rows of the case's table after a round, over all rows that had arrived when the round began."""
    if case.format is Format.FEED:
        return _answer_of_feed(case, given)
    changes = case.changes(round)
    match case.kind:
        case Kind.APPEND:
            return query(f"SELECT {', '.join(ROWS)} FROM changes", changes=changes)
        case Kind.UPSERT:
            return upserted(changes, KEYS, OTHERS)
        case Kind.INSERT:
            return inserted(changes, "round, seq NULLS FIRST", KEYS, OTHERS)
        case Kind.HISTORY:
            return versions(changes, KEYS, OTHERS)
        case Kind.COMPLETE | Kind.TOTALS:
            return query("SELECT number, part, count(*), CAST(sum(size) AS BIGINT) FROM changes GROUP BY ALL", changes=changes)
        case Kind.WINDOWS:
            return query(
                f"""
                WITH windows AS (SELECT *, time_bucket(INTERVAL '30 minutes', moment) AS begin FROM ({_IN_TIME}) WHERE moment IS NOT NULL)
                SELECT number, begin, count(*), CAST(sum(size) AS BIGINT) FROM windows
                WHERE watermark IS NULL OR begin + INTERVAL '30 minutes' > watermark
                GROUP BY ALL
                HAVING {drained} OR begin + INTERVAL '30 minutes' <= (SELECT max(moment) - INTERVAL '{DELAY}' FROM changes)
                """,
                changes=changes,
            )
        case Kind.DISTINCT:
            return query(
                f"""
                SELECT DISTINCT number, pair, part, moment FROM ({_IN_TIME})
                WHERE watermark IS NULL OR moment IS NULL OR moment > watermark
                """,
                changes=changes,
            )


_IN_TIME = f"""
    SELECT *, (SELECT max(moment) - INTERVAL '{DELAY}' FROM changes before WHERE before.round < changes.round) AS watermark FROM changes
"""
"""The rows, each with the watermark of the round in which it arrives."""


def _answer_of_feed(case: Case, given: Input) -> Counter[Row]:
    sequence = """
        SELECT id, name, _commit_version * 2 + CAST(NOT gone AS BIGINT) AS sequence, gone AS deleted FROM (
            SELECT *, _change_type IN ('delete', 'update_preimage') AS gone FROM feed)
    """
    feed = given.feed()
    if case.kind is Kind.APPEND:
        return query(sequence, feed=feed)
    last = f"SELECT *, lead(sequence) OVER (PARTITION BY id ORDER BY sequence) AS until FROM ({sequence})"
    if case.kind is Kind.UPSERT:
        return query(f"SELECT id, name, sequence, deleted FROM ({last}) WHERE until IS NULL AND NOT deleted", feed=feed)
    return query(f"SELECT id, name, sequence, deleted, sequence, until, until IS NULL FROM ({last}) WHERE NOT deleted", feed=feed)


class Tables:
    """The sinks' tables, read by DuckDB.

    Args:
        warehouse: The path or the URL of their directory.
    """

    def __init__(self, warehouse: str) -> None:
        self._warehouse = warehouse
        self._database = duckdb.connect()
        extension = files("duckdb_extension_delta") / "extensions" / f"v{duckdb.__version__}" / "delta.duckdb_extension"
        self._database.execute(f"LOAD '{extension}'; SET TimeZone = 'UTC'")

    def rows(self, case: Case) -> Counter[Row]:
        """Returns the rows of a case's table. A missing column is null, and a missing table is empty."""
        with on_a_disk(f"{self._warehouse}/{case.name}") as table:
            if not (table / "_delta_log").exists():
                return Counter()
            found = self._database.execute("SELECT * FROM delta_scan(?)", [table.as_uri()])
            names = [column[0] for column in found.description or ()]
            columns = _FEED_COLUMNS[case.kind] if case.format is Format.FEED else COLUMNS[case.kind]
            places = [names.index(name) if name in names else None for name in columns]
            return Counter(tuple(None if place is None else row[place] for place in places) for row in found.fetchall())

    def close(self) -> None:
        self._database.close()


if DRAWN in os.environ:
    drawn = json.loads(os.environ[DRAWN])
    pipeline = pipeline_of(draw_cases(**drawn["cases"]), drawn["round"], drawn["interval"])
