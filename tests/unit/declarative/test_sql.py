from pathlib import Path

import pytest
from py4j import java_gateway
from pyspark import SparkContext
from pyspark.errors.exceptions.captured import install_exception_handler

from spark_jobs.declarative.sql import ParserProcess, SqlError, SqlParser, substituted
from spark_jobs.protocol.errors import MissingRequirementError


def test_the_parser_process_ends_with_its_context(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    with ParserProcess() as process:
        assert process.parser() is process.parser()
        assert process.parser().query("SELECT 1").relations == ()
        java = process._process
        assert java is not None
    assert java.poll() is not None


def test_a_spark_home_without_spark_is_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.undo()
    monkeypatch.setenv("SPARK_HOME", str(tmp_path))
    with ParserProcess() as process, pytest.raises(MissingRequirementError, match=r"jars has no py4j-\*\.jar"):
        process.parser()


def test_an_exception_of_the_parser_is_not_looked_up_in_the_jvm_of_a_session(
    parser: SqlParser, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(java_gateway, "get_return_value", java_gateway.get_return_value)
    monkeypatch.setattr(SparkContext, "_jvm", object())
    monkeypatch.setattr(SparkContext, "_gateway", object())
    install_exception_handler()
    with pytest.raises(SqlError, match="PARSE_SYNTAX_ERROR"):
        parser.plan("SELEC 1")


def test_statements_end_at_semicolons_outside_of_texts_and_comments(parser: SqlParser) -> None:
    found = parser.statements("-- a; b\nSELECT ';';\n\n/* ; */\nSELECT 2;\n-- end\n")
    assert found == [(1, "-- a; b\nSELECT ';'"), (2, "\n\n/* ; */\nSELECT 2")]


@pytest.mark.parametrize(
    ("text", "relations"),
    [
        ("SELECT 1", []),
        ("SELECT * FROM a.b, STREAM c", [("a.b", False), ("c", True)]),
        ("SELECT * FROM STREAM(`my c`) x JOIN d USING (id)", [("`my c`", True), ("d", False)]),
        ("SELECT * FROM a WHERE id IN (SELECT id FROM b) UNION ALL TABLE c", [("a", False), ("b", False)]),
        ("WITH a AS (SELECT * FROM a), b AS (SELECT * FROM A) SELECT * FROM a JOIN b", [("a", False)]),
        ("SELECT * FROM (WITH a AS (SELECT 1) SELECT * FROM a) JOIN a", [("a", False)]),
        ("WITH b AS (SELECT * FROM c), c AS (SELECT * FROM b) SELECT * FROM c", [("c", False)]),
        ("SELECT * FROM range(5) JOIN VALUES (1) AS v(id) USING (id)", []),
    ],
)
def test_the_relations_that_a_query_reads_are_found(parser: SqlParser, text: str, relations: list[tuple[str, bool]]) -> None:
    assert [(each.name, each.streaming) for each in parser.query(text).relations] == relations


@pytest.mark.parametrize(
    ("delay", "expected"),
    [("INTERVAL 10 MINUTES", "10 minutes"), ("INTERVAL '1' DAY", "24 hours"), ("INTERVAL 1 HOUR", "1 hours")],
)
def test_a_watermark_has_a_column_and_a_delay(parser: SqlParser, delay: str, expected: str) -> None:
    [relation] = parser.query(f"SELECT * FROM STREAM a WATERMARK `at` DELAY OF {delay} AS x").relations
    assert relation.watermark == ("at", expected)


@pytest.mark.parametrize(
    ("text", "replaced"),
    [
        ("SELECT a.id FROM shop.a", "SELECT a.id FROM `v0` AS `a`"),
        ("SELECT x.id FROM STREAM shop.a x", "SELECT x.id FROM STREAM `v0` x"),
        ("SELECT * FROM STREAM(a) WHERE 'é' = b", "SELECT * FROM STREAM(`v0`) AS `a` WHERE 'é' = b"),
        (
            "SELECT '😀' FROM STREAM a WATERMARK at DELAY OF INTERVAL 1 DAY AS x, `b`",
            "SELECT '😀' FROM STREAM `v0`  AS x, `v1` AS `b`",
        ),
        ("SELECT * FROM STREAM a WATERMARK at DELAY OF INTERVAL 1 DAY", "SELECT * FROM STREAM `v0`  AS `a`"),
    ],
)
def test_a_query_can_read_other_relations_under_the_same_names(parser: SqlParser, text: str, replaced: str) -> None:
    query = parser.query(text)
    names = [f"v{number}" for number in range(len(query.relations))]
    assert query.over(names, [each.name.rpartition(".")[2].strip("`") for each in query.relations]) == replaced


@pytest.mark.parametrize(
    ("text", "problem", "line"),
    [
        ("SELECT *\nFROM a WHER x = 1", r"\[PARSE_SYNTAX_ERROR\] Syntax error at or near 'x'.*\.$", 2),
        ("SELECT * FROM a\nTIMESTAMP AS OF '2026-01-01'", "a is read with TIMESTAMP AS OF '2026-01-01': write that read in", 1),
        ("SELECT * FROM\nSTREAM a WITH (x = 1)", r"a is read with WITH \(x = 1\)", 2),
        ("SELECT * FROM IDENTIFIER('a' || 'b')", "is not a name", 1),
        ("SELECT * FROM STREAM a\nWATERMARK at + x AS t DELAY OF INTERVAL 1 DAY", "the watermark is on 'at .* AS t'", 2),
        ("DROP TABLE a", "DropTable is not a query", 1),
    ],
)
def test_a_read_that_no_flow_supports_is_refused_with_its_line(parser: SqlParser, text: str, problem: str, line: int) -> None:
    with pytest.raises(SqlError, match=problem) as caught:
        parser.query(text)
    assert caught.value.line == line


def test_settings_are_substituted_if_they_are_known() -> None:
    settings = {"shop.in": "/data", "spark.x": "1"}
    assert substituted("${shop.in} ${spark:spark.x} ${nope} $x {y}", settings) == "/data 1 ${nope} $x {y}"
