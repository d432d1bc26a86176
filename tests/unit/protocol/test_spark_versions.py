"""The supported releases of Spark, and the order of two releases."""

import pytest

from spark_jobs.protocol.errors import MissingRequirementError
from spark_jobs.protocol.spark_versions import SUPPORTED, check_spark_version, is_older, spark_minor

pytestmark = pytest.mark.every_version


@pytest.mark.parametrize(
    ("version", "minor"),
    [("4.2.0", "4.2"), ("4.0.2-amzn-1", "4.0"), ("4.1.0.dev3", "4.1"), ("4.10.1", "4.10"), ("unknown", "unknown")],
)
def test_the_minor_version_of_a_release_has_two_numbers(version: str, minor: str) -> None:
    assert spark_minor(version) == minor


def test_versions_are_compared_as_numbers() -> None:
    assert is_older("4.2", "4.10")
    assert not is_older("4.2", "4.2")
    assert not is_older("5.0", "4.9")
    assert list(SUPPORTED) == sorted(SUPPORTED, key=lambda minor: [int(part) for part in minor.split(".")])


@pytest.mark.parametrize("version", ["4.0.1", "4.0.2-amzn-1", "4.1.3", "4.2.1"])
def test_releases_for_which_delta_has_jars_are_accepted(version: str) -> None:
    check_spark_version(version, owner="This", remedy="None.")


@pytest.mark.parametrize(
    ("version", "why"),
    [
        ("4.3.0", "Delta Lake has no jars for it"),
        ("5.0.0", "Delta Lake has no jars for it"),
        ("3.5.9", "pipelines do not run on it"),
        ("unknown", "pipelines do not run on it"),
    ],
)
def test_another_release_is_refused_with_the_reason(version: str, why: str) -> None:
    with pytest.raises(MissingRequirementError, match=f"This has Spark {version}, and {why}") as refused:
        check_spark_version(version, owner="This", remedy="Install another one.")
    assert "Spark 4.0, 4.1 and 4.2" in str(refused.value)
    assert "Install another one." in str(refused.value)
