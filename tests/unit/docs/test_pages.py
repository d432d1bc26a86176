"""Every link leads to a page, every page ends with what comes next, and code that is shown twice is the same."""

import ast
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from tests.support.pages import ROOT, anchors, blocks, files, guides, headings, links, named, pages

FOREIGN = ("http", "https", "mailto")


@pytest.mark.parametrize("page", pages(), ids=named)
def test_every_link_leads_to_an_existing_page_and_section(page: Path) -> None:
    broken = []
    for link in links(page):
        parts = urlsplit(link)
        if parts.scheme in FOREIGN:
            continue
        target = (page.parent / parts.path).resolve() if parts.path else page
        if not target.exists() or (parts.fragment and parts.fragment not in anchors(target)):
            broken.append(link)
    assert broken == []


def test_every_page_can_be_reached_from_the_readme() -> None:
    reached, ahead = set(), [ROOT / "README.md"]
    while ahead:
        page = ahead.pop()
        if page in reached or page.suffix != ".md" or not page.exists():
            continue
        reached.add(page)
        targets = [urlsplit(link) for link in links(page)]
        ahead += [(page.parent / target.path).resolve() for target in targets if target.path and target.scheme not in FOREIGN]
    decisions = set((ROOT / "docs/adr").glob("*.md"))
    assert set(pages()) - decisions - reached == set()


@pytest.mark.parametrize("page", [page for page in pages() if page.parent.name != "adr"], ids=named)
def test_a_page_ends_with_the_section_whats_next(page: Path) -> None:
    assert page == ROOT / "docs/dependencies.md" or headings(page, 2)[-1] == "What's next"


@pytest.mark.parametrize("page", pages(), ids=named)
def test_python_code_on_a_page_can_be_compiled(page: Path) -> None:
    for block in blocks(page, "python"):
        ast.parse(block.text, filename=str(block))


@pytest.mark.parametrize("page", guides(), ids=named)
def test_code_to_copy_names_its_file(page: Path) -> None:
    assert [str(block) for block in blocks(page, "python") if block.title is None] == []


def test_a_file_that_two_pages_show_is_the_same_on_both() -> None:
    shown: dict[str, set[str]] = {}
    for page in guides():
        for title, text in files(page).items():
            shown.setdefault(title, set()).add(text)
    assert [title for title, texts in shown.items() if len(texts) > 1] == []
