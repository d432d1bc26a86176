"""What a start does about requests that the attempts before it have left open (design, section 9)."""

import logging
from collections.abc import Callable
from dataclasses import dataclass

from pyspark.sql import SparkSession

from spark_jobs.checkpoint.store import CheckpointStore
from spark_jobs.control.attempts import Attempts
from spark_jobs.protocol.documents import CheckpointKind, Manifest, StartRequest, StartResponse
from spark_jobs.protocol.errors import RejectedError, Retry, StreamPipelineError
from spark_jobs.protocol.ids import AttemptNumber
from spark_jobs.protocol.masking import Mask
from spark_jobs.publication.publisher import publish
from spark_jobs.publication.transactions import Publishers
from spark_jobs.runtime.checkpoints.requested_checkpoints import RequestedCheckpoints
from spark_jobs.runtime.start.decision import BeginIncarnation, Decision
from spark_jobs.storage.files import Files

_LOG = logging.getLogger(__name__)


@dataclass(frozen=True)
class OpenRequests:
    """Those of a home in which nothing runs yet.

    Args:
        home: The home.
        mask: Takes secrets out of answers.
        start_spark: Makes the Spark session; called only where a publication needs it.
    """

    home: Files
    mask: Mask
    start_spark: Callable[[], SparkSession]

    def finish_stop(self, head: Manifest | None, request: StartRequest) -> StreamPipelineError | None:
        """Rolls a stop forward that an earlier attempt did not finish: its checkpoint becomes public, whoever has asked is answered.

        Returns:
            Why it can never become public, for a start that asks to abandon the checkpoint; any other is told so at once.
        """
        if head is None or head.checkpoint_kind is not CheckpointKind.STOP:
            return None
        requests = self._requests(head.attempt)
        still_open = requests.unanswered()
        asked = [each for each in still_open if each.request == head.request]
        if asked:
            _LOG.info("%s did not finish: it is rolled forward", head.request)
            try:
                publish(self.home, head.checkpoint, by_policy=True, publishers=Publishers(self.start_spark))
            except StreamPipelineError as error:
                if error.retry is not Retry.NEVER or not (request.fresh or request.restore):
                    raise
                return error
        is_newest = max(Attempts(self.home).numbers(), default=0) == head.attempt  # else what is open may be a later one's
        if asked or (still_open and is_newest):
            requests.stopped(asked, head)
        return None

    def abandon_stop(self, unfinished: StreamPipelineError, decision: Decision) -> None:
        """Answers a stop that can never be finished, once its checkpoint is left behind; else that is what the start comes to."""
        if not isinstance(decision, BeginIncarnation):
            raise unfinished
        _LOG.warning("a stop is given up, because its checkpoint is abandoned: %s", unfinished)
        self._requests(max(Attempts(self.home).numbers())).given_up(unfinished)

    def turn_down_late(self, answer: StartResponse) -> None:
        """Tells whoever has asked since a stop was answered: a request that stayed open would stop the next attempt as it begins."""
        try:
            manifest = CheckpointStore(self.home).manifest(answer.checkpoint) if answer.checkpoint is not None else None
            if manifest is None or manifest.checkpoint_kind is not CheckpointKind.STOP:
                return
            if manifest.attempt == answer.attempt:  # else it is an old run's answer, and what is open is a later attempt's
                self._requests(answer.attempt).stopped([], manifest)
        except StreamPipelineError as error:
            _LOG.warning("requests that came after the stop are turned down by the next attempt: %s", error)

    def turn_down_all(self, attempt: AttemptNumber, head: Manifest | None) -> None:
        """Answers what was asked for while an input had no end, where now all of them have one: such a pipeline looks at no request.

        With the checkpoint, where that was taken or its savepoint begun; else with an error.

        Args:
            attempt: The live attempt.
            head: The newest checkpoint before it.
        """
        requests = self._requests(attempt)
        requests.resume(head)
        ends = RejectedError(
            "The pipeline was started anew, and all of its inputs end.",
            exists="It takes one checkpoint, at their end.",
            safe="Nothing was done for this request.",
            remedy="Wait until it has ended: spark-jobs status.",
            attempt=attempt,
        )
        requests.refused(requests.open(), ends)

    def _requests(self, attempt: AttemptNumber) -> RequestedCheckpoints:
        return RequestedCheckpoints(self.home, attempt, self.mask)
