"""The request of a start, and its options: their names, types, defaults, help and validation.

A new option is declared in this file only: in :class:`StartArguments` as people write it, and in :class:`StartOptions` as it is stored. The
command line, ``Pipeline.run`` and the request follow. The operator also needs a parameter, because Airflow templates attributes.
"""

import inspect
import os
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from typing import Annotated, Any, Literal, TypedDict, TypeVar, get_type_hints

from pydantic import BaseModel, ConfigDict, Field

from spark_jobs.protocol.checkpointing import CheckpointOverrides, written_overrides
from spark_jobs.protocol.codec import Document
from spark_jobs.protocol.documents import OnEnd, OnRewind, Publish, RestoreFrom
from spark_jobs.protocol.errors import InvalidParameterError
from spark_jobs.protocol.ids import AttemptNumber, InputName, LossId, RequestId, RunId, new_run_id, start_request_id
from spark_jobs.protocol.options import Reader, Refuse, choice, flag, names, templated, whole_number
from spark_jobs.protocol.restarts import RestartHistory

F = TypeVar("F", bound=Callable[..., Any])


@dataclass(frozen=True)
class Argument:
    """A start argument: its help, and how its value is read."""

    help: str
    read: Reader
    """Returns the stored value. None: the value is empty, as a template may render it, and the default applies."""
    default: Any = None
    """The value if the argument is not given."""
    typed: Any = str | None
    """The type on the command line."""
    option: str = ""
    """The option on the command line; by default the name with dashes."""
    metavar: str | None = None
    """The placeholder of the value in the help of the command line."""


def _directories(refused: Refuse, option: str, value: object) -> dict[InputName, str]:
    """Returns a directory by source."""
    if not isinstance(value, Mapping):
        raise refused(f"{option}={value!r} is not a mapping.", 'Write {"source": "directory"}.', **{option: str(value)})
    return {InputName(source): os.fspath(directory) for source, directory in value.items()}


def _path(refused: Refuse, option: str, value: object) -> str:
    if not isinstance(value, str | os.PathLike):
        raise refused(f"{option}={value!r} is not a path or a URL.", "Write one.", **{option: str(value)})
    return os.fspath(value)


def _overrides(refused: Refuse, option: str, value: object) -> CheckpointOverrides | None:
    def refused_setting(problem: str, remedy: str, **evidence: Any) -> InvalidParameterError:
        return _refused(f"{option} {problem}", remedy, **evidence)

    return value if isinstance(value, CheckpointOverrides) else written_overrides(refused_setting, value)


URLS = "a file:, s3:, abfss:, gs: or hdfs: URL"
"""The URLs of places, in the help of options."""
_FLAG: dict[str, Any] = {"read": templated(flag), "default": False, "typed": bool}
_NAMES: dict[str, Any] = {"read": names, "default": (), "typed": list[str] | None}


def _choice(kind: type[OnEnd | Publish | OnRewind]) -> Reader:
    return templated(lambda refused, option, value: choice(refused, option, kind, value))


class StartArguments(TypedDict, total=False):
    """The options of a start as people write them. Templates and forms may give texts instead of numbers, flags and lists."""

    on_end: Annotated[
        OnEnd | Literal["drain", "suspend"] | None,
        Argument(
            "Overrides the pipeline's setting for the round that this run begins: drain or suspend.",
            _choice(OnEnd),
            typed=OnEnd | None,
        ),
    ]
    publish: Annotated[
        Publish | Literal["final", "every_checkpoint", "external"] | None,
        Argument(
            "Overrides every sink's policy for that round: final, every_checkpoint or external.",
            _choice(Publish),
            typed=Publish | None,
        ),
    ]
    fresh: Annotated[bool, Argument("Start from the beginning instead of continuing.", **_FLAG)]
    on_rewind: Annotated[
        OnRewind | Literal["refuse", "keep", "replace"],
        Argument(
            "What happens to public rows at a start from the beginning or from a savepoint: refuse, keep or, only with fresh, replace.",
            _choice(OnRewind),
            OnRewind.REFUSE,
            OnRewind,
        ),
    ]
    adopt_offsets: Annotated[
        Mapping[str, str | os.PathLike[str]],
        Argument(
            f"By source, the checkpoint directory of a Spark query: a path, or {URLS}. The source continues after the last batch of that "
            "query. Only for an empty home, or with fresh.",
            _directories,
            {},
            list[str] | None,
            metavar="SOURCE=URL",
        ),
    ]
    restore: Annotated[
        str | os.PathLike[str] | None,
        Argument(f"The savepoint to start from: a path, or {URLS}.", _path, metavar="URL"),
    ]
    allow_drained: Annotated[bool, Argument("With restore: allow a savepoint that was taken after a drain.", **_FLAG)]
    allow_dropped: Annotated[
        bool, Argument("Leave behind the state of stages that the pipeline no longer has; their tables stay.", **_FLAG)
    ]
    take_pending: Annotated[
        bool,
        Argument(
            "With restore: first publish the rows that the savepoint holds staged, for sinks that keep their table.", **_FLAG
        ),
    ]
    state_partitions: Annotated[
        int | None,
        Argument(
            "The number of partitions of the state from now on; by default the number stays.",
            templated(partial(whole_number, least=1)),
            typed=int | None,
            metavar="N",
        ),
    ]
    new_sources: Annotated[
        Sequence[str],
        Argument(
            "Sources that the run reads from their beginning, once, and static inputs that it reads at their newest version. They may be "
            "different ones than before. The state of the stages stays.",
            option="--new-source",
            metavar="SOURCE",
            **_NAMES,
        ),
    ]
    accept_data_loss: Annotated[
        Sequence[str],
        Argument(
            "Sources that may have lost rows, such as expired records. The run leaves out the lost rows, and records them.",
            metavar="SOURCE",
            **_NAMES,
        ),
    ]
    backfill: Annotated[
        Sequence[str],
        Argument(
            "Losses whose rows are processed now, such as 3-1. The run reads no new rows of bounded sources.",
            metavar="LOSS",
            **_NAMES,
        ),
    ]
    full_refresh: Annotated[
        Sequence[str],
        Argument(
            "Tables to compute again from the beginning, once in the run. The first publication replaces their rows. Tables that read "
            "one another must be named together.",
            metavar="TABLE",
            **_NAMES,
        ),
    ]
    checkpoint: Annotated[
        Mapping[str, Any] | None,
        Argument("Overrides fields of the pipeline's CheckpointSettings, such as {'interval': '30 seconds'}.", _overrides),
    ]


START_ARGUMENTS: Mapping[str, Argument] = {
    name: hint.__metadata__[0] for name, hint in get_type_hints(StartArguments, include_extras=True).items()
}
"""The start arguments, by name."""


class StartOptions(BaseModel):
    """The checked options of a start."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    run: RunId | None = None
    """Id of the run; the same in every retry. None: a new one."""
    on_end: OnEnd | None = None
    publish: Publish | None = None
    fresh: bool = False
    on_rewind: OnRewind = OnRewind.REFUSE
    adopt_offsets: dict[InputName, str] = Field(default_factory=dict)
    """The path or the URL of the checkpoint directory of the Spark query that a source continues, by source."""
    allow_dropped: bool = False
    """True if the state of stages that the pipeline no longer has may be left behind."""
    new_sources: tuple[InputName, ...] = ()
    """Sources that are read from their beginning once in the run, and static inputs that are read at their newest version. They may be
    different ones than before. The stages keep their state."""
    accept_data_loss: tuple[InputName, ...] = ()
    """Sources that are read without their lost rows."""
    backfill: tuple[LossId, ...] = ()
    """Losses whose rows are processed now. The run reads no new rows of bounded sources."""
    full_refresh: tuple[str, ...] = ()
    """Tables whose stages start over. Their rows are replaced."""
    checkpoint: CheckpointOverrides | None = None
    """Overrides of the pipeline's checkpoint settings for the attempt."""
    restore: RestoreFrom | None = None
    """The savepoint that a new incarnation begins with."""
    state_partitions: int | None = None
    """Number of state partitions from this start on. None: the number stays."""


class StartRequest(StartOptions, Document):
    """``requests/start-<n>.json``: a request for attempt n. The requester writes it before a driver starts."""

    kind = "start_request"
    request: RequestId
    attempt: AttemptNumber
    run: RunId
    requested_at: datetime
    parameters: dict[str, Any] = Field(default_factory=dict)
    """The parameters without secrets, which come from the driver's environment."""
    restarts: RestartHistory | None = None
    """The history of the restart strategy if it has decided this start. None: somebody requested it, and the count begins at zero."""


def start_request(
    options: StartOptions, attempt: AttemptNumber, parameters: dict[str, Any], restarts: RestartHistory | None = None
) -> StartRequest:
    """Returns a new request, without writing it. Its names are sorted, so that the same options give the same request."""
    fields = {name: getattr(options, name) for name in StartOptions.model_fields}
    fields |= {name: tuple(sorted(value)) for name, value in fields.items() if isinstance(value, tuple)}
    fields["run"] = options.run or new_run_id()
    return StartRequest(
        request=start_request_id(attempt),
        attempt=attempt,
        requested_at=datetime.now(UTC),
        parameters=parameters,
        restarts=restarts,
        **fields,
    )


def read_start_arguments(written: Mapping[str, Any], savepoint_url: Callable[[str], str]) -> dict[str, Any]:
    """Returns the fields of :class:`StartOptions` that start arguments say.

    Args:
        written: The :class:`StartArguments`.
        savepoint_url: Opens the place that ``restore`` names, and returns its URL.

    Raises:
        TypeError: There is no such argument.
        RejectedError: A value is not allowed. Nothing was started.
    """
    if unknown := sorted(written.keys() - START_ARGUMENTS.keys()):
        raise TypeError(f"{unknown[0]!r} is not an option of a start: these are {', '.join(START_ARGUMENTS)}.")
    found = {name: _read(name, argument, written.get(name)) for name, argument in START_ARGUMENTS.items()}
    of_savepoint = {name: found.pop(name) for name in ("allow_drained", "take_pending")}
    place = found.pop("restore")
    without = [name for name, value in of_savepoint.items() if value and place is None]
    if without:
        raise _refused(
            f"restore names no savepoint for {' and '.join(without)}.",
            f"Name the savepoint (restore), or leave out {' and '.join(without)}.",
        )
    found["restore"] = None if place is None else RestoreFrom(savepoint=savepoint_url(place), **of_savepoint)
    return found


def _read(name: str, argument: Argument, value: object) -> Any:
    if value is None or (isinstance(value, str) and not value.strip()):
        return argument.default
    found = argument.read(_refused, name, value)
    return argument.default if found is None else found


def _refused(problem: str, remedy: str, **evidence: Any) -> InvalidParameterError:
    return InvalidParameterError(problem, remedy=remedy, **evidence)


def takes_start_arguments(function: F) -> F:
    """Puts the start arguments into the signature and the docstring of a function that takes them as ``**options``.

    So ``help()`` and notebooks show them. Type checkers and editors know them from ``Unpack[StartArguments]``.
    """
    own = inspect.signature(function)
    hints = get_type_hints(StartArguments)
    shown = [
        inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=_shown(argument.default), annotation=hints[name])
        for name, argument in START_ARGUMENTS.items()
    ]
    kept = [each for each in own.parameters.values() if each.kind is not inspect.Parameter.VAR_KEYWORD]
    function.__signature__ = own.replace(parameters=[*kept, *shown])  # type: ignore[attr-defined]  # what inspect reads
    function.__doc__ = documented(function.__doc__ or "", START_ARGUMENTS)
    return function


def documented(text: str, arguments: Collection[str]) -> str:
    """Returns a docstring with the help of start arguments after its line for ``options``."""
    lines = []
    for line in text.splitlines():
        lines.append(line)
        if line.strip().startswith("options: "):
            indent = " " * (len(line) - len(line.lstrip()))
            lines += [f"{indent}{name}: {START_ARGUMENTS[name].help}" for name in arguments]
    return "\n".join(lines)


def _shown(default: Any) -> Any:
    return default.value if isinstance(default, OnRewind) else default
