import pytest

from benchmarks.figures import Better, Figure, Kind, in_turn, measured_in_turn

RUN = Kind("runs", "seconds a run", Better.LESS, "ours", "plain")
RATE = Kind("sink", "rows a second", Better.MORE, "ours", "plain")


@pytest.mark.parametrize(("kind", "ratio"), [(RATE, 0.5), (RUN, 2.0)])
def test_the_ratio_of_a_figure_compares_medians_and_is_above_one_if_ours_is_better(kind: Kind, ratio: float) -> None:
    assert Figure(kind, "a run", ours=[3.0, 1.0, 2.0], plain=[4.0, 4.0, 40.0]).ratio == ratio


def test_each_turn_has_its_own_ratio() -> None:
    assert Figure(RUN, "a run", ours=[1.0, 2.0], plain=[4.0, 1.0]).ratios == [4.0, 0.5]


@pytest.mark.parametrize(("goal", "met"), [(None, None), (2.0, True), (2.1, False)])
def test_a_goal_is_met_if_the_ratio_reaches_it(goal: float | None, met: bool | None) -> None:
    assert Figure(RUN, "a run", ours=[1.0], plain=[2.0], goal=goal).met is met


@pytest.mark.parametrize(("most", "goal", "met"), [(3.0, None, True), (2.9, None, False), (3.0, 2.0, False), (3.0, 1.0, True)])
def test_an_upper_limit_has_to_hold_in_every_turn(most: float, goal: float | None, met: bool) -> None:
    assert Figure(RUN, "a run", ours=[1.0, 3.0, 2.0], plain=[2.0] * 3, goal=goal, most=most).met is met


def test_a_figure_can_be_stored_and_read() -> None:
    figure = Figure(RATE, "a run", ours=[1.0], plain=[2.0], goal=1.2)
    assert Figure.from_json(figure.to_json()) == figure


def test_ours_and_plain_spark_take_turns_and_the_first_turn_does_not_count() -> None:
    order: list[str] = []

    def way(name: str, value: float) -> float:
        order.append(name)
        return value + len(order)

    figure = measured_in_turn(
        RUN, "a run", ours=lambda: way("ours", 0), plain=lambda: way("plain", 100), turns=2, tell=lambda what: None, goal=1.0
    )
    assert order == ["ours", "plain"] * 3
    assert (figure.ours, figure.plain, figure.goal) == ([3, 5], [104, 106], 1.0)


def test_every_turn_counts_without_a_warm_up() -> None:
    told: list[str] = []
    assert in_turn("cold", {"ours": lambda: 1.0, "plain": lambda: 2.0}, 2, told.append, warm=False) == {
        "ours": [1.0, 1.0],
        "plain": [2.0, 2.0],
    }
    assert told[0] == "cold, ours: turn 1 of 2"
