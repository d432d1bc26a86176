"""The pages about errors quote the product's messages."""

import ast
import re
from collections.abc import Iterator

import pytest

from spark_jobs.protocol import errors
from spark_jobs.protocol.errors import StreamPipelineError
from spark_jobs.runtime.spark.spark_errors import KNOWN
from tests.support.commands import COMMANDS, options, refusal
from tests.support.known_errors import FOLLOWED, NEEDS_A_PERSON, PROGRAMS
from tests.support.pages import ROOT, anchors, headings, table_rows

REFERENCE = ROOT / "docs/reference/errors.md"
TROUBLESHOOTING = ROOT / "docs/troubleshooting.md"
SOURCES = sorted(path for folder in ("spark_jobs", "airflow_provider") for path in (ROOT / folder).rglob("*.py"))
QUOTED = re.findall(r"^> `([^`]+)`", TROUBLESHOOTING.read_text(), flags=re.MULTILINE)


def sentences() -> Iterator[str]:
    """Yields every text of the product, with an ellipsis for the variable parts."""
    for path in SOURCES:
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.JoinedStr):
                parts = (part.value if isinstance(part, ast.Constant) else "…" for part in node.values)
                yield re.sub("…+", "…", "".join(str(part) for part in parts))
            elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                yield node.value


SAID = set(sentences())
KINDS = {name for name, kind in vars(errors).items() if isinstance(kind, type) and issubclass(kind, StreamPipelineError)}


def constructions() -> Iterator[tuple[str, ast.Call]]:
    """Yields every place where the product creates one of its errors: by the name of its class, or by a variable called ``kind``."""
    for path in SOURCES:
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and ast.unparse(node.func).rpartition(".")[2] in (
                KINDS | {"kind"} if node.keywords else KINDS
            ):
                yield f"{path.relative_to(ROOT)}:{node.lineno}", node


def test_the_reference_has_every_error_of_spark_that_has_a_remedy() -> None:
    rows = REFERENCE.read_text().partition("## What Spark, Delta and Python say")[2].partition("\n## ")[0]
    listed = re.findall(r"^\| `([^`]+)` \| (.+) \| (yes|no) \|$", rows, flags=re.MULTILINE)
    assert listed == [(known.name, known.remedy, "yes" if known.heals else "no") for known in KNOWN]


def test_every_error_says_what_to_do() -> None:
    made = list(constructions())
    remedies = {where: next((k.value for k in call.keywords if k.arg == "remedy"), None) for where, call in made}
    lacking = [
        where for where, remedy in remedies.items() if remedy is None or (isinstance(remedy, ast.Constant) and not remedy.value)
    ]
    assert len(made) > 80
    assert lacking == []


@pytest.mark.parametrize("sentence", QUOTED)
def test_the_product_says_every_sentence_that_a_page_quotes(sentence: str) -> None:
    assert sentence in SAID


def test_the_sections_that_errors_refer_to_exist() -> None:
    named = {part for said in SAID for part in re.findall(r"'([^']+)' in docs/troubleshooting\.md", said)}
    assert named
    assert {part.replace(" ", "-") for part in named} <= anchors(TROUBLESHOOTING)


def test_the_reference_has_the_whole_tree_of_errors() -> None:
    tree = [each for each in vars(errors).values() if isinstance(each, type) and issubclass(each, StreamPipelineError)]
    described = {
        row.cells["class"]: (row.cells["below"], row.cells["retry"], row.cells["exit code"])
        for row in table_rows(REFERENCE)
        if "class" in row.cells
    }
    assert described == {
        f"`{each.__name__}`": (f"`{each.__bases__[0].__name__}`", each.retry.value.replace("_", " "), str(int(each.exit_code)))
        for each in tree
    }


def test_the_reference_has_a_section_for_the_code_of_each_error() -> None:
    codes = {each.code for name in KINDS - {"StreamPipelineError"} if (each := getattr(errors, name))}
    assert codes == set(headings(REFERENCE, level=3))
    for name in KINDS:
        page, _, anchor = getattr(errors, name).documentation.partition("#")
        assert ROOT / page == REFERENCE
        assert not anchor or anchor in anchors(REFERENCE)
    linked = [row.cells["code"] for row in table_rows(REFERENCE) if "class" in row.cells]
    assert linked == ["", *(f"[{code}](#{code})" for code in headings(REFERENCE, level=3))]


def test_each_known_error_has_a_program_or_a_test_that_follows_its_remedy_or_a_reason_why_not() -> None:
    assert sorted([*PROGRAMS, *FOLLOWED, *NEEDS_A_PERSON]) == sorted(known.name for known in KNOWN)
    assert [name for name, reason in NEEDS_A_PERSON.items() if not reason] == []


def test_each_test_that_is_said_to_follow_a_remedy_exists() -> None:
    missing = []
    for place in FOLLOWED.values():
        path, _, name = place.partition("::")
        tests = ast.walk(ast.parse((ROOT / path).read_text())) if (ROOT / path).is_file() else ()
        if not any(isinstance(node, ast.FunctionDef) and node.name == name for node in tests):
            missing.append(place)
    assert missing == []


def remedies() -> Iterator[tuple[str, str]]:
    """Yields every remedy that is written where its error is created, with the source code of its variable parts."""
    for where, call in constructions():
        for keyword in call.keywords:
            if keyword.arg == "remedy" and isinstance(keyword.value, ast.JoinedStr):
                parts = (
                    part.value if isinstance(part, ast.Constant) else f" {ast.unparse(part)} " for part in keyword.value.values
                )
                yield where, "".join(str(part) for part in parts)
            elif keyword.arg == "remedy" and isinstance(keyword.value, ast.Constant):
                yield where, str(keyword.value.value)


def test_every_option_that_a_remedy_names_exists() -> None:
    known = {option for command in COMMANDS.values() for option in options(command)} | {"--master", "--deploy-mode"}
    unknown = {
        (where, option)
        for where, remedy in remedies()
        if "airflow connections" not in remedy and "spark-submit" not in remedy
        for option in re.findall(r"--[a-z][a-z-]+", remedy)
        if option not in known
    }
    assert unknown == set()


def commands_said() -> Iterator[tuple[str, list[str]]]:
    """Yields every ``spark-jobs`` command that the product prints: from texts up to the last option, and from lists of words."""
    for path in SOURCES:
        tree = ast.parse(path.read_text())
        pieces = {part for node in ast.walk(tree) if isinstance(node, ast.JoinedStr) for part in node.values}
        pieces |= {node.value for node in ast.walk(tree) if isinstance(node, ast.Expr)}  # docstrings
        for node in ast.walk(tree):
            if node in pieces:
                continue
            where = f"{path.relative_to(ROOT)}:{getattr(node, 'lineno', 0)}"
            if isinstance(node, ast.Call | ast.List):
                values = node.args if isinstance(node, ast.Call) else node.elts
                words = [
                    each.value if isinstance(each, ast.Constant) else "1" for each in values if not isinstance(each, ast.Starred)
                ]
                if words[:1] == ["spark-jobs"] and len(words) > 1:
                    yield where, [str(word) for word in words[1:]]
            elif isinstance(node, ast.JoinedStr) or (isinstance(node, ast.Constant) and isinstance(node.value, str)):
                parts = node.values if isinstance(node, ast.JoinedStr) else [node]
                text = "".join(str(part.value) if isinstance(part, ast.Constant) else "1" for part in parts)
                for said in re.findall(r"spark-jobs ((?:[a-z-]+)(?: (?:--[a-z-]+|[^a-z\s]\S*))*)", text):
                    sentence = re.split(r"[.,;:)'](?:\s|$)", said)[0]
                    yield where, sentence.split()


@pytest.mark.slow
def test_every_command_that_the_product_recommends_is_accepted_by_the_command_line() -> None:
    said = list(commands_said())
    refused = {where: (words, against) for where, words in said if (against := refusal(words))}
    assert refused == {}
    assert len(said) > 35


@pytest.mark.slow
def test_no_remedy_recommends_a_fresh_start_without_on_rewind() -> None:
    bare = [where for where, remedy in remedies() if "--fresh" in remedy and "--on-rewind" not in remedy]
    allowed = "Stop the old query"  # the new query has read nothing, so it has published nothing
    assert [where for where, remedy in remedies() if where in bare and allowed not in remedy] == []
