"""The pages that name the released version and the supported versions."""

import re
import tomllib
from pathlib import Path

import spark_jobs

ROOT = Path(__file__).parents[3]


def test_the_page_of_installation_names_the_wheel_of_this_version() -> None:
    name = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["name"].replace("-", "_")
    wheels = re.findall(r"dist/(\S+?\.whl)", (ROOT / "docs/how-to/install.md").read_text())
    assert set(wheels) == {f"{name}-{spark_jobs.__version__}-py3-none-any.whl"}


def test_the_page_of_supported_versions_has_the_ranges_that_are_installed() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    pythons = {each.rpartition(" ")[2] for each in project["classifiers"] if re.search(r"Python :: 3\.\d", each)}
    page = (ROOT / "docs/reference/versions.md").read_text()
    (shown,) = re.findall(r"^\| Python \| ([^|]+) \|", page, flags=re.MULTILINE)
    assert set(shown.split(", ")) == pythons
