"""Pipeline files as users write them: UDFs and columns at module level, with helper modules and packages next to the file."""

import subprocess
import sys
from pathlib import Path
from textwrap import dedent

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from tests.support.short_jvm import FEW_ROWS, SHORT_RUN
from tests.support.spark_cluster import delta_on_this_host, spark_cluster

pytestmark = pytest.mark.spark

SMALL = {"spark.ui.enabled": "false", "spark.sql.shuffle.partitions": "1", "spark.driver.memory": "1g", **FEW_ROWS}
ROWS = [
    {"amount": 5.0, "currency": "EUR", "kind": "order", "note": '{"gift": true}'},
    {"amount": 20.0, "currency": "USD", "kind": "order", "note": '{"gift": false}'},
    {"amount": 7.0, "currency": "USD", "kind": "refund", "note": "{}"},
]
PIPELINE = """
from pydantic import BaseModel

from spark_jobs import DeltaSink, Pipeline


class Params(BaseModel):
    root: str


pipeline = Pipeline("payments", params=Params)


@pipeline.source(bounded=True)
def payments(spark, params):
    return spark.readStream.format("delta").load(f"{params.root}/in")
"""
AT_MODULE_LEVEL = """
import pandas as pd
from pyspark.sql import functions as F
from pyspark.sql.functions import col, expr
from pyspark.sql.types import LongType, StructType

IS_ORDER = col("kind") == "order"
CENTS = (expr("amount * 100") + F.lit(0)).cast(LongType()).alias("cents")
SIZE = F.when(F.col("amount") > 10, "big").otherwise(F.lit("small")).alias("size")
NOTE = StructType.fromDDL("gift BOOLEAN")
GIFT = F.from_json("note", NOTE).getField("gift").alias("gift")


@F.udf("double")
def doubled(amount):
    return 2 * amount


@F.pandas_udf("double")
def halved(amount: pd.Series) -> pd.Series:
    return amount / 2


DOUBLED = doubled("amount").alias("doubled")
CHOSEN = [CENTS, SIZE, GIFT, DOUBLED]


@pipeline.stage(sink=DeltaSink("{root}/out"))
def out(payments):
    return payments.where(IS_ORDER).select("amount", *CHOSEN, halved("amount").alias("halved"))
"""
BY_NAME = """
import cleaning
from shop.prices import Price
from pyspark.sql import functions as F


@F.udf("double")
def in_eur(amount, currency):
    from looked_up_late import least

    return max(least(), Price(amount, currency).in_eur())


@pipeline.stage(sink=DeltaSink("{root}/out"))
def out(payments):
    return payments.select("amount", in_eur("amount", "currency").alias("eur"), cleaning.upper("kind").alias("kind"))
"""
NEIGHBOURS = {
    "cleaning.py": """
        import threading
        from pyspark.sql import functions as F
        from pyspark.sql.types import StringType

        LOCK = threading.Lock()


        def in_capitals(text):
            with LOCK:
                return text.upper()


        upper = F.udf(in_capitals, StringType())
    """,
    "looked_up_late.py": "def least():\n    return 5.5\n",
    "shop/__init__.py": "",
    "shop/rates.json": '{"EUR": 1.0, "USD": 0.5}',
    "shop/prices.py": """
        import json
        from dataclasses import dataclass
        from pathlib import Path

        RATES = json.loads((Path(__file__).parent / "rates.json").read_text())


        @dataclass
        class Price:
            amount: float
            currency: str

            def in_eur(self):
                return self.amount * RATES[self.currency]
    """,
}
WITH_COLUMNS = """
from rates import IS_ORDER, to_eur


@pipeline.stage(sink=DeltaSink("{root}/out"))
def out(payments):
    return payments.where(IS_ORDER).select("amount", to_eur("amount", "currency").alias("eur"))
"""
RATES = """
    from pyspark.sql import functions as F

    RATES = {"EUR": 1.0, "USD": 0.5}
    IS_ORDER = F.expr("kind = 'order'")


    def rate_of(currency):
        return RATES[currency]


    @F.udf("double")
    def to_eur(amount, currency):
        return amount * rate_of(currency)
"""


class Folder:
    """A folder with a pipeline, its input, and its home."""

    def __init__(self, root: Path) -> None:
        self.root = root
        write_deltalake(root / "in", pa.Table.from_pylist(ROWS))

    def write(self, files: dict[str, str]) -> None:
        for name, text in files.items():
            path = self.root / "jobs" / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(dedent(text))

    def run(self, entry: str, *, cwd: Path, **conf: str) -> list[dict[str, object]]:
        """Runs the pipeline in a process of its own. Returns the rows of its table, in order."""
        settings = [
            option
            for key, value in ({"spark.master": "local[1]"} | SMALL | conf).items()
            for option in ("--conf", f"{key}={value}")
        ]
        command = [
            sys.executable,
            "-m",
            "spark_jobs",
            "run",
            entry,
            "--home",
            str(self.root / "home"),
            "--param",
            f"root={self.root}",
        ]
        done = subprocess.run([*command, *settings], capture_output=True, text=True, check=False, cwd=cwd)
        assert done.returncode == 0, done.stderr
        rows = pa.table(DeltaTable(self.root / "out").to_pyarrow_table()).to_pylist()
        return sorted(rows, key=lambda row: float(row["amount"]))


@pytest.fixture
def folder(tmp_path: Path) -> Folder:
    return Folder(tmp_path)


# test_udfs_use_modules_and_packages_next_to_the_file_from_any_folder has a file with functions by day.
@pytest.mark.nightly
def test_a_file_may_have_udfs_columns_casts_and_schemas_at_module_level(folder: Folder) -> None:
    folder.write({"payments.py": PIPELINE + AT_MODULE_LEVEL})
    first, second = folder.run(str(folder.root / "jobs/payments.py"), cwd=Path("/"))
    assert first == {"amount": 5.0, "cents": 500, "size": "small", "gift": True, "doubled": 10.0, "halved": 2.5}
    assert second == {"amount": 20.0, "cents": 2000, "size": "big", "gift": False, "doubled": 40.0, "halved": 10.0}


EUR = [
    {"amount": 5.0, "eur": 5.5, "kind": "ORDER"},
    {"amount": 7.0, "eur": 5.5, "kind": "REFUND"},
    {"amount": 20.0, "eur": 10.0, "kind": "ORDER"},
]


def test_udfs_use_modules_and_packages_next_to_the_file_from_any_folder(folder: Folder) -> None:
    folder.write({"payments.py": PIPELINE + BY_NAME, **NEIGHBOURS})
    assert folder.run(str(folder.root / "jobs/payments.py"), cwd=Path("/")) == EUR


@pytest.mark.nightly
def test_a_helper_module_may_have_udfs_and_columns_at_module_level(folder: Folder) -> None:
    folder.write({"payments.py": PIPELINE + WITH_COLUMNS, "rates.py": RATES})
    assert folder.run(str(folder.root / "jobs/payments.py"), cwd=Path("/")) == [
        {"amount": 5.0, "eur": 5.0},
        {"amount": 20.0, "eur": 10.0},
    ]


def test_a_pipeline_in_a_package_is_named_by_its_module(folder: Folder) -> None:
    text = PIPELINE + WITH_COLUMNS.replace("from rates", "from .rates")
    folder.write({"billing/payments.py": text, "billing/rates.py": RATES, "billing/__init__.py": ""})
    assert folder.run("billing.payments", cwd=folder.root / "jobs") == [
        {"amount": 5.0, "eur": 5.0},
        {"amount": 20.0, "eur": 10.0},
    ]


@pytest.mark.nightly  # two JVMs more; the tests above also fail if workers are sent nothing
def test_the_workers_of_a_cluster_receive_the_modules_that_the_file_imports(folder: Folder, tmp_path: Path) -> None:
    folder.write({"payments.py": PIPELINE + BY_NAME, **NEIGHBOURS})
    executor = {"spark.executor.memory": "512m", "spark.executor.cores": "1"}
    with spark_cluster(tmp_path / "cluster") as cluster:
        conf = {"spark.master": cluster.master, **executor, **SHORT_RUN, **delta_on_this_host()}
        assert folder.run(str(folder.root / "jobs/payments.py"), cwd=Path("/"), **conf) == EUR
