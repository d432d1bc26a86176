"""The options that several commands share, and the parsers of their texts."""

import json
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer

from spark_jobs.api.pipeline import Pipeline
from spark_jobs.protocol.checkpointing import CheckpointOverrides, read_overrides
from spark_jobs.protocol.documents import OnRewind
from spark_jobs.protocol.errors import InvalidParameterError

Entry = Annotated[
    str,
    typer.Argument(
        metavar="ENTRY", help="FILE.py[:NAME], package.module[:NAME] or spark-pipeline.yml[:live]", show_default=False
    ),
]
Home = Annotated[
    str,
    typer.Option("--home", metavar="URL", help="The pipeline's home: a path, or a file:, s3: or hdfs: URL.", show_default=False),
]
MaybeSavepoint = Annotated[
    str | None,
    typer.Argument(
        metavar="SAVEPOINT", help="A savepoint, instead of --home: a path, or a file:, s3: or hdfs: URL.", show_default=False
    ),
]
MaybeHome = Annotated[
    str | None,
    typer.Option("--home", metavar="URL", help="The pipeline's home: a path, or a file:, s3: or hdfs: URL.", show_default=False),
]
WorkRoot = Annotated[
    str | None,
    typer.Option(
        metavar="DIRECTORY",
        help="On a cluster with a home in s3: or hdfs:, a directory that driver and executors share.",
        show_default=False,
    ),
]
Params = Annotated[
    list[str] | None,
    typer.Option("--param", metavar="NAME=VALUE", help="A parameter; lists and objects as JSON. Repeat the option for each."),
]
ParamsFile = Annotated[
    Path | None,
    typer.Option("--params-file", metavar="FILE", help="Parameters as a .json or .toml file; --param overrides it."),
]
Asker = Annotated[
    str | None,
    typer.Option(
        "--request",
        metavar="ID",
        help="Id of the request: the same id gets the same answer. By default a new one.",
        show_default=False,
    ),
]
Target = Annotated[
    str | None,
    typer.Option(
        metavar="URL",
        help="Place of the savepoint: a new path, or a file:, s3: or hdfs: URL; by default below the home.",
        show_default=False,
    ),
]
Timeout = Annotated[float, typer.Option(min=0.0, metavar="SECONDS", help="Time to wait for the answer.")]
EndTimeout = Annotated[float, typer.Option("--timeout", min=0.0, metavar="SECONDS", help="Time to wait for the driver's end.")]

Restore = Annotated[
    str | None,
    typer.Option(
        metavar="URL",
        help="Begin with this savepoint instead of going on: a path, or a file:, s3: or hdfs: URL.",
        show_default=False,
    ),
]
Savepoint = Annotated[
    str, typer.Argument(metavar="SAVEPOINT", help="The savepoint: a path, or a file:, s3: or hdfs: URL.", show_default=False)
]
AllowDrained = Annotated[
    bool, typer.Option("--allow-drained", help="With --restore: allow a savepoint that was taken after a drain.")
]
AllowDropped = Annotated[
    bool,
    typer.Option("--allow-dropped", help="Leave behind the state of stages that the pipeline no longer has; their tables stay."),
]
TakePending = Annotated[
    bool,
    typer.Option(
        "--take-pending",
        help="With --restore: first publish the rows that the savepoint holds staged, for sinks that keep their table.",
    ),
]
StatePartitions = Annotated[
    int | None,
    typer.Option(
        metavar="N",
        min=1,
        help="Keep the state in this number of partitions from now on; by default the number stays.",
        show_default=False,
    ),
]
NewSource = Annotated[
    list[str] | None,
    typer.Option(
        metavar="SOURCE", help="Read this source from its beginning if it is a different one than before; may be repeated."
    ),
]
FullRefresh = Annotated[
    list[str] | None,
    typer.Option(
        metavar="TABLE",
        help="Compute this table again from the beginning, and replace its rows; may be repeated, or be a list with commas.",
    ),
]
FullRefreshAll = Annotated[
    bool, typer.Option("--full-refresh-all", help="Compute all tables again: short for --fresh --on-rewind replace.")
]
AcceptDataLoss = Annotated[
    list[str] | None,
    typer.Option(metavar="SOURCE", help="Go on without the lost rows of this source, and record them; may be repeated."),
]
Conf = Annotated[list[str] | None, typer.Option("--conf", metavar="KEY=VALUE", help="A Spark setting; overrides the pipeline's.")]
Packages = Annotated[
    list[str] | None, typer.Option("--packages", metavar="GROUP:NAME:VERSION", help="Maven packages in addition to Delta's.")
]
Jars = Annotated[list[str] | None, typer.Option("--jars", metavar="FILE", help="Jar files to add.")]
PyFiles = Annotated[list[str] | None, typer.Option("--py-files", metavar="FILE", help="Python files for the executors.")]
DriverMemory = Annotated[
    str | None, typer.Option("--driver-memory", metavar="SIZE", help="Memory of the driver, such as 4g.", show_default=False)
]

_Interval = str | None
_PANEL = "Checkpoints while the stages run, instead of the pipeline's settings"
CheckpointInterval = Annotated[
    _Interval,
    typer.Option(
        metavar="INTERVAL",
        rich_help_panel=_PANEL,
        help="Time from the beginning of one checkpoint to that of the next, such as '30 seconds'.",
    ),
]
CheckpointTimeout = Annotated[
    _Interval,
    typer.Option(metavar="INTERVAL", rich_help_panel=_PANEL, help="Time after which a checkpoint has failed."),
]
CheckpointMinPause = Annotated[
    _Interval,
    typer.Option(
        metavar="INTERVAL",
        rich_help_panel=_PANEL,
        help="Minimum time from the end of one checkpoint to the beginning of the next.",
    ),
]
TolerableFailures = Annotated[
    int | None,
    typer.Option(
        metavar="N", rich_help_panel=_PANEL, help="Number of checkpoints in a row that may fail; one more ends the attempt."
    ),
]
Retained = Annotated[
    int | None, typer.Option(metavar="N", rich_help_panel=_PANEL, help="Number of complete checkpoints to keep.")
]
Unaligned = Annotated[
    bool | None,
    typer.Option(
        "--unaligned/--aligned",
        rich_help_panel=_PANEL,
        help="Include rows in flight in a checkpoint, or read them first.",
    ),
]
AlignedTimeout = Annotated[
    _Interval,
    typer.Option(
        metavar="INTERVAL|never", rich_help_panel=_PANEL, help="Time after which an aligned checkpoint becomes an unaligned one."
    ),
]
MaxInFlightBytes = Annotated[
    int | None,
    typer.Option(
        metavar="BYTES",
        rich_help_panel=_PANEL,
        help="An aligned checkpoint that waits for more becomes an unaligned one.",
    ),
]
SecondCopy = Annotated[
    bool | None,
    typer.Option(
        "--second-copy/--no-second-copy",
        rich_help_panel=_PANEL,
        help="Copy Spark's state into the home, or share its files with the work directory.",
    ),
]
CHECKPOINT_OPTIONS: Mapping[str, str] = {
    "checkpoint_interval": "interval",
    "checkpoint_timeout": "timeout",
    "checkpoint_min_pause": "min_pause",
    "tolerable_failures": "tolerable_failures",
    "retained": "retained",
    "unaligned": "unaligned",
    "aligned_timeout": "aligned_timeout",
    "max_in_flight_bytes": "max_in_flight_bytes",
    "second_copy": "second_copy",
}
"""The overridden setting by parameter of a command."""


def beginning(given: Mapping[str, Any]) -> dict[str, Any]:
    """Returns ``fresh`` and ``on_rewind`` from the parameters of a command that also has ``--full-refresh-all``.

    Raises:
        InvalidParameterError: The command has ``--full-refresh-all`` and one of the others.
    """
    if not given["full_refresh_all"]:
        return {"fresh": given["fresh"], "on_rewind": given["on_rewind"]}
    if given["fresh"] or given["full_refresh"] or given["restore"] or given["on_rewind"] is not OnRewind.REFUSE:
        raise InvalidParameterError(
            "--full-refresh-all cannot be given with --fresh, --on-rewind, --restore or --full-refresh.",
            safe="Nothing was started.",
            remedy="Leave the others out: it begins all tables anew and replaces their rows.",
        )
    return {"fresh": True, "on_rewind": OnRewind.REPLACE}


def listed(texts: list[str] | None) -> tuple[str, ...]:
    """Returns the names in an option that may be repeated, each a list with commas."""
    return tuple(name.strip() for text in texts or () for name in text.split(",") if name.strip())


def checkpoint_overrides(given: Mapping[str, Any]) -> CheckpointOverrides | None:
    """Returns the checkpoint settings of a command line, or None if there are none.

    Args:
        given: The command's parameters, with None for options that are not given. Other parameters are ignored.

    Raises:
        InvalidParameterError: A value is not allowed, or two values contradict each other.
    """
    said = {setting: given[name] for name, setting in CHECKPOINT_OPTIONS.items() if given[name] is not None}
    return read_overrides(_refused_setting, said) if said else None


def pairs(option: str, texts: Sequence[str] | None) -> dict[str, str]:
    """Returns the values of a repeated ``NAME=VALUE`` option.

    Raises:
        InvalidParameterError: A value has no name or no ``=``, or a name is given twice.
    """
    found: dict[str, str] = {}
    for text in texts or ():
        name, equals, value = text.partition("=")
        if not equals or not name.strip():
            raise _refused(f"{option} {name!r} has no value.", f"Write {option} NAME=VALUE.", option=option)
        if name.strip() in found:
            raise _refused(f"{option} {name.strip()} is given twice.", "Give it once.", option=option, name=name.strip())
        found[name.strip()] = value
    return found


def words(texts: Sequence[str] | None) -> list[str]:
    """Returns the values of an option that may be repeated and takes commas, as Spark's options do."""
    return [word.strip() for text in texts or () for word in text.split(",") if word.strip()]


def parameters(texts: Sequence[str] | None, file: Path | None) -> dict[str, Any]:
    """Returns the given parameters of the pipeline. The command line overrides the file.

    Raises:
        InvalidParameterError: A text is malformed, or the file cannot be read.
    """
    return (_read(file) if file else {}) | pairs("--param", texts)


@contextmanager
def asking_for_parameters(pipeline: Pipeline, given: Mapping[str, Any]) -> Iterator[None]:
    """Adds the missing options to the error if a pipeline's parameters are incomplete.

    Raises:
        InvalidParameterError: The parameters are refused.
    """
    try:
        yield
    except InvalidParameterError as error:
        model, public = pipeline.params, error.evidence.get("fields", ())
        required = [name for name, field in model.model_fields.items() if field.is_required()] if model else []
        missing = [name for name in required if name in public and name not in given]
        if not missing or {str(problem).partition(":")[0] for problem in error.evidence["problems"]} != set(missing):
            raise
        raise InvalidParameterError(
            f"Pipeline {pipeline.name!r} needs a value for {', '.join(missing)}.",
            safe="Nothing was written.",
            remedy=f"Add {' '.join(f'--param {name}=VALUE' for name in missing)}, or a --params-file.",
            **error.evidence,
        ) from error


def _read(file: Path) -> dict[str, Any]:
    try:
        text = file.read_text(encoding="utf-8")
        values = tomllib.loads(text) if file.suffix == ".toml" else json.loads(text)
    except OSError as error:
        raise _refused(f"{file} cannot be read: {error.strerror}.", "Check --params-file.", path=str(file)) from error
    except ValueError as error:
        kind = "TOML" if file.suffix == ".toml" else "JSON"
        raise _refused(f"{file} is not {kind}: {error}.", "Give a .json or a .toml file.", path=str(file)) from error
    if not isinstance(values, dict):
        raise _refused(f"{file} holds a {type(values).__name__}.", 'Write an object: {"name": "value"}.', path=str(file))
    return values


def _refused_setting(problem: str, remedy: str, **evidence: Any) -> InvalidParameterError:
    return _refused(f"checkpoint {problem}", remedy, **evidence)


def _refused(failed: str, remedy: str, **evidence: Any) -> InvalidParameterError:
    return InvalidParameterError(failed, safe="Nothing was started.", remedy=remedy, **evidence)
