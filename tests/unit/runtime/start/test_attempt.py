"""Options of an attempt that are refused before it begins."""

import pytest
from pydantic import BaseModel

from spark_jobs import Pipeline
from spark_jobs.protocol.errors import InvalidParameterError


def test_zero_state_partitions_are_refused_before_anything_starts() -> None:
    class Params(BaseModel):
        pass

    with pytest.raises(InvalidParameterError, match="state_partitions=0"):
        Pipeline("flights", params=Params).run(spark=None, home="/nowhere", state_partitions=0)  # type: ignore[arg-type]
