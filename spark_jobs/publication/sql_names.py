"""Quotes names for Spark's SQL, with any characters."""

from os import PathLike


def quoted(name: str) -> str:
    """Returns an identifier for exactly this name."""
    return f"`{name.replace('`', '``')}`"


def delta_at(path: str | PathLike[str]) -> str:
    """Returns the name of the Delta table in a directory."""
    return f"delta.{quoted(str(path))}"
