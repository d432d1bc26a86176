"""Every kind of table holds the right rows after two rounds, with any publisher and any reader."""

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from functools import cache, partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pyspark
import pytest
from deltalake import write_deltalake
from packaging.version import Version
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from spark_jobs import DeltaSink, Pipeline, read_staged
from spark_jobs.protocol.delta_log import DELTA_LOG
from spark_jobs.protocol.documents import Publisher, SinkMode
from spark_jobs.publication.delta_rs import log_of, open_table
from spark_jobs.publication.publisher import publish
from spark_jobs.publication.transactions import Publishers
from spark_jobs.storage.local import LocalFiles
from spark_jobs.storage.open import open_place
from spark_jobs.storage.table_uris import spark_path, table_files, table_uri
from tests.spark.conftest import Site
from tests.spark.rows import Rows, answer, assert_same
from tests.support import delta_logs
from tests.support.engines import ENGINES, ReaderError
from tests.support.opened_tables import copy_all
from tests.support.places import IN_A_STORE, ON_A_DISK
from tests.support.run_site import SMALL
from tests.support.table_features import DELTA_RS, FEATURES, MODES, READERS, SPARK, Feature

pytestmark = pytest.mark.spark

REGIONS = ["a b", "100%", "%41", "ü/ñ=&?#", "x'y\"z", "back\\slash", " ", "日本", None]
SCHEMA = pa.schema(
    {
        "id": pa.int64(),
        "seq": pa.int64(),
        "region": pa.string(),
        "day": pa.date32(),
        "price": pa.decimal128(10, 2),
        "at": pa.timestamp("us", "UTC"),
        "value": pa.int32(),
        "name": pa.string(),
    }
)
BATCHES = ((0, 1), (2,))
"""The batches of each round: a publication of several batches, and a publication into a table with rows."""
ROUNDS = len(BATCHES)
BATCH_ROWS = 20
EVERY_TABLE = frozenset({"appendOnly", "invariants"})
"""The table features of a table made without options, with the oldest protocol that Delta uses for new tables."""
MADE = [feature for feature in FEATURES if feature.since <= Version(pyspark.__version__)]
"""The features that this Spark's Delta has."""
BY_KEY = {feature.key: feature for feature in MADE}
PLACES = (ON_A_DISK, IN_A_STORE)
"""The places of the home and of the tables."""


def _batch(number: int) -> pa.Table:
    """Returns twenty rows with twenty keys. The last batch repeats half of the keys of the batch before."""
    first = number * BATCH_ROWS - (number // 2) * (BATCH_ROWS // 2)
    rows = []
    for key in range(first, first + BATCH_ROWS):
        kind = key % len(REGIONS)
        rows.append(
            {
                "id": key,
                "seq": number * BATCH_ROWS + key % 3,
                "region": REGIONS[kind],
                "day": None if kind == 1 else date(2024, 2, 28) + timedelta(days=kind),
                "price": None if kind == 2 else Decimal(kind * 1001).scaleb(-2),
                "at": None if kind == 3 else datetime(2024, 2, 28, kind, 59, 59, 999_999, tzinfo=UTC),
                "value": key - 10 * number,
                "name": f"name {key % 5}",
            }
        )
    return pa.Table.from_pylist(rows, SCHEMA)


@dataclass(frozen=True)
class Made:
    """The tables of one mode after both rounds."""

    mode: SinkMode
    site: Site
    publishers: Mapping[str, Any]
    """The publishers of each round and sink."""
    staged: Mapping[str, Rows]
    """For each sink: the rows that an auditor has read before the first publication. Only appends have them."""
    read: dict[str, Rows] = field(default_factory=dict)
    """For each sink: the rows that Spark has read already."""

    def table(self, feature: Feature) -> str:
        """Returns the path or the URL of a table."""
        return self.site.table(feature.key)

    def path(self, feature: Feature) -> Path:
        """Returns the directory of a table; for a table in a store, a directory with a copy of it."""
        directory = self.site.tables / feature.key
        if self.site.store and not directory.exists():
            there = table_files(table_uri(self.table(feature)))
            copy_all(there, LocalFiles(directory), there.paths())
        return directory

    def publisher(self, feature: Feature) -> Publisher:
        """Returns the publisher of a sink. In a store delta-rs does not find deletion vectors under a path with a space."""
        unreadable = self.site.store is not None and "deletionVectors" in feature.protocol
        return SPARK if unreadable and self.mode is SinkMode.UPSERT else feature.published_by(self.mode)

    def rows(self, round: int) -> DataFrame:
        """Returns the input of a round."""
        return self.site.spark.createDataFrame(pa.concat_tables(_batch(number) for number in BATCHES[round]))

    def returned(self, feature: Feature) -> DataFrame:
        """Returns the rows that a stage returns in the first round, with the columns that its table adds."""
        return self.rows(0).selectExpr(*(feature.answer or feature.staged))

    def expected(self, feature: Feature, rounds: int = ROUNDS) -> Rows:
        """Returns the expected rows from batch SQL over the whole input."""
        columns = feature.answer or feature.staged
        rows = self.returned(feature)
        if feature.held and self.mode is not SinkMode.COMPLETE:
            rows = rows.union(self.site.spark.sql(f"SELECT * FROM VALUES {feature.held}"))
        if rounds > 1:
            if self.mode is not SinkMode.COMPLETE:
                rows = rows.where(f"NOT ({feature.deleted})")
            rows = rows.union(self.rows(1).selectExpr(*columns))
        if self.mode is not SinkMode.APPEND:
            rows.createOrReplaceTempView("all_rows")
            query = "SELECT *, row_number() OVER (PARTITION BY id ORDER BY seq DESC) AS place FROM all_rows"
            rows = self.site.spark.sql(query).where("place = 1").drop("place")
        return answer(rows)

    def found(self, feature: Feature) -> Rows:
        """Returns the rows that Spark reads."""
        if feature.key not in self.read:
            table = self.site.spark.read.format("delta").load(self.table(feature))
            self.read[feature.key] = answer(table.selectExpr(*feature.names))
        return self.read[feature.key]

    def changes(self, feature: Feature, version: int) -> Rows:
        """Returns the changes of a version in the change data feed."""
        feed = self.site.spark.read.format("delta").option("readChangeFeed", "true")
        feed = feed.option("startingVersion", version).option("endingVersion", version)
        return answer(feed.load(self.table(feature)).selectExpr("_change_type", *feature.names))

    def row_ids(self, feature: Feature, version: int) -> list[tuple[int, int | None]]:
        """Returns the keys of a version's rows, and their row ids."""
        table = self.site.spark.read.format("delta").option("versionAsOf", version).load(self.table(feature))
        return [(row["id"], row["row_id"]) for row in table.select("id", "_metadata.row_id").collect()]


def _pipeline(mode: SinkMode, site: Site, source: Path, features: Sequence[Feature]) -> Pipeline:
    pipeline = Pipeline(f"{mode.value}_tables", on_end="suspend")
    options: dict[SinkMode, dict[str, Any]] = {
        SinkMode.UPSERT: {"keys": ["id"], "sequence_by": "seq"},
        SinkMode.APPEND: {"target_file_size": "10mb"},  # packs the first round, which has two batches, and not the second one
    }

    @pipeline.source(bounded=True)
    def rows(spark: SparkSession) -> DataFrame:
        return spark.readStream.format("delta").option("maxFilesPerTrigger", 1).load(str(source))

    def stage_of(feature: Feature) -> Callable[[DataFrame], DataFrame]:
        def stage(rows: DataFrame) -> DataFrame:
            if mode is SinkMode.COMPLETE:
                columns = [name for name in rows.columns if name != "id"]
                columns.sort(key=lambda name: name != "seq")
                rows = rows.groupBy("id").agg(F.max(F.struct(*columns)).alias("last")).select("id", "last.*")
            return rows.selectExpr(*feature.staged)

        return stage

    for feature in features:
        sink = DeltaSink(site.table(feature.key), mode=mode, **options.get(mode, {}), **(feature.sink or {}))
        pipeline.stage(sink=sink, name=feature.key)(stage_of(feature))
    return pipeline


def _make(mode: SinkMode, site: Site, features: Sequence[Feature]) -> Made:
    spark, source = site.spark, site.home.parent / "source"
    for feature in features:
        table = f"delta.`{site.table(feature.key)}`"
        if feature.sink is None:
            spark.sql(feature.create(table))
        if feature.held:
            spark.sql(f"INSERT INTO {table} VALUES {feature.held}")
        for statement in feature.before:
            spark.sql(statement.format(table=table))
    publishers: dict[str, Any] = {}
    staged: dict[str, Rows] = {}
    for round in range(ROUNDS):
        for number in BATCHES[round]:
            write_deltalake(str(source), _batch(number), mode="append")
        if round:
            for feature in features:
                for statement in feature.between:
                    spark.sql(statement.format(table=f"delta.`{site.table(feature.key)}`"))
        audited = mode is SinkMode.APPEND and round == 0
        site.run(_pipeline(mode, site, source, features), publish="external" if audited else None)
        if audited:
            for feature in features:
                frame = read_staged(spark, site.place, feature.key)
                staged[feature.key] = answer(frame.selectExpr(*feature.names))
            publish(open_place(site.place), publishers=Publishers(lambda: spark))
        publishers |= {f"{round} {name}": cut.publisher for name, cut in site.manifest().sinks.items()}
    return Made(mode, site, publishers, staged)


def _everyday(place: str, mode: SinkMode, feature: Feature) -> bool:
    """Returns True for a table that every run makes.

    Those in a store wait for the night. What differs there has tests by day: tests/spark/test_keyed_sinks.py makes a table in a store, and
    tests/unit/publication/test_tables_in_stores.py chooses a publisher.
    """
    return place == ON_A_DISK and mode in feature.everyday


Make = Callable[[SinkMode, Feature], Made]
MakeAt = Callable[[str, SinkMode, Feature], Made]


@pytest.fixture(scope="module")
def make_at(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> MakeAt:
    """Makes the tables of a place and a mode once, for the features of every day or for the others."""
    session = spark.newSession()
    for key, value in SMALL.items():
        session.conf.set(key, value)

    @cache
    def made(place: str, mode: SinkMode, everyday: bool) -> Made:
        features = [feature for feature in MADE if mode in feature.modes and _everyday(place, mode, feature) is everyday]
        root = tmp_path_factory.mktemp(mode.value)
        if place == ON_A_DISK:
            return _make(mode, Site(session, root), features)
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("XDG_CACHE_HOME", str(root / "cache"))
            return _make(mode, Site(session, root, f"{request.getfixturevalue('store')}/{root.name}"), features)

    return lambda place, mode, feature: made(place, mode, _everyday(place, mode, feature))


@pytest.fixture
def make(make_at: MakeAt, request: pytest.FixtureRequest) -> Make:
    """Makes tables at the place of the case."""
    return partial(make_at, request.param)


def _cases(features: Sequence[Feature], modes: Iterable[SinkMode] = MODES) -> pytest.MarkDecorator:
    """Runs a test with each feature, in each of its modes, at each place."""
    cases = [
        pytest.param(
            mode,
            feature,
            place,
            id="-".join([mode.value, feature.key, *([] if place == ON_A_DISK else [place])]),
            marks=[
                *([] if _everyday(place, mode, feature) else [pytest.mark.nightly]),
                *([] if place == ON_A_DISK else [pytest.mark.stores]),
            ],
        )
        for mode in modes
        for feature in features
        for place in PLACES
        if mode in feature.modes
    ]
    return pytest.mark.parametrize(("mode", "feature", "make"), cases, indirect=["make"])


def _only(key: str) -> pytest.MarkDecorator:
    return _cases([BY_KEY[key]])


every_table = _cases(MADE)


@every_table
def test_the_table_holds_the_rows_of_the_batch_answer(mode: SinkMode, feature: Feature, make: Make) -> None:
    made = make(mode, feature)
    assert_same(made.found(feature), made.expected(feature))


@every_table
def test_the_manifest_names_the_publisher_of_each_table(mode: SinkMode, feature: Feature, make: Make) -> None:
    made = make(mode, feature)
    found = {made.publishers[f"{round} {feature.key}"] for round in range(ROUNDS)}
    assert found == {made.publisher(feature)}


@every_table
@pytest.mark.parametrize("reader", sorted(READERS))
def test_other_engines_that_support_the_feature_read_the_same_rows(
    reader: str, mode: SinkMode, feature: Feature, make: Make
) -> None:
    made = make(mode, feature)
    asked = feature.elsewhere or feature.names
    places = [feature.names.index(name) for name in asked]
    rows: Rows = Rows()
    for row, count in made.found(feature).items():
        rows[tuple(row[place] for place in places)] += count
    names = [name.strip("`") for name in asked]
    if reader not in feature.readers:
        with pytest.raises((ReaderError, AssertionError)):
            assert_same(ENGINES[reader](made.path(feature), names), rows)
        return
    assert_same(ENGINES[reader](made.path(feature), names), rows)


@every_table
def test_each_table_has_exactly_the_features_of_its_kind(mode: SinkMode, feature: Feature, make: Make) -> None:
    table = make(mode, feature).path(feature)
    assert delta_logs.features(table) == EVERY_TABLE | feature.protocol
    configuration = delta_logs.newest(table, "metaData")["configuration"]
    set_by_us = {key: value for key, value in feature.properties.items() if not key.startswith("delta.feature.")}
    assert configuration | set_by_us == configuration
    assert len(delta_logs.publications(table)) == ROUNDS


every_appended_table = _cases(MADE, [SinkMode.APPEND])


@every_appended_table
def test_staged_rows_are_read_as_the_table_will_hold_them(mode: SinkMode, feature: Feature, make: Make) -> None:
    made = make(mode, feature)
    assert_same(made.staged[feature.key], answer(made.returned(feature)))


@every_appended_table
def test_the_files_of_two_batches_are_packed_into_one_for_each_partition(mode: SinkMode, feature: Feature, make: Make) -> None:
    table = make(mode, feature).path(feature)
    first, second = (delta_logs.commits(table)[version] for version in delta_logs.publications(table))
    packed = [json.dumps(action["add"]["partitionValues"]) for action in first if "add" in action]
    assert len(set(packed)) == len(packed) > 0
    assert any("add" in action for action in second)


@_only("not_null")
def test_columns_are_declared_not_null(mode: SinkMode, feature: Feature, make: Make) -> None:
    schema = json.loads(delta_logs.newest(make(mode, feature).path(feature), "metaData")["schemaString"])
    assert [field["name"] for field in schema["fields"] if not field["nullable"]] == ["id", "seq", "value"]


@_only("deletion_vectors")
def test_the_second_round_is_published_onto_files_with_deletion_vectors(mode: SinkMode, feature: Feature, make: Make) -> None:
    table = make(mode, feature).path(feature)
    second = delta_logs.publications(table)[1]
    assert any("deletionVector" in file for file in delta_logs.files(table, second - 1))


@_only("v2_checkpoints")
def test_the_second_round_is_published_onto_a_v2_checkpoint(mode: SinkMode, feature: Feature, make: Make) -> None:
    table = make(mode, feature).path(feature)
    second = delta_logs.publications(table)[1]
    assert [version for version in delta_logs.v2_checkpoints(table) if 0 < version < second]


@_only("type_widening")
def test_rows_are_published_onto_files_of_the_narrow_type(mode: SinkMode, feature: Feature, make: Make) -> None:
    made = make(mode, feature)
    first = delta_logs.publications(made.path(feature))[0]
    narrow = [made.path(feature) / file["path"] for file in delta_logs.files(made.path(feature), first - 1)]
    assert {pq.read_schema(file).field("value").type for file in narrow} == {pa.int16()}


@_only("change_data_feed")
@pytest.mark.parametrize("round", range(ROUNDS))
def test_a_publication_is_one_version_of_the_change_data_feed(mode: SinkMode, feature: Feature, round: int, make: Make) -> None:
    made = make(mode, feature)
    version = delta_logs.publications(made.path(feature))[round]
    assert_same(made.changes(feature, version), _changes(made, feature, round))


def _changes(made: Made, feature: Feature, round: int) -> Rows:
    """Returns the changes of a round, from the batch answers before and after it."""
    before, after = made.expected(feature, round) if round else Rows(), made.expected(feature, round + 1)
    if made.mode is SinkMode.COMPLETE:
        return _typed("delete", before) + _typed("insert", after)
    gone, new = before - after, after - before
    known = {row[0] for row in before}
    updated = Rows({row: count for row, count in new.items() if made.mode is SinkMode.UPSERT and row[0] in known})
    return _typed("update_preimage", gone) + _typed("update_postimage", updated) + _typed("insert", new - updated)


def _typed(change: str, rows: Rows) -> Rows:
    return Rows({(change, *row): count for row, count in rows.items()})


@_cases([feature for feature in MADE if feature.appended_by is DELTA_RS], [SinkMode.APPEND])
def test_a_log_checkpoint_that_is_written_without_a_jvm_has_everything_of_the_commits(
    mode: SinkMode, feature: Feature, make: Make
) -> None:
    made = make(mode, feature)
    copy = _copied(table_uri(made.table(feature)), table_uri(made.site.table(f"copies/{feature.key}")))
    columns = [*feature.names, *(["_metadata.row_id"] if "rowTracking" in feature.protocol else [])]
    expected = answer(made.site.spark.read.format("delta").load(spark_path(copy)).selectExpr(*columns))
    open_table(copy).write_checkpoint()
    again = _copied(copy, table_uri(made.site.table(f"again/{feature.key}")))  # Spark has read the log of the first copy
    files = table_files(again).below(DELTA_LOG)
    *older, _ = (name for name in files.names("") if name.endswith(".json"))
    for name in [*older, *(name for name in files.names("") if name.endswith(".crc"))]:
        files.delete(name)
    assert_same(answer(made.site.spark.read.format("delta").load(spark_path(again)).selectExpr(*columns)), expected)
    before, after = (log_of(uri).newest() for uri in (copy, again))
    assert (after, after.highest_row_id, after.in_commit_timestamp) == (before, before.highest_row_id, before.in_commit_timestamp)


def _copied(table: str, copy: str) -> str:
    """Copies a table. Returns the URI of the copy."""
    there = table_files(table)
    copy_all(there, table_files(copy), there.paths())
    return copy


@_only("row_tracking")
def test_every_row_has_an_id_of_its_own_that_an_upsert_keeps(mode: SinkMode, feature: Feature, make: Make) -> None:
    made = make(mode, feature)
    before, after = (made.row_ids(feature, version) for version in delta_logs.publications(made.path(feature)))
    for rows in (before, after):
        ids = [row_id for _, row_id in rows]
        assert None not in ids
        assert len(set(ids)) == len(rows) > 0
    if mode is SinkMode.APPEND:
        assert set(after) > set(before)
    if mode is SinkMode.UPSERT:
        assert dict(after).items() >= dict(before).items()
        assert len(after) > len(before)


@_only("in_commit_timestamps")
def test_every_commit_has_a_timestamp_later_than_the_one_before(mode: SinkMode, feature: Feature, make: Make) -> None:
    commits = delta_logs.commits(make(mode, feature).path(feature))
    assert len(commits) > ROUNDS
    times = [commit[0]["commitInfo"]["inCommitTimestamp"] for commit in commits]
    assert all(earlier < later for earlier, later in pairwise(times))
