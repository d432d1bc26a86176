"""One run of a stage's query, from its start to its end."""

from collections.abc import Mapping
from contextlib import AbstractContextManager
from typing import Any
from weakref import ref

from pyspark.errors import StreamingQueryException
from pyspark.sql.streaming.query import StreamingQuery

from spark_jobs.api.source import Source, Static
from spark_jobs.protocol.errors import SourceChangedError, StreamPipelineError
from spark_jobs.runtime.spark.session import QuietQueries
from spark_jobs.runtime.spark.spark_errors import failed_batch, refusing, says
from spark_jobs.runtime.stages.built_stage import BuiltStage
from spark_jobs.runtime.stages.gate import TurnedAwayError
from spark_jobs.runtime.stages.judging import failed_by
from spark_jobs.runtime.stages.source_watch import SourceWatch
from spark_jobs.runtime.stages.staging import ProbePassedError, ReplanError, StageWriter

_OTHER_COLUMNS = "DELTA_STREAMING_METADATA_EVOLUTION"
"""The condition with which Delta ends a stream after it has read everything before a change of the table's metadata or protocol."""


class StageQuery:
    """The running query of a stage.

    Args:
        stage: Stage of the query.
        trigger: Argument for Spark's ``DataStreamWriter.trigger``.

    Raises:
        InvalidPipelineError: Spark cannot run the stage as a stream.
    """

    def __init__(self, stage: BuiltStage, trigger: Mapping[str, Any]) -> None:
        self._stage = stage
        self._writer = StageWriter(stage)
        self._query = self._start(trigger)

    def has_ended(self, timeout_s: int) -> bool:
        """Waits for the end. Returns True if the query has ended by itself.

        Raises:
            TurnedAwayError: The stage must stop.
            ReplanError: A batch has to be run in another way.
            ProbePassedError: The query was a probe, and its batch does not fail.
            SourceChangedError: A source has other columns than those that the stage was built with.
            InterruptedRunError: The query failed.
            StorageFullError: It failed because no space, or no quota, is left.
        """
        try:
            ended = self._query.awaitTermination(timeout_s)
        except StreamingQueryException as error:
            failure = self._writer.failure
            if isinstance(failure, TurnedAwayError | ReplanError | ProbePassedError):
                raise failure from None
            if failure is not None and not isinstance(failure, Exception):
                raise failure from None
            if failure is None and says(error, _OTHER_COLUMNS):
                raise self._changed() from error
            raise self._interrupted(failure or error) from error
        self._stage.heartbeat.observe(self._stage.stage.name, self._query, self._stage.arguments)
        return bool(ended)

    def watch(self, watch: SourceWatch) -> None:
        """Checks what the query has read, if a check is due.

        Raises:
            RejectedError: A source has changed that was read.
        """
        watch.look(self._stage, self._query)

    def is_active(self) -> bool:
        """Returns True if the query has not ended for any reason."""
        return bool(self._query.isActive)

    def ending(self) -> AbstractContextManager[None]:
        """Returns a context for ending the query, in which Spark does not report the rejected batch as a failure."""
        return QuietQueries.during(self._stage.frame.sparkSession)

    def stop(self) -> None:
        """Stops the query at any point. The next query repeats unfinished work."""
        self._query.stop()

    def _start(self, trigger: Mapping[str, Any]) -> StreamingQuery:
        stage, name = self._stage, self._stage.stage.name
        stream = stage.frame.writeStream.queryName(stage.query_name).option("checkpointLocation", stage.checkpoint_path)
        with refusing(
            f"Spark cannot run stage '{name}' as a stream",
            "Change the stage; windows and joins need an event time (event_time= on the source).",
            "No batch of the stage was begun.",
            calls=False,
            stage=name,
        ):
            query = stream.foreachBatch(self._writer).outputMode(stage.stage.output_mode.value).trigger(**trigger).start()
        self._writer.query.set_result(ref(query))
        return query

    def _changed(self) -> SourceChangedError:
        name, log = self._stage.stage.name, self._stage.spark_log
        return SourceChangedError(
            f"Stage '{name}' reads a table whose columns have changed.",
            exists=f"Its batches up to {log.last_commit()} are staged.",
            safe="No row from after the change was read.",
            remedy="Run it again: it continues with the new columns.",
            stage=name,
        )

    def _interrupted(self, cause: Exception) -> StreamPipelineError:
        if isinstance(cause, StreamPipelineError):
            return cause
        name, log = self._stage.stage.name, self._stage.spark_log
        violation = failed_by(cause, self._stage.stage, log.last_offsets())
        if violation is not None:
            return violation
        return failed_batch(
            f"Stage '{name}' failed in batch {log.last_offsets()}",
            cause,
            exists=f"Its batches up to {log.last_commit()} are staged.",
            safe="No row of this round is public.",
            remedy="Remove the cause and run it again: it goes on after the last staged batch.",
            sources=[node.name for node in self._stage.stage.inputs.values() if isinstance(node, Source)],
            statics=[node.name for node in self._stage.stage.inputs.values() if isinstance(node, Static)],
            places=[self._stage.table.path, self._stage.checkpoint_path],
            stage=name,
            batch=log.last_offsets(),
        )
