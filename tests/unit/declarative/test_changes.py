import pytest

from spark_jobs.api.continuation import Fate, fates
from spark_jobs.declarative.changes import DELETED, SEQUENCE
from spark_jobs.protocol.documents import SinkMode
from tests.unit.declarative.conftest import Project

TABLE = 'dp.create_streaming_table("newest", comment="one row for each user")\n'


def flow(**arguments: str) -> str:
    given = {"target": '"newest"', "source": '"orders"', "keys": '["user"]', "sequence_by": '"id"'} | arguments
    return TABLE + f"dp.create_auto_cdc_flow({', '.join(f'{name}={value}' for name, value in given.items())})\n"


@pytest.mark.parametrize(
    ("keys", "sequence_by", "deletes"),
    [
        ('["user", "day"]', '"id"', "\"kind = 'delete'\""),
        ('[F.col("user"), F.col("day")]', 'F.col("id")', "F.expr(\"kind = 'delete'\")"),
    ],
)
def test_an_auto_cdc_flow_becomes_a_sink_with_keys(orders: Project, keys: str, sequence_by: str, deletes: str) -> None:
    orders.write("zzz.py", flow(keys=keys, sequence_by=sequence_by, apply_as_deletes=deletes))
    stage = orders.load().graph().stages["newest"]  # type: ignore[index]
    assert list(stage.inputs) == ["orders"]
    assert stage.sink is not None
    assert stage.sink.merge is not None
    assert stage.sink.mode is SinkMode.UPSERT
    assert stage.sink.design.comment == "one row for each user"
    assert stage.sink.merge.keys == ("user", "day")
    assert (stage.sink.merge.sequence_by, stage.sink.merge.apply_as_deletes) == ("id", "kind = 'delete'")


@pytest.mark.parametrize(
    ("arguments", "sequence_by", "deletes"),
    [
        ({"sequence_by": '"struct(at, id)"'}, SEQUENCE, "kind = 'delete'"),
        ({"sequence_by": 'F.struct("at", "id")'}, SEQUENCE, "kind = 'delete'"),
        ({"apply_as_deletes": "F.col('kind') == 'delete'"}, "id", DELETED),
        ({"except_column_list": '["at"]'}, "id", "kind = 'delete'"),
        ({"except_column_list": '["kind", "ID"]'}, SEQUENCE, DELETED),
        ({"column_list": '["user", "id", "kind"]'}, "id", "kind = 'delete'"),
        (
            {
                "column_list": '["user", "id", "Kind"]',
                "apply_as_deletes": "\"lower(`kind`) IN ('gone', 'at') OR kind IS NULL\"",
            },
            "id",
            None,
        ),
        ({"column_list": '["user", "name"]'}, SEQUENCE, DELETED),
    ],
)
def test_the_table_gets_a_column_for_each_expression_and_each_left_out_column(
    orders: Project, arguments: dict[str, str], sequence_by: str, deletes: str | None
) -> None:
    given = {"apply_as_deletes": "\"kind = 'delete'\""} | arguments
    orders.write("zzz.py", flow(**given))
    sink = orders.load().graph().stages["newest"].sink  # type: ignore[index]
    assert sink is not None
    assert sink.merge is not None
    assert (sink.merge.sequence_by, sink.merge.apply_as_deletes) == (sequence_by, deletes or given["apply_as_deletes"].strip('"'))


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        (flow(keys='["user", "id + 1"]'), r"'newest' has keys='id \+ 1', but it needs names of columns"),
        (flow(except_column_list="[F.lower('name')]"), "'newest' has except_column_list=.*, but it needs names of columns"),
        (flow(except_column_list='["User"]'), "leaves out the key 'user', but later changes are compared with it"),
        (flow(column_list='["id", "name"]'), "leaves out the key 'user', but later changes are compared with it"),
        (flow(column_list='["id", "user"]', except_column_list='["name"]'), "has both column_list and except_column_list"),
    ],
)
def test_an_option_that_a_merge_does_not_support_is_refused_with_the_line_of_the_flow(
    orders: Project, text: str, problem: str
) -> None:
    orders.write("zzz.py", text)
    assert str(orders.refused(problem)).startswith("transformations/zzz.py, line 4: ")


def test_a_second_flow_into_the_table_is_refused(orders: Project) -> None:
    orders.write("zzz.py", flow() + flow().removeprefix(TABLE))
    orders.refused("a second AUTO CDC flow writes into 'newest'; the first is at transformations/zzz.py, line 4")


def test_an_append_flow_into_the_table_is_refused(orders: Project) -> None:
    appending = '@dp.append_flow(target="newest")\ndef more():\n    return spark.readStream.table("orders")\n'
    orders.write("zzz.py", flow() + appending)
    orders.refused("the AUTO CDC flow into 'newest' is not the only one: newest, more")


def test_a_stream_of_the_table_is_refused(orders: Project) -> None:
    orders.write("zzz.py", flow() + '@dp.table\ndef more():\n    return spark.readStream.table("newest")\n')
    orders.refused("reads the table 'newest', whose rows an AUTO CDC flow replaces")


@pytest.mark.parametrize(
    ("before", "after", "is_noticed"),
    [
        ('"-id"', '"-id"', False),
        ('"-id"', "F.expr('-id')", False),
        ('"-id"', '"id + 1"', True),
        ('F.struct("at", "id")', 'F.struct(F.col("at"), "id")', False),
        ('F.struct("at", "id")', 'F.struct("id", "at")', True),
        ('F.struct("at", F.col("id") + 1)', 'F.struct("at", F.col("id") + 2)', True),
        # the text of a function is not known
        ('F.struct("at", F.udf(lambda text: text)("id"))', 'F.struct("id", F.udf(lambda text: text)("id"))', False),
    ],
)
def test_another_expression_of_a_computed_order_is_noticed(orders: Project, before: str, after: str, is_noticed: bool) -> None:
    found = []
    for text in (before, after):
        orders.write("zzz.py", flow(sequence_by=text))
        found.append(orders.load().graph().describe())
    (fate,) = [each for each in fates(*found) if each.stage == "newest"]
    assert fate.fate is (Fate.IMPOSSIBLE if is_noticed else Fate.CONTINUES)
