"""Loads the pipeline that a user names, from the place that :mod:`spark_jobs.api.location` finds."""

import ast
import importlib
import importlib.machinery
import importlib.util
import sys
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from pathlib import Path
from types import ModuleType
from typing import Any

import spark_jobs
from spark_jobs.api.location import PipelineLocation, locate_pipeline, refused_entry
from spark_jobs.api.neighbours import neighbours_of
from spark_jobs.api.pipeline import Pipeline
from spark_jobs.api.refusals import Mistakes, declaring_all, suggestion
from spark_jobs.api.settings import NO_SETTINGS
from spark_jobs.api.user_module import import_user_module
from spark_jobs.protocol.errors import InvalidPipelineError, missing_package
from spark_jobs.protocol.spark_versions import cannot_load_projects, installed_minor

_SESSIONS = (
    ("pyspark.sql.session", "SparkSession", "_instantiatedSession"),
    ("pyspark.core.context", "SparkContext", "_active_spark_context"),
    ("pyspark.sql.connect.session", "SparkSession", "_default_session"),
)
"""The module variables in which pyspark keeps the sessions and contexts of a process."""


def load_pipeline(text: str, settings: Mapping[str, str] = NO_SETTINGS) -> Pipeline:
    """Imports a user's module, or the files of a project, and returns the pipeline.

    A file can import its neighbours, also later from its functions. A file's module is not in ``sys.modules`` afterwards, so that Spark
    sends its objects to other processes by value, as from a notebook.

    Args:
        text: The user's name of the pipeline.
        settings: Spark settings of the command. Flows of a project may read them.

    Raises:
        InvalidPipelineError: The module does not exist, cannot be imported, starts a Spark session or does not have exactly one
            such pipeline; or a file next to it hides this package from Spark's Python processes; or a declaration has a mistake. The
            error then lists the mistakes of the graph, too.
    """
    mistakes = Mistakes()
    pipeline = load_sound_parts(text, mistakes, settings)
    if mistakes.found:
        pipeline.sound_graph(mistakes)
    mistakes.check()
    return pipeline


def load_sound_parts(text: str, mistakes: Mistakes, settings: Mapping[str, str] = NO_SETTINGS) -> Pipeline:
    """Loads a pipeline as :func:`load_pipeline` does, but collects the mistakes of declarations instead of raising them.

    Args:
        text: The user's name of the pipeline.
        mistakes: Collects the mistakes of declarations. :meth:`spark_jobs.Pipeline.sound_graph` says what happens to their parts.
        settings: As for :func:`load_pipeline`.

    Raises:
        InvalidPipelineError: There is no pipeline. The error lists the other mistakes, too.
    """
    try:
        return _load(text, mistakes, settings)
    except InvalidPipelineError as error:
        mistakes.add(error)
        mistakes.check()
        raise


def _load(text: str, mistakes: Mistakes, settings: Mapping[str, str]) -> Pipeline:
    location = locate_pipeline(text)
    if location.file is not None and not location.file.is_file():
        neighbours = sorted(path.name for path in location.folder.glob(f"*{location.file.suffix}"))
        remedy = suggestion(location.file.name, neighbours) if neighbours else "Correct the path: its folder has no such file."
        raise refused_entry(text, f"the file {location.file} does not exist.", remedy)
    _check_shadow(location)
    modules, sessions = set(sys.modules), _running_sessions()
    spark_side = _spark_side() if location.is_project or neighbours_of(location).uses_spark else None
    with (
        _importable(location.folder),
        spark_side.columns_without_session() if spark_side else nullcontext() as recorded,
        nullcontext() if location.is_project else declaring_all(mistakes),
    ):
        found = _declarative().load_project(location, settings, mistakes) if location.is_project else import_user_module(location)
    if isinstance(found, ModuleType):
        _check_sessions(location, found, modules, sessions)
    pipeline: Pipeline = _pipeline_of(location, found) if isinstance(found, ModuleType) else found
    if spark_side:
        spark_side.send_whole(neighbours_of(location).not_importable(recorded or set()))
    return pipeline


def _spark_side() -> Any:
    """Returns :mod:`spark_jobs.runtime.spark.columns_at_import`, or None if Spark is not installed."""
    try:
        return importlib.import_module("spark_jobs.runtime.spark.columns_at_import")
    except ImportError:
        return None


def _declarative() -> Any:
    """Returns :mod:`spark_jobs.declarative.load`.

    Raises:
        MissingRequirementError: A package that Spark Declarative Pipelines need is not installed, or this Spark does not have them.
    """
    try:
        return importlib.import_module("spark_jobs.declarative.load")
    except ImportError as error:
        minor = installed_minor()
        if minor is not None and str(error.name).startswith("pyspark"):
            raise cannot_load_projects(minor) from error
        raise missing_package("A Spark Declarative Pipelines project", error.name, "spark,declarative") from error


def _check_shadow(location: PipelineLocation) -> None:
    """Refuses a folder whose ``spark_jobs`` would hide this package. A folder without ``__init__.py`` does not hide it."""
    found = importlib.machinery.PathFinder.find_spec("spark_jobs", [str(location.folder)])
    if found is None or found.origin is None or Path(found.origin).samefile(spark_jobs.__file__):
        return
    raise refused_entry(
        location.text,
        f"{found.origin} hides the package spark_jobs from Python.",
        "Give that file or folder another name.",
        path=found.origin,
    )


@contextmanager
def _importable(folder: Path) -> Iterator[None]:
    """Puts ``folder`` first on the import path, and last afterwards: functions may import their neighbours when they run."""
    before = list(sys.path)
    sys.path.insert(0, str(folder))
    importlib.invalidate_caches()
    try:
        yield
    finally:
        sys.path[:] = before if str(folder) in before else [*before, str(folder)]


def _session_refused(location: PipelineLocation, file: str | None, line: int | None) -> InvalidPipelineError:
    what = f"line {line} of {file}" if line else "the code that starts it, such as getOrCreate()"
    remedy = f"Remove {what}; functions get the session as 'spark'."
    return refused_entry(location.text, "it starts a Spark session when it is imported.", remedy, path=file, line=line)


def _running_sessions() -> list[Any]:
    """Returns the Spark sessions and contexts of this process, without importing pyspark."""
    kept = [(sys.modules.get(module), holder, attribute) for module, holder, attribute in _SESSIONS]
    found = [getattr(getattr(module, holder, None), attribute, None) for module, holder, attribute in kept]
    return [session for session in found if session is not None]


def _check_sessions(location: PipelineLocation, module: ModuleType, modules: set[str], sessions: list[Any]) -> None:
    """Refuses a module that started a session. Such a session does not have the settings that the guarantees need."""
    if all(any(session is known for known in sessions) for session in _running_sessions()):
        return
    imported = [found for name, found in sys.modules.items() if name not in modules]
    files = [file for file in (getattr(found, "__file__", None) for found in (module, *imported)) if file]
    for file in dict.fromkeys(files):
        inside = Path(file).is_relative_to(location.folder) or file == getattr(module, "__file__", None)
        line = _session_line(Path(file)) if inside and file.endswith(".py") else None
        if line is not None:
            raise _session_refused(location, file, line)
    raise _session_refused(location, None, None)


def _session_line(file: Path) -> int | None:
    """Returns the first line of the first statement that starts a session. Statements outside of functions come first."""
    tree = ast.parse(file.read_bytes())
    nodes = list(ast.walk(tree))
    functions = [node for node in nodes if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)]
    inside = {id(inner) for function in functions for inner in ast.walk(function)}
    statements = [node for node in nodes if isinstance(node, ast.stmt)]
    found = [
        (id(call) in inside, max(statement.lineno for statement in statements if _contains(statement, call)))
        for call in nodes
        if isinstance(call, ast.Call) and _starts_session(call)
    ]
    return min(found)[1] if found else None


def _contains(statement: ast.stmt, call: ast.Call) -> bool:
    return statement.lineno <= call.lineno <= (statement.end_lineno or statement.lineno)


def _starts_session(call: ast.Call) -> bool:
    name = call.func.attr if isinstance(call.func, ast.Attribute) else call.func.id if isinstance(call.func, ast.Name) else ""
    return name in {"getOrCreate", "SparkContext"}


def _pipeline_of(location: PipelineLocation, module: ModuleType) -> Pipeline:
    found = {name: value for name, value in vars(module).items() if isinstance(value, Pipeline)}
    if location.name is not None:
        value = getattr(module, location.name, None)
        if isinstance(value, Pipeline):
            return value
        problem = (
            f"{location.name!r} is a {type(value).__name__}."
            if hasattr(module, location.name)
            else f"it has no {location.name!r}."
        )
        raise refused_entry(location.text, problem, f"Its pipelines: {suggestion(location.name, found)}", names=list(found))
    distinct = {id(pipeline): pipeline for pipeline in found.values()}
    if not distinct:
        raise refused_entry(location.text, "it declares no pipeline.", 'Add: pipeline = Pipeline("name").')
    if len(distinct) > 1:
        raise refused_entry(
            location.text, f"it has {len(distinct)} pipelines: {', '.join(found)}.", _choices(location, found), names=list(found)
        )
    return next(iter(distinct.values()))


def _choices(location: PipelineLocation, names: Iterable[str]) -> str:
    return f"Write {' or '.join(f'{location.text}:{name}' for name in names)}."
