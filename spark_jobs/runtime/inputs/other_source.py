"""Streams whose end cannot be known."""

import re
from collections.abc import Sequence

from pyspark.sql import DataFrame, SparkSession

from spark_jobs.protocol.adopted_offsets import AdoptedOffsets
from spark_jobs.protocol.codec import sha256
from spark_jobs.protocol.errors import InvalidPipelineError
from spark_jobs.protocol.ids import InputName
from spark_jobs.protocol.known_sources import KnownOther, KnownSource
from spark_jobs.protocol.losses import Loss
from spark_jobs.protocol.masking import Mask
from spark_jobs.protocol.pins import Pin
from spark_jobs.runtime.inputs.bounds import Bound
from spark_jobs.runtime.inputs.file_source import FILE_FORMATS
from spark_jobs.runtime.inputs.source_kind import OwnLog, SourceKind, another_kind, refused_input
from spark_jobs.runtime.spark.plan import Leaf

_SOCKETS = frozenset({"socket", "textsocketsourceprovider"})
"""Names of Spark's socket source, without its package."""

_SECRETS = r"secret|passw|passphrase|token|(access|api|private)[._-]?key|credential"
_TELLS_NOTHING = re.compile(rf"{_SECRETS}|^(max|min)\w*pertrigger$")
"""Matches options that do not identify the input of a source: secrets, which may change, and limits of batches."""


class OtherSource(SourceKind):
    """Any other stream. Only a source without an end may read one: its end cannot be known. Its options identify its input."""

    def reads(self, leaf: Leaf) -> bool:
        return True

    def identify(self, name: InputName, frame: DataFrame, leaf: Leaf, before: KnownSource | None, mask: Mask) -> KnownOther:
        options = {key.lower(): mask(value) for key, value in leaf.options.items()}
        telling = {key: sha256(value.encode()) for key, value in options.items() if not _TELLS_NOTHING.search(key)}
        return KnownOther(source=leaf.format, options=telling)

    def difference(self, before: KnownSource, now: KnownSource) -> str | None:
        if not isinstance(before, KnownOther) or not isinstance(now, KnownOther):
            return another_kind(before, now)
        if before.source != now.source:
            return f"reads {now.source!r}, but before it read {before.source!r}"
        if before.options is None or now.options is None:
            return None
        changed = sorted({key for key, _ in before.options.items() ^ now.options.items()})
        return f"reads {now.source!r} with other options than before: {', '.join(changed)}" if changed else None

    def after(self, known: KnownSource, pin: Pin) -> KnownSource:
        raise NotImplementedError("it has no pin")

    def pin(self, name: InputName, frame: DataFrame, leaf: Leaf) -> Pin:
        raise _endless(name, leaf)

    def bound(self, pin: Pin, earlier: Pin | None, leaf: Leaf, log: OwnLog, losses: Sequence[Loss]) -> Bound:
        raise NotImplementedError("it has no pin")

    def check_adopted(self, name: InputName, adopted: AdoptedOffsets, leaf: Leaf, session: SparkSession) -> None:
        raise NotImplementedError("no old query can have read it")

    def begin_adopted(self, name: InputName, adopted: AdoptedOffsets, log: OwnLog) -> str:
        raise NotImplementedError("no old query can have read it")

    def check(self, name: InputName, leaf: Leaf, *, bounded: bool, moving: bool) -> None:
        if bounded:
            raise _endless(name, leaf)
        if leaf.format.lower().rpartition(".")[2] in _SOCKETS:
            raise refused_input(
                name,
                "reads a socket, which gives each row once: rows that are not staged when a run ends would be lost",
                "Write the rows to Kafka, to files or into a Delta table, and read them there.",
            )


def _endless(name: InputName, leaf: Leaf) -> InvalidPipelineError:
    return refused_input(
        name,
        f"reads {leaf.format!r}, for which no end can be recorded",
        f"Bounded sources read Delta tables, Kafka or files ({', '.join(sorted(FILE_FORMATS))}).",
    )
