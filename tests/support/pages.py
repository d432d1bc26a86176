"""The pages of the documentation: their code blocks, links, headings and tables."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]

_FENCE = re.compile(r'^```(?P<language>\w*)(?: title="(?P<title>[^"]+)")?\n(?P<text>.*?)^```$', re.MULTILINE | re.DOTALL)
_LINK = re.compile(r"(?<!!)\[[^\]]*\]\(([^)\s]+)\)")
_HEADING = re.compile(r"^(#{1,6}) (.+)$", re.MULTILINE)


@dataclass(frozen=True)
class Block:
    """A fenced block of code. ``title`` is the name of its file; a block may be a part of one."""

    page: Path
    line: int
    language: str
    title: str | None
    text: str

    def __str__(self) -> str:
        return f"{named(self.page)}:{self.line}"


@dataclass(frozen=True)
class Row:
    """A row of a table: the text of each column, as written."""

    heading: str
    cells: dict[str, str]


def named(page: Path) -> str:
    return page.relative_to(ROOT).as_posix()


def pages() -> list[Path]:
    """Returns the README and all pages in ``docs``."""
    return [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]


def guides() -> list[Path]:
    """Returns the pages that readers copy from. All of their code must run."""
    return [ROOT / "README.md", ROOT / "docs/quickstart.md", *sorted((ROOT / "docs/how-to").glob("*.md"))]


def blocks(page: Path, language: str | None = None) -> list[Block]:
    text = page.read_text()
    return [
        Block(page, text.count("\n", 0, found.start()) + 1, found["language"], found["title"], found["text"])
        for found in _FENCE.finditer(text)
        if language in (None, found["language"])
    ]


def files(page: Path, language: str = "python") -> dict[str, str]:
    """Returns the files that a page's titled blocks make. Blocks with the same title are joined in the order of the page."""
    made: dict[str, str] = {}
    for block in blocks(page, language):
        if block.title is not None:
            made[block.title] = f"{made[block.title]}\n\n{block.text}" if block.title in made else block.text
    return made


def prose(page: Path) -> str:
    """Returns a page without its blocks of code."""
    return _FENCE.sub("", page.read_text())


def links(page: Path) -> list[str]:
    return _LINK.findall(prose(page))


def anchors(page: Path) -> set[str]:
    """Returns the anchors that GitHub makes of a page's headings."""
    return {_anchor(title) for _, title in _HEADING.findall(prose(page))}


def headings(page: Path, level: int) -> list[str]:
    return [title.strip() for marks, title in _HEADING.findall(prose(page)) if len(marks) == level]


def table_rows(page: Path) -> Iterator[Row]:
    """Returns the rows of all tables, each with the nearest heading above it."""
    heading = ""
    columns: list[str] = []
    for line in prose(page).splitlines():
        if found := _HEADING.match(line):
            heading, columns = found[2].strip(), []
        elif not line.startswith("|"):
            columns = []
        elif not columns:
            columns = _cells(line)
        elif not set(line) <= set("|-: "):
            yield Row(heading, dict(zip(columns, _cells(line), strict=True)))


def _cells(line: str) -> list[str]:
    return [cell.replace(r"\|", "|").strip() for cell in re.split(r"(?<!\\)\|", line.strip().strip("|"))]


def _anchor(title: str) -> str:
    return re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-")
