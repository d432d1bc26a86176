import json
from pathlib import Path

import pytest

from benchmarks import __main__ as bench
from benchmarks.figures import Figure, measured_in_turn

FIGURE = Figure("a run", "s a run", ours=[3.0, 1.0, 2.0], plain=[4.0, 4.0, 40.0])


def test_a_ratio_is_that_of_the_medians() -> None:
    assert FIGURE.ratio == 0.5


def test_both_ways_take_turns_and_the_first_turn_does_not_count() -> None:
    order: list[str] = []

    def way(name: str, value: float) -> float:
        order.append(name)
        return value + len(order)

    figure = measured_in_turn(
        "a run", "s", ours=lambda: way("ours", 0), plain=lambda: way("plain", 100), turns=2, tell=lambda what: None
    )
    assert order == ["ours", "plain"] * 3
    assert (figure.ours, figure.plain) == ([3, 5], [104, 106])


def test_what_was_measured_is_kept_with_where(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bench, "RESULTS", tmp_path / "results")
    kept = json.loads(bench.keep([FIGURE], quick=True).read_text())
    assert kept["quick"] is True
    assert kept["versions"].keys() == {"pyspark", "delta-spark", "deltalake"}
    assert kept["figures"] == [FIGURE.to_json()]


def test_the_table_shows_the_median_and_how_far_the_turns_lie_apart() -> None:
    assert bench.spread([3.0, 1.0, 2.0]) == "2.00 (1.00 to 3.00)"
    assert bench.spread([1_320.4, 1_282.0, 1_356.0]) == "1,320 (1,282 to 1,356)"
