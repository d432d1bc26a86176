"""The reference of inputs says what the tests try."""

from collections import Counter

from tests.support.input_cells import CELLS
from tests.support.input_page import PAGE, made


def test_the_page_has_the_table_that_is_made_from_the_tests() -> None:
    assert PAGE.read_text() == made(PAGE.read_text()), "python -m tests.support.input_page"


def test_no_cell_is_there_twice() -> None:
    assert max(Counter((cell.source, cell.event) for cell in CELLS).values()) == 1
