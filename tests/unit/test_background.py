"""Background threads that no caller has to wait for."""

import subprocess
import sys
import time
from functools import partial
from threading import Barrier, Event, current_thread

import pytest

from spark_jobs.background import Threads, beside, run_ahead, run_all, run_watched, run_with_deadline

SOON_S = 5.0
HANGS = """
from threading import Event
from spark_jobs.background import run_all, run_watched

def give_up():
    raise KeyError("given up")

try:
    run_watched(lambda: run_all([Event().wait] * 3, 2), give_up)
except KeyError:
    print("given up")
"""
FORKED = """
import os
from spark_jobs.background import run_watched

run_watched(int, lambda: None)
child = os.fork()
if not child:
    print(run_watched(lambda: 7, lambda: None), flush=True)
    os._exit(0)
os.waitpid(child, 0)
"""


def fail() -> None:
    raise ValueError("it fails")


def test_the_result_or_the_exception_of_watched_work_comes_back() -> None:
    assert run_watched(lambda: 7, fail) == 7
    with pytest.raises(ValueError, match="it fails"):
        run_watched(fail, lambda: None)


def test_the_watch_function_is_called_repeatedly_while_the_work_runs() -> None:
    ended, looks = Event(), list[int]()

    def look() -> None:
        looks.append(1)
        if len(looks) == 3:
            ended.set()

    assert run_watched(lambda: ended.wait(SOON_S), look)


def test_work_beside_a_context_has_ended_when_the_context_closes() -> None:
    may_end, ended = Event(), Event()

    def work() -> None:
        may_end.wait(SOON_S)
        ended.set()

    with beside(work):
        assert not ended.is_set()
        may_end.set()
    assert ended.is_set()


def test_an_error_of_work_beside_a_context_is_raised_unless_the_context_has_its_own() -> None:
    with pytest.raises(ValueError, match="it fails"), beside(fail):
        pass
    with pytest.raises(KeyError), beside(fail):
        raise KeyError


def test_work_that_hangs_is_left_behind_once_the_watch_function_raises() -> None:
    ended = Event()
    with pytest.raises(ValueError, match="it fails"):
        run_watched(ended.wait, fail)
    ended.set()


def test_work_has_time_until_its_deadline() -> None:
    ended = Event()
    with pytest.raises(KeyError, match="late"):
        run_with_deadline(ended.wait, time.monotonic() + 0.1, lambda: KeyError("late"))
    with pytest.raises(ValueError, match="it fails"):
        run_with_deadline(ended.wait, time.monotonic() + SOON_S, lambda: KeyError("late"), fail)
    ended.set()
    assert run_with_deadline(lambda: 7, time.monotonic() + SOON_S, lambda: KeyError("late")) == 7


def test_work_that_was_left_behind_does_not_keep_the_process_running() -> None:
    ended = subprocess.run([sys.executable, "-c", HANGS], capture_output=True, text=True, timeout=60, check=True)
    assert ended.stdout == "given up\n"


def test_consecutive_work_uses_the_same_thread() -> None:
    threads = Threads()
    assert len({threads.run(current_thread).result(SOON_S) for _ in range(20)}) == 1


def test_a_thread_that_was_idle_for_a_while_ends() -> None:
    threads = Threads(kept_s=0.01)
    ended = threads.run(current_thread).result(SOON_S)
    ended.join(SOON_S)
    assert not ended.is_alive()
    assert threads.run(lambda: 7).result(SOON_S) == 7


def test_a_forked_process_has_its_own_threads() -> None:
    """Airflow forks its tasks. The threads of the parent process do not exist in the child."""
    ended = subprocess.run([sys.executable, "-c", FORKED], capture_output=True, text=True, timeout=60, check=True)
    assert ended.stdout == "7\n"


def test_several_functions_run_at_the_same_time_and_return_in_their_order() -> None:
    together = Barrier(3)
    assert sorted(run_all([lambda: together.wait(SOON_S)] * 3, 3)) == [0, 1, 2]
    assert run_all([partial(int, number) for number in range(50)], 4) == list(range(50))
    assert run_all([], 4) == []


def test_the_exception_of_one_of_several_functions_is_raised() -> None:
    with pytest.raises(ValueError, match="it fails"):
        run_all([lambda: 1, fail, lambda: 2], 1)


def test_the_next_functions_run_while_the_result_of_one_is_used() -> None:
    begun = [Event() for _ in range(4)]

    def work(number: int) -> int:
        begun[number].set()
        return number

    found = run_ahead((partial(work, number) for number in range(4)), 2)
    assert next(found) == 0
    assert begun[1].wait(SOON_S)
    assert begun[2].wait(SOON_S)
    assert not begun[3].is_set(), "only two run ahead"
    assert list(found) == [1, 2, 3]


def test_an_exception_of_work_that_runs_ahead_is_raised_in_its_place() -> None:
    found = run_ahead([lambda: 1, fail, lambda: 2], 2)
    assert next(found) == 1
    with pytest.raises(ValueError, match="it fails"):
        next(found)
    assert list(run_ahead([], 2)) == []
