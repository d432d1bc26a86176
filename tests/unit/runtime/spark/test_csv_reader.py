"""The line of a CSV file that is its header."""

import pytest

from spark_jobs.runtime.spark.csv_reader import first_line


@pytest.mark.parametrize("end", ["\n", "\r\n", "\r"])
def test_the_header_is_the_first_line_that_is_not_blank(end: str) -> None:
    assert first_line(f" {end}{end}a,b{end}1,2{end}", None, None, is_whole=True) == "a,b"


def test_comments_before_the_header_are_skipped() -> None:
    assert first_line("#one\n #two\na,b\n", "#", None, is_whole=True) == "a,b"


def test_the_header_ends_at_the_line_separator_of_the_reader() -> None:
    assert first_line("a,\nb;1,2;", None, ";", is_whole=True) == "a,\nb"


def test_the_last_line_of_a_whole_file_needs_no_end() -> None:
    assert first_line("a,b", None, None, is_whole=True) == "a,b"


def test_a_line_without_an_end_in_a_partial_read_is_no_header() -> None:
    assert first_line("\na,b", None, None, is_whole=False) is None


@pytest.mark.parametrize("text", ["", "\n \n", "#only\n"])
def test_a_file_without_a_line_has_no_header(text: str) -> None:
    assert first_line(text, "#", None, is_whole=True) is None
