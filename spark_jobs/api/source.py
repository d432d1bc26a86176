"""Sources (streams) and static inputs of a pipeline."""

from dataclasses import dataclass
from enum import StrEnum
from zoneinfo import available_timezones

from spark_jobs.api.address import AddressTemplate, address_template
from spark_jobs.api.functions import PARAMS, SPARK, Function, check_only_takes
from spark_jobs.api.refusals import Place, suggestion
from spark_jobs.protocol.ids import InputName
from spark_jobs.protocol.options import choice, flag, interval_ms


class Refresh(StrEnum):
    """The version of a static input that is read."""

    ROUND = "round"
    """One Delta version for a whole round, pinned by its first attempt. With an unbounded source each attempt pins its own."""
    UNPINNED = "unpinned"
    """The version that each batch finds. Two batches may see different versions."""


class AfterPublication(StrEnum):
    """The treatment of a file whose rows are all public."""

    ARCHIVE = "archive"
    """The file is moved to the archive."""
    DELETE = "delete"


class OnGone(StrEnum):
    """The reaction to rows of a source that are lost before a stage has read them."""

    FAIL = "fail"
    """The run fails, or is not started, until somebody accepts the loss."""
    SKIP = "skip"
    """The stages go on without them. The loss ledger records them."""


@dataclass(frozen=True, eq=False)
class Source:
    """A stream. ``function`` is called with ``spark`` and ``params``, if it names them, and returns a streaming frame."""

    name: InputName
    function: Function
    bounded: bool
    """True if the stream has an end."""
    event_time: str | None
    """The column with the event time. None: the stream has no watermark."""
    delay_ms: int | None
    """Distance from the newest event time to the watermark. None: no delay was declared."""
    held: bool
    """True if the watermark waits for the source's end, so that no row is late within a round.

    At the end the watermark moves to the newest event time minus the delay, or, in a drain, to the end of time.
    """
    shared: bool = False
    """True if only one stage of the graph reads it and stages its rows for all others. The watermark of the others begins there."""
    after: InputName | None = None
    """The bounded source of the same table at whose end this source begins."""
    follows: "Source | None" = None
    """The source named by ``after``; set in a graph."""
    event_time_zone: str | None = None
    """The time zone of an event time that has none."""
    after_publication: AfterPublication | None = None
    """None: files that were read stay."""
    archive: AddressTemplate | None = None
    """The directory that files are moved to."""
    on_gone: OnGone = OnGone.FAIL


@dataclass(frozen=True, eq=False)
class Static:
    """A table that is read as a whole. ``function`` is called like a source's and returns a batch frame."""

    name: InputName
    function: Function
    refresh: Refresh


def declare_source(
    place: Place,
    function: Function,
    *,
    bounded: bool,
    event_time: str | None = None,
    watermark_delay: str | None = None,
    hold_watermark: bool | None = None,
    shared: bool = False,
    after: str | None = None,
    event_time_zone: str | None = None,
    after_publication: str | None = None,
    archive: object = None,
    on_gone: str = "fail",
) -> Source:
    """Returns a source, checked as far as possible on its own; see :meth:`spark_jobs.Pipeline.source`."""
    check_only_takes(place, function, (SPARK, PARAMS))
    flag(place.refused, "bounded", bounded)
    flag(place.refused, "shared", shared)
    if shared and bounded:
        raise place.refused(
            "shared=True is for unbounded sources: a bounded one is read by every stage to the same pinned end.", "Remove shared."
        )
    if after is not None and (bounded or not isinstance(after, str)):
        raise place.refused(
            f"after={after!r} is for an unbounded source. It names the bounded source of the same table that this one continues.",
            "Remove after, or declare bounded=False.",
        )
    delay_ms = check_event_time(place, event_time, watermark_delay)
    _check_zone(place, event_time, event_time_zone)
    if hold_watermark is not None and event_time is None:
        raise place.refused(
            "hold_watermark is given without event_time.", "Name the column with event_time=, or remove hold_watermark."
        )
    if hold_watermark is not None and delay_ms is None:
        raise place.refused(
            "hold_watermark is given without watermark_delay; without a delay the watermark of a bounded source is always held back.",
            "Give a watermark_delay, or remove hold_watermark.",
        )
    if not bounded:
        _check_unbounded(place, event_time, delay_ms, hold_watermark)
    after_read = (
        None if after_publication is None else choice(place.refused, "after_publication", AfterPublication, after_publication)
    )
    if after_read is not None and not bounded:
        raise place.refused("after_publication is for bounded sources.", "Remove it, or declare bounded=True.")
    if (archive is not None) != (after_read is AfterPublication.ARCHIVE):
        raise place.refused(
            "an archive belongs to after_publication='archive', only.",
            'Give both: after_publication="archive", archive="{warehouse}/read".',
        )
    held = event_time is not None and (delay_ms is None or bool(hold_watermark))
    before = None if after is None else InputName(after)
    return Source(
        *(InputName(place.name), function, bounded, event_time, delay_ms, held, shared, before),
        event_time_zone=event_time_zone,
        after_publication=after_read,
        archive=None if archive is None else address_template(place, archive, None),
        on_gone=choice(place.refused, "on_gone", OnGone, on_gone),
    )


def _check_unbounded(place: Place, event_time: str | None, delay_ms: int | None, hold_watermark: bool | None) -> None:
    """Refuses a watermark that waits for the end of a source without one: it would never move."""
    if event_time is not None and delay_ms is None:
        raise place.refused(
            "it is unbounded and has event_time without watermark_delay: its watermark would never move.",
            'Give it a watermark_delay, such as watermark_delay="30 minutes".',
        )
    if hold_watermark is not None:
        raise place.refused(
            "hold_watermark holds the watermark back until the source's end, but an unbounded source has none.",
            "Remove hold_watermark.",
            hold_watermark=hold_watermark,
        )


def _check_zone(place: Place, event_time: str | None, zone: object) -> None:
    """Refuses a time zone without an event time, and an unknown one."""
    if zone is None:
        return
    if event_time is None:
        raise place.refused(
            "event_time_zone is given without event_time.", "Name the column with event_time=, or remove event_time_zone."
        )
    known = available_timezones()
    if zone not in known:
        raise place.refused(
            f"event_time_zone={zone!r} is not a time zone.",
            f"Give a name such as 'Europe/Berlin'. {suggestion(str(zone), known)}"[:300],
        )


def declare_static(place: Place, function: Function, *, refresh: str = "round") -> Static:
    """Returns a checked static input; see :meth:`spark_jobs.Pipeline.static`."""
    check_only_takes(place, function, (SPARK, PARAMS))
    return Static(InputName(place.name), function, choice(place.refused, "refresh", Refresh, refresh))


def check_event_time(place: Place, event_time: object, watermark_delay: object) -> int | None:
    """Returns the delay in milliseconds, or None if none is declared.

    Raises:
        InvalidPipelineError: The event time is not a column name, or a delay is not an interval or has no event time.
    """
    if event_time is not None and (not isinstance(event_time, str) or not event_time.strip()):
        raise place.refused(f"event_time={event_time!r} is not a column name.", "Give the column's name, or remove event_time.")
    if watermark_delay is None:
        return None
    if event_time is None:
        raise place.refused(
            "watermark_delay is given without event_time.", "Name the column with event_time=, or remove the delay."
        )
    return interval_ms(place.refused, "watermark_delay", watermark_delay)
