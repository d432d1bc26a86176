"""A Spark session whose commits to S3 are not exclusive is refused before it stages rows."""

from types import SimpleNamespace
from typing import Any, cast

import pytest

from spark_jobs.protocol.errors import MissingRequirementError
from spark_jobs.publication import conditional_log_store
from spark_jobs.publication.conditional_log_store import check_commits, make_commits_conditional
from tests.support.memory_files import MemoryFiles

TABLE = "s3://lake/hourly"


def test_a_store_that_ignores_the_condition_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    files, commits = MemoryFiles(), list[Any]()

    class Careless:
        """A Spark session whose store ignores ``If-None-Match``."""

        convert = SimpleNamespace(asScala=lambda lines: lines)

        def __init__(self, spark: object) -> None:
            pass

        def java(self, name: str) -> Any:
            return (
                SimpleNamespace(singletonList=lambda line: SimpleNamespace(iterator=lambda: iter([line])))
                if name.endswith("Collections")
                else str
            )

        def log(self, path: str) -> Any:
            return SimpleNamespace(store=lambda: self, newDeltaHadoopConf=lambda: None)

        def write(self, path: str, lines: Any, overwrite: bool, conf: object) -> None:
            commits.append(path)
            files.contents[path.removeprefix(f"{TABLE}/")] = b"kept"

    monkeypatch.setattr(conditional_log_store, "DeltaJvm", Careless)
    monkeypatch.setattr(conditional_log_store, "table_files", lambda uri: files)
    with pytest.raises(MissingRequirementError, match="both succeed"):
        check_commits(cast(Any, None), TABLE)
    assert len(commits) == 2
    assert files.contents == {}


@pytest.mark.parametrize("uri", ["file:///tables/hourly", "hdfs://name-node/hourly"])
def test_commits_to_other_stores_than_s3_are_left_to_delta(uri: str) -> None:
    make_commits_conditional(cast(Any, None), uri)
