"""Which staged files are orphans."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import cast

import pytest

from spark_jobs.protocol.ids import BatchId
from spark_jobs.runtime.private_log import PrivateLog
from spark_jobs.runtime.stage import StageRun
from spark_jobs.runtime.sweep import orphans, sweep
from tests.support.private_logs import begun, staged
from tests.support.systems import quick

PREFIX = "0123456789abcdef-"


@dataclass
class Table:
    path: Path


@dataclass
class Swept:
    """As much of a stage as the sweep looks at."""

    root: Path
    file_prefix: str = PREFIX
    log: PrivateLog = field(init=False)
    table: Table = field(init=False)

    def __post_init__(self) -> None:
        self.log, self.table = begun(quick(self.root)), Table(self.root / "table")

    def stage(self, batch: int, *, dies: bool = False) -> Path:
        """A batch's file; without a version of the log if the driver dies between the two."""
        name = f"{PREFIX}{batch}-part-{'orphan' if dies else 'named'}.parquet"
        path = self.table.path / "day=a b" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"rows")
        if not dies:
            self.log.append(staged(batch, f"day=a%20b/{name}"))
        return path

    @property
    def run(self) -> StageRun:
        return cast(StageRun, self)


@pytest.fixture
def stage(tmp_path: Path) -> Swept:
    return Swept(tmp_path)


def test_what_the_log_does_not_name_is_an_orphan_and_goes(stage: Swept) -> None:
    left, named = stage.stage(0, dies=True), stage.stage(0)
    under_way = stage.stage(1, dies=True)
    assert sweep([stage.run]) == [left, under_way]
    assert [named.exists(), left.exists(), under_way.exists()] == [True, False, False]


def test_files_of_others_are_no_orphans(stage: Swept) -> None:
    stage.stage(0)
    for name in ("part-0.parquet", "fedcba9876543210-0-part-0.parquet", f"{PREFIX}part-without-a-batch.parquet"):
        (stage.table.path / name).write_bytes(b"rows")
    assert orphans(stage.run) == []


def test_folding_makes_no_orphan_of_a_named_file_and_hides_no_other(stage: Swept) -> None:
    for batch in range(6):
        stage.stage(batch)
    left = stage.stage(1, dies=True)
    stage.log.fold(BatchId(1))
    stage.log.fold(BatchId(3))
    assert orphans(stage.run) == [left]


def test_a_file_of_a_forgotten_batch_is_never_deleted(stage: Swept) -> None:
    """It may be public, and the log knows it no more."""
    public = [stage.stage(batch) for batch in range(6)]
    stage.log.fold(BatchId(1))
    stage.log.fold(BatchId(3))
    stage.log.forget(BatchId(1), lambda batch: None)
    left = stage.stage(2, dies=True)
    assert stage.log.oldest() == 2
    assert sweep([stage.run]) == [left]
    assert all(path.exists() for path in public)
