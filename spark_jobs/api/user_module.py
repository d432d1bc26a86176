"""Imports the module, or runs the Python file, that a user names."""

import hashlib
import importlib
import importlib.machinery
import importlib.util
import sys
import traceback
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType, ModuleType
from typing import Any

from spark_jobs.api.location import PipelineLocation, refused_entry
from spark_jobs.protocol.errors import InvalidPipelineError, StreamPipelineError

NO_NAMES: Mapping[str, Any] = MappingProxyType({})


class SessionAtImportError(Exception):
    """Raised if a module asks for a Spark session while it is imported."""


def import_user_module(location: PipelineLocation, given: Mapping[str, Any] = NO_NAMES) -> ModuleType:
    """Imports the module of a pipeline, or runs its file.

    A file's module is not in ``sys.modules`` afterwards: Spark sends its functions to other processes whole, as from a notebook.

    Args:
        location: The module or the file.
        given: Names that the file finds at module level.

    Raises:
        InvalidPipelineError: The import fails. The error names the line.
    """
    try:
        if location.file is not None:
            return _run_file(location.file, given)
        return importlib.import_module(str(location.module))
    except StreamPipelineError:
        raise
    except SyntaxError as error:
        problem = f"{error.filename}, line {error.lineno}: {error.msg}."
        raise refused_entry(location.text, problem, "Correct that line.", path=error.filename, line=error.lineno) from error
    except (Exception, SystemExit) as error:
        raise _import_failure(location, error) from error


def _run_file(file: Path, given: Mapping[str, Any]) -> ModuleType:
    name = f"{file.stem}_{hashlib.sha256(str(file).encode()).hexdigest()[:12]}"
    loader = importlib.machinery.SourceFileLoader(name, str(file))
    spec = importlib.machinery.ModuleSpec(name, loader, origin=str(file))
    spec.has_location = True
    module = importlib.util.module_from_spec(spec)
    vars(module).update(given)
    sys.modules[name] = module
    try:
        loader.exec_module(module)
    finally:
        sys.modules.pop(name, None)
    return module


def _import_failure(location: PipelineLocation, error: BaseException) -> InvalidPipelineError:
    module = location.module
    if isinstance(error, ModuleNotFoundError) and module and error.name and f"{module}.".startswith(f"{error.name}."):
        remedy = "Start the command in the folder that has it, install it, or give the file's path."
        return refused_entry(location.text, f"there is no module {error.name!r}.", remedy, module=error.name)
    line = _line_of(location, error)
    if isinstance(error, SessionAtImportError):
        file, line = _last_place(location, error)
        what = f"line {line} of {file}" if line else "the code that asks for it"
        remedy = f"Move {what} into a function; sources get the session as 'spark', and a frame has it as frame.sparkSession."
        return refused_entry(location.text, "it asks for a Spark session when it is imported.", remedy, path=file, line=line)
    at = f" at line {line}" if line else ""
    if isinstance(error, ImportError) and "relative import" in str(error):
        problem = f"importing it failed{at}: a file that is named by its path cannot use relative imports ({error})."
        return refused_entry(location.text, problem, "Name it as package.module, or import its neighbours by name.", line=line)
    if isinstance(error, SystemExit):
        return refused_entry(location.text, f"it ends the process{at} when it is imported.", "Remove that call.", line=line)
    problem = f"importing it failed{at}: {type(error).__name__}: {error}."
    return refused_entry(
        location.text, problem, "Correct that line. Importing the module must only declare the pipeline.", line=line
    )


def _line_of(location: PipelineLocation, error: BaseException) -> int | None:
    """Returns the last executed line of the user's file."""
    line, trace = None, error.__traceback__
    while trace is not None:
        if location.file is not None and trace.tb_frame.f_code.co_filename == str(location.file):
            line = trace.tb_lineno
        trace = trace.tb_next
    return line


def _last_place(location: PipelineLocation, error: BaseException) -> tuple[str | None, int | None]:
    """Returns the file in the pipeline's folder, and its line, that ran last."""
    file, line = None, None
    for frame, number in traceback.walk_tb(error.__traceback__):
        name = frame.f_code.co_filename
        if name == str(location.file) or Path(name).is_relative_to(location.folder):
            file, line = name, number
    return file, line
