from typing import Any

import pytest

from spark_jobs import Pipeline
from spark_jobs.api.source import AfterPublication, OnGone, Refresh, Source, Static
from spark_jobs.protocol.errors import InvalidPipelineError


def source_of(**options: Any) -> Source:
    """Returns a source as the runtime gets it."""
    pipeline = Pipeline("flights")

    @pipeline.source(**{"bounded": True} | options)
    def departures(spark: Any) -> Any: ...

    declared = pipeline._declarations["departures"]
    assert isinstance(declared, Source)
    return declared


def test_a_bounded_source_without_a_delay_holds_its_watermark_until_its_end() -> None:
    source = source_of(event_time="departure")
    assert (source.event_time, source.delay_ms, source.held) == ("departure", None, True)


def test_the_watermark_of_a_source_with_a_delay_moves_as_in_spark() -> None:
    source = source_of(event_time="departure", watermark_delay="30 minutes")
    assert (source.delay_ms, source.held) == (1_800_000, False)


@pytest.mark.parametrize("held", [True, False])
def test_a_source_with_a_delay_can_hold_its_watermark(held: bool) -> None:
    assert source_of(event_time="departure", watermark_delay="1 day", hold_watermark=held).held is held


def test_a_source_without_event_time_has_no_held_watermark() -> None:
    source = source_of()
    assert (source.event_time, source.delay_ms, source.held) == (None, None, False)


def test_the_watermark_of_an_unbounded_source_moves_behind_its_rows() -> None:
    source = source_of(bounded=False, event_time="departure", watermark_delay="30 minutes")
    assert (source.bounded, source.delay_ms, source.held) == (False, 1_800_000, False)


def test_an_unbounded_source_needs_no_event_time() -> None:
    assert source_of(bounded=False).bounded is False


def test_an_unbounded_source_with_event_time_needs_a_delay() -> None:
    with pytest.raises(
        InvalidPipelineError, match="source 'departures': .* its watermark would never move.*Give it a watermark_delay"
    ):
        source_of(bounded=False, event_time="departure")


@pytest.mark.parametrize("held", [True, False])
def test_the_watermark_of_an_unbounded_source_cannot_wait_for_its_end(held: bool) -> None:
    with pytest.raises(InvalidPipelineError, match="source 'departures': hold_watermark .* an unbounded source has none"):
        source_of(bounded=False, event_time="departure", watermark_delay="1 day", hold_watermark=held)


@pytest.mark.parametrize("bounded", [0, 1, None, "yes"])
def test_a_value_of_bounded_that_is_not_a_boolean_is_refused(bounded: Any) -> None:
    with pytest.raises(InvalidPipelineError, match="is neither True nor False"):
        source_of(bounded=bounded)


def test_a_delay_needs_an_event_time() -> None:
    with pytest.raises(InvalidPipelineError, match="watermark_delay is given without event_time"):
        source_of(watermark_delay="1 day")


def test_a_hold_needs_an_event_time() -> None:
    with pytest.raises(InvalidPipelineError, match="hold_watermark is given without event_time"):
        source_of(hold_watermark=True)


@pytest.mark.parametrize("held", [True, False])
def test_a_hold_needs_a_delay(held: bool) -> None:
    with pytest.raises(InvalidPipelineError, match="hold_watermark is given without watermark_delay"):
        source_of(event_time="departure", hold_watermark=held)


@pytest.mark.parametrize("event_time", ["", " ", 3])
def test_an_event_time_is_a_column_name(event_time: Any) -> None:
    with pytest.raises(InvalidPipelineError, match="is not a column name"):
        source_of(event_time=event_time)


def test_a_delay_is_an_interval() -> None:
    with pytest.raises(InvalidPipelineError, match="source 'departures': watermark_delay='soon' is not an interval"):
        source_of(event_time="departure", watermark_delay="soon")


def test_a_source_takes_only_spark_and_params() -> None:
    pipeline = Pipeline("flights")
    with pytest.raises(InvalidPipelineError, match="takes 'airlines', but it only gets spark and params"):

        @pipeline.source(bounded=True)
        def departures(spark: Any, airlines: Any) -> Any: ...

    with pytest.raises(InvalidPipelineError, match="takes 'departures', but it only gets spark and params"):

        @pipeline.static
        def airports(departures: Any) -> Any: ...


def test_the_function_of_a_source_may_bind_a_loop_variable_as_a_default() -> None:
    pipeline = Pipeline("flights")
    for region in ("eu", "us"):

        @pipeline.source(bounded=True, name=f"{region}_events")
        def events(spark: Any, region: str = region) -> Any: ...

    assert list(pipeline._declarations) == ["eu_events", "us_events"]


def test_a_static_input_is_pinned_for_the_round_by_default() -> None:
    pipeline = Pipeline("flights")

    @pipeline.static
    def airlines(spark: Any) -> Any: ...

    @pipeline.static(refresh="unpinned")
    def airports() -> Any: ...

    refreshes = [part.refresh for part in pipeline._declarations.values() if isinstance(part, Static)]
    assert refreshes == [Refresh.ROUND, Refresh.UNPINNED]


def test_an_unknown_refresh_is_refused() -> None:
    with pytest.raises(InvalidPipelineError, match=r"refresh='daily' is unknown\. Choose one of: round, unpinned"):
        Pipeline("flights").static(refresh="daily", name="airlines")(lambda spark: spark)  # type: ignore[call-overload]


def test_the_zone_of_an_event_time_is_kept() -> None:
    assert source_of(event_time="departure", event_time_zone="Europe/Berlin").event_time_zone == "Europe/Berlin"


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"event_time_zone": "Europe/Berlin"}, "event_time_zone is given without event_time"),
        ({"event_time": "departure", "event_time_zone": "Europe/Berlinn"}, "is not a time zone"),
        ({"event_time": "departure", "event_time_zone": 1}, "is not a time zone"),
    ],
)
def test_an_invalid_time_zone_is_refused(options: dict[str, Any], problem: str) -> None:
    with pytest.raises(InvalidPipelineError, match=problem) as refused:
        source_of(**options)
    assert "Europe/Berlin" in refused.value.remedy or "event_time=" in refused.value.remedy


def test_rows_that_are_gone_fail_the_run_unless_the_source_skips_them() -> None:
    assert source_of().on_gone is OnGone.FAIL
    assert source_of(on_gone="skip").on_gone is OnGone.SKIP
    with pytest.raises(InvalidPipelineError, match="on_gone"):
        source_of(on_gone="ignore")


def test_files_that_were_read_are_archived_or_deleted_on_request() -> None:
    assert source_of().after_publication is None
    assert source_of(after_publication="delete").after_publication is AfterPublication.DELETE
    source = source_of(after_publication="archive", archive="/data/read")
    assert source.after_publication is AfterPublication.ARCHIVE
    assert source.archive is not None
    assert source.archive.text == "/data/read"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"after_publication": "keep"}, "after_publication"),
        ({"after_publication": "archive"}, "an archive belongs to"),
        ({"after_publication": "delete", "archive": "/data/read"}, "an archive belongs to"),
        ({"archive": "/data/read"}, "an archive belongs to"),
        ({"after_publication": "delete", "bounded": False}, "is for bounded sources"),
    ],
)
def test_an_archive_option_without_archiving_is_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidPipelineError, match=message):
        source_of(**options)
