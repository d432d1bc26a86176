"""Calls, checks and pins sources and static inputs."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, cast

from pydantic import BaseModel
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.readwriter import DataFrameReader
from pyspark.sql.types import TimestampNTZType

from spark_jobs.api.functions import PARAMS, SPARK, call
from spark_jobs.api.source import Refresh, Source, Static
from spark_jobs.protocol.documents import PinnedInput
from spark_jobs.protocol.ids import InputName
from spark_jobs.protocol.losses import Unit
from spark_jobs.protocol.pins import DeltaPin, Pin
from spark_jobs.publication.sql_names import quoted
from spark_jobs.runtime.inputs.delta_source import check_static, static_pin
from spark_jobs.runtime.inputs.source_kind import refused_input
from spark_jobs.runtime.inputs.source_kinds import kind_of
from spark_jobs.runtime.inputs.source_session import SourceSession
from spark_jobs.runtime.spark.plan import Leaf, static_leaves, streaming_leaves, watermark_nodes
from spark_jobs.runtime.spark.session import as_active, is_of_session, table_location
from spark_jobs.runtime.spark.spark_errors import refusing


def source_frame(source: Source, session: SparkSession, params: Any, without: Sequence[Unit] = ()) -> DataFrame:
    """Calls a source's function, and returns its checked frame.

    Args:
        source: The source.
        session: The session.
        params: Parameters of the function.
        without: Units that the frame leaves out, if its kind of source filters them.

    Raises:
        InvalidPipelineError: It is not a stream, sets a watermark itself, or reads a kind of stream that has no end.
    """

    def loaded(frame: DataFrame) -> DataFrame:
        (leaf,) = streaming_leaves(frame)
        return kind_of(leaf).without(frame, without)

    own = SourceSession.of(session, loaded if without else None)
    frame = _call(source.name, source.function, {"spark": own, "params": params})
    if not isinstance(frame, DataFrame) or not frame.isStreaming:
        raise refused_input(source.name, "does not return a streaming frame", "Return what spark.readStream....load() gives.")
    if watermark_nodes(frame):
        raise refused_input(
            source.name,
            "calls withWatermark itself, but the runtime cannot move that watermark at the end of the input",
            "Declare event_time= and watermark_delay= on the source, or call withWatermark on it in a stage.",
        )
    if source.event_time is not None and source.event_time not in frame.columns:
        raise refused_input(
            source.name,
            f"has no column {source.event_time!r} for its event time (it has {', '.join(frame.columns)})",
            "Correct event_time=.",
        )
    check_kinds(source, frame, moving=source.event_time is not None and not source.held)
    if source.event_time_zone is None:
        return frame
    return _in_zone(source.name, frame, str(source.event_time), source.event_time_zone)


def check_kinds(source: Source, frame: DataFrame, *, moving: bool) -> None:
    """Refuses streams that a source cannot have.

    Args:
        source: The source.
        frame: Its frame.
        moving: True if it has a watermark that moves between two batches.

    Raises:
        InvalidPipelineError: There is such a stream.
    """
    for leaf in streaming_leaves(frame):
        kind_of(leaf).check(source.name, leaf, bounded=source.bounded, moving=moving)


def source_rows(source: Source, session: SparkSession, params: Any, rows: DataFrame) -> DataFrame:
    """Returns the result of a source's function for given rows, as a batch frame.

    Args:
        source: The source. It has one stream.
        session: The session.
        params: Parameters of the function.
        rows: The rows that the function gets in place of its stream.
    """
    frame = _call(source.name, source.function, {"spark": SourceSession.of(session, lambda stream: rows), "params": params})
    if source.event_time_zone is None:
        return cast(DataFrame, frame)
    return _in_zone(source.name, frame, str(source.event_time), source.event_time_zone)


def _in_zone(name: InputName, frame: DataFrame, column: str, zone: str) -> DataFrame:
    """Returns the frame with its event time, which has no time zone, as timestamps in ``zone``.

    It converts by way of a text: a cast alone would use the time zone of the session that reads it.
    """
    kind = frame.schema[column].dataType
    if not isinstance(kind, TimestampNTZType):
        raise refused_input(
            name,
            f"declares event_time_zone={zone!r}, but {column!r} is a {kind.simpleString().upper()}, not a TIMESTAMP_NTZ",
            "Remove event_time_zone= if the column has a time zone; make a text a time with F.to_timestamp_ntz(column).",
        )
    moment = F.concat_ws(" ", F.col(quoted(column)).cast("string"), F.lit(zone)).cast("timestamp")
    return frame.withColumn(column, F.when(F.col(quoted(column)).isNotNull(), moment))


def pin_leaves(name: InputName, frame: DataFrame, leaves: Iterable[Leaf]) -> tuple[Pin, ...]:
    """Returns the present end of each stream of a source.

    Raises:
        StorageError: Kafka does not answer, or no longer knows a topic.
    """
    return tuple(kind_of(leaf).pin(name, frame, leaf) for leaf in leaves)


def static_frame(
    static: Static, session: SparkSession, params: Any, pinned: PinnedInput | None, *, is_replayed: bool = False
) -> tuple[DataFrame, PinnedInput]:
    """Returns a static input's frame at the versions in ``pinned``, or at the newest ones if there are none yet.

    Args:
        static: The static input.
        session: The session.
        params: Parameters of the function.
        pinned: The versions.
        is_replayed: True if staged batches are computed again, so that no other version may be read.

    Raises:
        InvalidPipelineError: It is a stream, or has an input that cannot be pinned and is not declared as unpinned.
        RejectedError: Another table is at the place of a pinned one.
    """
    versions = {pin.path: pin for pin in pinned.pins if isinstance(pin, DeltaPin)} if pinned else {}
    pinning = PinningSession.of(session, static.name, versions, is_replayed=is_replayed)
    is_pinned = static.refresh is not Refresh.UNPINNED
    frame = _call(static.name, static.function, {"spark": pinning if is_pinned else session, "params": params})
    if not isinstance(frame, DataFrame) or frame.isStreaming:
        raise refused_input(
            static.name, "does not return a batch frame", "Return what spark.read....load() gives, or declare a source."
        )
    if not is_pinned:
        return frame, PinnedInput(input=static.name, pins=())
    unpinned = [leaf for leaf in static_leaves(frame) if not leaf.fixed]
    if unpinned:
        raise refused_input(
            static.name,
            f"reads {unpinned[0].description}, whose version cannot be pinned",
            'Read a Delta table with spark.read.format("delta").load(path) or spark.read.table(name), or declare refresh="unpinned".',
        )
    return frame, PinnedInput(input=static.name, pins=tuple(pinning.pins.values()))


class PinningSession(SparkSession):
    """A session whose ``read`` reads Delta tables at fixed versions. It shares everything else with the session that it replaces."""

    name: InputName
    pins: dict[str, DeltaPin]
    is_replayed: bool

    @classmethod
    def of(
        cls, session: SparkSession, name: InputName, pins: Mapping[str, DeltaPin], *, is_replayed: bool = False
    ) -> "PinningSession":
        pinning = object.__new__(cls)
        pinning.__dict__.update(session.__dict__)
        pinning.name, pinning.pins, pinning.is_replayed = name, dict(pins), is_replayed
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
        pin = self._pinning.pins.get(key)
        if pin is None:
            pin = self._pinning.pins[key] = static_pin(self._pinning, path).model_copy(update={"path": key})
        else:
            check_static(self._pinning.name, self._pinning, path, pin, is_replayed=self._pinning.is_replayed)
        super().option("versionAsOf", pin.version)


def _call(name: InputName, function: Callable[..., Any], available: dict[str, Any]) -> Any:
    given = available.get(PARAMS)
    parameters = f"The parameters are {given.model_dump_json()}." if isinstance(given, BaseModel) else ""
    who, remedy = f"Input '{name}' cannot be read", "Check the path and the columns."
    with refusing(who, remedy, "Nothing was written.", parameters, input=name), as_active(available[SPARK]):
        frame = call(function, available)
    if isinstance(frame, DataFrame) and not is_of_session(frame, available[SPARK]):
        raise refused_input(
            name, "returns a frame of another Spark session", "Give its function an argument 'spark', and read with that session."
        )
    return frame
