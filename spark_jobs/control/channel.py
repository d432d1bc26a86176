"""Start requests and their answers.

Invariants:

1. ``requests/start-<n>.json`` is written before a driver for attempt n starts, by whoever wants the run; n is one more than the highest
   attempt and request there is.
2. Asking again in the same words gives the same request back, as long as nobody has begun to answer it.
3. A response is the answer for ever; a run that was answered without an error is answered the same way again.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from types import MappingProxyType
from typing import Any

from spark_jobs.control.attempts import Attempts
from spark_jobs.home.layout import PIPELINE, REQUESTS, RESPONSES, request_path, response_path, start_numbers
from spark_jobs.protocol.checkpointing import CheckpointOverrides
from spark_jobs.protocol.documents import (
    OnEnd,
    OnRewind,
    PipelineDocument,
    Publish,
    RestoreFrom,
    StartRequest,
    StartResponse,
)
from spark_jobs.protocol.errors import AlreadyExistsError, ConflictError, NotFoundError, RejectedError, StreamPipelineError
from spark_jobs.protocol.ids import AttemptNumber, InputName, PipelineName, RequestId, RunId, new_pipeline_uuid, start_request_id
from spark_jobs.protocol.reports import report_error
from spark_jobs.protocol.restarts import RestartHistory
from spark_jobs.protocol.steps import Step, step
from spark_jobs.protocol.workspace import NamedWorkspace
from spark_jobs.storage.files import Files, create_document, read_document, read_listed

_TRIES = 20


class Channel:
    """Asks for runs and reads their answers, through a pipeline's home. Nothing here starts a process."""

    def __init__(self, files: Files) -> None:
        self.files = files
        self.attempts = Attempts(files)

    def pipeline(self) -> PipelineDocument | None:
        """Whose home this is; None where nothing ran yet."""
        try:
            return read_document(self.files, PIPELINE, PipelineDocument)
        except NotFoundError:
            return None

    def claim(self, name: PipelineName, workspace: NamedWorkspace | None = None) -> PipelineDocument:
        """Makes this the home of pipeline ``name``, once; idempotent.

        Args:
            name: The pipeline.
            workspace: Of :func:`~spark_jobs.control.home.claim_workspace`.

        Raises:
            RejectedError: The home belongs to another pipeline.
            ConflictError: Another first start was faster, with another workspace.
        """
        found = self.pipeline()
        if found is None:
            try:
                made = PipelineDocument(name=name, uuid=new_pipeline_uuid(), workspace=workspace)
                with step(Step.PIPELINE_CREATE):
                    create_document(self.files, PIPELINE, made)
            except AlreadyExistsError:
                pass  # somebody claimed it at the same time: what is there decides
            found = read_document(self.files, PIPELINE, PipelineDocument)
        if found.workspace != workspace:
            raise ConflictError(
                f"Another start has begun {self.files.url} meanwhile, with another workspace.",
                safe="This start has changed nothing.",
                remedy="Start again: what is there is looked at anew.",
                home=self.files.url,
            )
        if found.name != name:
            raise RejectedError(
                f"{self.files.url} is the home of pipeline '{found.name}', not of '{name}'.",
                safe="Nothing was changed.",
                remedy="Give each pipeline a home of its own (--home).",
                home=self.files.url,
                expected=name,
                found=found.name,
            )
        return found

    def request_start(
        self,
        run: RunId,
        *,
        parameters: dict[str, Any],
        on_end: OnEnd | None = None,
        publish: Publish | None = None,
        fresh: bool = False,
        on_rewind: OnRewind = OnRewind.REFUSE,
        adopt_offsets: Mapping[InputName, str] = MappingProxyType({}),
        checkpoint: CheckpointOverrides | None = None,
        restore: RestoreFrom | None = None,
        state_partitions: int | None = None,
        restarts: RestartHistory | None = None,
    ) -> StartRequest:
        """Asks for a run, durably. Returns the request that was made in the same words and is still unclaimed, else a new one.

        Args:
            run: Who asks; the same in every retry.
            parameters: Public parameter values; never secrets.
            on_end: Overrides the pipeline's for the round that this run begins.
            publish: Overrides every sink's policy for that round.
            fresh: Begin a new incarnation.
            on_rewind: What becomes of rows that an earlier incarnation published.
            adopt_offsets: By source the checkpoint directory of the Spark query that it goes on after.
            checkpoint: Overrides some of the pipeline's checkpoint settings.
            restore: What a new incarnation begins with.
            state_partitions: In how many partitions the state is from then on; None: as it is.
            restarts: What the restart strategy remembers that has decided on this start; None: somebody asks.

        Raises:
            ConflictError: Others asked at the same time, every time.
        """
        for _ in range(_TRIES):
            highest = max([*self.attempts.numbers(), *self._request_numbers()], default=AttemptNumber(0))
            attempt = AttemptNumber(highest + 1)
            request = StartRequest(
                request=start_request_id(attempt),
                attempt=attempt,
                run=run,
                requested_at=datetime.now(UTC),
                parameters=parameters,
                on_end=on_end,
                publish=publish,
                fresh=fresh,
                on_rewind=on_rewind,
                adopt_offsets=dict(adopt_offsets),
                checkpoint=checkpoint,
                restore=restore,
                state_partitions=state_partitions,
                restarts=restarts,
            )
            unclaimed = self._unclaimed(highest)
            if unclaimed is not None and _asks_the_same(unclaimed, request):
                return unclaimed
            with suppress(AlreadyExistsError), step(Step.REQUEST_CREATE):  # another asker took the number: look again
                create_document(self.files, request_path(request.request), request)
                return request
        raise _overtaken(self.files.url)

    def request(self, request: RequestId) -> StartRequest:
        """The request of this id.

        Raises:
            NotFoundError: Nobody asked.
        """
        return read_document(self.files, request_path(request), StartRequest)

    def newest_request(self, run: RunId) -> StartRequest | None:
        """The last that was asked for this run; None where nobody asked."""
        return next((request for request in self._newest_first() if request.run == run), None)

    @contextmanager
    def refusals_answered(self, request: RequestId) -> Iterator[None]:
        """Answers ``request`` with whatever is refused inside: the same start would be refused again."""
        try:
            yield
        except RejectedError as error:
            self.respond_failure(self.request(request), error)
            raise

    def unclaimed(self) -> StartRequest | None:
        """The newest request, while no driver has begun to answer it and nobody has answered it; else None."""
        numbers = self._request_numbers()
        return self._unclaimed(numbers[-1]) if numbers else None

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
        """Answers a request, once; returns the answer that stands."""
        path = response_path(response.request)
        try:
            with step(Step.RESPONSE_CREATE):
                create_document(self.files, path, response)
        except AlreadyExistsError:
            return read_document(self.files, path, StartResponse)
        return response

    def response(self, request: RequestId) -> StartResponse | None:
        """The answer to a request; None while it is open."""
        return read_listed(self.files, response_path(request), StartResponse)

    def answered(self) -> list[AttemptNumber]:
        """Whose requests were answered, ascending; reads the names only."""
        return start_numbers(self.files.names(RESPONSES))

    def newest(self) -> AttemptNumber | None:
        """The newest attempt that has begun, or whose request was answered before one did; None: there is neither."""
        return max([*self.attempts.numbers(), *self.answered()], default=None)

    def answer(self, run: RunId) -> StartResponse | None:
        """The newest answer that this run was given, with or without an error; None while there is none."""
        answers = (self.response(request.request) for request in self._newest_first() if request.run == run)
        return next((answer for answer in answers if answer is not None), None)

    def _unclaimed(self, number: AttemptNumber) -> StartRequest | None:
        """The request of this number, while nobody works on it and nobody has answered it."""
        if number not in self._request_numbers() or number in self.attempts.numbers():
            return None
        request = self.request(start_request_id(number))
        return request if self.response(request.request) is None else None

    def _request_numbers(self) -> list[AttemptNumber]:
        return start_numbers(self.files.names(REQUESTS))

    def _newest_first(self) -> Iterator[StartRequest]:
        return (self.request(start_request_id(number)) for number in reversed(self._request_numbers()))


def _asks_the_same(one: StartRequest, other: StartRequest) -> bool:
    told_apart_by = {"request", "attempt", "requested_at"}
    return one.model_dump(exclude=told_apart_by) == other.model_dump(exclude=told_apart_by)


def _overtaken(home: str) -> ConflictError:
    return ConflictError(
        f"{_TRIES} start requests in a row were taken by others in {home}.",
        safe="Nothing was started.",
        remedy="See who starts this pipeline so often: spark-jobs status.",
        home=home,
    )
