"""The publication of an upsert by delta-rs, beside the bare merge of delta-rs."""

import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
from deltalake import DeltaTable, write_deltalake

from benchmarks.figures import Better, Figure, Kind, Tell, measured_in_turn
from benchmarks.live import remove
from benchmarks.site import Site
from spark_jobs.protocol.documents import SinkMode
from tests.support.merge_site import MergeSite

KIND = Kind("publication of an upsert", "seconds for 1,000 keys", Better.LESS, "ours, without a JVM", "the merge of delta-rs")
_COLUMNS = {"id": "long", "seq": "long", "value": "double"}
_KEYS = 1_000


def figures(site: Site, *, quick: bool, tell: Tell) -> Iterator[Figure]:
    """Ours reads and orders the staged rows, merges them with the transaction of the checkpoint, and syncs the new files."""
    for rows in (1_000, 1_000_000) if quick else (1_000, 1_000_000, 5_000_000):
        directory = site.new()
        tables = _Tables(directory, rows)
        yield measured_in_turn(
            KIND,
            f"into {rows:,} rows",
            ours=tables.published_s,
            plain=tables.merged_s,
            turns=1 if quick else 3,
            tell=tell,
            goal=0.5,
        )
        tables.check()
        remove(directory)


class _Tables:
    """Two tables with the same rows, which get the same changes."""

    def __init__(self, directory: Path, rows: int) -> None:
        self._rows, self._changes = rows, {"ours": 0, "plain": 0}
        self._site = MergeSite(directory / "ours", SinkMode.UPSERT, _COLUMNS, keys=["id"], sequence_by="seq")
        self._plain = str(directory / "plain")
        for table in (self._site.uri, self._plain):
            write_deltalake(table, _changed(np.arange(rows), 0), mode="append")

    def published_s(self) -> float:
        staged = self._site.stage(self._next("ours"))
        began_s = time.monotonic()
        self._site.publish([staged])
        return time.monotonic() - began_s

    def merged_s(self) -> float:
        changes = self._next("plain")
        began_s = time.monotonic()
        merge = DeltaTable(self._plain).merge(changes, "t.id = s.id", source_alias="s", target_alias="t")
        merge.when_matched_update_all("s.seq > t.seq").when_not_matched_insert_all().execute()
        return time.monotonic() - began_s

    def check(self) -> None:
        """Both tables have the same rows."""
        found = [
            DeltaTable(table).to_pyarrow_table().sort_by("id").select(list(_COLUMNS)) for table in (self._site.uri, self._plain)
        ]
        if found[0] != found[1]:
            raise AssertionError("the tables differ")

    def _next(self, way: str) -> pa.Table:
        """Returns the next changes: half of their keys are new."""
        self._changes[way] += 1
        seq = self._changes[way]
        old = np.random.default_rng(seq).choice(self._rows, _KEYS // 2, replace=False)
        new = np.arange(self._rows + seq * _KEYS, self._rows + seq * _KEYS + _KEYS // 2)
        return _changed(np.concatenate([old, new]), seq)


def _changed(ids: "np.ndarray[tuple[int], np.dtype[np.int64]]", seq: int) -> pa.Table:
    return pa.table({"id": ids, "seq": np.full(len(ids), seq), "value": ids * 0.5 + seq})
