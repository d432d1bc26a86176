"""The options that several commands have, and how their texts are read."""

import json
import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from spark_jobs.protocol.errors import InvalidParameterError

Entry = Annotated[str, typer.Argument(metavar="ENTRY", help="FILE.py[:NAME] or package.module[:NAME]", show_default=False)]
Home = Annotated[
    str, typer.Option("--home", metavar="URL", help="The pipeline's home: a path or a file: URL.", show_default=False)
]
Params = Annotated[
    list[str] | None,
    typer.Option("--param", metavar="NAME=VALUE", help="A parameter; lists and objects as JSON. Repeat it for each."),
]
ParamsFile = Annotated[
    Path | None,
    typer.Option("--params-file", metavar="FILE", help="Parameters as a .json or .toml file; --param goes before it."),
]


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


def _refused(failed: str, remedy: str, **evidence: Any) -> InvalidParameterError:
    return InvalidParameterError(failed, safe="Nothing was started.", remedy=remedy, **evidence)
