"""How a declaration is refused: every refusal names the pipeline, the part and the remedy."""

import difflib
from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, TypeVar

from spark_jobs.protocol.errors import InvalidPipelineError

E = TypeVar("E", bound=StrEnum)


@dataclass(frozen=True)
class Place:
    """The part of a pipeline that a check is about."""

    pipeline: str
    kind: str = ""
    """``source``, ``static``, ``stage``, ``sink``; empty for the pipeline itself."""
    name: str = ""

    def __str__(self) -> str:
        part = f", {self.kind} {self.name!r}" if self.kind else ""
        return f"Pipeline {self.pipeline!r}{part}"

    def refused(self, problem: str, remedy: str, **evidence: Any) -> InvalidPipelineError:
        """The error to raise; ``problem`` and ``remedy`` are one sentence each."""
        return InvalidPipelineError(
            f"{self}: {problem}", remedy=remedy, pipeline=self.pipeline, part=f"{self.kind} {self.name}".strip(), **evidence
        )


def choice(place: Place, option: str, choices: type[E], value: object) -> E:
    """One of the values that an option may have, written as a member or as its text.

    Raises:
        InvalidPipelineError: It is another one.
    """
    allowed = [choice.value for choice in choices]
    if value not in allowed:
        given = value.value if isinstance(value, StrEnum) else value
        raise place.refused(f"{option}={given!r} is unknown.", f"Choose one of: {', '.join(allowed)}.", **{option: str(given)})
    return choices(str(value))


def suggestion(name: str, known: Iterable[str]) -> str:
    """Which of ``known`` was probably meant, as a sentence, or all of them."""
    names = list(known)
    if not names:
        return "There are none."
    by_case = {candidate.casefold(): candidate for candidate in names}
    close = difflib.get_close_matches(name.casefold(), by_case, n=1)
    return f"Did you mean {by_case[close[0]]!r}?" if close else f"Known are: {', '.join(names)}."
