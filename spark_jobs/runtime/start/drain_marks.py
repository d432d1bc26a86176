"""The marks in a work directory of whether its stages run, or are being drained before their inputs end."""

import json

from spark_jobs.protocol.codec import canonical
from spark_jobs.protocol.errors import CorruptDocumentError
from spark_jobs.protocol.ids import RequestId
from spark_jobs.protocol.steps import Step, step
from spark_jobs.storage.files import Files

_DRAINING, _TAKEN_OVER = "draining.json", "taken_over.json"
_NO_DRAIN = b"{}\n"


def begin_drain(work: Files, request: RequestId) -> None:
    """Marks a work directory in which a drain ends stages before their inputs end: only that drain may go on there. Durable, idempotent.

    Two files have the mark. If one is lost, no stage runs on with a watermark at the end of time.
    """
    mark = canonical({"request": request}) + b"\n"
    with step(Step.DRAIN_BEGIN):
        work.create(_DRAINING, mark)
        work.replace(_TAKEN_OVER, mark)


def drain_begun(work: Files) -> RequestId | None:
    """Returns the request for which the stages of a work directory are being drained, or None.

    Raises:
        CorruptDocumentError: The mark of the drain was altered.
    """
    if _DRAINING not in work.names(""):
        return None
    data = work.read(_DRAINING)
    try:
        return RequestId(json.loads(data)["request"])
    except (ValueError, LookupError, TypeError) as error:
        raise CorruptDocumentError(
            f"{work.url}/{_DRAINING} does not name the request of a drain.",
            exists="The newest checkpoint is valid.",
            safe="Nothing was changed.",
            remedy="Start the pipeline again: it continues from its newest checkpoint.",
            path=f"{work.url}/{_DRAINING}",
        ) from error


def take_over(work: Files) -> None:
    """Marks a work directory in which stages may run: every drain that was requested before it was built is answered.

    Durable, idempotent.
    """
    work.create(_TAKEN_OVER, _NO_DRAIN)


def is_taken_over(work: Files) -> bool:
    """Returns True if the stages of a work directory may run.

    The attempt that built it may have died before it refused older drains.
    """
    return _TAKEN_OVER in work.names("")


def has_lost_a_drain(work: Files) -> bool:
    """Returns True if a work directory has one mark of a drain and has lost the other."""
    return is_taken_over(work) and work.read(_TAKEN_OVER) != _NO_DRAIN
