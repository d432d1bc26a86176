"""Calls of Delta methods whose parameters differ between releases. No JVM is started."""

from typing import Any

import pytest
from py4j.protocol import Py4JError, Py4JJavaError

from spark_jobs.publication.delta_jvm import call_fitting

pytestmark = pytest.mark.every_version


def method_with(parameters: int) -> Any:
    """A method of the JVM that, as in py4j, fails at the call if the number of arguments is wrong."""

    def method(*arguments: object) -> tuple[object, ...]:
        if len(arguments) != parameters:
            raise Py4JError("Method does not exist")
        return arguments

    return method


@pytest.mark.parametrize(
    ("parameters", "given"), [(3, (7, None, False)), (2, (7, None))], ids=["a newer Delta", "an older Delta"]
)
def test_a_method_is_called_with_the_parameters_that_it_has(parameters: int, given: tuple[object, ...]) -> None:
    assert call_fitting(method_with(parameters), (7, None, False), (7, None)) == given


def test_a_method_that_fits_no_known_parameters_is_an_error() -> None:
    with pytest.raises(Py4JError, match="does not exist"):
        call_fitting(method_with(1), (7, None, False), (7, None))


def test_a_call_that_fails_in_java_is_not_repeated() -> None:
    calls: list[tuple[object, ...]] = []

    def fails(*arguments: object) -> None:
        calls.append(arguments)
        error = Py4JJavaError.__new__(Py4JJavaError)
        raise error

    with pytest.raises(Py4JJavaError):
        call_fitting(fails, (7, None, False), (7, None))
    assert calls == [(7, None, False)]
