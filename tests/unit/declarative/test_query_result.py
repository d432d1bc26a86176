import pytest

from spark_jobs.declarative.frames import AGGREGATES, FrameStandIn
from spark_jobs.declarative.names import parts_of
from spark_jobs.declarative.query_result import result_of
from spark_jobs.declarative.sql import SqlParser


def result(parser: SqlParser, text: str) -> FrameStandIn:
    query = parser.query(text)
    read = {tuple(parts_of(relation.name)): FrameStandIn(None) for relation in query.relations}
    return result_of(query.plan, read, FrameStandIn(None, grows=False))


@pytest.mark.parametrize(
    ("text", "aggregated"),
    [
        ("SELECT id, upper(name) FROM a", False),
        ("SELECT id FROM a UNION ALL SELECT id FROM b", False),
        ("SELECT 'sum(id)' FROM a", False),
        ("SELECT SUM(id) + 1 AS n FROM a", True),
        ("SELECT b FROM a GROUP BY b", True),
        ("SELECT b FROM a GROUP BY b HAVING count(*) > 2", True),
        ("SELECT DISTINCT b FROM a", True),
        ("SELECT b FROM a UNION SELECT b FROM a", True),
        ("FROM a |> AGGREGATE count(*) GROUP BY b", True),
    ],
)
def test_a_query_is_recognized_as_grouped_or_as_row_by_row(parser: SqlParser, text: str, aggregated: bool) -> None:
    found = result(parser, text)
    assert (found.aggregated, found.whole) == (aggregated, False)


@pytest.mark.parametrize(
    ("text", "whole"),
    [
        ("SELECT id FROM a WHERE id > 1", False),
        ("FROM a |> WHERE id > 1", False),
        ("SELECT x FROM a LATERAL VIEW explode(xs) AS x", False),
        ("SELECT /*+ BROADCAST(b) */ * FROM a JOIN b USING (id)", False),
        ("SELECT id FROM a DISTRIBUTE BY id", False),
        ("SELECT y FROM a AS t(x, y)", False),
        ("SELECT * FROM STREAM a WATERMARK at DELAY OF INTERVAL 1 DAY", False),
        ("SELECT * FROM a UNPIVOT (v FOR k IN (x, y))", False),
        ("SELECT b, count(*) FROM a GROUP BY b ORDER BY b LIMIT 2", False),
        ("SELECT id FROM a ORDER BY id", True),
        ("SELECT id FROM a LIMIT 2", True),
        ("SELECT count(*) FROM (SELECT id FROM a LIMIT 2)", True),
        ("WITH First AS (SELECT id FROM a LIMIT 2) SELECT count(*) FROM FIRST", True),
        ("WITH a AS (SELECT id FROM a), c AS (SELECT 1) SELECT id FROM a", False),
        ("SELECT id, rank() OVER (ORDER BY id) FROM a", True),
        ("SELECT id, rank() OVER w FROM a WINDOW w AS (ORDER BY id)", True),
        ("SELECT b, rank() OVER (ORDER BY count(*)) FROM a GROUP BY b", True),
        ("SELECT id FROM a QUALIFY rank() OVER (ORDER BY at) = 1", True),
        ("SELECT count(DISTINCT id) FROM a", True),
        ("SELECT count(*), max(id) FROM a GROUP BY b", False),
        ("SELECT max(n) FROM (SELECT count(*) AS n FROM a GROUP BY b)", True),
        ("SELECT DISTINCT n FROM (SELECT count(*) AS n FROM a GROUP BY b)", True),
        ("SELECT * FROM (SELECT b, x, n FROM a) PIVOT (sum(n) FOR x IN (1, 2))", True),
        ("SELECT * FROM a INNER JOIN c USING (id) JOIN d ON d.x <=> a.x NATURAL JOIN e", False),
        ("SELECT * FROM a, b WHERE a.id = b.id", False),
        ("SELECT * FROM a, b WHERE a.id < b.id", True),
        ("SELECT * FROM a, b WHERE a.x = 1 AND lower(a.id) = b.id", False),
        ("SELECT * FROM a, b WHERE a.id = 1", True),
        ("SELECT * FROM a, b WHERE a.id = b.id OR a.x = b.x", True),
        ("SELECT * FROM a JOIN b ON a.id < b.id WHERE a.x = b.x", True),
        ("SELECT * FROM a CROSS JOIN b", True),
        ("SELECT * FROM a CROSS JOIN range(3)", False),
        ("SELECT * FROM a JOIN b ON a.at BETWEEN b.at AND b.until", True),
        ("SELECT * FROM a LEFT JOIN b USING (id)", True),
        ("SELECT * FROM a LEFT JOIN VALUES (1) AS v(id) USING (id)", False),
        ("SELECT * FROM a LEFT SEMI JOIN b USING (id)", True),
        ("SELECT a.id, x FROM a, LATERAL (SELECT max(x) AS x FROM b WHERE b.id = a.id)", True),
        ("SELECT * FROM a WHERE id IN (SELECT id FROM b)", True),
        ("SELECT * FROM a WHERE NOT EXISTS (SELECT 1 FROM b WHERE b.id = a.id)", True),
        ("SELECT id, (SELECT max(id) FROM b) AS last FROM a", True),
        ("SELECT * FROM a, b WHERE a.id = b.id AND a.id > (SELECT avg(id) FROM a)", True),
        ("SELECT id FROM a EXCEPT SELECT id FROM b", True),
        ("SELECT id FROM a INTERSECT ALL SELECT id FROM b", True),
        ("SELECT id FROM a UNION ALL SELECT 1", True),
        ("SELECT b, count(*) FROM a GROUP BY b UNION ALL SELECT b, 1 FROM a", True),
        ("SELECT count(*) FROM (SELECT id FROM a UNION ALL SELECT id FROM b)", False),
        ("SELECT * FROM a WHERE at > now() - INTERVAL 7 DAYS", True),
        ("SELECT * FROM a WHERE at > current_date", True),
        ("SELECT * FROM a WHERE at > current_timestamp()", True),
        ("SELECT * FROM a WHERE b = 'now()'", False),
    ],
)
def test_a_query_that_no_stream_can_maintain_needs_all_rows(parser: SqlParser, text: str, whole: bool) -> None:
    assert result(parser, text).whole is whole


def test_all_aggregates_of_spark_are_known(parser: SqlParser) -> None:
    registry = parser._java("org.apache.spark.sql.catalyst.analysis.FunctionRegistry").builtin()
    names = registry.listFunction()
    infos = [registry.lookupFunction(names.apply(index)).get() for index in range(names.size())]
    assert {str(info.getName()) for info in infos if info.getGroup() == "agg_funcs"} <= AGGREGATES
