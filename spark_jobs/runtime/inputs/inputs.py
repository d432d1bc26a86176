"""Sources and static inputs: called, checked, and pinned."""

from collections.abc import Callable, Mapping
from typing import Any

from deltalake import DeltaTable
from deltalake.exceptions import DeltaError
from pydantic import BaseModel
from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.readwriter import DataFrameReader

from spark_jobs.api.functions import PARAMS, call
from spark_jobs.api.source import Refresh, Source, Static
from spark_jobs.protocol.documents import PinnedInput
from spark_jobs.protocol.errors import InvalidPipelineError, StorageError
from spark_jobs.protocol.ids import InputName
from spark_jobs.protocol.pins import DeltaPin, FilePin, FilesPin, KafkaPin, Pin
from spark_jobs.publication.delta_jvm import DeltaJvm, java_causes, java_message
from spark_jobs.runtime.inputs.kafka import kafka_pin
from spark_jobs.runtime.spark.plan import Leaf, newest_offset, static_leaves, streaming_leaves, watermark_nodes
from spark_jobs.runtime.spark.session import file_status, spark_failures, table_location

KAFKA = "kafka"
FILE_FORMATS = frozenset({"avro", "binaryfile", "csv", "json", "orc", "parquet", "text", "xml"})


def source_frame(source: Source, session: SparkSession, params: Any) -> DataFrame:
    """What a source's function returns, checked.

    Raises:
        InvalidPipelineError: It is not a stream, sets a watermark itself, or reads a kind of stream that has no end.
    """
    frame = _call(source.name, source.function, {"spark": session, "params": params})
    if not isinstance(frame, DataFrame) or not frame.isStreaming:
        raise _refused(source.name, "does not return a streaming frame", "Return what spark.readStream....load() gives.")
    if watermark_nodes(frame):
        raise _refused(
            source.name,
            "calls withWatermark itself, and the runtime could not move that watermark at the end of the input",
            "Remove it; declare event_time= and watermark_delay= on the source.",
        )
    if source.event_time is not None and source.event_time not in frame.columns:
        raise _refused(
            source.name,
            f"has no column {source.event_time!r} for its event time (it has {', '.join(frame.columns)})",
            "Correct event_time=.",
        )
    for leaf in streaming_leaves(frame) if source.bounded else ():
        _check_can_end(source.name, leaf)
    return frame


def pin_leaves(name: InputName, frame: DataFrame, leaves: list[Leaf]) -> tuple[Pin, ...]:
    """Where each stream of a source ends if it ended now.

    Raises:
        InvalidPipelineError: It reads topics that are not there.
        StorageError: Kafka does not answer.
    """
    session, pins = frame.sparkSession, list[Pin]()
    for leaf in leaves:
        if leaf.format.lower() == KAFKA:
            pins.append(_pin_kafka(name, frame, leaf))
        else:
            pins.append(_pin_delta(session, leaf) if leaf.format.lower() == "delta" else _pin_files(session, leaf))
    return tuple(pins)


def static_frame(static: Static, session: SparkSession, params: Any, pinned: PinnedInput | None) -> tuple[DataFrame, PinnedInput]:
    """What a static input's function returns, at the versions in ``pinned`` or, where there are none yet, at the newest.

    Raises:
        InvalidPipelineError: It is a stream, or reads something that cannot be pinned although it is not declared as unpinned.
    """
    versions = {pin.path: pin for pin in pinned.pins if isinstance(pin, DeltaPin)} if pinned else {}
    pinning = PinningSession.of(session, versions)
    is_pinned = static.refresh is not Refresh.UNPINNED
    frame = _call(static.name, static.function, {"spark": pinning if is_pinned else session, "params": params})
    if not isinstance(frame, DataFrame) or frame.isStreaming:
        raise _refused(
            static.name, "does not return a batch frame", "Return what spark.read....load() gives, or declare a source."
        )
    if not is_pinned:
        return frame, PinnedInput(input=static.name, pins=())
    unpinned = [leaf for leaf in static_leaves(frame) if not leaf.fixed]
    if unpinned:
        raise _refused(
            static.name,
            f"reads {unpinned[0].description}, whose version cannot be pinned",
            'Read a Delta table with spark.read.format("delta").load(path) or spark.read.table(name), or declare refresh="unpinned".',
        )
    return frame, PinnedInput(input=static.name, pins=tuple(pinning.pins.values()))


class PinningSession(SparkSession):
    """A session whose ``read`` reads Delta tables at fixed versions. It shares everything else with the session it stands for."""

    pins: dict[str, DeltaPin]

    @classmethod
    def of(cls, session: SparkSession, pins: Mapping[str, DeltaPin]) -> "PinningSession":
        pinning = object.__new__(cls)
        pinning.__dict__.update(session.__dict__)
        pinning.pins = dict(pins)
        return pinning

    @property
    def read(self) -> DataFrameReader:
        return _PinningReader(self)


class _PinningReader(DataFrameReader):
    def __init__(self, session: PinningSession) -> None:
        super().__init__(session)
        self._pinning = session
        self._format = ""
        self._options: set[str] = set()

    def format(self, source: str) -> "DataFrameReader":
        self._format = source.lower()
        return super().format(source)

    def option(self, key: str, value: Any) -> "DataFrameReader":
        self._options.add(key.lower())
        return super().option(key, value)

    def options(self, **options: Any) -> "DataFrameReader":
        self._options |= {key.lower() for key in options}
        return super().options(**options)

    def load(self, path: Any = None, format: str | None = None, schema: Any = None, **options: Any) -> DataFrame:
        if format is not None:
            self.format(format)
        self.options(**options)
        if self._format == "delta" and isinstance(path, str):
            self._at_version(path, path)
        return super().load(path, schema=schema)

    def table(self, tableName: str) -> DataFrame:
        location = table_location(self._pinning, tableName)
        if location is not None:
            self._at_version(tableName, location)
        return super().table(tableName)

    def _at_version(self, key: str, path: str) -> None:
        if self._options & {"versionasof", "timestampasof"}:
            return
        if key not in self._pinning.pins:
            version, metadata, _ = DeltaJvm(self._pinning).snapshot(path)
            self._pinning.pins[key] = DeltaPin(path=key, table=metadata["id"], version=max(version, 0))
        super().option("versionAsOf", self._pinning.pins[key].version)


def _check_can_end(name: InputName, leaf: Leaf) -> None:
    kind = leaf.format.lower()
    if kind not in (FILE_FORMATS | {"delta"} if leaf.node == "StreamingRelation" else {KAFKA}):
        raise _refused(
            name,
            f"reads {leaf.format!r}, for which no end can be recorded",
            f"Bounded sources read Delta tables, Kafka or files ({', '.join(sorted(FILE_FORMATS))}).",
        )
    if kind == KAFKA and not any(option.lower().startswith("starting") for option in leaf.options):
        raise _refused(
            name,
            "reads Kafka and does not say from where: Spark would begin at the newest record, which is the end of this input",
            'Add .option("startingOffsets", "earliest"); with "latest" the first round only marks where the next one begins.',
        )


def _call(name: InputName, function: Callable[..., Any], available: dict[str, Any]) -> Any:
    try:
        return call(function, available)
    except AnalysisException as error:
        given = available.get(PARAMS)
        parameters = f" The parameters are {given.model_dump_json()}." if isinstance(given, BaseModel) else ""
        reason = f"cannot be read: {str(error).splitlines()[0]}"
        raise _refused(name, reason, f"Check the path and the columns.{parameters}") from error


def _pin_delta(session: SparkSession, leaf: Leaf) -> DeltaPin:
    path = leaf.options["path"]
    version, metadata, _ = DeltaJvm(session).snapshot(path)
    return DeltaPin(path=path, table=metadata["id"], version=version, rows=_rows(path, version))


def _rows(path: str, version: int) -> int | None:
    """The rows of a table, from the statistics in its log."""
    try:
        counts = DeltaTable(path, version=version).get_add_actions().column("num_records").to_pylist()
    except (DeltaError, KeyError, OSError):
        return None
    return None if None in counts else sum(counts)


def _pin_kafka(name: InputName, frame: DataFrame, leaf: Leaf) -> KafkaPin:
    try:
        line = newest_offset(frame, leaf)
    except spark_failures() as error:
        if any("UnknownTopicOrPartition" in str(cause.toString()) for cause in java_causes(error)):
            raise _refused(name, "reads a Kafka topic that is not there", "Create the topic, or correct its name.") from error
        raise StorageError(
            f"Input '{name}' reads Kafka, which does not tell where its topics end: {java_message(error)}.",
            safe="Nothing was written.",
            remedy="Look at the brokers, and at the kafka. options of the source; a retry asks again.",
            input=name,
        ) from error
    return kafka_pin(line or "{}")


def _pin_files(session: SparkSession, leaf: Leaf) -> FilesPin:
    """The files that Spark's file source would find now: listed by Spark, with the source's own options."""
    options = {key: value for key, value in leaf.options.items() if key.lower() != "path"}
    try:
        paths = session.read.format("binaryFile").options(**options).load(leaf.options["path"]).inputFiles()
    except AnalysisException as error:
        if error.getCondition() != "PATH_NOT_FOUND":
            raise
        paths = []
    files = []
    for path in sorted(paths):
        timestamp_ms, size_bytes = file_status(session, path)
        files.append(FilePin(path=path, timestamp_ms=timestamp_ms, size_bytes=size_bytes))
    return FilesPin(path=leaf.options["path"], files=tuple(files))


def _refused(name: str, problem: str, remedy: str) -> InvalidPipelineError:
    return InvalidPipelineError(f"Input '{name}' {problem}.", safe="Nothing was written.", remedy=remedy, input=name)
