"""A pipeline whose home and tables are in S3, for tests without Spark."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any
from urllib.parse import unquote

from spark_jobs.protocol.ids import SinkName
from spark_jobs.storage.files import Files
from spark_jobs.storage.local import LocalFiles
from spark_jobs.storage.open import open_place
from spark_jobs.storage.table_uris import spark_path, table_files, table_uri
from tests.support.delta_logs import Action, commits
from tests.support.opened_tables import copy_all, with_log
from tests.support.staged_pipeline import HOURLY, Row, StagedPipeline


class PipelineInS3(StagedPipeline):
    """Its tables and staged files are made in directories, and copied into the store."""

    def __init__(self, store: str, directory: Path, home: str = "home") -> None:
        super().__init__(open_place(f"{store}/{home}"), directory)
        self._store = store
        self._made: dict[str, LocalFiles] = {}
        """By the URI of a table in the store the directory in which its files are made."""

    def make_table(self, sink: SinkName = HOURLY, **options: Any) -> str:
        super().make_table(sink, **(options | {"partition_by": ()}))
        self.tables[sink] = self._copied(sink)
        return self.tables[sink]

    def make_channel(self, name: str) -> str:
        super().make_channel(name)
        return self._copied(name)

    def stage(
        self, sink: SinkName, rows: Sequence[Row], batch: int = 0, *, prefix: str = "", uri: str | None = None
    ) -> list[dict[str, Any]]:
        """Stages a file for each row."""
        there = uri or self.tables[sink]
        made = self._made[there]
        own = made.local().as_uri()
        lines = [line for row in rows for line in super(PipelineInS3, self).stage(sink, [row], batch, prefix=prefix, uri=own)]
        copy_all(made, table_files(there), [unquote(line["add"]["path"]) for line in lines])
        return lines

    def staged(self, sink: SinkName) -> tuple[Files, list[str]]:
        """Returns the directory of a table and the files in it that no commit names."""
        files = table_files(self.tables[sink])
        return files, [path for path in files.paths() if "part-" in path]

    def _copied(self, name: str) -> str:
        """Copies a table that was made in a directory into the store. Returns its URI there."""
        uri, made = table_uri(f"{self._store}/tables/{name}"), LocalFiles(self.directory / name)
        copy_all(made, table_files(uri), made.paths())
        self._made[uri] = made
        return uri

    def log(self, sink: SinkName = HOURLY) -> list[list[Action]]:
        with with_log(spark_path(self.tables[sink])) as table:
            return commits(table)
