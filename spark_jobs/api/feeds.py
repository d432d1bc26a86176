"""The order of a Delta table's change data feed, as SQL expressions over its columns.

One commit may change a key several times. An update writes a row with the old values and a row with the new ones. A ``MERGE``, an
``INSERT OVERWRITE`` and a ``complete`` sink delete and insert rows. Within a commit, deleted rows and old values come before inserted rows
and new values. An update that changes a key deletes the old key.
"""

FEED_DELETES = "_change_type IN ('delete', 'update_preimage')"
"""True for deleted rows and for the old values of updated rows. Use it as ``apply_as_deletes`` of an upsert or a history."""

FEED_SEQUENCE = f"_commit_version * 2 + CAST(NOT ({FEED_DELETES}) AS BIGINT)"
"""Orders the rows of a key. Use it as ``sequence_by`` of an upsert or a history."""
