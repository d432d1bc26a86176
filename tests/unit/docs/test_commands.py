"""The pages show commands and options that exist, and describe all of them."""

import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer

from spark_jobs.cli import answers
from spark_jobs.cli.commands import app
from tests.support.pages import ROOT, blocks, headings, named, pages, table_rows

PAGE = ROOT / "docs/reference/commands.md"
COMMANDS: dict[str, Any] = vars(typer.main.get_command(app))["commands"]


def options(command: Any) -> list[str]:
    return [parameter.opts[0] for parameter in command.params if parameter.param_type_name == "option"]


def shown(page: Path) -> Iterator[tuple[str, list[str]]]:
    """Every ``spark-jobs`` command line on a page, in code and in text."""
    text = page.read_text()
    lines = [line for block in blocks(page) if block.language == "console" for line in block.text.splitlines()]
    lines += re.findall(r"`((?:SPARK_JOBS_PARAM_\S+ )?spark-jobs [^`]+)`", text)
    lines += re.findall(r"spark-jobs [^\"']*", "\n".join(b.text for b in blocks(page, "python")))
    for line in lines:
        words = shlex.split(re.sub(r"\[[^\]]*\]|\{\{.*?\}\}", "", line), comments=True)
        while words and re.match(r"[A-Z_]+=", words[0]):
            words = words[1:]
        if words and words[0] == "spark-jobs":
            yield line, words[1:]


@pytest.mark.parametrize("page", pages(), ids=named)
def test_every_command_line_on_a_page_has_options_that_exist(page: Path) -> None:
    for line, words in shown(page):
        command = words[0].strip(",.")
        assert command in COMMANDS, line
        unknown = {word for word in words[1:] if word.startswith("--")} - set(options(COMMANDS[command])) - {"--help"}
        assert unknown == set(), line


@pytest.mark.parametrize("name", COMMANDS)
def test_the_reference_describes_every_option_of_a_command(name: str) -> None:
    described = [row.cells["option"].strip("`") for row in table_rows(PAGE) if row.heading == f"`{name}`"]
    assert described == options(COMMANDS[name])


def test_the_reference_describes_every_command() -> None:
    assert [title.strip("`") for title in headings(PAGE, 2) if title.startswith("`")] == list(COMMANDS)


def test_the_reference_names_every_field_of_every_answer() -> None:
    described = {
        row.cells["answer"].strip("`"): re.findall(r"`(\w+)`", row.cells["fields"])
        for row in table_rows(PAGE)
        if "answer" in row.cells
    }
    kinds = [each for each in vars(answers).values() if isinstance(each, type) and issubclass(each, answers.Answer)]
    assert described == {each.__name__: list(each.model_fields) for each in kinds if each is not answers.Answer}
