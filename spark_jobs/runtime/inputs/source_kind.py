"""The interface to everything that the runtime knows about one kind of source. A new kind implements it, or is refused."""

from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from spark_jobs.protocol.adopted_offsets import AdoptedOffsets
from spark_jobs.protocol.errors import BEGIN_ANEW, InvalidPipelineError, RejectedError
from spark_jobs.protocol.ids import InputName, StageName
from spark_jobs.protocol.known_sources import KnownSource
from spark_jobs.protocol.losses import Loss
from spark_jobs.protocol.masking import Mask
from spark_jobs.protocol.pins import Pin
from spark_jobs.runtime.inputs.bounds import Bound
from spark_jobs.runtime.spark.plan import Leaf
from spark_jobs.storage.files import Files


@dataclass(frozen=True)
class OwnLog:
    """The directory in which Spark keeps what it remembers of one stream of a query, in addition to the offset log."""

    files: Files
    directory: str


@dataclass(frozen=True)
class ReadSoFar:
    """The progress of a stage in a stream."""

    name: InputName
    position: int
    """The stream's number in the source."""
    stage: StageName
    session: SparkSession
    leaf: Leaf
    line: str
    """Of Spark's offset log; :data:`~.bounds.NO_OFFSET` where the stream has none."""
    known: KnownSource
    pin: Pin | None
    """The end of the stream."""
    log: OwnLog


class SourceKind(ABC):
    """One kind of source: how its streams are recognised, pinned, compared and counted."""

    @abstractmethod
    def reads(self, leaf: Leaf) -> bool:
        """Returns whether a stream is of this kind."""

    def check(self, name: InputName, leaf: Leaf, *, bounded: bool, moving: bool) -> None:  # noqa: B027 - most kinds take every option
        """Refuses options with which a stream could not keep its promises.

        Args:
            name: The source.
            leaf: The stream.
            bounded: Whether it has an end.
            moving: Whether its watermark moves between two batches.

        Raises:
            InvalidPipelineError: It has one.
        """

    @abstractmethod
    def identify(self, name: InputName, frame: DataFrame, leaf: Leaf, before: KnownSource | None, mask: Mask) -> KnownSource:
        """Returns what a stream is. Where reading begins is left open: see :meth:`resolve`.

        Args:
            name: The source.
            frame: What its function returns.
            leaf: The stream.
            before: What the stream was when it was read before; None if it was not there.
            mask: Takes secrets out of what is recorded.

        Raises:
            InvalidPipelineError: It reads something that is not there.
            StorageError: What it reads does not answer.
        """

    @abstractmethod
    def difference(self, before: KnownSource, now: KnownSource) -> str | None:
        """Returns in words how a stream is another one than before, after "source 'x' "; None if it is the same."""

    def resolve(self, name: InputName, frame: DataFrame, leaf: Leaf, known: KnownSource) -> KnownSource:
        """Returns a stream with where reading begins: what its options say now, as a version or as offsets. Asked once."""
        return known

    def renewed(self, before: KnownSource, now: KnownSource) -> KnownSource:
        """Returns the same stream as it is now, with the beginning that it had."""
        return now

    def begin_at(self, frame: DataFrame, leaf: Leaf, known: KnownSource) -> None:  # noqa: B027 - most kinds have one beginning
        """Lets a stream that has no offset yet begin where :meth:`resolve` has said, whatever its options say."""

    def begin_log(self, known: KnownSource, log: OwnLog) -> None:  # noqa: B027 - most kinds keep no beginning there
        """Does what :meth:`begin_at` does, if Spark keeps the beginning in what it remembers of a stream. Idempotent."""

    def prepare(self, name: InputName, session: SparkSession, leaf: Leaf, log: OwnLog) -> Mapping[str, str]:
        """Lets every row of a stream be read, with the columns that its frame has. Returns the options that the stream needs for that.

        Args:
            name: The source.
            session: Of the stage.
            leaf: The stream.
            log: A directory of the stream's own below Spark's checkpoint of the stage.

        Raises:
            SourceChangedError: What is read has other columns by now.
        """
        return {}

    def seen(self, read: ReadSoFar, known: KnownSource) -> KnownSource:
        """Returns what a stream is, with evidence of what was read. The next start checks whether that part is still the same.

        Args:
            read: How far a checkpoint has read the stream.
            known: What the stream is, with evidence of what other stages have read.

        Raises:
            StorageError: What it reads does not answer.
        """
        return known

    @abstractmethod
    def after(self, known: KnownSource, pin: Pin) -> KnownSource:
        """Returns a stream whose reading begins where a pin ends."""

    @abstractmethod
    def pin(self, name: InputName, frame: DataFrame, leaf: Leaf) -> Pin:
        """Returns where a stream ends if it ends now.

        Raises:
            InvalidPipelineError: It reads something that is not there.
            StorageError: What it reads does not answer.
        """

    def check_position(self, name: InputName, session: SparkSession, leaf: Leaf, line: str) -> None:  # noqa: B027
        """Refuses a stream of which there is less than a query has read up to a line of its offset log.

        Raises:
            RejectedError: There is.
        """

    def lost(self, read: ReadSoFar, *, thorough: bool) -> Loss | None:
        """Returns what a stage has not read of a stream and is gone; None where nothing is.

        Args:
            read: How far it has read.
            thorough: Whether each file is looked at, not only what one call tells.
        """
        return None

    def check_unchanged(self, name: InputName, earlier: Pin, now: Pin, losses: Sequence[Loss]) -> None:  # noqa: B027
        """Refuses the end of a round in which something has changed that was read in the round before.

        Args:
            name: The source.
            earlier: Where the stream ended in the round before.
            now: Where it ends.
            losses: What that round has left out.

        Raises:
            RejectedError: Something has.
        """

    def check_new(self, name: InputName, session: SparkSession, leaf: Leaf, earlier: Pin | None, now: Pin) -> None:  # noqa: B027
        """Refuses the end of a round before which something new would be read wrongly.

        Args:
            name: The source.
            session: The session.
            leaf: The stream.
            earlier: Where it ended in the round before; None if there was none.
            now: Where it ends.

        Raises:
            RejectedError: Something would.
        """

    def check_files(self, read: ReadSoFar, paths: Collection[str]) -> None:  # noqa: B027 - most kinds name no files
        """Refuses a batch with files that would be read wrongly.

        Args:
            read: The stream.
            paths: URLs of the batch's files.

        Raises:
            RejectedError: One would.
        """

    def past(self, read: ReadSoFar, loss: Loss) -> KnownSource | None:
        """Returns a stream with the beginning at which it has to begin again to get past a loss; None if it just goes on."""
        return None

    def first_line(self, known: KnownSource) -> str:
        """Returns the line of Spark's offset log that stands for the beginning which :meth:`past` has returned."""
        raise NotImplementedError("it just goes on")

    def check_batch(  # noqa: B027 - files are looked at one by one
        self, read: ReadSoFar, line: str, losses: Sequence[Loss], query: StreamingQuery | None, number: int
    ) -> None:
        """Refuses a batch if the stream has become another one since the query was started, or if rows of it were passed over.

        Args:
            read: How far the query has read the stream before the batch.
            line: The line of Spark's offset log after the batch.
            losses: What the stage leaves out: it may be passed over.
            query: It is running the batch; None once it has come to its end.
            number: That of the stream, in the order of Spark's offset log.

        Raises:
            RejectedError: It has, or they were.
        """

    def check_read(self, read: ReadSoFar, query: StreamingQuery, number: int) -> None:  # noqa: B027 - what was read stays in most kinds
        """Refuses a stream without an end in which something has changed that was read: a running query would never read it again.

        Args:
            read: How far the query has read the stream at least.
            query: It is running.
            number: That of the stream, in the order of Spark's offset log.

        Raises:
            RejectedError: Something has.
        """

    def endless(self, session: SparkSession, leaf: Leaf, log: OwnLog, losses: Sequence[Loss]) -> Bound:
        """Returns the bound of a stream without an end in one stage, which leaves out what is lost."""
        return Bound()

    @abstractmethod
    def bound(self, pin: Pin, earlier: Pin | None, leaf: Leaf, log: OwnLog, losses: Sequence[Loss]) -> Bound:
        """Returns the end of a stream in one stage.

        Args:
            pin: Where the stream ends.
            earlier: Where it ended in the round before.
            leaf: The stream.
            log: What Spark remembers of it.
            losses: What the stage leaves out of its inputs.
        """

    @abstractmethod
    def check_adopted(self, name: InputName, adopted: AdoptedOffsets, leaf: Leaf, session: SparkSession) -> None:
        """Refuses offsets of an old query that has read something else than a stream reads.

        Raises:
            InvalidParameterError: It has.
        """

    @abstractmethod
    def begin_adopted(self, name: InputName, adopted: AdoptedOffsets, log: OwnLog) -> str:
        """Returns the line of Spark's offset log with which a stream goes on where an old query stopped. Idempotent."""


@dataclass(frozen=True)
class SourceStream:
    """A stream of a source, as a stage reads it."""

    kind: SourceKind
    read: ReadSoFar
    """Before the stage has read anything."""
    losses: Sequence[Loss] = ()
    """The rows that the stage leaves out."""


def refused_input(name: str, problem: str, remedy: str) -> InvalidPipelineError:
    """Returns the error to raise if an input cannot be read as it is declared."""
    return InvalidPipelineError(f"Input '{name}' {problem}.", safe="Nothing was written.", remedy=remedy, input=name)


def another_source(others: Mapping[InputName, str], *, may_be_new: bool = True) -> RejectedError:
    """Returns the error to raise if sources are others than those that were read before.

    Args:
        others: By source in words how it is another one.
        may_be_new: Whether the stages could read them from their beginning.
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
        remedy=f"Go back to what was read before. {as_new if may_be_new else ''}Or {BEGIN_ANEW}.",
        sources=dict(others),
    )


def another_kind(before: KnownSource, now: KnownSource) -> str:
    """Returns the difference of two streams of different kinds, as :meth:`SourceKind.difference` does."""
    return f"reads {_WORDS[now.format]}, and before it read {_WORDS[before.format]}"


_WORDS = {"delta": "a Delta table", "files": "files", "kafka": "Kafka", "other": "another kind of stream"}
