"""Every name that a test replaces exists. Otherwise a renamed function is noticed only by slow or nightly tests."""

import ast
from collections.abc import Iterator
from pathlib import Path
from symtable import symtable

import pytest

ROOT = Path(__file__).parents[2]


def modules_of(tests: ast.Module) -> dict[str, Path]:
    """Returns the product's modules that a test file imports, by the names under which it imports them."""
    found = {}
    for node in ast.walk(tests):
        if isinstance(node, ast.ImportFrom):
            for alias in node.names:
                path = ROOT.joinpath(*(node.module or "").split("."), f"{alias.name}.py")
                if path.is_file():
                    found[alias.asname or alias.name] = path
    return found


def replaced(tests: ast.Module) -> Iterator[tuple[int, str, str]]:
    """Yields line, owner and name of each ``setattr(owner, "name", …)``."""
    for node in ast.walk(tests):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "setattr":
            match node.args:
                case [ast.Name(owner), ast.Constant(str(name)), _]:
                    yield node.lineno, owner, name


def missing(tests: ast.Module) -> list[str]:
    """Returns one message for each name that the tests replace and its module does not define."""
    modules = modules_of(tests)
    return [
        f"line {line}: {modules[owner].relative_to(ROOT)} has no {name}"
        for line, owner, name in replaced(tests)
        if owner in modules and name not in symtable(modules[owner].read_text(), owner, "exec").get_identifiers()
    ]


def test_every_name_that_a_test_replaces_exists() -> None:
    texts = {path.relative_to(ROOT).as_posix(): path.read_text() for path in sorted(ROOT.joinpath("tests").rglob("*.py"))}
    replacing = {name: text for name, text in texts.items() if "setattr" in text}  # a fifth of them; parsing is slow
    assert {name: found for name, text in replacing.items() if (found := missing(ast.parse(text)))} == {}


@pytest.mark.parametrize(("name", "there"), [("open_files", True), ("was_renamed", False)])
def test_a_replaced_name_that_does_not_exist_is_found(name: str, there: bool) -> None:
    code = f"from spark_jobs.storage import open as open_storage\npatch.setattr(open_storage, '{name}', None)"
    assert (missing(ast.parse(code)) == []) is there
