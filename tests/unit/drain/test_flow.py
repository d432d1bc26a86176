"""Every state of a stop, with every event."""

from itertools import product

import pytest

from spark_jobs.drain.flow import Action, Event, Transition, following
from spark_jobs.protocol.states import StopState

S, A = StopState, Action
ENDS = {S.STOPPED, S.REJECTED, S.FAILED, S.INCOMPLETE}
HAS_CHECKPOINT = {S.CHECKPOINTED, S.SAVED, S.PUBLISHED}

WITHOUT_DRAIN = {
    (S.REQUESTED, Event.FIRST): (S.ACKNOWLEDGED, A.QUIESCE),
    (S.REQUESTED, Event.SECOND): (S.REJECTED, A.REJECT),
    (S.REQUESTED, Event.FAILED): (S.FAILED, A.RUN_ON),
    (S.ACKNOWLEDGED, Event.DONE): (S.QUIESCED, A.CHECKPOINT),
    (S.ACKNOWLEDGED, Event.FAILED): (S.FAILED, A.RUN_ON),
    (S.QUIESCED, Event.DONE): (S.CHECKPOINTED, A.SAVE),
    (S.QUIESCED, Event.FAILED): (S.FAILED, A.RUN_ON),
    (S.CHECKPOINTED, Event.DONE): (S.SAVED, A.PUBLISH),
    (S.CHECKPOINTED, Event.FAILED): (S.INCOMPLETE, A.LEAVE),
    (S.SAVED, Event.DONE): (S.PUBLISHED, A.ANSWER),
    (S.SAVED, Event.FAILED): (S.INCOMPLETE, A.LEAVE),
    (S.PUBLISHED, Event.DONE): (S.STOPPED, A.END),
    (S.PUBLISHED, Event.FAILED): (S.INCOMPLETE, A.LEAVE),
}
WITH_DRAIN = WITHOUT_DRAIN | {
    (S.ACKNOWLEDGED, Event.DONE): (S.QUIESCED, A.FLUSH),
    (S.QUIESCED, Event.DONE): (S.DRAINED, A.CHECKPOINT),
    (S.QUIESCED, Event.FAILED): (S.FAILED, A.RESTART),
    (S.DRAINED, Event.DONE): (S.CHECKPOINTED, A.SAVE),
    (S.DRAINED, Event.FAILED): (S.FAILED, A.RESTART),
}


@pytest.mark.parametrize("drain", [False, True])
@pytest.mark.parametrize(("state", "event"), [*product(StopState, Event)])
def test_each_event_in_each_state_of_a_stop_leads_to_the_expected_state_and_action(
    state: StopState, event: Event, *, drain: bool
) -> None:
    expected = (WITH_DRAIN if drain else WITHOUT_DRAIN).get((state, event))
    if expected is None:
        with pytest.raises(ValueError, match=state.value):
            following(state, event, drain=drain)
    else:
        assert following(state, event, drain=drain) == Transition(*expected)


@pytest.mark.parametrize("drain", [False, True])
def test_a_stop_ends_after_all_of_its_steps(drain: bool) -> None:
    state, action = following(S.REQUESTED, Event.FIRST, drain=drain)
    passed = [state]
    while action is not A.END:
        state, action = following(state, Event.DONE, drain=drain)
        passed.append(state)
    drained = [S.DRAINED] if drain else []
    assert passed == [S.ACKNOWLEDGED, S.QUIESCED, *drained, S.CHECKPOINTED, S.SAVED, S.PUBLISHED, S.STOPPED]


@pytest.mark.parametrize("drain", [False, True])
@pytest.mark.parametrize("state", [state for state in StopState if state not in ENDS])
def test_a_failure_ends_a_stop_and_only_a_stop_with_a_checkpoint_is_left_to_the_next_attempt(
    state: StopState, *, drain: bool
) -> None:
    if state is S.DRAINED and not drain:
        return
    after, action = following(state, Event.FAILED, drain=drain)
    assert after is (S.INCOMPLETE if state in HAS_CHECKPOINT else S.FAILED)
    assert (action is A.LEAVE) is (state in HAS_CHECKPOINT)
    assert (action is A.RESTART) is (drain and state in {S.QUIESCED, S.DRAINED}), "what was flushed cannot be taken back"
