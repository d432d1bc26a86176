"""Names of pipelines, inputs, stages and sinks. They become file and directory names in a home, on any file system."""

import re
from collections.abc import Iterable

from spark_jobs.api.refusals import Place

_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_]{0,63}")
_RESERVED = frozenset({"params", "spark", "pipeline", "round"})
"""Special arguments of a function, and names that are reserved for future ones."""


def check_name(place: Place, name: object) -> str:
    """Returns ``name`` if it is safe as a file name on every file system.

    Raises:
        InvalidPipelineError: It has characters other than letters, digits and ``_``, does not begin with a letter, is longer
            than 64 characters, or is reserved.
    """
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise place.refused(
            f"{name!r} cannot be a name.",
            'Give it one with name="...": a letter, then at most 63 letters, digits or "_".',
            name=str(name),
        )
    if place.kind and name.lower() in _RESERVED:
        raise place.refused(f"the name {name!r} is reserved.", 'Choose another one, also with name="...".', name=name)
    return name


def derived_name(place: Place, why: str, name: str, taken: Iterable[str]) -> str:
    """Returns ``name`` for a stage that is derived from a part of the pipeline, if it is free.

    Args:
        place: The part that the stage is derived from.
        why: The reason, with the name, as the beginning of a sentence.
        name: Name of the derived stage.
        taken: Names of the declared parts.

    Raises:
        InvalidPipelineError: A part has the name already, or it cannot be a name.
    """
    clash = {known.casefold(): known for known in taken}.get(name.casefold())
    if clash is not None:
        raise place.refused(
            f"{why}, and {clash!r} is declared already.",
            'Give one of them another name with name="...".',
            declared=clash,
        )
    return check_name(Place(place.pipeline, "stage", name), name)
