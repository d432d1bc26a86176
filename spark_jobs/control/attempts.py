"""Attempts: numbered, the highest is live, all lower ones are fenced (design, section 10)."""

import re
from collections.abc import Container, Sequence

from spark_jobs.protocol.documents import AttemptDocument
from spark_jobs.protocol.errors import AlreadyExistsError, ConflictError, FencedError
from spark_jobs.protocol.ids import AttemptNumber, RunId
from spark_jobs.protocol.steps import Step, step
from spark_jobs.storage.files import Files, create_document, read_document

SPARK_LOG = "work/spark.log"
"""In a home: what the JVM of the newest start prints; the one before it, or what was too much, ends in ``.1``."""
LOGS_KEPT = 20
"""The logs of so many attempts are kept, the newest ones."""
_LOG_NAME = re.compile(r"(?:driver-)?(\d+)\.(?:log|out)(?:\.\d+)?")


def log_path(number: AttemptNumber) -> str:
    """Where in a home the driver of an attempt logs, as JSON lines."""
    return f"attempts/{number}.log"


def output_path(number: AttemptNumber) -> str:
    """Where in a home whoever starts a driver keeps what it prints."""
    return f"attempts/driver-{number}.out"


def forget_old_logs(files: Files, live: AttemptNumber) -> None:
    """Deletes what the drivers of all but the newest :data:`LOGS_KEPT` attempts have logged and printed; idempotent."""
    for name in files.names("attempts"):
        found = _LOG_NAME.fullmatch(name)
        if found and int(found[1]) <= live - LOGS_KEPT:
            files.delete(f"attempts/{name}")


def newest_of(attempts: Sequence[AttemptDocument]) -> AttemptDocument:
    """The attempt that is continued: the last one of the incarnation that was begun last.

    One that names an earlier incarnation did not know of the later, and has stopped.

    Args:
        attempts: All of a home, ascending; at least one.
    """
    newest = list(dict.fromkeys(attempt.incarnation for attempt in attempts))[-1]
    return [attempt for attempt in attempts if attempt.incarnation == newest][-1]


class Attempts:
    """The attempts that a home has seen."""

    def __init__(self, files: Files) -> None:
        self.files = files

    def numbers(self) -> list[AttemptNumber]:
        """All attempt numbers, ascending."""
        stems = (name.removesuffix(".json") for name in self.files.names("attempts") if name.endswith(".json"))
        return sorted(AttemptNumber(int(stem)) for stem in stems if stem.isdigit())

    def read(self, number: AttemptNumber) -> AttemptDocument:
        return read_document(self.files, f"attempts/{number}.json", AttemptDocument)

    def latest(self) -> AttemptDocument | None:
        numbers = self.numbers()
        return self.read(numbers[-1]) if numbers else None

    def of_run(self, run: RunId) -> AttemptDocument | None:
        """The newest attempt that answered to ``run``."""
        documents = (self.read(number) for number in reversed(self.numbers()))
        return next((document for document in documents if document.run == run), None)

    def create(self, attempt: AttemptDocument) -> None:
        """Makes ``attempt`` the live one.

        Raises:
            FencedError: Another process is this attempt already.
        """
        try:
            with step(Step.ATTEMPT_CREATE):
                create_document(self.files, f"attempts/{attempt.attempt}.json", attempt)
        except AlreadyExistsError as error:
            other = self.read(attempt.attempt)
            raise FencedError(
                f"Attempt {attempt.attempt} was claimed by process {other.process} on {other.host}.",
                safe="This process has done nothing.",
                remedy="None is needed: the other process does the work.",
                attempt=attempt.attempt,
                host=other.host,
                process=other.process,
            ) from error

    def check_live(self, number: AttemptNumber) -> None:
        """Refuses to go on where a higher attempt is live.

        Raises:
            FencedError: This attempt is no longer the highest.
        """
        highest = max(self.numbers(), default=number)
        if highest > number:
            raise FencedError(
                f"Attempt {number} stops: attempt {highest} is live.",
                safe="Everything that attempt had made durable is taken up by the live one.",
                remedy="None is needed; see spark-jobs status.",
                attempt=number,
                live=highest,
            )

    def check_all_seen(self, number: AttemptNumber, seen: Container[AttemptNumber]) -> None:
        """Refuses to go on where an attempt has begun that was not known when it was decided what this one does.

        Args:
            number: This attempt, which has begun.
            seen: The attempts that were known.

        Raises:
            ConflictError: There is a lower one. It may have begun an incarnation, or a round, that this one knows nothing of.
        """
        unseen = [other for other in self.numbers() if other < number and other not in seen]
        if unseen:
            raise ConflictError(
                f"Attempt {number} stops: attempt {unseen[-1]} began while this one was starting.",
                safe="This attempt has done nothing.",
                remedy="Start again: what is there is looked at anew.",
                attempt=number,
                unseen=unseen[-1],
            )
