from itertools import chain, pairwise
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from spark_jobs.runtime.checkpoints.packing import bins_of


def line(number: int, size: int, day: str | None) -> dict[str, Any]:
    return {"add": {"path": str(number), "size": size, "partitionValues": {"day": day}}, "batch": number}


lines = st.lists(st.tuples(st.integers(1, 30), st.sampled_from(["a", "b", None]))).map(
    lambda files: [line(number, size, day) for number, (size, day) in enumerate(files)]
)


@given(lines, st.integers(1, 40))
def test_only_small_files_of_one_partition_are_packed_up_to_the_target_size(files: list[dict[str, Any]], target: int) -> None:
    bins = bins_of(files, target)
    packed = [each["add"]["path"] for each in chain.from_iterable(bins)]
    assert len(packed) == len(set(packed))
    for members in bins:
        assert len(members) > 1, "a file alone is left as it is"
        assert len({str(member["add"]["partitionValues"]) for member in members}) == 1
        assert sum(member["add"]["size"] for member in members) <= target
        assert [member["batch"] for member in members] == sorted(member["batch"] for member in members)


@given(lines, st.integers(1, 40))
def test_two_neighbouring_files_that_fit_into_one_are_packed(files: list[dict[str, Any]], target: int) -> None:
    packed = {each["add"]["path"] for each in chain.from_iterable(bins_of(files, target))}
    for day in ("a", "b", None):
        small = [each for each in files if each["add"]["partitionValues"]["day"] == day and each["add"]["size"] < target]
        for first, second in pairwise(small):
            if first["add"]["size"] + second["add"]["size"] <= target:
                assert {first["add"]["path"], second["add"]["path"]} & packed
