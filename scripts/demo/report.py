"""Reports the result of the demo: the rows of each table, whether they are right, and commands to type next."""

from collections.abc import Sequence
from pathlib import Path

from deltalake import DeltaTable
from rich.console import Console
from rich.table import Table

from scripts.demo.independent import Comparison, compare, read_airlines, read_flights
from scripts.demo.phases import Phase
from spark_jobs.home.layout import manifest_path
from spark_jobs.protocol.documents import Manifest
from spark_jobs.publication.evidence import consistent_versions
from spark_jobs.storage.open import open_files


def verify(home: Path) -> tuple[list[Comparison], dict[str, int]]:
    """Compares what is public with the independent answer.

    Returns:
        The comparisons, and by sink the Delta version that was read: one consistent cut over all tables.

    Raises:
        RejectedError: The checkpoint is not public in every sink.
        ValueError: The package's input is not what it should be.
    """
    cut = consistent_versions(open_files(str(home)))
    tables = {str(sink): DeltaTable(uri, version=version).to_pyarrow_table() for sink, (uri, version) in cut.items()}
    return compare(tables, read_flights(), read_airlines()), {str(sink): version for sink, (_, version) in cut.items()}


def print_result(console: Console, manifest: Manifest, comparisons: Sequence[Comparison], versions: dict[str, int]) -> None:
    """The table: a row for each sink."""
    table = Table(title="336,776 flights, one final checkpoint, three tables", title_justify="left")
    for heading in ("sink", "rows", "Delta version", "checkpoint", "independent query (DuckDB)"):
        table.add_column(heading, justify="right" if heading in ("rows", "Delta version", "checkpoint") else "left")
    for found in comparisons:
        table.add_row(found.sink, f"{found.rows:,}", str(versions[found.sink]), str(manifest.checkpoint), verdict(found))
    console.print(table)


def verdict(found: Comparison) -> str:
    """Returns the result of a comparison in words."""
    if found.same:
        return f"[green]the same {found.expected:,} rows[/green]"
    return f"[red]DIFFERS: {found.missing:,} of its {found.expected:,} rows missing, {found.extra:,} rows it does not have[/red]"


def print_next_steps(console: Console, output: Path, home: Path, manifest: Manifest, tables: Sequence[str]) -> None:
    """Prints the paths of the demo's output, and commands to copy."""
    command, python = ".venv/bin/spark-jobs", ".venv/bin/python"
    table = Path(tables[-1].removeprefix("file://"))
    console.print("[bold]Where it is[/bold]")
    for what, where in (
        ("manifest", home / manifest_path(manifest.checkpoint)),
        ("tables", f"{shown(table.parent)}/{{{','.join(Path(name).name for name in tables)}}}"),
        ("Airflow's log", output / "airflow.log"),
        ("the driver's log", home / "logs" / f"{manifest.attempt}.log"),
    ):
        console.print(f"  {what:17}{where if isinstance(where, str) else shown(where)}", soft_wrap=True, highlight=False)
    console.print("[bold]What to type next[/bold]")
    for line in (
        f"{command} checkpoints --home {shown(home)}",
        f"{command} inspect --home {shown(home)}",
        f'{python} -c "from deltalake import *; '
        f"print(QueryBuilder().register('rows', DeltaTable('{shown(table)}')).execute('SELECT * FROM rows').read_all())\"",
    ):
        console.print(f"  {line}", soft_wrap=True, highlight=False)
    console.print(
        "  The pipeline is dags_examples/pipelines/flights.py, its DAG dags_examples/bounded_flights.py.", highlight=False
    )


def shown(path: Path) -> str:
    """A path as it is typed here."""
    return str(path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path)


def breakdown(durations_s: dict[Phase, float]) -> str:
    """Returns the duration of each phase, in one line."""
    parts = [(phase.value[0].lower() + phase.value[1:], duration_s) for phase, duration_s in durations_s.items()]
    return f"{sum(durations_s.values()):.0f} s: " + ", ".join(f"{name} {duration_s:.0f} s" for name, duration_s in parts)
