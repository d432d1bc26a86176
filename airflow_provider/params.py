"""A DAG's form from a pipeline's own schema, so that what the form allows and what the pipeline takes cannot drift apart."""

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
"""A character of a name that stands for itself, for every reader of paths and URLs."""
_BELOW = "x-below"
"""A key of a param's schema: the directory that every choice is in. Validators of JSON schemas pass over what they do not know."""
_SPECIAL = re.compile(r"[][(){}.^$*+?|\\]")


@dataclass(frozen=True)
class Below:
    """A path that whoever fills in a form may choose, below a directory.

    Args:
        directory: The directory, absolute, or a prefix in a store. What is chosen has no ``.`` and no ``..`` in it, and nothing that is
            read as a pattern or an escape; and the operator that runs a pipeline refuses one that a link leads out of the directory, as
            its worker sees it.
        path: What the form shows first, from there.
    """

    directory: str
    path: str

    @property
    def default(self) -> str:
        """The whole path."""
        return f"{self.directory.rstrip('/')}/{self.path}"

    @property
    def pattern(self) -> str:
        """What every choice matches, as a regular expression that browsers read, too."""
        directory = _SPECIAL.sub(lambda found: f"\\{found[0]}", self.directory.rstrip("/"))
        return rf"^{directory}(/(?!\.{{1,2}}(/|$)){_PLAIN}+)+$(?!\n)"


def params_from_schema(file: str | PathLike[str], **defaults: Any) -> dict[str, Param]:
    """The DAG ``params`` of a pipeline.

    Reads what ``spark-jobs schema`` has written: parsing the DAG needs neither Spark nor the pipeline's module. Secret parameters
    are not in that file, so a form never asks for one.

    Args:
        file: The JSON schema.
        defaults: What the form shows first, by parameter; instead of the pipeline's own default values. Where it is :class:`Below`, nothing
            outside that directory can be chosen.

    Raises:
        ValueError: A default is for a parameter that the pipeline does not have.
    """
    schema = json.loads(Path(file).read_text(encoding="utf-8"))
    fields: dict[str, dict[str, Any]] = schema.get("properties", {})
    if unknown := sorted(set(defaults) - set(fields)):
        raise ValueError(f"{file} has no parameter {', '.join(unknown)}; it has {', '.join(fields)}.")
    shared = {"$defs": schema["$defs"]} if "$defs" in schema else {}
    return {name: _param(field | shared | _given(field, name, defaults)) for name, field in fields.items()}


def _given(field: dict[str, Any], name: str, defaults: dict[str, Any]) -> dict[str, Any]:
    """What the DAG's author says of a field."""
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
    """Tells in the task's log what a run's conf names and no param of the DAG is: templates would pass over a misspelled one.

    A DAG without params is left alone: it may read the conf itself.
    """
    known = list(getattr(context.get("dag"), "params", {}))
    conf = getattr(context.get("dag_run"), "conf", None) or {}
    if known and (unknown := sorted(set(conf) - set(known))):
        task.log.warning("The conf of this run has %s, no param of the DAG; it has %s.", ", ".join(unknown), ", ".join(known))


def refuse_links_out(context: "Context") -> None:
    """Refuses a path of a form, see :class:`Below`, that a link leads out of its directory, as this host sees it.

    Raises:
        InvalidParameterError: One does.
    """
    chosen = context.get("params") or {}
    for name, param in getattr(context.get("dag"), "params", {}).items():
        directory, path = getattr(param, "schema", {}).get(_BELOW, ""), chosen.get(name)
        if not (directory.startswith("/") and isinstance(path, str)):
            continue
        root, place = os.path.realpath(directory), os.path.realpath(path)
        if place != root and not is_inside(place, root):
            raise InvalidParameterError(
                f"The param {name} is {path}, which a link leads to {place}, out of {directory}.",
                safe="Nothing was started or written.",
                remedy="Choose another path, or remove the link. Let only those write there who may choose any path.",
                parameter=name,
                path=path,
            )
