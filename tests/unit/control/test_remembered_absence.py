"""Waits see a new file although the file system, like NFS, remembers for a while that it was absent."""

from datetime import UTC, datetime
from pathlib import Path

from spark_jobs.control.channel import Channel
from spark_jobs.control.lease import AttemptLease
from spark_jobs.protocol.documents import StartResponse
from spark_jobs.protocol.errors import NotFoundError
from spark_jobs.protocol.ids import AttemptNumber, CheckpointId, RunId
from spark_jobs.storage.files import READ_MAX_BYTES
from spark_jobs.storage.local import LocalFiles


class Client(LocalFiles):
    """A client of a file server that remembers a name as absent until its directory is listed."""

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self._absent: set[str] = set()

    def read(self, path: str, max_bytes: int = READ_MAX_BYTES) -> bytes:
        if path in self._absent:
            raise NotFoundError(f"{path} is remembered as absent.")
        try:
            return super().read(path, max_bytes)
        except NotFoundError:
            self._absent.add(path)
            raise

    def names(self, directory: str) -> list[str]:
        self._absent = {path for path in self._absent if not path.startswith(f"{directory}/")}
        return super().names(directory)


def test_a_wait_sees_an_answer_at_once(tmp_path: Path) -> None:
    waiting, driver = Channel(Client(tmp_path)), Channel(LocalFiles(tmp_path))
    request = driver.request_start(RunId("a"), parameters={})
    assert waiting.response(request.request) is None
    driver.respond(
        StartResponse(
            request=request.request,
            attempt=request.attempt,
            run=request.run,
            checkpoint=CheckpointId(1),
            sinks={},
            answered_at=datetime.now(UTC),
        )
    )
    assert waiting.response(request.request) is not None


def test_a_wait_sees_a_cancel_at_once(tmp_path: Path) -> None:
    driver, task = (AttemptLease(files, AttemptNumber(1)) for files in (Client(tmp_path), LocalFiles(tmp_path)))
    owner = task.take("a task").owner
    assert driver.cancelled() is None
    task.cancel(owner, "its task was cleared")
    assert driver.cancelled() is not None
