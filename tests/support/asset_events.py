"""The events of assets that a task emits."""

from typing import Any

from airflow.sdk import Asset


class Events:
    """Records the events of one outlet."""

    def __init__(self) -> None:
        self.added: list[tuple[str, Any]] = []

    def add(self, asset: Asset, extra: Any) -> None:
        self.added.append((asset.uri, extra))
