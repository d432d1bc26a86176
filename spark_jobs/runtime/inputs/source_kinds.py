"""All kinds of sources. Only this module decides the kind of a stream."""

from spark_jobs.protocol.adopted_offsets import AdoptedOffsets
from spark_jobs.protocol.ids import InputName
from spark_jobs.protocol.known_sources import KnownSource
from spark_jobs.runtime.inputs.clock_source import ClockSource
from spark_jobs.runtime.inputs.delta_source import DeltaSource
from spark_jobs.runtime.inputs.file_source import FileSource
from spark_jobs.runtime.inputs.kafka_source import KafkaSource
from spark_jobs.runtime.inputs.old_query import format_of
from spark_jobs.runtime.inputs.other_source import OtherSource
from spark_jobs.runtime.inputs.source_kind import SourceKind
from spark_jobs.runtime.spark.plan import Leaf

_DELTA, _FILES, _KAFKA, _OTHER = DeltaSource(), FileSource(), KafkaSource(), OtherSource()
_KINDS: tuple[SourceKind, ...] = (_DELTA, _FILES, _KAFKA, ClockSource(), _OTHER)


def kind_of(leaf: Leaf) -> SourceKind:
    """Returns the kind of a stream."""
    return next(kind for kind in _KINDS if kind.reads(leaf))


def kind_of_known(known: KnownSource) -> SourceKind:
    """Returns the kind of a stream in a document."""
    return {"delta": _DELTA, "files": _FILES, "kafka": _KAFKA, "other": _OTHER}[known.format]


def adopted_kind(name: InputName, adopted: AdoptedOffsets) -> SourceKind:
    """Returns the kind of the source that an old query has read.

    Raises:
        InvalidParameterError: Offsets of its kind cannot be adopted.
    """
    return _DELTA if format_of(name, adopted) == "delta" else _FILES
