"""The times at which a checkpoint is due."""

from spark_jobs.runtime.checkpoints.schedule import CheckpointSchedule


def schedule(*, min_pause_s: float = 0.0, tolerable_failures: int | None = None) -> CheckpointSchedule:
    return CheckpointSchedule(60.0, min_pause_s, tolerable_failures, began_s=100.0)


def test_the_first_checkpoint_is_due_one_interval_after_the_start() -> None:
    assert not schedule().is_due(159.9)
    assert schedule().is_due(160.0)


def test_the_interval_runs_from_trigger_to_trigger() -> None:
    given = schedule()
    given.completed(triggered_s=160.0, now_s=190.0)
    assert not given.is_due(219.0)
    assert given.is_due(220.0)


def test_a_late_trigger_does_not_move_the_next_one() -> None:
    given = schedule()
    given.completed(triggered_s=165.0, now_s=170.0)
    assert not given.is_due(219.9)
    assert given.is_due(220.0)


def test_missed_triggers_are_skipped() -> None:
    given = schedule()
    given.completed(triggered_s=300.0, now_s=301.0)
    assert not given.is_due(339.9)
    assert given.is_due(340.0)


def test_a_checkpoint_that_took_longer_than_the_interval_is_followed_by_the_next_at_once() -> None:
    given = schedule()
    given.completed(triggered_s=160.0, now_s=300.0)
    assert given.is_due(300.0)


def test_the_pause_runs_from_the_end_of_a_checkpoint_to_the_next_trigger() -> None:
    given = schedule(min_pause_s=50.0)
    given.completed(triggered_s=160.0, now_s=190.0)
    assert not given.is_due(239.0)
    assert given.is_due(240.0)


def test_any_number_of_checkpoints_may_fail_by_default() -> None:
    given = schedule()
    assert all(given.failed(160.0, 161.0) for _ in range(1_000))
    assert given.failures == 1_000


def test_the_first_failure_is_one_too_many_if_no_checkpoint_may_fail() -> None:
    assert not schedule(tolerable_failures=0).failed(160.0, 161.0)


def test_only_failures_in_a_row_are_counted() -> None:
    given = schedule(tolerable_failures=2)
    assert [given.failed(0.0, 0.0), given.failed(0.0, 0.0)] == [True, True]
    given.completed(0.0, 0.0)
    assert [given.failed(0.0, 0.0), given.failed(0.0, 0.0), given.failed(0.0, 0.0)] == [True, True, False]


def test_a_declined_checkpoint_neither_counts_as_a_failure_nor_resets_the_count() -> None:
    given = schedule(min_pause_s=50.0, tolerable_failures=1)
    assert given.failed(triggered_s=160.0, now_s=200.0, counts=False)
    assert not given.is_due(249.0)
    assert given.is_due(250.0)
    assert given.failed(250.0, 250.0)
    assert given.failed(triggered_s=300.0, now_s=300.0, counts=False)
    assert not given.failed(350.0, 350.0)


def test_a_requested_checkpoint_does_not_move_the_next_periodic_one() -> None:
    given = schedule()
    given.completed(triggered_s=130.0, now_s=131.0)
    assert not given.is_due(159.9)
    assert given.is_due(160.0)


def test_a_requested_checkpoint_is_followed_by_the_same_pause() -> None:
    given = schedule(min_pause_s=50.0)
    given.completed(triggered_s=130.0, now_s=140.0)
    assert not given.is_due(189.0)
    assert given.is_due(190.0)


def test_a_failed_requested_checkpoint_counts_as_a_failure() -> None:
    given = schedule(tolerable_failures=1)
    assert [given.failed(triggered_s=130.0, now_s=131.0), given.failed(triggered_s=140.0, now_s=141.0)] == [True, False]


def test_a_savepoint_that_fails_does_not_count_and_the_next_checkpoint_is_due_as_planned() -> None:
    given = schedule(tolerable_failures=0)
    assert [given.failed(triggered_s=at, now_s=at + 5.0, counts=False) for at in (110.0, 120.0, 160.0)] == [True] * 3
    assert (given.failures, given.is_due(219.0), given.is_due(220.0)) == (0, False, True)
    assert not given.failed(triggered_s=220.0, now_s=221.0)
