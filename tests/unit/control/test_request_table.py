"""Every state of an open request, with every event."""

from itertools import product

import pytest

from spark_jobs.control.request_table import (
    RequestAction,
    RequestEvent,
    RequestState,
    action_after,
    answered_after,
    rejected_after,
    state_of,
)
from spark_jobs.protocol.checkpoint_requests import CheckpointRequest, Wanted
from spark_jobs.protocol.ids import RequestId
from tests.support.staged_pipeline import NOW

S, E, A = RequestState, RequestEvent, RequestAction
SAVES = [S.CHECKPOINT, S.SAVEPOINT]
STOPS = [S.STOP, S.DRAIN]
EXPECTED = {
    E.ATTEMPT_BEGINS: {A.ANSWER: [S.COVERED], A.LEAVE: [*SAVES, *STOPS]},
    E.WORK_IS_LOST: {A.REJECT: [S.DRAIN], A.LEAVE: [*SAVES, S.STOP]},
    E.CHECKPOINT_IS_ABANDONED: {A.REJECT: STOPS, A.LEAVE: SAVES},
    E.TRY_HAS_FAILED: {A.REJECT: SAVES},
    E.SAVEPOINT_HAS_FAILED: {A.REJECT: [S.SAVEPOINT], A.LEAVE: STOPS},
    E.SAVEPOINT_IS_IMPOSSIBLE: {A.REJECT: [S.SAVEPOINT, *STOPS]},
    E.ANOTHER_STOP_WINS: {A.REJECT: STOPS, A.LEAVE: SAVES},
    E.STOP_HAS_FAILED: {A.REJECT: STOPS},
    E.STOPPED: {A.ANSWER: [S.COVERED], A.LEAVE: [*SAVES, *STOPS]},
    E.RUN_ENDED: {A.ANSWER: [S.COVERED, S.STOP], A.LEAVE: [*SAVES, S.DRAIN]},
    E.RUN_DRAINED: {A.ANSWER: [S.COVERED, *STOPS], A.LEAVE: SAVES},
    E.LAST_ANSWERS_GIVEN: {A.REJECT: [*SAVES, *STOPS]},
}
REQUESTS = {
    state: CheckpointRequest(request=RequestId(f"{wanted.value}-{state.value}"), requested_at=NOW, wanted=wanted, drain=drain)
    for state, wanted, drain in [
        (S.CHECKPOINT, Wanted.CHECKPOINT, False),
        (S.SAVEPOINT, Wanted.SAVEPOINT, False),
        (S.STOP, Wanted.STOP, False),
        (S.DRAIN, Wanted.STOP, True),
    ]
}


@pytest.mark.parametrize(("event", "state"), [*product(RequestEvent, RequestState)])
def test_each_event_in_each_state_leads_to_its_action(event: RequestEvent, state: RequestState) -> None:
    expected = [action for action, states in EXPECTED[event].items() if state in states]
    if expected:
        assert [action_after(event, state)] == expected
    else:
        with pytest.raises(ValueError, match=f"{event.value} does not concern a request that is {state.value}"):
            action_after(event, state)


@pytest.mark.parametrize("state", REQUESTS)
def test_the_state_of_a_request_follows_from_its_options_until_a_checkpoint_covers_it(state: RequestState) -> None:
    assert state_of(REQUESTS[state]) is state
    assert state_of(REQUESTS[state], is_covered=True) is S.COVERED


def test_covered_requests_and_requests_whose_work_is_done_are_answered() -> None:
    saves = [REQUESTS[S.CHECKPOINT], REQUESTS[S.SAVEPOINT]]
    covers = saves[:1].__contains__
    assert answered_after(E.STOPPED, [*REQUESTS.values()], covers) == [REQUESTS[S.CHECKPOINT]]
    assert answered_after(E.RUN_ENDED, [*REQUESTS.values()], covers) == [REQUESTS[S.CHECKPOINT], REQUESTS[S.STOP]]
    assert rejected_after(E.WORK_IS_LOST, [*REQUESTS.values()]) == [REQUESTS[S.DRAIN]]


@pytest.mark.parametrize("state", REQUESTS)
def test_no_request_stays_open_after_the_last_answers(state: RequestState) -> None:
    assert action_after(E.LAST_ANSWERS_GIVEN, state) is A.REJECT
