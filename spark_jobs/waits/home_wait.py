"""The protocol of a wait for something in a home, which commands, tasks and triggers share."""

from abc import ABC, abstractmethod
from collections.abc import Hashable
from dataclasses import dataclass, field, fields
from typing import Any, ClassVar, Generic, TypeVar

from spark_jobs.protocol.errors import StreamPipelineError
from spark_jobs.storage.files import Files

L = TypeVar("L")
R = TypeVar("R")


@dataclass
class HomeWait(ABC, Generic[L, R]):
    """A wait for something in a home. A look reads the home once. The wait judges each look: it ends, goes on or fails.

    A subclass is a dataclass. Its own fields are JSON values, so that another process can continue the wait.

    Args:
        files: The home.
    """

    kind: ClassVar[str]
    """The name of the subclass, by which another process finds it."""
    lasting: ClassVar[bool] = True
    """True if a result holds for ever. A later wait may then begin with a look of an earlier one."""
    event_fields: ClassVar[tuple[str, ...]] = ()
    """The fields that a trigger repeats in its event."""

    files: Files
    _said: str | None = field(default=None, init=False, repr=False, compare=False)
    """The activity that was logged last."""

    def arguments(self) -> dict[str, Any]:
        """Returns the fields from which another process makes the same wait."""
        return {each.name: getattr(self, each.name) for each in fields(self) if each.init and each.name != "files"}

    @property
    @abstractmethod
    def key(self) -> Hashable:
        """The subject of the looks. Waits with the same home and key share their looks in a triggerer."""

    @abstractmethod
    def look(self) -> L:
        """Looks once at the home. It may block, so a trigger calls it in a thread."""

    @abstractmethod
    def judge(self, look: L, now_s: float) -> R | None:
        """Returns the result, or None if the wait goes on.

        Args:
            look: The newest look.
            now_s: The time on a monotonic clock.

        Raises:
            StreamPipelineError: The wait has failed.
        """

    @abstractmethod
    def too_late(self, look: L, timeout_s: float | None) -> StreamPipelineError | None:
        """Returns the error for a wait whose deadline has passed; None if the wait will end soon without it.

        Args:
            look: The newest look.
            timeout_s: The configured time limit, for the text of the error.
        """

    def reads_home(self, look: L) -> bool:
        """Returns True if :meth:`judge` reads the home for this look. A trigger then calls it in a thread."""
        return False

    def same(self, before: L, now: L) -> bool:
        """Returns True if two looks show the same, so that a trigger may look more rarely."""
        return before == now

    def activity(self, look: L) -> str | None:
        """Describes the pipeline's activity for the log of a task."""
        return None

    def news(self, look: L, now_s: float) -> list[str]:
        """Returns the lines to log for a look: the activity, each time it has changed."""
        activity = self.activity(look)
        if activity is None or activity == self._said:
            return []
        self._said = activity
        return [activity]

    def home_is_back(self, now_s: float) -> None:
        """Called before the first look is judged after a time in which the home could not be read."""

    def result(self, look: L, now_s: float, left_s: float | None, timeout_s: float | None) -> R | None:
        """Judges a look, and fails a wait whose deadline has passed.

        Args:
            look: The newest look.
            now_s: The time on a monotonic clock.
            left_s: The time until the deadline; None: there is none.
            timeout_s: The configured time limit, for the text of the error.

        Raises:
            StreamPipelineError: The wait has failed.
        """
        found = self.judge(look, now_s)
        if found is None and left_s is not None and left_s <= 0:
            error = self.too_late(look, timeout_s)
            if error is not None:
                raise error
        return found
