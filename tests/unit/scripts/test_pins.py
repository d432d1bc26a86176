"""The set-up installs pinned versions, and files with known hashes."""

import os
import re
import shutil
import subprocess
import tomllib
from itertools import chain
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[3]
PINS = (ROOT / "constraints.txt").read_text().replace("\\\n", " ").splitlines()
OLDER = {path.stem: path.read_text().replace("\\\n", " ").splitlines() for path in sorted(ROOT.glob("constraints/*.txt"))}
"""The pins of `make matrix`."""
EVERY_POINT = pytest.mark.parametrize("pins", [PINS, *OLDER.values()], ids=["newest", *OLDER])
PYTHON = """#!/usr/bin/env bash
case "$*" in
*"-m venv"*) mkdir -p .venv/bin && cp "$0" .venv/bin/python && echo "$PWD/.venv" >.venv/bin/activate ;;
*sys.prefix*) echo "$PWD/.venv" ;;
*"pip install"*) echo "$*" >>commands ;;
esac
"""


@EVERY_POINT
def test_every_pin_is_one_version_and_has_hashes(pins: list[str]) -> None:
    for pin in pins:
        assert re.fullmatch(r"[a-z0-9-]+==[^\s;]+( ; [^\\]*?)?(\s+--hash=sha256:[0-9a-f]{64})+", pin), pin


@EVERY_POINT
def test_every_requirement_is_pinned_within_its_range(pins: list[str]) -> None:
    declared = tomllib.loads((ROOT / "pyproject.toml").read_text())
    project = declared["project"]
    extras = {name: extra for name, extra in project["optional-dependencies"].items() if name != "declarative" or pins is PINS}
    wanted = [*project["dependencies"], *declared["build-system"]["requires"]]
    wanted += chain.from_iterable(group for named in (extras, declared["dependency-groups"]) for group in named.values())
    versions = {pin.split("==")[0]: re.split(r"[\s;]", pin.split("==")[1])[0] for pin in pins}
    for requirement in map(Requirement, wanted):
        if requirement.marker and canonicalize_name(requirement.name) not in versions:
            continue  # not for this point's version of Python
        assert requirement.specifier.contains(versions[canonicalize_name(requirement.name)]), requirement


@pytest.mark.slow
def test_the_set_up_installs_nothing_whose_hash_is_not_compared(tmp_path: Path) -> None:
    for name in ("pyproject.toml", "constraints.txt", "scripts/setup.sh"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        shutil.copy(ROOT / name, tmp_path / name)
    python = tmp_path / "bin/python3.11"
    python.parent.mkdir()
    python.write_text(PYTHON)
    python.chmod(0o755)
    environment = os.environ | {"PATH": f"{python.parent}:{os.environ['PATH']}"}
    subprocess.run([tmp_path / "scripts/setup.sh", "packages"], check=True, env=environment, capture_output=True)
    commands = (tmp_path / "commands").read_text().splitlines()
    *files, project = [command for command in commands if command]
    assert all("--require-hashes -r" in command or "--require-hashes --only-binary :all: -r" in command for command in files)
    assert project.endswith("--no-build-isolation --no-deps -e .")
    assert all("--no-build-isolation" in command for command in files if "constraints.txt" in command)
    built = (tmp_path / ".venv/.build.txt").read_text().replace("\\\n", " ").splitlines()
    assert built == [pin for name in ("pip", "setuptools", "wheel", "packaging") for pin in PINS if pin.startswith(f"{name}==")]
