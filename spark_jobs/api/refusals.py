"""Refuses declarations. Every refusal names the pipeline, the part and the remedy."""

import difflib
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

from spark_jobs.protocol.errors import InvalidPipelineError, RejectedError


@dataclass(frozen=True)
class Place:
    """The part of a pipeline that a check is about."""

    pipeline: str
    kind: str = ""
    """``source``, ``static``, ``stage`` or ``sink``; empty for the pipeline itself."""
    name: str = ""

    def __str__(self) -> str:
        part = f", {self.kind} {self.name!r}" if self.kind else ""
        return f"Pipeline {self.pipeline!r}{part}"

    def refused(self, problem: str, remedy: str, **evidence: Any) -> InvalidPipelineError:
        """Returns the error to raise. ``problem`` and ``remedy`` are one sentence each."""
        return InvalidPipelineError(
            f"{self}: {problem}",
            safe="",  # a declaration does nothing
            remedy=remedy,
            pipeline=self.pipeline,
            part=f"{self.kind} {self.name}".strip(),
            **evidence,
        )


class Mistakes:
    """Collects refusals, so that one error reports all of them."""

    def __init__(self) -> None:
        self.found: list[RejectedError] = []

    def noted(self) -> "_Noting":
        """Returns a context that keeps a refusal instead of raising it. An error that lists several mistakes is kept as these."""
        return _Noting(self)

    def add(self, error: RejectedError) -> None:
        """Adds a refusal that is not in the list yet."""
        several = error.__cause__
        parts = several.exceptions if isinstance(several, ExceptionGroup) else [error]
        known = {str(each) for each in self.found}
        self.found += [part for part in parts if isinstance(part, RejectedError) and str(part) not in known]

    def check(self) -> None:
        """Raises the collected refusals.

        Raises:
            RejectedError: The only mistake, or one error that lists all with their remedies.
        """
        if len(self.found) == 1:
            raise self.found[0]
        if self.found:
            numbered = list(enumerate(self.found, 1))
            raise InvalidPipelineError(
                f"{len(numbered)} mistakes were found. " + " ".join(f"{n}. {each.failed}" for n, each in numbered),
                safe=next((each.safe for each in self.found if each.safe), ""),
                remedy=" ".join(f"{n}. {each.remedy}" for n, each in numbered),
                mistakes=[{"failed": each.failed, "remedy": each.remedy, **each.evidence} for each in self.found],
            ) from ExceptionGroup("mistakes", self.found)


class _Noting:
    """A context that keeps refusals."""

    def __init__(self, mistakes: Mistakes) -> None:
        self._mistakes = mistakes

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> bool:
        if isinstance(error, RejectedError):
            self._mistakes.add(error)
            return True
        return False


_LOADING: ContextVar[Mistakes | None] = ContextVar("loading", default=None)


@contextmanager
def declaring_all(mistakes: Mistakes) -> Iterator[None]:
    """Keeps the mistakes of declarations while a file is loaded, so that later mistakes are found as well."""
    token = _LOADING.set(mistakes)
    try:
        yield
    finally:
        _LOADING.reset(token)


@contextmanager
def declaration(keep: Callable[[], None]) -> Iterator[None]:
    """Wraps one declaration. Outside of :func:`declaring_all`, as in a notebook, it raises the mistake.

    Args:
        keep: Called if the mistake is not raised. It keeps the correct parts of the declaration.
    """
    try:
        yield
    except RejectedError as error:
        mistakes = _LOADING.get()
        if mistakes is None:
            raise
        mistakes.add(error)
        keep()


def suggestion(name: str, known: Iterable[str]) -> str:
    """Returns a sentence with the name in ``known`` that was probably meant, or with all of them."""
    names = list(known)
    if not names:
        return "There are none."
    by_case = {candidate.casefold(): candidate for candidate in names}
    close = difflib.get_close_matches(name.casefold(), by_case, n=1)
    return f"Did you mean {by_case[close[0]]!r}?" if close else f"Known are: {', '.join(names)}."
