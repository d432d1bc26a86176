"""The commits that this package makes itself: the bytes of the log's next version."""

import json
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from spark_jobs.protocol.codec import canonical
from spark_jobs.publication.table_log import ROW_TRACKING_DOMAIN, ROW_TRACKING_MARK, TableState

_ROW_TRACKING, _SUSPENDED = "rowTracking", "delta.rowTrackingSuspended"
_IN_COMMIT_TIMESTAMPS = "delta.enableInCommitTimestamps"


def append_commit(
    after: TableState, commit_info: Mapping[str, Any], txn: Mapping[str, Any], adds: Iterable[Mapping[str, Any]]
) -> bytes:
    """Returns the commit that adds files to a table and advances the version of an app id.

    With row tracking each file gets the first of its row ids, and the commit the highest id that is taken.

    Args:
        after: State of the table at the version before.
        commit_info: Delta's ``commitInfo``, with a ``timestamp``.
        txn: Delta's ``txn``.
        adds: Delta's ``add`` actions, with the number of rows in their statistics.
    """
    added = [{**add, "dataChange": True} for add in adds]
    tracked = added and _ROW_TRACKING in after.features and not _is_set(after, _SUSPENDED)
    actions = _with_row_ids(after, added) if tracked else ({"add": add} for add in added)
    return commit_of(after, commit_info, [{"txn": txn}, *actions])


def commit_of(after: TableState, commit_info: Mapping[str, Any], actions: Iterable[Mapping[str, Any]]) -> bytes:
    """Returns the commit of some actions. With in-commit timestamps it gets a time that is later than that of the commit before.

    Args:
        after: State of the table at the version before.
        commit_info: Delta's ``commitInfo``, with a ``timestamp``.
        actions: All other actions of the commit.
    """
    info = dict(commit_info)
    if _is_set(after, _IN_COMMIT_TIMESTAMPS):
        # Without the commit before only its checkpoint is left: then it is older than the retention of the log.
        earliest = 0 if after.in_commit_timestamp is None else after.in_commit_timestamp + 1
        info["inCommitTimestamp"] = max(info["timestamp"], earliest)
    return b"".join(canonical(action) + b"\n" for action in ({"commitInfo": info}, *actions))


def _with_row_ids(after: TableState, adds: Iterable[Mapping[str, Any]]) -> Iterator[Mapping[str, Any]]:
    """Yields the actions that add files to a table with row tracking, and last the highest row id."""
    highest = after.highest_row_id
    for add in adds:
        yield {"add": {**add, "baseRowId": highest + 1, "defaultRowCommitVersion": after.version + 1}}
        highest += int(json.loads(add["stats"])["numRecords"])
    configuration = canonical({ROW_TRACKING_MARK: highest}).decode()
    yield {"domainMetadata": {"domain": ROW_TRACKING_DOMAIN, "configuration": configuration, "removed": False}}


def _is_set(state: TableState, name: str) -> bool:
    return state.configuration.get(name, "false").lower() == "true"
