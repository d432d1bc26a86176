"""Opens the place where the savepoint of a request goes."""

from spark_jobs.home.layout import savepoint_path
from spark_jobs.protocol.checkpoint_requests import CheckpointRequest
from spark_jobs.storage.files import Files
from spark_jobs.storage.open import open_place


def savepoint_place(home: Files, request: CheckpointRequest) -> Files:
    """Returns the directory of the savepoint that a request asks for: below the home, unless its asker has named another."""
    return open_place(request.target) if request.target else home.below(savepoint_path(request.request))
