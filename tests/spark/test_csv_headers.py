"""CSV files with a header. Spark takes columns by position, so a file with its columns at other positions is refused by name."""

import gzip
from collections import Counter
from pathlib import Path

import pytest
from pyspark.sql import DataFrame, SparkSession

from spark_jobs import DeltaSink, Pipeline
from spark_jobs.protocol.errors import RejectedError
from tests.spark.conftest import Site
from tests.spark.rows import public, public_count

pytestmark = pytest.mark.spark

SCHEMA = "id long, name string, note string"


def copying(site: Site, folder: Path, schema: str = SCHEMA, **options: str) -> Pipeline:
    pipeline = Pipeline("copy", on_end="suspend")

    @pipeline.source(bounded=True)
    def rows(spark: SparkSession) -> DataFrame:
        return spark.readStream.schema(schema).options(header="true", **options).csv(str(folder))

    pipeline.stage(name="copy", sink=DeltaSink(str(site.tables / "copy")))(lambda rows: rows)
    return pipeline


def copied(site: Site) -> Counter[tuple[object, ...]]:
    return public(site.tables / "copy") if public_count(site.tables / "copy") is not None else Counter()


def batches(site: Site) -> list[str]:
    return sorted(str(path) for path in site.home.glob("work/*/stages/*/checkpoint/offsets/[0-9]*"))


def test_a_file_with_its_columns_at_other_positions_is_refused_before_anything_is_staged(site: Site, tmp_path: Path) -> None:
    """Files with more or fewer columns at the end, compressed files, and empty files are read."""
    folder = tmp_path / "in"
    folder.mkdir()
    pipeline = copying(site, folder, comment="#")
    (folder / "1.csv").write_text("id,name,note\n1,a,x\n")
    (folder / "2.csv").write_text('\n#made by hand\n"ID",Name ,note,more\n2,b,y,z\n')
    (folder / "3.csv").write_text("id,name\n3,c\n")
    (folder / "4.csv.gz").write_bytes(gzip.compress(b"\xef\xbb\xbfid,name,note\n4,d,z\n"))
    (folder / "5.csv").write_text("")
    (folder / "6.csv.gz").write_bytes(gzip.compress(b""))
    site.run(pipeline)
    right = Counter([(1, "a", "x"), (2, "b", "y"), (3, "c", None), (4, "d", "z")])
    assert copied(site) == right
    (folder / "7.csv.gz").write_bytes(gzip.compress(b"id,note,name\n5,x,e\n"))
    before = batches(site)
    with pytest.raises(RejectedError, match=r"7\.csv\.gz has 'note' as column 2, where the schema has 'name'"):
        site.run(pipeline)
    assert batches(site) == before
    (folder / "7.csv.gz").unlink()
    (folder / "8.csv.gz").write_bytes(gzip.compress(b"id,name,note\n5,e,x\n"))
    site.run(pipeline)
    assert copied(site) == right + Counter([(5, "e", "x")])


def test_a_header_with_other_names_is_ignored_if_the_reader_enforces_its_schema(site: Site, tmp_path: Path) -> None:
    folder = tmp_path / "in"
    folder.mkdir()
    (folder / "1.csv").write_text('Customer,"Full\nname"\n1,a\n')
    with pytest.raises(RejectedError, match="has 'Customer' as column 1, where the schema has 'id'") as refused:
        site.run(copying(site, folder, multiLine="true"))
    assert "enforceSchema=true" in refused.value.remedy
    site.run(copying(site, folder, multiLine="true", enforceSchema="true"))
    assert copied(site) == Counter([(1, "a", None)])
