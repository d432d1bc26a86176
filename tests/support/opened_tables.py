"""Opens tables as any reader with delta-rs does, in a directory or in a store of the tests."""

from deltalake import DeltaTable

IN_A_STORE = {"allow_http": "true"}
"""Options of delta-rs for a table in a store. It ignores them for a directory."""


def opened(table: str, version: int | None = None) -> DeltaTable:
    return DeltaTable(table, version=version, storage_options=IN_A_STORE)
