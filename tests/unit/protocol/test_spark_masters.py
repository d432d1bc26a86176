"""Which masters run executors on the driver's host."""

import os

import pytest

from spark_jobs.protocol.spark_masters import cores_of_one_jvm, is_local


@pytest.mark.parametrize("master", ["local", "local[2]", "local[*]", "local[2,3]", "local-cluster[2,1,1024]"])
def test_a_local_masters_executors_are_on_this_host(master: str) -> None:
    assert is_local(master)


@pytest.mark.parametrize("master", ["yarn", "spark://local:7077", "k8s://https://local", "localhost"])
def test_another_masters_executors_may_be_elsewhere(master: str) -> None:
    assert not is_local(master)


@pytest.mark.parametrize(
    ("master", "cores"),
    [
        ("local", 1),
        ("local[2]", 2),
        ("local[*]", os.cpu_count()),
        ("local[2, 3]", 2),
        ("local-cluster[2,1,1024]", None),
        ("yarn", None),
    ],
)
def test_a_local_master_has_the_cores_of_its_jvm(master: str, cores: int | None) -> None:
    assert cores_of_one_jvm(master) == cores
