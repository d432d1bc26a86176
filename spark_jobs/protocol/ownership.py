"""Documents by which those who wait for an attempt agree on who may end it."""

from datetime import datetime

from spark_jobs.protocol.codec import Document
from spark_jobs.protocol.ids import AttemptNumber, OwnerNumber, RequestId


class OwnerDocument(Document):
    """``attempts/<n>.owner-<m>.json``: m has taken charge of attempt n; those before it no longer count."""

    kind = "owner"
    attempt: AttemptNumber
    owner: OwnerNumber
    token: str
    """Who it is: the same for as long as it waits, another for everybody else."""
    since: datetime


class CancelRequest(Document):
    """``requests/cancel-<n>-<m>.json``: owner m wants attempt n to end. Counts only while m is the newest owner."""

    kind = "cancel_request"
    request: RequestId
    attempt: AttemptNumber
    owner: OwnerNumber
    reason: str
    requested_at: datetime
