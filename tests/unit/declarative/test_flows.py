from types import SimpleNamespace

import pytest

from spark_jobs.api.graph import Graph
from spark_jobs.protocol.errors import InvalidPipelineError
from tests.unit.declarative.conftest import Project


def inputs(graph: Graph, stage: str) -> list[str]:
    return [str(node.name) for node in graph.stages[stage].inputs.values()]  # type: ignore[index]


def flow(body: str, *lines: str) -> str:
    return "@dp.table\ndef more():\n" + "".join(f"    {line}\n" for line in (*lines, f"return {body}"))


@pytest.mark.parametrize("name", ["orders", "ORDERS", "default.orders", "spark_catalog.default.orders"])
def test_reading_a_table_of_the_project_is_reading_the_stage_that_fills_it(orders: Project, name: str) -> None:
    orders.write("more.py", flow(f'spark.readStream.table("{name}").where("id > 1")'))
    graph = orders.load().graph()
    assert inputs(graph, "more") == ["orders"]
    assert list(graph.sources) == ["source_incoming"]


def test_each_table_or_folder_from_outside_becomes_one_source(orders: Project) -> None:
    same = 'spark.readStream.schema("id LONG, at TIMESTAMP").parquet("/data/incoming/")'
    orders.write("more.py", flow(f'{same}.union(spark.readStream.format("delta").load("/lake/incoming"))'))
    graph = orders.load().graph()
    first, second = inputs(graph, "more")
    assert first == "source_incoming" == inputs(graph, "orders")[0]
    assert second.startswith("source_incoming_")
    assert all(source.bounded for source in graph.sources.values())


@pytest.mark.parametrize(
    ("read", "name"),
    [
        ('spark.readStream.table("raw.events")', "source_events"),
        ('spark.readStream.json("/data/2026-03/*.json")', "source_json"),
        ('spark.readStream.format("delta").load("/lake/events/")', "source_events"),
        ('spark.readStream.format("kafka").option("subscribe", "clicks").load()', "source_clicks"),
        ('spark.readStream.format("parquet").options(path="/data/events").load()', "source_events"),
    ],
)
def test_a_source_is_named_after_the_table_or_folder_that_it_reads(project: Project, read: str, name: str) -> None:
    project.write("more.py", flow(read))
    assert list(project.load().graph().sources) == [name]


@pytest.mark.parametrize(
    ("read", "refresh"),
    [
        ('spark.read.format("delta").load("/lake/rates")', "round"),
        ('spark.read.table("raw.rates")', "round"),
        ('spark.table("raw.rates")', "round"),
        ('spark.read.csv("/data/rates")', "unpinned"),
    ],
)
def test_a_batch_read_is_a_static_input_and_pinned_if_possible(orders: Project, read: str, refresh: str) -> None:
    orders.write("more.py", flow(f'spark.readStream.table("orders").join(F.broadcast({read}), "id")'))
    graph = orders.load().graph()
    assert inputs(graph, "more") == ["orders", "static_rates"]
    assert graph.statics["static_rates"].refresh == refresh  # type: ignore[index]


def test_a_temporary_view_is_part_of_each_flow_that_reads_it(orders: Project) -> None:
    orders.write(
        "more.py",
        """
        @dp.temporary_view
        def good():
            return spark.readStream.table("orders").where(F.col("id") > 0)

        @dp.temporary_view(name="best")
        def best_of_all():
            return spark.readStream.table("good")

        @dp.table
        def one():
            return spark.read.table("best")

        @dp.table
        def two():
            return spark.table("good").select("id")
        """,
    )
    graph = orders.load().graph()
    assert set(graph.stages) == {"orders", "one", "two"}
    assert inputs(graph, "one") == inputs(graph, "two") == ["orders"]


def test_several_flows_into_one_table_are_stages_that_the_stage_of_the_table_unites(orders: Project) -> None:
    orders.write(
        "more.py",
        """
        dp.create_streaming_table("all_orders")

        @dp.append_flow(target="all_orders")
        def ours():
            return spark.readStream.table("orders")

        @dp.append_flow(target="all_orders", name="all_orders", spark_conf={"spark.sql.ansi.enabled": "false"})
        def theirs():
            return spark.readStream.table("raw.theirs")
        """,
    )
    graph = orders.load().graph()
    assert inputs(graph, "all_orders") == ["ours", "all_orders_flow"]
    assert set(graph.sinks) == {"orders", "all_orders"}
    assert graph.stages["all_orders_flow"].conf == {"spark.sql.ansi.enabled": "false"}  # type: ignore[index]


def test_the_only_append_flow_of_a_table_is_its_own_stage_so_that_another_flow_can_be_added(orders: Project) -> None:
    orders.write(
        "more.py",
        """
        dp.create_streaming_table("all_orders")

        @dp.append_flow(target="all_orders")
        def ours():
            return spark.readStream.table("orders")
        """,
    )
    graph = orders.load().graph()
    assert (inputs(graph, "all_orders"), inputs(graph, "ours")) == (["ours"], ["orders"])


def test_rate_limits_on_a_read_of_a_table_of_the_project_change_nothing(orders: Project) -> None:
    orders.write(
        "more.py", flow('spark.readStream.option("maxFilesPerTrigger", 1).options(maxBytesPerTrigger="1g").table("orders")')
    )
    assert inputs(orders.load().graph(), "more") == ["orders"]


def test_a_flow_can_use_all_methods_of_frames_while_its_inputs_are_searched(orders: Project) -> None:
    orders.write(
        "more.py",
        flow(
            "days.transform(lambda frame: frame.drop('z')).unionByName(spark.readStream.table('raw.last'))",
            'read = spark.readStream.table("orders")',
            'pairs = read.where((read.id > 1) & (read["id"] < F.lit(9))).join(spark.range(3), "id")',
            'days = pairs.groupBy(F.window("at", "1 day"), read.id).pivot("id").agg(F.count("*"))',
            "days = days.na.fill(0).union(spark.createDataFrame([(1,)], 'id LONG'))",
        ),
    )
    assert inputs(orders.load().graph(), "more") == ["orders", "source_last"]


def test_a_table_may_have_the_name_of_a_python_keyword(project: Project) -> None:
    project.write(
        "more.py",
        '@dp.table(name="class")\ndef one():\n    return spark.readStream.table("raw.x")\n'
        + flow('spark.readStream.table("class")'),
    )
    assert inputs(project.load().graph(), "more") == ["class"]


def test_a_flow_may_ask_for_the_columns_of_a_frame_after_all_reads(orders: Project) -> None:
    orders.write("more.py", flow("read.select(*read.columns)", 'read = spark.readStream.table("orders")'))
    assert inputs(orders.load().graph(), "more") == ["orders"]


def test_settings_of_the_command_override_those_of_the_project(project: Project) -> None:
    project.specification(
        """
        name: shop
        storage: s
        configuration: {shop.incoming: /data/a, shop.kind: orders}
        libraries: [{glob: {include: transformations/**}}]
        """
    )
    project.write(
        "more.py", flow('spark.readStream.format(spark.conf.get("shop.format", "delta")).load(spark.conf.get("shop.incoming"))')
    )
    assert list(project.load().graph().sources) == ["source_a"]
    assert list(project.load(**{"shop.incoming": "/data/b"}).graph().sources) == ["source_b"]


@pytest.mark.parametrize(
    ("body", "problem"),
    [
        ("None", "the flow 'more' returns NoneType, not a frame"),
        ("1 / 0", "the flow 'more' failed at line 7 when its inputs were looked for: ZeroDivisionError"),
        ("F.lit(spark.conf.get('shop.place'))", "spark.conf has no 'shop.place': add it to configuration"),
        ("spark.read.table('raw.rates').columns", "the flow 'more' asks for columns before it reads a stream"),
        ("spark.range(3)", "the flow 'more' reads no stream"),
        ('spark.read.table("raw.rates")', "the flow 'more' reads no stream"),
        ('spark.read.table("orders")', "reads the table 'orders' of the project as a batch"),
        ('spark.readStream.option("startingVersion", 3).table("orders")', "of the project with the option 'startingversion'"),
        ('spark.readStream.changes("orders")', "of the project by its change feed"),
        ('spark.sql("SELECT 1")', "the flow 'more' reads no stream"),
        ('spark.sql("SELECT * FROM {rows}", rows=spark.table("raw.rates"))', "calls spark.sql with rows in braces"),
        ('spark.sql("SELEC 1")', r"has SQL that cannot run here: .PARSE_SYNTAX_ERROR"),
        ('spark.sql("DROP TABLE x")', "has SQL that cannot run here: DropTable is not a query"),
        ('spark.table("loop")', "reads the view 'loop', which reads itself"),
        (
            'spark.readStream.table("orders").withColumn("t", F.col("at")).withWatermark("t", "1 hour")',
            "sets a watermark on a frame that is not an input as it was read",
        ),
    ],
)
def test_an_unsupported_flow_is_refused_with_its_line(orders: Project, body: str, problem: str) -> None:
    orders.write("more.py", '@dp.temporary_view\ndef loop(): return spark.table("loop")\n' + flow(body))
    assert str(orders.refused(problem)).startswith("transformations/more.py, line 5: ")


def test_one_flow_with_two_watermarks_on_one_input_is_refused(orders: Project) -> None:
    read = 'spark.readStream.table("orders").withWatermark("at", "{}")'
    orders.write("more.py", flow(f"{read.format('1 hour')}.union({read.format('2 hours')})"))
    orders.refused("reads 'orders' with the watermarks .*1 hour.* and .*2 hours")


def test_a_flow_that_reads_another_input_when_it_runs_is_refused(orders: Project) -> None:
    orders.write("more.py", 'reads = iter(["orders", "raw.other"])\n' + flow("spark.readStream.table(next(reads))"))
    stage = orders.load().graph().stages["more"]  # type: ignore[index]
    frame = SimpleNamespace(sparkSession=None, isStreaming=True)
    with pytest.raises(
        InvalidPipelineError, match="'more' reads 'source_other', which it did not read when its inputs were searched"
    ):
        stage.function(orders=frame)
