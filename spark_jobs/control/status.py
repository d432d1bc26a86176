"""The heartbeat of the live attempt. It is a hint for people and for waiting. No decision about data depends on it."""

from spark_jobs.home.layout import STATUS
from spark_jobs.protocol.codec import encode
from spark_jobs.protocol.documents import Status
from spark_jobs.protocol.errors import CorruptDocumentError, NotFoundError
from spark_jobs.storage.files import Files, read_document


def write_status(files: Files, status: Status) -> None:
    """Replaces the heartbeat."""
    files.replace(STATUS, encode(status))


def read_status(files: Files) -> Status | None:
    """Returns the newest heartbeat, or None if there is none or it is incomplete."""
    try:
        return read_document(files, STATUS, Status)
    except (NotFoundError, CorruptDocumentError):
        return None
