"""Names of pipelines, inputs, stages and sinks. They become file and directory names in a home, on any file system."""

import re

from spark_jobs.api.refusals import Place

_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_]{0,63}")
_RESERVED = frozenset({"params", "spark", "pipeline", "round"})
"""Special arguments of a function, those that are to become one included."""


def check_name(place: Place, name: object) -> str:
    """``name`` if it is safe in every file name.

    Raises:
        InvalidPipelineError: It has other characters than letters, digits and ``_``, does not begin with a letter, is longer
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
