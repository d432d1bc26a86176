"""The options that several commands have, and how their texts are read."""

import json
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer

from spark_jobs.api.pipeline import Pipeline
from spark_jobs.protocol.checkpointing import CheckpointOverrides, read_overrides
from spark_jobs.protocol.errors import InvalidParameterError

Entry = Annotated[
    str, typer.Argument(metavar="ENTRY", help="FILE.py[:NAME], package.module[:NAME] or spark-pipeline.yml", show_default=False)
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
Workspace = Annotated[
    str | None,
    typer.Option(
        metavar="DIRECTORY",
        help="For the first start on a cluster with a home in s3: or hdfs:, a directory that driver and executors share.",
        show_default=False,
    ),
]
Params = Annotated[
    list[str] | None,
    typer.Option("--param", metavar="NAME=VALUE", help="A parameter; lists and objects as JSON. Repeat it for each."),
]
ParamsFile = Annotated[
    Path | None,
    typer.Option("--params-file", metavar="FILE", help="Parameters as a .json or .toml file; --param goes before it."),
]
Asker = Annotated[
    str | None,
    typer.Option(
        "--request", metavar="ID", help="Who asks: the same id gets the same answer. A new one unless given.", show_default=False
    ),
]
Target = Annotated[
    str | None,
    typer.Option(
        metavar="URL",
        help="Where the savepoint is to be: a new path, or a file:, s3: or hdfs: URL; below the home unless given.",
        show_default=False,
    ),
]
Timeout = Annotated[float, typer.Option(min=0.0, metavar="SECONDS", help="How long to wait for the answer.")]
EndTimeout = Annotated[
    float, typer.Option("--timeout", min=0.0, metavar="SECONDS", help="How long to wait for the driver's end.")
]

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
    bool, typer.Option("--allow-drained", help="With --restore: the savepoint may be one that was taken after a drain.")
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
        help="Keep the state in this number of partitions from now on; in as many as before unless given.",
        show_default=False,
    ),
]
NewSource = Annotated[
    list[str] | None,
    typer.Option(metavar="SOURCE", help="Read this source from its beginning if it is another one than before; may be repeated."),
]
AcceptDataLoss = Annotated[
    list[str] | None,
    typer.Option(metavar="SOURCE", help="Go on without what is gone of this source for good, and record it; may be repeated."),
]
Conf = Annotated[
    list[str] | None, typer.Option("--conf", metavar="KEY=VALUE", help="A Spark setting; goes before the pipeline's.")
]
Packages = Annotated[
    list[str] | None, typer.Option("--packages", metavar="GROUP:NAME:VERSION", help="Maven packages to add to Delta's.")
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
        help="From one checkpoint's beginning to the next one's, such as '30 seconds'.",
    ),
]
CheckpointTimeout = Annotated[
    _Interval,
    typer.Option(metavar="INTERVAL", rich_help_panel=_PANEL, help="How long a checkpoint may take until it has failed."),
]
CheckpointMinPause = Annotated[
    _Interval,
    typer.Option(
        metavar="INTERVAL", rich_help_panel=_PANEL, help="From one checkpoint's end to the next one's beginning, at least."
    ),
]
TolerableFailures = Annotated[
    int | None,
    typer.Option(metavar="N", rich_help_panel=_PANEL, help="How many checkpoints in a row may fail; one more ends the attempt."),
]
Retained = Annotated[
    int | None, typer.Option(metavar="N", rich_help_panel=_PANEL, help="How many complete checkpoints are kept.")
]
Unaligned = Annotated[
    bool | None,
    typer.Option(
        "--unaligned/--aligned",
        rich_help_panel=_PANEL,
        help="Whether what is in flight belongs to a checkpoint, or is read before it.",
    ),
]
AlignedTimeout = Annotated[
    _Interval,
    typer.Option(
        metavar="INTERVAL|never", rich_help_panel=_PANEL, help="After this long an aligned checkpoint becomes an unaligned one."
    ),
]
MaxInFlightBytes = Annotated[
    int | None,
    typer.Option(
        metavar="BYTES",
        rich_help_panel=_PANEL,
        help="With more than this to wait for, an aligned checkpoint becomes an unaligned one.",
    ),
]
SecondCopy = Annotated[
    bool | None,
    typer.Option(
        "--second-copy/--no-second-copy",
        rich_help_panel=_PANEL,
        help="Whether the home has copies of Spark's state, or may share its files with the work directory.",
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
"""By a command's parameter the setting that it overrides."""


def checkpoint_overrides(given: Mapping[str, Any]) -> CheckpointOverrides | None:
    """What a command line says about checkpoints; None where it says nothing.

    Args:
        given: The command's parameters, with None for what is not given; others are left alone.

    Raises:
        InvalidParameterError: A value is not what it has to be, or two contradict each other.
    """
    said = {setting: given[name] for name, setting in CHECKPOINT_OPTIONS.items() if given[name] is not None}
    return read_overrides(_refused_setting, said) if said else None


def pairs(option: str, texts: Sequence[str] | None) -> dict[str, str]:
    """The values of a repeated ``NAME=VALUE`` option.

    Raises:
        InvalidParameterError: One has no name or no ``=``, or a name is given twice.
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
    """The values of an option that takes commas, as Spark's do, and may be repeated."""
    return [word.strip() for text in texts or () for word in text.split(",") if word.strip()]


def parameters(texts: Sequence[str] | None, file: Path | None) -> dict[str, Any]:
    """The pipeline's parameters as they were given; those on the command line go before those in the file.

    Raises:
        InvalidParameterError: A text is malformed, or the file cannot be read.
    """
    return (_read(file) if file else {}) | pairs("--param", texts)


@contextmanager
def asking_for_parameters(pipeline: Pipeline, given: Mapping[str, Any]) -> Iterator[None]:
    """Names the options that are missing where a pipeline's parameters are refused because some were not given.

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
