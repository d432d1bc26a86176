"""Attempts: numbered, the highest is live, all lower ones are fenced (design, section 10).

An attempt *claims* its number, then it *begins*, unless one that it did not know of has. The two are one document each: an attempt that
stalls before its claim, while a higher one goes to work, has a claim in the end, and what it names (another incarnation) must not count.
Of two that do not know of each other at most one begins, for each writes before it looks: the lower one its beginning, then for higher
claims; the higher one its claim, then for lower beginnings. If both look late neither does anything, and what the lower one names counts.
"""

import re
from collections.abc import Container

from spark_jobs.protocol.begun_attempt import BegunAttempt
from spark_jobs.protocol.documents import AttemptDocument
from spark_jobs.protocol.errors import AlreadyExistsError, ConflictError, FencedError
from spark_jobs.protocol.ids import AttemptNumber, IncarnationId, RunId
from spark_jobs.protocol.steps import Step, step
from spark_jobs.storage.files import Files, create_document, read_document

LOGS = "logs"
"""The directory in a home of what drivers say."""
SPARK_LOG = "work/spark.log"
"""In a home: what the JVM of the newest start prints; the one before it, or what was too much, ends in ``.1``."""
LOGS_KEPT = 20
"""The logs of so many attempts are kept, the newest ones."""
_BEGUN = "begun.json"
_LOG_NAME = re.compile(r"(?:driver-)?(\d+)\.(?:log|out)(?:\.\d+)?")


def log_path(number: AttemptNumber) -> str:
    """Where in a home the driver of an attempt logs, as JSON lines."""
    return f"{LOGS}/{number}.log"


def output_path(number: AttemptNumber) -> str:
    """Where in a home whoever starts a driver keeps what it prints."""
    return f"{LOGS}/driver-{number}.out"


def forget_old_logs(files: Files, live: AttemptNumber) -> None:
    """Deletes what the drivers of all but the newest :data:`LOGS_KEPT` attempts have logged and printed; idempotent."""
    for name in files.names(LOGS):
        found = _LOG_NAME.fullmatch(name)
        if found and int(found[1]) <= live - LOGS_KEPT:
            files.delete(f"{LOGS}/{name}")


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

    def incarnations(self) -> list[IncarnationId]:
        """All that attempts have begun, the newest one last."""
        return list(dict.fromkeys(attempt.incarnation for attempt in self.begun()))

    def of_run(self, run: RunId) -> AttemptDocument | None:
        """The newest attempt that answered to ``run``."""
        documents = (self.read(number) for number in reversed(self.numbers()))
        return next((document for document in documents if document.run == run), None)

    def begun(self) -> list[AttemptDocument]:
        """The attempts that have begun, ascending: the last one is the one to go on after."""
        return [self.read(number) for number in self._begun()]

    def begin(self, attempt: AttemptDocument, known: Container[AttemptNumber]) -> None:
        """Makes ``attempt`` the live one, and lets it go on. Durable on return.

        Args:
            attempt: The attempt.
            known: The attempts that had begun when it was decided what this one does.

        Raises:
            FencedError: Another process is this attempt already, or a higher one is live.
            ConflictError: A lower one has begun meanwhile. It may have begun an incarnation, or a round, that this one knows nothing of.
        """
        number = attempt.attempt
        self.create(attempt)
        self.check_live(number)
        self._check_all_known(number, known)
        with step(Step.ATTEMPT_BEGIN):
            create_document(self.files, f"attempts/{number}/{_BEGUN}", BegunAttempt(attempt=number))
        self.check_live(number)

    def create(self, attempt: AttemptDocument) -> None:
        """Claims the number of ``attempt``: all lower ones are fenced.

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

    def _check_all_known(self, number: AttemptNumber, known: Container[AttemptNumber]) -> None:
        unknown = [other for other in self._begun() if other < number and other not in known]
        if unknown:
            raise ConflictError(
                f"Attempt {number} stops: attempt {unknown[-1]} began while this one was starting.",
                safe="This attempt has done nothing.",
                remedy="Start again: what is there is looked at anew.",
                attempt=number,
                unseen=unknown[-1],
            )

    def _begun(self) -> list[AttemptNumber]:
        return [number for number in self.numbers() if _BEGUN in self.files.names(f"attempts/{number}")]
