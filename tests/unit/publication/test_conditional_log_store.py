"""A Spark session whose commits to S3 are not exclusive is refused before it stages rows."""

from types import SimpleNamespace
from typing import Any, cast

import pytest
from py4j.protocol import Py4JJavaError

from spark_jobs.protocol.errors import MissingRequirementError
from spark_jobs.publication import conditional_log_store
from spark_jobs.publication.conditional_log_store import check_commits, make_commits_conditional
from spark_jobs.publication.java_sources import JavaSourceError
from tests.support.memory_files import MemoryFiles

TABLE = "s3://lake/hourly"


class Session:
    """A Spark session whose store accepts every commit. The last commit that it accepts wins."""

    convert = SimpleNamespace(asScala=lambda lines: lines)

    def __init__(self, files: MemoryFiles) -> None:
        self.files = files
        self.commits = 0

    def java(self, name: str) -> Any:
        return (
            SimpleNamespace(singletonList=lambda line: SimpleNamespace(iterator=lambda: iter([line])))
            if name.endswith("Collections")
            else str
        )

    def log(self, path: str) -> Any:
        return SimpleNamespace(store=lambda: self, newDeltaHadoopConf=lambda: None)

    def write(self, path: str, lines: Any, overwrite: bool, conf: object) -> None:
        self.commits += 1
        self.files.contents[path.removeprefix(f"{TABLE}/")] = b"kept"


def check_commits_of(session: Session, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(conditional_log_store, "DeltaJvm", lambda spark: session)
    monkeypatch.setattr(conditional_log_store, "table_files", lambda uri: session.files)
    check_commits(cast(Any, None), TABLE)


def test_a_store_that_ignores_the_condition_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    session = Session(MemoryFiles())
    with pytest.raises(MissingRequirementError, match="does not keep the first of two files that Spark creates"):
        check_commits_of(session, monkeypatch)
    assert session.commits == 2
    assert session.files.contents == {}


def test_a_second_commit_that_fails_for_another_reason_is_not_said_to_have_succeeded(monkeypatch: pytest.MonkeyPatch) -> None:
    class Closed(Session):
        """A Spark session that loses its rights after the first commit."""

        def write(self, path: str, lines: Any, overwrite: bool, conf: object) -> None:
            super().write(path, lines, overwrite, conf)
            if self.commits == 2:
                kind = SimpleNamespace(getName=lambda: "java.nio.file.AccessDeniedException", getSuperclass=lambda: None)
                denied = SimpleNamespace(
                    getClass=lambda: kind, getCause=lambda: None, getMessage=lambda: "closed", _target_id="o1"
                )
                raise Py4JJavaError("failed", denied)

    session = Closed(MemoryFiles())
    with pytest.raises(MissingRequirementError, match=f"Spark cannot commit to tables in {TABLE}: closed"):
        check_commits_of(session, monkeypatch)
    assert session.files.contents == {}


@pytest.mark.parametrize("uri", ["file:///tables/hourly", "hdfs://name-node/hourly"])
def test_commits_to_other_stores_than_s3_are_left_to_delta(uri: str) -> None:
    make_commits_conditional(cast(Any, None), uri)


def test_a_log_store_that_cannot_be_compiled_is_refused_before_a_setting_changes(monkeypatch: pytest.MonkeyPatch) -> None:
    def load_java(*_: object) -> None:
        raise JavaSourceError("Cannot find S3AFileSystem")

    monkeypatch.setattr(conditional_log_store, "load_java", load_java)
    settings: dict[str, str] = {}
    conf = SimpleNamespace(contains=settings.__contains__, get=settings.get, set=settings.__setitem__)
    java = SimpleNamespace(sc=lambda: SimpleNamespace(conf=lambda: conf))
    spark: Any = SimpleNamespace(sparkContext=SimpleNamespace(_jsc=java))
    with pytest.raises(MissingRequirementError, match="tables in S3 cannot be compiled: Cannot find S3AFileSystem") as refused:
        make_commits_conditional(spark, TABLE)
    assert "Delta's jars" in refused.value.remedy
    assert settings == {}
