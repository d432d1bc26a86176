"""The commands and options on the pages exist, and the pages describe all of them."""

import re
import shlex
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import pytest

from spark_jobs.cli import answers
from tests.support.commands import COMMANDS, options, refusal
from tests.support.pages import ROOT, blocks, headings, named, pages, table_rows

PAGE = ROOT / "docs/reference/commands.md"


def shown(page: Path) -> Iterator[tuple[str, list[str]]]:
    """Yields every ``spark-jobs`` command line on a page, in code and in text."""
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


def filled(words: list[str]) -> list[str]:
    """Returns a command line with a number for each placeholder letter, and without the ellipses."""
    kept = [word for before, word in pairwise(["", *words]) if word != "…" or before.startswith("--")]
    return [kept[0].strip(",."), *("1" if re.fullmatch("[A-Z]", word) else word for word in kept[1:])]


@pytest.mark.parametrize("page", pages(), ids=named)
def test_every_command_on_a_page_is_accepted_by_the_command_line(page: Path) -> None:
    refused = {line: refusal(filled(words)) for line, words in shown(page)}
    assert {line: said for line, said in refused.items() if said} == {}


def test_the_check_of_commands_refuses_unknown_commands_and_options() -> None:
    assert refusal(["inspect", "1", "--home", "h"]) is not None
    assert refusal(["inspect", "--checkpoint", "1"]) is None
    assert refusal(["run", "--hoem", "h"]) is not None
    assert refusal(["publihs"]) is not None


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
