"""How a declaration is refused: every refusal names the pipeline, the part and the remedy."""

import difflib
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from spark_jobs.protocol.errors import InvalidPipelineError


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


def suggestion(name: str, known: Iterable[str]) -> str:
    """Which of ``known`` was probably meant, as a sentence, or all of them."""
    names = list(known)
    if not names:
        return "There are none."
    by_case = {candidate.casefold(): candidate for candidate in names}
    close = difflib.get_close_matches(name.casefold(), by_case, n=1)
    return f"Did you mean {by_case[close[0]]!r}?" if close else f"Known are: {', '.join(names)}."
