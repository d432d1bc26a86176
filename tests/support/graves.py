"""A table of deleted keys without Spark. delta-rs writes burials and folds."""

import random
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pyarrow as pa
from deltalake import CommitProperties, DeltaTable, PostCommitHookProperties, Transaction

from spark_jobs.checkpoint.savepoint_files import OwnTable
from spark_jobs.protocol.errors import StreamPipelineError
from spark_jobs.protocol.ids import AppId, CheckpointId
from spark_jobs.publication import deleted_keys
from spark_jobs.publication.delta_rs import open_table
from spark_jobs.publication.verification import _of_table
from spark_jobs.storage.local import LocalFiles
from spark_jobs.storage.system import System
from tests.support.systems import quick

APP = AppId("pipeline/incarnation/sink")
SCHEMA = pa.schema([("id", pa.int64()), ("seq", pa.int64())])
NO_HOOKS = PostCommitHookProperties(create_checkpoint=False, cleanup_expired_logs=False)
KEYS = 60
Keys = dict[int, int]


class Keeper:
    """Folds the table with delta-rs."""

    def compact(self, uri: str) -> None:
        DeltaTable(uri).optimize.compact(target_size=1_000_000, post_commithook_properties=NO_HOOKS)

    def checkpoint(self, uri: str) -> None:
        DeltaTable(uri).create_checkpoint()


@dataclass
class Graves:
    """The table, and the deleted keys that it must remember, computed independently."""

    path: Path
    expected: Keys = field(default_factory=dict)
    checkpoint: int = 0
    """The newest checkpoint that was buried and is public."""

    @classmethod
    def made(cls, path: Path) -> "Graves":
        DeltaTable.create(path, SCHEMA, configuration={"delta.enableExpiredLogCleanup": "false"})
        return cls(path)

    def bury(self, deletes: Keys, *, public: bool = True) -> None:
        """Records the deletes of the next checkpoint, as a publication does. Without deletes it writes no file."""
        number = self.checkpoint + 1
        if deletes and (open_table(self.path.as_uri()).transaction_version(APP) or 0) < number:
            source = pa.table({"id": list(deletes), "seq": list(deletes.values())}, SCHEMA)
            merge = DeltaTable(self.path).merge(
                source,
                "t.id = s.id",
                source_alias="s",
                target_alias="t",
                commit_properties=CommitProperties(app_transactions=[Transaction(APP, number)]),
                post_commithook_properties=NO_HOOKS,
            )
            merge.when_matched_update_all("s.seq > t.seq").when_not_matched_insert_all().execute()
        if public:
            self.checkpoint = number
            self.expected |= {key: max(seq, self.expected.get(key, seq)) for key, seq in deletes.items()}

    def keep_small(self, system: System | None = None, keeper: Keeper | None = None) -> bool:
        """Folds the table if that is due, as after a publication. Returns True if it was folded."""
        files = LocalFiles(self.path, system) if system else quick(self.path)
        due = deleted_keys.is_due(files)
        if due:
            deleted_keys.fold(files, self.path.as_uri(), APP, CheckpointId(self.checkpoint), keeper or Keeper())
        return due

    def rounds(self, count: int, seed: int = 0) -> Iterator[int]:
        """Buries some keys in each round, and none in some rounds."""
        chance = random.Random(seed)
        for number in range(self.checkpoint, self.checkpoint + count):
            some = chance.sample(range(KEYS), chance.choice((0, 1, 1, 3)))
            self.bury({key: number + chance.randrange(-20, 20) for key in some})
            yield number

    def files(self) -> tuple[int, int]:
        """Returns the number of files in the log, and the number of other files."""
        log = [path for path in (self.path / "_delta_log").iterdir() if path.is_file()]
        return len(log), len(list(self.path.glob("*.parquet")))

    def assert_right(self, at: Path | None = None, expected: Keys | None = None) -> None:
        """Checks that the table remembers each key once, also for a reader without hints."""
        path = at or self.path
        (path / "_delta_log/_last_checkpoint").unlink(missing_ok=True)
        rows = DeltaTable(path).to_pyarrow_table().to_pylist()
        assert len(rows) == len({row["id"] for row in rows})
        assert {row["id"]: row["seq"] for row in rows} == (self.expected if expected is None else expected)
        assert not [damage for damage in _of_table(self.own(at)) if isinstance(damage, StreamPipelineError)]

    def own(self, at: Path | None = None) -> OwnTable:
        return OwnTable(quick(at or self.path), "tombstones/sink")

    def becomes_due(self) -> None:
        """Buries keys until the table is due for a fold."""
        while not deleted_keys.is_due(quick(self.path)):
            self.bury({1: self.checkpoint})

    @property
    def version(self) -> int:
        return open_table(self.path.as_uri()).facts.version
