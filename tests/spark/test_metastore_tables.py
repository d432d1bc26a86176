"""Tables made by name, in a catalog that outlives Spark."""

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import pandas as pd
import pytest

from spark_jobs.storage.table_uris import spark_path
from tests.spark import inputs
from tests.support import metastore_driver
from tests.support.object_store import object_store_apart
from tests.support.places import IN_A_STORE, ON_A_DISK

pytestmark = pytest.mark.spark

ROOT = Path(__file__).parents[2]
TIMEOUT_S = 600.0


def _run(directory: Path, table: str, schema: str) -> dict[str, Any]:
    """Runs a driver in a process of its own. Returns the answer and the catalog's entry that it prints."""
    command = [sys.executable, "-m", metastore_driver.__name__, str(directory), table, schema]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=ROOT, timeout=TIMEOUT_S)
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def _deliver(directory: Path, *ids: int) -> None:
    inputs.append(directory / "events", pd.DataFrame({"id": pd.array(ids, "int64")}))


@pytest.fixture
def schema(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """The place of a schema, on a disk or in a store."""
    if request.param == ON_A_DISK:
        yield f"{tmp_path}/sales of the catalog"
        return
    with object_store_apart() as place:
        yield spark_path(f"{place}/sales of the catalog")


@pytest.mark.parametrize(
    ("schema", "table"),
    [
        pytest.param(ON_A_DISK, "sales.orders", marks=pytest.mark.nightly),
        pytest.param(ON_A_DISK, "spark_catalog.sales.orders", marks=pytest.mark.nightly),
        pytest.param(IN_A_STORE, "spark_catalog.sales.orders", marks=pytest.mark.stores),
    ],
    indirect=["schema"],
)
def test_a_missing_table_is_made_under_its_name_and_found_by_it(tmp_path: Path, schema: str, table: str) -> None:
    _deliver(tmp_path, 1, 2)
    first = _run(tmp_path, table, schema)
    _deliver(tmp_path, 3)
    second = _run(tmp_path, table, schema)
    assert (first["existed"], second["existed"]) == (False, True)
    assert (first["ids"], second["ids"]) == ([1, 2], [1, 2, 3])
    assert (first["description"], first["type"]) == ("made by its name", "MANAGED")
    places = {urlsplit(unquote(each[key]))[1:3] for each in (first, second) for key in ("published into", "location")}
    assert places == {urlsplit(f"{schema}/orders")[1:3]}
