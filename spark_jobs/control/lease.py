"""The lease of an attempt in its home: the documents of its owners and their cancels.

:mod:`spark_jobs.control.lease_table` decides what each state of the lease allows.

Invariants:

1. ``attempts/<n>.owner-<m>.json`` is created if absent, with m one more than the highest number. If several processes take over at once,
   each gets its own number, and all agree on the newest.
2. A cancel counts while its owner is the newest. So an abandoned wait cannot cancel an attempt that another process has taken over.
3. Taking over and cancelling are idempotent for one token.
"""

from datetime import UTC, datetime
from typing import NamedTuple

from spark_jobs.control.lease_table import LeaseAction, LeaseEvent, LeaseState, action_after, depends_on_earlier_owners
from spark_jobs.home.layout import ATTEMPTS, REQUESTS, attempt_names, cancel_path, owner_path, request_of
from spark_jobs.protocol.errors import AlreadyExistsError, ConflictError
from spark_jobs.protocol.ids import AttemptNumber, OwnerNumber, cancel_request_id
from spark_jobs.protocol.ownership import CancelRequest, OwnerDocument
from spark_jobs.protocol.steps import Step, step
from spark_jobs.storage.files import Files, create_document, read_document, read_listed

CANCELLER = "cancel "
"""The prefix of tokens that only cancel. A task's token begins differently, because its next try continues the run that it cancelled."""
_TRIES = 20


class Decision(NamedTuple):
    """The action after an event, with the documents from which it follows."""

    action: LeaseAction
    newest: OwnerDocument | None
    """The newest owner; None if there was none."""
    cancel: CancelRequest | None
    """The newest owner's cancel; None if it has not cancelled."""


class AttemptLease:
    """The lease of one attempt, which may not have begun yet."""

    def __init__(self, files: Files, attempt: AttemptNumber) -> None:
        self._files, self._attempt = files, attempt

    def newest(self) -> OwnerDocument | None:
        """Returns the newest owner, or None if there was none."""
        newest = attempt_names(self._files.names(ATTEMPTS)).owners.get(self._attempt)
        return None if newest is None else self._read(newest)

    def take(self, token: str) -> OwnerDocument:
        """Makes ``token`` the newest owner, durably.

        Raises:
            ConflictError: Others took over at the same time, in every try.
        """
        for _ in range(_TRIES):
            newest = self.newest()
            if newest is not None and newest.token == token:
                return newest
            number = OwnerNumber(newest.owner + 1 if newest else 1)
            owner = OwnerDocument(attempt=self._attempt, owner=number, token=token, since=datetime.now(UTC))
            try:
                with step(Step.OWNER_CREATE):
                    create_document(self._files, owner_path(self._attempt, number), owner)
            except AlreadyExistsError:
                continue
            return owner
        raise ConflictError(
            f"{_TRIES} times in a row others took over attempt {self._attempt} in {self._files.url}.",
            safe="The attempt continues.",
            remedy="Check which tasks wait for this pipeline.",
            home=self._files.url,
            attempt=self._attempt,
        )

    def cancel(self, owner: OwnerNumber, reason: str) -> None:
        """Requests the end of the attempt, durably. The driver ends it if ``owner`` is still the newest."""
        request = CancelRequest(
            request=cancel_request_id(self._attempt, owner),
            attempt=self._attempt,
            owner=owner,
            reason=reason,
            requested_at=datetime.now(UTC),
        )
        try:
            with step(Step.CANCEL_CREATE):
                create_document(self._files, cancel_path(self._attempt, owner), request)
        except AlreadyExistsError:
            return  # cancelled before

    def cancelled(self) -> CancelRequest | None:
        """Returns the newest owner's cancel request, or None."""
        return self._cancel_of(self.newest())

    def decide(self, event: LeaseEvent, own: OwnerNumber | None = None) -> Decision:
        """Returns the action after an event. Only reads.

        Args:
            event: The event.
            own: The owner number of this process; None: this process has not taken the lease.
        """
        newest = self.newest()
        cancel = self._cancel_of(newest)
        return Decision(action_after(event, self._state(event, newest, cancel, own)), newest, cancel)

    def _state(
        self, event: LeaseEvent, newest: OwnerDocument | None, cancel: CancelRequest | None, own: OwnerNumber | None
    ) -> LeaseState:
        if newest is None:
            return LeaseState.FREE
        if own not in (None, newest.owner):
            return LeaseState.LOST if cancel is None else LeaseState.LOST_AND_CANCELLED
        if cancel is not None:
            return LeaseState.CANCELLED_BY_USER if newest.token.startswith(CANCELLER) else LeaseState.CANCELLED
        if depends_on_earlier_owners(event) and self._was_cancelled_before(newest.owner):
            return LeaseState.RECLAIMED
        return LeaseState.HELD

    def _cancel_of(self, newest: OwnerDocument | None) -> CancelRequest | None:
        return None if newest is None else read_listed(self._files, cancel_path(self._attempt, newest.owner), CancelRequest)

    def _was_cancelled_before(self, owner: OwnerNumber) -> bool:
        """Returns True if an owner before ``owner`` has cancelled. A driver that saw such a cancel while it counted still ends."""
        requests = set(map(request_of, self._files.names(REQUESTS)))
        return any(cancel_request_id(self._attempt, OwnerNumber(number)) in requests for number in range(1, owner))

    def _read(self, owner: OwnerNumber) -> OwnerDocument:
        return read_document(self._files, owner_path(self._attempt, owner), OwnerDocument)
