"""The correct parts of a pipeline with mistakes are found. Errors that only follow from another mistake are not reported."""

from collections.abc import Callable
from pathlib import Path

import pytest

from spark_jobs.api.load import load_pipeline, load_sound_parts
from spark_jobs.api.refusals import Mistakes
from spark_jobs.protocol.documents import OnEnd
from spark_jobs.protocol.errors import InvalidPipelineError
from tests.support.command_line import FLIGHTS

HOURLY = 'sink=DeltaSink("{warehouse}/hourly", partition_by=["day"])'
DAILY = 'sink=DeltaSink("{warehouse}/daily")'
EVENTS = 'bounded=True, event_time="at"'


def changed(*changes: tuple[str, str]) -> str:
    text = FLIGHTS
    for before, after in changes:
        assert text.count(before) == 1
        text = text.replace(before, after)
    return text


def looked_at(folder: Path, text: str, on_end: OnEnd | None = None) -> tuple[list[str], list[str], list[str]]:
    """Returns the remaining stages, the parts that remain without their options, and the parts that have mistakes."""
    entry, mistakes = folder / "flights.py", Mistakes()
    entry.write_text(text)
    graph = load_sound_parts(str(entry), mistakes).sound_graph(mistakes, on_end=on_end)
    parts = [str(error.evidence["part"]) for error in mistakes.found]
    return (list(graph.stages), sorted(graph.mistaken), parts) if graph else ([], [], parts)


@pytest.mark.parametrize(
    ("text", "stages", "mistaken", "parts"),
    [
        (changed(), ["hourly", "daily"], [], []),
        (changed((DAILY, 'sink=DeltaSink("{warehouse}/daily", mode="upsert")')), ["hourly", "daily"], ["daily"], ["sink daily"]),
        (changed((HOURLY, 'sink=DeltaSink("h", mode="no", name="x")')), ["hourly", "daily"], ["hourly"], ["sink x"]),
        (changed((DAILY, 'sink=DeltaSink("{lake}/daily", name="days")')), ["hourly", "daily"], ["daily"], ["sink days"]),
        (changed((EVENTS, 'bounded=True, watermark_delay="1 hour"')), ["hourly", "daily"], ["events"], ["source events"]),
        (changed((EVENTS, f"{EVENTS}, shared=True")), ["hourly", "daily"], ["events"], ["source events"]),
        (changed(("def events(spark, params)", "def events(*read)")), [], [], ["source events"]),
        (changed(("def daily(hourly)", "def daily(hourli)")), ["hourly"], ["daily"], ["stage daily"]),
        (changed(("def hourly(events,", "def hourly(event,")), [], [], ["stage hourly"]),
        (changed(("def daily(hourly)", "def daily(daily)")), [], [], [""]),
        (changed((DAILY, ""), (HOURLY, "")), ["hourly", "daily"], [], [""]),
        (changed(("def hourly(events, airlines)", "def hourly(events)")), ["hourly", "daily"], ["airlines"], ["static airlines"]),
        (
            changed((EVENTS, 'bounded="yes"'), (DAILY, f'event_time="day", {DAILY}, begin="later"')),
            ["hourly", "daily"],
            ["daily", "events"],
            ["source events", "stage daily"],
        ),
    ],
    ids=[
        *["none", "a sink", "a sink with a name", "a path", "an option of a source", "another option of a source"],
        *["a function", "the last input", "the first input", "a cycle", "no sink", "an unused input", "two parts"],
    ],
)
def test_the_parts_without_a_mistake_can_still_be_checked(
    tmp_path: Path, text: str, stages: list[str], mistaken: list[str], parts: list[str]
) -> None:
    assert looked_at(tmp_path, text) == (stages, mistaken, parts)


def test_a_source_with_an_invalid_delay_causes_no_errors_in_the_stages_behind_it(tmp_path: Path) -> None:
    text = changed((EVENTS, f'{EVENTS}, watermark_delay="soon"'), (HOURLY, f'{HOURLY}, event_time="hour"'))
    assert looked_at(tmp_path, text, OnEnd.SUSPEND) == (["hourly", "daily"], ["events"], ["source events"])


def test_one_error_names_a_wrong_on_end_and_a_wrong_stage(tmp_path: Path) -> None:
    text = changed(
        (EVENTS, 'bounded=False, event_time="at", watermark_delay="1 hour"'), ("def daily(hourly)", "def daily(hourli)")
    )
    assert looked_at(tmp_path, text, OnEnd.SUSPEND) == (["hourly"], ["daily", "events"], ["stage daily", "source events"])


@pytest.mark.parametrize("load", [load_pipeline, lambda text: load_sound_parts(text, Mistakes())])
def test_the_error_of_a_failed_import_also_reports_mistakes_before_that_line(
    tmp_path: Path, load: Callable[[str], object]
) -> None:
    entry = tmp_path / "flights.py"
    entry.write_text(changed((EVENTS, 'bounded="yes"'), (DAILY, "sink=DeltaSinc()")))
    with pytest.raises(InvalidPipelineError, match=r"2 mistakes were found.*neither True nor False.*DeltaSinc"):
        load(str(entry))


def test_a_start_reports_mistakes_of_the_graph_together_with_those_of_the_declarations(tmp_path: Path) -> None:
    entry = tmp_path / "flights.py"
    entry.write_text(changed((EVENTS, 'bounded="yes"'), ("def daily(hourly)", "def daily(hourli)")))
    with pytest.raises(InvalidPipelineError, match=r"2 mistakes were found.*neither True nor False.*'hourli'"):
        load_pipeline(str(entry))
