"""The names of unfinished files, and which of these files are leftovers of a crash.

An unfinished file is called ``.<name>.<random>.tmp``. The next write of the same name deletes leftovers of a crash. Any write into
their directory deletes leftovers that are older than a day.
"""

import re
from collections.abc import Container
from uuid import uuid4

_OURS = re.compile(r"\.(.*)\.[0-9a-f]{12}\.tmp", re.DOTALL)
_LEFTOVER_AGE_S = 24 * 3600.0


def unfinished_name(name: str) -> str:
    """Returns a new name for an unfinished file of a name."""
    return f".{name}.{uuid4().hex[:12]}.tmp"


def is_leftover(unfinished: str, complete: Container[str], age_s: float) -> bool:
    """Returns True if an unfinished file is a leftover of a crash.

    Args:
        unfinished: The name of the unfinished file.
        complete: The names of complete files in its directory. Their unfinished files are not needed.
        age_s: The age of the unfinished file.
    """
    ours = _OURS.fullmatch(unfinished)
    return (ours is not None and ours[1] in complete) or age_s > _LEFTOVER_AGE_S
