"""The reference of formats describes the documents."""

import re
import types
from collections.abc import Iterator
from enum import Enum
from typing import Any, Literal, Union, get_args, get_origin

import pytest

from spark_jobs.protocol import (
    checkpoint_requests,
    checkpointing,
    documents,
    history,
    known_sources,
    losses,
    ownership,
    pins,
    restart_settings,
    savepoint,
    stage_cut,
    start_requests,
    table_shape,
)
from spark_jobs.protocol.codec import Document, Part, decode
from spark_jobs.protocol.documents import PipelineDocument
from tests.support.pages import ROOT, blocks, headings, table_rows

PAGE = ROOT / "docs/reference/formats.md"
JSON_TYPES = {bool: "boolean", int: "integer", float: "number", str: "string", dict: "object"}


def models() -> list[type[Part]]:
    modules = (
        documents,
        history,
        known_sources,
        losses,
        ownership,
        checkpointing,
        checkpoint_requests,
        pins,
        restart_settings,
        stage_cut,
        savepoint,
        start_requests,
        table_shape,
    )
    found = list(dict.fromkeys(each for module in modules for each in vars(module).values() if isinstance(each, type)))
    found = [each for each in found if issubclass(each, Part)]
    return [each for each in found if each not in (Part, Document)]


def heading(model: type[Part]) -> str:
    snake = re.sub(r"(?<=[a-z])(?=[A-Z])", "_", model.__name__).lower()
    return f"`{model.kind if issubclass(model, Document) else snake}`"


def documented(title: str) -> dict[str, dict[str, str]]:
    return {
        row.cells["name"].strip("`"): row.cells for row in table_rows(PAGE) if row.heading == title and "required" in row.cells
    }


def json_types(annotation: Any) -> Iterator[str]:
    """Yields the names that the page may use for a field's type."""
    if get_origin(annotation) in (Union, types.UnionType):
        for argument in get_args(annotation):
            yield from json_types(argument)
        return
    annotation = getattr(annotation, "__supertype__", annotation)
    origin = get_origin(annotation) or annotation
    if origin is type(None):
        yield "null"
    elif origin is Literal:
        yield "string"
    elif origin is tuple:
        yield f"array of {' or '.join(json_types(get_args(annotation)[0]))}"
    elif isinstance(origin, type) and issubclass(origin, Part):
        yield heading(origin)
    elif isinstance(origin, type) and issubclass(origin, Enum):
        yield "string"
    else:
        yield JSON_TYPES.get(origin, "string")


@pytest.mark.parametrize("model", models(), ids=lambda model: model.__name__)
def test_the_description_of_every_field_matches_the_code(model: type[Part]) -> None:
    fields = {name: field for name, field in model.model_fields.items() if name != "nonce"}
    described = documented(heading(model))
    assert list(described) == list(fields)
    for name, field in fields.items():
        shown = re.sub(r"\[(`\w+`)\]\([^)]*\)", r"\1", described[name]["type"])
        assert (name, shown) == (name, " or ".join(json_types(field.annotation)))
        assert (name, described[name]["required"]) == (name, "yes" if field.is_required() else "no")


def test_every_document_has_requirements_for_writers_and_readers() -> None:
    titles = PAGE.read_text().split("\n## ")
    sections = {title.split("\n", 1)[0]: title for title in titles}
    for model in models():
        if issubclass(model, Document):
            section = sections[heading(model)]
            assert "### Writer Requirements" in section
            assert "### Reader Requirements" in section
            assert "MUST" in section


def test_the_page_describes_no_document_that_does_not_exist() -> None:
    known = {heading(model) for model in models()}
    named = [title for title in headings(PAGE, 2) + headings(PAGE, 3) if title.startswith("`")]
    assert set(named) == known


def test_the_product_can_read_the_example_document() -> None:
    (example,) = blocks(PAGE, "json")
    assert decode(PipelineDocument, example.text.encode(), str(example)).name == "views"
