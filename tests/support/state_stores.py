"""Spark's checkpoint of a query as Spark 4.2 writes it, without Spark: commit and offset log, and RocksDB stores in format 2."""

import json
import zipfile
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from uuid import UUID

import pyarrow as pa

from spark_jobs.runtime.state.state_lineage import StoreVersion
from tests.support.damage import write_checksum


def store_id(number: int) -> str:
    return str(UUID(int=number))


def utf(text: str) -> bytes:
    return len(text).to_bytes(2, "big") + text.encode()


def lz4_blocks(data: bytes, block_bytes: int = 1 << 15) -> bytes:
    """Compresses data like ``net.jpountz.lz4.LZ4BlockOutputStream``. A block that does not get smaller is stored as it is."""
    found = b""
    for begin in range(0, len(data), block_bytes):
        block = data[begin : begin + block_bytes]
        packed = pa.Codec("lz4_raw").compress(block, asbytes=True)
        method, stored = (0x20, packed) if len(packed) < len(block) else (0x10, block)
        sizes = len(stored).to_bytes(4, "little") + len(block).to_bytes(4, "little")
        found += b"LZ4Block" + bytes([method | 5]) + sizes + bytes(4) + stored
    return found + b"LZ4Block" + bytes([0x15]) + bytes(12)


def changelog(before: Iterable[StoreVersion], records: bytes = b"records", format_version: str = "v4") -> bytes:
    lineage = json.dumps([{"version": item.version, "checkpointUniqueId": item.id} for item in before])
    return utf(format_version) + utf(lineage) + records


@dataclass
class Store:
    """One RocksDB store. Versions are written one after the other. ``ids`` is the lineage."""

    directory: Path
    ids: list[StoreVersion] = field(default_factory=list)
    snapshots: int = 0

    def write(self, number: int) -> StoreVersion:
        """Writes the changelog of the next version."""
        self.directory.mkdir(parents=True, exist_ok=True)
        item = StoreVersion(len(self.ids) + 1, store_id(number))
        first = max((n for n, each in enumerate(self.ids) if (self.directory / each.snapshot).exists()), default=0)
        (self.directory / item.changelog).write_bytes(lz4_blocks(changelog(self.ids[first:])))
        (self.directory / f"{item.changelog}.crc").write_text("{}")
        for name in (item.changelog, f"{item.changelog}.crc"):
            write_checksum(self.directory / name)
        self.ids.append(item)
        return item

    def snapshot(self, item: StoreVersion, files: Iterable[str] = ()) -> list[str]:
        """Writes the snapshot of a version, with one new file and the files of earlier snapshots. Returns the names of all of them."""
        self.snapshots += 1
        names = [*files, f"{self.snapshots:06d}-{store_id(10_000 + self.snapshots)}.sst"]
        (self.directory / "SSTs").mkdir(parents=True, exist_ok=True)
        for name in names:
            (self.directory / "SSTs" / name).write_text(name)
            write_checksum(self.directory / "SSTs" / name)
        body = {"sstFiles": [{"localFileName": name[:6], "dfsSstFileName": name, "sizeBytes": 1} for name in names], "numKeys": 1}
        with zipfile.ZipFile(self.directory / item.snapshot, "w") as archive:
            archive.writestr("CURRENT", "MANIFEST-000005")
            archive.writestr("metadata", "v1\n" + json.dumps(body))
        write_checksum(self.directory / item.snapshot)
        return names


@dataclass
class SparkCheckpoint:
    """The checkpoint directory of a query with one operator. Each batch writes a version of every store."""

    root: Path
    stores: tuple[tuple[str, ...], ...] = (("0",), ("1",))
    source: str = '{"logOffset":%d}'
    batches: int = 0
    by_name: dict[str, Store] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.by_name = {name: Store(self.root / "state/0" / name) for names in self.stores for name in names}
        self.write("metadata", json.dumps({"id": "the-query"}))
        self.write("state/0/_metadata/metadata", "v1\n{}")
        self.write("state/0/0/_metadata/schema", "the schema")

    def write(self, path: str, data: str) -> None:
        """Writes a file, with Hadoop's checksum next to it."""
        target = self.root / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.with_name(f"{target.name}.tmp").write_text(data)
        target.with_name(f"{target.name}.tmp").replace(target)
        write_checksum(target)

    def batch(self, *, commits: bool = True) -> int:
        """Runs one more batch, which reads one more file."""
        number, self.batches = self.batches, self.batches + 1
        name = f"{number}.compact" if number % 10 == 9 else str(number)
        self.write(f"sources/0/{name}", f'v1\n{{"path":"file:///in/{number}","timestamp":1,"batchId":{number}}}')
        line = self.source % number if "%" in self.source else self.source
        self.write(f"offsets/{number}", f'v1\n{{"batchWatermarkMs":0,"batchTimestampMs":1,"conf":{{}}}}\n{line}')
        for partition, names in enumerate(self.stores):
            for place, store in enumerate(names):
                self.by_name[store].write(1_000 * (number + 1) + 10 * partition + place)
        if commits:
            self.commit(number)
        return number

    def commit(self, number: int) -> None:
        ids = {"0": [[self.by_name[name].ids[number].id for name in names] for names in self.stores]}
        self.write(f"commits/{number}", "v2\n" + json.dumps({"nextBatchWatermarkMs": 0, "stateUniqueIds": ids}))

    def snapshot(self, number: int) -> None:
        """Writes a snapshot of every store after a batch, as the maintenance thread does."""
        for store in self.by_name.values():
            before = [path.name for path in (store.directory / "SSTs").glob("*.sst")]
            store.snapshot(store.ids[number], sorted(before))
