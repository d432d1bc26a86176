"""``spark-jobs checkpoints``: lists every checkpoint and every failed try."""

from collections.abc import Sequence
from itertools import compress
from typing import Annotated

from rich.console import Console, RenderableType
from rich.table import Table
from rich.text import Text

from spark_jobs.checkpoint.checkpoint_store import CheckpointStore
from spark_jobs.cli import words
from spark_jobs.cli.answers import CheckpointEntry, CheckpointsAnswer
from spark_jobs.cli.homes import Publications, open_home
from spark_jobs.cli.options import Home
from spark_jobs.cli.terminal import Output, command, output_option
from spark_jobs.control.losses import LossLedger
from spark_jobs.protocol.documents import CheckpointKind, Manifest
from spark_jobs.protocol.history import CheckpointHistory
from spark_jobs.storage.files import Files

_COLUMNS = (
    "checkpoint",
    "kind",
    "round",
    "began",
    "took",
    "of the longest",
    "of which",
    "cut",
    words.ROWS_OF_CHECKPOINT,
    "size",
    "new state",
    "published",
)
_NUMBERS = ("checkpoint", "round", words.ROWS_OF_CHECKPOINT, "size", "took")
_SOONEST_LEFT_OUT: tuple[str, ...] = ("of which", "of the longest", "new state", "cut", "round", "size", words.ROWS_OF_CHECKPOINT)
"""Columns to leave out, in this order, if the terminal is too narrow for all."""
_SHOWN_MAX = 100
"""Maximum number of checkpoints to show to people. A pipeline that runs for weeks has many."""


def checkpoints(home: Home, output: Annotated[Output, output_option(CheckpointsAnswer)] = Output.TEXT) -> None:
    """List the checkpoints with their times, durations and sizes, and show whether their rows are public."""
    with command(output) as terminal:
        files, pipeline = open_home(home)
        answer = CheckpointsAnswer(pipeline=pipeline.name, home=files.url, checkpoints=_entries(files))
        terminal.answer(answer, *_text(answer, terminal.people))


def _entries(files: Files) -> list[CheckpointEntry]:
    store, public = CheckpointStore(files), Publications()
    history = store.history()
    succeeded = {tried.checkpoint: tried for tried in history if tried.failure is None}
    ledger = LossLedger(files)
    names = ledger.names()
    complete = [
        _complete(each, succeeded.get(each.checkpoint), public, ledger.is_exact(each, names)) for each in store.manifests()
    ]
    corrupt = [
        CheckpointEntry(checkpoint=k, outcome="corrupt", checkpoint_kind=None, problem=error.failed)
        for k, error in store.corrupt().items()
    ]
    taken = store.taken()
    tries = [_tried(tried) for tried in history if tried.failure is not None or tried.checkpoint not in taken]
    return sorted([*tries, *complete, *corrupt], key=lambda entry: entry.checkpoint)


def _complete(manifest: Manifest, tried: CheckpointHistory | None, public: Publications, exact: bool) -> CheckpointEntry:
    actions = [cut.actions for cut in manifest.sinks.values()]
    return CheckpointEntry.of(
        *([tried] if tried else []),
        manifest,
        outcome="complete",
        duration_s=sum(_steps(tried).values())
        if tried
        else max((manifest.completed_at - manifest.began_at).total_seconds(), 0.0),
        steps_s=_steps(tried) if tried else {},
        files=sum(file.files for file in actions),
        rows=sum(file.rows for file in actions),
        size_bytes=sum(file.size_bytes for file in actions),
        published={sink: public.published(cut, manifest.checkpoint) for sink, cut in manifest.sinks.items()},
        abandoned=any(public.abandoned(cut) for cut in manifest.sinks.values()),
        exact=exact,
    )


def _tried(tried: CheckpointHistory) -> CheckpointEntry:
    """Returns the entry of a try that has failed, or whose checkpoint was deleted since."""
    return CheckpointEntry.of(
        tried,
        outcome="failed" if tried.failure else "subsumed",
        duration_s=sum(_steps(tried).values()),
        steps_s=_steps(tried),
        error=tried.failure.error if tried.failure else None,
        problem=tried.failure.failed if tried.failure else None,
    )


def _steps(tried: CheckpointHistory) -> dict[str, float]:
    return {step.step: step.duration_s for step in tried.steps}


def _text(answer: CheckpointsAnswer, console: Console) -> list[RenderableType]:
    if not answer.checkpoints:
        return [f"{answer.home} has no checkpoint yet."]
    shown = answer.checkpoints[-_SHOWN_MAX:]
    longest_s = max((entry.duration_s or 0.0 for entry in shown), default=0.0)
    made, narrowed = _fitting(f"Checkpoints of {answer.pipeline}", [_row(entry, longest_s) for entry in shown], console)
    older = len(answer.checkpoints) - len(shown)
    left_out = [f"{words.count(older)} older ones are left out; --output json has them."] if older else []
    if narrowed:
        left_out.append(f"Not shown because the terminal is too narrow: {', '.join(narrowed)}.")
    return [made, *left_out, *_ended(shown), *_not_exact(shown), *(_problem(entry) for entry in shown if entry.problem)]


def _fitting(title: str, rows: list[tuple[str | Text, ...]], console: Console) -> tuple[Table, tuple[str, ...]]:
    """Returns the table without the columns that do not fit, and the names of these columns."""
    unbounded, count = console.options.update(width=10_000), 0
    while True:
        left_out = _SOONEST_LEFT_OUT[:count]
        kept = [name not in left_out for name in _COLUMNS]
        made = words.table(title, *compress(_COLUMNS, kept), right=_NUMBERS)
        for row in rows:
            made.add_row(*compress(row, kept))
        if console.measure(made, options=unbounded).maximum <= console.width or count == len(_SOONEST_LEFT_OUT):
            return made, left_out
        count += 1


def _row(entry: CheckpointEntry, longest_s: float) -> tuple[str | Text, ...]:
    """Returns one cell for each column."""
    return (
        str(entry.checkpoint),
        _kind(entry),
        str(entry.round or ""),
        words.moment(entry.began_at) if entry.began_at else "",
        words.duration(entry.duration_s) if entry.duration_s is not None else "",
        words.bar(entry.duration_s or 0.0, longest_s),
        ", ".join(f"{step} {words.duration(spent_s)}" for step, spent_s in entry.steps_s.items()),
        _aligned(entry),
        words.count(entry.rows),
        words.size(entry.size_bytes),
        _state(entry),
        _published(entry),
    )


def _kind(entry: CheckpointEntry) -> str:
    if entry.checkpoint_kind is CheckpointKind.PERIODIC and entry.request is not None:
        return "requested"
    return entry.checkpoint_kind.value if entry.checkpoint_kind else ""


def _aligned(entry: CheckpointEntry) -> str:
    if entry.aligned is None:
        return ""
    waited = f", {words.duration(entry.alignment_s)}" if entry.alignment_s else ""
    without = f" without {', '.join(entry.behind)}" if entry.behind else ""
    if entry.aligned:
        return f"aligned{without}{waited}"
    return f"unaligned{without}{waited}, {words.count(entry.in_flight_rows)} rows in flight ({words.size(entry.in_flight_bytes)})"


def _state(entry: CheckpointEntry) -> str:
    if not entry.new_state_files + entry.reused_state_files:
        return ""
    return f"{words.size(entry.new_state_bytes)} of {words.size(entry.new_state_bytes + entry.reused_state_bytes)}"


def _ended(entries: Sequence[CheckpointEntry]) -> list[Text]:
    """Returns a line with the stages and inputs that had ended by the newest checkpoint."""
    newest = entries[-1]
    parts = [f"stage {name}" for name in newest.finished]
    parts += [f"input {name} of stage {stage}" for stage, names in newest.ended_inputs.items() for name in names]
    return [Text(f"At its end in checkpoint {newest.checkpoint}: {', '.join(parts)}.")] if parts else []


def _not_exact(entries: Sequence[CheckpointEntry]) -> list[Text]:
    """Returns a line with the checkpoints that lack rows whose loss is not accepted."""
    found = [str(entry.checkpoint) for entry in entries if entry.exact is False]
    return [Text(f"Not exact: {', '.join(found)}. See spark-jobs losses.", style="yellow")] if found else []


def _problem(entry: CheckpointEntry) -> Text:
    error = f"{entry.error}: " if entry.error else ""
    what = "has failed" if entry.outcome == "failed" else f"is {entry.outcome}"
    return Text(f"Checkpoint {entry.checkpoint} {what}: {error}{entry.problem}", style="red")


def _published(entry: CheckpointEntry) -> Text:
    if entry.outcome == "subsumed":
        return Text("subsumed", style="dim")
    if entry.outcome != "complete":
        return Text(entry.outcome, style="red")
    facts = list(entry.published.values())
    if None in facts:
        return Text("a table is gone", style="red")
    if all(facts):
        return Text("yes", style="green")
    if any(facts):
        return Text(f"{facts.count(True)} of {len(facts)} sinks{', abandoned' * entry.abandoned}", style="yellow")
    return words.ABANDONED if entry.abandoned else words.STAGED
