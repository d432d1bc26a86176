"""Start requests and their answers.

Invariants:

1. ``requests/start-<n>.json`` is written before a driver for attempt n starts, by the requester of the run. n is one more than the highest
   attempt and request.
2. Asking again with the same options returns the same request until a driver begins to answer it.
3. A response never changes. A run that was answered without an error is answered in the same way again.
4. An index by run finds the requests of a run. An entry is written before its request, so every request has one. An entry alone means
   nothing.
5. Old requests are deleted, see :mod:`spark_jobs.control.old_starts`. The newest answer of each of many runs is kept.
"""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from functools import partial
from typing import Any, NamedTuple

from spark_jobs.control.attempts import Attempts
from spark_jobs.control.home import place_of
from spark_jobs.home.layout import (
    ENDED,
    PIPELINE,
    REQUESTS,
    RESPONSES,
    RUNS,
    attempt_of,
    ended_path,
    request_path,
    response_path,
    run_entry_path,
    start_numbers,
    start_of_request,
    starts_of_run,
)
from spark_jobs.protocol.documents import (
    AttemptDocument,
    PipelineDocument,
    RunEntry,
    StartResponse,
)
from spark_jobs.protocol.errors import AlreadyExistsError, ConflictError, NotFoundError, RejectedError, StreamPipelineError
from spark_jobs.protocol.ids import (
    AttemptNumber,
    PipelineName,
    PipelineUuid,
    RequestId,
    RunId,
    new_pipeline_uuid,
    start_request_id,
)
from spark_jobs.protocol.masking import Mask, masked_error
from spark_jobs.protocol.reports import report_error
from spark_jobs.protocol.restarts import RestartHistory
from spark_jobs.protocol.start_requests import StartOptions, StartRequest, start_request
from spark_jobs.protocol.steps import Step, step
from spark_jobs.storage.files import Files, create_document, read_document, side_by_side

_TRIES = 20
_NO_OPTIONS = StartOptions()


class Channel:
    """Requests runs and reads their answers, through a pipeline's home. It does not start processes."""

    def __init__(self, files: Files) -> None:
        self.files = files
        self.attempts = Attempts(files)

    def pipeline(self) -> PipelineDocument | None:
        """Returns the pipeline of this home, or None before the first start."""
        try:
            return read_document(self.files, PIPELINE, PipelineDocument)
        except NotFoundError:
            return None

    def claimed(self) -> PipelineDocument:
        """Returns the pipeline of this home.

        Raises:
            RejectedError: No pipeline has run there. The address may be mistyped.
        """
        found = self.pipeline()
        if found is None:
            raise RejectedError(
                f"{self.files.url} is not the home of a pipeline: it has no {PIPELINE}.",
                remedy="Correct the home. The first run creates one.",
                home=self.files.url,
            )
        return found

    def claim(self, name: PipelineName, uuid: PipelineUuid | None = None) -> PipelineDocument:
        """Makes this the home of pipeline ``name``, once. Idempotent.

        Args:
            name: The pipeline.
            uuid: The id of the pipeline if this call makes the home; by default a new one. The document has another id if another start
                has made it.

        Raises:
            RejectedError: The home belongs to another pipeline.
        """
        found = self.pipeline()
        if found is None:
            try:
                made = PipelineDocument(name=name, uuid=uuid or new_pipeline_uuid(), home=place_of(self.files))
                with step(Step.PIPELINE_CREATE):
                    create_document(self.files, PIPELINE, made)
            except AlreadyExistsError:
                pass  # another start claimed it at the same time: the existing document decides
            found = read_document(self.files, PIPELINE, PipelineDocument)
        self._check_name(found, name)
        return found

    def document_or_new(self, name: PipelineName, begun: PipelineDocument | None) -> PipelineDocument:
        """Returns the document of this home, or a new one for it. Reads and writes nothing.

        Args:
            name: The pipeline.
            begun: Document of the home, if it has begun.

        Raises:
            RejectedError: The home belongs to another pipeline.
        """
        found = begun or PipelineDocument(name=name, uuid=new_pipeline_uuid())
        self._check_name(found, name)
        return found

    def _check_name(self, found: PipelineDocument, name: PipelineName) -> None:
        if found.name != name:
            raise RejectedError(
                f"{self.files.url} is the home of pipeline '{found.name}', not of '{name}'.",
                remedy="Give each pipeline a home of its own (--home).",
                home=self.files.url,
                expected=name,
                found=found.name,
            )

    def next_attempt(self) -> AttemptNumber:
        """Returns the number that the next attempt would have."""
        return self._taken().next_attempt

    def request_start(
        self,
        run: RunId,
        *,
        parameters: dict[str, Any],
        options: StartOptions = _NO_OPTIONS,
        restarts: RestartHistory | None = None,
    ) -> StartRequest:
        """Requests a run, durably. Returns an unclaimed request with the same options, or a new one.

        Args:
            run: Id of the run; the same in every retry.
            parameters: Public parameter values; never secrets.
            options: Options of the start.
            restarts: History of the restart strategy if it has decided this start; None: somebody requests it.

        Raises:
            ConflictError: Others made a request at the same time, in every try.
        """
        options = options.model_copy(update={"run": run})
        for _ in range(_TRIES):
            taken = self._taken()
            request = start_request(options, taken.next_attempt, parameters, restarts)
            unclaimed = self._unclaimed(AttemptNumber(request.attempt - 1), taken)
            if unclaimed is not None and _asks_the_same(unclaimed, request):
                return unclaimed
            with suppress(AlreadyExistsError):  # an earlier try has written it
                create_document(
                    self.files, run_entry_path(request.attempt, request.run), RunEntry(attempt=request.attempt, run=request.run)
                )
            with suppress(AlreadyExistsError), step(Step.REQUEST_CREATE):  # another requester took the number: look again
                create_document(self.files, request_path(request.request), request)
                return request
        raise _overtaken(self.files.url)

    def request(self, request: RequestId) -> StartRequest:
        """Returns the request of this id.

        Raises:
            NotFoundError: There is no such request.
        """
        return read_document(self.files, request_path(request), StartRequest)

    def newest_request(self, run: RunId) -> StartRequest | None:
        """Returns the last request for this run, or None if there is none or it was deleted."""
        return next(self._requests_of(run, self._starts_of(run)), None)

    def newest_attempt(self, run: RunId) -> AttemptDocument | None:
        """Returns the newest attempt of this run that has begun, or None if there is none or it was deleted."""
        names, asked = side_by_side(self.files, [self.attempts.names, partial(self._starts_of, run)])
        begun = self._requests_of(run, [number for number in asked if number in names.begun])
        return next((self.attempts.read(request.attempt) for request in begun), None)

    @contextmanager
    def refusals_answered(self, request: RequestId, mask: Mask) -> Iterator[None]:
        """Answers ``request`` with every refusal inside, masked: the same start would be refused again."""
        try:
            yield
        except RejectedError as error:
            self.respond_failure(self.request(request), masked_error(error, mask))
            raise

    def unclaimed(self) -> StartRequest | None:
        """Returns the newest request if no driver has begun to answer it and it has no answer; otherwise None."""
        taken = self._taken()
        return self._unclaimed(taken.asked[-1], taken) if taken.asked else None

    def respond_failure(self, request: StartRequest, error: StreamPipelineError) -> StartResponse:
        """Answers a request with an error; see :meth:`respond`."""
        return self.respond(
            StartResponse(
                request=request.request,
                attempt=request.attempt,
                run=request.run,
                checkpoint=None,
                sinks={},
                error=report_error(error),
                answered_at=datetime.now(UTC),
            )
        )

    def respond(self, response: StartResponse) -> StartResponse:
        """Answers a request once. Returns the valid answer."""
        path = response_path(response.request)
        try:
            with step(Step.RESPONSE_CREATE):
                create_document(self.files, path, response)
        except AlreadyExistsError:
            return read_document(self.files, path, StartResponse)
        return response

    def response(self, request: RequestId) -> StartResponse | None:
        """Returns the answer to a request, or None while it is open. For a deleted request, returns the answer that is kept for its run."""
        number, answered = start_of_request(f"{request}.json"), self.answered()  # listed, see read_listed
        if number in answered:
            with suppress(NotFoundError):  # deleted in the meantime
                return read_document(self.files, response_path(request), StartResponse)
        may_be_old = number is not None and (not answered or number < answered[-1])  # otherwise it is new, as one listing shows
        return self._ended(request, number) if number is not None and may_be_old else None

    def answered(self) -> list[AttemptNumber]:
        """Returns the attempts whose requests were answered, ascending; reads the names only."""
        return start_numbers(self.files.names(RESPONSES))

    def newest(self) -> AttemptNumber | None:
        """Returns the newest attempt that has begun, or whose request was answered before it did; None if there is neither."""
        return max([*self.attempts.numbers(), *self.answered()], default=None)

    def answer(self, run: RunId) -> StartResponse | None:
        """Returns the newest answer of this run, with or without an error, or None if there is none or it was deleted."""
        answered, asked = side_by_side(self.files, [self.answered, partial(self._starts_of, run)])
        newest = next(self._requests_of(run, [number for number in asked if number in answered]), None)
        names = self.files.names(ENDED)  # listed last: an answer is kept there before it is deleted from the others
        kept = next(iter(starts_of_run(names, run)), None)
        if kept is not None and (newest is None or newest.attempt <= kept):
            ended = self._read_ended(ended_path(kept, run))
            if ended is not None and ended.run == run:
                return ended
        return None if newest is None else self.response(newest.request)

    def keep_answer(self, answer: StartResponse) -> None:
        """Keeps an answer for its run, once, before its request or its checkpoint is deleted. Durable on return."""
        with suppress(AlreadyExistsError), step(Step.KEEP_ANSWER):
            create_document(self.files, ended_path(answer.attempt, answer.run), answer)

    def _ended(self, request: RequestId, number: AttemptNumber) -> StartResponse | None:
        """Returns the kept answer of a deleted request."""
        names = (name for name in self.files.names(ENDED) if attempt_of(name) == number)
        answers = (self._read_ended(f"{ENDED}/{name}") for name in names)
        return next((answer for answer in answers if answer and answer.request == request), None)

    def _read_ended(self, path: str) -> StartResponse | None:
        try:
            return read_document(self.files, path, StartResponse)
        except NotFoundError:  # a newer one of the run has taken its place
            return None

    def _unclaimed(self, number: AttemptNumber, taken: "_Taken") -> StartRequest | None:
        """Returns the request of this number if no driver has begun it and it has no answer."""
        if number not in taken.asked or number in taken.claimed:
            return None
        request = self.request(start_request_id(number))
        return request if self.response(request.request) is None else None

    def _taken(self) -> "_Taken":
        return _Taken(*side_by_side(self.files, [self.attempts.numbers, lambda: start_numbers(self.files.names(REQUESTS))]))

    def _starts_of(self, run: RunId) -> list[AttemptNumber]:
        """Returns the numbers of a run's starts, newest first."""
        return starts_of_run(self.files.names(RUNS), run)

    def _requests_of(self, run: RunId, starts: Iterable[AttemptNumber]) -> Iterator[StartRequest]:
        """Yields the kept requests of a run.

        Args:
            run: The run.
            starts: The numbers of its starts, newest first.
        """
        for number in starts:
            with suppress(NotFoundError):  # the writer of the entry died before it wrote the request
                request = self.request(start_request_id(number))
                if request.run == run:
                    yield request


class _Taken(NamedTuple):
    """The numbers that attempts have claimed and those of start requests, each ascending."""

    claimed: list[AttemptNumber]
    asked: list[AttemptNumber]

    @property
    def next_attempt(self) -> AttemptNumber:
        return AttemptNumber(max([*self.claimed, *self.asked], default=0) + 1)


def _asks_the_same(one: StartRequest, other: StartRequest) -> bool:
    told_apart_by = {"request", "attempt", "requested_at"}
    return one.model_dump(exclude=told_apart_by) == other.model_dump(exclude=told_apart_by)


def _overtaken(home: str) -> ConflictError:
    return ConflictError(
        f"{_TRIES} numbers in a row for start requests were taken by others in {home}.",
        remedy="See what starts this pipeline so often: spark-jobs status.",
        home=home,
    )
