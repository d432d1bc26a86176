from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel, SecretStr

from spark_jobs import DeltaSink, Hold, Pipeline
from spark_jobs.api.graph import Graph
from spark_jobs.api.sink import MergeRule
from spark_jobs.protocol.documents import HoldLimits, Publish
from spark_jobs.protocol.errors import InvalidPipelineError
from spark_jobs.protocol.ids import SinkName, StageName


class Params(BaseModel):
    warehouse: str = "/data"
    year: int = 2013
    region: str | None = None
    carriers: list[str] = ["AA"]
    token: SecretStr = SecretStr("")


def graph_with(*sinks: DeltaSink, params: type[BaseModel] | None = Params) -> Graph:
    """A graph with one source and one stage for each sink, named a, b, c."""
    pipeline = Pipeline("flights", params=params)

    @pipeline.source(bounded=True)
    def departures(spark: Any) -> Any: ...

    for sink, name in zip(sinks, "abc", strict=False):

        @pipeline.stage(sink=sink, name=name)
        def copied(departures: Any) -> Any: ...

    return pipeline.graph()


def tables(*sinks: DeltaSink, **params: Any) -> list[str]:
    """Returns the locations of the sinks' tables."""
    pipeline = Pipeline("flights", params=Params)
    return [str(table) for table in graph_with(*sinks).tables(pipeline.bind(params)).values()]


def test_a_sink_has_its_stages_name_and_publishes_at_the_end() -> None:
    (sink,) = graph_with(DeltaSink("{warehouse}/hourly", partition_by=["origin"])).sinks.values()
    assert (sink.name, sink.mode, sink.design.partition_by, sink.publish) == ("a", "append", ("origin",), Publish.FINAL)


def test_a_sink_may_have_a_name_of_its_own() -> None:
    assert list(graph_with(DeltaSink("/hourly", name="Hours")).sinks) == ["Hours"]


@pytest.mark.parametrize("publish", ["final", "every_checkpoint", "external", *Publish])
def test_publish_is_a_text_or_a_member_of_the_enum(publish: Any) -> None:
    assert graph_with(DeltaSink("/hourly", publish=publish)).sinks[SinkName("a")].publish is Publish(publish)


def test_a_path_may_contain_parameters() -> None:
    assert tables(DeltaSink("{warehouse}/{year}/hourly"), warehouse="s3://bucket") == ["s3://bucket/2013/hourly"]


def test_doubled_braces_in_a_path_are_braces() -> None:
    assert tables(DeltaSink("{warehouse}/{{x}}")) == ["/data/{x}"]


def test_a_path_object_is_a_path() -> None:
    assert tables(DeltaSink(Path("/data") / "hourly")) == ["/data/hourly"]


@pytest.mark.parametrize(
    ("warehouse", "expected"),
    [
        ("/data/", "/data/hourly"),
        ("/data//x///", "/data/x/hourly"),
        ("file:///data/", "file:///data/hourly"),
        ("file:/data", "file:/data/hourly"),
        ("s3a://bucket/", "s3a://bucket/hourly"),
        ("out", "out/hourly"),
    ],
)
def test_superfluous_slashes_are_removed(warehouse: str, expected: str) -> None:
    assert tables(DeltaSink("{warehouse}/hourly/"), warehouse=warehouse) == [expected]


def test_a_whole_bucket_may_be_a_table() -> None:
    assert tables(DeltaSink("{warehouse}"), warehouse="s3://bucket/") == ["s3://bucket"]


@pytest.mark.parametrize("warehouse", ["/", "file:///", "file:/", "s3:"])
def test_the_root_of_a_file_system_cannot_be_a_table(warehouse: str) -> None:
    with pytest.raises(InvalidPipelineError, match="is not a table's directory"):
        tables(DeltaSink("{warehouse}"), warehouse=warehouse)


def test_an_unknown_parameter_is_named_with_the_known_ones() -> None:
    with pytest.raises(InvalidPipelineError, match=r"sink 'a'.*names 'warehose'.*Did you mean 'warehouse'\?") as caught:
        graph_with(DeltaSink("{warehose}/hourly"))
    assert caught.value.evidence["fields"] == ["warehouse", "year", "region", "carriers"]


def test_a_parameter_in_a_path_is_refused_if_the_pipeline_has_none() -> None:
    with pytest.raises(InvalidPipelineError, match="names 'warehouse'"):
        graph_with(DeltaSink("{warehouse}/hourly"), params=None)


def test_a_secret_is_not_put_in_a_path() -> None:
    with pytest.raises(InvalidPipelineError, match="names 'token'"):
        graph_with(DeltaSink("{warehouse}/{token}"))


@pytest.mark.parametrize("field", ["region", "carriers"])
def test_a_parameter_without_text_is_not_put_in_a_path(field: str) -> None:
    with pytest.raises(InvalidPipelineError, match=f"names {field!r}, whose value is"):
        tables(DeltaSink(f"{{warehouse}}/{{{field}}}"))


def test_an_empty_parameter_is_not_put_in_a_path() -> None:
    with pytest.raises(InvalidPipelineError, match="whose value is nothing"):
        tables(DeltaSink("{warehouse}/hourly"), warehouse="")


@pytest.mark.parametrize("path", ["{warehouse.x}/t", "{warehouse[0]}/t", "{warehouse!r}/t", "{year:04d}/t", "{}/t", "{0}/t"])
def test_an_expression_in_braces_is_refused(path: str) -> None:
    with pytest.raises(InvalidPipelineError, match="is not the name of a parameter"):
        graph_with(DeltaSink(path))


@pytest.mark.parametrize("path", ["{warehouse/t", "warehouse}/t"])
def test_a_single_brace_is_refused(path: str) -> None:
    with pytest.raises(InvalidPipelineError, match="is not a template"):
        graph_with(DeltaSink(path))


@pytest.mark.parametrize("path", ["", "/", "  ", 3])
def test_a_value_that_is_not_a_path_is_refused(path: Any) -> None:
    with pytest.raises(InvalidPipelineError, match="is not a path"):
        graph_with(DeltaSink(path))


@pytest.mark.parametrize(("path", "table"), [(None, None), ("/hourly", "db.hourly")])
def test_a_sink_has_either_a_path_or_a_table_name(path: str | None, table: str | None) -> None:
    with pytest.raises(InvalidPipelineError, match="a path (and|nor) a table|both a path and a table"):
        graph_with(DeltaSink(path, table=table))


def test_a_tables_name_takes_parameters_and_is_distinguished_from_a_path() -> None:
    pipeline = Pipeline("flights", params=Params)
    (address,) = graph_with(DeltaSink(table="{warehouse}.hourly")).tables(pipeline.bind({"warehouse": "main.db"})).values()
    assert (str(address), address.named) == ("main.db.hourly", True)


@pytest.mark.parametrize("name", ["", "a.b.c.d", "a b", "`a`", "a..b", "a;DROP TABLE b", "/data/t"])
def test_a_text_that_is_not_a_table_name_is_refused(name: str) -> None:
    with pytest.raises(InvalidPipelineError, match="is not a name"):
        graph_with(DeltaSink(table=name))


def test_a_parameter_that_makes_a_table_name_invalid_is_refused() -> None:
    with pytest.raises(InvalidPipelineError, match="is not a name"):
        tables(DeltaSink(table="{warehouse}.hourly"), warehouse="x; DROP TABLE y")


@pytest.mark.parametrize(("first", "second", "same"), [("db.t", "DB.T", True), ("db.t", "db.t2", False)])
def test_names_are_compared_without_case(first: str, second: str, same: bool) -> None:
    if same:
        with pytest.raises(InvalidPipelineError, match="is also the table of"):
            tables(DeltaSink(table=first), DeltaSink(table=second))
    else:
        assert tables(DeltaSink(table=first), DeltaSink(table=second)) == [first, second]


def test_an_unknown_mode_is_refused_by_name() -> None:
    with pytest.raises(InvalidPipelineError, match="mode='merge' is unknown"):
        graph_with(DeltaSink("/hourly", mode="merge"))  # type: ignore[arg-type]


def test_an_upsert_sink_has_keys_an_order_and_a_delete_condition() -> None:
    (sink,) = graph_with(
        DeltaSink("/t", mode="upsert", keys=["id"], sequence_by="at", apply_as_deletes="op = 'D'")
    ).sinks.values()
    assert sink.merge == MergeRule(("id",), "at", "op = 'D'")


def test_a_history_names_the_columns_of_its_versions() -> None:
    (sink,) = graph_with(DeltaSink("/t", mode="history", keys=["id"], sequence_by="at")).sinks.values()
    assert sink.merge == MergeRule(("id",), "at", None, ("valid_from", "valid_to", "is_current"))


def test_a_table_that_is_append_only_may_be_inserted_into() -> None:
    properties = {"delta.appendOnly": "true"}
    (sink,) = graph_with(DeltaSink("/t", mode="insert", keys=["id"], table_properties=properties)).sinks.values()
    assert sink.merge == MergeRule(("id",), None, None)


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"mode": "insert"}, 'mode="insert" needs keys'),
        ({"mode": "insert", "keys": ["id"], "apply_as_deletes": "true"}, 'is for mode="upsert" and "history"'),
        ({"mode": "history", "sequence_by": "at"}, 'mode="history" needs keys'),
        ({"mode": "history", "keys": ["id"]}, 'mode="history" needs sequence_by'),
        ({"mode": "history", "keys": ["id"], "sequence_by": "id"}, "one of the keys"),
        (
            {"mode": "history", "keys": ["id"], "sequence_by": "at", "table_properties": {"delta.appendOnly": "true"}},
            "which removes rows",
        ),
        ({"mode": "upsert"}, "needs keys"),
        ({"mode": "upsert", "keys": ["id"], "sequence_by": "ID"}, "one of the keys"),
        ({"mode": "upsert", "keys": ["id"], "sequence_by": " "}, "is not a string"),
        ({"mode": "upsert", "keys": ["id"], "apply_as_deletes": 3}, "is not a string"),
        ({"keys": ["id"]}, 'keys= is for mode="upsert"'),
        ({"sequence_by": "at"}, 'sequence_by= is for mode="upsert"'),
        ({"mode": "complete", "apply_as_deletes": "true"}, 'apply_as_deletes= is for mode="upsert"'),
        ({"partition_by": ["a"], "cluster_by": ["b"]}, "both partition_by and cluster_by"),
        ({"cluster_by": "b"}, "a single string"),
        ({"schema_evolution": "merge"}, "schema_evolution='merge' is unknown"),
        ({"comment": 3}, "is not a string"),
        ({"table_properties": {"delta.x": 1}}, "not a mapping of strings"),
        ({"table_properties": ["delta.x"]}, "not a mapping of strings"),
        ({"table_properties": {"delta.settransactionretentionduration": "interval 1 day"}}, "would forget"),
        ({"table_properties": {"delta.feature.catalogManaged": "supported"}}, "only its catalog may commit"),
        ({"mode": "complete", "table_properties": {"delta.appendOnly": "true"}}, "which removes rows"),
        ({"target_file_size": "much"}, "is not a size"),
        ({"target_file_size": 0}, "is not a size"),
        ({"target_file_size": True}, "is not a size"),
        ({"target_file_size": "1mb", "mode": "complete"}, 'is for mode="append"'),
        ({"hold": "1 hour"}, "hold='1 hour' is not a Hold"),
        ({"hold": Hold(time="soon")}, "hold time='soon' is not an interval"),
        ({"hold": Hold(time="0 seconds")}, "hold time='0 seconds' is shorter than 1 millisecond"),
        ({"hold": Hold(time="1 hour", size="much")}, "hold size='much' is not a size"),
        ({"hold": Hold(time="1 hour"), "publish": "external"}, "somebody else publishes"),
    ],
)
def test_options_that_do_not_go_together_are_refused(options: dict[str, Any], problem: str) -> None:
    with pytest.raises(InvalidPipelineError, match=problem):
        graph_with(DeltaSink("/t", **options))


@pytest.mark.parametrize(("size", "size_bytes"), [("128mb", 2**27), ("1 GB", 2**30), ("64k", 2**16), ("512", 512), (4096, 4096)])
def test_a_target_file_size_is_written_as_in_spark(size: str | int, size_bytes: int) -> None:
    (sink,) = graph_with(DeltaSink("/t", target_file_size=size)).sinks.values()
    assert sink.target_file_size_bytes == size_bytes


@pytest.mark.parametrize(
    ("mode", "output_mode", "gives"),
    [
        ("append", None, "append"),
        ("append", "append", "append"),
        ("append", "update", None),
        ("append", "complete", None),
        ("upsert", None, "append"),
        ("upsert", "update", "update"),
        ("upsert", "complete", None),
        ("insert", None, "append"),
        ("insert", "update", None),
        ("history", None, "append"),
        ("history", "update", None),
        ("complete", None, "complete"),
        ("complete", "append", None),
    ],
)
def test_the_mode_of_a_sink_decides_the_output_mode_of_its_stage(mode: Any, output_mode: Any, gives: str | None) -> None:
    pipeline = Pipeline("flights")
    pipeline.source(bounded=True, name="departures")(lambda spark: None)
    options: dict[str, Any] = {"keys": ["id"]} if mode in ("upsert", "insert", "history") else {}
    if mode == "history":
        options["sequence_by"] = "at"
    declare = pipeline.stage(sink=DeltaSink("/t", mode=mode, **options), output_mode=output_mode, name="a")
    if gives is None:
        with pytest.raises(InvalidPipelineError, match="cannot be used with a sink"):
            declare(lambda departures: None)
    else:
        declare(lambda departures: None)
        assert pipeline.graph().stages[StageName("a")].output_mode == gives


def test_no_stage_may_read_a_stage_with_a_complete_result() -> None:
    pipeline = Pipeline("flights")
    pipeline.source(bounded=True, name="departures")(lambda spark: None)
    pipeline.stage(sink=DeltaSink("/t", mode="complete"), name="a")(lambda departures: None)
    pipeline.stage(sink=DeltaSink("/u"), name="b")(lambda a: None)
    with pytest.raises(InvalidPipelineError, match="every batch is the whole result"):
        pipeline.graph()


def test_an_unknown_value_of_publish_is_refused() -> None:
    with pytest.raises(InvalidPipelineError, match="publish='now' is unknown"):
        graph_with(DeltaSink("/hourly", publish="now"))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("columns", "problem"),
    [
        ("origin", "a single string"),
        ([""], "not a list of column names"),
        ([3], "not a list of column names"),
        (3, "not a list of column names"),
        (["origin", "Origin"], "names a column twice"),
    ],
)
def test_partition_columns_are_a_list_of_different_names(columns: Any, problem: str) -> None:
    with pytest.raises(InvalidPipelineError, match=problem):
        graph_with(DeltaSink("/hourly", partition_by=columns))


def test_a_value_that_is_not_a_sink_is_refused() -> None:
    with pytest.raises(InvalidPipelineError, match="stage 'a': sink='/hourly' is not a sink"):
        graph_with("/hourly")  # type: ignore[arg-type]


@pytest.mark.parametrize("name", ["_hidden", "a-b", "spark"])
def test_a_sinks_name_is_safe(name: str) -> None:
    with pytest.raises(InvalidPipelineError, match=f"sink '{name}'"):
        graph_with(DeltaSink("/hourly", name=name))


@pytest.mark.parametrize("name", ["a", "A"])
def test_two_sinks_with_one_name_are_refused(name: str) -> None:
    with pytest.raises(InvalidPipelineError, match="stages 'a' and 'b' have one name"):
        graph_with(DeltaSink("/x"), DeltaSink("/y", name=name))


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ("/data/t", "{warehouse}/t/"),
        ("/data/t", "file:/data/t"),
        ("file:///data/t", "file:/data//t"),
        ("/data/t", "/data/x/../t"),
        ("t", "./t"),
        ("s3://bucket/t", "s3a://bucket/t"),
        ("gs://bucket/t", "gs://bucket/./t"),
        ("abfss://lake@flights.dfs.core.windows.net/t", "abfs://Lake@Flights.dfs.core.windows.net/t"),
    ],
)
def test_two_sinks_with_one_table_are_refused(first: str, second: str) -> None:
    with pytest.raises(InvalidPipelineError, match=r"sink 'b': its table .* is also the table of sink 'a'"):
        tables(DeltaSink(first), DeltaSink(second))


@pytest.mark.parametrize(("first", "second"), [("/data", "/data/t"), ("/data/t", "file:/data"), ("s3://b", "s3a://b/t")])
def test_a_table_inside_another_is_refused(first: str, second: str) -> None:
    with pytest.raises(InvalidPipelineError, match="is inside the other"):
        tables(DeltaSink(first), DeltaSink(second))


@pytest.mark.parametrize(("first", "second"), [("/data/t", "/data/t2"), ("s3://b/t", "gs://b/t"), ("s3://b/t", "s3://c/t")])
def test_tables_side_by_side_are_fine(first: str, second: str) -> None:
    assert tables(DeltaSink(first), DeltaSink(second)) == [first, second]


@given(
    st.lists(st.from_regex(r"[a-z]{1,3}", fullmatch=True), min_size=1, max_size=4), st.sampled_from(["/", "file:///", "s3://b/"])
)
def test_superfluous_slashes_never_make_another_table(parts: list[str], root: str) -> None:
    with pytest.raises(InvalidPipelineError, match="is also the table of"):
        tables(DeltaSink(root + "/".join(parts)), DeltaSink(root + "//".join(parts) + "//"))


def test_a_hold_is_stored_in_milliseconds_and_bytes_and_changes_no_graph() -> None:
    held, plain = (graph_with(DeltaSink("/t", hold=hold)) for hold in (Hold(time="1 hour", size="2gb"), None))
    assert held.sinks[SinkName("a")].hold == HoldLimits(time_ms=3_600_000, size_bytes=2 << 30)
    assert held.fingerprint() == plain.fingerprint()
