"""Reads from Spark's plans which streams a stage reads and how it treats event time."""

import json
import re
import tempfile
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from itertools import count
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.types import StructType, TimestampNTZType, TimestampType

from spark_jobs.publication.delta_jvm import java_class, java_list
from spark_jobs.publication.sql_names import quoted

DELAY_KEY = "spark.watermarkDelayMs"
"""The key of a column's metadata with the delay of its watermark."""
_HELD_KEY = "spark_jobs.heldInput"
_STATEFUL = ("Aggregate", "Deduplicate", "FlatMapGroups", "TransformWithState")
_WITH_MEMORY = ("Distinct", "GlobalLimit", "LocalLimit", "Offset")
"""Operators that also keep a state, although no watermark flushes it."""
TIMEOUT, TIMER = "timeout", "timer"
"""Names of states that :func:`batch_facts` cannot count: only a reader of the state can."""
JOIN = "join"
JOIN_SIDE = re.compile(r"(?P<side>left|right) side of join (?P<operator>\d+)")
"""Matches the name that :func:`batch_facts` gives to a join of which the watermark flushes only one side."""
DEDUPLICATION = "deduplication"
"""The name of the state of ``dropDuplicatesWithinWatermark``."""
_KAFKA_AVAILABLE = "allDataForTriggerAvailableNow"
"""The private field in which a Kafka stream keeps the offsets of a query's start. There is no public way to set them."""
_LIST_FILES = "fetchAllFiles"
"""The private method with which Spark's file source lists its files. There is no public way to call it."""
_FOUND_FILE = re.compile(r"^NewFileEntry\((.+),\d+,(-?\d+)\)$", re.MULTILINE)
_CATALYST = "org.apache.spark.sql.catalyst"
_CONSTANT_LEAVES = frozenset({"LocalRelation", "LogicalRDD", "OneRowRelation", "Range"})


@dataclass(frozen=True)
class Leaf:
    """A stream that a frame reads."""

    identity: int
    """An id that is equal for two leaves of one ``readStream...load()``."""
    node: str
    """The class of the plan node."""
    format: str
    options: dict[str, str]
    schema: StructType
    relation: Any = field(default=None, repr=False, compare=False)
    """The plan node itself if the stream has Spark's newer interface; otherwise its data source."""


@dataclass(frozen=True)
class EventTimeColumn:
    """An output column that still carries a watermark."""

    name: str
    timestamp: bool
    """True for a timestamp, False for a window."""
    delay_ms: int
    held: int | None = None
    """The position of the input whose watermark is held; None if it moves."""


@dataclass(frozen=True)
class BatchFacts:
    """The facts that Spark counted in the last batch."""

    newest_event_ms: dict[str, int]
    """The newest event time by watermark node; missing if it saw no row."""
    late_rows: int
    state_rows: dict[str, int] = field(default_factory=dict)
    """Rows left in the state, by operator that releases rows by event time. Operators without such rows are missing."""


@dataclass(frozen=True)
class ListedFiles:
    """The files of one stream that Spark has found in a batch."""

    first: str
    """URL of the first file that it should find."""
    count: int
    size_bytes: int
    paths: Callable[[], set[str]]
    """Returns the found paths. Needs a call of the JVM for each."""


@dataclass(frozen=True)
class StaticLeaf:
    """A relation that a batch frame reads."""

    description: str
    fixed: bool
    """True if it reads the same rows at every start."""


def static_leaves(frame: DataFrame) -> list[StaticLeaf]:
    """Returns the relations that a batch frame reads."""
    leaves = []
    # not by name, because Delta's relation is an anonymous subclass
    relations = java_class(frame.sparkSession, "java.lang.Class")
    files = relations.forName("org.apache.spark.sql.execution.datasources.HadoopFsRelation")
    for node in _walk(_analyzed(frame)):
        if int(node.children().size()) > 0:
            continue
        name = str(node.getClass().getSimpleName())
        if name != "LogicalRelation":
            leaves.append(StaticLeaf(name, name in _CONSTANT_LEAVES))
            continue
        relation = node.relation()
        location = relation.location() if files.isInstance(relation) else None
        if location is None:
            leaves.append(StaticLeaf(str(relation.toString()), False))
            continue
        delta = str(location.getClass().getSimpleName()).startswith("TahoeLogFileIndex")
        leaves.append(StaticLeaf(str(location.rootPaths().mkString(", ")), delta and bool(location.isTimeTravelQuery())))
    return leaves


def streaming_leaves(frame: DataFrame) -> list[Leaf]:
    """Returns the streams that ``frame`` reads, in the order of Spark's offset log."""
    leaves = []
    spark = frame.sparkSession
    system, convert = java_class(spark, "java.lang.System"), java_class(spark, "scala.jdk.javaapi.CollectionConverters")
    for node in _walk(_analyzed(frame)):
        name = str(node.getClass().getSimpleName())
        if name == "StreamingRelation":
            source = node.dataSource()
            options = _options(spark, convert.asJava(source.options()))
            schema = StructType.fromJson(json.loads(source.sourceInfo().schema().json()))
            leaves.append(Leaf(system.identityHashCode(source), name, str(source.className()), options, schema, source))
        elif name == "StreamingRelationV2":  # a second use of the same stream is another node over the same table
            identity, options = system.identityHashCode(node.table()), _options(spark, node.extraOptions().asCaseSensitiveMap())
            schema = StructType.fromJson(json.loads(node.schema().json()))
            leaves.append(Leaf(identity, name, str(node.sourceName()), options, schema, node))
        elif name.startswith("StreamingRelation"):
            leaves.append(Leaf(system.identityHashCode(node), name, str(node.sourceName()), {}, StructType()))
    return leaves


def _options(spark: SparkSession, options: Any) -> dict[str, str]:
    return {name: options.get(name) for name in java_list(spark, options.keySet())}


def newest_offset(frame: DataFrame, leaf: Leaf) -> str | None:
    """Returns the offset log's line for the present end of a stream with Spark's newer interface, or None if it is empty.

    Uses the stream's own options, like a query with ``Trigger.AvailableNow``. Starts no query and writes nothing.
    """
    with _micro_batch_stream(leaf) as stream:
        stream.prepareForTriggerAvailableNow()
        return _newest(frame.sparkSession, stream)


def first_kafka_offset(frame: DataFrame, leaf: Leaf) -> str:
    """Returns the offset log's line at which a Kafka stream begins. Spark computes it from the stream's present options."""
    spark: Any = frame.sparkSession
    java_class(spark, "org.apache.spark.sql.classic.SparkSession").setActiveSession(spark._jsparkSession)  # our threads have none
    with (
        tempfile.TemporaryDirectory(prefix="spark-jobs-") as aside,  # Spark writes the offset there
        _micro_batch_stream(leaf, f"{aside}/sources/0") as stream,
    ):
        return str(stream.initialOffset().json())


def kafka_topics(frame: DataFrame, leaf: Leaf) -> tuple[str, dict[str, str]]:
    """Returns the id of a Kafka stream's cluster, and the ids of its present topics by name."""
    with _micro_batch_stream(leaf) as stream:
        names = sorted(json.loads(_newest(frame.sparkSession, stream) or "{}"))
        admin = stream.kafkaOffsetReader().admin()
        topics = _topic_ids(frame.sparkSession, admin, names)
        return str(admin.describeCluster().clusterId().get()), topics


def oldest_kafka_offsets(spark: SparkSession, leaf: Leaf, partitions: Sequence[tuple[str, int]]) -> dict[tuple[str, int], int]:
    """Returns the offset of Kafka's oldest record by partition, without partitions that the stream no longer reads."""
    partition_class = java_class(spark, "org.apache.kafka.common.TopicPartition")
    earliest = java_class(spark, "org.apache.kafka.clients.admin.OffsetSpec").earliest()
    with _micro_batch_stream(leaf) as stream:
        there = json.loads(_newest(spark, stream) or "{}")
        asked = java_class(spark, "java.util.HashMap")()
        keys = {
            (topic, number): partition_class(topic, number) for topic, number in partitions if str(number) in there.get(topic, {})
        }
        for key in keys.values():
            asked.put(key, earliest)
        answer = stream.kafkaOffsetReader().admin().listOffsets(asked)
        return {partition: int(answer.partitionResult(key).get().offset()) for partition, key in keys.items()}


@dataclass(frozen=True)
class DeltaFile:
    """A data file that a Delta stream reads."""

    version: int
    url: str
    size_bytes: int
    add: Any = field(repr=False, compare=False)
    """The entry of the file in the table's log."""

    @property
    def path(self) -> str:
        """Returns the path, as in the table's log."""
        return str(self.add.path())

    @property
    def counted(self) -> Mapping[str, Any]:
        """Returns the parts of its entry that count rows."""
        vector = self.add.deletionVector()
        return {
            "stats": self.add.stats(),
            "deletionVector": None if vector is None else {"cardinality": int(vector.cardinality())},
        }


def delta_files(
    spark: SparkSession, leaf: Leaf, version: int, index: int, initial: bool, end: tuple[int, int] | None
) -> list[DeltaFile]:
    """Returns the data files that a Delta stream reads after a position, existing or not.

    Args:
        spark: The session.
        leaf: The stream.
        version: Version at which reading goes on.
        index: Last file of that version that was read; -1 for none.
        initial: True if the stream reads the whole table at that version, not only the version's additions.
        end: The version and the last file of it that is read. None: all.
    """
    source = leaf.relation.createSource("spark-jobs-files")
    log, none, found = source.deltaLog(), java_class(spark, "scala.Option").apply(None), []
    files = source.getFileChanges(version, index, initial, none, False)
    try:
        while files.hasNext():
            file = files.next()
            if end is not None and (int(file.version()), int(file.index())) > end:
                break
            if (add := file.add()) is not None:
                found.append(DeltaFile(int(file.version()), str(add.absolutePath(log).toUri().toString()), int(add.size()), add))
    finally:
        files.close()
    return found


@contextmanager
def _micro_batch_stream(leaf: Leaf, place: str = "spark-jobs-pin") -> Iterator[Any]:
    """Opens a stream of Spark's newer interface outside of a query.

    Args:
        leaf: The stream.
        place: Place of its checkpoint. The stream's name depends on it. A stream only writes there when its beginning is requested.
    """
    relation = leaf.relation
    stream = relation.table().newScanBuilder(relation.extraOptions()).build().toMicroBatchStream(place)
    try:
        yield stream
    finally:
        stream.stop()


def _newest(spark: SparkSession, stream: Any) -> str | None:
    """Returns the offset log's line for the present end of a stream, or None if it is empty."""
    everything = java_class(spark, "org.apache.spark.sql.connector.read.streaming.ReadLimit").allAvailable()
    offset = stream.latestOffset(stream.deserializeOffset("{}"), everything)
    return None if offset is None else str(offset.json())


def _topic_ids(spark: SparkSession, admin: Any, names: Collection[str]) -> dict[str, str]:
    asked = java_class(spark, "java.util.ArrayList")()
    for name in names:
        asked.add(name)
    found = admin.describeTopics(asked).allTopicNames().get()
    return {name: str(found.get(name).topicId().toString()) for name in names}


def first_delta_version(leaf: Leaf) -> int | None:
    """Returns the first version that a Delta stream reads, computed by Delta from its present options. None: the whole table."""
    found = leaf.relation.createSource("spark-jobs-start").getStartingVersion()
    return int(found.get()) if found.isDefined() else None


def change_options(leaf: Leaf, options: Mapping[str, str], *, without: Sequence[str] = ()) -> None:
    """Changes the options of a stream with Spark's older interface before its query starts.

    Spark has no public way: a source's function sets the options, perhaps on a session of its own.
    """
    source = leaf.relation
    changed = source.caseInsensitiveOptions()
    for name in without:
        changed = changed.removed(name)
    for name, value in options.items():
        changed = changed.removed(name).updated(name, value)
    for name in ("options", "caseInsensitiveOptions"):
        _set_field(source, name, changed)


def add_options(frame: DataFrame, options: Mapping[int, Mapping[str, str]]) -> None:
    """Adds options to streams with Spark's older interface before the frame's query starts.

    A source that a frame reads twice is two streams but one object in Spark. Each stream gets its own object.

    Args:
        frame: Frame that a query will run.
        options: Options by number of the stream in Spark's offset log.
    """
    nodes = [node for node in _walk(_analyzed(frame)) if str(node.getClass().getSimpleName()).startswith("StreamingRelation")]
    for number, added in options.items():
        source = nodes[number].dataSource()
        arguments = java_class(frame.sparkSession, "java.util.ArrayList")()
        for index in range(source.productArity()):
            argument = source.productElement(index)
            if source.productElementName(index) == "options":
                for name, value in added.items():
                    argument = argument.updated(name, value)
            arguments.add(argument)
        _set_field(nodes[number], "dataSource", source.getClass().getConstructors()[0].newInstance(arguments.toArray()))


def _set_field(owner: Any, name: str, value: Any) -> None:
    found = owner.getClass().getDeclaredField(name)
    found.setAccessible(True)
    found.set(owner, value)


def limit_kafka_streams(query: StreamingQuery, lines: Sequence[str | None]) -> None:
    """Sets the end of the available records in Kafka streams of a running query, with any trigger.

    This only saves work: a batch that reads beyond an end is cut back before it is staged.

    Args:
        query: Query that is running a batch.
        lines: Line for each stream, in the order of Spark's offset log; None to leave it alone.
    """
    for stream, line in zip(_running_streams(query), lines, strict=True):
        if stream is None or line is None:
            continue
        for end in stream.getClass().getDeclaredFields():
            if end.getName() == _KAFKA_AVAILABLE:  # other releases of the connector may have no such field
                end.setAccessible(True)
                end.set(stream, stream.deserializeOffset(line).partitionToOffsets())
                stream.prepareForTriggerAvailableNow()


def _running_streams(query: StreamingQuery) -> list[Any]:
    """Returns the streams of a query with Spark's newer interface, in the order of the offset log; None for others."""
    return [node.stream() if _is(node, "StreamingDataSourceV2ScanRelation") else None for node in _streaming_sources(query)]


def files_found(spark: SparkSession, query: StreamingQuery, number: int) -> dict[str, int]:
    """Returns the modification times of the files that a file stream of a running query finds now, by URL as in Spark's log.

    Args:
        spark: The session.
        query: Query that has begun, see :func:`has_begun`.
        number: Number of the stream in Spark's offset log.
    """
    source = _streaming_sources(query)[number].source()
    lists = next(method for method in source.getClass().getDeclaredMethods() if method.getName() == _LIST_FILES)
    lists.setAccessible(True)
    found = lists.invoke(source, java_class(spark, "java.util.ArrayList")().toArray())
    # one call of the JVM for all, because a folder may have a million files
    return {match[1]: int(match[2]) for match in _FOUND_FILE.finditer(str(found.mkString("\n")))}


def has_begun(query: StreamingQuery) -> bool:
    """Returns True if a running query has its sources."""
    return not str(query.status["message"]).startswith("Initializing")


def _streaming_sources(query: StreamingQuery) -> list[Any]:
    plan = query._jsq.streamingQuery().logicalPlan()
    return [
        node
        for node in _walk(plan)
        if str(node.getClass().getSimpleName()).startswith("Streaming") and not int(node.children().size())
    ]


def running_kafka_topics(spark: SparkSession, query: StreamingQuery, number: int, topics: Sequence[str]) -> dict[str, str]:
    """Returns the present ids of topics by name, from a stream of a running query. Missing topics are left out."""
    admin = _running_streams(query)[number].kafkaOffsetReader().admin()
    there = {str(name) for name in java_list(spark, admin.listTopics().names().get())}
    return _topic_ids(spark, admin, there.intersection(topics))


def watermark_nodes(frame: DataFrame) -> list[str]:
    """Returns the ids of all watermarks in the plan of ``frame``."""
    return [str(node.nodeId().toString()) for node in _walk(_analyzed(frame)) if _is(node, "EventTimeWatermark")]


def event_time_columns(frame: DataFrame) -> list[EventTimeColumn]:
    """Returns the top-level columns of ``frame`` that carry a watermark."""
    return [
        EventTimeColumn(
            field.name,
            isinstance(field.dataType, TimestampType | TimestampNTZType),
            int(field.metadata[DELAY_KEY]),
            field.metadata.get(_HELD_KEY),
        )
        for field in frame.schema.fields
        if DELAY_KEY in field.metadata
    ]


def with_held_delay(frame: DataFrame, column: str, delay_ms: int, position: int) -> DataFrame:
    """Returns a frame with the declared delay of a held watermark in the metadata of its column.

    ``dropDuplicatesWithinWatermark`` forgets a key after the delay in the metadata. The watermark itself keeps the delay that holds it.

    Args:
        frame: A frame with a held watermark.
        column: The column of the watermark.
        delay_ms: The declared delay.
        position: The position of the input, which :func:`event_time_columns` returns.
    """
    metadata = {**frame.schema[column].metadata, DELAY_KEY: delay_ms, _HELD_KEY: position}
    return frame.withColumn(column, F.col(quoted(column)).alias(column, metadata=metadata))


def processing_time_operators(frame: DataFrame) -> list[str]:
    """Returns the operators that wait for processing time. A bounded stage with one of them would never end."""
    found = []
    for node in _walk(_analyzed(frame)):
        name = str(node.getClass().getSimpleName())
        if name.startswith("FlatMapGroups") and "ProcessingTime" in str(node.timeout().toString()):
            found.append("applyInPandasWithState with a processing-time timeout")
        if name.startswith("TransformWithState") and "ProcessingTime" in str(node.timeMode().toString()):
            found.append("transformWithState with timeMode='ProcessingTime'")
    return found


def check_streaming(frame: DataFrame, output_mode: str) -> None:
    """Lets Spark check a frame as it does when a query starts.

    Raises:
        AnalysisException: Spark cannot run it as a stream.
    """
    spark = frame.sparkSession
    checker = java_class(spark, "java.lang.Class").forName(f"{_CATALYST}.analysis.UnsupportedOperationChecker$")
    modes = java_class(spark, "org.apache.spark.sql.streaming.OutputMode")
    checker.getField("MODULE$").get(None).checkForStreaming(_analyzed(frame), getattr(modes, output_mode.capitalize())())


def has_timers(frame: DataFrame) -> bool:
    """Returns True if a user's operator can register timers, so that some may be left after one drain batch."""
    return any(str(node.getClass().getSimpleName()).startswith("TransformWithState") for node in _walk(_analyzed(frame)))


def has_subqueries(frame: DataFrame) -> bool:
    """Returns True if an expression of the frame reads another frame."""
    return not _analyzed(frame).subqueriesAll().isEmpty()


def is_deterministic(frame: DataFrame) -> bool:
    """Returns True if the frame's last operator gives the same result for the same rows each time."""
    return bool(_analyzed(frame).deterministic())


def feeds_another_operator(frame: DataFrame) -> bool:
    """Returns True if an operator gets rows that another one releases only when the watermark moves."""
    stateful = [node for node in _walk(_analyzed(frame)) if _is_stateful(node)]
    below = [inner for node in stateful for child in _iterate(node.children()) for inner in _walk(child) if _is_stateful(inner)]
    return any(not _is(node, "Deduplicate") and not _is(node, "DeduplicateWithinWatermark") for node in below)


def operators_with_memory(frame: DataFrame) -> list[str]:
    """Returns the classes of the operators whose result depends on rows of earlier batches."""
    found = set()
    for node in _walk(_analyzed(frame)):
        name = str(node.getClass().getSimpleName())
        if _is_stateful(node) or (name in _WITH_MEMORY and node.isStreaming()):
            found.add(name)
    return sorted(found)


def undrained_operators(frame: DataFrame) -> list[str]:
    """Returns the operators whose state a drain does not empty, because no event time ends a key."""
    return [
        "dropDuplicates without an event-time column"
        for node in _walk(_analyzed(frame))
        if _is(node, "Deduplicate") and not _keys_carry_watermark(node)
    ]


def holds_rows_back(frame: DataFrame) -> bool:
    """Returns True if an operator keeps rows, or results of them, until the watermark releases them."""
    return any(_is_stateful(node) and not _is(node, "Deduplicate") for node in _walk(_analyzed(frame)))


def only_aggregates(frame: DataFrame) -> bool:
    """Returns True if each operator with a state aggregates rows. Other operators may remove a row from the state in its own batch."""
    return all(_is(node, "Aggregate") for node in _walk(_analyzed(frame)) if _is_stateful(node))


def is_stateful(frame: DataFrame) -> bool:
    """Returns True if an operator keeps a state."""
    return any(_is_stateful(node) for node in _walk(_analyzed(frame)))


def listed_files(query: StreamingQuery) -> list[ListedFiles]:
    """Returns the files that Spark has found for the batch whose ``foreachBatch`` is running, without missing files.

    A stream that is used twice is listed once.
    """
    found: dict[int, ListedFiles] = {}
    for node in _walk(query._jsq.streamingQuery().lastExecution().logical()):
        if not _is(node, "LogicalRelation") or not _is(relation := node.relation(), "HadoopFsRelation"):
            continue
        location = relation.location()
        if _is(location, "InMemoryFileIndex") and not location.rootPaths().isEmpty():
            files = ListedFiles(
                re.sub("^file:/+", "file:///", str(location.rootPaths().head().toUri().toString())),
                len(location.inputFiles()),
                int(location.sizeInBytes()),
                partial(_input_files, location),
            )
            found[location.hashCode()] = files
    return list(found.values())


def data_files(spark: SparkSession, query: StreamingQuery) -> set[str]:
    """Returns the URLs of the files of all Delta tables in the batch whose ``foreachBatch`` is running. Calls the JVM for each."""
    path_class, found = java_class(spark, "org.apache.hadoop.fs.Path"), set()
    for node in _walk(query._jsq.streamingQuery().lastExecution().logical()):
        if _is(node, "LogicalRelation") and _is(relation := node.relation(), "HadoopFsRelation"):
            location = relation.location()
            if not _is(location, "InMemoryFileIndex"):
                found |= {str(path_class(path).toUri().toString()) for path in location.inputFiles()}
    return found


def _input_files(location: Any) -> set[str]:
    return {str(path) for path in location.inputFiles()}


def rows_read(query: StreamingQuery) -> int:
    """Returns the number of rows that the batch in ``foreachBatch`` has read from all streams, after its rows were consumed."""
    return sum(_rows_out(leaf) for leaf in _executed_leaves(query._jsq.streamingQuery().lastExecution().executedPlan()))


def rows_read_by_stream(spark: SparkSession, query: StreamingQuery) -> dict[int, int] | None:
    """Returns the number of rows that the batch has read by stream of Spark's offset log, or None if Spark's plan does not show it."""
    execution, plan = query._jsq.streamingQuery().lastExecution(), query._jsq.streamingQuery().logicalPlan()
    logical: list[tuple[int | None, Any]] = []
    if not _pair(plan, execution.logical(), logical, count()):
        return None
    system = java_class(spark, "java.lang.System")
    numbers = {key: number for number, leaf in logical if (key := _what_is_read(system, leaf)) is not None}
    executed = _executed_leaves(execution.executedPlan())
    keys = [_what_is_read(system, leaf) for leaf in executed]
    found: dict[int, int] = {}
    for position, (leaf, key) in enumerate(zip(executed, keys, strict=True)):
        number = numbers.get(key) if key in numbers else None
        if key not in numbers and len(executed) == len(logical):  # a table with deletion vectors has another index
            number = logical[position][0]
        if number is not None:
            found[number] = found.get(number, 0) + _rows_out(leaf)
    return found


def _what_is_read(system: Any, leaf: Any) -> int | None:
    """Returns the id of a leaf's relation. It is the same in Spark's logical and executed plans."""
    if _is(leaf, "StreamingDataSourceV2ScanRelation") or _is(leaf, "MicroBatchScanExec"):
        return int(system.identityHashCode(leaf.stream()))
    if _is(leaf, "LogicalRelation") or _is(leaf, "FileSourceScanExec"):
        relation = leaf.relation()
        return int(system.identityHashCode(relation.location())) if _is(relation, "HadoopFsRelation") else None
    return None


def _pair(stream: Any, batch: Any, found: list[tuple[int | None, Any]], numbers: Iterator[int]) -> bool:
    """Finds the stream of each leaf in a batch's plan. Returns True if the plans match."""
    children = list(_iterate(stream.children()))
    if not children:
        number = next(numbers) if str(stream.getClass().getSimpleName()).startswith("Streaming") else None
        found += [(number, node) for node in _walk(batch) if not int(node.children().size())]
        return True
    others = list(_iterate(batch.children()))
    return len(children) == len(others) and all(
        _pair(one, other, found, numbers) for one, other in zip(children, others, strict=True)
    )


def _executed_leaves(plan: Any) -> list[Any]:
    leaves = []
    for node in _walk(plan):
        if _is(node, "AdaptiveSparkPlanExec"):
            continue
        if str(node.getClass().getSimpleName()).endswith("QueryStageExec"):
            leaves += _executed_leaves(node.plan())
        elif not int(node.children().size()):
            leaves.append(node)
    return leaves


def _rows_out(leaf: Any) -> int:
    rows = leaf.metrics().get("numOutputRows")
    return int(rows.get().value()) if rows.isDefined() else 0


def _left_in_state(node: Any) -> tuple[str, int] | None:
    """Returns an operator with rows that the watermark should have released, and their number."""
    rows = node.metrics().get("numTotalStateRows")
    if not rows.isDefined() or not int(rows.get().value()):
        return None
    name, left = str(node.getClass().getSimpleName()), int(rows.get().value())
    if name in ("StateStoreSaveExec", "SessionWindowStateStoreSaveExec"):
        keys = [node.sessionExpression()] if name.startswith("Session") else list(_iterate(node.keyExpressions()))
        by_time = any(key.metadata().contains(DELAY_KEY) for key in keys)
        whole = "Complete" in str(node.outputMode().toString())
        return ("window", left) if by_time and not whole else None
    if name == "StreamingSymmetricHashJoinExec":
        sides = node.stateWatermarkPredicates()
        flushed = [side for side, found in (("left", sides.left()), ("right", sides.right())) if found.isDefined()]
        if len(flushed) == 1:  # not certain: the other side keeps its rows for ever, and is counted, too
            return f"{flushed[0]} side of join {int(node.stateInfo().get().operatorId())}", left
        return (JOIN, left) if flushed else None
    if name.startswith("FlatMapGroups"):  # not certain: a group may be kept without a timeout
        return TIMEOUT, left
    return {"StreamingDeduplicateWithinWatermarkExec": (DEDUPLICATION, left)}.get(name)


def batch_facts(query: StreamingQuery) -> BatchFacts:
    """Returns Spark's counts for the batch whose ``foreachBatch`` is running, after its rows were consumed."""
    newest: dict[str, int] = {}
    late_rows = 0
    state_rows: dict[str, int] = {}
    for node in _walk(query._jsq.streamingQuery().lastExecution().executedPlan()):
        if _is(node, "EventTimeWatermarkExec"):
            stats, node_id = node.eventTimeStats().value(), str(node.nodeId().toString())
            if stats.count() > 0:
                newest[node_id] = max(newest.get(node_id, stats.max()), stats.max())
        dropped = node.metrics().get("numRowsDroppedByWatermark")
        if dropped.isDefined():
            late_rows += int(dropped.get().value())
            if left := _left_in_state(node):
                state_rows[left[0]] = state_rows.get(left[0], 0) + left[1]
    return BatchFacts(newest, late_rows, state_rows)


def _is_stateful(node: Any) -> bool:
    name = str(node.getClass().getSimpleName())
    if name == "Join":
        return bool(node.left().isStreaming() and node.right().isStreaming())
    return name.startswith(_STATEFUL) and bool(node.isStreaming())


def _keys_carry_watermark(node: Any) -> bool:
    return any(key.metadata().contains(DELAY_KEY) for key in _iterate(node.keys()))


def _analyzed(frame: DataFrame) -> Any:
    return frame._jdf.queryExecution().analyzed()


def _is(node: Any, name: str) -> bool:
    return str(node.getClass().getSimpleName()) == name


def _walk(node: Any) -> Iterator[Any]:
    """Yields a plan's nodes, parents first, including those inside adaptive execution."""
    yield node
    children = (node.executedPlan(),) if _is(node, "AdaptiveSparkPlanExec") else _iterate(node.children())
    for child in children:
        yield from _walk(child)


def _iterate(sequence: Any) -> Iterator[Any]:
    iterator = sequence.iterator()
    while iterator.hasNext():
        yield iterator.next()
