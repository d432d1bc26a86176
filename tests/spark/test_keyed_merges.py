"""After any publications, a table with keys equals DuckDB's answer over all changes, in any order, with any cuts and deaths."""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from random import Random
from typing import Any

import pyarrow as pa
import pytest
from delta.tables import DeltaTable
from pyspark.sql import SparkSession

from spark_jobs.protocol.documents import SinkMode
from spark_jobs.protocol.merge_cut import MergeCut
from spark_jobs.publication.merges import KeyedMerge, keyed_merge
from tests.support.keyed_changes import DELETES, SCHEMA, Row, changes_of_one_case, inserted, upserted, versions

pytestmark = pytest.mark.spark

CASES = 200
"""The number of cases. They share the tables, under keys of their own, because a MERGE costs the same for one case as for all."""
KEYS = ("number", "pair", "part")
VERSIONS = ("valid_from", "valid_to", "is_current")
CHANGES = pa.schema([pa.field("number", pa.int64()), *SCHEMA, pa.field("batch", pa.int64())])
ROWS = "number LONG, pair LONG, part STRING, seq LONG, amount DOUBLE, gone BOOLEAN, name STRING"
TABLES = {SinkMode.HISTORY: f"{ROWS}, valid_from LONG, valid_to LONG, is_current BOOLEAN"}
GRAVES = "number LONG, pair LONG, part STRING, seq LONG"

Change = dict[str, Any]


class Site:
    """A table, the deleted keys of its pipeline, and publications into the table."""

    def __init__(self, spark: SparkSession, root: Path, mode: SinkMode, *, sequence: bool = True) -> None:
        self.spark, self.mode, self.root = spark, mode, root
        remembers = sequence and mode is not SinkMode.INSERT
        self.rule = MergeCut(
            keys=KEYS,
            sequence_by="seq" if sequence else None,
            apply_as_deletes=DELETES if remembers else None,
            staged_in="",
            tombstones=str(root / "graves") if remembers else None,
            version_columns=VERSIONS if mode is SinkMode.HISTORY else (),
        )
        self.foretold = Counter[Row]()
        """The rows of the table that the last publication should have left."""
        for name, columns in {"table": TABLES.get(mode, ROWS), "graves": GRAVES}.items():
            spark.sql(f"CREATE TABLE delta.`{root / name}` ({columns}) USING delta")

    def table(self, name: str = "table") -> DeltaTable:
        return DeltaTable.forPath(self.spark, str(self.root / name))

    def merge(self, changes: list[Change], *, replace: bool = False) -> KeyedMerge:
        events = self.spark.createDataFrame(pa.Table.from_pylist(changes, CHANGES))
        schema = self.table().toDF().schema
        names = {name: name for name in events.columns if name != "batch"}
        return keyed_merge(self.mode, self.rule, events, "batch", replace, schema, names)

    def publish(self, changes: list[Change], *, dies: bool = False, replace: bool = False) -> None:
        """Merges as the publisher does, and foretells the result. With ``dies``, it stops between the two merges."""
        merge, graves = self.merge(changes, replace=replace), None
        before = self.table("graves").toDF() if self.rule.tombstones else None
        self.foretold = Counter(map(tuple, merge.merged(self.table().toDF(), before).collect()))
        if self.rule.tombstones:
            merge.bury(self.table("graves"))
            graves = self.spark.read.format("delta").load(self.rule.tombstones)
        if not dies:
            merge.merge_into(self.table(), graves)

    def files(self, condition: str = "true") -> set[str]:
        """Returns the files with rows that meet the condition."""
        rows = self.spark.read.format("delta").load(str(self.root / "table")).where(condition)
        return {row["file_path"] for row in rows.select("_metadata.file_path").collect()}

    def rows(self) -> Counter[Row]:
        return Counter(map(tuple, self.table().toDF().collect()))


def _cut(draw: Random, count: int) -> list[list[Change]]:
    """Returns the changes of all cases by publication, in random order."""
    publications: list[list[Change]] = [[] for _ in range(count)]
    for number in range(CASES):
        for change in changes_of_one_case(draw):
            draw.choice(publications).append({"number": number, **change})
    batch = 0
    for publication in publications:
        draw.shuffle(publication)
        for place, change in enumerate(publication):
            batch += place % 50 == 0
            change["batch"] = batch
    return publications


def _published(site: Site, draw: Random, publications: list[list[Change]]) -> Iterator[list[Change]]:
    """Publishes one list after the other, with deaths and repetitions. Yields the changes that each publication made public."""
    ahead = [*publications]
    while ahead:
        changes = ahead.pop(0)
        if draw.random() < 0.5:
            site.publish(changes, dies=draw.random() < 0.8)
            if ahead and draw.random() < 0.5:  # the next attempt finds another checkpoint
                changes = changes + ahead.pop(0)
        site.publish(changes)
        yield changes


def _assert_same(found: Counter[Row], expected: Counter[Row], changes: list[Change]) -> None:
    wrong = sorted({row[0] for row in (found - expected) + (expected - found)})
    if wrong:
        number = wrong[0]
        listed = "\n".join(str(change) for change in changes if change["number"] == number)
        pytest.fail(
            f"{len(wrong)} cases are wrong, such as {number}:\n{listed}\nfound "
            f"{sorted((row for row in found if row[0] == number), key=str)}\nexpected "
            f"{sorted((row for row in expected if row[0] == number), key=str)}"
        )


Answer = Callable[[pa.Table], Counter[Row]]
MODES: Mapping[str, tuple[SinkMode, bool, Answer]] = {
    "upsert": (SinkMode.UPSERT, True, lambda changes: upserted(changes, KEYS)),
    "insert": (SinkMode.INSERT, True, lambda changes: inserted(changes, "publication, seq NULLS FIRST", KEYS)),
    "insert by batch": (SinkMode.INSERT, False, lambda changes: inserted(changes, "batch", KEYS)),
    "history": (SinkMode.HISTORY, True, lambda changes: versions(changes, KEYS)),
}
SEEDS = [(1, 2), *(pytest.param(seed, 4, marks=pytest.mark.nightly) for seed in range(2, 26))]


# Upserts and inserts with a sequence are merged in both ways, and into equal tables, in test_merges_both_ways.py. Histories by example
# are in test_a_history_has_the_versions_that_its_changes_give.
@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.nightly if name != "insert by batch" else []) for name in MODES]
)
@pytest.mark.parametrize(("seed", "publications"), SEEDS)
def test_a_table_with_keys_equals_the_answer_over_all_changes(
    spark: SparkSession, tmp_path: Path, name: str, seed: int, publications: int
) -> None:
    mode, sequence, answer = MODES[name]
    site, draw, public = Site(spark, tmp_path, mode, sequence=sequence), Random(seed), list[Change]()
    for number, changes in enumerate(_published(site, draw, _cut(draw, publications))):
        public += [{**change, "publication": number} for change in changes]
        table = pa.Table.from_pylist(public, pa.schema([*CHANGES, pa.field("publication", pa.int64())]))
        _assert_same(site.rows(), answer(table), public)
        _assert_same(site.foretold, answer(table), public)
    assert site.rows().total() > CASES // 2, "a table with few rows proves nothing"


def change(seq: int, name: str | None, number: int = 0) -> Change:
    """Returns a change of a key. A change without a name is a delete."""
    rest = {"pair": 1, "part": "x", "gone": name is None, "amount": None, "batch": 1}
    return {"number": number, "seq": seq, "name": name} | rest


Version = tuple[str | None, int, int | None]


def shown(site: Site, number: int = 0) -> list[Version]:
    """Returns the versions of a key: the name, and the start and the end of its validity."""
    rows = site.table().toDF().where(f"number = {number}").select("name", *VERSIONS).collect()
    assert all(row["is_current"] is (row["valid_to"] is None) for row in rows)
    return sorted((row["name"], row["valid_from"], row["valid_to"]) for row in rows)


EXAMPLES: Mapping[str, tuple[list[list[tuple[int, str | None]]], list[Version]]] = {
    "a late change splits a version": (
        [[(1, "a"), (9, "c")], [(5, "b")]],
        [("a", 1, 5), ("b", 5, 9), ("c", 9, None)],
    ),
    "a late delete ends the version that it falls into": (
        [[(1, "a"), (9, "c")], [(5, None)]],
        [("a", 1, 5), ("c", 9, None)],
    ),
    "a delete counts that comes before its insert": (
        [[(5, None)], [(1, "a")]],
        [("a", 1, 5)],
    ),
    "a delete that an earlier one has hidden counts again when a change comes between": (
        [[(1, "a"), (9, None)], [(5, None)], [(7, "b")]],
        [("a", 1, 5), ("b", 7, 9)],
    ),
    "a change that comes again makes no new version": (
        [[(1, "a"), (5, "b")], [(1, "a"), (5, "b")]],
        [("a", 1, 5), ("b", 5, None)],
    ),
    "of two changes at one time the greater one counts, whichever came first": (
        [[(1, "b"), (5, "a")], [(1, "a"), (5, "b")]],
        [("b", 1, 5), ("b", 5, None)],
    ),
    "a delete counts more than a change at the same time": (
        [[(1, "a"), (5, "b")], [(5, None)], [(5, "c")]],
        [("a", 1, 5)],
    ),
}


@pytest.fixture(scope="module")
def examples(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Site:
    """All examples in one table, each with a key of its own."""
    site = Site(spark, tmp_path_factory.mktemp("examples"), SinkMode.HISTORY)
    for publication in range(3):
        changes = [
            change(seq, name, number)
            for number, (publications, _) in enumerate(EXAMPLES.values())
            for seq, name in (publications[publication] if publication < len(publications) else [])
        ]
        site.publish(changes)
    return site


@pytest.mark.parametrize("example", EXAMPLES)
def test_a_history_has_the_versions_that_its_changes_give(examples: Site, example: str) -> None:
    assert shown(examples, list(EXAMPLES).index(example)) == EXAMPLES[example][1]


# test_foreign_writers.py has rows of other writers by day.
@pytest.mark.nightly
def test_rows_of_other_writers_are_merged_with_the_staged_rows(spark: SparkSession, tmp_path: Path) -> None:
    """The other writer's rows come after a publication, and between the read of the table and the MERGE."""
    site = Site(spark, tmp_path, SinkMode.HISTORY)
    site.publish([change(1, "a"), change(1, "a", number=1)])
    spark.sql(f"UPDATE delta.`{tmp_path / 'table'}` SET valid_to = 4, is_current = false WHERE number = 0")
    merge, seen = site.merge([change(9, "c"), change(9, "c", number=1)]), site.table()
    spark.sql(f"INSERT INTO delta.`{tmp_path / 'table'}` VALUES (1, 1, 'x', 5, NULL, false, 'b', 5, NULL, true)")
    merge.merge_into(seen, spark.read.format("delta").load(str(tmp_path / "graves")))
    assert shown(site) == [("a", 1, 4), ("c", 9, None)], "what others have ended stays ended"
    assert shown(site, 1) == [("a", 1, 5), ("b", 5, 9), ("c", 9, None)]


def test_only_files_of_changed_keys_are_rewritten(spark: SparkSession, tmp_path: Path) -> None:
    site = Site(spark, tmp_path, SinkMode.HISTORY)
    site.publish([change(1, "a")])
    site.publish([change(1, "b", number=1)])
    before = site.files()
    site.publish([change(1, "b", number=1), change(5, "c", number=1)])
    assert len(before) == 2
    assert before & site.files() == site.files("number = 0")


@pytest.mark.parametrize(
    "mode", [SinkMode.HISTORY, *(pytest.param(mode, marks=pytest.mark.nightly) for mode in (SinkMode.UPSERT, SinkMode.INSERT))]
)
def test_a_publication_that_replaces_leaves_nothing_of_earlier_rows_and_deletes(
    spark: SparkSession, tmp_path: Path, mode: SinkMode
) -> None:
    site = Site(spark, tmp_path, mode)
    site.publish([change(1, "a"), change(3, "a", number=1), change(9, None, number=2)])
    site.publish([change(2, "b"), change(4, "c", number=2)], replace=True)
    rows = site.table().toDF().select("number", "seq", "name").collect()
    assert sorted(map(tuple, rows)) == [(0, 2, "b"), (2, 4, "c")]
    assert mode is SinkMode.INSERT or site.table("graves").toDF().count() == 0
