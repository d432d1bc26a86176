"""Other writers of a sink's table at every moment of a publication: the outcome is right, or refused and nothing is written.

The publisher and the others are delta-rs here; tests/spark/test_foreign_writers.py has those with Spark.
"""

from collections.abc import Iterator
from pathlib import Path
from uuid import uuid4

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from spark_jobs.protocol.documents import Publisher
from spark_jobs.publication.publisher import WITHOUT_SPARK
from tests.support.crowds import DeltaRsWriter, race, rounds
from tests.support.object_store import object_store_apart
from tests.support.publication_schedules import Case, assert_right_or_refused, cases, sampled
from tests.support.replaced_commits import assert_found_out_later, assert_made_again_at_once
from tests.support.seeds import seed
from tests.support.sink_kinds import Kind
from tests.support.staged_in_s3 import PipelineInS3
from tests.support.staged_pipeline import StagedPipeline
from tests.support.systems import quick
from tests.support.versitygw import versitygw

__all__ = ["seed"]


WITHOUT_A_JVM = cases(Publisher.DELTA_RS, (Kind.APPEND, Kind.COMPLETE), by_spark=False)


IN_S3 = ["moto", pytest.param("versitygw", marks=[pytest.mark.versitygw, pytest.mark.nightly])]
in_s3 = pytest.mark.parametrize("store", IN_S3, indirect=True)
everywhere = pytest.mark.parametrize("store", [None, *IN_S3], indirect=True, ids=lambda server: server or "on a disk")


@pytest.fixture(scope="module")
def store(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str | None]:
    """A place in the server of S3 that the parameter names. None without a server."""
    if request.param is None:
        yield None
        return
    server = versitygw(tmp_path_factory.mktemp("versitygw")) if request.param == "versitygw" else object_store_apart()
    with server as place:
        yield place


@pytest.fixture
def pipeline(store: str | None, tmp_path: Path) -> StagedPipeline:
    """A pipeline in the store, or on a disk."""
    return PipelineInS3(f"{store}/{uuid4()}", tmp_path) if store else StagedPipeline(quick(tmp_path / "home"), tmp_path)


@pytest.mark.parametrize("case", sampled(WITHOUT_A_JVM, stride=1))
def test_a_foreign_writer_at_any_moment_of_a_publication_breaks_no_table(tmp_path: Path, case: Case) -> None:
    assert_right_or_refused(case, tmp_path)


@everywhere
def test_a_publication_whose_commit_is_replaced_at_once_is_made_again(pipeline: StagedPipeline) -> None:
    assert_made_again_at_once(pipeline, Publisher.DELTA_RS, Kind.APPEND, WITHOUT_SPARK)


@everywhere
def test_a_publication_whose_commit_is_replaced_later_is_reported(pipeline: StagedPipeline) -> None:
    assert_found_out_later(pipeline, Publisher.DELTA_RS, Kind.APPEND, WITHOUT_SPARK)


@pytest.mark.parametrize("kind", [Kind.APPEND, Kind.COMPLETE])
@pytest.mark.parametrize("round_", rounds(sample=2, at_night=100))
def test_several_publishers_among_many_writers_publish_each_checkpoint_once(
    tmp_path: Path, seed: int, kind: Kind, round_: int
) -> None:
    pipeline = StagedPipeline(quick(tmp_path / "home"), tmp_path)
    race(pipeline, f"{seed} {round_}", kind, Publisher.DELTA_RS, WITHOUT_SPARK, [DeltaRsWriter] * 2)


@in_s3
@pytest.mark.parametrize("kind", [Kind.APPEND, Kind.COMPLETE])
@pytest.mark.parametrize("round_", rounds(sample=1, at_night=50))
def test_several_publishers_among_many_writers_publish_each_checkpoint_once_in_s3(
    pipeline: StagedPipeline, seed: int, kind: Kind, round_: int
) -> None:
    race(pipeline, f"{seed} {round_}", kind, Publisher.DELTA_RS, WITHOUT_SPARK, [DeltaRsWriter] * 2)


def test_two_concurrent_compactions_by_delta_rs_double_the_rows(tmp_path: Path) -> None:
    """The page warns of it, because nobody but delta-rs can mend it: when this fails, it has."""
    for number in (1, 2):
        write_deltalake(tmp_path, pa.table({"id": [number]}), mode="append")
    late = DeltaTable(tmp_path)
    DeltaTable(tmp_path).optimize.compact()
    late.optimize.compact()
    assert sorted(DeltaTable(tmp_path).to_pyarrow_table()["id"].to_pylist()) == [1, 1, 2, 2]
