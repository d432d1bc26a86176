"""Pins: the end of a bounded source, and the version of a static input.

A pin is created if absent. Once created, it is used even if the input changes.
"""

from collections.abc import Callable
from functools import partial

from spark_jobs.home.layout import attempt_pin_path, round_pin_path
from spark_jobs.protocol.documents import PinnedInput
from spark_jobs.protocol.errors import AlreadyExistsError, NotFoundError
from spark_jobs.protocol.ids import AttemptNumber, InputName, RoundNumber
from spark_jobs.protocol.steps import Step, step
from spark_jobs.storage.files import Files, create_document, read_document


class Pins:
    """The pins of a round or an attempt; see :func:`pins_of_round` and :func:`pins_of_attempt`.

    Args:
        files: Files of the home.
        path: Returns the path of an input's pin.
    """

    def __init__(self, files: Files, path: Callable[[InputName], str]) -> None:
        self._files, self._path = files, path

    def pin(self, pinned: PinnedInput) -> PinnedInput:
        """Records the pin of an input, once. Returns the valid pin. Durable on return."""
        try:
            with step(Step.INPUT_PIN):
                create_document(self._files, self._path(pinned.input), pinned)
        except AlreadyExistsError:
            return read_document(self._files, self._path(pinned.input), PinnedInput)
        return pinned

    def pinned(self, name: InputName) -> PinnedInput | None:
        """Returns the pin of an input, or None if it is not made yet."""
        try:
            return read_document(self._files, self._path(name), PinnedInput)
        except NotFoundError:
            return None


def pins_of_round(files: Files, number: RoundNumber) -> Pins:
    """Returns the pins of a round: the ends of its bounded sources."""
    return Pins(files, partial(round_pin_path, number))


def pins_of_attempt(files: Files, number: AttemptNumber) -> Pins:
    """Returns the pins of one attempt: the versions of static inputs that it reads."""
    return Pins(files, partial(attempt_pin_path, number))
