"""Attempts are numbered. The highest one is live, and all lower ones are fenced.

An attempt *claims* its number and then *begins*, unless an attempt that it did not know has begun. Each of the two is a document: an
attempt that stalls before its claim, while a higher one goes to work, still claims its number in the end, and its decisions (another
incarnation) must not be valid. Of two attempts that do not know each other at most one begins, because each writes before it reads. The
lower one writes its beginning, and then looks for higher claims. The higher one writes its claim, and then looks for lower beginnings. If
both look late, neither does anything, and the decisions of the lower one are valid.
"""

from collections.abc import Container

from spark_jobs.home.layout import (
    ATTEMPTS,
    LOGS,
    REQUESTS,
    WORK,
    AttemptNames,
    attempt_names,
    attempt_path,
    begun_path,
    log_attempt,
    publication_of,
)
from spark_jobs.protocol.documents import AttemptDocument, BegunAttempt
from spark_jobs.protocol.errors import AlreadyExistsError, ConflictError, FencedError
from spark_jobs.protocol.ids import AttemptNumber, IncarnationId
from spark_jobs.protocol.steps import Step, step
from spark_jobs.storage.files import Files, create_document, read_document

LOGS_KEPT = 20
"""Number of newest attempts whose logs are kept, and of newest publications by Spark."""


def forget_old_logs(files: Files, live: AttemptNumber) -> None:
    """Deletes the logs and outputs of all drivers but those of the newest :data:`LOGS_KEPT` attempts. Idempotent.

    Also deletes the outputs, locks and abandoned requests of publications by Spark, except those of the newest :data:`LOGS_KEPT`
    checkpoints.
    """
    for name in files.names(LOGS):
        attempt = log_attempt(name)
        if attempt is not None and attempt <= live - LOGS_KEPT:
            files.delete(f"{LOGS}/{name}")
    names = [(directory, name) for directory in (WORK, REQUESTS) for name in files.names(directory)]
    of_publications = {f"{directory}/{name}": number for directory, name in names if (number := publication_of(name)) is not None}
    newest = sorted(set(of_publications.values()))[-LOGS_KEPT:]
    for path in (path for path, number in of_publications.items() if number not in newest):
        files.delete(path)


class Attempts:
    """The attempts of a home."""

    def __init__(self, files: Files) -> None:
        self.files = files

    def numbers(self) -> list[AttemptNumber]:
        """Returns all attempt numbers, ascending."""
        return list(self.names().claimed)

    def names(self) -> AttemptNames:
        """Lists the attempts, those that have begun, and their owners: one listing."""
        return attempt_names(self.files.names(ATTEMPTS))

    def read(self, number: AttemptNumber) -> AttemptDocument:
        return read_document(self.files, attempt_path(number), AttemptDocument)

    def latest(self) -> AttemptDocument | None:
        numbers = self.numbers()
        return self.read(numbers[-1]) if numbers else None

    def incarnations(self) -> list[IncarnationId]:
        """Returns all incarnations that attempts have begun, the newest one last."""
        return list(dict.fromkeys(attempt.incarnation for attempt in self.begun()))

    def begun(self) -> list[AttemptDocument]:
        """Returns the attempts that have begun, ascending: the last one is the one to go on after."""
        return [self.read(number) for number in self.names().begun]

    def begin(self, attempt: AttemptDocument, known: Container[AttemptNumber]) -> None:
        """Makes ``attempt`` the live one and begins it. Durable on return.

        Args:
            attempt: The attempt.
            known: Attempts that had begun when this one was decided.

        Raises:
            FencedError: Another process is this attempt already, or a higher one is live.
            ConflictError: A lower one has begun in the meantime. It may have begun an incarnation or a round that this one does not know.
        """
        number = attempt.attempt
        self.create(attempt)
        names = self.names()
        _check_highest(number, names)
        _check_all_known(number, names, known)
        with step(Step.ATTEMPT_BEGIN):
            create_document(self.files, begun_path(number), BegunAttempt(attempt=number))
        self.check_live(number)

    def create(self, attempt: AttemptDocument) -> None:
        """Claims the number of ``attempt``: all lower ones are fenced.

        Raises:
            FencedError: Another process is this attempt already.
        """
        try:
            with step(Step.ATTEMPT_CREATE):
                create_document(self.files, attempt_path(attempt.attempt), attempt)
        except AlreadyExistsError as error:
            other = self.read(attempt.attempt)
            raise FencedError(
                f"Attempt {attempt.attempt} was claimed by process {other.process} on {other.host}.",
                remedy="Do nothing: the other process does the work.",
                attempt=attempt.attempt,
                host=other.host,
                process=other.process,
            ) from error

    def check_live(self, number: AttemptNumber) -> None:
        """Refuses to go on if a higher attempt is live.

        Raises:
            FencedError: This attempt is no longer the highest.
        """
        _check_highest(number, self.names())


def _check_highest(number: AttemptNumber, names: AttemptNames) -> None:
    highest = max(names.claimed, default=number)
    if highest > number:
        raise FencedError(
            f"Attempt {number} stops: attempt {highest} is live.",
            safe="The live attempt continues everything that this one had made durable.",
            remedy="Nothing. spark-jobs status shows the live attempt.",
            attempt=number,
            live=highest,
        )


def _check_all_known(number: AttemptNumber, names: AttemptNames, known: Container[AttemptNumber]) -> None:
    unknown = [other for other in names.begun if other < number and other not in known]
    if unknown:
        raise ConflictError(
            f"Attempt {number} stops: attempt {unknown[-1]} began while this one was starting.",
            remedy="Start again: the home is read again.",
            attempt=number,
            unseen=unknown[-1],
        )
