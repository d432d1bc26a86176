"""The kinds of sources that there are. Only here is decided which one a stream is of."""

from spark_jobs.protocol.adopted_offsets import AdoptedOffsets
from spark_jobs.protocol.ids import InputName
from spark_jobs.runtime.inputs.delta_source import DeltaSource
from spark_jobs.runtime.inputs.file_source import FILE_FORMATS, FileSource
from spark_jobs.runtime.inputs.kafka_source import KafkaSource
from spark_jobs.runtime.inputs.old_query import kind_of as kind_of_old
from spark_jobs.runtime.inputs.source_kind import SourceKind, refused_input
from spark_jobs.runtime.spark.plan import Leaf

_DELTA, _FILES, _KAFKA = DeltaSource(), FileSource(), KafkaSource()
_KINDS: tuple[SourceKind, ...] = (_DELTA, _FILES, _KAFKA)


def kind_of(leaf: Leaf) -> SourceKind | None:
    """Returns the kind of a stream; None for one that only a source without an end may read."""
    return next((kind for kind in _KINDS if kind.reads(leaf)), None)


def bounded_kind(name: InputName, leaf: Leaf) -> SourceKind:
    """Returns the kind of a stream of a bounded source.

    Raises:
        InvalidPipelineError: It is of none for which an end can be recorded.
    """
    kind = kind_of(leaf)
    if kind is None:
        raise refused_input(
            name,
            f"reads {leaf.format!r}, for which no end can be recorded",
            f"Bounded sources read Delta tables, Kafka or files ({', '.join(sorted(FILE_FORMATS))}).",
        )
    return kind


def adopted_kind(name: InputName, adopted: AdoptedOffsets) -> SourceKind:
    """Returns the kind of the source that an old query has read.

    Raises:
        InvalidParameterError: It is of none whose offsets can be adopted.
    """
    return _DELTA if kind_of_old(name, adopted) == "delta" else _FILES
