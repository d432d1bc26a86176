"""A driver that answers requests for checkpoints."""

from threading import Event, Thread

from spark_jobs.protocol.documents import Publish
from spark_jobs.protocol.errors import DeadlineExceededError
from spark_jobs.protocol.ids import AttemptNumber
from spark_jobs.protocol.masking import unmasked
from spark_jobs.publication.publisher import publish
from spark_jobs.runtime.checkpoints.requested_checkpoints import RequestedCheckpoints
from tests.support.command_line import FLIGHTS, UsedHome
from tests.support.staged_pipeline import HOURLY

LIVE = FLIGHTS.replace('bounded=True, event_time="at"', "bounded=False")


class Driver:
    """Answers every request while the context is open."""

    def __init__(self, home: UsedHome, error: DeadlineExceededError | None = None) -> None:
        self._home, self._error = home, error
        self._stop = Event()
        self._thread = Thread(target=self._work)

    def __enter__(self) -> None:
        self._thread.start()

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    def _work(self) -> None:
        requests = RequestedCheckpoints(self._home.files, AttemptNumber(1), unmasked, interval_s=0.0)
        while not self._stop.wait(0.01):
            asked = requests.open()
            if asked and self._error:
                requests.failed(asked, self._error)
            elif asked:
                staged = {HOURLY: [(1, "a"), (2, "b")]}
                manifest = self._home.staged.checkpoint(staged, publish=Publish.EVERY_CHECKPOINT, request=asked[0].request)
                publish(self._home.files, by_policy=True)
                requests.completed(asked, manifest)
