"""The heartbeat of the live attempt. A hint for people and for waiting; no decision about data rests on it."""

from spark_jobs.home.layout import STATUS
from spark_jobs.protocol.codec import encode
from spark_jobs.protocol.documents import Status
from spark_jobs.protocol.errors import CorruptDocumentError, NotFoundError
from spark_jobs.storage.files import Files, read_document


def write_status(files: Files, status: Status) -> None:
    """Replaces the heartbeat."""
    files.replace(STATUS, encode(status))


def read_status(files: Files) -> Status | None:
    """Returns the newest heartbeat; None if there is none, or only half of one."""
    try:
        return read_document(files, STATUS, Status)
    except (NotFoundError, CorruptDocumentError):
        return None
