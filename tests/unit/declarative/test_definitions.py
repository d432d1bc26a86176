import pytest

from tests.unit.declarative.conftest import Project

EMPTY = '    return spark.readStream.table("raw.orders")\n'


@pytest.mark.parametrize(
    ("definition", "problem"),
    [
        ('@dp.table(format="parquet")\ndef plain():\n' + EMPTY, "'plain' has the format 'parquet'"),
        ('dp.create_streaming_table("plain", format="orc")\n', "'plain' has the format 'orc'"),
        ('dp.create_sink("topic", "kafka", {})\n', "the sink 'topic' is not supported"),
        (
            'dp.create_streaming_table("alone")\n',
            r"\[PIPELINE_DATASET_WITHOUT_FLOW\] no flow writes into the streaming table 'alone'",
        ),
        (
            'dp.create_streaming_table("orders")\n',
            r"\[PIPELINE_DUPLICATE_IDENTIFIERS\.OUTPUT\].*'orders' is defined already, at transformations/orders.py, line 4",
        ),
        ('@dp.append_flow(target="order")\ndef more():\n' + EMPTY, "'more' writes into 'order', which is not defined"),
        ('@dp.table(partition_cols=["a"], cluster_by=["b"])\ndef both():\n' + EMPTY, "both partition_by and cluster_by"),
        (
            '@dp.table(spark_conf={"spark.executor.memory": "1g"})\ndef big():\n' + EMPTY,
            "spark.executor.memory is a setting of the whole application",
        ),
        ('@dp.table(name="a b")\ndef odd():\n' + EMPTY, "'a b' cannot be a name"),
    ],
)
def test_an_unsupported_definition_is_refused_with_its_line(orders: Project, definition: str, problem: str) -> None:
    orders.write("tables.py", "\n" + definition)
    error = orders.refused(problem)
    assert str(error).startswith("transformations/tables.py, line 4: ")
    assert error.evidence["line"] == 4


def test_one_error_names_all_mistakes_of_the_definitions(orders: Project) -> None:
    orders.write("tables.py", 'dp.create_sink("topic", "kafka", {})\ndp.create_streaming_table("plain", format="orc")\n')
    assert "'topic' is not supported" in str(orders.refused("2 mistakes were found.*'plain' has the format 'orc'"))


def test_the_options_of_a_table_become_options_of_its_sink(project: Project) -> None:
    project.specification(
        """
        name: shop
        storage: file:///storage
        catalog: spark_catalog
        database: sales
        libraries: [{glob: {include: transformations/**}}]
        """
    )
    project.write(
        "orders.py",
        """
        @dp.table(
            name="orders",
            comment="all of them",
            spark_conf={"spark.sql.session.timeZone": "UTC"},
            table_properties={"delta.enableChangeDataFeed": "true"},
            partition_cols=["region"],
            format="DELTA",
        )
        def from_files():
            return spark.readStream.table("raw.orders")
        """,
    )
    stage = project.load().graph().stages["orders"]  # type: ignore[index]
    assert stage.sink is not None
    assert stage.sink.address.text == "spark_catalog.sales.orders"
    assert stage.sink.design.comment == "all of them"
    assert stage.sink.design.properties == {"delta.enableChangeDataFeed": "true"}
    assert stage.sink.design.partition_by == ("region",)
    assert stage.conf == {"spark.sql.session.timeZone": "UTC"}
