"""The driver's side of requests for a checkpoint, a savepoint or a stop: finds them, and answers them with the outcome of the try."""

import logging
import math
import time
from collections.abc import Callable, Collection, Container, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from functools import partial

from spark_jobs.checkpoint.checkpoint_store import CheckpointStore
from spark_jobs.checkpoint.savepoint import abandon, begun_by, begun_with, check_target
from spark_jobs.control.attempts import Attempts
from spark_jobs.control.checkpoint_requests import CheckpointRequests
from spark_jobs.control.request_table import RequestAction, RequestEvent, action_after, answered_after, rejected_after, state_of
from spark_jobs.home.places import Thing
from spark_jobs.home.savepoint_place import savepoint_place
from spark_jobs.protocol.checkpoint_requests import CheckpointedSink, CheckpointRequest, CheckpointResponse, Wanted
from spark_jobs.protocol.documents import BlockedPublication, CheckpointKind, Manifest
from spark_jobs.protocol.errors import FencedError, RejectedError, Retry, RunCancelledError, StreamPipelineError
from spark_jobs.protocol.ids import AttemptNumber, RequestId, SinkName
from spark_jobs.protocol.masking import Mask, masked_error
from spark_jobs.protocol.reports import report_error
from spark_jobs.publication.evidence import checkpointed_sinks
from spark_jobs.runtime.checkpoints.exports import Exports
from spark_jobs.storage.files import Files

_LOG = logging.getLogger(__name__)
_INTERVAL_S = 1.0


class RequestedCheckpoints:
    """The requests to a running pipeline, and their answers. Failures are logged and end no attempt, except during a stop.

    :mod:`spark_jobs.control.request_table` decides which requests are answered, rejected or left open after an event. A request that could
    not be answered stays open, and is answered with the next checkpoint, or by the next attempt.

    Args:
        mask: Removes secrets from answers.
        others: The pipeline's tables and sources. A savepoint may not overlap one.
        check: Called repeatedly while a savepoint is made. If it raises, the next attempt completes the savepoint.
        timeout_s: Limit for making a savepoint of a complete checkpoint. The savepoint of a stop has no limit.
        interval_s: Between two looks at the home.
        now_s: A clock.
        blocked: Returns the blocked publication, for the answers.
    """

    def __init__(
        self,
        home: Files,
        attempt: AttemptNumber,
        mask: Mask,
        *,
        others: Collection[Thing] = (),
        check: Callable[[], object] = lambda: None,
        timeout_s: float = math.inf,
        interval_s: float = _INTERVAL_S,
        now_s: Callable[[], float] = time.monotonic,
        blocked: Callable[[], BlockedPublication | None] = lambda: None,
    ) -> None:
        self._home = home
        self._store, self._requests = CheckpointStore(home), CheckpointRequests(home)
        self._attempt, self._mask = attempt, mask
        self._others, self._exports = others, Exports(home, check, timeout_s)
        self._interval_s, self._now_s, self._blocked = interval_s, now_s, blocked
        self._look_at_s = now_s()

    def resume(self, head: Manifest | None) -> None:
        """Answers requests of the previous attempt, which may have died between its last manifest and the answer.

        Args:
            head: The checkpoint that this attempt goes on from.
        """
        if head is not None:

            def is_covered(request: CheckpointRequest) -> bool:
                return request.request == head.request or self._begun_with(request) is not None

            self.completed(answered_after(RequestEvent.ATTEMPT_BEGINS, self._open(), is_covered), head)

    def open(self, waiting: Container[RequestId] = ()) -> Sequence[CheckpointRequest]:
        """Returns the open requests, the oldest first. Reads the home once per interval, and returns none in between.

        Args:
            waiting: Requests that are being answered. They are left out.
        """
        if self._now_s() < self._look_at_s:
            return ()
        self._look_at_s = self._now_s() + self._interval_s
        with _logged("files of an abandoned savepoint stay"):
            self._exports.delete_left()
        return [request for request in self._open() if request.request not in waiting and self._is_possible(request)]

    def unanswered(self) -> Sequence[CheckpointRequest]:
        """Reads the home and returns all open requests, for a caller that must not miss one.

        Raises:
            StreamPipelineError: They cannot be read.
        """
        return self._requests.open()

    def completed(self, requests: Sequence[CheckpointRequest], manifest: Manifest) -> None:
        """Answers ``requests``, which were open when the checkpoint was triggered, and makes their savepoints."""
        if not requests:
            return
        with _logged("a request for a checkpoint could not be answered"):
            self._answer_with(requests, manifest)

    def failed(self, requests: Sequence[CheckpointRequest], error: StreamPipelineError) -> None:
        """Answers with the error of the try, or with the checkpoint if only a step after its manifest has failed."""
        if not requests:
            return
        with _logged("a request for a checkpoint could not be answered"):
            head = self._store.head()
            if head is not None and head.request in [request.request for request in requests]:
                self.completed(requests, head)
            else:
                self.reject_or_log(RequestEvent.TRY_HAS_FAILED, requests, error)

    def reject_or_log(self, event: RequestEvent, requests: Sequence[CheckpointRequest], error: StreamPipelineError) -> None:
        """Answers the requests that are rejected after ``event`` with an error. A failure is logged.

        Raises:
            FencedError: One of them is a stop, and a later attempt is live, which may do it.
        """
        with _logged("a request could not be answered"):
            self.reject(event, requests, error)

    def reject(self, event: RequestEvent, requests: Sequence[CheckpointRequest], error: StreamPipelineError) -> None:
        """Answers the requests that are rejected after ``event`` with an error, for a caller that must not do the requested work.

        Raises:
            FencedError: One of them is a stop, and a later attempt is live, which may do it.
            StreamPipelineError: Not all of them have an answer.
        """
        rejected = rejected_after(event, requests)
        if any(request.wanted is Wanted.STOP for request in rejected):
            Attempts(self._home).check_live(self._attempt)
        self._answer(self._failure(request, error) for request in rejected)

    def check(self, request: CheckpointRequest) -> None:
        """Refuses a savepoint that cannot be made from its complete checkpoint.

        Raises:
            RejectedError: Its directory has other files, or overlaps the home, a table or a source.
            DeadlineExceededError: Its storage has not answered in time.
            StorageError: Its directory cannot be read: as :class:`AccessDeniedError` or :class:`NotFoundError` if no other try can.
        """
        target = savepoint_place(self._home, request)

        def check() -> None:
            try:
                check_target(self._home, target, self._others, request.request)
            except RejectedError:
                if not self._has_abandoned(target):
                    raise
                check_target(self._home, target, self._others, request.request)

        self._exports.look(request, check)

    def save(self, request: CheckpointRequest, manifest: Manifest) -> str:
        """Makes the requested savepoint and returns its URL. It is durable on return. Idempotent.

        Raises:
            RunCancelledError: The attempt was cancelled. Files of the savepoint stay.
            DeadlineExceededError: It was not made in time, and no stop waits for it.
            StreamPipelineError: It cannot be made.
        """
        target = savepoint_place(self._home, request)
        self._exports.make(request, manifest, target)
        return target.url

    def ended_with(self, requests: Sequence[CheckpointRequest], manifest: Manifest) -> None:
        """Answers every open request after the last checkpoint of an attempt. Idempotent.

        Args:
            requests: Requests that are known to have been open when it was triggered.
            manifest: The checkpoint: of a stop, or a final one.

        Raises:
            StreamPipelineError: Not all of them have an answer.
        """
        others = [request for request in self._requests.open() if request not in requests]
        answered = answered_after(_end_with(manifest), others, lambda request: self._is_covered(request, manifest))
        self._answer_with([*requests, *answered], manifest)
        with suppress(FencedError):  # a later attempt has begun and does the requested work
            self.reject(RequestEvent.LAST_ANSWERS_GIVEN, self._requests.open(), _after_the_last(manifest))

    def _is_possible(self, request: CheckpointRequest) -> bool:
        """Returns True if a savepoint can be made at its directory, and refuses its request if not. A stop has its own check."""
        if request.wanted is Wanted.SAVEPOINT:
            with _logged("a directory for a savepoint cannot be read"):
                try:
                    self.check(request)
                except StreamPipelineError as error:
                    if error.retry is not Retry.NEVER:
                        raise
                    self.reject_or_log(RequestEvent.SAVEPOINT_IS_IMPOSSIBLE, [request], error)
                    return False
        return True

    def _is_covered(self, request: CheckpointRequest, last: Manifest) -> bool:
        """Returns True if the last checkpoint of an attempt covers a request that did not ask for it.

        The request was open before it by the clocks of two hosts, or its savepoint was begun. Either answer is true: the pipeline has done
        nothing after that checkpoint, and nothing is begun for a request that is rejected.
        """
        return request.wanted is not Wanted.STOP and (
            request.requested_at <= last.began_at or self._begun_with(request) is not None
        )

    def _begun_with(self, request: CheckpointRequest) -> Manifest | None:
        """Returns the checkpoint with which an earlier attempt has begun the savepoint of a request. None for a stop, which has its own."""
        found = None
        if request.wanted is Wanted.SAVEPOINT:
            with _logged(f"the begun savepoint for {request.request} cannot be read"):
                found = self._exports.look(
                    request, partial(begun_with, self._home, savepoint_place(self._home, request), request.request)
                )
        return found

    def _has_abandoned(self, target: Files) -> bool:
        """Deletes the remaining export of a request that was answered with an error. Returns whether there was one."""
        before = begun_by(target)
        answer = self._requests.answer_of(before) if before else None
        if before is None or answer is None or answer.error is None or self._exports.is_left(before):
            return False
        manifest = begun_with(self._home, target, before)
        if manifest is None:
            return False
        abandon(manifest, target, request=before)
        return True

    def _answer_with(self, requests: Sequence[CheckpointRequest], manifest: Manifest) -> None:
        """Answers with the checkpoint, or with the one with which a request's savepoint was begun.

        Deletes the files of a savepoint that cannot be made, so that a new request may name the same directory.
        """
        sinks = checkpointed_sinks(manifest)
        for request in requests:
            begun = self._begun_with(request)
            own, counted = (begun, checkpointed_sinks(begun)) if begun else (manifest, sinks)
            standing = self._requests.answer(self._saved(request, own, counted))
            if (
                standing.error is not None
                and request.wanted is not Wanted.CHECKPOINT
                and not self._exports.is_left(request.request)
            ):
                with _logged(f"files of the savepoint for {request.request} stay"):
                    self._exports.look(
                        request, partial(abandon, own, savepoint_place(self._home, request), request=request.request)
                    )
        self._requests.forget_old(datetime.now(UTC))

    def _saved(
        self, request: CheckpointRequest, manifest: Manifest, sinks: dict[SinkName, CheckpointedSink]
    ) -> CheckpointResponse:
        """Makes the savepoint, if one is requested, and returns the answer with the checkpoint.

        A savepoint that cannot be made is an error, except one that a stop waits for.
        """
        savepoint = None
        if request.wanted is not Wanted.CHECKPOINT:
            try:
                savepoint = self.save(request, manifest)
            except (FencedError, RunCancelledError):
                raise
            except StreamPipelineError as error:
                event = RequestEvent.SAVEPOINT_IS_IMPOSSIBLE if error.retry is Retry.NEVER else RequestEvent.SAVEPOINT_HAS_FAILED
                if action_after(event, state_of(request)) is RequestAction.LEAVE:
                    raise  # the stop waits for it
                return self._failure(request, error)
        blocked = self._blocked()
        return CheckpointResponse(
            request=request.request,
            attempt=self._attempt,
            checkpoint=manifest.checkpoint,
            duration_s=max((manifest.completed_at - manifest.began_at).total_seconds(), 0.0),
            sinks=dict(sinks),
            savepoint=savepoint,
            drained=manifest.drained,
            behind=tuple(sorted({*manifest.sinks_behind, *(blocked.held if blocked else ())})),
            blocked=blocked,
            answered_at=datetime.now(UTC),
        )

    def _failure(self, request: CheckpointRequest, error: StreamPipelineError) -> CheckpointResponse:
        report = report_error(masked_error(error, self._mask))
        return CheckpointResponse(
            request=request.request, attempt=self._attempt, checkpoint=None, error=report, answered_at=datetime.now(UTC)
        )

    def _open(self) -> Sequence[CheckpointRequest]:
        found: Sequence[CheckpointRequest] = ()
        with _logged("requests for a checkpoint cannot be read"):
            found = self._requests.open()
        return found

    def _answer(self, responses: Iterable[CheckpointResponse]) -> None:
        for response in responses:
            self._requests.answer(response)
        self._requests.forget_old(datetime.now(UTC))


@contextmanager
def _logged(what: str) -> Iterator[None]:
    try:
        yield
    except (FencedError, RunCancelledError):
        raise
    except StreamPipelineError as error:
        _LOG.warning("%s: %s", what, error)


def _end_with(manifest: Manifest) -> RequestEvent:
    """Returns the event of an attempt whose last checkpoint is ``manifest``."""
    if manifest.checkpoint_kind is not CheckpointKind.FINAL:
        return RequestEvent.STOPPED
    return RequestEvent.RUN_DRAINED if manifest.drained else RequestEvent.RUN_ENDED


def _after_the_last(manifest: Manifest) -> RejectedError:
    if manifest.checkpoint_kind is CheckpointKind.FINAL:
        return RejectedError(
            f"The run has ended, with checkpoint {manifest.checkpoint}.",
            exists="That checkpoint has every row of the run.",
            safe="Nothing was done for this request.",
            remedy="Start the next run, and ask with a new id while it is running.",
            checkpoint=manifest.checkpoint,
        )
    return RejectedError(
        f"{manifest.request} has stopped the pipeline, at checkpoint {manifest.checkpoint}.",
        exists="That checkpoint has every row that was read.",
        safe="Nothing was done for this request.",
        remedy="Start the pipeline again, and ask with a new id while it is running.",
        winner=manifest.request,
        checkpoint=manifest.checkpoint,
    )
