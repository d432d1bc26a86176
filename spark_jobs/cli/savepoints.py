"""The view of a savepoint for ``spark-jobs inspect``."""

from rich.console import Console, RenderableType
from rich.text import Text

from spark_jobs.checkpoint.savepoint import named_by_savepoint, read_savepoint
from spark_jobs.cli import words
from spark_jobs.cli.answers import SavepointAnswer, SavepointStage
from spark_jobs.cli.homes import ordered_stages
from spark_jobs.cli.verify import verified
from spark_jobs.storage.files import Files


def inspected(files: Files, aside: Console) -> SavepointAnswer:
    """Verifies every file of a savepoint with a progress bar, and returns the answer.

    Raises:
        RejectedError: The directory is not a savepoint.
        CorruptDocumentError: A file is missing or altered. The error names its path.
    """
    savepoint, manifest = read_savepoint(files)
    if damage := verified(named_by_savepoint(files), aside):
        raise damage[0]
    order = dict.fromkeys([*ordered_stages(manifest.graph), *manifest.stages])
    return SavepointAnswer(
        savepoint=files.url,
        pipeline=savepoint.pipeline_name,
        uuid=savepoint.pipeline,
        incarnation=savepoint.incarnation,
        checkpoint=savepoint.checkpoint,
        request=savepoint.request,
        drained=savepoint.drained,
        taken_at=savepoint.taken_at,
        files=len(savepoint.files),
        size_bytes=savepoint.size_bytes,
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


def shown(answer: SavepointAnswer) -> list[RenderableType]:
    """Returns the savepoint for people."""
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
