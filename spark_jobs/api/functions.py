"""The user's functions: which arguments they take, and how they are called."""

import inspect
import sys
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from spark_jobs.api.refusals import Place

Function = Callable[..., Any]

PARAMS = "params"
SPARK = "spark"


def function_name(function: object, name: str | None) -> object:
    """The name a function is declared under: ``name``, else its own."""
    return name if name is not None else getattr(function, "__name__", "")


def arguments(place: Place, function: Function) -> dict[str, bool]:
    """The function's arguments in order; True where the caller has to give one.

    Raises:
        InvalidPipelineError: It cannot be called with arguments by name, or gives no frame when called.
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
            problem = f"the function takes {argument!r}, but it is given only {' and '.join(names)}."
            raise place.refused(problem, f"Remove {argument!r}, or give it a default value.", argument=argument)


def call(function: Function, available: Mapping[str, Any]) -> Any:
    """Calls ``function`` with those of ``available`` that it names. Whatever it raises goes through."""
    return function(**{name: available[name] for name in inspect.signature(function).parameters if name in available})


def is_rerun(before: Function, after: Function) -> bool:
    """Whether a notebook's cell was run again. In a module with a file each declaration runs once: a second is a mistake."""
    origins = [(getattr(function, "__module__", None), getattr(function, "__qualname__", None)) for function in (before, after)]
    module = sys.modules.get(str(origins[0][0]))
    return origins[0] == origins[1] and module is not None and not hasattr(module, "__file__")
