"""The order of a Delta table's change data feed, as SQL expressions over its columns.

One commit may change a key several times: an update is a row with the old values and a row with the new ones, and a ``MERGE``, an
``INSERT OVERWRITE`` or a ``complete`` sink deletes and inserts. Within a commit what goes comes before what stays. An update that changes a
key lets the old key go.
"""

FEED_DELETES = "_change_type IN ('delete', 'update_preimage')"
"""Whether a row of a feed says what goes: for ``apply_as_deletes`` of an upsert."""

FEED_SEQUENCE = f"_commit_version * 2 + CAST(NOT ({FEED_DELETES}) AS BIGINT)"
"""Where a row of a feed comes among those of its key: for ``sequence_by`` of an upsert."""
