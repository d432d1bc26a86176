"""The document of the index by run."""

from spark_jobs.protocol.codec import Document
from spark_jobs.protocol.ids import AttemptNumber, RunId


class RunEntry(Document):
    """``runs/<n>.<hash of the run>.json``: the start request for attempt n is this run's, if it names the run.

    Written before the request, so it may name one that was never made, or is another run's.
    """

    kind = "run_entry"
    attempt: AttemptNumber
    run: RunId
