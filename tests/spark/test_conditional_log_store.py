"""Spark's commits to tables in stores. If several writers commit one version, one succeeds. A commit whose answer is lost counts once."""

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Barrier
from typing import Any
from urllib.request import Request, urlopen
from uuid import uuid4

import pytest
from py4j.protocol import Py4JJavaError
from pyspark.sql import DataFrame, SparkSession

from spark_jobs import DeltaSink, Pipeline
from spark_jobs.protocol.delta_log import DELTA_LOG, commit_name
from spark_jobs.protocol.errors import AlreadyExistsError, RejectedError
from spark_jobs.publication.conditional_log_store import check_commits, make_commits_conditional
from spark_jobs.publication.delta_jvm import DeltaJvm, java_class_names
from spark_jobs.storage.open import open_place
from spark_jobs.storage.table_uris import table_files
from tests.spark.conftest import Site
from tests.support.lost_answers import lost_answers
from tests.support.object_store import object_store_apart, s3_environment
from tests.support.opened_tables import opened
from tests.support.pages import ROOT, blocks
from tests.support.versitygw import versitygw_of

pytestmark = pytest.mark.spark

SETTING = "spark.delta.logStore.s3.impl"
Commit = Callable[[int, str], bool]


@pytest.fixture
def table(spark: SparkSession, store: str) -> str:
    """The URL of a table, with conditional commits for Spark."""
    uri = f"{store}/{uuid4()}"
    make_commits_conditional(spark, uri)
    return uri


@pytest.fixture
def in_versitygw(spark: SparkSession, store: str, tmp_path: Path) -> Iterator[str]:
    """A table in another server of S3."""
    with versitygw_of(spark, tmp_path) as place:
        uri = f"{place}/table"
        make_commits_conditional(spark, uri)
        yield uri


@pytest.fixture
def in_azure(azure: str) -> str:
    return f"{azure}/{uuid4()}"


@pytest.fixture(
    params=[
        pytest.param("table", id="in_s3"),
        pytest.param("in_versitygw", marks=[pytest.mark.versitygw, pytest.mark.nightly]),
        pytest.param("in_azure", marks=pytest.mark.azure),
    ]
)
def any_table(request: pytest.FixtureRequest) -> str:
    """The URL of a table in a store of each kind."""
    found: str = request.getfixturevalue(request.param)
    return found


def committer(spark: SparkSession, uri: str, **settings: str) -> Commit:
    """Returns a function that commits a version with Delta's log store. The function returns True if it has succeeded."""
    delta = DeltaJvm(spark)
    log = delta.log(uri)
    store, conf = log.store(), log.newDeltaHadoopConf()
    for name, value in settings.items():
        conf.set(name, value)

    def commit(version: int, line: str) -> bool:
        lines = delta.java("java.util.Collections").singletonList(line)
        path = delta.java("org.apache.hadoop.fs.Path")(f"{uri}/{DELTA_LOG}/{commit_name(version)}")
        try:
            store.write(path, delta.convert.asScala(lines.iterator()), False, conf)
        except Py4JJavaError as error:
            if "java.nio.file.FileAlreadyExistsException" not in java_class_names(error.java_exception):
                raise
            return False
        return True

    return commit


def read(uri: str, version: int) -> str:
    return table_files(uri).read(f"{DELTA_LOG}/{commit_name(version)}").decode().strip()


class ReadCommits:
    """Reads commits of a table with Delta's log store, and counts the requests for facts of an object.

    Args:
        spark: A session with conditional commits for the table.
        uri: The table.
    """

    def __init__(self, spark: SparkSession, uri: str) -> None:
        self._delta, self._uri = DeltaJvm(spark), uri
        log = self._delta.log(uri)
        self._store, self._conf = log.store(), log.newDeltaHadoopConf()

    def list(self) -> list[str]:
        """Lists the log. Returns the names."""
        listed = self._store.listFrom(self._path(0), self._conf)
        return [listed.next().getPath().getName() for _ in iter(listed.hasNext, False)]

    def read(self, version: int) -> str:
        found = self._store.read(self._path(version), self._conf)
        return "".join(found.apply(at) for at in range(found.size()))

    def heads(self) -> int:
        counters = self._path(0).getFileSystem(self._conf).getIOStatistics().counters()  # of the bucket's own client
        return int(counters.get("object_metadata_request") or 0)

    def _path(self, version: int) -> Any:
        return self._delta.java("org.apache.hadoop.fs.Path")(f"{self._uri}/{DELTA_LOG}/{commit_name(version)}")


@pytest.mark.parametrize("rounds", [20, pytest.param(400, marks=pytest.mark.nightly)])
def test_only_one_of_two_commits_of_a_version_succeeds(spark: SparkSession, any_table: str, rounds: int) -> None:
    """The winner of a round makes more requests before its next commit. So the race stays close, and both win some rounds."""
    by_spark, files = committer(spark, any_table), table_files(any_table)
    first = f"{DELTA_LOG}/first"
    files.create(first, b"")  # Delta makes the directory of a log before its first commit
    winners: list[str] = []
    ahead, in_a_row = 0, 0

    def by_us(version: int, line: str) -> bool:
        try:
            files.create(f"{DELTA_LOG}/{commit_name(version)}", f"{line}\n".encode())
        except AlreadyExistsError:
            return False
        return True

    together = Barrier(2)

    def try_to_commit(commit: Commit, version: int, who: str, requests_first: int) -> bool:
        together.wait()
        for _ in range(requests_first):
            files.size_bytes(first)
        return commit(version, who)

    with ThreadPoolExecutor(2) as pool:
        for version in range(rounds):
            tries = {
                "Spark": pool.submit(try_to_commit, by_spark, version, "Spark", ahead),
                "we": pool.submit(try_to_commit, by_us, version, "we", -ahead),
            }
            [winner] = [who for who, tried in tries.items() if tried.result()]
            assert read(any_table, version) == winner
            in_a_row = in_a_row + 1 if winners[-1:] == [winner] else 1
            ahead += in_a_row if winner == "Spark" else -in_a_row
            winners.append(winner)
    assert by_spark(0, "late") is by_us(0, "late") is False
    assert set(winners) == {"Spark", "we"}


def test_a_commit_whose_answer_is_lost_has_succeeded_once(spark: SparkSession, table: str) -> None:
    with lost_answers(os.environ["AWS_ENDPOINT_URL"]) as line:
        away = {"fs.s3a.endpoint": line.url, "fs.s3.impl.disable.cache": "true"}
        commit = committer(spark, table, **away)
        line.ending = commit_name(0).encode()
        assert commit(0, "mine"), "it recognises its own commit"
        assert line.lost == 1
        assert not committer(spark, table)(0, "another's")
        line.ending = commit_name(0).encode()
        assert not commit(0, "mine again"), "that of an earlier write is another's"
    assert read(table, 0) == "mine"


@pytest.mark.parametrize("is_known", [False, True])
def test_trial_commits_leave_nothing_behind(spark: SparkSession, any_table: str, *, is_known: bool) -> None:
    if is_known:
        table_files(any_table).create("part-0.parquet", b"")
    before = table_files(any_table).paths()
    check_commits(spark, any_table, is_known=is_known)
    assert table_files(any_table).paths() == before


@pytest.mark.stores
@pytest.mark.parametrize("is_known", [False, True])
def test_a_spark_with_another_store_for_the_bucket_is_refused_and_leaves_nothing_there(
    spark: SparkSession, table: str, *, is_known: bool
) -> None:
    bucket, servers = uuid4().hex, [os.environ["AWS_ENDPOINT_URL"]]
    with object_store_apart():
        servers.append(os.environ["AWS_ENDPOINT_URL"])
        for server in servers:
            urlopen(Request(f"{server}/{bucket}", method="PUT"), timeout=30).close()
        elsewhere = open_place(f"s3://{bucket}")
        spark.sparkContext._jsc.hadoopConfiguration().set(f"fs.s3a.bucket.{bucket}.endpoint", servers[1])
        with s3_environment(servers[0]):
            here = open_place(f"s3://{bucket}")
            with pytest.raises(RejectedError, match="in another store than this process"):
                check_commits(spark, f"s3://{bucket}/table", is_known=is_known)
            assert here.paths() == []
        assert elsewhere.paths() == []


def test_a_start_with_another_log_store_is_refused_before_anything_is_written(site: Site, table: str) -> None:
    pipeline = Pipeline("copies")

    @pipeline.source(bounded=True)
    def rows(spark: SparkSession) -> DataFrame:
        return spark.readStream.format("delta").load(str(site.root / "rows"))

    @pipeline.stage(sink=DeltaSink(table))
    def copied(rows: DataFrame) -> DataFrame:
        return rows

    site.spark.range(3).write.format("delta").save(str(site.root / "rows"))
    context: Any = site.spark.sparkContext._jsc
    conf = context.sc().conf()
    chosen = str(conf.get(SETTING))
    conf.set(SETTING, "io.delta.storage.S3SingleDriverLogStore")
    try:
        with pytest.raises(RejectedError, match=f"S3SingleDriverLogStore for tables in S3 .{SETTING}.") as refused:
            site.run(pipeline)
    finally:
        conf.set(SETTING, chosen)
    assert refused.value.safe == "Nothing was staged."
    assert refused.value.remedy.startswith("Remove the setting")
    assert table_files(table).paths() == []
    assert not site.home.exists()


def test_a_listed_commit_is_read_with_one_request(spark: SparkSession, table: str) -> None:
    commit, commits = committer(spark, table), ReadCommits(spark, table)
    assert commit(0, "first")
    assert commit(1, "second")
    before = commits.heads()
    assert commits.read(0) == "first", "a commit that was not listed is read, too"
    assert commits.heads() > before
    assert commits.list() == [commit_name(0), commit_name(1)]
    before = commits.heads()
    assert [commits.read(0), commits.read(1)] == ["first", "second"]
    assert commits.heads() == before


def test_a_commit_that_was_replaced_since_it_was_listed_is_read_as_it_is(spark: SparkSession, table: str) -> None:
    commits, files, path = ReadCommits(spark, table), table_files(table), f"{DELTA_LOG}/{commit_name(0)}"
    files.create(path, b"dropped")
    commits.list()
    files.delete(path)
    with pytest.raises(Py4JJavaError) as caught:
        commits.read(0)
    assert "java.io.FileNotFoundException" in java_class_names(caught.value.java_exception)
    files.create(path, b"created again, with more bytes")
    assert commits.read(0) == "created again, with more bytes"


OWN_JOB = """
import sys
from spark_jobs.publication.conditional_log_store import check_commits
from spark_jobs.runtime.spark.session import start_session
from tests.support.kafka_broker import jars
from tests.support.object_store import S3_JARS
from tests.support.run_site import APPLICATION

jar, table = sys.argv[1:]
stores = {f"spark.delta.logStore.{scheme}.impl": "sparkjobs.ConditionalLogStore" for scheme in ("s3", "s3a")}
spark = start_session("own", APPLICATION | stores, jars=[jar, *jars(S3_JARS)])
for _ in range(2):
    spark.range(1).write.format("delta").mode("append").save(table)
check_commits(spark, table)
spark.stop()
"""
"""A job that writes to a table with the jar. Its second commit of one version must fail."""


@pytest.mark.nightly
def test_a_job_of_ones_own_commits_conditionally_with_the_jar_of_the_guide(store: str, tmp_path: Path) -> None:
    (commands,) = (block.text for block in blocks(ROOT / "docs/how-to/homes-in-stores.md", "console") if "javac" in block.text)
    (tmp_path / "spark_jobs").symlink_to(ROOT / "spark_jobs")
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    subprocess.run(["bash", "-ec", commands], cwd=tmp_path, env=os.environ | {"PATH": path}, check=True, timeout=300)
    table = f"{store}/{uuid4()}"
    own = [sys.executable, "-c", OWN_JOB, str(tmp_path / "sparkjobs.jar"), table]
    done = subprocess.run(own, cwd=ROOT, capture_output=True, text=True, check=False, timeout=600)
    assert done.returncode == 0, done.stderr
    assert opened(table).to_pyarrow_table().num_rows == 2
