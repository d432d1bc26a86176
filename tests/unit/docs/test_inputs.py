"""The reference of inputs matches the tests."""

from collections import Counter
from collections.abc import Sequence

import pytest

from tests.support.input_cells import CELLS, LIVE_CELLS, Cell
from tests.support.input_page import PAGE, made


def test_the_page_has_the_tables_that_are_generated_from_the_tests() -> None:
    assert PAGE.read_text() == made(PAGE.read_text()), "python -m tests.support.input_page"


@pytest.mark.parametrize("cells", [CELLS, LIVE_CELLS], ids=["bounded", "live"])
def test_no_cell_is_listed_twice(cells: Sequence[Cell]) -> None:
    assert max(Counter((cell.source, cell.event) for cell in cells).values()) == 1
