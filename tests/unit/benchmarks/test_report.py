"""The report of a benchmark run: numbers, tables and a plot. The figures on the docs page match the run that is in the repository."""

from pathlib import Path

import pytest
from rich.console import Console

from benchmarks import __main__ as bench
from benchmarks.figures import Better, Figure, Kind
from benchmarks.plot import draw, fingerprint
from benchmarks.report import Report, about, spread

SINK = Kind("staged sink", "rows a second", Better.MORE, "staged", "Delta's sink")
RUNS = Kind("whole runs", "seconds a run", Better.LESS, "ours", "writeStream")
FIGURES = [
    Figure(SINK, "small", ours=[300.0, 200.0, 100.0], plain=[100.0, 100.0, 100.0], goal=1.2),
    Figure(SINK, "large", ours=[99.0], plain=[100.0], goal=1.0),
    Figure(RUNS, "1 stage", ours=[2.0], plain=[1.0], most=3.0),
    Figure(RUNS, "2 stages", ours=[4.0], plain=[1.0], most=3.0),
]
MANY = [Figure(Kind(f"kind {n}", "seconds", Better.LESS, "ours", "theirs"), f"figure {n}", [1.0], [1.0]) for n in range(20)]
PAGE = """# Figures

<!-- figures: measured on -->
<!-- end of figures -->

Text between.

<!-- figures: staged sink -->
old
<!-- end of figures -->

<!-- figures: whole runs -->
<!-- end of figures -->
"""


@pytest.fixture
def report() -> Report:
    return Report(about({"spark.master": "local[2]"}, quick=True, loads=[0.5, 3.25]), FIGURES)


def test_a_stored_report_has_the_figures_and_the_environment(tmp_path: Path, report: Report) -> None:
    report.write(tmp_path / "results" / "run.json")
    kept = Report.read(tmp_path / "results" / "run.json")
    assert kept == report
    assert (kept.about["quick"], kept.about["loads"]) == (True, [0.5, 3.25])
    assert kept.about["versions"].keys() == {"pyspark", "delta-spark", "deltalake"}


@pytest.mark.parametrize(
    ("values", "shown"),
    [
        ([3.0, 1.0, 2.0], "2.00 (1.00 to 3.00)"),
        ([1_320.4, 1_282.0, 1_356.0], "1,320 (1,282 to 1,356)"),
        ([0.011, 0.009, 0.02], "0.011 (0.009 to 0.020)"),
        ([7.0], "7.00"),
    ],
)
def test_the_tables_show_the_median_and_the_range_of_the_turns(values: list[float], shown: str) -> None:
    assert spread(values) == shown


def test_a_page_gets_a_table_for_each_kind_and_keeps_its_text(report: Report) -> None:
    page = report.markdown(PAGE)
    assert "| small | 200 (100 to 300) | 100 | 2.00 | ≥ 1.2 |\n| large | 99.00 | 100 | 0.99 | ≥ 1, not met |\n" in page
    assert "Seconds a run; less is better.\n\n| what | ours | writeStream | ratio | goal |\n| --- | ---: |" in page
    assert "| 1 stage | 2.00 | 1.00 | 0.50 | at most 3 |\n| 2 stages | 4.00 | 1.00 | 0.25 | at most 3, not met |\n" in page
    assert f"| all | {report.about['measured_at'][:10]} | 0.5 to 3.2 |" in page
    assert ("Text between." in page, "old" in page) == (True, False)
    assert report.markdown(page) == page


def test_what_was_measured_with_other_versions_has_a_table_of_its_own(report: Report) -> None:
    newer = Report(dict(report.about) | {"python": "3.14.0"}, [Figure(RUNS, "1 stage", [4.0], [1.0])])
    page = report.with_newer(newer).markdown(PAGE)
    assert [page.count(f"Python {python}, ") for python in (report.about["python"], "3.14.0")] == [1, 1]
    assert page.index("| all others |") < page.index("Python 3.14.0") < page.index("| whole runs |")


def test_a_page_without_a_place_for_a_kind_is_refused(report: Report) -> None:
    with pytest.raises(ValueError, match="'whole runs'"):
        report.markdown(PAGE.replace("whole runs", "other"))


def test_the_terminal_shows_all_figures(report: Report) -> None:
    console = Console(width=130, record=True, quiet=False, force_terminal=False)
    with console.capture() as shown:
        report.show(console)
    assert all(figure.name in shown.get() for figure in FIGURES)
    assert "rows a second, more is better" in shown.get()


def test_the_same_report_always_gives_the_same_drawing(tmp_path: Path, report: Report) -> None:
    report.write(tmp_path / "run.json")
    for name in ("a.svg", "b.svg"):
        draw(report, tmp_path / "run.json", tmp_path / name)
    drawing = (tmp_path / "a.svg").read_text()
    assert drawing == (tmp_path / "b.svg").read_text()
    assert all(figure.name in drawing for figure in FIGURES)
    assert fingerprint(tmp_path / "run.json") in drawing


def test_a_drawing_shows_every_figure_however_many_kinds_there_are(tmp_path: Path) -> None:
    report = Report(about({"spark.master": "local[2]"}, quick=True, loads=[0.5]), MANY)
    report.write(tmp_path / "run.json")
    draw(report, tmp_path / "run.json", tmp_path / "many.svg")
    drawing = (tmp_path / "many.svg").read_text()
    assert all(figure.name in drawing and figure.kind.name in drawing for figure in MANY)


def test_rendering_stores_the_numbers_with_the_plot(tmp_path: Path, report: Report, monkeypatch: pytest.MonkeyPatch) -> None:
    kept, plot, page = tmp_path / "docs/run.json", tmp_path / "docs/ratios.svg", tmp_path / "page.md"
    for name, path in {"KEPT": kept, "PLOT": plot, "PAGE": page}.items():
        monkeypatch.setattr(bench, name, path)
    page.write_text(PAGE)
    report.write(tmp_path / "elsewhere.json")
    bench.render(tmp_path / "elsewhere.json")
    assert Report.read(kept) == report
    assert page.read_text() == report.markdown(PAGE)
    assert plot.exists()


def test_a_newer_run_of_one_part_replaces_that_part_and_says_where_it_was_measured(
    tmp_path: Path, report: Report, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept, plot, page = tmp_path / "docs/run.json", tmp_path / "docs/ratios.svg", tmp_path / "page.md"
    for name, path in {"KEPT": kept, "PLOT": plot, "PAGE": page}.items():
        monkeypatch.setattr(bench, name, path)
    page.write_text(PAGE)
    report.write(kept)
    for ours in (4.0, 5.0):
        newer = Report(about({"spark.master": "local[2]"}, quick=True, loads=[9.0]), [Figure(RUNS, "1 stage", [ours], [1.0])])
        newer.write(tmp_path / "newer.json")
        bench.render(tmp_path / "newer.json")
    text = page.read_text()
    assert "| 1 stage | 5.00 | 1.00 |" in text
    assert "| small | 200 (100 to 300) |" in text
    day = Report.read(tmp_path / "newer.json").about["measured_at"][:10]
    assert text.count(f"| all others | {day} | 0.5 to 3.2 |\n| whole runs | {day} | 9.0 to 9.0 |\n") == 1


def test_the_tables_of_the_page_show_the_run_in_the_repository() -> None:
    assert bench.PAGE.read_text() == Report.read(bench.KEPT).markdown(bench.PAGE.read_text())


def test_the_plot_of_the_page_shows_the_run_in_the_repository() -> None:
    assert fingerprint(bench.KEPT) in bench.PLOT.read_text()


def test_the_run_in_the_repository_is_a_full_one() -> None:
    assert Report.read(bench.KEPT).about["quick"] is False


def test_a_newer_run_replaces_only_the_kinds_of_figures_that_it_has(report: Report) -> None:
    def run(day: str, *kinds: Kind) -> Report:
        return Report(dict(report.about) | {"measured_at": day}, [Figure(kind, day, ours=[1.0], plain=[1.0]) for kind in kinds])

    both = report.with_newer(run("monday", RUNS, MANY[0].kind)).with_newer(run("tuesday", RUNS))
    assert [(figure.kind.name, figure.name) for figure in both.figures if figure.kind is not SINK] == [
        ("kind 0", "monday"),
        ("whole runs", "tuesday"),
    ]
    assert [(later["measured_at"], later["kinds"]) for later in both.about["later"]] == [
        ("monday", ["kind 0"]),
        ("tuesday", ["whole runs"]),
    ]
