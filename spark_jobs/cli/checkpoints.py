"""``spark-jobs checkpoints``: what happened to every checkpoint."""

from typing import Annotated

from rich.console import RenderableType
from rich.text import Text

from spark_jobs.checkpoint.store import CheckpointStore
from spark_jobs.cli import words
from spark_jobs.cli.answers import CheckpointEntry, CheckpointsAnswer
from spark_jobs.cli.homes import Publications, open_home
from spark_jobs.cli.options import Home
from spark_jobs.cli.terminal import Output, command, output_option
from spark_jobs.protocol.documents import CheckpointHistory, Manifest
from spark_jobs.storage.files import Files


def checkpoints(home: Home, output: Annotated[Output, output_option(CheckpointsAnswer)] = Output.TEXT) -> None:
    """List the checkpoints: when, how long, how much, and whether their rows are public."""
    with command(output) as terminal:
        files, pipeline = open_home(home)
        answer = CheckpointsAnswer(pipeline=pipeline.name, home=files.url, checkpoints=_entries(files))
        terminal.answer(answer, *_text(answer))


def _entries(files: Files) -> list[CheckpointEntry]:
    store, public = CheckpointStore(files), Publications()
    history = store.history()
    succeeded = {tried.checkpoint: tried for tried in history if tried.failure is None}
    complete = [_complete(store.manifest(k), succeeded.get(k), public) for k in store.ids()]
    corrupt = [
        CheckpointEntry(checkpoint=k, outcome="corrupt", checkpoint_kind=None, problem=error.failed)
        for k, error in store.corrupt().items()
    ]
    failed = [_failed(tried) for tried in history if tried.failure is not None]
    return sorted([*failed, *complete, *corrupt], key=lambda entry: entry.checkpoint)


def _complete(manifest: Manifest, tried: CheckpointHistory | None, public: Publications) -> CheckpointEntry:
    actions = [cut.actions for cut in manifest.sinks.values()]
    return CheckpointEntry(
        checkpoint=manifest.checkpoint,
        outcome="complete",
        checkpoint_kind=manifest.checkpoint_kind,
        parent=manifest.parent,
        incarnation=manifest.incarnation,
        round=manifest.round,
        run=manifest.run,
        attempt=manifest.attempt,
        began_at=manifest.began_at,
        duration_s=sum(_steps(tried).values())
        if tried
        else max((manifest.completed_at - manifest.began_at).total_seconds(), 0.0),
        steps_s=_steps(tried) if tried else {},
        files=sum(file.files for file in actions),
        rows=sum(file.rows for file in actions),
        size_bytes=sum(file.size_bytes for file in actions),
        drained=manifest.drained,
        published={sink: public.published(cut, manifest.checkpoint) for sink, cut in manifest.sinks.items()},
        abandoned=any(public.abandoned(cut) for cut in manifest.sinks.values()),
    )


def _failed(tried: CheckpointHistory) -> CheckpointEntry:
    return CheckpointEntry(
        checkpoint=tried.checkpoint,
        outcome="failed",
        checkpoint_kind=tried.checkpoint_kind,
        attempt=tried.attempt,
        began_at=tried.began_at,
        duration_s=sum(_steps(tried).values()),
        steps_s=_steps(tried),
        files=tried.files,
        rows=tried.rows,
        size_bytes=tried.size_bytes,
        problem=tried.failure.failed if tried.failure else None,
    )


def _steps(tried: CheckpointHistory) -> dict[str, float]:
    return {step.step: step.duration_s for step in tried.steps}


def _text(answer: CheckpointsAnswer) -> list[RenderableType]:
    if not answer.checkpoints:
        return [f"{answer.home} has no checkpoint yet."]
    numbers = ("checkpoint", "round", "rows", "size", "took")
    made = words.table(
        f"Checkpoints of {answer.pipeline}",
        *("checkpoint", "kind", "round", "began", "took", "of which", "rows", "size", "published"),
        right=numbers,
    )
    for entry in answer.checkpoints:
        slow = ", ".join(f"{step} {words.duration(spent_s)}" for step, spent_s in entry.steps_s.items())
        made.add_row(
            str(entry.checkpoint),
            entry.checkpoint_kind.value if entry.checkpoint_kind else "",
            str(entry.round or ""),
            words.moment(entry.began_at) if entry.began_at else "",
            words.duration(entry.duration_s) if entry.duration_s is not None else "",
            slow,
            words.count(entry.rows),
            words.size(entry.size_bytes),
            _published(entry),
        )
    problems = [
        Text(f"Checkpoint {entry.checkpoint} is {entry.outcome}: {entry.problem}", style="red")
        for entry in answer.checkpoints
        if entry.problem
    ]
    return [made, *problems]


def _published(entry: CheckpointEntry) -> Text:
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
