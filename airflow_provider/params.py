"""Builds a DAG's form from a pipeline's own schema, so that the form and the pipeline always agree."""

import json
import os
import re
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any

from airflow.sdk import BaseOperator, Param

from spark_jobs.home.places import is_inside
from spark_jobs.protocol.errors import InvalidParameterError

if TYPE_CHECKING:
    from airflow.sdk import Context

_TEXTS = ("default", "description")
_PLAIN = r"[^/%#?*:\[\]{}\\\x00-\x1f\x7f]"
"""Matches a character that has no special meaning in a path or a URL."""
_BELOW = "x-below"
"""A key in a param's schema: the directory that every choice must be in. Validators of JSON schemas ignore unknown keys."""
_SPECIAL = re.compile(r"[][(){}.^$*+?|\\]")


@dataclass(frozen=True)
class Below:
    """A path below a directory that a person may choose in a form.

    Args:
        directory: The directory, absolute, or a prefix in a store. A choice contains no ``.`` or ``..`` and no character of a pattern or
            an escape. The operator that runs a pipeline also refuses a choice that a link leads out of the directory, as its worker sees
            it.
        path: The default choice, relative to the directory.
    """

    directory: str
    path: str

    @property
    def default(self) -> str:
        """The whole default path."""
        return f"{self.directory.rstrip('/')}/{self.path}"

    @property
    def pattern(self) -> str:
        """A regular expression that every choice matches, which browsers also understand."""
        directory = _SPECIAL.sub(lambda found: f"\\{found[0]}", self.directory.rstrip("/"))
        return rf"^{directory}(/(?!\.{{1,2}}(/|$)){_PLAIN}+)+$(?!\n)"


def params_from_schema(file: str | PathLike[str], **defaults: Any) -> dict[str, Param]:
    """Returns the DAG ``params`` for a pipeline.

    Reads the output of ``spark-jobs schema``, so parsing the DAG needs neither Spark nor the pipeline's module. That file contains no
    secret parameters, so a form never asks for one.

    Args:
        file: The JSON schema.
        defaults: Default values by parameter, instead of the pipeline's own. With a :class:`Below`, only paths in its directory can be
            chosen.

    Raises:
        ValueError: A default names a parameter that the pipeline does not have.
    """
    schema = json.loads(Path(file).read_text(encoding="utf-8"))
    fields: dict[str, dict[str, Any]] = schema.get("properties", {})
    if unknown := sorted(set(defaults) - set(fields)):
        raise ValueError(f"{file} has no parameter {', '.join(unknown)}; it has {', '.join(fields)}.")
    shared = {"$defs": schema["$defs"]} if "$defs" in schema else {}
    return {name: _param(field | shared | _given(field, name, defaults)) for name, field in fields.items()}


def _given(field: dict[str, Any], name: str, defaults: dict[str, Any]) -> dict[str, Any]:
    """Returns the DAG author's default for a field."""
    if name not in defaults:
        return {}
    given = defaults[name]
    if not isinstance(given, Below):
        return {"default": given}
    inside = {"type": "string", "pattern": given.pattern}
    return {"default": given.default, "allOf": [*field.get("allOf", []), inside], _BELOW: given.directory}


def _param(field: dict[str, Any]) -> Param:
    texts = {name: field[name] for name in _TEXTS if name in field}
    return Param(**texts, schema={name: value for name, value in field.items() if name not in _TEXTS})


def warn_of_unknown(task: BaseOperator, context: "Context") -> None:
    """Warns in the task's log about names in a run's conf that are no params of the DAG: templates would ignore a misspelled one.

    A DAG without params gets no warning, because it may read the conf itself.
    """
    known = list(getattr(context.get("dag"), "params", {}))
    conf = getattr(context.get("dag_run"), "conf", None) or {}
    if known and (unknown := sorted(set(conf) - set(known))):
        task.log.warning(
            "The conf of this run names %s, but the DAG has only these params: %s.", ", ".join(unknown), ", ".join(known)
        )


def refuse_links_out(context: "Context") -> None:
    """Refuses a chosen path (see :class:`Below`) that a link leads out of its directory, as this host sees it.

    Raises:
        InvalidParameterError: A path leads out of its directory.
    """
    chosen = context.get("params") or {}
    for name, param in getattr(context.get("dag"), "params", {}).items():
        directory, path = getattr(param, "schema", {}).get(_BELOW, ""), chosen.get(name)
        if not (directory.startswith("/") and isinstance(path, str)):
            continue
        root, place = os.path.realpath(directory), os.path.realpath(path)
        if place != root and not is_inside(place, root):
            raise InvalidParameterError(
                f"The param {name} is {path}, but a link leads from there to {place}, outside {directory}.",
                remedy="Choose another path, or remove the link. Allow writing there only to people who may choose any path.",
                parameter=name,
                path=path,
            )
