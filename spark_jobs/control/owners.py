"""Records who has charge of an attempt, and cancels attempts.

Invariants:

1. ``attempts/<n>.owner-<m>.json`` is created if absent, with m one more than the highest there is: of several who take over at once
   each gets a number of its own, and all agree on the newest.
2. A cancel counts while its owner is the newest. So a wait that was given up cannot end the attempt that another has taken over.
3. Taking charge and cancelling are idempotent for one token.
"""

from datetime import UTC, datetime

from spark_jobs.home.layout import ATTEMPTS, REQUESTS, attempt_names, cancel_path, owner_path, request_of
from spark_jobs.protocol.errors import AlreadyExistsError, ConflictError
from spark_jobs.protocol.ids import AttemptNumber, OwnerNumber, cancel_request_id
from spark_jobs.protocol.ownership import CancelRequest, OwnerDocument
from spark_jobs.protocol.steps import Step, step
from spark_jobs.storage.files import Files, create_document, read_document, read_listed

CANCELLER = "cancel "
"""Begins the token of who takes charge only to cancel. A task's own begins otherwise: what it ends, its next try goes on from."""
_TRIES = 20


class Owners:
    """The owners of one attempt, which need not have begun yet."""

    def __init__(self, files: Files, attempt: AttemptNumber) -> None:
        self._files, self._attempt = files, attempt

    def newest(self) -> OwnerDocument | None:
        """Returns the owner who has charge; None if nobody ever took it."""
        newest = attempt_names(self._files.names(ATTEMPTS)).owners.get(self._attempt)
        return None if newest is None else self._read(newest)

    def take_charge(self, token: str) -> OwnerDocument:
        """Makes ``token`` the newest owner, durably.

        Raises:
            ConflictError: Others took over at the same time, every time.
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
            f"{_TRIES} times in a row others took charge of attempt {self._attempt} in {self._files.url}.",
            safe="The attempt goes on.",
            remedy="See which tasks wait for this pipeline.",
            home=self._files.url,
            attempt=self._attempt,
        )

    def cancel(self, owner: OwnerNumber, reason: str) -> None:
        """Asks the driver to end the attempt, durably; it does if ``owner`` still is the newest by then."""
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
            return  # asked before

    def cancelled(self) -> CancelRequest | None:
        """Returns the newest owner's request for the end; None while the attempt is wanted."""
        newest = self.newest()
        if newest is None:
            return None
        return read_listed(self._files, cancel_path(self._attempt, newest.owner), CancelRequest)

    def called_off(self) -> CancelRequest | None:
        """Returns the request for the end by a newest owner who took charge only to cancel; None if there is none, or a task took over."""
        newest = self.newest()
        return self.cancelled() if newest is not None and newest.token.startswith(CANCELLER) else None

    def was_cancelled_before(self, owner: OwnerNumber) -> bool:
        """Returns whether an owner before ``owner`` has asked for the end: a driver that saw it in time ends all the same."""
        asked = set(map(request_of, self._files.names(REQUESTS)))
        return any(cancel_request_id(self._attempt, OwnerNumber(number)) in asked for number in range(1, owner))

    def _read(self, owner: OwnerNumber) -> OwnerDocument:
        return read_document(self._files, owner_path(self._attempt, owner), OwnerDocument)
