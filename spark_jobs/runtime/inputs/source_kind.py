"""The interface of the kinds of sources. A new kind implements it, or is refused."""

from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from spark_jobs.protocol.adopted_offsets import AdoptedOffsets
from spark_jobs.protocol.documents import InputLag
from spark_jobs.protocol.errors import BEGIN_ANEW, InvalidPipelineError, RejectedError
from spark_jobs.protocol.ids import InputName, StageName
from spark_jobs.protocol.known_sources import KnownSource
from spark_jobs.protocol.losses import Loss, Unit
from spark_jobs.protocol.masking import Mask
from spark_jobs.protocol.pins import Pin
from spark_jobs.runtime.inputs.bounds import Bound
from spark_jobs.runtime.spark.plan import Leaf
from spark_jobs.storage.files import Files


@dataclass(frozen=True)
class OwnLog:
    """The directory in which Spark keeps data of one stream of a query, in addition to the offset log."""

    files: Files
    directory: str


@dataclass(frozen=True)
class ReadSoFar:
    """The progress of a stage in a stream."""

    name: InputName
    position: int
    """Number of the stream in the source."""
    stage: StageName
    session: SparkSession
    leaf: Leaf
    line: str
    """Line of Spark's offset log. :data:`~.bounds.NO_OFFSET` if the stream has none."""
    known: KnownSource
    pin: Pin | None
    """The end of the stream."""
    log: OwnLog


class SourceKind(ABC):
    """One kind of source: how its streams are recognised, pinned, compared and counted."""

    has_place = False
    """True if its streams read files in a directory, and need no service."""

    @abstractmethod
    def reads(self, leaf: Leaf) -> bool:
        """Returns True if a stream is of this kind."""

    def check(self, name: InputName, leaf: Leaf, *, bounded: bool, moving: bool) -> None:  # noqa: B027 - most kinds take every option
        """Refuses options with which a stream could lose or repeat rows.

        Args:
            name: The source.
            leaf: The stream.
            bounded: True if it has an end.
            moving: True if its watermark moves between two batches.

        Raises:
            InvalidPipelineError: It has such an option.
        """

    @abstractmethod
    def identify(self, name: InputName, frame: DataFrame, leaf: Leaf, before: KnownSource | None, mask: Mask) -> KnownSource:
        """Returns the identity of a stream, without its beginning: see :meth:`resolve`.

        Args:
            name: The source.
            frame: Result of its function.
            leaf: The stream.
            before: Identity of the stream when it was last read. None if it is new.
            mask: Removes secrets from the record.

        Raises:
            InvalidPipelineError: Its input does not exist.
            StorageError: The storage of its input does not answer.
        """

    @abstractmethod
    def difference(self, before: KnownSource, now: KnownSource) -> str | None:
        """Returns the difference of a stream from the earlier one, in words after "source 'x' ". None if it is the same."""

    def resolve(self, name: InputName, frame: DataFrame, leaf: Leaf, known: KnownSource) -> KnownSource:
        """Returns a stream with its beginning as a version or as offsets, from its present options. Called once."""
        return known

    def renewed(self, before: KnownSource, now: KnownSource) -> KnownSource:
        """Returns the present identity of the same stream, with its earlier beginning."""
        return now

    def begin_at(self, frame: DataFrame, leaf: Leaf, known: KnownSource) -> None:  # noqa: B027 - most kinds have one beginning
        """Lets a stream without an offset begin at the result of :meth:`resolve`, not at its options."""

    def begin_log(self, known: KnownSource, log: OwnLog) -> None:  # noqa: B027 - most kinds keep no beginning there
        """Does the work of :meth:`begin_at`, if Spark keeps the beginning in its data of a stream. Idempotent."""

    def prepare(
        self, name: InputName, session: SparkSession, leaf: Leaf, log: OwnLog, losses: Sequence[Loss]
    ) -> Mapping[str, str]:
        """Prepares a stream so that all its rows are read with the columns of its frame. Returns the options that it needs for that.

        Args:
            name: The source.
            session: Session of the stage.
            leaf: The stream.
            log: The stream's own directory below Spark's checkpoint of the stage.
            losses: Losses of the stage in the source.

        Raises:
            SourceChangedError: The columns of its input have changed.
        """
        return {}

    def seen(self, read: ReadSoFar, known: KnownSource) -> KnownSource:
        """Returns the identity of a stream, with evidence of the rows that were read. The next start checks that they are unchanged.

        Args:
            read: Position of a checkpoint in the stream.
            known: Identity of the stream, with the evidence of other stages.

        Raises:
            StorageError: The storage of its input does not answer.
        """
        return known

    @abstractmethod
    def after(self, known: KnownSource, pin: Pin) -> KnownSource:
        """Returns a stream whose reading begins where a pin ends."""

    @abstractmethod
    def pin(self, name: InputName, frame: DataFrame, leaf: Leaf) -> Pin:
        """Returns the present end of a stream.

        Raises:
            InvalidPipelineError: Its input does not exist.
            StorageError: The storage of its input does not answer.
        """

    def check_position(self, name: InputName, session: SparkSession, leaf: Leaf, line: str) -> None:  # noqa: B027
        """Refuses a stream that has fewer rows than a query has read up to a line of its offset log.

        Raises:
            RejectedError: It has fewer.
        """

    def lost(self, read: ReadSoFar, *, thorough: bool) -> Loss | None:
        """Returns the missing rows of a stream that a stage has not read. None if there are none.

        Args:
            read: Position of the stage in the stream.
            thorough: True if each file is checked, not only the result of one call.
        """
        return None

    def check_unchanged(self, name: InputName, earlier: Pin, now: Pin, losses: Sequence[Loss]) -> None:  # noqa: B027
        """Refuses the end of a round if input of the previous round has changed.

        Args:
            name: The source.
            earlier: End of the stream in the previous round.
            now: Its new end.
            losses: Rows that the previous round has left out.

        Raises:
            RejectedError: The input has changed.
        """

    def check_new(self, name: InputName, session: SparkSession, leaf: Leaf, earlier: Pin | None, now: Pin) -> None:  # noqa: B027
        """Refuses the end of a round if new input before it would be read wrongly.

        Args:
            name: The source.
            session: The session.
            leaf: The stream.
            earlier: Its end in the previous round. None if there was none.
            now: Its new end.

        Raises:
            RejectedError: New input would be read wrongly.
        """

    def check_files(self, read: ReadSoFar, paths: Collection[str]) -> None:  # noqa: B027 - most kinds name no files
        """Refuses a batch with files that would be read wrongly.

        Args:
            read: The stream.
            paths: URLs of the batch's files.

        Raises:
            RejectedError: A file would be read wrongly.
        """

    def has_units(self, leaf: Leaf) -> bool:
        """Returns True if a tolerant stage can pass over parts of a stream."""
        return False

    def units(self, read: ReadSoFar, line: str) -> list[tuple[Unit, int | None]]:
        """Returns what a planned batch reads, with the rows of each unit. None: the rows are not known yet; see :meth:`rows_of`.

        Args:
            read: Position of the stage before the batch.
            line: The line of Spark's offset log after the batch.
        """
        raise NotImplementedError("it has no units")

    def has_read(self, read: ReadSoFar, unit: Unit) -> bool:
        """Returns True if a stage may have read a unit."""
        raise NotImplementedError("it has no units")

    def rows_of(self, session: SparkSession, leaf: Leaf, unit: Unit) -> DataFrame:
        """Returns the rows of a unit as a batch frame with the columns of the stream."""
        raise NotImplementedError("it has no units")

    def without(self, frame: DataFrame, units: Sequence[Unit]) -> DataFrame:
        """Returns a stream without the rows of units. See also :meth:`prepare`.

        Args:
            frame: The stream as Spark has loaded it.
            units: Units of this kind.
        """
        return frame

    def filtered(self, read: ReadSoFar, line: str, losses: Sequence[Loss]) -> int:
        """Returns the number of rows that a batch reads, as Spark counts them, only to leave them out.

        Args:
            read: Position of the stage before the batch.
            line: The line of Spark's offset log after the batch.
            losses: Losses of the stage in the source.
        """
        return 0

    def past(self, read: ReadSoFar, loss: Loss) -> KnownSource | None:
        """Returns a stream with the new beginning that it needs after a loss. None if it only goes on."""
        return None

    def first_line(self, known: KnownSource) -> str:
        """Returns the line of Spark's offset log that stands for the beginning which :meth:`past` has returned."""
        raise NotImplementedError("it just goes on")

    def check_batch(  # noqa: B027 - files are checked one by one
        self, read: ReadSoFar, line: str, losses: Sequence[Loss], query: StreamingQuery | None, number: int
    ) -> None:
        """Refuses a batch if the stream was replaced since the query was started, or if rows of it were skipped.

        Args:
            read: Position of the query in the stream before the batch.
            line: The line of Spark's offset log after the batch.
            losses: Rows that the stage leaves out. They may be skipped.
            query: Query that is running the batch. None if it has ended.
            number: Number of the stream, in the order of Spark's offset log.

        Raises:
            RejectedError: The stream was replaced, or rows were skipped.
        """

    def check_read(self, read: ReadSoFar, query: StreamingQuery, number: int) -> InputLag | None:
        """Refuses a stream without an end if rows that were read have changed: a running query would never read them again.

        Returns the part of the stream that the query has not read. None: only Spark's reports have it, or nothing has.

        Args:
            read: Position that the query has reached in the stream.
            query: The running query.
            number: Number of the stream, in the order of Spark's offset log.

        Raises:
            RejectedError: Rows that were read have changed.
        """
        return None

    def endless(self, session: SparkSession, leaf: Leaf, log: OwnLog, losses: Sequence[Loss]) -> Bound:
        """Returns the bound of a stream without an end in one stage, which leaves out lost rows."""
        return Bound()

    @abstractmethod
    def bound(self, pin: Pin, earlier: Pin | None, leaf: Leaf, log: OwnLog, losses: Sequence[Loss]) -> Bound:
        """Returns the end of a stream in one stage.

        Args:
            pin: End of the stream.
            earlier: Its end in the previous round.
            leaf: The stream.
            log: Spark's data of the stream.
            losses: Rows that the stage leaves out.
        """

    @abstractmethod
    def check_adopted(self, name: InputName, adopted: AdoptedOffsets, leaf: Leaf, session: SparkSession) -> None:
        """Refuses offsets of an old query that has read another input than the stream.

        Raises:
            InvalidParameterError: It has read another input.
        """

    @abstractmethod
    def begin_adopted(self, name: InputName, adopted: AdoptedOffsets, log: OwnLog) -> str:
        """Returns the line of Spark's offset log with which a stream goes on where an old query stopped. Idempotent."""


@dataclass(frozen=True)
class SourceStream:
    """A stream of a source in a stage."""

    kind: SourceKind
    read: ReadSoFar
    """Position before the first row."""
    losses: Sequence[Loss] = ()
    """The rows that the stage leaves out."""


def refused_input(name: str, problem: str, remedy: str) -> InvalidPipelineError:
    """Returns the error to raise if an input cannot be read as it is declared."""
    return InvalidPipelineError(f"Input '{name}' {problem}.", remedy=remedy, input=name)


def another_source(others: Mapping[InputName, str], *, may_be_new: bool = True) -> RejectedError:
    """Returns the error to raise if sources were replaced.

    Args:
        others: The difference in words, by source.
        may_be_new: True if the stages could read them from their beginning.
    """
    names = sorted(others)
    as_new = (
        "Or take it as a new source, which is read from its beginning while the state of the stages stays: "
        f"{' '.join(f'--new-source {name}' for name in names)} (new_sources={names}). "
    )
    return RejectedError(
        "; ".join(f"Source '{name}' {others[name]}" for name in names) + ".",
        exists="The newest checkpoint has the rows that were read before, and the state of the stages.",
        safe="Nothing was staged.",
        remedy=f"Restore the earlier sources. {as_new if may_be_new else ''}Or {BEGIN_ANEW}.",
        sources=dict(others),
    )


def another_kind(before: KnownSource, now: KnownSource) -> str:
    """Returns the difference of two streams of different kinds, as :meth:`SourceKind.difference` does."""
    return f"reads {_WORDS[now.format]}, but before it read {_WORDS[before.format]}"


_WORDS = {"delta": "a Delta table", "files": "files", "kafka": "Kafka", "other": "another kind of stream"}
