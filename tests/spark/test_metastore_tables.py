"""Tables made by name, in a catalog that outlives Spark."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import pandas as pd
import pytest

from tests.spark import inputs
from tests.support import metastore_driver

pytestmark = pytest.mark.spark

ROOT = Path(__file__).parents[2]
TIMEOUT_S = 600.0


def _run(directory: Path, table: str) -> dict[str, Any]:
    """Runs a driver in a process of its own. Returns the answer and the catalog's entry that it prints."""
    command = [sys.executable, "-m", metastore_driver.__name__, str(directory), table]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=ROOT, timeout=TIMEOUT_S)
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def _deliver(directory: Path, *ids: int) -> None:
    inputs.append(directory / "events", pd.DataFrame({"id": pd.array(ids, "int64")}))


@pytest.mark.nightly
@pytest.mark.parametrize("table", ["sales.orders", "spark_catalog.sales.orders"])
def test_a_missing_table_is_made_under_its_name_and_found_by_it(tmp_path: Path, table: str) -> None:
    _deliver(tmp_path, 1, 2)
    first = _run(tmp_path, table)
    _deliver(tmp_path, 3)
    second = _run(tmp_path, table)
    assert (first["existed"], second["existed"]) == (False, True)
    assert (first["ids"], second["ids"]) == ([1, 2], [1, 2, 3])
    assert first["description"] == "made by its name"
    places = {unquote(urlsplit(each[key]).path) for each in (first, second) for key in ("published into", "location")}
    assert places == {str(tmp_path / "warehouse of the catalog" / "sales.db" / "orders")}
