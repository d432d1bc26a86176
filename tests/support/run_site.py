"""The site of a run of :mod:`tests.support.small_pipeline`, or of another pipeline with the same parameters, and the files of the run."""

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

from deltalake import DeltaTable
from pyspark.sql import SparkSession

from spark_jobs import Pipeline
from spark_jobs.checkpoint.store import CheckpointStore
from spark_jobs.control.attempts import Attempts
from spark_jobs.control.home import DividedHome, cache_name
from spark_jobs.protocol.documents import OnEnd, OnRewind, Publish, StartResponse
from spark_jobs.protocol.ids import InputName, RunId
from spark_jobs.protocol.start_requests import StartOptions
from spark_jobs.runtime.launch import launch
from spark_jobs.runtime.spark.session import start_session
from spark_jobs.storage.files import Files
from spark_jobs.storage.local import LocalFiles
from spark_jobs.storage.open import open_place
from spark_jobs.storage.system import System
from tests.support import delta_logs, small_pipeline
from tests.support.kafka_broker import jars
from tests.support.object_store import S3_JARS
from tests.support.permissions import obey_permissions
from tests.support.shared_application import SHARED_APPLICATION, session_jars
from tests.support.short_jvm import FEW_ROWS
from tests.support.small_pipeline import SINKS, answer

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
    """A directory with a home and a warehouse. The events have a directory of their own, so that many sites can share them."""

    directory: Path
    events: Path
    pipeline: Pipeline = small_pipeline.pipeline
    adopt_offsets: Mapping[str, str] = field(default_factory=dict)
    store: str | None = None
    """The place of the home's documents, if it is not :attr:`home`, which is then the cache."""

    @property
    def home(self) -> Path:
        return self.directory / (cache_name(self._documents().url) if self.store else "home")

    @property
    def parameters(self) -> dict[str, Any]:
        return {"events": str(self.events), "warehouse": str(self.directory / "warehouse")}

    def files(self, system: System | None = None) -> Files:
        here = LocalFiles(self.home, system)
        return DividedHome(self._documents(system), here) if self.store else here

    def _documents(self, system: System | None = None) -> Files:
        assert self.store is not None
        return LocalFiles(self.store, system) if self.store.startswith("/") else open_place(self.store)

    @property
    def options(self) -> list[str]:
        """Returns the options that give a driver the home."""
        if self.store is None:
            return [f"--home={self.home}"]
        client = [f"--jars={','.join(jars(S3_JARS))}"] if self.store.startswith("s3:") else []
        return [f"--home={self.store}", f"--work-root={self.directory}", *client]

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
            system: The operating system of the storage port, for the home and for the tables' directories.
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
            open_directory=lambda uri: LocalFiles(unquote(urlsplit(uri).path), system),
        )

    def table(self, sink: str) -> Path:
        return self.directory / "warehouse" / sink

    def public(self) -> dict[str, list[tuple[Any, ...]]]:
        """Returns the rows of every table, sorted. A table that does not exist is empty."""
        return {sink: _rows(self.table(sink)) for sink in SINKS}

    def publications(self) -> dict[str, int]:
        """Returns the number of Delta transactions that have published into each table."""
        return {sink: len(delta_logs.publications(self.table(sink))) for sink in SINKS}

    def checkpoints(self) -> list[int]:
        return [int(k) for k in CheckpointStore(self.files()).taken()]

    def attempts(self) -> int:
        return len(Attempts(self.files()).numbers())

    def orphans(self) -> list[Path]:
        """Returns the Parquet files in the tables' directories that neither a table nor a private log names."""
        named = {path for log in self._logs() for entry in delta_logs.commits(log) for path in _added(entry, log)}
        folded = {name for path in self.home.glob("work/*/stages/*/log/segments/*") for name in _folded(path)}
        staged = [*self.directory.glob("warehouse/**/*.parquet"), *self.home.glob("channels/**/*.parquet")]
        return sorted(path for path in staged if path not in named and path.name not in folded and "_delta_log" not in path.parts)

    def _logs(self) -> list[Path]:
        return [log.parent for log in self.directory.rglob("_delta_log")]

    def assert_answered(self, days: Iterable[int] = (0,), *, checkpoints: int = 1) -> None:
        """Checks that every row is public once, by one transaction per checkpoint."""
        assert self.public() == answer(days)
        assert self.publications() == dict.fromkeys(SINKS, checkpoints)
        assert self.checkpoints() == list(range(1, checkpoints + 1))


def _rows(path: Path) -> list[tuple[Any, ...]]:
    if not DeltaTable.is_deltatable(str(path)):
        return []
    table = DeltaTable(path).to_pyarrow_table()
    names = [name for name in ("origin", "day", "events", "until") if name in table.column_names]
    return sorted(zip(*(table[name].to_pylist() for name in names), strict=True))


def _added(entry: list[dict[str, Any]], table: Path) -> list[Path]:
    paths = [unquote(action["add"]["path"]) for action in entry if "add" in action]
    return [Path(path.removeprefix("file://")) if path.startswith("file:") else table / path for path in paths]


def _folded(segment: Path) -> list[str]:
    """Returns the names of the files in a segment, which are unique."""
    lines = [json.loads(line) for line in segment.read_text().splitlines()]
    return [unquote(add["path"]).rpartition("/")[2] for line in lines[:-1] for add in line["adds"]]  # the last line is their hash
