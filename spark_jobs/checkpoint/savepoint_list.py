"""Lists savepoints: the content of each document, or the reason why it cannot be used."""

from collections.abc import Iterable
from datetime import UTC, datetime
from functools import partial
from typing import NamedTuple

from spark_jobs.background import run_all
from spark_jobs.home.layout import SAVEPOINT
from spark_jobs.protocol.errors import CorruptDocumentError, NotFoundError
from spark_jobs.protocol.savepoint import Savepoint
from spark_jobs.storage.files import Files, read_document

_NEVER = datetime.min.replace(tzinfo=UTC)


class ListedSavepoint(NamedTuple):
    """A savepoint with its document."""

    url: str
    savepoint: Savepoint | None
    problem: str | None
    """The reason why it cannot be used; None if it can."""


def list_savepoints(places: Iterable[Files]) -> list[ListedSavepoint]:
    """Reads the document of each savepoint, many at once. Returns the newest first, then the unusable ones. Verifies no file.

    Raises:
        StorageError: The storage does not answer.
    """
    found: list[ListedSavepoint] = run_all([partial(_listed, place) for place in places])
    return sorted(found, key=lambda each: each.savepoint.taken_at if each.savepoint else _NEVER, reverse=True)


def _listed(place: Files) -> ListedSavepoint:
    try:
        return ListedSavepoint(place.url, read_document(place, SAVEPOINT, Savepoint), None)
    except NotFoundError:
        return ListedSavepoint(place.url, None, "It is incomplete: it is being made or deleted, or that was interrupted.")
    except CorruptDocumentError as error:
        return ListedSavepoint(place.url, None, error.failed)
