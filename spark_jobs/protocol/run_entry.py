"""The document of the index of runs."""

from spark_jobs.protocol.codec import Document
from spark_jobs.protocol.ids import AttemptNumber, RunId


class RunEntry(Document):
    """``runs/<n>.<hash of the run>.json``: the start request for attempt n belongs to this run if it names the run.

    The entry is written before the request. The request may therefore not exist, or belong to another run.
    """

    kind = "run_entry"
    attempt: AttemptNumber
    run: RunId
