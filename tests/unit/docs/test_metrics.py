"""The reference of metrics matches the table of metrics."""

from tests.support.metrics_page import PAGE, made


def test_the_page_has_the_table_of_metrics() -> None:
    assert PAGE.read_text() == made(PAGE.read_text()), "python -m tests.support.metrics_page"
