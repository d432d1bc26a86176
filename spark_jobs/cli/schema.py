"""``spark-jobs schema``: prints a pipeline's parameters as a JSON schema, for the form of a DAG."""

import json
from pathlib import Path
from typing import Annotated, Any

import typer
from pydantic import RootModel

from spark_jobs.api.load import load_pipeline
from spark_jobs.cli.options import Entry
from spark_jobs.cli.terminal import Output, command, output_option
from spark_jobs.protocol.errors import AccessDeniedError
from spark_jobs.storage.open import open_files


class SchemaAnswer(RootModel[dict[str, Any]]):
    """The answer of ``spark-jobs schema``: a JSON schema."""


def schema(
    entry: Entry,
    output_file: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write it to a file. A DAG file that reads it needs no pyspark.")
    ] = None,
    output: Annotated[Output, output_option(SchemaAnswer)] = Output.TEXT,
) -> None:
    """Print the JSON schema of a pipeline's parameters, without its secrets."""
    with command(output) as terminal:
        document = load_pipeline(entry).schema()
        text = json.dumps(document, indent=2)
        if output_file is not None:
            target = output_file.expanduser().absolute()
            if not target.parent.is_dir():
                raise AccessDeniedError(f"{target.parent} is not a directory.", remedy="Create it.", path=str(target))
            open_files(str(target.parent)).replace(target.name, f"{text}\n".encode())
            terminal.aside.print(f"Wrote {target}.")
        if output_file is None or output is Output.JSON:
            terminal.answer(SchemaAnswer(document), text)
