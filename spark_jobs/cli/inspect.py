"""``spark-jobs inspect``: shows one checkpoint or one savepoint in full."""

from typing import Annotated

import typer
from rich.console import Console, RenderableType
from rich.text import Text

from spark_jobs.checkpoint.checkpoint_store import CheckpointStore
from spark_jobs.checkpoint.savepoint import named_by_savepoint, read_savepoint
from spark_jobs.cli import words
from spark_jobs.cli.answers import InspectAnswer, SavepointAnswer, SavepointStage, SinkFacts, StageFacts, TidiedFacts
from spark_jobs.cli.homes import Publications, manifest_url, open_home, ordered_stages
from spark_jobs.cli.options import MaybeHome, MaybeSavepoint
from spark_jobs.cli.terminal import Output, command, output_option
from spark_jobs.cli.verify import verified
from spark_jobs.control.losses import LossLedger
from spark_jobs.control.rounds import Rounds
from spark_jobs.protocol.documents import CheckpointKind, Manifest, Publisher, SinkCut
from spark_jobs.protocol.errors import InvalidParameterError
from spark_jobs.protocol.ids import CheckpointId, InputName
from spark_jobs.publication.pending import chosen_manifest, ordered_sinks
from spark_jobs.storage.files import Files
from spark_jobs.storage.open import open_place

PUBLISHERS = {Publisher.DELTA_RS: "delta-rs, no JVM", Publisher.SPARK: "Spark"}
Checkpoint = Annotated[
    int | None, typer.Option("--checkpoint", min=1, metavar="K", help="Its number; by default the newest.", show_default=False)
]


def inspect(
    savepoint: MaybeSavepoint = None,
    home: MaybeHome = None,
    checkpoint: Checkpoint = None,
    output: Annotated[Output, output_option(InspectAnswer | SavepointAnswer)] = Output.TEXT,
) -> None:
    """Show one checkpoint: its stages, sinks and inputs. Or show a savepoint, after reading and comparing every file of it."""
    with command(output) as terminal:
        if savepoint is not None and home is None and checkpoint is None:
            found = _savepoint_answer(open_place(savepoint), terminal.aside)
            return terminal.answer(found, *_savepoint_text(found))
        if savepoint is not None or home is None:
            raise InvalidParameterError(
                "inspect needs exactly one of a savepoint and a home.",
                safe="Nothing was read.",
                remedy="Give the directory of a savepoint, or --home.",
            )
        files, _ = open_home(home)
        number = None if checkpoint is None else CheckpointId(checkpoint)
        answer = _answer(files, chosen_manifest(CheckpointStore(files), number))
        terminal.answer(answer, *_text(answer))


def _answer(files: Files, manifest: Manifest) -> InspectAnswer:
    public = Publications()
    order = dict.fromkeys([*ordered_stages(manifest.graph), *manifest.stages])
    return InspectAnswer.of(
        manifest,
        pipeline=manifest.pipeline_name,
        home=files.url,
        manifest=manifest_url(files, manifest),
        stages={name: StageFacts.of(manifest.stages[name]) for name in order if name in manifest.stages},
        sinks={sink: _sink(manifest.sinks[sink], manifest.checkpoint, public) for sink in ordered_sinks(manifest)},
        exact=LossLedger(files).is_exact(manifest),
        tidied={
            name: TidiedFacts.of(each)
            for name, each in Rounds(files).tidied(manifest.round).items()
            if manifest.checkpoint_kind is CheckpointKind.FINAL
        },
    )


def _sink(cut: SinkCut, checkpoint: CheckpointId, public: Publications) -> SinkFacts:
    published = public.published(cut, checkpoint)
    return SinkFacts.of(
        cut,
        cut.actions,
        policy=cut.publish,
        published=published,
        version=public.version(cut, checkpoint) if published else None,
        abandoned=public.abandoned(cut),
    )


def _text(answer: InspectAnswer) -> list[RenderableType]:
    parent = f"after checkpoint {answer.parent}" if answer.parent else "the first of its incarnation"
    heads = words.facts(
        ("pipeline", answer.pipeline),
        ("checkpoint", f"{answer.checkpoint}, {answer.checkpoint_kind.value}, {parent}"),
        ("round", f"{answer.round}, run {answer.run}, attempt {answer.attempt}"),
        ("drained", words.yes(answer.drained)),
        ("at the end of its inputs", answer.on_end.value),
        ("exact", words.yes(answer.exact) if answer.exact else words.not_exact()),
        ("completed", words.moment(answer.completed_at)),
        ("manifest", answer.manifest),
        ("parameters", ", ".join(f"{name}={value}" for name, value in answer.parameters.items()) or "none"),
    )
    headings: tuple[str, ...] = (
        "stage",
        "batch",
        "watermark",
        words.ROWS_OF_CHECKPOINT,
        f"late {words.ROWS_OF_CHECKPOINT}",
        "drained",
    )
    stages = words.table("Stages", *headings, right=("batch", words.ROWS_OF_CHECKPOINT, f"late {words.ROWS_OF_CHECKPOINT}"))
    for name, stage in answer.stages.items():
        batches = f", {stage.drain_batches} batches" if stage.drain_batches > 1 else ""
        kept = f", keeps the state of {', '.join(stage.undrained)}" if stage.undrained else ""
        drained = f"{words.yes(stage.drained)}{batches}{kept}"
        late = Text(words.count(stage.late_rows), style="yellow" if stage.late_rows else "")
        batch = str(stage.batch) if stage.batch >= 0 else "none"
        stages.add_row(Text(name), batch, words.watermark(stage.watermark_ms), words.count(stage.rows), late, drained)
    headings = ("sink", "mode", "files", words.ROWS_OF_CHECKPOINT, "size", "policy", "publisher", "public", "table")
    sinks = words.table("Sinks", *headings, right=("files", words.ROWS_OF_CHECKPOINT, "size"))
    for sink_name, sink in answer.sinks.items():
        amounts = (words.count(sink.files), words.count(sink.rows), words.size(sink.size_bytes))
        if sink.published is None:
            public = Text("the table is gone", style="red")
        else:
            public = words.ABANDONED if sink.abandoned and not sink.published else words.version(sink.version)
        sinks.add_row(
            Text(sink_name), sink.mode.value, *amounts, sink.policy.value, PUBLISHERS[sink.publisher], public, Text(sink.table)
        )
    inputs = words.table("Inputs", "input", "ends at")
    for input_name, pins in answer.inputs.items():
        inputs.add_row(Text(input_name), Text("\n".join(words.pin(pinned) for pinned in pins) or "not pinned"))
    lost = [Text(each, style="yellow") for each in words.losses(answer.losses)]
    tidied = [_tidied(name, each) for name, each in answer.tidied.items()]
    violated = words.violations({name: stage.violations for name, stage in answer.stages.items()})
    return [heads, stages, sinks, *([inputs] if answer.inputs else []), *violated, *lost, *tidied]


def _tidied(source: InputName, found: TidiedFacts) -> Text:
    taken = f"The files of source {source} were taken away at {words.moment(found.tidied_at)}"
    if not found.left:
        return Text(f"{taken}.")
    left = f"{words.count(len(found.left))} that have changed since they were read stay, such as {found.left[0]}"
    return Text(f"{taken}; {left}.", style="yellow")


def _savepoint_answer(files: Files, aside: Console) -> SavepointAnswer:
    """Verifies every file of a savepoint with a progress bar, and returns the answer.

    Raises:
        RejectedError: The directory is not a savepoint.
        CorruptDocumentError: A file is missing or altered. The error names its path.
    """
    savepoint, manifest = read_savepoint(files)
    if damage := verified(named_by_savepoint(files), aside):
        raise damage[0]
    order = dict.fromkeys([*ordered_stages(manifest.graph), *manifest.stages])
    return SavepointAnswer.of(
        savepoint,
        savepoint=files.url,
        pipeline=savepoint.pipeline_name,
        uuid=savepoint.pipeline,
        files=len(savepoint.files),
        parameters=manifest.parameters,
        stages={
            name: SavepointStage(
                batch=cut.batch,
                watermark_ms=cut.watermark_ms,
                state_files=len(cut.files),
                state_bytes=sum(file.size_bytes for file in cut.files),
                in_flight_rows=cut.channel.in_flight_rows,
            )
            for name, cut in ((name, manifest.stages[name]) for name in order if name in manifest.stages)
        },
        tables={sink: cut.table for sink, cut in manifest.sinks.items()},
    )


def _savepoint_text(answer: SavepointAnswer) -> list[RenderableType]:
    heads = words.facts(
        ("pipeline", answer.pipeline),
        ("checkpoint", f"{answer.checkpoint} of the home that it was taken in, for {answer.request or 'nobody'}"),
        ("drained", words.yes(answer.drained)),
        ("taken", words.moment(answer.taken_at)),
        ("size", f"{words.count(answer.files)} files, {words.size(answer.size_bytes)}"),
        ("parameters", ", ".join(f"{name}={value}" for name, value in answer.parameters.items()) or "none"),
    )
    headings = ("stage", "batch", "watermark", "state files", "state", "rows in flight")
    stages = words.table("Stages", *headings, right=("batch", "state files", "state", "rows in flight"))
    for name, stage in answer.stages.items():
        amounts = (words.count(stage.state_files), words.size(stage.state_bytes), words.count(stage.in_flight_rows))
        stages.add_row(Text(name), str(stage.batch), words.watermark(stage.watermark_ms), *amounts)
    tables = words.table("Tables when it was taken", "sink", "table")
    for sink, table in answer.tables.items():
        tables.add_row(Text(sink), Text(table))
    return [heads, stages, tables, Text("Every file is there, and its hash is that of the copy.", style="bold green")]
