"""Names as Spark's SQL takes them, whatever characters they have."""

from os import PathLike


def quoted(name: str) -> str:
    """An identifier for exactly this name."""
    return f"`{name.replace('`', '``')}`"


def delta_at(path: str | PathLike[str]) -> str:
    """The Delta table in a directory."""
    return f"delta.{quoted(str(path))}"
