"""Finds where a pipeline is declared.

A user writes ``flights.py``, ``flights.py:NAME``, ``package.module``, ``package.module:NAME``, or ``spark-pipeline.yml``, the specification
of a Spark Declarative Pipelines project. ``spark-pipeline.yml:live`` is the same project as a stream without an end.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from spark_jobs.protocol.errors import InvalidPipelineError

_SPECIFICATIONS = (".yml", ".yaml")
_LIVE = "live"


@dataclass(frozen=True)
class PipelineLocation:
    """The place where a pipeline is declared."""

    text: str
    """The text that the user wrote."""
    file: Path | None
    """The absolute path of the file; None for a module."""
    module: str | None
    """The module's dotted name; None for a file."""
    name: str | None
    """The variable's name. None: the only pipeline of the module. A project has the name ``live``, or none."""

    @property
    def is_project(self) -> bool:
        """True if the file is the specification of a project."""
        return self.file is not None and self.file.suffix in _SPECIFICATIONS

    @property
    def is_live(self) -> bool:
        """True if the sources of a project have no end."""
        return self.is_project and self.name == _LIVE

    @property
    def folder(self) -> Path:
        """The folder that neighbours are imported from: that of the file, or the current directory for a module."""
        return self.file.parent if self.file else Path.cwd()


def locate_pipeline(text: str) -> PipelineLocation:
    """Reads ``FILE.py[:NAME]``, ``package.module[:NAME]`` or ``FILE.yml[:live]``. The file need not exist.

    Raises:
        InvalidPipelineError: The text has another form.
    """
    where, colon, name = text.rpartition(":")
    if not colon:
        where, name = text, ""
    if where.endswith(_SPECIFICATIONS):
        if name not in ("", _LIVE) or (colon and not name):
            raise refused_entry(
                text, f"a project has no {name!r}.", f"Write {where}, or {where}:{_LIVE} for a stream without an end."
            )
        return PipelineLocation(text, Path(where).expanduser().absolute(), None, name or None)
    valid_name = name.isidentifier() if colon else True
    if where.endswith(".py") and valid_name:
        return PipelineLocation(text, Path(where).expanduser().absolute(), None, name or None)
    if all(part.isidentifier() for part in where.split(".")) and valid_name:
        return PipelineLocation(text, None, where, name or None)
    remedy = "Write FILE.py, FILE.py:NAME, package.module, package.module:NAME, spark-pipeline.yml or spark-pipeline.yml:live."
    raise refused_entry(text, "it names neither a file nor a module.", remedy)


def refused_entry(text: str, problem: str, remedy: str, **evidence: Any) -> InvalidPipelineError:
    """Returns the error to raise. ``text`` is the user's name of the pipeline. ``problem`` and ``remedy`` are one sentence each."""
    return InvalidPipelineError(f"{text}: {problem}", remedy=remedy, location=text, **evidence)
