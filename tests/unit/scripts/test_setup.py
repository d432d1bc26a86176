import shutil
import subprocess
from pathlib import Path

from tests.support.pages import ROOT


def test_an_environment_that_is_linked_is_not_cleared(tmp_path: Path) -> None:
    clone = tmp_path / "clone"
    (clone / "scripts").mkdir(parents=True)
    for name in ("scripts/setup.sh", "pyproject.toml", "constraints.txt"):
        shutil.copy(ROOT / name, clone / name)
    package = tmp_path / "environment" / "package.py"
    package.parent.mkdir()
    package.touch()
    (clone / ".venv").symlink_to(package.parent)

    ended = subprocess.run(["bash", clone / "scripts/setup.sh", "packages"], capture_output=True, text=True, timeout=60)

    assert ended.returncode == 1
    assert f".venv is a link to {package.parent}" in ended.stderr
    assert package.is_file()
