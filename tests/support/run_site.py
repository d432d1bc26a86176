"""The site of a run of :mod:`tests.support.small_pipeline`, or of another pipeline with the same parameters, and the files of the run."""

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

from deltalake import DeltaTable
from pyspark.sql import SparkSession

from spark_jobs import Pipeline
from spark_jobs.checkpoint.checkpoint_store import CheckpointStore
from spark_jobs.control.attempts import Attempts
from spark_jobs.control.home import HomeInStore, cache_name
from spark_jobs.protocol.delta_log import DELTA_LOG
from spark_jobs.protocol.documents import OnEnd, OnRewind, Publish, StartResponse
from spark_jobs.protocol.ids import InputName, RunId
from spark_jobs.protocol.start_requests import StartOptions
from spark_jobs.runtime.launch import launch
from spark_jobs.runtime.spark.session import start_session
from spark_jobs.storage.files import Files
from spark_jobs.storage.local import LocalFiles
from spark_jobs.storage.open import open_place
from spark_jobs.storage.system import System
from spark_jobs.storage.table_uris import is_in_store, table_files
from tests.support import delta_logs, small_pipeline
from tests.support.kafka_broker import jars
from tests.support.object_store import S3_JARS
from tests.support.opened_tables import IN_A_STORE, opened, with_log
from tests.support.permissions import obey_permissions
from tests.support.shared_application import SHARED_APPLICATION, session_jars
from tests.support.short_jvm import FEW_ROWS
from tests.support.small_pipeline import SINKS, answer
from tests.support.systems import failing_with

APPLICATION = {"spark.master": "local[2]", "spark.driver.memory": "2g", "spark.ui.enabled": "false"} | FEW_ROWS
"""Settings of a driver's application."""
SMALL = {
    "spark.sql.shuffle.partitions": "1",
    "spark.sql.codegen.wholeStage": "false",
    "spark.databricks.delta.snapshotPartitions": "1",
}
"""Settings that make small runs fast. No guarantee depends on them."""


def small_session() -> SparkSession:
    """Returns a session for small runs. Other tests of this process have sessions of their own."""
    obey_permissions()
    session = start_session("tests", SHARED_APPLICATION, jars=session_jars()).newSession()
    for key, value in SMALL.items():
        session.conf.set(key, value)
    return session


@dataclass(frozen=True)
class RunSite:
    """A directory with a home and a warehouse, or a place in a store. The events have a directory of their own, for many sites to share."""

    directory: Path
    events: Path
    pipeline: Pipeline = small_pipeline.pipeline
    adopt_offsets: Mapping[str, str] = field(default_factory=dict)
    store: str | None = None
    """The place of the home's documents, if it is not :attr:`home`, which is then the cache."""
    bucket: str | None = None
    """The store that has the home's documents and the tables, at the path of :attr:`directory`. The directory then has the cache."""

    @property
    def place(self) -> str:
        """Returns the path or the URL below which the home's documents and the tables are."""
        return f"{self.bucket or ''}{self.directory}"

    @property
    def documents(self) -> str | None:
        """Returns the place of the home's documents. None: they are in :attr:`home`."""
        return f"{self.place}/home" if self.bucket else self.store

    @property
    def home(self) -> Path:
        return self.directory / (cache_name(self._documents().url) if self.documents else "home")

    @property
    def parameters(self) -> dict[str, Any]:
        return {"events": str(self.events), "warehouse": self.warehouse}

    def files(self, system: System | None = None) -> Files:
        here = LocalFiles(self.home, system)
        return HomeInStore(self._documents(system), here) if self.documents else here

    def _documents(self, system: System | None = None) -> Files:
        assert self.documents is not None
        return (
            LocalFiles(self.documents, system)
            if self.documents.startswith("/")
            else failing_with(open_place(self.documents), system)
        )

    @property
    def options(self) -> list[str]:
        """Returns the options that give a driver the home."""
        if self.documents is None:
            return [f"--home={self.home}"]
        client = [f"--jars={','.join(jars(S3_JARS))}"] if self.documents.startswith("s3:") else []
        return [f"--home={self.documents}", f"--work-root={self.directory}", *client]

    def run(
        self,
        run: str = "first",
        *,
        system: System | None = None,
        home: Files | None = None,
        on_end: OnEnd = OnEnd.DRAIN,
        publish: Publish | None = None,
        fresh: bool = False,
        on_rewind: OnRewind = OnRewind.REFUSE,
        full_refresh: Iterable[str] = (),
    ) -> StartResponse:
        """Runs the pipeline in this process.

        Args:
            run: The run id.
            system: The operating system of the storage port, for everything that is in directories.
            home: The home, if not on ``system``.
            on_end: The option of ``StartOptions``, as all that follow.
            publish: The policy of every sink.
            fresh: True for a fresh start.
            on_rewind: The treatment of public rows at a rewind.
            full_refresh: Tables that start over.
        """
        return launch(
            self.pipeline,
            home or self.files(system),
            self.parameters,
            StartOptions(
                run=RunId(run),
                on_end=on_end,
                publish=publish,
                fresh=fresh,
                on_rewind=on_rewind,
                adopt_offsets={InputName(source): directory for source, directory in self.adopt_offsets.items()},
                full_refresh=tuple(full_refresh),
            ),
            small_session,
            open_directory=partial(_open_table, system),
        )

    @property
    def warehouse(self) -> str:
        """Returns the path or the URL of the directory of the tables."""
        return f"{self.place}/warehouse"

    def table(self, sink: str) -> str:
        """Returns the path or the URL of a table."""
        return f"{self.warehouse}/{sink}"

    def public(self) -> dict[str, list[tuple[Any, ...]]]:
        """Returns the rows of every table, sorted. A table that does not exist is empty."""
        return {sink: _rows(self.table(sink)) for sink in SINKS}

    def publications(self, sinks: Iterable[str] = SINKS) -> dict[str, int]:
        """Returns the number of Delta transactions that have published into each table."""
        return {sink: len(self._publications(sink)) for sink in sinks}

    def _publications(self, sink: str) -> list[int]:
        with with_log(self.table(sink)) as table:
            return delta_logs.publications(table)

    def checkpoints(self) -> list[int]:
        return [int(k) for k in CheckpointStore(self.files()).taken()]

    def attempts(self) -> int:
        return len(Attempts(self.files()).numbers())

    def orphans(self) -> list[str]:
        """Returns the names of the Parquet files that are staged for tables and that neither a table nor a private log names."""
        paths = [(files, path) for files in map(open_place, {str(self.directory), self.place}) for path in files.paths()]
        named = {name for files, path in paths for name in _named(files, path)}
        staged = {_name(path) for _, path in paths if _is_staged(path)}
        return sorted(staged - named)

    def assert_answered(self, days: Iterable[int] = (0,), *, checkpoints: int = 1) -> None:
        """Checks that every row is public once, by one transaction per checkpoint, and that the newest checkpoint and its parent exist."""
        assert self.public() == answer(days)
        assert self.publications() == dict.fromkeys(SINKS, checkpoints)
        assert self.checkpoints()[-2:] == list(range(1, checkpoints + 1))[-2:]


def _open_table(system: System | None, uri: str) -> Files:
    return failing_with(table_files(uri), system) if is_in_store(uri) else LocalFiles(unquote(urlsplit(uri).path), system)


def _rows(table: str) -> list[tuple[Any, ...]]:
    if not DeltaTable.is_deltatable(table, storage_options=IN_A_STORE):
        return []
    found = opened(table).to_pyarrow_table()
    names = [name for name in ("origin", "day", "events", "until") if name in found.column_names]
    return sorted(zip(*(found[name].to_pylist() for name in names), strict=True))


def _is_staged(path: str) -> bool:
    directories = path.split("/")
    return path.endswith(".parquet") and bool({"warehouse", "channels"} & {*directories}) and DELTA_LOG not in directories


def _named(files: Files, path: str) -> list[str]:
    """Returns the names of the Parquet files that a commit or a segment of a log names. They are unique."""
    directory = path.rpartition("/")[0]
    if directory.endswith("/log/segments"):
        lines = [json.loads(line) for line in files.read(path).splitlines()]
        return [_name(unquote(add["path"])) for line in lines[:-1] for add in line["adds"]]  # the last line is their hash
    if directory.endswith(DELTA_LOG) and path.endswith(".json"):
        actions = [json.loads(line) for line in files.read(path).splitlines()]
        return [_name(unquote(action["add"]["path"])) for action in actions if "add" in action]
    return []


def _name(path: str) -> str:
    return path.rpartition("/")[2]
