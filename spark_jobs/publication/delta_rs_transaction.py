"""The transaction of delta-rs into a public table."""

from collections.abc import Iterable, Mapping
from typing import Any

from spark_jobs.protocol.documents import SinkCut
from spark_jobs.protocol.ids import AppId, CheckpointId
from spark_jobs.publication.delta_rs import OpenTable


class DeltaRsTransaction:
    """The state of a table when it was opened, and the one transaction that can follow.

    See :class:`spark_jobs.publication.transactions.Transaction`.
    """

    def __init__(self, table: OpenTable, app: AppId) -> None:
        self.table, self._app = table, app

    def publish(
        self,
        cut: SinkCut,
        lines: Iterable[Mapping[str, Any]],
        version: CheckpointId,
        commit_info: Mapping[str, Any],
        *,
        replace: bool,
    ) -> None:
        """Implements the protocol. A merge reads rows of the table, so any commit since it was opened is a conflict."""
        if cut.merge is None:
            self.table.commit((line["add"] for line in lines), self._app, version, commit_info, replace=replace)
            return
        from spark_jobs.publication.delta_rs_merge import publish_merge  # pyarrow: only where it is needed

        publish_merge(self.table, cut, list(lines), self._app, version, commit_info)

    def close(self, version: CheckpointId, commit_info: Mapping[str, Any]) -> None:
        self.table.commit((), self._app, version, commit_info)
