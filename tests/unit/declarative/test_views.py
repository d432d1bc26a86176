import pytest

from spark_jobs.api.stage import OutputMode
from spark_jobs.protocol.documents import SinkMode
from tests.unit.declarative.conftest import Project


def view(body: str, name: str = "totals") -> str:
    return f"@dp.materialized_view(comment='kept')\ndef {name}():\n    return {body}\n"


@pytest.mark.parametrize(
    "body",
    [
        'spark.read.table("orders").groupBy("id").count()',
        'spark.table("orders").agg(F.count("*").alias("n")).where("n > 1")',
        'spark.table("orders").na.fill(0).cube("id").agg(F.max("at")).select("id").union(spark.createDataFrame([(1,)], "id LONG"))',
    ],
)
def test_a_view_of_groups_is_published_as_a_whole_with_each_checkpoint(orders: Project, body: str) -> None:
    orders.write("views.py", view(body))
    stage = orders.load().graph().stages["totals"]  # type: ignore[index]
    assert list(stage.inputs) == ["orders"]
    assert stage.output_mode is OutputMode.COMPLETE
    assert stage.sink is not None
    assert (stage.sink.mode, stage.sink.design.comment) == (SinkMode.COMPLETE, "kept")


def test_a_view_of_single_rows_gets_those_that_are_new(orders: Project) -> None:
    orders.write(
        "views.py", view('spark.read.table("orders").where("id > 1")') + view('spark.table("totals").select("id")', "ids")
    )
    stages = orders.load().graph().stages
    assert list(stages["ids"].inputs) == ["totals"]  # type: ignore[index]
    assert {stage.output_mode for stage in stages.values()} == {OutputMode.APPEND}


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        (view("spark.range(3)"), "reads no table of the project"),
        (view('spark.table("orders").join(spark.table("raw.rates"), "id")'), "reads something outside of the project"),
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
def test_what_cannot_be_kept_up_to_date_is_refused_with_its_place(orders: Project, text: str, problem: str) -> None:
    orders.write("views.py", text)
    assert str(orders.refused(problem)).startswith("transformations/views.py, line 3: ")


def test_a_stream_of_a_view_is_refused(orders: Project) -> None:
    orders.write(
        "views.py", view('spark.table("orders")') + '@dp.table\ndef more():\n    return spark.readStream.table("totals")\n'
    )
    orders.refused("reads the materialized view 'totals' as a stream, but its rows change")


def test_a_view_of_groups_of_another_view_is_refused(orders: Project) -> None:
    groups = view('spark.table("orders").groupBy("id").count()')
    orders.write("views.py", groups + view('spark.table("totals").where("count > 1")', "many"))
    orders.refused("it reads 'totals', whose every batch is the whole result")
