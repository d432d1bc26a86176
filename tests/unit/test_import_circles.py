"""No module imports itself over others: at its top, in a function, for types only, or by name."""

import ast
from collections.abc import Iterator, Mapping
from graphlib import CycleError, TopologicalSorter

import pytest

from tests.support.pages import ROOT

PACKAGES = ("airflow_provider", "dags_examples", "spark_jobs")


def modules() -> dict[str, ast.Module]:
    files = [file for package in PACKAGES for file in sorted((ROOT / package).rglob("*.py"))]
    names = [".".join(file.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__") for file in files]
    return {name: ast.parse(file.read_text()) for name, file in zip(names, files, strict=True)}


def imported(tree: ast.Module) -> Iterator[str]:
    """Yields what a module imports anywhere, with the names in it. A text that is the name of a module counts as its import."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (each.name for each in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module is not None:
            yield node.module
            yield from (f"{node.module}.{each.name}" for each in node.names)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.value


def circle(trees: Mapping[str, ast.Module]) -> list[str]:
    """Returns the modules of a circle; empty if there is none. A package itself, which others import only for its names, is left out."""
    parents = {name.rpartition(".")[0] for name in trees}
    graph = {name: set(imported(tree)) & trees.keys() - {name} - parents for name, tree in trees.items() if name not in parents}
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        return list(error.args[1])
    return []


def test_no_module_imports_itself_in_a_circle() -> None:
    assert circle(modules()) == []


@pytest.mark.parametrize(
    "back",
    [
        "import spark_jobs.a",
        "from spark_jobs.a import name",
        "from spark_jobs import a",
        "def f():\n    from spark_jobs.a import name",
        "if TYPE_CHECKING:\n    from spark_jobs.a import name",
        "import_module('spark_jobs.a')",
    ],
)
def test_a_circle_is_found_in_any_form_of_import(back: str) -> None:
    trees = {"spark_jobs.a": ast.parse("import spark_jobs.b"), "spark_jobs.b": ast.parse(back)}
    assert set(circle(trees)) == {"spark_jobs.a", "spark_jobs.b"}
