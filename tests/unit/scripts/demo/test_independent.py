from datetime import UTC, datetime, timedelta

import pyarrow as pa

from scripts.demo.independent import FLIGHTS, QUERIES, Comparison, answers, compare, read_flights

NOON = datetime(2013, 5, 1, 12, tzinfo=UTC)
AIRLINES = pa.table({"carrier": ["AA"], "name": ["American Airlines Inc."]})


def flights(*rows: tuple[datetime, int, int | None]) -> pa.Table:
    hours, minutes, delays = zip(*rows, strict=True)
    return pa.table(
        {
            "time_hour": pa.array(hours, pa.timestamp("us", "UTC")),
            "minute": pa.array(minutes, pa.int64()),
            "origin": ["JFK"] * len(rows),
            "carrier": ["AA"] * len(rows),
            "dep_delay": pa.array(delays, pa.int32()),
        }
    )


INPUT = flights((NOON, 5, 30), (NOON, 55, None), (NOON + timedelta(days=1), 0, 40), (NOON + timedelta(days=4), 0, 20))


def test_the_answer_counts_cancelled_flights_and_joins_consecutive_late_days() -> None:
    found = answers(INPUT, AIRLINES)
    assert found["hourly"].num_rows == 3
    first_day = min(found["daily"].to_pylist(), key=lambda row: row["day_start"])
    assert (first_day["flights"], first_day["cancelled"], first_day["mean_delay_min"]) == (2, 1, 30.0)
    assert sorted(row["days"] for row in found["late_spells"].to_pylist()) == [1, 2]


def test_tables_with_the_same_rows_in_another_order_are_equal() -> None:
    tables = {sink: rows.take(list(reversed(range(rows.num_rows)))) for sink, rows in answers(INPUT, AIRLINES).items()}
    assert all(found.same for found in compare(tables, INPUT, AIRLINES))


def test_a_missing_row_an_extra_row_and_another_value_are_found() -> None:
    tables = answers(INPUT, AIRLINES)
    hourly, daily, spells = (tables[sink] for sink in QUERIES)
    changed = daily.set_column(daily.schema.get_field_index("flights"), "flights", pa.array([9] * daily.num_rows, pa.int64()))
    wrong = {"hourly": hourly.slice(1), "daily": changed, "late_spells": pa.concat_tables([spells, spells.slice(0, 1)])}
    assert compare(wrong, INPUT, AIRLINES) == [
        Comparison("hourly", 2, 3, missing=1, extra=0),
        Comparison("daily", 3, 3, missing=3, extra=3),
        Comparison("late_spells", 3, 2, missing=0, extra=1),
    ]


def test_the_package_has_the_flights_of_2013() -> None:
    assert read_flights().num_rows == FLIGHTS
