import pytest

from spark_jobs.api.load import load_pipeline
from spark_jobs.api.stage import OutputMode
from spark_jobs.protocol.documents import SinkMode
from spark_jobs.protocol.errors import InvalidPipelineError
from tests.unit.declarative.conftest import Project


def view(body: str, name: str = "totals") -> str:
    return f"@dp.materialized_view(comment='kept')\ndef {name}():\n    return {body}\n"


@pytest.mark.parametrize(
    "body",
    [
        'spark.read.table("orders").groupBy("id").count()',
        'spark.table("orders").agg(F.count("*").alias("n")).where("n > 1")',
        'spark.table("orders").na.fill(0).cube("id").agg(F.max("at")).select("id")',
        'spark.table("orders").select(F.count("*").alias("n"), F.max("at"))',
        'spark.table("orders").selectExpr("count(*) AS n")',
    ],
)
def test_a_grouped_view_is_published_completely_with_each_checkpoint(orders: Project, body: str) -> None:
    orders.write("views.py", view(body))
    stage = orders.load().graph().stages["totals"]  # type: ignore[index]
    assert list(stage.inputs) == ["orders"]
    assert stage.output_mode is OutputMode.COMPLETE
    assert stage.sink is not None
    assert (stage.sink.mode, stage.sink.design.comment) == (SinkMode.COMPLETE, "kept")


def test_a_row_by_row_view_gets_only_new_rows(orders: Project) -> None:
    orders.write("views.py", view('spark.read.table("orders").where("id > 1")'))
    assert {stage.output_mode for stage in orders.load().graph().stages.values()} == {OutputMode.APPEND}


def test_a_view_becomes_a_part_of_the_stages_that_read_it(orders: Project) -> None:
    orders.write(
        "views.py",
        view('spark.read.table("orders").groupBy("id").count()')
        + view('spark.table("totals").orderBy("count")', "sorted")
        + view('spark.table("raw.rates")', "rates")
        + '@dp.table\ndef rated():\n    return spark.readStream.table("orders").join(spark.table("rates"), "id")\n',
    )
    stages = {str(name): stage for name, stage in orders.load().graph().stages.items()}
    assert list(stages["sorted"].inputs) == ["orders"]
    assert stages["sorted"].output_mode is OutputMode.COMPLETE
    assert list(stages["rated"].inputs) == ["orders", "static_rates"]


@pytest.mark.parametrize(("entry", "bounded", "refresh"), [("", True, "round"), (":live", False, "unpinned")])
def test_a_view_of_other_tables_is_computed_again_by_each_run_or_at_an_interval(
    project: Project, entry: str, bounded: bool, refresh: str
) -> None:
    project.write("views.py", view('spark.table("raw.rates").orderBy("id").limit(3)') + view("spark.range(10)", "numbers"))
    graph = load_pipeline(f"{project.folder}/spark-pipeline.yml{entry}").graph()
    stages = {str(name): stage for name, stage in graph.stages.items()}
    assert list(stages["totals"].inputs) == ["totals_clock", "static_rates"]
    assert list(stages["numbers"].inputs) == ["numbers_clock"]
    assert {stage.sink.mode for stage in stages.values() if stage.sink} == {SinkMode.COMPLETE}
    assert {source.bounded for source in graph.sources.values()} == {bounded}
    assert [static.refresh.value for static in graph.statics.values()] == [refresh]


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        (view('spark.readStream.table("raw.rates")'), r"\[INVALID_FLOW_QUERY_TYPE.STREAMING_RELATION_FOR_MATERIALIZED_VIEW\]"),
        (
            view('spark.table("orders").withWatermark("at", "1 hour")'),
            "sets a watermark, but no row of a materialized view is late",
        ),
        (
            view('spark.table("orders").select(*spark.table("orders").columns)'),
            "asks for columns while its inputs are looked for",
        ),
        (
            view('spark.table("orders")') + '@dp.append_flow(target="totals")\ndef more():\n    return spark.table("orders")\n',
            "other flows write into the materialized view 'totals': more",
        ),
    ],
)
def test_a_view_that_cannot_be_kept_up_to_date_is_refused_with_its_line(orders: Project, text: str, problem: str) -> None:
    orders.write("views.py", text)
    assert str(orders.refused(problem)).startswith("transformations/views.py, line 3: ")


RANKED = """
from pyspark.sql import Window

RANK = F.rank().over(Window.partitionBy("id").orderBy("id"))
"""
NEWEST = """
dp.create_streaming_table("newest")
dp.create_auto_cdc_flow(target="newest", source="orders", keys=["id"], sequence_by="at")
"""


@pytest.mark.parametrize(
    ("body", "inputs"),
    [
        ('spark.table("orders").join(spark.table("raw.rates"), "id")', ["orders", "static_rates"]),
        ('spark.table("orders").groupBy("id").count().join(spark.table("raw.rates"), "id")', ["orders", "static_rates"]),
        ('spark.sql("SELECT * FROM orders JOIN raw.rates USING (id)")', ["orders", "static_rates"]),
        ('spark.table("newest").where("id > 1")', ["newest"]),
        ('spark.sql("SELECT max(id) AS id FROM newest")', ["newest"]),
        ('spark.table("orders").orderBy("at").limit(3)', ["orders"]),
        ('spark.table("orders").limit(3).groupBy("id").count()', ["orders"]),
        ('spark.sql("SELECT id, rank() OVER (ORDER BY at) AS place FROM orders")', ["orders"]),
        ('spark.sql("SELECT id FROM orders ORDER BY at LIMIT 3")', ["orders"]),
        ('spark.table("orders").withColumn("place", F.rank().over(Window.orderBy("at")).alias("n") + 1)', ["orders"]),
        ('spark.table("orders").selectExpr("id", "rank() OVER (ORDER BY at) AS place")', ["orders"]),
        ('spark.table("orders").select("id", RANK.alias("place"))', ["orders"]),
        ('spark.table("orders").groupBy("id").count().select("id", RANK)', ["orders"]),
        ('spark.table("orders").agg(F.count_distinct("id"))', ["orders"]),
        ('spark.table("orders").groupBy("at").agg(F.count_distinct("id").alias("n"))', ["orders"]),
        ('spark.table("orders").groupBy("at").pivot("id", [1, 2]).count()', ["orders"]),
        ('spark.table("orders").groupBy("id").count().groupBy("count").count()', ["orders"]),
        ('spark.table("orders").groupBy("id").count().distinct()', ["orders"]),
        ('spark.table("orders").join(spark.table("orders"), "id", "left")', ["orders"]),
        ('spark.table("orders").join(spark.table("orders"), on="id", how="left_anti")', ["orders"]),
        ('spark.table("orders").join(spark.table("orders"), "id").groupBy("id").count()', ["orders"]),
        ('spark.table("orders").join(spark.table("orders").groupBy("id").count(), "id")', ["orders"]),
        ('spark.range(3).join(spark.table("orders"), "id", "left")', ["orders"]),
        ('spark.table("orders").join(spark.range(3), "id", "full")', ["orders"]),
        ('spark.table("orders").subtract(spark.table("orders"))', ["orders"]),
        ('spark.table("orders").groupBy("id").count().union(spark.table("orders").groupBy("at").count())', ["orders"]),
        ('spark.table("orders").union(spark.range(3))', ["orders"]),
        ('spark.table("orders").crossJoin(spark.table("orders"))', ["orders"]),
        ('spark.table("orders").alias("a").join(spark.table("orders").alias("b"), F.expr("a.id < b.id"))', ["orders"]),
        ('spark.table("orders").where(F.col("at") > F.current_timestamp() - F.expr("INTERVAL 1 DAY"))', ["orders"]),
        ('spark.table("orders").where("at > now() - INTERVAL 1 DAY").groupBy("id").count()', ["orders"]),
        ('spark.table("orders").groupBy("id").applyInPandas(lambda rows: rows, "id LONG")', ["orders"]),
        ('spark.table("orders").groupBy("id").count().select(F.max("count"))', ["orders"]),
        (
            '(lambda groups: groups.cogroup(groups).applyInPandas(max, "id LONG"))(spark.table("orders").groupBy("id"))',
            ["orders"],
        ),
        ('spark.table("orders").describe("id")', ["orders"]),
        ('spark.table("orders").cache().where("id > 1")', ["orders"]),
        ('spark.table("orders").groupBy("id").count().groupingSets([["id"]], "id").count()', ["orders"]),
        ('spark.sql("SELECT max(n) FROM (SELECT count(*) AS n FROM orders GROUP BY id)")', ["orders"]),
        ('spark.sql("SELECT a.id, count(*) AS n FROM orders a, orders b GROUP BY a.id")', ["orders"]),
    ],
)
def test_a_view_that_no_stream_can_maintain_is_computed_from_tables_at_the_end_of_each_run(
    orders: Project, body: str, inputs: list[str]
) -> None:
    orders.write("views.py", RANKED + NEWEST + view(body))
    stage = orders.load().graph().stages["totals"]  # type: ignore[index]
    assert stage.reads_tables
    assert list(stage.inputs) == ["totals_clock", *inputs]
    assert stage.sink is not None
    assert stage.sink.mode is SinkMode.COMPLETE


@pytest.mark.parametrize(
    "body",
    [
        'spark.table("orders").join(spark.table("orders"), "id")',
        'spark.table("orders").dropna().withColumnRenamed("id", "n").repartition(3).melt(["n"], ["at"], "k", "v")',
        'spark.table("orders").join(other=spark.table("orders"), on=["id"])',
        'spark.table("orders").join(spark.table("orders"), F.col("x.id") == F.col("y.id"))',
        'spark.table("orders").join(spark.table("orders"), [F.expr("x.id = y.id")])',
        'spark.table("orders").union(spark.table("orders")).groupBy("id").count()',
        'spark.table("orders").join(F.broadcast(spark.range(3)), "id", "left")',
        'spark.range(3).join(spark.table("orders"), "id", "right")',
        'spark.table("orders").join(spark.range(3), "id").groupBy("id").agg(F.approx_count_distinct("at"))',
        'spark.sql("SELECT * FROM orders a JOIN orders b USING (id)")',
        'spark.table("orders").select("id", F.window("at", "1 hour")).distinct()',
    ],
)
def test_a_view_that_a_stream_can_maintain_is_up_to_date_at_each_checkpoint(orders: Project, body: str) -> None:
    orders.write("views.py", view(body))
    stage = orders.load().graph().stages["totals"]  # type: ignore[index]
    assert not stage.reads_tables


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        (
            'spark.table("orders").join(spark.table("raw.rates"), "id")',
            "it also reads 'static_rates', which is not of the project",
        ),
        ('spark.table("newest")', "it reads a table whose rows an AUTO CDC flow replaces"),
        ('spark.table("orders").limit(3)', "its query needs all rows"),
    ],
)
def test_a_live_project_refuses_a_view_that_no_stream_can_maintain(orders: Project, body: str, reason: str) -> None:
    orders.write("views.py", view(body) + NEWEST)
    with pytest.raises(
        InvalidPipelineError, match=f"{reason}. A live project has no end at which it could be computed"
    ) as caught:
        load_pipeline(f"{orders.folder}/spark-pipeline.yml:live").graph()
    assert str(caught.value).startswith("transformations/views.py, line 3: ")


def test_a_stream_of_a_view_is_refused(orders: Project) -> None:
    orders.write(
        "views.py", view('spark.table("orders")') + '@dp.table\ndef more():\n    return spark.readStream.table("totals")\n'
    )
    orders.refused("reads the materialized view 'totals' as a stream, but its rows change")


def test_a_view_of_the_project_cannot_be_joined_as_a_batch(orders: Project) -> None:
    groups = view('spark.table("orders").groupBy("id").count()')
    joined = '@dp.table\ndef more():\n    return spark.readStream.table("orders").join(spark.table("totals"), "id")\n'
    orders.write("views.py", groups + joined)
    orders.refused("the flow 'more' reads the table 'orders' of the project as a batch")
