"""Numbers, times and places in a form for people."""

import shlex
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime, timedelta

from rich import box
from rich.filesize import decimal
from rich.table import Table
from rich.text import Text

from spark_jobs.protocol.documents import BlockedPublication
from spark_jobs.protocol.ids import SinkName, StageName
from spark_jobs.protocol.losses import Loss, goes_on_without
from spark_jobs.protocol.pins import ClockPin, DeltaPin, KafkaPin, Pin

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_END_OF_TIME_MS = 253_402_300_799_000
INTERRUPTED = "is interrupted: the next run goes on with it"
"""The words for a round that has not ended and on which no driver is working."""
ROWS_OF_ATTEMPT = "rows of the attempt"
"""Heading or unit of rows that a running attempt has read."""
ROWS_OF_CHECKPOINT = "rows of the checkpoint"
"""Heading or unit of rows since the checkpoint before."""
ROWS_OF_ROUND = "rows of the round"
"""Heading of rows that all checkpoints of a round have added."""
_LOSSES_SHOWN = 5
STAGED = Text("staged", style="yellow")
ABANDONED = Text("abandoned", style="dim")


def count(number: int) -> str:
    return f"{number:,}"


def size(size_bytes: int) -> str:
    return decimal(size_bytes)


def moment(time: datetime) -> str:
    return time.astimezone(UTC).strftime("%Y-%m-%d %H:%M:%S UTC")


def duration(seconds: float) -> str:
    """Returns a text such as ``0.25 s``, ``12 s``, ``1:05 min`` or ``2:00:10 h``."""
    if seconds < 59.5:
        return f"{seconds:.2f} s" if seconds < 10 and seconds != int(seconds) else f"{seconds:.0f} s"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02} h" if hours else f"{minutes}:{rest:02} min"


def bar(value: float, most: float) -> Text:
    """Returns a bar for the share of a value in the largest one, of at most ten characters."""
    eighths = round(value / most * 10 * 8) if most > 0 else 0
    full, rest = divmod(min(eighths, 80), 8)
    return Text("█" * full + ("▏▎▍▌▋▊▉"[rest - 1] if rest else ""), style="cyan")


def ago(seconds: float) -> str:
    """Returns a text such as ``12 s ago``, ``1:05 min ago`` or ``3 days ago``."""
    past_s = round(max(seconds, 0))
    return f"{past_s // 86_400} days ago" if past_s >= 172_800 else f"{duration(past_s)} ago"


def watermark(watermark_ms: int | None) -> str:
    """Returns a date, or the meaning of a value at either end of time."""
    if watermark_ms is None or watermark_ms <= 0:
        return "none yet"  # Spark begins at 1970
    if watermark_ms >= _END_OF_TIME_MS:
        return "end of time"
    return (_EPOCH + timedelta(milliseconds=watermark_ms)).strftime("%Y-%m-%d %H:%M:%S UTC")


def version(number: int | None) -> Text:
    """Returns a Delta version, or the word for staged rows."""
    return STAGED if number is None else Text(f"version {number}", style="green")


def yes(fact: bool) -> str:
    return "yes" if fact else "no"


def violations(found: Mapping[StageName, Mapping[str, int]]) -> list[Text]:
    """Returns a sentence for each expectation that rows of a round violate, with their number."""
    return [
        Text(f"{count(rows)} {ROWS_OF_ROUND} violate {name}, which stage {stage} expects.", style="yellow")
        for stage, counts in found.items()
        for name, rows in counts.items()
    ]


def behind(sinks: Sequence[SinkName]) -> str:
    """Returns a sentence with the tables that show less than the others."""
    return f"The tables of {', '.join(sinks)} show less than the others: see spark-jobs checkpoints."


def blocked(publication: BlockedPublication) -> Text:
    """Returns a sentence about the blocked publication and its next try."""
    return Text(f"{publication.summary} A running pipeline tries again; otherwise the next start does.", style="yellow")


def losses(found: Sequence[Loss]) -> list[str]:
    """Returns a sentence for each of the last losses of a round, and one about the others."""
    shown = [f"Loss {loss.id}: {goes_on_without(loss)}." for loss in found[-_LOSSES_SHOWN:]]
    older = len(found) - len(shown)
    return [f"{count(older)} more before these. See spark-jobs losses.", *shown] if older else shown


def not_exact() -> Text:
    """Returns the answer of a checkpoint that lacks rows whose loss is not accepted."""
    return Text("no: it lacks rows of inputs. See spark-jobs losses", style="yellow")


def pin(pinned: Pin) -> str:
    """Returns the position at which an input ends."""
    if isinstance(pinned, DeltaPin):
        return f"{pinned.path} at version {pinned.version}"
    if isinstance(pinned, ClockPin):
        return f"computed at {moment(datetime.fromtimestamp(pinned.moment_ms / 1000, UTC))}"
    if isinstance(pinned, KafkaPin):
        numbers = {topic: "1 partition" if len(ends) == 1 else f"{len(ends)} partitions" for topic, ends in pinned.topics.items()}
        return "; ".join(f"topic {topic}: {partitions}" for topic, partitions in numbers.items())
    return f"{pinned.path}: {count(len(pinned.files))} files, {size(sum(file.size_bytes for file in pinned.files))}"


def command_line(*words: str) -> Text:
    """Returns a command to type. It is never wrapped, so that it can be copied."""
    return Text(f"  {shlex.join(words)}", style="cyan", no_wrap=True)


def table(title: str, *columns: str, right: Iterable[str] = ()) -> Table:
    """Returns an empty table. The columns in ``right`` hold numbers. Long values are folded, never cut."""
    made = Table(title=title, title_justify="left", title_style="bold", box=box.SIMPLE_HEAD, pad_edge=False)
    for column in columns:
        made.add_column(column, justify="right" if column in right else "left", overflow="fold")
    return made


def facts(*pairs: tuple[str, str | Text]) -> Table:
    """Returns a table of names and values."""
    made = Table.grid(padding=(0, 2))
    for name, value in pairs:
        made.add_row(Text(name, style="bold"), value)
    return made
