"""Documents with which waiting processes agree on the owner of an attempt, who may cancel it."""

from datetime import datetime

from spark_jobs.protocol.codec import Document
from spark_jobs.protocol.ids import AttemptNumber, OwnerNumber, RequestId


class OwnerDocument(Document):
    """``attempts/<n>.owner-<m>.json``: m owns attempt n. Earlier owners do not count any more."""

    kind = "owner"
    attempt: AttemptNumber
    owner: OwnerNumber
    token: str
    """The identity of the owner, the same while it waits. Every other process has another one."""
    since: datetime


class CancelRequest(Document):
    """``requests/cancel-<n>-<m>.json``: owner m cancels attempt n. The request counts only while m is the newest owner."""

    kind = "cancel_request"
    request: RequestId
    attempt: AttemptNumber
    owner: OwnerNumber
    reason: str
    requested_at: datetime
