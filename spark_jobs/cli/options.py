"""The options that several commands share, and the parsers of their texts."""

import inspect
import json
import tomllib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any, TypeVar

import typer

from spark_jobs.api.pipeline import Pipeline
from spark_jobs.protocol.checkpointing import CheckpointOverrides, read_overrides
from spark_jobs.protocol.documents import OnRewind
from spark_jobs.protocol.errors import InvalidParameterError
from spark_jobs.protocol.start_requests import START_ARGUMENTS, URLS, Argument, read_start_arguments
from spark_jobs.storage.open import open_place

F = TypeVar("F", bound=Callable[..., None])

Entry = Annotated[
    str,
    typer.Argument(
        metavar="ENTRY", help="FILE.py[:NAME], package.module[:NAME] or spark-pipeline.yml[:live]", show_default=False
    ),
]
Home = Annotated[
    str,
    typer.Option(
        "--home",
        metavar="URL",
        help=f"The pipeline's home: a path, or {URLS}.",
        show_default=False,
    ),
]
MaybeSavepoint = Annotated[
    str | None,
    typer.Argument(
        metavar="SAVEPOINT",
        help=f"A savepoint, instead of --home: a path, or {URLS}.",
        show_default=False,
    ),
]
MaybeHome = Annotated[
    str | None,
    typer.Option(
        "--home",
        metavar="URL",
        help=f"The pipeline's home: a path, or {URLS}.",
        show_default=False,
    ),
]
WorkRoot = Annotated[
    str | None,
    typer.Option(
        metavar="URL",
        help="On a cluster with a home in s3:, abfss:, gs: or hdfs:, a place for work directories: a URL there, or a shared directory.",
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
        help=f"Place of the savepoint: a new path, or {URLS}; by default below the home.",
        show_default=False,
    ),
]
Timeout = Annotated[float, typer.Option(min=0.0, metavar="SECONDS", help="Time to wait for the answer.")]
EndTimeout = Annotated[float, typer.Option("--timeout", min=0.0, metavar="SECONDS", help="Time to wait for the driver's end.")]
Savepoint = Annotated[
    str,
    typer.Argument(metavar="SAVEPOINT", help=f"The savepoint: a path, or {URLS}.", show_default=False),
]
FullRefreshAll = Annotated[
    bool, typer.Option("--full-refresh-all", help="Compute all tables again: short for --fresh --on-rewind replace.")
]
SPARK_OPTIONS: Mapping[str, Any] = {
    "conf": Annotated[
        list[str] | None, typer.Option("--conf", metavar="KEY=VALUE", help="A Spark setting; overrides the pipeline's.")
    ],
    "packages": Annotated[
        list[str] | None, typer.Option("--packages", metavar="GROUP:NAME:VERSION", help="Maven packages in addition to Delta's.")
    ],
    "jars": Annotated[list[str] | None, typer.Option("--jars", metavar="FILE", help="Jar files to add.")],
    "py_files": Annotated[list[str] | None, typer.Option("--py-files", metavar="FILE", help="Python files for the executors.")],
    "driver_memory": Annotated[
        str | None,
        typer.Option("--driver-memory", metavar="SIZE", help="Memory of the driver, such as 4g.", show_default=False),
    ],
}
"""The options that say how Spark is started."""


def _setting(kind: Any, help: str, *names: str, metavar: str | None = None) -> Any:
    panel = "Checkpoints while the stages run, instead of the pipeline's settings"
    return Annotated[kind | None, typer.Option(*names, metavar=metavar, rich_help_panel=panel, help=help)]


CHECKPOINT_SETTINGS: Mapping[str, Any] = {
    "checkpoint_interval": _setting(
        str,
        "Time from the beginning of one checkpoint to that of the next, such as '30 seconds'.",
        metavar="INTERVAL",
    ),
    "checkpoint_timeout": _setting(str, "Time after which a checkpoint has failed.", metavar="INTERVAL"),
    "checkpoint_min_pause": _setting(
        str, "Minimum time from the end of one checkpoint to the beginning of the next.", metavar="INTERVAL"
    ),
    "tolerable_failures": _setting(int, "Number of checkpoints in a row that may fail; one more ends the attempt.", metavar="N"),
    "retained": _setting(int, "Number of complete checkpoints to keep.", metavar="N"),
    "unaligned": _setting(bool, "Include rows in flight in a checkpoint, or read them first.", "--unaligned/--aligned"),
    "aligned_timeout": _setting(
        str, "Time after which an aligned checkpoint becomes an unaligned one.", metavar="INTERVAL|never"
    ),
    "max_in_flight_bytes": _setting(int, "An aligned checkpoint that waits for more becomes an unaligned one.", metavar="BYTES"),
    "second_copy": _setting(
        bool,
        "Copy Spark's state into the home, or share its files with the work directory.",
        "--second-copy/--no-second-copy",
    ),
}
"""The options that override checkpoint settings."""
CHECKPOINT_OPTIONS: Mapping[str, str] = {name: name.removeprefix("checkpoint_") for name in CHECKPOINT_SETTINGS}
"""The overridden setting by parameter of a command."""


def _start_option(name: str, argument: Argument) -> Any:
    option = argument.option or f"--{name.replace('_', '-')}"
    least = 1 if argument.typed == int | None else None
    several = " Repeat the option for each." if argument.typed == list[str] | None else ""
    return Annotated[
        argument.typed,
        typer.Option(option, metavar=argument.metavar, min=least, help=argument.help + several, show_default=False),
    ]


START_OPTIONS: Mapping[str, Any] = {
    name: _start_option(name, argument)
    for name, argument in START_ARGUMENTS.items()
    if name not in ("backfill", "checkpoint")  # a command, and the options for checkpoints
}
"""The options of a start."""


def takes(*groups: Mapping[str, Any]) -> Callable[[F], F]:
    """Adds groups of options to a command that takes them as ``**options``, before its last parameter."""

    def add(command: F) -> F:
        own = inspect.signature(command)
        options = [
            inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=_default(name), annotation=option)
            for group in groups
            for name, option in group.items()
        ]
        *first, last = (each for each in own.parameters.values() if each.kind is not inspect.Parameter.VAR_KEYWORD)
        last = last.replace(kind=inspect.Parameter.KEYWORD_ONLY)
        command.__signature__ = own.replace(parameters=[*first, *options, last])  # type: ignore[attr-defined]  # what typer reads
        return command

    return add


def _default(name: str) -> Any:
    argument = START_ARGUMENTS.get(name)
    return None if argument is None or argument.typed == list[str] | None else argument.default


def start_fields(given: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the fields of :class:`StartOptions` from the parameters of a command.

    Raises:
        RejectedError: A value is not allowed, or the command has ``--full-refresh-all`` and an option that contradicts it.
    """
    written = {name: given[name] for name in START_OPTIONS if name in given}
    if given["full_refresh_all"]:
        if written["fresh"] or written["full_refresh"] or written["restore"] or written["on_rewind"] is not OnRewind.REFUSE:
            raise refused(
                "--full-refresh-all cannot be given with --fresh, --on-rewind, --restore or --full-refresh.",
                "Leave the others out: it computes all tables again and replaces their rows.",
            )
        written |= {"fresh": True, "on_rewind": OnRewind.REPLACE}
    written["adopt_offsets"] = pairs("--adopt-offsets", given.get("adopt_offsets"))
    return read_start_arguments(written, lambda place: open_place(place).url)


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
            raise refused(f"{option} {name!r} has no value.", f"Write {option} NAME=VALUE.", option=option)
        if name.strip() in found:
            raise refused(f"{option} {name.strip()} is given twice.", "Give it once.", option=option, name=name.strip())
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
            remedy=f"Add {' '.join(f'--param {name}=VALUE' for name in missing)}, or a --params-file.",
            **error.evidence,
        ) from error


def _read(file: Path) -> dict[str, Any]:
    try:
        text = file.read_text(encoding="utf-8")
        values = tomllib.loads(text) if file.suffix == ".toml" else json.loads(text)
    except OSError as error:
        raise refused(f"{file} cannot be read: {error.strerror}.", "Check --params-file.", path=str(file)) from error
    except ValueError as error:
        kind = "TOML" if file.suffix == ".toml" else "JSON"
        raise refused(f"{file} is not {kind}: {error}.", "Give a .json or a .toml file.", path=str(file)) from error
    if not isinstance(values, dict):
        raise refused(f"{file} holds a {type(values).__name__}.", 'Write an object: {"name": "value"}.', path=str(file))
    return values


def _refused_setting(problem: str, remedy: str, **evidence: Any) -> InvalidParameterError:
    return refused(f"checkpoint {problem}", remedy, **evidence)


def refused(problem: str, remedy: str, **evidence: Any) -> InvalidParameterError:
    """Returns the error for an option of a command."""
    return InvalidParameterError(problem, remedy=remedy, **evidence)
