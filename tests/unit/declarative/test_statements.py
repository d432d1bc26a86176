import pytest

from spark_jobs.api.stage import OutputMode
from spark_jobs.protocol.documents import SinkMode
from tests.unit.declarative.conftest import Project


def test_a_project_of_sql_files_is_a_pipeline(project: Project) -> None:
    project.specification(
        """
        name: shop
        storage: file:///storage
        database: sales
        configuration: {shop.incoming: /data/incoming}
        libraries: [{glob: {include: transformations/**}}]
        """
    )
    project.write(
        "tables.sql",
        """
        CREATE STREAMING TABLE orders (id INT NOT NULL, region STRING COMMENT 'of the shop') USING DELTA
          PARTITIONED BY (region) COMMENT 'all; of them' TBLPROPERTIES ('delta.appendOnly' = 'true')
          AS SELECT * FROM STREAM json.`${shop.incoming}`;

        CREATE STREAMING TABLE hourly CLUSTER BY (hour) AS
          SELECT window(at, '1 hour').start AS hour, count(*) AS n
          FROM STREAM sales.orders WATERMARK at DELAY OF INTERVAL 10 MINUTES GROUP BY window(at, '1 hour');

        CREATE TEMPORARY VIEW large AS SELECT * FROM STREAM orders WHERE amount > 90;
        CREATE STREAMING TABLE notable;
        CREATE FLOW of_amount AS INSERT INTO notable BY NAME SELECT * FROM STREAM large;
        SET spark.sql.ansi.enabled = false;
        CREATE FLOW of_rates AS INSERT INTO sales.notable BY NAME SELECT * FROM STREAM(orders) JOIN raw.rates USING (day);
        CREATE MATERIALIZED VIEW totals AS SELECT region, count(*) AS n FROM orders GROUP BY region;
        CREATE MATERIALIZED VIEW cheap AS SELECT * FROM orders WHERE amount < 10;
        """,
    )
    graph = project.load().graph()
    assert {name: list(stage.inputs) for name, stage in graph.stages.items()} == {
        "orders": ["source_incoming"],
        "hourly": ["orders"],
        "of_amount": ["orders"],
        "of_rates": ["orders", "static_rates"],
        "notable": ["of_amount", "of_rates"],
        "totals": ["orders"],
        "cheap": ["orders"],
    }
    stages = {str(name): stage for name, stage in graph.stages.items()}
    orders, totals = stages["orders"], stages["totals"]
    assert orders.sink is not None
    assert (orders.sink.address.text, orders.sink.design.comment) == ("sales.orders", "all; of them")
    assert orders.sink.design.partition_by == ("region",)
    assert orders.sink.design.properties == {"delta.appendOnly": "true"}
    assert stages["hourly"].sink is not None
    assert stages["hourly"].sink.design.cluster_by == ("hour",)
    assert totals.sink is not None
    assert (totals.output_mode, totals.sink.mode) == (OutputMode.COMPLETE, SinkMode.COMPLETE)
    assert stages["cheap"].output_mode is OutputMode.APPEND
    assert (stages["of_amount"].conf, stages["of_rates"].conf) == ({}, {"spark.sql.ansi.enabled": "false"})


CONFIGURED = """
SET spark.sql.ansi.enabled = false;
CREATE TEMPORARY VIEW v AS SELECT * FROM STREAM orders;
SET spark.sql.ansi.enabled = {other};
CREATE STREAMING TABLE x AS SELECT * FROM STREAM v;
"""


def test_the_settings_of_a_view_are_those_of_the_flows_that_read_it(orders: Project) -> None:
    orders.write("more.sql", CONFIGURED.replace("SET spark.sql.ansi.enabled = {other}", "SET spark.sql.caseSensitive = true"))
    stage = orders.load().graph().stages["x"]  # type: ignore[index]
    assert stage.conf == {"spark.sql.ansi.enabled": "false", "spark.sql.caseSensitive": "true"}


def test_a_flow_and_its_view_with_different_settings_are_refused(orders: Project) -> None:
    orders.write("more.sql", CONFIGURED.format(other="true"))
    orders.refused(
        r"more\.sql, line 5: \[DUPLICATE_FLOW_SQL_CONF\] the flow 'x' reads the view 'v' with spark.sql.ansi.enabled='false'"
    )


def test_flows_in_python_may_run_sql(orders: Project) -> None:
    text = "spark.sql('SELECT id FROM STREAM orders WATERMARK at DELAY OF INTERVAL 1 HOUR').where('id > 1')"
    orders.write("more.py", f"@dp.table\ndef more():\n    return {text}\n")
    orders.write("sums.sql", "CREATE MATERIALIZED VIEW sums AS SELECT sum(id) AS id FROM more")
    stages = {str(name): stage for name, stage in orders.load().graph().stages.items()}
    assert list(stages["more"].inputs) == ["orders"]
    assert list(stages["sums"].inputs) == ["more"]


@pytest.mark.parametrize(
    ("statement", "problem"),
    [
        ("CREATE STREAMING TABLE AS x", r"\[PARSE_SYNTAX_ERROR\]"),
        ("CREATE FLOW f AS AUTO CDC INTO orders FROM STREAM x KEYS (id) SEQUENCE BY id", r"\[PARSE_SYNTAX_ERROR\].*'AUTO'"),
        ("CREATE STREAMING TABLE x LOCATION '/x'", "location is not supported for CREATE STREAMING TABLE"),
        ("DROP TABLE orders", r"\[PIPELINE_SQL_GRAPH_ELEMENT_REGISTRATION_ERROR\] DROP TABLE orders"),
        ("USE sales", r"\[PIPELINE_SQL_GRAPH_ELEMENT_REGISTRATION_ERROR\] USE sales"),
        ("CREATE VIEW v AS SELECT 1", "is no statement of a project that runs here"),
        ("SET spark.sql.ansi.enabled", "is no statement of a project that runs here"),
        ("CREATE TEMPORARY VIEW v (a) AS SELECT 1", "the view 'v' has a list of columns"),
        ("CREATE FLOW a.b AS INSERT INTO orders BY NAME SELECT 1", r"\[MULTIPART_FLOW_NAME_NOT_SUPPORTED\]"),
        ("CREATE FLOW f AS INSERT INTO orders SELECT 1", "the flow 'f' has no BY NAME"),
        ("CREATE FLOW f AS INSERT INTO orders BY NAME SELECT 1", "the flow 'f' reads no stream"),
        (
            "CREATE FLOW f AS INSERT INTO order BY NAME SELECT * FROM STREAM raw.x",
            "'f' writes into 'order', which is not defined",
        ),
        ("CREATE STREAMING TABLE x PARTITIONED BY (days(at))", r"'x' is partitioned by days\(at\)"),
        ("CREATE STREAMING TABLE x (a INT DEFAULT 3)", "the column 'a' of 'x' has a default or is generated"),
        (
            "CREATE STREAMING TABLE orders",
            r"\[PIPELINE_DUPLICATE_IDENTIFIERS.OUTPUT\].*already, at transformations/orders.py, line 4",
        ),
        ("CREATE STREAMING TABLE x USING orc AS SELECT * FROM STREAM orders", "'x' has the format 'orc'"),
        (
            "CREATE STREAMING TABLE x AS SELECT * FROM orders",
            r"\[INVALID_FLOW_QUERY_TYPE.BATCH_RELATION_FOR_STREAMING_TABLE\].*reads the table 'orders'.* as a batch",
        ),
        (
            "CREATE STREAMING TABLE x AS SELECT * FROM STREAM orders WATERMARK at AS t DELAY OF INTERVAL 1 DAY",
            "has SQL that cannot run here: the watermark is on 'at AS t'",
        ),
    ],
)
def test_a_mistake_has_the_error_class_of_spark_and_its_line(orders: Project, statement: str, problem: str) -> None:
    orders.write("zzz.sql", f"-- first; line\nSET a.b = c;\n\n/* a comment */ {statement};\n")
    error = orders.refused(problem)
    assert str(error).startswith("transformations/zzz.sql, line 4: ")


@pytest.mark.parametrize(
    "statement",
    [
        "CREATE FLOW f AS AUTO CDC INTO orders FROM x KEYS (id) SEQUENCE BY id",
        "create streaming table t flow auto\n cdc from x keys (id) sequence by id",
    ],
)
def test_the_refusal_of_auto_cdc_in_sql_names_the_spark_that_has_it_and_an_alternative(orders: Project, statement: str) -> None:
    orders.write("zzz.sql", statement)
    remedy = orders.refused("PARSE_SYNTAX_ERROR").remedy
    assert "Spark 4.3 has it" in remedy
    assert "create_auto_cdc_flow" in remedy
    orders.write("zzz.sql", "SELEC 'AUTO CDC'")
    assert orders.refused("PARSE_SYNTAX_ERROR").remedy == "Correct that statement."


def test_the_mistakes_of_all_statements_are_named(orders: Project) -> None:
    orders.write("more.sql", "DROP TABLE x;\nSELEC 1;\n")
    assert "line 2: [PARSE_SYNTAX_ERROR]" in str(orders.refused("2 mistakes were found"))
