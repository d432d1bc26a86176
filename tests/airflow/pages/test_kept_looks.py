"""Looks that all viewers of the pages share."""

from collections.abc import Callable
from threading import Event, Thread

import pytest

from tests.airflow.browser import TestClient  # noqa: F401  # what Airflow's server imports, without its warnings

from airflow_provider.pages import kept_looks, look_limits  # isort: skip
from airflow_provider.pages.kept_looks import KeptLooks  # isort: skip
from fastapi import HTTPException  # isort: skip


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(look_limits, "LOOK_MAX_S", 0.2)
    monkeypatch.setattr(kept_looks, "QUICK_S", 0.05)


def counting() -> tuple[list[int | None], Callable[[int | None], int]]:
    seen: list[int | None] = []

    def look(before: int | None) -> int:
        seen.append(before)
        return len(seen)

    return seen, look


def test_a_fresh_look_is_shared_and_the_next_look_starts_from_an_old_one() -> None:
    looks = KeptLooks()
    seen, look = counting()
    assert [looks.get("a", look, 60.0).value for _ in range(3)] == [1, 1, 1]
    assert looks.get("b", look, 60.0).value == 2
    assert looks.get("a", look, 0.0).value == 3
    assert seen == [None, None, 1]


def test_a_storage_that_hangs_holds_one_thread_however_many_viewers_there_are() -> None:
    looks, back, begun = KeptLooks(), Event(), list[None]()

    def hang(_: int | None) -> int:
        begun.append(None)
        back.wait()
        return 2

    assert looks.get("a", lambda _: 1, 60.0).value == 1
    kept = [looks.get("a", hang, 0.0) for _ in range(5)]
    assert [each.value for each in kept] == [1] * 5
    for _ in range(20):  # more than the limit of waits, if each waited for the whole time that the storage hangs
        with pytest.raises(HTTPException) as caught:
            looks.get("b", hang, 0.0)
        assert caught.value.status_code == 503
    assert len(begun) == 2
    assert looks.get("c", lambda _: 3, 0.0).value == 3
    back.set()


def test_viewers_that_come_at_the_same_time_share_the_first_look() -> None:
    looks, may_end = KeptLooks(), Event()
    seen, found = list[None](), list[int]()

    def look(_: int | None) -> int:
        seen.append(None)
        may_end.wait()
        return 7

    threads = [Thread(target=lambda: found.append(looks.get("a", look, 60.0).value)) for _ in range(4)]
    for thread in threads:
        thread.start()
    may_end.set()
    for thread in threads:
        thread.join()
    assert (found, len(seen)) == ([7] * 4, 1)


def test_an_error_is_raised_before_the_first_look_and_a_later_error_keeps_the_old_look() -> None:
    looks = KeptLooks()

    def fail(_: int | None) -> int:
        raise ValueError("away")

    with pytest.raises(ValueError, match="away"):
        looks.get("a", fail, 0.0)
    assert looks.get("a", lambda _: 5, 0.0).value == 5
    assert looks.get("a", fail, 0.0).value == 5


def test_the_number_of_looks_that_are_kept_is_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kept_looks, "KEPT_MAX", 2)
    looks = KeptLooks()
    seen, look = counting()
    for key in ("a", "b", "c", "c", "a"):
        looks.get(key, look, 60.0)
    assert len(seen) == 4
