"""The mark of a work directory that is begun before its attempt.

An attempt that was cut off, and goes on, deletes the work directories of earlier attempts. The mark tells it that a directory is for a
later one. It is the first file of the directory, so whoever finds the directory finds the mark.
"""

import json

from spark_jobs.protocol.codec import canonical
from spark_jobs.protocol.errors import NotFoundError
from spark_jobs.protocol.ids import AttemptNumber
from spark_jobs.storage.files import Files

MARK = "begun_early.json"


def mark_early(work: Files, attempt: AttemptNumber) -> None:
    """Marks a new work directory for an attempt that has not begun. Durable on return."""
    work.create(MARK, canonical({"attempt": attempt}) + b"\n")


def is_for_later(work: Files, live: AttemptNumber) -> bool:
    """Returns True if a work directory was begun for an attempt that is not lower than the live one.

    A damaged mark counts as none: then the directory is treated as any old one.
    """
    try:
        return int(json.loads(work.read(MARK))["attempt"]) >= live
    except (NotFoundError, ValueError, LookupError, TypeError):
        return False
