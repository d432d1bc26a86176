"""Streams of all kinds. Streams without reliable offsets are refused by name, and custom streams are identified by their options."""

from typing import Any

import pytest
from pyspark.sql.types import StructType

from spark_jobs.protocol.errors import InvalidPipelineError
from spark_jobs.protocol.ids import InputName
from spark_jobs.protocol.known_sources import KnownOther
from spark_jobs.protocol.masking import masking
from spark_jobs.runtime.inputs.source_kinds import kind_of
from spark_jobs.runtime.spark.plan import Leaf

SOCKETS = ("socket", "org.apache.spark.sql.execution.streaming.sources.TextSocketSourceProvider")


def stream(format_: str, **options: str) -> Leaf:
    node = "StreamingRelationV2" if format_ in SOCKETS else "StreamingRelation"
    return Leaf(0, node, format_, {"path": "/in"} | options, StructType())


def check(leaf: Leaf) -> None:
    kind_of(leaf).check(InputName("rows"), leaf, bounded=False, moving=False)


@pytest.mark.parametrize(
    ("leaf", "message", "remedy"),
    [
        (stream("delta", excludeRegex="x"), "excludeRegex: rows .* would be missing", "filter them"),
        (stream("delta", ignorechanges="TRUE"), "ignoreChanges: rows .* would appear again", "readChangeFeed=true"),
        (stream("delta", ignoreFileDeletion="true"), "ignoreFileDeletion: rows .* would appear again", "readChangeFeed=true"),
        (stream("csv", mode="dropMalformed"), "mode=DROPMALFORMED: rows .* left out", "_corrupt_record"),
        (stream("json", MODE="DROPMALFORMED"), "mode=DROPMALFORMED: rows .* left out", "_corrupt_record"),
        (stream("xml", mode="DROPMALFORMED"), "mode=DROPMALFORMED: rows .* left out", "_corrupt_record"),
        (stream("Avro", ignoreExtension="false"), "ignoreExtension=false: rows .* missing", r"pathGlobFilter=\*\.avro"),
        *((stream(each), "reads a socket, which gives each row once", "Kafka") for each in SOCKETS),
    ],
)
def test_an_option_that_loses_or_doubles_rows_is_refused_with_the_right_way(leaf: Leaf, message: str, remedy: str) -> None:
    with pytest.raises(InvalidPipelineError, match=f"Input 'rows' (sets )?{message}") as refused:
        check(leaf)
    assert refused.match(remedy)


@pytest.mark.parametrize(
    "leaf",
    [
        stream("delta", ignoreChanges="false", ignoreDeletes="true"),
        stream("csv", mode="FAILFAST"),
        stream("json", mode="PERMISSIVE"),
        stream("parquet", mode="DROPMALFORMED"),
        stream("avro", ignoreExtension="true"),
        stream("rate"),
    ],
)
def test_an_option_that_neither_loses_nor_doubles_rows_is_accepted(leaf: Leaf) -> None:
    check(leaf)


def known(**options: str) -> KnownOther:
    leaf = stream("tickets", **options)
    frame: Any = None  # such a stream is identified by its options alone
    found = kind_of(leaf).identify(InputName("rows"), frame, leaf, None, masking(["hunter2"]))
    assert isinstance(found, KnownOther)
    return found


@pytest.mark.parametrize(
    ("before", "now", "changed"),
    [
        ({"url": "a"}, {"url": "b"}, "url"),
        ({"project": "x", "url": "a"}, {"url": "a"}, "project"),
        ({}, {"Project": "x", "URL": "b"}, "project, url"),
    ],
)
def test_another_option_makes_a_custom_stream_another_source(before: dict[str, str], now: dict[str, str], changed: str) -> None:
    kind = kind_of(stream("tickets"))
    assert kind.difference(known(**before), known(**now)) == f"reads 'tickets' with other options than before: {changed}"


@pytest.mark.parametrize(
    ("before", "now"),
    [
        ({"url": "a"}, {"URL": "a"}),
        ({"password": "one"}, {"password": "other"}),
        ({"api_key": "one"}, {}),
        ({"url": "https://me:hunter2@host"}, {"url": "https://me:***@host"}),
        ({"maxRowsPerTrigger": "5"}, {"maxRowsPerTrigger": "7"}),
    ],
)
def test_a_secret_or_a_limit_does_not_make_a_custom_stream_another_source(before: dict[str, str], now: dict[str, str]) -> None:
    kind = kind_of(stream("tickets"))
    assert kind.difference(known(**before), known(**now)) is None


def test_a_custom_stream_that_was_recorded_without_its_options_is_the_same() -> None:
    assert kind_of(stream("tickets")).difference(KnownOther(source="tickets"), known(url="a")) is None
