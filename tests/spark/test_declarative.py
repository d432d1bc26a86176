"""Spark Declarative Pipelines projects, run as pipelines and compared with batch queries over the same files."""

import json
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from deltalake import DeltaTable
from pyspark.pipelines.init_cli import init
from pyspark.sql import DataFrame, SparkSession

from benchmarks.site import COLD_SETTINGS
from benchmarks.spark_pipelines import catalog_settings, run_spark_pipelines
from spark_jobs.api.load import load_pipeline
from spark_jobs.api.stage import OutputMode
from spark_jobs.control.checkpoint_requests import CheckpointRequests, request_id
from spark_jobs.protocol.checkpoint_requests import Wanted
from spark_jobs.protocol.checkpointing import CheckpointOverrides
from spark_jobs.protocol.documents import RestoreFrom
from spark_jobs.protocol.start_requests import StartOptions
from spark_jobs.runtime.spark import jvm_options
from tests.spark.conftest import Site
from tests.spark.rows import answer, assert_same, counted, public, public_count
from tests.support.running import Running
from tests.support.short_jvm import INTERPRETED, SHORT_RUN

pytestmark = pytest.mark.spark

ROOT = Path(__file__).parents[2]

SMALL = {**COLD_SETTINGS, **INTERPRETED, "spark.sql.shuffle.partitions": "1"}
"""Settings that make a separate process cheap. No row depends on them."""

SPECIFICATION = """
name: shop
storage: file:///not-used
configuration: {{shop.incoming: "{incoming}"}}
libraries: [{{glob: {{include: transformations/**}}}}]
"""
ORDERS = """
from pyspark import pipelines as dp
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F


@dp.table(schema="id INT, user INT, at TIMESTAMP, amount DECIMAL(10, 2)", partition_cols=["user"])
def orders() -> DataFrame:
    rows = SparkSession.active().readStream.schema("id LONG, user INT, at TIMESTAMP, amount DOUBLE")
    return rows.parquet(spark.conf.get("shop.incoming")).where("amount > 0")


@dp.temporary_view
def named():
    users = spark.createDataFrame([(n, f"user {n}") for n in range(7)], "user INT, name STRING")
    return spark.readStream.table("orders").join(F.broadcast(users), "user")


@dp.table(name="hourly")
def windows():
    read = spark.readStream.table("default.orders").where("id >= 0").withWatermark("at", "10 minutes")
    return read.groupBy(F.window("at", "1 hour").alias("w")).agg(F.count("*").alias("n")).select(F.col("w.start").alias("hour"), "n")


dp.create_streaming_table("notable")


@dp.append_flow(target="notable")
def large():
    rows = spark.readStream.table("named").where("amount > 90")
    return rows.select([column for column in rows.columns if column != "amount"])


@dp.append_flow(target="notable")
def early():
    return spark.table("named").where("id < 10").select("id", F.lit("early").alias("why"))


@dp.materialized_view
def totals():
    groups = spark.read.table("orders").groupBy("user").agg(F.count("*").alias("n"), F.sum("amount").alias("amount"))
    return groups.where("n > 65")


@dp.materialized_view(schema="id LONG, name STRING")
def cheap():
    return spark.table("named").where("amount < 10").select("id", "name")


@dp.materialized_view
def far():
    return spark.table("cheap").selectExpr("id * 2000000000 AS far")


dp.create_streaming_table("newest")
dp.create_auto_cdc_flow(
    target="newest", source="orders", keys=["user"], sequence_by="id", apply_as_deletes="amount > 90", except_column_list=["at"]
)
"""

RAW = """
from pyspark import pipelines as dp


@dp.temporary_view
def raw():
    rows = spark.readStream.schema("id LONG, user INT, at TIMESTAMP, amount DOUBLE")
    return rows.parquet(spark.conf.get("shop.incoming"))


@dp.table
def late_ids():
    return spark.sql("SELECT orders.id, user FROM STREAM orders WHERE id >= 300").where("user > 0")


dp.create_streaming_table("newest")
dp.create_auto_cdc_flow(target="newest", source="orders", keys=["user"], sequence_by="id", except_column_list=["at"])
"""
TABLES = """
-- All orders; amounts have cents.
CREATE STREAMING TABLE orders (id INT, user INT COMMENT 'who', at TIMESTAMP, amount DECIMAL(10, 2)) USING delta
  PARTITIONED BY (user) COMMENT 'orders; all' TBLPROPERTIES ('delta.appendOnly' = 'true')
  AS SELECT * FROM STREAM raw WHERE amount > 0;

CREATE STREAMING TABLE hourly AS
  SELECT w.start AS hour, n, text FROM (
    SELECT window(at, '1 hour') AS w, count(*) AS n, 'a;b' AS text
    FROM STREAM default.orders WATERMARK at DELAY OF INTERVAL 10 MINUTES GROUP BY window(at, '1 hour'));

CREATE TEMPORARY VIEW large AS
  WITH orders AS (SELECT * FROM STREAM orders WHERE orders.amount > 90), unused AS (SELECT 1) SELECT orders.* FROM orders;
CREATE STREAMING TABLE notable CLUSTER BY (id);
CREATE FLOW of_amount AS INSERT INTO notable BY NAME SELECT id, amount, 'large' AS why FROM STREAM large;
SET spark.sql.ansi.enabled = false;
CREATE FLOW of_time AS INSERT INTO notable BY NAME
  SELECT o.id, CAST('none' AS INT) AS zero, 'early' AS why FROM STREAM(orders) o LEFT ANTI JOIN range(5) r ON o.id = r.id WHERE o.id < 10;

CREATE MATERIALIZED VIEW totals CLUSTER BY (user) AS
  SELECT user, count(*) AS n, sum(amount) AS amount FROM orders GROUP BY user HAVING count(*) > 50;
CREATE MATERIALIZED VIEW cheap AS SELECT id, upper(concat('user ', user)) AS name FROM orders WHERE amount < 10;
CREATE MATERIALIZED VIEW users AS SELECT DISTINCT user FROM orders;
"""


def project(folder: Path, **files: str) -> str:
    transformations = folder / "project" / "transformations"
    transformations.mkdir(parents=True, exist_ok=True)
    (folder / "project" / "spark-pipeline.yml").write_text(SPECIFICATION.format(incoming=folder / "incoming"))
    for name, text in files.items():
        stem, _, suffix = name.rpartition("_")
        (transformations / f"{stem}.{suffix}").write_text(text)
    return str(folder / "project" / "spark-pipeline.yml")


def deliver(folder: Path, first: int, last: int) -> None:
    """Writes a file of orders, one every two minutes from midnight on."""
    ids = pd.Series(range(first, last))
    rows = pd.DataFrame(
        {
            "id": ids,
            "user": (ids % 7).astype("int32"),
            "at": (pd.Timestamp("2026-03-02", tz="UTC") + pd.to_timedelta(ids * 2, unit="min")).astype("datetime64[us, UTC]"),
            "amount": (ids * 37 % 103 - 5).astype(float),
        }
    )
    (folder / "incoming").mkdir(exist_ok=True)
    rows.to_parquet(folder / "unfinished", index=False)
    (folder / "unfinished").rename(folder / "incoming" / f"{first}.parquet")


def rows(frame: DataFrame) -> list[Any]:
    return sorted((tuple(row) for row in frame.collect()), key=str)


def after_two_runs(site: Site, root: Path, entry: str) -> SparkSession:
    """Runs a project with 400 orders, and with 100 more to its end. Returns a session in UTC for the batch queries."""
    deliver(root, 0, 400)
    site.run(load_pipeline(entry).rewired({}, str(site.tables)))
    deliver(root, 400, 500)
    site.run(load_pipeline(entry).rewired({}, str(site.tables)), on_end="drain")
    spark = site.spark.newSession()
    spark.conf.set("spark.sql.session.timeZone", "UTC")
    return spark


def test_a_project_gives_the_tables_of_batch_queries_and_goes_on_in_the_next_run(site: Site, tmp_path: Path) -> None:
    entry = project(tmp_path, orders_py=ORDERS)
    spark = after_two_runs(site, tmp_path, entry)
    spark.read.parquet(str(tmp_path / "incoming")).where("amount > 0").createOrReplaceTempView("orders")
    _same(spark, site, "orders", "SELECT CAST(id AS INT) AS id, user, at, CAST(amount AS DECIMAL(10, 2)) AS amount FROM orders")
    _same(spark, site, "hourly", "SELECT date_trunc('HOUR', at) AS hour, COUNT(*) AS n FROM orders GROUP BY 1")
    _same(
        spark,
        site,
        "notable",
        """
        SELECT user, CAST(id AS INT) AS id, at, CONCAT('user ', user) AS name, NULL AS why FROM orders WHERE amount > 90
        UNION ALL SELECT NULL, CAST(id AS INT), NULL, NULL, 'early' FROM orders WHERE id < 10
        """,
    )
    _same(
        spark,
        site,
        "newest",
        """
        SELECT CAST(id AS INT) AS id, user, CAST(amount AS DECIMAL(10, 2)) AS amount FROM orders
        WHERE (user, id) IN (SELECT user, MAX(id) FROM orders GROUP BY user) AND amount <= 90
        """,
    )
    _same(
        spark,
        site,
        "totals",
        "SELECT user, COUNT(*) AS n, SUM(CAST(amount AS DECIMAL(10, 2))) AS amount FROM orders GROUP BY user HAVING n > 65",
    )
    _same(spark, site, "cheap", "SELECT CAST(id AS INT) AS id, CONCAT('user ', user) AS name FROM orders WHERE amount < 10")
    _same(spark, site, "far", "SELECT CAST(id AS LONG) * 2000000000 AS far FROM orders WHERE amount < 10")


def test_a_project_in_sql_gives_the_tables_of_batch_queries(site: Site, tmp_path: Path) -> None:
    entry = project(tmp_path, raw_py=RAW, tables_sql=TABLES)
    spark = after_two_runs(site, tmp_path, entry)
    spark.read.parquet(str(tmp_path / "incoming")).where("amount > 0").selectExpr(
        "CAST(id AS INT) AS id", "user", "at", "CAST(amount AS DECIMAL(10, 2)) AS amount"
    ).createOrReplaceTempView("orders")
    _same(spark, site, "orders", "SELECT * FROM orders")
    _same(spark, site, "hourly", "SELECT date_trunc('HOUR', at) AS hour, COUNT(*) AS n, 'a;b' AS text FROM orders GROUP BY 1")
    _same(
        spark,
        site,
        "notable",
        """
        SELECT id, amount, 'large' AS why, CAST(NULL AS INT) AS zero FROM orders WHERE amount > 90
        UNION ALL SELECT id, NULL, 'early', NULL FROM orders WHERE id BETWEEN 5 AND 9
        """,
    )
    _same(spark, site, "totals", "SELECT user, COUNT(*) AS n, SUM(amount) AS amount FROM orders GROUP BY user HAVING n > 50")
    _same(spark, site, "cheap", "SELECT id, CONCAT('USER ', user) AS name FROM orders WHERE amount < 10")
    _same(spark, site, "late_ids", "SELECT id, user FROM orders WHERE id >= 300 AND user > 0")
    _same(spark, site, "users", "SELECT DISTINCT user FROM orders")
    _same(
        spark,
        site,
        "newest",
        "SELECT id, user, amount FROM orders WHERE (user, id) IN (SELECT user, MAX(id) FROM orders GROUP BY user)",
    )
    table = DeltaTable(str(site.tables / "orders"))
    assert (table.metadata().partition_columns, table.metadata().description) == (["user"], "orders; all")
    assert table.metadata().configuration["delta.appendOnly"] == "true"


CUSTOMERS = """
from pyspark import pipelines as dp
from pyspark.sql.functions import col, struct


@dp.temporary_view
def changes():
    rows = spark.readStream.schema("customer LONG, name STRING, operation STRING, at TIMESTAMP, number LONG")
    return rows.json(spark.conf.get("shop.incoming"))


dp.create_streaming_table("customers", schema="customer INT, name STRING")
dp.create_auto_cdc_flow(
    target="customers",
    source="changes",
    keys=["customer"],
    sequence_by=struct("at", "number"),
    apply_as_deletes=col("operation") == "DELETE",
    except_column_list=["operation", "at", "number"],
)
dp.create_streaming_table("names")
dp.create_auto_cdc_flow(
    target="names", source="changes", keys=["name"], sequence_by="-number", apply_as_deletes="operation = 'DELETE'", column_list=["name"]
)
"""


def test_a_change_flow_can_order_and_delete_rows_by_columns_that_are_computed_or_left_out(site: Site, tmp_path: Path) -> None:
    entry = project(tmp_path, customers_py=CUSTOMERS)
    lines: list[dict[str, Any]]
    numbers = [number * 37 % 101 for number in range(100)]  # changes come in another order than they happened
    lines = [
        {"customer": n % 13, "name": f"name {n % 17}", "operation": "DELETE" if n % 5 == 0 else "UPSERT", "number": n}
        | {"at": f"2026-03-02T00:{n // 30:02}:00Z"}
        for n in numbers
    ]
    (tmp_path / "incoming").mkdir()
    for first in (0, 50):
        (tmp_path / "incoming" / f"{first}.json").write_text("\n".join(map(json.dumps, lines[first : first + 50])))
        site.run(load_pipeline(entry).rewired({}, str(site.tables)))
    last, earliest = dict[int, dict[str, Any]](), dict[str, dict[str, Any]]()
    for line in sorted(lines, key=lambda line: line["number"]):
        last[line["customer"]] = line
        earliest.setdefault(line["name"], line)
    customers = DeltaTable(str(site.tables / "customers")).to_pyarrow_table().select(["customer", "name"]).to_pylist()
    names = DeltaTable(str(site.tables / "names")).to_pyarrow_table()["name"].to_pylist()
    kept = [(line["customer"], line["name"]) for line in last.values() if line["operation"] != "DELETE"]
    assert sorted((row["customer"], row["name"]) for row in customers) == sorted(kept)
    assert sorted(names) == sorted(name for name, line in earliest.items() if line["operation"] != "DELETE")


IN_A_STORE = """
from pyspark import pipelines as dp


@dp.table(partition_cols=["user"])
def orders():
    return spark.readStream.schema("id LONG, user INT, amount DOUBLE").parquet(spark.conf.get("shop.incoming"))


@dp.materialized_view
def totals():
    return spark.read.table("orders").groupBy("user").count()


dp.create_streaming_table("newest")
dp.create_auto_cdc_flow(target="newest", source="orders", keys=["user"], sequence_by="id")
"""


@pytest.mark.nightly
@pytest.mark.stores
def test_tables_that_were_created_in_a_store_without_their_columns_get_the_rows_of_a_project(
    store_site: Site, tmp_path: Path
) -> None:
    entry = project(tmp_path, orders_py=IN_A_STORE)
    with Path(entry).open("a") as specification:
        specification.write("database: shop\n")
    spark = store_site.spark
    spark.sql("CREATE SCHEMA shop")
    try:
        for table in ("orders (id LONG, user INT) USING delta PARTITIONED BY (user)", "totals USING delta", "newest USING delta"):
            place = store_site.table(table.split()[0]).replace("s3:", "s3a:")
            spark.sql(f"CREATE TABLE shop.{table} LOCATION '{place}'")
        for first in (0, 50):
            deliver(tmp_path, first, first + 50)
            store_site.run(load_pipeline(entry))
        spark.read.parquet(str(tmp_path / "incoming")).selectExpr("id", "user", "amount").createOrReplaceTempView("delivered")
        assert_same(answer(spark.table("shop.orders").select("id", "user", "amount")), answer(spark.table("delivered")))
        assert_same(answer(spark.table("shop.totals")), answer(spark.sql("SELECT user, count(*) FROM delivered GROUP BY user")))
        newest = spark.sql("SELECT * FROM delivered WHERE (user, id) IN (SELECT user, max(id) FROM delivered GROUP BY user)")
        assert_same(answer(spark.table("shop.newest").select("id", "user", "amount")), answer(newest))
    finally:
        spark.sql("DROP SCHEMA shop CASCADE")


def _same(spark: SparkSession, site: Site, table: str, query: str) -> None:
    made, expected = spark.read.format("delta").load(str(site.tables / table)), spark.sql(query)
    assert made.columns == expected.columns
    assert rows(made) == rows(expected)
    assert made.count() > 0


VIEWS_PY = """
from pyspark import pipelines as dp


@dp.materialized_view
def numbers():
    return spark.range(10)


@dp.temporary_view
def raw():
    return spark.readStream.schema("id LONG, user INT, at TIMESTAMP, amount DOUBLE").parquet(spark.conf.get("shop.incoming"))


@dp.materialized_view(comment="all users")
def users():
    users = spark.read.format("delta").load(spark.conf.get("shop.users"))
    return users.where("active").select("user", "name")
"""
VIEWS_SQL = """
CREATE MATERIALIZED VIEW even AS SELECT id FROM numbers WHERE id % 2 = 0;
CREATE MATERIALIZED VIEW first_names AS SELECT name FROM users ORDER BY name DESC LIMIT 2;
CREATE MATERIALIZED VIEW ranked AS SELECT user, rank() OVER (ORDER BY name) AS rank FROM delta.`${shop.users}`;
CREATE MATERIALIZED VIEW how_many AS SELECT count(*) AS n FROM users;
CREATE MATERIALIZED VIEW nobody AS SELECT * FROM users WHERE user < 0;
CREATE STREAMING TABLE named AS SELECT id, name FROM STREAM raw JOIN users ON raw.user = users.user;
CREATE MATERIALIZED VIEW most AS SELECT name, count(*) AS n FROM named GROUP BY name;
CREATE MATERIALIZED VIEW top AS SELECT name, n FROM most ORDER BY n DESC, name LIMIT 2;
"""
OF_USERS = {
    "users": "SELECT user, name FROM users WHERE active",
    "first_names": "SELECT name FROM users WHERE active ORDER BY name DESC LIMIT 2",
    "ranked": "SELECT user, rank() OVER (ORDER BY name) AS rank FROM users",
    "how_many": "SELECT count(*) AS n FROM users WHERE active",
    "nobody": "SELECT user, name FROM users WHERE user < 0",
    "even": "SELECT id FROM VALUES (0), (2), (4), (6), (8) AS t(id)",
    "numbers": "SELECT id FROM range(10)",
    "most": "SELECT name, count(*) AS n FROM named GROUP BY name",
    "top": "SELECT name, count(*) AS n FROM named GROUP BY name ORDER BY n DESC, name LIMIT 2",
}


# The first run of views over tables is tested by day, and stages that compute again have test_stages_that_read_tables.py.
@pytest.mark.nightly
def test_views_of_other_tables_are_computed_again_by_each_run(site: Site, tmp_path: Path) -> None:
    entry = project(tmp_path, views_py=VIEWS_PY, views_sql=VIEWS_SQL)
    specification = Path(entry)
    specification.write_text(specification.read_text().replace("{shop", f'{{shop.users: "{tmp_path / "users"}", shop', 1))
    users = site.spark.createDataFrame(
        [(n, f"name {n * 5 % 7}", n != 3) for n in range(7)], "user INT, name STRING, active BOOLEAN"
    )
    users.write.format("delta").save(str(tmp_path / "users"))
    batch = site.spark.newSession()
    for round_ in range(2):
        deliver(tmp_path, round_ * 40, round_ * 40 + 40)
        if round_:
            site.spark.sql(f"UPDATE delta.`{tmp_path / 'users'}` SET name = concat('new ', name) WHERE user % 2 = 0")
        active = batch.read.format("delta").load(str(tmp_path / "users"))
        site.run(load_pipeline(entry).rewired({}, str(site.tables)))
        active.createOrReplaceTempView("users")
        batch.read.format("delta").load(str(site.tables / "named")).createOrReplaceTempView("named")
        for name, query in OF_USERS.items():
            made = batch.read.format("delta").load(str(site.tables / name))
            assert rows(made) == rows(batch.sql(query)), (round_, name)
    assert DeltaTable(str(site.tables / "users")).metadata().description == "all users"


TABLES_PY = """
from pyspark import pipelines as dp
from pyspark.sql import Window
from pyspark.sql import functions as F

LATEST = F.row_number().over(Window.partitionBy("user").orderBy(F.desc("id")))


@dp.table
def large():
    return spark.readStream.table("orders").where("amount > 60").select("id", F.col("amount").alias("much"))


@dp.materialized_view
def latest():
    return spark.table("orders").withColumn("place", LATEST).where("place = 1").select("user", "id")


@dp.materialized_view
def explained():
    return spark.table("orders").join(spark.table("large"), "id", how="left").select("id", "much")


@dp.materialized_view
def sizes():
    return spark.table("orders").groupBy("user").count().groupBy("count").agg(F.count("*").alias("n"))


@dp.materialized_view
def counted():
    return spark.table("orders").select(F.count("*").alias("n"))


@dp.materialized_view
def of_large():
    return spark.table("orders").join(spark.table("large"), "id").groupBy("user").agg(F.count("*").alias("n"))
"""
TABLES_SQL = """
CREATE STREAMING TABLE orders AS SELECT * FROM STREAM raw WHERE amount > 0;
CREATE MATERIALIZED VIEW unexplained AS SELECT o.id FROM orders o LEFT ANTI JOIN large l ON o.id = l.id;
CREATE MATERIALIZED VIEW placed AS SELECT user, rank() OVER (ORDER BY count(*) DESC, user) AS place FROM orders GROUP BY user;
CREATE MATERIALIZED VIEW how_many AS SELECT count(DISTINCT user) AS n FROM orders;
CREATE MATERIALIZED VIEW most AS SELECT max(n) AS n FROM (SELECT count(*) AS n FROM orders GROUP BY user);
CREATE MATERIALIZED VIEW small AS SELECT id FROM orders EXCEPT SELECT id FROM large;
CREATE MATERIALIZED VIEW above AS SELECT id FROM orders WHERE amount > (SELECT avg(amount) FROM orders);
CREATE MATERIALIZED VIEW both AS SELECT user, count(*) AS n FROM orders GROUP BY user UNION ALL SELECT id, 0 FROM orders WHERE amount > 90;
CREATE MATERIALIZED VIEW of_three AS SELECT count(*) AS n FROM (SELECT id FROM orders LIMIT 3);
CREATE MATERIALIZED VIEW matched AS SELECT o.id FROM orders o, large l WHERE o.id = l.id;
"""
OF_TABLES = {
    "latest": "SELECT user, max(id) AS id FROM orders GROUP BY user",
    "explained": "SELECT id, CASE WHEN amount > 60 THEN amount END AS much FROM orders",
    "sizes": "SELECT n AS count, count(*) AS n FROM (SELECT count(*) AS n FROM orders GROUP BY user) GROUP BY n",
    "how_many": "SELECT count(DISTINCT user) AS n FROM orders",
    "of_large": "SELECT user, count(*) AS n FROM orders WHERE amount > 60 GROUP BY user",
    "unexplained": "SELECT id FROM orders WHERE amount <= 60",
    "placed": "SELECT user, rank() OVER (ORDER BY count(*) DESC, user) AS place FROM orders GROUP BY user",
    "most": "SELECT count(*) AS n FROM orders GROUP BY user ORDER BY n DESC LIMIT 1",
    "small": "SELECT id FROM orders WHERE amount <= 60",
    "above": "SELECT id FROM orders WHERE amount > (SELECT avg(amount) FROM orders)",
    "both": "SELECT user, count(*) AS n FROM orders GROUP BY user UNION ALL SELECT id, 0 FROM orders WHERE amount > 90",
    "of_three": "SELECT 3L AS n",
    "matched": "SELECT id FROM orders WHERE amount > 60",
    "counted": "SELECT count(*) AS n FROM orders",
}


# tests/unit/declarative/test_query_result.py has each kind of query by day, and the tests above have views.
@pytest.mark.nightly
def test_views_over_tables_have_the_rows_of_batch_queries(site: Site, tmp_path: Path) -> None:
    entry = project(tmp_path, raw_py=RAW.partition("@dp.table")[0], tables_py=TABLES_PY, tables_sql=TABLES_SQL)
    spark = after_two_runs(site, tmp_path, entry)
    spark.read.parquet(str(tmp_path / "incoming")).where("amount > 0").createOrReplaceTempView("orders")
    for table, query in OF_TABLES.items():
        _same(spark, site, table, query)


IN_A_SESSION = {
    'spark.table("orders").groupBy("user").agg((F.count_distinct("id") + 1).alias("n"))': True,
    'spark.table("orders").agg(F.sum_distinct("id"))': True,
    'spark.table("orders").withColumn("place", LATEST)': True,
    'spark.table("orders").where(F.col("at") > F.current_timestamp())': True,
    'spark.table("orders").join(spark.table("large"), F.col("id") > F.col("much"))': True,
    'spark.table("orders").join(spark.table("large"), F.col("orders.id") == F.col("large.id"))': False,
    'spark.table("orders").groupBy("user").agg(F.count("id"), F.approx_count_distinct("id"))': False,
    'spark.table("orders").select(F.max("id"))': False,
}


def test_a_project_has_the_same_stages_if_a_session_is_active(site: Site, tmp_path: Path) -> None:
    head = TABLES_PY.partition("@dp.materialized_view")[0]
    views = "".join(f"@dp.materialized_view\ndef view_{n}():\n    return {text}\n" for n, text in enumerate(IN_A_SESSION))
    orders = "CREATE STREAMING TABLE orders AS SELECT * FROM STREAM raw"
    entry = project(tmp_path, raw_py=RAW.partition("@dp.table")[0], views_py=head + views, orders_sql=orders)
    assert SparkSession.getActiveSession() is not None
    stages = {str(name): stage for name, stage in load_pipeline(entry).graph().stages.items()}
    assert {text: stages[f"view_{n}"].reads_tables for n, text in enumerate(IN_A_SESSION)} == IN_A_SESSION
    assert stages["view_7"].output_mode is OutputMode.COMPLETE


def run_project(way: str, root: Path, texts: Mapping[str, str]) -> str:
    """Runs a project with ``spark-jobs`` or with ``spark-pipelines``, in a process of its own. Returns the answer.

    Args:
        way: ``ours`` or ``sparks``. The project, its catalog and its tables are in this directory of ``root``.
        root: Has the input.
        texts: The project's files, by name.
    """
    directory = root / way
    entry = directory / "project" / "spark-pipeline.yml"
    for folder in (entry.parent / "transformations", directory / "storage"):
        folder.mkdir(parents=True, exist_ok=True)
    for name, text in texts.items():
        (entry.parent / "transformations" / name).write_text(text)
    settings = {"shop.incoming": str(root / "incoming"), "shop.users": str(root / "users")}
    specification = {
        "name": "shapes",
        "storage": (directory / "storage").as_uri(),
        "configuration": settings | ({**catalog_settings(directory), **SMALL, **SHORT_RUN} if way == "ours" else {}),
        "libraries": [{"glob": {"include": "transformations/**"}}],
    }
    entry.write_text(json.dumps(specification))  # JSON is YAML
    if way == "ours":
        command = [sys.executable, "-m", "spark_jobs", "run", str(entry), "--home", str(directory / "home"), "--output", "json"]
        done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=ROOT, timeout=600)
    else:
        done = run_spark_pipelines(entry, directory, SMALL, jvm_options.SHORT_RUN)
    assert done.returncode == 0, (done.stdout + done.stderr)[-6_000:]
    return done.stdout


def assert_equal_tables(root: Path, name: str) -> None:
    """Compares the table that ``spark-jobs`` has made with that of ``spark-pipelines``."""
    made = {way: DeltaTable(str(root / way / "warehouse" / name)).to_pyarrow_table() for way in ("sparks", "ours")}
    columns = sorted(made["ours"].column_names)
    assert columns == sorted(made["sparks"].column_names), name
    assert_same(counted(made["ours"], columns), counted(made["sparks"], columns))


SHAPES_PY = """
from pyspark import pipelines as dp
from pyspark.sql import Window
from pyspark.sql import functions as F


@dp.table(partition_cols=["user"], comment="all orders")
def orders():
    rows = spark.readStream.schema("id LONG, user INT, at TIMESTAMP, amount DOUBLE")
    return rows.parquet(spark.conf.get("shop.incoming")).where("amount > 0")


@dp.temporary_view
def large():
    return spark.readStream.table("orders").where(F.col("amount") > 90)


dp.create_streaming_table("notable")


@dp.append_flow(target="notable")
def because_large():
    return spark.readStream.table("large").select("id", F.lit("large").alias("why"))


@dp.append_flow(target="notable")
def because_early():
    return spark.readStream.table("orders").where("id < 10").select("id", F.lit("early").alias("why"))


@dp.materialized_view
def users():
    return spark.read.format("delta").load(spark.conf.get("shop.users")).where("active").select("user", "name")


@dp.materialized_view
def of_users():
    return spark.read.table("orders").groupBy("user").agg(F.count("*").alias("n"), F.sum("amount").alias("amount"))


@dp.materialized_view
def latest():
    place = F.row_number().over(Window.partitionBy("user").orderBy(F.desc("id")))
    return spark.read.table("orders").withColumn("place", place).where("place = 1").select("user", "id")


@dp.materialized_view
def explained():
    return spark.read.table("orders").join(spark.read.table("notable"), "id", how="left").select("id", "why")


@dp.materialized_view
def of_names():
    return spark.read.table("orders").join(spark.read.table("users"), "user").groupBy("name").agg(F.count_distinct("id").alias("n"))
"""
SHAPES_SQL = """
CREATE STREAMING TABLE named AS SELECT o.id, u.name FROM STREAM(orders) o JOIN users u ON o.user = u.user;
CREATE MATERIALIZED VIEW best AS SELECT name, count(*) AS n FROM named GROUP BY name ORDER BY n DESC, name LIMIT 3;
CREATE MATERIALIZED VIEW cheap AS SELECT id, amount FROM orders WHERE amount < 20;
CREATE MATERIALIZED VIEW ranked AS SELECT name, row_number() OVER (ORDER BY name) AS place FROM users;
CREATE MATERIALIZED VIEW placed AS SELECT user, rank() OVER (ORDER BY count(*), user) AS place FROM orders GROUP BY user;
"""
SHAPES = (
    "orders",
    "notable",
    "users",
    "of_users",
    "latest",
    "explained",
    "of_names",
    "named",
    "best",
    "cheap",
    "ranked",
    "placed",
)
OF_TEMPLATE = ("example_python_materialized_view", "example_sql_materialized_view")


@pytest.mark.nightly
def test_spark_pipelines_and_spark_jobs_give_equal_tables(site: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Runs Spark's own template and the shapes of its guide with both commands, each in a process of its own."""
    users = site.spark.createDataFrame(
        [(n, f"name {n * 5 % 7}", n != 3) for n in range(7)], "user INT, name STRING, active BOOLEAN"
    )
    users.write.format("delta").save(str(tmp_path / "users"))
    deliver(tmp_path, 0, 200)
    monkeypatch.chdir(tmp_path)
    init("template")
    template = tmp_path / "template" / "transformations"
    texts = {file.name: file.read_text() for file in template.iterdir()} | {"shapes.py": SHAPES_PY, "shapes.sql": SHAPES_SQL}
    for way in ("sparks", "ours"):
        run_project(way, tmp_path, texts)
    for name in (*SHAPES, *OF_TEMPLATE):
        assert_equal_tables(tmp_path, name)


DAY_PY = """
from pyspark import pipelines as dp
from pyspark.sql import functions as F


@dp.table(partition_cols=["user"])
def orders():
    rows = spark.readStream.schema("id LONG, user INT, at TIMESTAMP, amount DOUBLE")
    return rows.parquet(spark.conf.get("shop.incoming")).where("amount > 0")


dp.create_streaming_table("notable")


@dp.append_flow(target="notable")
def because_large():
    return spark.readStream.table("orders").where("amount > 90").select("id", F.lit("large").alias("why"))
"""
DAY_SQL = """
CREATE FLOW because_early AS INSERT INTO notable BY NAME SELECT id, 'early' AS why FROM STREAM orders WHERE id < 10;
CREATE MATERIALIZED VIEW explained AS SELECT o.user, n.why FROM orders o LEFT JOIN notable n ON o.id = n.id;
"""
OF_DAY = {
    "orders": "SELECT * FROM orders",
    "notable": "SELECT id, 'large' AS why FROM orders WHERE amount > 90 UNION ALL SELECT id, 'early' FROM orders WHERE id < 10",
    "explained": """
        SELECT user, why FROM orders LEFT JOIN
        (SELECT id, 'large' AS why FROM orders WHERE amount > 90 UNION ALL SELECT id, 'early' FROM orders WHERE id < 10) USING (id)
    """,
}


# By day each table of a project is compared with a batch query; the next run of a project has other tests.
@pytest.mark.nightly
def test_both_commands_make_equal_tables_in_a_catalog_and_ours_finds_them_in_the_next_run(site: Site, tmp_path: Path) -> None:
    texts = {"day.py": DAY_PY, "day.sql": DAY_SQL}
    deliver(tmp_path, 0, 100)
    run_project("ours", tmp_path, texts)
    deliver(tmp_path, 100, 200)
    made = json.loads(run_project("ours", tmp_path, texts))
    run_project("sparks", tmp_path, texts)
    warehouse = tmp_path / "ours" / "warehouse"
    assert {name: sink["table"] for name, sink in made["sinks"].items()} == {name: (warehouse / name).as_uri() for name in OF_DAY}
    spark = site.spark.newSession()
    spark.read.parquet(str(tmp_path / "incoming")).where("amount > 0").createOrReplaceTempView("orders")
    for name, query in OF_DAY.items():
        assert_equal_tables(tmp_path, name)
        assert_same(public(warehouse / name), answer(spark.sql(query)))


DELAYS = """
CREATE STREAMING TABLE orders AS SELECT * FROM STREAM raw;
CREATE STREAMING TABLE quick AS SELECT window(at, '1 hour').start AS hour, count(*) AS n
  FROM STREAM orders WATERMARK at DELAY OF INTERVAL 10 MINUTES GROUP BY window(at, '1 hour');
CREATE STREAMING TABLE patient AS SELECT window(at, '1 hour').start AS hour, count(*) AS n
  FROM STREAM orders WATERMARK at DELAY OF INTERVAL 3 HOURS GROUP BY window(at, '1 hour');
CREATE STREAMING TABLE quick_raw AS SELECT window(at, '1 hour').start AS hour, count(*) AS n
  FROM STREAM raw WATERMARK at DELAY OF INTERVAL 10 MINUTES GROUP BY window(at, '1 hour');
CREATE STREAMING TABLE patient_raw AS SELECT window(at, '1 hour').start AS hour, count(*) AS n
  FROM STREAM raw WATERMARK at DELAY OF INTERVAL 3 HOURS GROUP BY window(at, '1 hour');
"""


# test_own_watermarks.py has a delay for each stage by day.
@pytest.mark.nightly
def test_each_flow_drops_rows_by_its_own_delay(site: Site, tmp_path: Path) -> None:
    once = '@dp.table\ndef once():\n    return spark.readStream.table("orders").dropDuplicates(["id", "at"]).select("id", "at")\n'
    entry = project(tmp_path, raw_py=RAW.partition("@dp.table")[0] + once, delays_sql=DELAYS)
    deliver(tmp_path, 0, 200)
    site.run(load_pipeline(entry).rewired({}, str(site.tables)))
    deliver(tmp_path, 130, 135)  # once more, and more than two hours late
    deliver(tmp_path, 200, 250)
    site.run(load_pipeline(entry).rewired({}, str(site.tables)), on_end="drain")
    spark = site.spark.newSession()
    spark.conf.set("spark.sql.session.timeZone", "UTC")
    all_rows = spark.read.parquet(str(tmp_path / "incoming"))
    all_rows.createOrReplaceTempView("orders")
    all_rows.distinct().createOrReplaceTempView("in_time")
    _same(spark, site, "orders", "SELECT * FROM orders")
    _same(spark, site, "once", "SELECT DISTINCT id, at FROM orders")  # it sets no watermark
    for table, found in {"quick": "in_time", "quick_raw": "in_time", "patient": "orders", "patient_raw": "orders"}.items():
        _same(spark, site, table, f"SELECT date_trunc('HOUR', at) AS hour, count(*) AS n FROM {found} GROUP BY 1")


LIVE = """
CREATE STREAMING TABLE orders AS SELECT * FROM STREAM raw WHERE amount > 0;
CREATE STREAMING TABLE hourly AS
  SELECT window(at, '1 hour').start AS hour, count(*) AS n
  FROM STREAM orders WATERMARK at DELAY OF INTERVAL 10 MINUTES GROUP BY window(at, '1 hour');
CREATE MATERIALIZED VIEW totals AS SELECT user, count(*) AS n, sum(amount) AS amount FROM orders GROUP BY user;
"""


def _totals(site: Site) -> int | None:
    """Returns the number of orders in all groups of the view ``totals``."""
    if not public_count(site.tables / "totals"):
        return None
    counted: list[int] = DeltaTable(str(site.tables / "totals")).to_pyarrow_table()["n"].to_pylist()
    return sum(counted)


def said(*command: str) -> str:
    """Returns the output of a command that succeeds."""
    done = subprocess.run([sys.executable, "-m", "spark_jobs", *command], capture_output=True, text=True, check=False, cwd=ROOT)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


# test_stages_that_read_tables.py computes tables again by day.
@pytest.mark.nightly
def test_a_live_project_publishes_with_each_checkpoint_and_computes_tables_again_after_a_stop(site: Site, tmp_path: Path) -> None:
    entry = project(tmp_path, raw_py=RAW.partition("@dp.table")[0], tables_sql=LIVE)
    deliver(tmp_path, 0, 100)
    pipeline = load_pipeline(f"{entry}:live").rewired({}, str(site.tables))
    options = StartOptions(checkpoint=CheckpointOverrides(interval_ms=1_000))
    spark = site.spark.newSession()
    spark.conf.set("spark.sql.session.timeZone", "UTC")

    def publishes(last: int) -> bool:
        wanted = sum(n * 37 % 103 > 5 for n in range(last))
        return _totals(site) == wanted == public_count(site.tables / "orders")

    with Running(site.spark, pipeline, site.home, options=options) as running:
        running.until(lambda: publishes(100))
        deliver(tmp_path, 100, 200)
        running.until(lambda: publishes(200))
        closed = "CAST('2026-03-02 06:00' AS TIMESTAMP)"  # the newest order is of 06:38, and the delay is ten minutes
        running.until(lambda: public_count(site.tables / "hourly") == 6)
        requests, request = CheckpointRequests(running.files), request_id("kept", Wanted.SAVEPOINT)
        requests.ask(request)
        running.until(lambda: requests.answer_of(request))
        answer = requests.answer_of(request)
        assert answer is not None
        assert answer.savepoint is not None
        home, savepoint = str(site.home), answer.savepoint
        for command in (["status", "--home", home], ["inspect", "--home", home], ["inspect", savepoint]):
            assert "hourly" in said(*command)
        said("verify", savepoint)
        assert "totals" in said("validate", f"{entry}:live", "--no-spark")
        CheckpointRequests(running.files).ask(request_id("now", Wanted.STOP))
        running.stopped()
    spark.read.parquet(str(tmp_path / "incoming")).where("amount > 0").createOrReplaceTempView("orders")
    _same(spark, site, "totals", "SELECT user, COUNT(*) AS n, SUM(amount) AS amount FROM orders GROUP BY user")
    _same(
        spark, site, "hourly", f"SELECT date_trunc('HOUR', at) AS hour, COUNT(*) AS n FROM orders WHERE at < {closed} GROUP BY 1"
    )
    fork = Site(site.spark, tmp_path / "fork")  # the stopped pipeline keeps its tables
    forked = load_pipeline(f"{entry}:live").rewired({}, str(fork.tables))
    deliver(tmp_path, 200, 210)
    restored = options.model_copy(update={"restore": RestoreFrom(savepoint=savepoint)})
    with Running(site.spark, forked, fork.home, options=restored) as running:
        running.until(lambda: public_count(fork.tables / "orders") == sum(n * 37 % 103 > 5 for n in range(200, 210)))
        running.until(lambda: _totals(fork) == sum(n * 37 % 103 > 5 for n in range(210)))
    project(tmp_path, tables_sql=LIVE.replace("amount > 0", "amount > 50"))
    changed = load_pipeline(f"{entry}:live").rewired({}, str(site.tables))
    with Running(site.spark, changed, site.home, options=options.model_copy(update={"full_refresh": ("orders",)})) as running:
        assert "A full refresh of orders also needs hourly" in str(running.ends())
    both = options.model_copy(update={"full_refresh": ("orders", "hourly")})
    with Running(site.spark, changed, site.home, options=both) as running:
        kept = sum(n * 37 % 103 > 55 for n in range(210))
        running.until(lambda: public_count(site.tables / "orders") == kept)
        deliver(tmp_path, 210, 250)
        kept += sum(n * 37 % 103 > 55 for n in range(210, 250))
        running.until(lambda: public_count(site.tables / "orders") == kept and public_count(site.tables / "hourly") == 8)
    spark.read.parquet(str(tmp_path / "incoming")).where("amount > 50").createOrReplaceTempView("orders")
    _same(spark, site, "totals", "SELECT user, COUNT(*) AS n, SUM(amount) AS amount FROM orders GROUP BY user")
    closed = "CAST('2026-03-02 08:00' AS TIMESTAMP)"
    _same(
        spark, site, "hourly", f"SELECT date_trunc('HOUR', at) AS hour, COUNT(*) AS n FROM orders WHERE at < {closed} GROUP BY 1"
    )
