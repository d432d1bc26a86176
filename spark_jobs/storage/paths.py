"""Checks that paths have one meaning for all readers."""

import re
import unicodedata

from spark_jobs.protocol.errors import InvalidParameterError

UNFINISHED = re.compile(r"\..*\.tmp", re.DOTALL)
"""Matches names of unfinished files, which only their writers see."""
_AMBIGUOUS = re.compile(r"[%#?*\[\]{}\\:\x00-\x1f\x7f\ud800-\udfff]")
"""Matches characters that Hadoop, fsspec and delta-rs read differently in a URL: escapes, patterns, and ends of a path."""
_UNSEEN_KINDS = frozenset({"Cc", "Cf", "Cn", "Co", "Zl", "Zp", "Zs"})
_UNSEEN = re.compile(r"[\u034f\u115f\u1160\u17b4\u17b5\u180b-\u180f\u2800\u3164\ufe00-\ufe0f\uffa0\U000e0100-\U000e01ef]")
"""Matches other invisible characters."""


def check_root(root: str) -> None:
    """Refuses a root that the parts of a pipeline would read differently, or that looks like another one.

    Raises:
        InvalidParameterError: The root has such a character, a name that begins or ends with a blank, or the name ``None``.
    """
    if found := _AMBIGUOUS.search(root):
        raise InvalidParameterError(
            f"The path {root!r} has the character {found[0]!r}, which Spark, fsspec and delta-rs read differently.",
            remedy="Use a path of letters, digits, spaces and any of / . _ - + = , @ ~",
            path=root,
            found=found[0],
        )
    for character in root:
        if character != " " and (unicodedata.category(character) in _UNSEEN_KINDS or _UNSEEN.match(character)):
            raise _unclear(root, f"the invisible character U+{ord(character):04X}")
    for name in root.split("/"):
        if name != name.strip():
            raise _unclear(root, f"the name {name!r}, which begins or ends with a blank")
        if name == "None":
            raise _unclear(root, "the name 'None', which a template writes for a missing value")


def _unclear(root: str, has: str) -> InvalidParameterError:
    return InvalidParameterError(
        f"The path {root!a} has {has}.",
        remedy="Correct the path, or the template that makes it.",
        path=root,
    )


def parts_below(path: str, url: str) -> list[str]:
    """Returns the parts of a path that is relative to a root.

    Raises:
        InvalidParameterError: The path is empty, leads out of the root, or names an unfinished file.
    """
    parts = path.split("/")
    if "\0" in path or any(part in ("", ".", "..") or UNFINISHED.fullmatch(part) for part in parts):
        raise InvalidParameterError(
            f"{path!r} is not the path of a file below {url}.",
            remedy="Give a relative path with one / between its parts, without '.', '..' and names like '.x.tmp'.",
            path=path,
        )
    return parts
