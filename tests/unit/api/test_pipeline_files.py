"""Pipeline files that create columns and UDFs when they are imported, and the modules next to them."""

import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path
from textwrap import dedent

import pytest
from pyspark import SparkContext
from pyspark.errors import PySparkRuntimeError
from pyspark.sql import SparkSession
from pyspark.sql.udf import UserDefinedFunction

from spark_jobs.api.load import load_pipeline
from spark_jobs.api.location import locate_pipeline
from spark_jobs.api.neighbours import Neighbours, neighbours_of
from spark_jobs.protocol.errors import InvalidPipelineError

PIPELINE = "from spark_jobs import Pipeline\npipeline = Pipeline('flights')\n"
F = "from pyspark.sql import functions as F\n"


@pytest.fixture(autouse=True)
def _fresh_imports(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    monkeypatch.setattr(SparkContext, "_active_spark_context", None)
    monkeypatch.setattr(SparkSession, "_instantiatedSession", None)
    path, modules = list(sys.path), set(sys.modules)
    yield
    sys.path[:] = path
    for name in sys.modules.keys() - modules:
        if str(tmp_path) in (getattr(sys.modules[name], "__file__", None) or ""):
            del sys.modules[name]


def write(folder: Path, files: dict[str, str]) -> str:
    for name, text in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(dedent(text))
    return str(folder / "flights.py")


@pytest.mark.parametrize(
    "text",
    [
        "IS_ORDER = F.col('kind') == 'order'",
        "TOTAL = F.expr('a + b').cast('double').alias('total')",
        "from pyspark.sql.types import LongType\nCENTS = (F.lit(100) * F.col('a')).cast(LongType())",
        "SIZE = F.when(F.col('a') > 1, 'big').otherwise(F.lit('small'))",
        "CHOSEN = F.col('a').isin(1, 2) | ~F.col('b').between(1, 2)",
        "TALLY = [F.count('*'), F.max(F.struct('a', 'b')), F.window('at', '1 hour')]",
        "from pyspark.sql import Window\nNEWEST = F.row_number().over(Window.partitionBy('a').orderBy(F.desc('at')))",
        "NEXT = F.transform('parts', lambda part: part + 1)",
        "@F.udf('double')\ndef twice(x): return 2 * x\nTWICE = twice('a')",
        "import pandas as pd\n@F.pandas_udf('a long, b string')\ndef both(x: pd.Series) -> pd.DataFrame: return x",
        "@F.udf(returnType='array<int>')\ndef parts(x): return [x]",
        "from pyspark.sql.types import StructType\nSCHEMA = StructType.fromDDL('a INT')\nNOTE = F.from_json('note', SCHEMA)",
        "from pyspark.sql import SparkSession\nassert SparkSession.getActiveSession() is None",
        "print(F.col('a'))",
    ],
)
def test_columns_and_udfs_at_module_level_need_no_session(tmp_path: Path, text: str) -> None:
    assert load_pipeline(write(tmp_path, {"flights.py": F + text + "\n" + PIPELINE})).name == "flights"


def test_loading_a_file_leaves_pyspark_as_it_was(tmp_path: Path) -> None:
    before = UserDefinedFunction.__call__, UserDefinedFunction.returnType, SparkSession._getActiveSessionOrCreate
    load_pipeline(write(tmp_path, {"flights.py": F + "A = F.col('a')\n" + PIPELINE}))
    with pytest.raises(InvalidPipelineError):
        load_pipeline(write(tmp_path, {"flights.py": F + "A = F.col('a')\n1 / 0\n" + PIPELINE}))
    assert before == (UserDefinedFunction.__call__, UserDefinedFunction.returnType, SparkSession._getActiveSessionOrCreate)
    assert SparkContext._active_spark_context is None


def test_a_column_without_a_session_raises_an_error_only_when_it_is_used(tmp_path: Path) -> None:
    text = F + "A = F.col('a')\n" + PIPELINE + "pipeline.source(bounded=True, name='a')(lambda: A)\n"
    column = load_pipeline(write(tmp_path, {"flights.py": text}))._declarations["a"].function()
    assert "has not made yet" in repr(column)
    with pytest.raises(PySparkRuntimeError, match="SESSION_OR_CONTEXT_NOT_EXISTS"):
        column._jc.expr()


@pytest.mark.parametrize(
    "text",
    [
        "from pyspark.sql import SparkSession\n\nspark = SparkSession.builder.getOrCreate()\n",
        "from pyspark import SparkContext\n\nspark = SparkContext.getOrCreate().defaultParallelism\n",
        "from pyspark.sql.types import StructType\n\nNAMES = StructType.fromDDL('a INT').names\n",
    ],
)
@pytest.mark.parametrize("file", ["flights.py", "settings.py"])
def test_the_error_of_a_session_at_module_level_names_the_line(tmp_path: Path, text: str, file: str) -> None:
    entry = write(tmp_path, {"flights.py": "import settings\n" + PIPELINE, "settings.py": ""} | {file: text + PIPELINE})
    with pytest.raises(InvalidPipelineError, match="it asks for a Spark session when it is imported") as caught:
        load_pipeline(entry)
    assert caught.value.remedy.startswith(f"Move line 3 of {tmp_path / file} into a function")


def found(folder: Path, files: dict[str, str]) -> Neighbours:
    entry = write(folder, files)
    load_pipeline(entry)
    return neighbours_of(locate_pipeline(entry))


def test_all_modules_that_a_file_imports_from_its_folder_are_found_also_indirect_ones(tmp_path: Path) -> None:
    files = {
        "flights.py": "import first\n" + PIPELINE,
        "first.py": "from shop.prices import rate\n",
        "shop/__init__.py": "",
        "shop/prices.py": "def rate():\n    import late\n",
        "late.py": "",
        "unused.py": "",
        "data/rows.json": "",
    }
    assert dict(found(tmp_path, files).found) == {
        "first": tmp_path / "first.py",
        "shop": tmp_path / "shop",
        "late": tmp_path / "late.py",
    }


def test_modules_that_were_imported_by_computed_names_are_found(tmp_path: Path) -> None:
    files = {
        "flights.py": "for name in ('com' + 'puted', 'spr' + 'ead'):\n    __import__(name)\n" + PIPELINE,
        "computed.py": "",
        "spread/part.py": "",
        "unused.py": "",
    }
    assert dict(found(tmp_path, files).found) == {"computed": tmp_path / "computed.py", "spread": tmp_path / "spread"}


def test_a_directory_without_init_is_a_package_too(tmp_path: Path) -> None:
    assert set(found(tmp_path, {"flights.py": "import plain.one\n" + PIPELINE, "plain/one.py": ""}).found) == {"plain"}


def test_a_module_that_python_imports_from_elsewhere_is_no_neighbour(tmp_path: Path) -> None:
    files = {
        "flights.py": "import json, queue, pandas\nfrom spark_jobs import DeltaSink\n" + PIPELINE,
        "queue.py": "",
        ".venv/lib/pandas.py": "",
    }
    __import__("queue")
    assert dict(found(tmp_path, files).found) == {}


def test_the_archive_has_all_files_of_a_package(tmp_path: Path) -> None:
    files = {
        "flights.py": "import shop.prices, one\n" + PIPELINE,
        "one.py": "",
        "shop/__init__.py": "",
        "shop/prices.py": "",
        "shop/rates/all.json": "{}",
        "shop/.hidden": "",
        "shop/__pycache__/x.pyc": "",
    }
    found(tmp_path, files).write_archive(tmp_path / "to/modules.zip")
    with zipfile.ZipFile(tmp_path / "to/modules.zip") as archive:
        assert sorted(archive.namelist()) == ["one.py", "shop/__init__.py", "shop/prices.py", "shop/rates/all.json"]


@pytest.mark.parametrize(
    ("helper", "importable"),
    [
        ("RATE = 1\n", True),
        (F + "RATE = F.col('rate')\n", False),
        (F + "@F.udf('double')\ndef rate(x): return x\n", False),
        ("from spark_jobs import DeltaSink\n", False),
    ],
)
def test_only_modules_that_a_worker_cannot_import_are_sent_whole(tmp_path: Path, helper: str, importable: bool) -> None:
    from pyspark.cloudpickle.cloudpickle import _PICKLE_BY_VALUE_MODULES

    name = f"helper_{importable}_{len(helper)}"
    write(tmp_path, {f"{name}.py": helper})
    load_pipeline(write(tmp_path, {"flights.py": F + f"import {name}\nA = F.col('a')\n" + PIPELINE}))
    assert (name in _PICKLE_BY_VALUE_MODULES) is not importable
    _PICKLE_BY_VALUE_MODULES.discard(name)
