"""The wait for a process that publishes with Spark."""

from collections.abc import Hashable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from airflow_provider.drivers.local_driver import is_at_work
from spark_jobs.protocol.errors import DeadlineExceededError
from spark_jobs.waits.home_wait import HomeWait


@dataclass
class SparkPublicationWait(HomeWait[bool, dict[str, Any]]):
    """Waits until a process that publishes has ended. Only looks.

    The tables contain the result, so the event only names the publication. The process goes on if its task is killed: it publishes rows
    that were requested, each once, and a retry waits for it.

    Args:
        checkpoints: By home, the checkpoints that the task publishes, as its first look has chosen them.
        output: The file into which the process writes.
        started: True if this task has started the process.
    """

    kind = "spark_publication"
    event_fields = ("checkpoints", "started")

    checkpoints: dict[str, int]
    output: str
    started: bool

    @property
    def key(self) -> Hashable:
        return self.kind, self.output

    def look(self) -> bool:
        return is_at_work(Path(self.output))

    def judge(self, look: bool, now_s: float) -> dict[str, Any] | None:
        return None if look else {}

    def too_late(self, look: bool, timeout_s: float | None) -> DeadlineExceededError:
        return DeadlineExceededError(
            f"The publication in {self.files.url} has not ended within {timeout_s or 0.0:g} s.",
            exists=f"Its process is still at work. Its output: {self.output}.",
            safe="The process was not stopped. Each row is public once, or not yet.",
            remedy="A retry waits for the same process. Raise execution_timeout if the tables have grown.",
            home=self.files.url,
        )
