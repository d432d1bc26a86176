"""The pipelines on the pages can be loaded and checked, and the signatures in the reference match the code."""

import ast
import inspect
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import spark_jobs
from spark_jobs import CheckpointSettings, DeltaSink, Hold, Pipeline, RestartStrategy, Tolerate
from spark_jobs.api.load import load_pipeline
from spark_jobs.api.settings import NO_SETTINGS
from spark_jobs.testing import run_pipeline
from tests.support.pages import ROOT, blocks, files, guides, named

API = ROOT / "docs/reference/api.md"
PIPELINES = [(page, title) for page in guides() for title, text in files(page).items() if "= Pipeline(" in text]
SIGNATURES: dict[str, Callable[..., Any]] = {
    "Pipeline": Pipeline,
    "source": Pipeline.source,
    "static": Pipeline.static,
    "stage": Pipeline.stage,
    "graph": Pipeline.graph,
    "bind": Pipeline.bind,
    "schema": Pipeline.schema,
    "run": Pipeline.run,
    "rewired": Pipeline.rewired,
    "DeltaSink": DeltaSink,
    "Hold": Hold,
    "Tolerate": Tolerate,
    "CheckpointSettings": CheckpointSettings,
    "none": RestartStrategy.none,
    "fixed_delay": RestartStrategy.fixed_delay,
    "failure_rate": RestartStrategy.failure_rate,
    "exponential_delay": RestartStrategy.exponential_delay,
    "consistent_versions": spark_jobs.consistent_versions,
    "read_staged": spark_jobs.read_staged,
    "run_pipeline": run_pipeline,
}


@pytest.mark.parametrize(("page", "title"), PIPELINES, ids=[f"{named(page)}:{title}" for page, title in PIPELINES])
def test_a_pipeline_on_a_page_passes_every_check_before_spark(page: Path, title: str, tmp_path: Path) -> None:
    for name, text in files(page).items():  # one file may import another
        (tmp_path / Path(name).name).write_text(text)
    graph = load_pipeline(str(tmp_path / title)).graph()
    assert graph.sinks


def test_every_guide_to_pipelines_shows_a_pipeline() -> None:
    assert {page.stem for page, _ in PIPELINES} >= {"README", "quickstart", "write-a-pipeline", "run-every-day"}


def shape(signature: str) -> list[tuple[str, str, str | None]]:
    """Returns names, kinds and default values of a signature's arguments."""
    name, _, rest = signature.strip().partition("(")
    definition = ast.parse(f"def {name}({rest}: ...").body[0]
    assert isinstance(definition, ast.FunctionDef)
    found = []
    positional = [*definition.args.posonlyargs, *definition.args.args]
    defaults = [None] * (len(positional) - len(definition.args.defaults)) + list(definition.args.defaults)
    for argument, default in [*zip(positional, defaults, strict=True)]:
        kind = "positional" if argument in definition.args.posonlyargs else "any"
        found.append((argument.arg, kind, ast.unparse(default) if default else None))
    for argument, default in zip(definition.args.kwonlyargs, definition.args.kw_defaults, strict=True):
        found.append((argument.arg, "keyword", ast.unparse(default) if default else None))
    return found


def real_shape(function: Callable[..., Any]) -> list[tuple[str, str, str | None]]:
    kinds: dict[inspect._ParameterKind, str] = {
        inspect.Parameter.POSITIONAL_ONLY: "positional",
        inspect.Parameter.POSITIONAL_OR_KEYWORD: "any",
        inspect.Parameter.KEYWORD_ONLY: "keyword",
    }
    return [
        (each.name, kinds[each.kind], None if each.default is each.empty else written(each.default))
        for each in inspect.signature(function).parameters.values()
        if each.name != "self"
    ]


def written(default: object) -> str:
    if default is NO_SETTINGS:
        return "{}"
    if repr(default) == "<factory>":  # the default factory of a dataclass field: an empty mapping
        return "{}"
    if default == CheckpointSettings():
        return "CheckpointSettings()"
    if default == RestartStrategy.exponential_delay():
        return "RestartStrategy.exponential_delay()"
    if default is os.environ:
        return "os.environ"
    return repr(default)


@pytest.mark.parametrize("name", SIGNATURES)
def test_the_reference_has_the_signature_of_the_function(name: str) -> None:
    shown = {block.text.partition("(")[0]: block.text for block in blocks(API, "text") if block.title == "signature"}
    assert shape(shown[name]) == real_shape(SIGNATURES[name])
