"""Requests for a checkpoint, a savepoint or a stop of a running pipeline, or for a publication, and their answers.

Invariants:

1. ``requests/<wanted>-<id>.json`` and ``answers/<wanted>-<id>.json`` are created if absent. An id has one request with one set of
   options, and one answer, however often it is repeated.
2. The answer is that of a checkpoint that was triggered after the request existed, of a publication, or the error of a failed try.
3. A request is deleted when its answer is durable and has an entry in ``answered/``. A leftover of a crash is deleted with the next answer.
   So ``requests/`` has only open requests, which a driver lists once a second, and an answer contains the options of its request.
4. The newest answers are kept, see :meth:`CheckpointRequests.forget_old`.
"""

import logging
import re
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from uuid import uuid4

from spark_jobs.control.attempts import Attempts
from spark_jobs.control.channel import Channel
from spark_jobs.control.liveness import driver_at_work
from spark_jobs.home.layout import ANSWERED, REQUESTS, answer_path, answered_names, answered_path, request_of, request_path
from spark_jobs.home.manifests import newest_manifest, newest_of
from spark_jobs.protocol.checkpoint_requests import AnsweredRequest, CheckpointRequest, CheckpointResponse, Wanted, wanted_by
from spark_jobs.protocol.documents import AttemptDocument
from spark_jobs.protocol.errors import (
    AlreadyExistsError,
    CorruptDocumentError,
    InvalidParameterError,
    NotFoundError,
    RejectedError,
)
from spark_jobs.protocol.ids import RequestId
from spark_jobs.protocol.steps import Step, step
from spark_jobs.storage.files import Files, create_document, read_document

_LOG = logging.getLogger(__name__)
_ASKER = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")
_WANTED = {wanted.value for wanted in Wanted}
_END_OF_TIME = datetime.max.replace(tzinfo=UTC)
ANSWERS_KEPT = {Wanted.CHECKPOINT: 100, Wanted.SAVEPOINT: 400, Wanted.STOP: 400, Wanted.PUBLISH: 100}
"""The minimum number of answers of each kind that are kept."""
ANSWER_KEPT_FOR = timedelta(hours=1)
"""The time for which every answer is kept. Waiting processes look much more often."""


def request_id(asker: str | None = None, wanted: Wanted = Wanted.CHECKPOINT) -> RequestId:
    """Returns the id of a request.

    Args:
        asker: The requester's id, with or without the word that it begins with; by default a new one.
        wanted: Kind of the request.

    Raises:
        InvalidParameterError: The id cannot be a file name on every file system.
    """
    begins = f"{wanted.value}-"
    name = str(uuid4()) if asker is None else asker.removeprefix(begins)
    if not _ASKER.fullmatch(name):
        raise InvalidParameterError(
            f"{asker!r} cannot be the id of a request.",
            safe="No request was made.",
            remedy="Use at most 100 letters, digits, dots, hyphens and underscores, the first a letter or a digit.",
            request=asker,
        )
    return RequestId(f"{begins}{name}")


class CheckpointRequests:
    """The requests for a checkpoint in one home. It has no state: every call reads the files.

    Every method raises :class:`~spark_jobs.protocol.errors.StorageError` or one of its leaves where the storage fails, and may then
    be repeated.

    Args:
        files: The home.
    """

    def __init__(self, files: Files) -> None:
        self._files = files

    def ask(self, request: RequestId, *, drain: bool = False, target: str | None = None) -> CheckpointResponse | None:
        """Makes the request that the id begins with, durably. Idempotent. Returns the answer if the request already has one.

        Args:
            request: Id from :func:`request_id`.
            drain: With a stop: flush everything first. This finishes the pipeline.
            target: URL of the savepoint's directory; None: below the home.

        Raises:
            RejectedError: No attempt is running that could take it. Nothing was written. A publication needs no attempt.
            InvalidParameterError: The same id was used with other options. Nothing was written.
        """
        asked = CheckpointRequest(
            request=request, requested_at=datetime.now(UTC), wanted=wanted_by(request), drain=drain, target=target
        )
        answer = self.answer_of(request)
        if answer is not None:
            if answer.drain is not None:
                _refuse_other_words(asked, answer.drain, answer.target)
            return answer
        if request in self._ids():
            self._refuse_other_words(asked)
            return None
        if asked.wanted is not Wanted.PUBLISH:
            self._refuse_unanswerable(request)
        try:
            with step(Step.REQUEST_CREATE):
                create_document(self._files, request_path(request), asked)
        except AlreadyExistsError:
            self._refuse_other_words(asked)
        return None

    def open(self) -> tuple[CheckpointRequest, ...]:
        """Returns the open requests that a driver answers, oldest first. Of a corrupt one only the parts in its id are known."""
        ids = [request for request in self._ids() if wanted_by(request) is not Wanted.PUBLISH]
        found = [asked for request in ids if self.answer_of(request) is None and (asked := self._read(request))]
        return tuple(sorted(found, key=lambda each: (each.requested_at, each.request)))

    def answer(self, response: CheckpointResponse) -> CheckpointResponse:
        """Answers a request once, durably. Returns the valid answer."""
        asked = self._read(response.request)
        if asked is not None and asked.requested_at != _END_OF_TIME:
            response = response.model_copy(update={"drain": asked.drain, "target": asked.target})
        try:
            with step(Step.RESPONSE_CREATE):
                create_document(self._files, answer_path(response.request), response)
        except AlreadyExistsError:
            response = read_document(self._files, answer_path(response.request), CheckpointResponse)
        self._end(response)
        return response

    def _end(self, answer: CheckpointResponse) -> None:
        """Records the time of a request's answer and deletes the request. Idempotent."""
        at_ms = int(answer.answered_at.timestamp() * 1000)
        entry = AnsweredRequest(request=answer.request, answered_at=answer.answered_at)
        with suppress(AlreadyExistsError):
            create_document(self._files, answered_path(at_ms, answer.request), entry)
        with step(Step.FORGET):
            self._files.delete(request_path(answer.request))

    def answer_of(self, request: RequestId) -> CheckpointResponse | None:
        """Returns the answer to a request, or None while it is open."""
        try:
            return read_document(self._files, answer_path(request), CheckpointResponse)
        except NotFoundError:
            return None

    def is_asked(self, request: RequestId) -> bool:
        """Returns True if a request exists and is not answered yet."""
        return self._read(request) is not None

    def forget_old(self, now: datetime) -> None:
        """Deletes old answers of each kind, except the newest :data:`ANSWERS_KEPT` and those of the last hour. Idempotent.

        A stop that is repeated by a task that is cleared a year later must find its answer.

        Args:
            now: Current time.
        """
        for answer in filter(None, map(self.answer_of, self._ids())):  # the process that answered it died before it had finished
            self._end(answer)
        answered = answered_names(self._files.names(ANSWERED))
        before_ms = (now - ANSWER_KEPT_FOR).timestamp() * 1000
        for wanted, count in ANSWERS_KEPT.items():
            for each in [each for each in answered if wanted_by(each.request) is wanted][:-count]:
                if each.at_ms < before_ms:
                    with step(Step.FORGET):
                        self._files.delete(answer_path(each.request))  # first, because it is only found by its entry
                        self._files.delete(answered_path(*each))

    def _refuse_other_words(self, asked: CheckpointRequest) -> None:
        standing = self._read(asked.request)
        if standing is not None and standing.requested_at != _END_OF_TIME:
            _refuse_other_words(asked, standing.drain, standing.target)

    def _refuse_unanswerable(self, request: RequestId) -> None:
        attempt = Attempts(self._files).latest()
        if attempt is None or not driver_at_work(self._files):
            raise RejectedError(
                f"No attempt is running in {self._files.url} that could take a {wanted_by(request).value}.",
                exists=self._stopped_by(attempt) or self._ended_with(attempt),
                remedy="Start the pipeline, and repeat the request when spark-jobs status shows it as running.",
                home=self._files.url,
                request=request,
                at_work=False,
            )

    def _ended_with(self, attempt: AttemptDocument | None) -> str:
        """Returns a sentence about the end of the newest attempt."""
        if attempt is None:
            return "No run has begun."
        response, run = Channel(self._files).response(attempt.request), f"The last run, {attempt.run},"
        if response is None:
            return f"{run} has ended without an answer; the next start goes on where it was."
        if response.error is not None:
            return f"{run} has failed: {response.error.error}: {response.error.failed}"
        manifest = None if response.checkpoint is None else newest_of(self._files, [response.checkpoint])
        drained = ", and the pipeline is drained" if manifest and manifest.drained else ""
        return f"{run} has ended with checkpoint {response.checkpoint}{drained}."

    def _stopped_by(self, attempt: AttemptDocument | None) -> str:
        """Returns a sentence about the stop that ended the newest attempt, or an empty text: the newest checkpoint names it."""
        newest = newest_manifest(self._files)
        request = newest.request if newest else None
        answer = self.answer_of(request) if request and wanted_by(request) is Wanted.STOP else None
        if answer and attempt and answer.attempt == attempt.attempt and answer.error is None:
            return f"{answer.request} has stopped it at checkpoint {answer.checkpoint}; its savepoint is {answer.savepoint}."
        return ""

    def _ids(self) -> list[RequestId]:
        names = map(request_of, self._files.names(REQUESTS))
        return [name for name in names if name and name.partition("-")[0] in _WANTED]

    def _read(self, request: RequestId) -> CheckpointRequest | None:
        """Returns a request, or None if it does not exist because it was answered."""
        try:
            return read_document(self._files, request_path(request), CheckpointRequest)
        except NotFoundError:
            return None
        except CorruptDocumentError as error:
            _LOG.warning("a request is answered nevertheless: %s", error)
            return CheckpointRequest(request=request, requested_at=_END_OF_TIME, wanted=wanted_by(request))


def _refuse_other_words(asked: CheckpointRequest, drain: bool, target: str | None) -> None:
    if (drain, target) != (asked.drain, asked.target):
        raise InvalidParameterError(
            f"{asked.request} was requested before with other options: drain={drain}, target={target}.",
            safe="No request was made. The earlier one stays.",
            remedy="Repeat it with the same options, or choose another id.",
            request=asked.request,
            expected={"drain": drain, "target": target},
            found={"drain": asked.drain, "target": asked.target},
        )
