"""What a stage reads and how it treats event time, read from Spark's own plans."""

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
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.types import StructType, TimestampNTZType, TimestampType

from spark_jobs.publication.delta_jvm import java_class, java_list

DELAY_KEY = "spark.watermarkDelayMs"
_STATEFUL = ("Aggregate", "Deduplicate", "FlatMapGroups", "TransformWithState")
_WITH_MEMORY = ("Distinct", "GlobalLimit", "LocalLimit", "Offset")
"""What keeps a state as well, although no watermark flushes it."""
TIMEOUT, TIMER = "timeout", "timer"
"""Names of what :func:`batch_facts` cannot count: only a reader of the state can."""
JOIN = "join"
JOIN_SIDE = re.compile(r"(?P<side>left|right) side of join (?P<operator>\d+)")
"""The name that :func:`batch_facts` gives to a join of which the watermark flushes only one side."""
DEDUPLICATION = "deduplication"
"""The name of what ``dropDuplicatesWithinWatermark`` keeps."""
_KAFKA_AVAILABLE = "allDataForTriggerAvailableNow"
"""Where a Kafka stream keeps what it has found at a query's start. It has no public way to be told."""
_LIST_FILES = "fetchAllFiles"
"""How Spark's file source lists its files. It has no public way to be asked."""
_FOUND_FILE = re.compile(r"^NewFileEntry\((.+),\d+,(-?\d+)\)$", re.MULTILINE)
_CATALYST = "org.apache.spark.sql.catalyst"
_CONSTANT_LEAVES = frozenset({"LocalRelation", "LogicalRDD", "OneRowRelation", "Range"})


@dataclass(frozen=True)
class Leaf:
    """A stream that a frame reads."""

    identity: int
    """Equal for two leaves that come from one ``readStream...load()``."""
    node: str
    """Spark's class of the plan node."""
    format: str
    options: dict[str, str]
    schema: StructType
    relation: Any = field(default=None, repr=False, compare=False)
    """The plan node itself, where the stream has Spark's newer interface; else its data source."""


@dataclass(frozen=True)
class EventTimeColumn:
    """An output column that still carries a watermark."""

    name: str
    timestamp: bool
    """Whether it is a timestamp; else it is a window."""
    delay_ms: int


@dataclass(frozen=True)
class BatchFacts:
    """What Spark counted in the batch that ran last."""

    newest_event_ms: dict[str, int]
    """By watermark node; missing where it saw no row."""
    late_rows: int
    state_rows: dict[str, int] = field(default_factory=dict)
    """By operator that lets rows go by their event time how many it has left in the state; those that have none are missing."""


@dataclass(frozen=True)
class ListedFiles:
    """What Spark has found of the files of one stream in a batch."""

    first: str
    """URL of the first file that it was to find."""
    count: int
    size_bytes: int
    paths: Callable[[], set[str]]
    """Those that it has found; costs a call of the JVM for each."""


@dataclass(frozen=True)
class StaticLeaf:
    """A relation that a batch frame reads."""

    description: str
    fixed: bool
    """Whether it reads the same rows at every start."""


def static_leaves(frame: DataFrame) -> list[StaticLeaf]:
    """The relations that a batch frame reads."""
    leaves = []
    # not by name: Delta's relation is an anonymous subclass
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
    """The streams that ``frame`` reads, in the order in which Spark's offset log lists them."""
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
    """The line of Spark's offset log that stands for everything that a stream of Spark's newer interface has now; None where nothing is.

    Asked with the stream's own options, as a query with ``Trigger.AvailableNow`` would; no query is started and nothing is written.
    """
    with _micro_batch_stream(leaf) as stream:
        stream.prepareForTriggerAvailableNow()
        return _newest(frame.sparkSession, stream)


def first_kafka_offset(frame: DataFrame, leaf: Leaf) -> str:
    """The line of Spark's offset log at which a Kafka stream begins, worked out by Spark from the stream's options now."""
    spark: Any = frame.sparkSession
    java_class(spark, "org.apache.spark.sql.classic.SparkSession").setActiveSession(
        spark._jsparkSession
    )  # a thread of ours has none
    with (
        tempfile.TemporaryDirectory(prefix="spark-jobs-") as aside,  # Spark writes it down there
        _micro_batch_stream(leaf, f"{aside}/sources/0") as stream,
    ):
        return str(stream.initialOffset().json())


def kafka_topics(frame: DataFrame, leaf: Leaf) -> tuple[str, dict[str, str]]:
    """The id of the cluster that a Kafka stream reads, and by name the ids of the topics that it reads now."""
    with _micro_batch_stream(leaf) as stream:
        names = sorted(json.loads(_newest(frame.sparkSession, stream) or "{}"))
        admin = stream.kafkaOffsetReader().admin()
        topics = _topic_ids(frame.sparkSession, admin, names)
        return str(admin.describeCluster().clusterId().get()), topics


def oldest_kafka_offsets(spark: SparkSession, leaf: Leaf, partitions: Sequence[tuple[str, int]]) -> dict[tuple[str, int], int]:
    """By partition the offset of the oldest record that Kafka still has, without the partitions that the stream no longer reads."""
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


def unread_delta_files(
    spark: SparkSession, leaf: Leaf, version: int, index: int, initial: bool, end: int | None
) -> list[tuple[int, str, int]]:
    """The data files that a Delta stream has not read, whether they are there or not: with the version, the URL and the size of each.

    Args:
        spark: The session.
        leaf: The stream.
        version: Where reading goes on.
        index: The last file of that version that was read; -1: none.
        initial: Whether it is read what the table was at that version, and not what the version has added.
        end: The last version that is read; None: all.
    """
    source = leaf.relation.createSource("spark-jobs-files")
    log, none, found = source.deltaLog(), java_class(spark, "scala.Option").apply(None), []
    files = source.getFileChanges(version, index, initial, none, False)
    try:
        while files.hasNext():
            file = files.next()
            if end is not None and int(file.version()) > end:
                break
            if (add := file.add()) is not None:
                found.append((int(file.version()), str(add.absolutePath(log).toUri().toString()), int(add.size())))
    finally:
        files.close()
    return found


@contextmanager
def _micro_batch_stream(leaf: Leaf, place: str = "spark-jobs-pin") -> Iterator[Any]:
    """Opens a stream of Spark's newer interface outside of a query.

    Args:
        leaf: The stream.
        place: Of its checkpoint. The stream makes a name for itself from it; only one that is asked where it begins writes there.
    """
    relation = leaf.relation
    stream = relation.table().newScanBuilder(relation.extraOptions()).build().toMicroBatchStream(place)
    try:
        yield stream
    finally:
        stream.stop()


def _newest(spark: SparkSession, stream: Any) -> str | None:
    """Returns the line of the offset log for everything that a stream has now; None where nothing is."""
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
    """The first version that a Delta stream reads, worked out by Delta from the stream's options now; None: the whole table."""
    found = leaf.relation.createSource("spark-jobs-start").getStartingVersion()
    return int(found.get()) if found.isDefined() else None


def change_options(leaf: Leaf, options: Mapping[str, str], *, without: Sequence[str] = ()) -> None:
    """Gives a stream of Spark's older interface other options than its frame was made with; before its query starts.

    Spark has no public way: a source's function sets the options, perhaps on a session that is not ours.
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
    """Adds options to streams of Spark's older interface; before the frame's query starts.

    A source that a frame reads twice is two streams, and one object of Spark's: each stream gets one of its own.

    Args:
        frame: What a query will run.
        options: By the number of the stream in Spark's offset log.
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
    """Tells Kafka streams of a running query where everything ends that is available now, whatever the query's trigger.

    Only saves work: what reads past an end is cut back before it is staged.

    Args:
        query: It is running a batch.
        lines: One for each stream, in the order of Spark's offset log; None for those that are left alone.
    """
    for stream, line in zip(_running_streams(query), lines, strict=True):
        if stream is None or line is None:
            continue
        for end in stream.getClass().getDeclaredFields():
            if end.getName() == _KAFKA_AVAILABLE:  # another release of the connector may have none
                end.setAccessible(True)
                end.set(stream, stream.deserializeOffset(line).partitionToOffsets())
                stream.prepareForTriggerAvailableNow()


def _running_streams(query: StreamingQuery) -> list[Any]:
    """The streams of a query that have Spark's newer interface, in the order of the offset log; None for others."""
    return [node.stream() if _is(node, "StreamingDataSourceV2ScanRelation") else None for node in _streaming_sources(query)]


def files_found(spark: SparkSession, query: StreamingQuery, number: int) -> dict[str, int]:
    """The modification times of the files that a file stream of a running query finds now, by URL as in Spark's log.

    Args:
        spark: The session.
        query: It has begun, see :func:`has_begun`.
        number: That of the stream, in the order of Spark's offset log.
    """
    source = _streaming_sources(query)[number].source()
    lists = next(method for method in source.getClass().getDeclaredMethods() if method.getName() == _LIST_FILES)
    lists.setAccessible(True)
    found = lists.invoke(source, java_class(spark, "java.util.ArrayList")().toArray())
    # all in one call of the JVM: a folder may have a million
    return {match[1]: int(match[2]) for match in _FOUND_FILE.finditer(str(found.mkString("\n")))}


def has_begun(query: StreamingQuery) -> bool:
    """Whether a running query has its sources."""
    return not str(query.status["message"]).startswith("Initializing")


def _streaming_sources(query: StreamingQuery) -> list[Any]:
    plan = query._jsq.streamingQuery().logicalPlan()
    return [
        node
        for node in _walk(plan)
        if str(node.getClass().getSimpleName()).startswith("Streaming") and not int(node.children().size())
    ]


def running_kafka_topics(spark: SparkSession, query: StreamingQuery, number: int, topics: Sequence[str]) -> dict[str, str]:
    """By name the ids that topics have now, asked by a stream of a running query; topics that are gone are missing."""
    admin = _running_streams(query)[number].kafkaOffsetReader().admin()
    there = {str(name) for name in java_list(spark, admin.listTopics().names().get())}
    return _topic_ids(spark, admin, there.intersection(topics))


def watermark_nodes(frame: DataFrame) -> list[str]:
    """The ids of all watermarks in ``frame``'s plan."""
    return [str(node.nodeId().toString()) for node in _walk(_analyzed(frame)) if _is(node, "EventTimeWatermark")]


def event_time_columns(frame: DataFrame) -> list[EventTimeColumn]:
    """The top-level columns of ``frame`` that carry a watermark."""
    return [
        EventTimeColumn(field.name, isinstance(field.dataType, TimestampType | TimestampNTZType), int(field.metadata[DELAY_KEY]))
        for field in frame.schema.fields
        if DELAY_KEY in field.metadata
    ]


def processing_time_operators(frame: DataFrame) -> list[str]:
    """Operators that wait for the clock: a bounded stage with one of them would never end."""
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
    """Whether an operator of the user's can register timers, so that one drain batch may leave some."""
    return any(str(node.getClass().getSimpleName()).startswith("TransformWithState") for node in _walk(_analyzed(frame)))


def has_subqueries(frame: DataFrame) -> bool:
    """Whether an expression of the frame reads another one."""
    return not _analyzed(frame).subqueriesAll().isEmpty()


def is_deterministic(frame: DataFrame) -> bool:
    """Whether the frame's last operator says the same of the same rows each time."""
    return bool(_analyzed(frame).deterministic())


def feeds_another_operator(frame: DataFrame) -> bool:
    """Whether an operator gets rows that another one lets go only when the watermark moves."""
    stateful = [node for node in _walk(_analyzed(frame)) if _is_stateful(node)]
    below = [inner for node in stateful for child in _iterate(node.children()) for inner in _walk(child) if _is_stateful(inner)]
    return any(not _is(node, "Deduplicate") and not _is(node, "DeduplicateWithinWatermark") for node in below)


def operators_with_memory(frame: DataFrame) -> list[str]:
    """Spark's classes of the operators whose result depends on rows of earlier batches."""
    found = set()
    for node in _walk(_analyzed(frame)):
        name = str(node.getClass().getSimpleName())
        if _is_stateful(node) or (name in _WITH_MEMORY and node.isStreaming()):
            found.add(name)
    return sorted(found)


def undrained_operators(frame: DataFrame) -> list[str]:
    """Operators whose state a drain does not empty, because no event time tells when a key is done."""
    return [
        "dropDuplicates without an event-time column"
        for node in _walk(_analyzed(frame))
        if _is(node, "Deduplicate") and not _keys_carry_watermark(node)
    ]


def holds_rows_back(frame: DataFrame) -> bool:
    """Whether an operator keeps rows, or what it has made of them, until the watermark lets them go."""
    return any(_is_stateful(node) and not _is(node, "Deduplicate") for node in _walk(_analyzed(frame)))


def is_stateful(frame: DataFrame) -> bool:
    """Whether an operator keeps a state."""
    return any(_is_stateful(node) for node in _walk(_analyzed(frame)))


def listed_files(query: StreamingQuery) -> list[ListedFiles]:
    """What Spark has found of the files that the batch reads whose ``foreachBatch`` is running: files that have gone are left out.

    A stream that is used twice is in it once.
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
    """URLs of the files of all Delta tables that the batch reads whose ``foreachBatch`` is running. Costs calls of the JVM for each."""
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
    """How many rows the batch has read whose ``foreachBatch`` is running, after its rows were consumed: of all its streams together."""
    return sum(_rows_out(leaf) for leaf in _executed_leaves(query._jsq.streamingQuery().lastExecution().executedPlan()))


def rows_read_by_stream(spark: SparkSession, query: StreamingQuery) -> dict[int, int] | None:
    """The same, by stream in the order of Spark's offset log; None where Spark's plan does not tell which scan is of which stream."""
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
        if key not in numbers and len(executed) == len(logical):  # a table with deletion vectors is read through another index
            number = logical[position][0]
        if number is not None:
            found[number] = found.get(number, 0) + _rows_out(leaf)
    return found


def _what_is_read(system: Any, leaf: Any) -> int | None:
    """Identifies what a leaf of a plan reads, in Spark's logical plan as in the executed one."""
    if _is(leaf, "StreamingDataSourceV2ScanRelation") or _is(leaf, "MicroBatchScanExec"):
        return int(system.identityHashCode(leaf.stream()))
    if _is(leaf, "LogicalRelation") or _is(leaf, "FileSourceScanExec"):
        relation = leaf.relation()
        return int(system.identityHashCode(relation.location())) if _is(relation, "HadoopFsRelation") else None
    return None


def _pair(stream: Any, batch: Any, found: list[tuple[int | None, Any]], numbers: Iterator[int]) -> bool:
    """Notes for each leaf of a batch's plan of which stream it is; whether the plans are alike."""
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
    """An operator that has rows left which the watermark should have let go, and how many."""
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
        if len(flushed) == 1:  # perhaps: the other side keeps its rows for ever, and is counted with it
            return f"{flushed[0]} side of join {int(node.stateInfo().get().operatorId())}", left
        return (JOIN, left) if flushed else None
    if name.startswith("FlatMapGroups"):  # perhaps: a group may be kept without a timeout
        return TIMEOUT, left
    return {"StreamingDeduplicateWithinWatermarkExec": (DEDUPLICATION, left)}.get(name)


def batch_facts(query: StreamingQuery) -> BatchFacts:
    """What Spark counted in the batch whose ``foreachBatch`` is running, after its rows were consumed."""
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
    """A plan's nodes, parents first. What adaptive execution hides is looked into."""
    yield node
    children = (node.executedPlan(),) if _is(node, "AdaptiveSparkPlanExec") else _iterate(node.children())
    for child in children:
        yield from _walk(child)


def _iterate(sequence: Any) -> Iterator[Any]:
    iterator = sequence.iterator()
    while iterator.hasNext():
        yield iterator.next()
