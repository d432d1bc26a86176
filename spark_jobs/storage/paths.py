"""Which paths mean the same to everybody who reads them."""

import re

from spark_jobs.protocol.errors import InvalidParameterError

UNFINISHED = re.compile(r"\..*\.tmp", re.DOTALL)
"""Names of files that somebody is still writing; nobody else sees them."""
_AMBIGUOUS = re.compile(r"[%#?*\[\]{}\\:\x00-\x1f\x7f\ud800-\udfff]")
"""What Hadoop, fsspec and delta-rs read differently in a URL: escapes, patterns, and the ends of a path."""


def check_root(root: str) -> None:
    """Refuses a root that the parts of a pipeline would read differently.

    Raises:
        InvalidParameterError: It has such a character.
    """
    if found := _AMBIGUOUS.search(root):
        raise InvalidParameterError(
            f"The path {root!r} has the character {found[0]!r}, which Spark, fsspec and delta-rs read differently.",
            safe="Nothing was written.",
            remedy="Use a path of letters, digits, spaces and any of / . _ - + = , @ ~",
            path=root,
            found=found[0],
        )


def parts_below(path: str, url: str) -> list[str]:
    """The parts of a path that is relative to a root.

    Raises:
        InvalidParameterError: It is empty, leads out of the root, or names an unfinished file.
    """
    parts = path.split("/")
    if "\0" in path or any(part in ("", ".", "..") or UNFINISHED.fullmatch(part) for part in parts):
        raise InvalidParameterError(
            f"{path!r} is not the path of a file below {url}.",
            safe="Nothing was read or written.",
            remedy="Give a relative path with one / between its parts, without '.', '..' and names like '.x.tmp'.",
            path=path,
        )
    return parts
