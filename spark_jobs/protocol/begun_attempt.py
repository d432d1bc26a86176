"""The document that lets an attempt go on."""

from spark_jobs.protocol.codec import Document
from spark_jobs.protocol.ids import AttemptNumber


class BegunAttempt(Document):
    """``attempts/<n>.begun.json``: attempt n knew of every lower one that has begun, and no higher one was there. What it names counts."""

    kind = "begun_attempt"
    attempt: AttemptNumber
