"""Inspects and calls the user's functions by their argument names."""

import inspect
import sys
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from spark_jobs.api.refusals import Place

Function = Callable[..., Any]

PARAMS = "params"
SPARK = "spark"


def function_name(function: object, name: str | None) -> object:
    """Returns the name that a function is declared under: ``name`` or its own."""
    return name if name is not None else getattr(function, "__name__", "")


def arguments(place: Place, function: Function) -> dict[str, bool]:
    """Returns the function's arguments in order. The value is True for a required argument.

    Raises:
        InvalidPipelineError: It cannot be called with keyword arguments, or does not return a frame.
    """
    if inspect.isclass(function) or not callable(function):
        raise place.refused(f"{function!r} is not a function.", "Decorate a function that returns a frame.")
    if inspect.iscoroutinefunction(function) or inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
        raise place.refused("the function is a generator or a coroutine.", "Write a plain function that returns a frame.")
    parameters = inspect.signature(function).parameters.values()
    for parameter in parameters:
        if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
            stars = "*" if parameter.kind is parameter.VAR_POSITIONAL else "**"
            raise place.refused(
                f"the function takes {stars}{parameter.name}, but argument names are the inputs.", "Name each argument."
            )
        if parameter.kind is parameter.POSITIONAL_ONLY:
            raise place.refused(f"the argument {parameter.name!r} cannot be given by name.", 'Remove the "/" from the signature.')
    return {parameter.name: parameter.default is parameter.empty for parameter in parameters}


def check_only_takes(place: Place, function: Function, allowed: Iterable[str]) -> None:
    """Refuses a function with a required argument that is not in ``allowed``."""
    names = list(allowed)
    for argument, required in arguments(place, function).items():
        if required and argument not in names:
            problem = f"the function takes {argument!r}, but it only gets {' and '.join(names)}."
            raise place.refused(problem, f"Remove {argument!r}, or give it a default value.", argument=argument)


def call(function: Function, available: Mapping[str, Any]) -> Any:
    """Calls ``function`` with the arguments in ``available`` that it names. Its exceptions are not caught."""
    return function(**{name: available[name] for name in inspect.signature(function).parameters if name in available})


def is_rerun(before: Function, after: Function) -> bool:
    """Returns True if a notebook's cell was run again. A module with a file declares each function once: a second time is a mistake."""
    origins = [(getattr(function, "__module__", None), getattr(function, "__qualname__", None)) for function in (before, after)]
    module = sys.modules.get(str(origins[0][0]))
    return origins[0] == origins[1] and module is not None and not hasattr(module, "__file__")
