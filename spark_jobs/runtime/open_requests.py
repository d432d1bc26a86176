"""Handles the requests that earlier attempts have left open, at a start."""

import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

from pyspark.sql import SparkSession

from spark_jobs.checkpoint.checkpoint_store import CheckpointStore
from spark_jobs.control.attempts import Attempts
from spark_jobs.control.request_table import RequestEvent
from spark_jobs.protocol.checkpoint_requests import CheckpointRequest
from spark_jobs.protocol.documents import BlockedPublication, CheckpointKind, Manifest, StartResponse
from spark_jobs.protocol.errors import Retry, StreamPipelineError
from spark_jobs.protocol.ids import AttemptNumber
from spark_jobs.protocol.masking import Mask
from spark_jobs.protocol.start_requests import StartRequest
from spark_jobs.publication.transactions import Publishers
from spark_jobs.runtime.checkpoints.blocked_publication import Blocking
from spark_jobs.runtime.checkpoints.requested_checkpoints import RequestedCheckpoints
from spark_jobs.storage.files import Files

_LOG = logging.getLogger(__name__)


class UnfinishedStop(NamedTuple):
    """The open requests after a checkpoint that can never become public."""

    requests: tuple[CheckpointRequest, ...]
    error: StreamPipelineError


@dataclass(frozen=True)
class OpenRequests:
    """Answers the requests that are open in a home while no stage runs.

    Args:
        mask: Removes secrets from answers.
        start_spark: Creates the Spark session. Called only if a publication needs it.
    """

    home: Files
    mask: Mask
    start_spark: Callable[[], SparkSession]

    def roll_forward(self, head: Manifest | None, request: StartRequest) -> UnfinishedStop | None:
        """Finishes the work of an earlier attempt after its last checkpoint: publishes it and answers the requests.

        Returns:
            The open requests, if the checkpoint can never become public and the start may abandon it.

        Raises:
            StreamPipelineError: The checkpoint cannot be published now, or not every request has an answer.
        """
        if head is None or head.checkpoint_kind not in (CheckpointKind.STOP, CheckpointKind.FINAL):
            return None
        blocking = Blocking(self.home, self.mask)
        requests = self._requests(head.attempt, lambda: blocking.blocked)
        still_open = requests.unanswered()
        if not still_open:
            return None
        asked = [each for each in still_open if each.request == head.request]
        is_newest = (
            max(Attempts(self.home).numbers(), default=0) == head.attempt
        )  # otherwise an open request may belong to a later attempt
        if not asked and not is_newest:
            return None
        _LOG.info("attempt %d left requests open after checkpoint %d: they are answered now", head.attempt, head.checkpoint)
        is_left_behind = request.fresh or request.restore is not None
        publish = blocking.publish_or_block if head.may_end_blocked and not is_left_behind else blocking.publish
        try:
            publish(head, Publishers(self.start_spark))
        except StreamPipelineError as error:
            if error.retry is not Retry.NEVER or not is_left_behind:
                raise
            return UnfinishedStop(tuple(still_open), error)
        requests.ended_with(asked, head)
        return None

    def abandon_stop(self, unfinished: UnfinishedStop) -> None:
        """Answers stops with their error, before the attempt of a start begins that abandons their checkpoint. They would stop it."""
        _LOG.warning("a stop is answered with an error, because its checkpoint is abandoned: %s", unfinished.error)
        requests = self._requests(max(Attempts(self.home).numbers()))
        requests.reject(RequestEvent.CHECKPOINT_IS_ABANDONED, unfinished.requests, unfinished.error)

    def answer_late(self, answer: StartResponse) -> None:
        """Answers requests that came after the last checkpoint of a run. An open stop would otherwise stop the next attempt at once."""
        try:
            manifest = CheckpointStore(self.home).manifest(answer.checkpoint) if answer.checkpoint is not None else None
            if manifest is not None and manifest.attempt == answer.attempt:  # otherwise a later attempt answers them
                self._requests(answer.attempt).ended_with([], manifest)
        except StreamPipelineError as error:
            _LOG.warning("requests that came after the last checkpoint are answered by the next attempt: %s", error)

    def _requests(
        self, attempt: AttemptNumber, blocked: Callable[[], BlockedPublication | None] = lambda: None
    ) -> RequestedCheckpoints:
        return RequestedCheckpoints(self.home, attempt, self.mask, blocked=blocked)
