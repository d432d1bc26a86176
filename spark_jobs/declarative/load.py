"""Loads a project: its specification, and then its files."""

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import yaml
from pyspark.errors import PySparkException
from pyspark.pipelines.cli import PipelineSpec, unpack_pipeline_spec
from pyspark.pipelines.graph_element_registry import graph_element_registration_context

from spark_jobs.api.location import PipelineLocation, refused_entry
from spark_jobs.api.pipeline import Pipeline
from spark_jobs.api.refusals import Mistakes
from spark_jobs.api.user_module import import_user_module
from spark_jobs.declarative.definitions import Definitions
from spark_jobs.declarative.names import Namespace
from spark_jobs.declarative.project import build_pipeline
from spark_jobs.declarative.session import ProjectSession, found_as_active
from spark_jobs.declarative.sql import ParserProcess
from spark_jobs.declarative.statements import ProjectDefinitions


def load_project(location: PipelineLocation, settings: Mapping[str, str], mistakes: Mistakes) -> Pipeline:
    """Returns the pipeline of a project.

    Args:
        location: The project's specification, ``spark-pipeline.yml``.
        settings: Spark settings of the command; they override the project's.
        mistakes: Collects the mistakes of definitions.

    Raises:
        InvalidPipelineError: The specification or a file cannot be read.
    """
    spec = _specification(location)
    session = ProjectSession({**spec.configuration, **settings})
    namespace = Namespace(spec.catalog, spec.database)
    with _in_folder(location.folder), ParserProcess() as process:
        definitions = ProjectDefinitions(location.folder, namespace, mistakes, session, process)
        with graph_element_registration_context(definitions):
            for file in _files(location, spec):
                with mistakes.noted():
                    _define(location, file, session, definitions)
        return build_pipeline(spec, definitions, session, mistakes, process, live=location.is_live)


def _specification(location: PipelineLocation) -> PipelineSpec:
    assert location.file is not None
    try:
        found: Any = yaml.safe_load(location.file.read_bytes())
        return unpack_pipeline_spec(found)
    except PySparkException as error:
        raise refused_entry(location.text, f"{error}".strip(), "Correct the specification.") from error
    except yaml.YAMLError as error:
        raise refused_entry(location.text, f"it is not YAML: {' '.join(str(error).split())}.", "Correct that line.") from error
    except (TypeError, KeyError, AttributeError) as error:
        remedy = "It has name, storage, catalog, database, configuration, and libraries with glob and include."
        raise refused_entry(location.text, f"it is not the specification of a project: {error!r}.", remedy) from error


def _files(location: PipelineLocation, spec: PipelineSpec) -> Iterator[Path]:
    """Yields the files of a project in the order of their names, each once."""
    found: dict[Path, None] = {}
    for library in spec.libraries:
        paths = sorted(location.folder.glob(library.include))
        found |= dict.fromkeys(path for path in paths if path.is_file() and "__pycache__" not in path.parts)
    if not found:
        included = ", ".join(library.include for library in spec.libraries) or "nothing"
        raise refused_entry(
            location.text,
            f"it names no file that exists: libraries include {included}.",
            "Write libraries: - glob: include: transformations/**",
        )
    yield from found


def _define(location: PipelineLocation, file: Path, session: ProjectSession, definitions: Definitions) -> None:
    relative = file.relative_to(location.folder)
    if file.suffix == ".sql":
        definitions.register_sql(file.read_text(), file)
    elif file.suffix == ".py":
        with found_as_active(session):
            import_user_module(PipelineLocation(f"{location.text}, {relative}", file, None, None), {"spark": session})
    else:
        raise refused_entry(
            location.text,
            f"[PIPELINE_UNSUPPORTED_DEFINITIONS_FILE_EXTENSION] {relative} is neither a .py nor a .sql file.",
            "Move it out of the folders in libraries.",
        )


@contextmanager
def _in_folder(folder: Path) -> Iterator[None]:
    """Makes the project's folder the current one for its files, as ``spark-pipelines`` does."""
    before = os.getcwd()
    os.chdir(folder)
    try:
        yield
    finally:
        os.chdir(before)
