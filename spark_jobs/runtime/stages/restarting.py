"""A stage that failed and starts again while the others go on."""

import logging
import threading

from spark_jobs.protocol.restarts import Exhausted, Restarts, exhausted, may_heal
from spark_jobs.runtime.spark.session import application_has_ended
from spark_jobs.runtime.stages.stage import StageRun

_LOG = logging.getLogger(__name__)


class StageRestarts:
    """Restarts of stages in one process.

    Args:
        restarts: The pipeline's strategy; all its stages count together. None: the first failure of a stage ends the run.
        stopping: Set once no stage is to go on.
    """

    def __init__(self, restarts: Restarts | None, stopping: threading.Event) -> None:
        self._restarts = restarts
        self._stopping = stopping

    def wait(self, stage: StageRun, error: Exception) -> None:
        """Waits as long as the strategy says after a failure. Returns at once if no stage is to go on.

        Raises:
            RestartsExhaustedError: The strategy allows no more.
            Exception: ``error``, if no restart can heal it, or there is no strategy.
        """
        if self._stopping.is_set():
            return
        name = stage.stage.name
        if self._restarts is None or not may_heal(error):
            raise error
        if application_has_ended(stage.frame.sparkSession):  # a new one needs a new attempt
            raise error
        decision = self._restarts.failed()
        if isinstance(decision, Exhausted):
            _LOG.error("stage %s failed for the last time: %s", name, decision.reason, extra={"stage": name})
            raise exhausted(decision, error) from error
        _LOG.warning("stage %s failed and starts again in %.1f s: %s", name, decision.delay_s, error, extra={"stage": name})
        stage.heartbeat.restarting(name, error)
        self._stopping.wait(decision.delay_s)
