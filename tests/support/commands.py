"""The commands, and what they refuse."""

from typing import Any

import typer
from typer._click import exceptions

from spark_jobs.cli.commands import app

COMMANDS: dict[str, Any] = vars(typer.main.get_command(app))["commands"]


def options(command: Any) -> list[str]:
    return [parameter.opts[0] for parameter in command.params if parameter.param_type_name == "option"]


def refusal(words: list[str]) -> str | None:
    """Returns the parser's error for a command, or None. Arguments that a text omits are filled in."""
    name, *arguments = words
    if name not in COMMANDS:
        return f"no such command: {name}"
    while True:
        try:
            found = COMMANDS[name].make_context(name, list(arguments)).params
        except exceptions.MissingParameter as missing:
            options = missing.param.opts if missing.param and missing.param.param_type_name == "option" else []
            arguments = [*arguments, options[0], "1"] if options else ["1", *arguments]
        except typer.Exit:  # by --help and --output schema
            return None
        except exceptions.ClickException as error:
            return error.format_message()
        else:
            both = name in ("inspect", "verify") and found["savepoint"] and found["home"]
            return "either a savepoint or --home" if both else None
