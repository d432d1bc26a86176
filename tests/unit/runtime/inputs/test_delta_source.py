"""The commits of a Delta table that a stream of added rows cannot read."""

import json
from typing import Any

import pytest
from pyspark.sql.types import StructType

from spark_jobs.protocol.errors import InvalidPipelineError
from spark_jobs.protocol.ids import InputName
from spark_jobs.protocol.losses import SkippedVersion
from spark_jobs.runtime.inputs.delta_source import DeltaSource, skipped_versions
from spark_jobs.runtime.spark.plan import Leaf


def file(rows: int | None = 2, **fields: Any) -> dict[str, Any]:
    return {"path": "f", "dataChange": True, "stats": None if rows is None else json.dumps({"numRecords": rows})} | fields


def skipped(*actions: dict[str, Any], keeps_deleted: bool = False) -> tuple[SkippedVersion, ...]:
    return skipped_versions([(6, [{"add": file()}]), (7, [{"commitInfo": {}}, *actions])], keeps_deleted=keeps_deleted)


def test_a_version_that_changes_rows_is_found_with_the_numbers_of_its_rows() -> None:
    found = skipped({"remove": file(4)}, {"remove": file(1)}, {"add": file(3)})
    assert found == (SkippedVersion(version=7, added_files=1, added_rows=3, removed_files=2, removed_rows=5),)


@pytest.mark.parametrize("keeps_deleted", [False, True])
def test_a_version_that_only_deletes_rows_is_no_loss_if_deleted_rows_are_kept(keeps_deleted: bool) -> None:
    found = skipped({"remove": file(4)}, keeps_deleted=keeps_deleted)
    assert [each.version for each in found] == ([] if keeps_deleted else [7])


def test_a_version_that_only_moves_rows_is_no_loss() -> None:
    assert not skipped({"remove": file(dataChange=False)}, {"add": file(dataChange=False)})


def test_rows_of_a_deletion_vector_are_not_counted_and_missing_numbers_of_rows_stay_unknown() -> None:
    (found,) = skipped({"remove": file(None)}, {"add": file(9, deletionVector={"cardinality": 4})})
    assert (found.removed_rows, found.added_rows) == (None, 5)


@pytest.mark.parametrize("option", ["skipChangeCommits", "failOnDataLoss"])
def test_an_option_that_leaves_rows_out_silently_is_refused(option: str) -> None:
    leaf = Leaf(0, "StreamingRelation", "delta", {option: "false" if option == "failOnDataLoss" else "true"}, StructType())
    with pytest.raises(InvalidPipelineError, match=option) as refused:
        DeltaSource().check(InputName("rows"), leaf, bounded=True, moving=False)
    assert "--accept-data-loss" in refused.value.remedy
    assert 'on_gone="skip"' in refused.value.remedy
