"""A pipeline whose home or table is where a source reads is refused, by a start, by its plan and by ``validate``."""

import random
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import write_deltalake
from pyspark.sql import SparkSession

from spark_jobs import DeltaSink, Pipeline, RejectedError
from spark_jobs.home.places import Kind, Thing, check_apart, thing
from spark_jobs.home.source_places import source_places
from spark_jobs.protocol.ids import InputName
from spark_jobs.protocol.known_sources import KnownFiles
from spark_jobs.protocol.start_requests import StartOptions
from spark_jobs.publication.delta_jvm import java_class
from spark_jobs.runtime.launch import check, plan
from spark_jobs.runtime.spark.session import qualified_path
from spark_jobs.storage.local import LocalFiles
from tests.spark.conftest import Site
from tests.spark.rows import public_count

pytestmark = pytest.mark.spark


def copying(folder: str, table: Path, kind: str = "text", **source: Any) -> Pipeline:
    pipeline = Pipeline("copying")

    @pipeline.source(bounded=True, **source)
    def rows(spark: SparkSession):  # type: ignore[no-untyped-def]
        return spark.readStream.format(kind).load(folder)

    @pipeline.stage(sink=DeltaSink(str(table)))
    def copied(rows):  # type: ignore[no-untyped-def]
        return rows

    return pipeline


@pytest.mark.parametrize(
    ("read", "table", "overlap"),
    [
        ("in/a", "out", "home"),
        ("in/*", "out", "home"),
        ("*/{a,b}", "out", "home"),
        ("in/a", "in/a/out", "table"),
        ("*/*/*", "in", "table"),
    ],
)
def test_an_overlap_with_a_folder_or_a_pattern_is_refused_by_every_command(
    spark: SparkSession, tmp_path: Path, read: str, table: str, overlap: str
) -> None:
    (tmp_path / "in/a").mkdir(parents=True)
    (tmp_path / "in/a/rows.txt").write_text("one\n")
    site = Site(spark, tmp_path / ("in/a" if overlap == "home" else "."))
    pipeline = copying(f"{tmp_path}/{read}", tmp_path / table)
    graph, bound, files = pipeline.graph(), pipeline.bind({}), LocalFiles(site.home)
    for refused in (
        lambda: site.run(pipeline),
        lambda: plan(pipeline, files, {}, StartOptions(), lambda: spark),
        lambda: check(graph, bound, lambda: spark, files),
    ):
        with pytest.raises(RejectedError, match=rf"The {overlap} .* the source 'rows', file://{tmp_path}/"):
            refused()
    assert sorted(path.name for path in tmp_path.rglob("*")) == ["a", "in", "rows.txt"]


@pytest.mark.parametrize(("archive", "overlap"), [("out/read", "table"), ("home/read", "home")])
def test_an_archive_in_a_table_or_in_the_home_is_refused(site: Site, tmp_path: Path, archive: str, overlap: str) -> None:
    """A VACUUM of the table would delete the files that are kept there."""
    (tmp_path / "in").mkdir()
    (tmp_path / "in/rows.txt").write_text("one\n")
    archived = {"after_publication": "archive", "archive": str(tmp_path / archive)}
    pipeline = copying(str(tmp_path / "in"), tmp_path / "out", **archived)
    for refused in (
        lambda: site.run(pipeline),
        lambda: check(pipeline.graph(), pipeline.bind({}), lambda: site.spark, LocalFiles(site.home)),
    ):
        with pytest.raises(RejectedError, match=rf"The {overlap} .* is around the archive of source 'rows', file://{tmp_path}/"):
            refused()
    assert [path.name for path in tmp_path.iterdir()] == ["in"]


@pytest.mark.parametrize("partition_by", [[], ["value"]])
def test_a_table_may_be_where_a_pattern_finds_other_files_unless_it_is_partitioned(
    site: Site, tmp_path: Path, partition_by: list[str]
) -> None:
    """The directories of a table that is partitioned by names of files could end as the pattern does."""
    (tmp_path / "data/in").mkdir(parents=True)
    (tmp_path / "data/in/rows.csv").write_text("a.csv,1\n")
    pipeline = Pipeline("copying")
    pipeline.source(bounded=True, name="rows")(
        lambda spark: spark.readStream.schema("value string, n int").csv(f"{tmp_path}/data/*/*.csv")
    )
    sink = DeltaSink(str(tmp_path / "data/out"), partition_by=partition_by)
    pipeline.stage(name="copied", sink=sink)(lambda rows: rows)
    starts = (
        lambda: site.run(pipeline),
        lambda: check(pipeline.graph(), pipeline.bind({}), lambda: site.spark, LocalFiles(site.home)),
    )
    for start in starts:
        if partition_by:
            with pytest.raises(RejectedError, match=r"The table .* is around the source 'rows'"):
                start()
        else:
            start()
    if not partition_by:
        site.run(pipeline, run_id="again")
        assert public_count(tmp_path / "data/out") == 1


def test_a_table_may_be_a_source_and_a_sink(site: Site, tmp_path: Path) -> None:
    write_deltalake(str(tmp_path / "both"), pa.table({"n": [1, 2]}))
    site.run(copying(str(tmp_path / "both"), tmp_path / "both", "delta"))
    assert public_count(tmp_path / "both") == 4


def test_patterns_find_the_same_directories_as_hadoop(spark: SparkSession, tmp_path: Path) -> None:
    """Hadoop lists what random patterns find."""
    names = ["a", "ab", "b", "a1", "a-b"]
    for first in names:
        for second in names:
            (tmp_path / first / second).mkdir(parents=True)
    chosen = random.Random(0)
    parts = ["*", "?", "a", "b", "1", "-", "[ab]", "[!a]", "[^1-9]", "{a,b}", "{a,ab}", "{a{b,1},b}", r"\-", "{a/b,b/*}"]
    util = java_class(spark, "org.apache.spark.deploy.SparkHadoopUtil").get()
    matched = 0
    for _ in range(100):
        pattern = "".join(chosen.choices(parts, k=chosen.randint(1, 3)))
        found = util.globPath(java_class(spark, "org.apache.hadoop.fs.Path")(f"{tmp_path}/{pattern}"))
        in_hadoop = {found.apply(number).toUri().getPath() for number in range(found.size())}
        sources = source_places({InputName("rows"): (KnownFiles(path=qualified_path(spark, f"{tmp_path}/{pattern}")),)})
        assert {str(place) for place in tmp_path.rglob("*") if is_also(place, sources)} == in_hadoop, pattern
        matched += len(in_hadoop)
    assert matched > 100


def is_also(place: Path, sources: list[Thing]) -> bool:
    for source in sources:  # each alternative of a pattern
        try:
            check_apart(thing(Kind.HOME, LocalFiles(place)), [source])
        except RejectedError as error:
            if "is also the source" in error.failed:
                return True
    return False
