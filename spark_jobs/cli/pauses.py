"""The pauses of commands that look at a home repeatedly."""

import time
from collections.abc import Callable
from dataclasses import dataclass

import typer

LOOK_S = 0.25
"""The time between two looks of a command that waits."""


@dataclass(frozen=True)
class Pauses:
    """Pauses between two looks at a home. The object of a command's context may be one, with another ``sleep``."""

    sleep: Callable[[float], object] = time.sleep

    @classmethod
    def of(cls, context: typer.Context) -> "Pauses":
        """Returns the pauses of a command."""
        return context.find_object(cls) or cls()

    def __call__(self) -> None:
        """Waits until the next look."""
        self.sleep(LOOK_S)
