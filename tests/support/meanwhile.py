"""Changes of a source while a stage reads it."""

import itertools
from collections.abc import Callable

from spark_jobs.protocol.steps import Step


class Meanwhile:
    """Calls a function once a run has staged its first batch."""

    def __init__(self, change: Callable[[], object]) -> None:
        self._change, self._times = change, itertools.count()

    def before(self, step: Step) -> None:
        pass

    def after(self, step: Step) -> None:
        if step is Step.STAGE_VERSION and next(self._times) == 0:
            self._change()
