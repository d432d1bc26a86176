"""Every state of a lease, with every event, and the documents from which each state follows."""

from itertools import product
from pathlib import Path

import pytest

from spark_jobs.control.lease import CANCELLER, AttemptLease
from spark_jobs.control.lease_table import LeaseAction, LeaseEvent, LeaseState, action_after
from spark_jobs.protocol.ids import AttemptNumber, OwnerNumber
from spark_jobs.storage.local import LocalFiles

S, E, A = LeaseState, LeaseEvent, LeaseAction
NOT_CANCELLED = [S.FREE, S.HELD, S.RECLAIMED]
CANCELLED = [S.CANCELLED, S.CANCELLED_BY_USER]
LOST = [S.LOST, S.LOST_AND_CANCELLED]
EXPECTED = {
    E.ATTEMPT_CONTINUES: {A.CONTINUE: NOT_CANCELLED, A.END: CANCELLED},
    E.RUN_CONTINUES: {A.CONTINUE: [*NOT_CANCELLED, S.CANCELLED], A.END: [S.CANCELLED_BY_USER]},
    E.DRIVER_IS_GONE: {A.ANSWER: [S.FREE, S.HELD], A.LEAVE: [S.RECLAIMED, *CANCELLED, *LOST]},
    E.DRIVER_HAS_NOT_BEGUN: {A.ANSWER: [*NOT_CANCELLED, *CANCELLED], A.LEAVE: LOST},
    E.TASK_ENDS_DRIVER: {A.END: [S.HELD, S.RECLAIMED, *CANCELLED], A.LEAVE: [S.FREE, *LOST]},
    E.WAIT_HAS_FAILED: {
        A.CONTINUE: [S.FREE, S.HELD, *CANCELLED, S.LOST],
        A.RETAKE: [S.RECLAIMED],
        A.END: [S.LOST_AND_CANCELLED],
    },
    E.CANCEL_WAITS: {A.CONTINUE: [*NOT_CANCELLED, *CANCELLED], A.REPORT: LOST},
}
CELLS = [(event, state) for event, row in EXPECTED.items() for states in row.values() for state in states]
OURS, OTHERS, USERS = "this task", "another task", CANCELLER + "a user"
TAKES = {
    S.FREE: [],
    S.HELD: [(OURS, False)],
    S.RECLAIMED: [(OTHERS, True), (OURS, False)],
    S.CANCELLED: [(OTHERS, True), (OURS, True)],
    S.CANCELLED_BY_USER: [(OTHERS, True), (USERS, True)],
    S.LOST: [(OURS, True), (OTHERS, False)],
    S.LOST_AND_CANCELLED: [(OURS, False), (USERS, True)],
}
"""The owners that lead to each state, and whether each of them cancels."""


@pytest.mark.parametrize(("event", "state"), [*product(LeaseEvent, LeaseState)])
def test_each_event_in_each_state_leads_to_its_action(event: LeaseEvent, state: LeaseState) -> None:
    expected = [action for action, states in EXPECTED[event].items() if state in states]
    if expected:
        assert [action_after(event, state)] == expected
    else:
        with pytest.raises(ValueError, match=f"{event.value} cannot happen while the lease is {state.value}"):
            action_after(event, state)


@pytest.mark.parametrize(("event", "state"), CELLS)
def test_the_state_of_a_lease_follows_from_the_documents_of_its_owners(
    event: LeaseEvent, state: LeaseState, tmp_path: Path
) -> None:
    lease = AttemptLease(LocalFiles(tmp_path), AttemptNumber(1))
    for token, cancels in TAKES[state]:
        owner = lease.take(token)
        if cancels:
            lease.cancel(owner.owner, f"by {token}")
    tokens = [token for token, _ in TAKES[state]]
    own = OwnerNumber(tokens.index(OURS) + 1) if OURS in tokens else None
    decision = lease.decide(event, own)
    assert decision.action is action_after(event, state)
    assert (decision.newest and decision.newest.token) == (tokens[-1] if tokens else None)
    assert (decision.cancel is not None) is bool(TAKES[state] and TAKES[state][-1][1])


def test_a_late_cancel_by_an_earlier_owner_does_not_end_the_driver_and_makes_the_owner_retake_the_lease(tmp_path: Path) -> None:
    lease = AttemptLease(LocalFiles(tmp_path), AttemptNumber(1))
    earlier, own = lease.take(OTHERS).owner, lease.take(OURS).owner
    lease.cancel(earlier, "its task was cleared")  # after the attempt was taken from it
    assert lease.decide(E.ATTEMPT_CONTINUES).action is A.CONTINUE
    assert lease.decide(E.WAIT_HAS_FAILED, own).action is A.RETAKE
    assert lease.decide(E.WAIT_HAS_FAILED, earlier).action is A.CONTINUE
