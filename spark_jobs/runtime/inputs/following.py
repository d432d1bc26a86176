"""A stream over a Delta table that begins where a bounded source over the same table ends: no gap and no row twice at the seam."""

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.readwriter import DataStreamReader

from spark_jobs.protocol.documents import PinnedInput
from spark_jobs.protocol.errors import InvalidPipelineError
from spark_jobs.protocol.ids import InputName
from spark_jobs.protocol.pins import DeltaPin
from spark_jobs.publication.delta_jvm import DeltaJvm
from spark_jobs.runtime.inputs.delta_source import may_begin_later
from spark_jobs.runtime.spark.plan import streaming_leaves

_STARTING = "startingVersion"


class FollowingSession(SparkSession):
    """A session whose ``readStream`` begins after a pinned end. It shares everything else with the session that it replaces."""

    first_version: int

    @classmethod
    def of(cls, session: SparkSession, pin: DeltaPin) -> "FollowingSession":
        following = object.__new__(cls)
        following.__dict__.update(session.__dict__)
        following.first_version = pin.version + 1
        may_begin_later(session)
        return following

    @property
    def readStream(self) -> DataStreamReader:
        return super().readStream.option(_STARTING, self.first_version)


def pinned_table(source: InputName, before: InputName, pinned: PinnedInput) -> DeltaPin:
    """Returns the end after which ``source`` begins.

    Raises:
        InvalidPipelineError: ``before`` does not read exactly one Delta table.
    """
    if len(pinned.pins) == 1 and isinstance(pinned.pins[0], DeltaPin):
        return pinned.pins[0]
    raise _refused(source, before, f"which does not read exactly one Delta table: {len(pinned.pins)} streams")


def check_follows(source: InputName, before: InputName, frame: DataFrame, pin: DeltaPin) -> None:
    """Refuses a stream that would leave a gap after the pinned end, or repeat rows.

    Raises:
        InvalidPipelineError: It reads another table, more than one, or sets its beginning itself.
    """
    leaves = streaming_leaves(frame)
    if len(leaves) != 1 or leaves[0].format.lower() != "delta":
        raise _refused(source, before, "but does not read exactly one Delta table")
    options = {key.lower(): value for key, value in leaves[0].options.items()}
    if options.get(_STARTING.lower()) != str(pin.version + 1):
        raise _refused(source, before, f"but sets {_STARTING} itself")
    table = DeltaJvm(frame.sparkSession).snapshot(options["path"])[1]["id"]
    if table != pin.table:
        raise _refused(source, before, f"which reads another table: {pin.path}")


def _refused(source: InputName, before: InputName, problem: str) -> InvalidPipelineError:
    return InvalidPipelineError(
        f"Source '{source}' begins after the end of '{before}', {problem}.",
        safe="Nothing was staged.",
        remedy='Let both read one Delta table with spark.readStream.format("delta").load(path), and leave the beginning to the runtime.',
        source=source,
        after=before,
    )
