from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest

from spark_jobs.api.functions import arguments, call
from spark_jobs.api.refusals import Place
from spark_jobs.protocol.errors import InvalidPipelineError

PLACE = Place("flights", "stage", "hourly")


def positional(*frames: Any) -> None: ...


def keywords(**frames: Any) -> None: ...


def unnamed(frame: Any, /) -> None: ...


async def coroutine(frame: Any) -> None: ...


def generator(frame: Any) -> Iterator[int]:
    yield 1


async def asynchronous_generator(frame: Any) -> AsyncIterator[int]:
    yield 1


class Frame: ...


def test_arguments_keep_their_order_and_say_whether_they_are_required() -> None:
    def joined(flights: Any, airlines: Any, limit: int = 3, *, params: Any) -> None: ...

    assert list(arguments(PLACE, joined).items()) == [("flights", True), ("airlines", True), ("limit", False), ("params", True)]


@pytest.mark.parametrize(
    ("function", "problem"),
    [
        (positional, r"takes \*frames"),
        (keywords, r"takes \*\*frames"),
        (unnamed, "cannot be given by name"),
        (coroutine, "a generator or a coroutine"),
        (generator, "a generator or a coroutine"),
        (asynchronous_generator, "a generator or a coroutine"),
        (Frame, "is not a function"),
        (3, "is not a function"),
    ],
)
def test_a_function_that_cannot_be_called_by_argument_names_is_refused(function: Any, problem: str) -> None:
    with pytest.raises(InvalidPipelineError, match=problem):
        arguments(PLACE, function)


def test_a_call_passes_only_the_arguments_that_the_function_names() -> None:
    def daily(hourly: str, params: str) -> tuple[str, str]:
        return hourly, params

    assert call(daily, {"params": "p", "hourly": "h", "spark": "s"}) == ("h", "p")


def test_an_argument_without_a_given_value_keeps_its_default() -> None:
    def limited(hourly: str, limit: int = 3) -> tuple[str, int]:
        return hourly, limit

    assert call(limited, {"hourly": "h"}) == ("h", 3)


def test_an_exception_of_the_function_goes_through() -> None:
    def failing() -> None:
        raise LookupError("no such column")

    with pytest.raises(LookupError, match="no such column"):
        call(failing, {})
