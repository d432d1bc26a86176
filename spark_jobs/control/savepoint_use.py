"""Finds the users of a savepoint in a home, for which it must be kept."""

from spark_jobs.control.channel import Channel
from spark_jobs.control.checkpoint_requests import CheckpointRequests
from spark_jobs.home.manifests import newest_manifest
from spark_jobs.home.savepoint_place import savepoint_place
from spark_jobs.protocol.documents import RestoreFrom
from spark_jobs.protocol.ids import IncarnationId
from spark_jobs.storage.files import Files, real_url
from spark_jobs.storage.open import open_place


def needed_by(home: Files, savepoint: Files) -> list[str]:
    """Returns descriptions of the users of a savepoint: open requests for it, and a start that has not copied it into the home yet.

    Writes nothing. Another process may need it a moment later: a start with a missing savepoint fails before anything is written.

    Raises:
        CorruptDocumentError: A document of an attempt, or its request, is torn or altered.
    """
    open_requests = CheckpointRequests(home).open()
    found = [
        f"{each.request}, which is not answered yet" for each in open_requests if _is_same(savepoint_place(home, each), savepoint)
    ]
    channel = Channel(home)
    unclaimed = channel.unclaimed()
    if unclaimed and _is_named(unclaimed.restore, savepoint):
        found.append(f"{unclaimed.request}, which no driver has begun to answer")
    newest = channel.attempts.latest()
    if newest is not None and not _has_checkpoint(home, newest.incarnation):
        begun_by = channel.request(newest.begun_by or newest.request)
        if _is_named(newest.restore, savepoint) or _is_named(begun_by.restore, savepoint):
            found.append(f"attempt {newest.attempt}, which began with it and has no checkpoint of its own yet")
    return found


def _is_named(restore: RestoreFrom | None, savepoint: Files) -> bool:
    return restore is not None and _is_same(open_place(restore.savepoint), savepoint)


def _is_same(one: Files, other: Files) -> bool:
    return real_url(one) == real_url(other)


def _has_checkpoint(home: Files, incarnation: IncarnationId) -> bool:
    """Returns True if the newest incarnation has a checkpoint. Then the newest checkpoint is its own."""
    head = newest_manifest(home)
    return head is not None and head.incarnation == incarnation
