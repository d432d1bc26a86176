"""The document that confirms an attempt."""

from spark_jobs.protocol.codec import Document
from spark_jobs.protocol.ids import AttemptNumber


class BegunAttempt(Document):
    """``attempts/<n>.begun.json``: attempt n knew every lower attempt that has begun, and there was no higher one. Its decisions hold."""

    kind = "begun_attempt"
    attempt: AttemptNumber
