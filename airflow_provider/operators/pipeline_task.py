"""The base classes of the operators and sensors of this provider."""

import time
from collections.abc import Sequence
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any, NoReturn

from airflow.sdk import BaseOperator

from airflow_provider.facts import HomeResult
from airflow_provider.hooks.stream_pipeline import StreamPipelineHook
from airflow_provider.retry import RETRIES
from airflow_provider.task_log import LogsVisibly
from airflow_provider.tasks.time_limits import TimeLimits
from airflow_provider.triggers.home import HomeTrigger, WaitArguments, WaitingTrigger
from airflow_provider.waits.clocks import monotonic_at
from spark_jobs.storage.files import Files
from spark_jobs.waits.home_wait import HomeWait
from spark_jobs.waits.in_process import patient_look, wait_here
from spark_jobs.waits.limits import LIMITS, WaitLimits
from spark_jobs.waits.patience import Patience

if TYPE_CHECKING:
    from airflow.providers.openlineage.extractors import OperatorLineage


class PipelineTask(LogsVisibly, BaseOperator):
    """A task that uses a connection of type ``stream_pipeline``.

    Args:
        conn_id: The connection.
        kwargs: Further arguments of every operator.
    """

    ui_color = "#e8f0e4"

    def __init__(self, *, conn_id: str = StreamPipelineHook.default_conn_name, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.conn_id = conn_id

    @cached_property
    def hook(self) -> StreamPipelineHook:
        return StreamPipelineHook(self.conn_id)


class PipelineOperator(PipelineTask):
    """An operator of this provider. All its tries do the same work only once, so it retries by default.

    Args:
        retries: The number of retries. A retry takes over the work of a lost try.
        kwargs: As for :class:`PipelineTask`.
    """

    def __init__(self, *, retries: int | None = RETRIES, **kwargs: Any) -> None:
        super().__init__(retries=retries, **kwargs)
        self._results: tuple[HomeResult, ...] = ()
        """The results of which the task reports the lineage."""

    def get_openlineage_facets_on_complete(self, task_instance: Any) -> "OperatorLineage[Any, Any]":
        """Returns what the task has published, and from which inputs. Airflow's OpenLineage provider calls this, also after a failure."""
        from airflow_provider.lineage import lineage_of

        del task_instance
        return lineage_of(self._results)


class WaitingTask(PipelineTask):
    """A task that waits for something in a home, in the triggerer or here.

    Args:
        deferrable: Wait in the triggerer, without a worker's slot.
        kwargs: As for :class:`PipelineTask`.
    """

    wait_limits: WaitLimits = LIMITS
    """The time limits of the wait that no DAG chooses."""
    poll_interval_s: float
    """The pause between two looks at the home while something changes."""
    max_poll_interval_s: float | None
    """The triggerer's pause after some time without a change; None: 3 s, and 30 s in an object store."""

    def __init__(self, *, deferrable: bool = True, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.deferrable = deferrable

    def first_result(self, wait: HomeWait[Any, dict[str, Any]], patience: Patience) -> dict[str, Any] | None:
        """Returns the result of one look; None: the wait goes on, or the home is unavailable, which a wait tolerates."""
        return patient_look(lambda: wait.judge(wait.look(), time.monotonic()), patience, self.log)

    def defer_wait(self, wait: HomeWait[Any, dict[str, Any]], limits: TimeLimits, **kwargs: Any) -> NoReturn:
        """Continues a wait in the triggerer, and then :meth:`execute_complete`, with ``kwargs``."""
        waiting = self.trigger_arguments(wait.files, limits)
        self.defer_to(HomeTrigger(kind=wait.kind, arguments=wait.arguments(), **waiting), **kwargs)

    def defer_to(self, trigger: WaitingTrigger, **kwargs: Any) -> NoReturn:
        """Continues with a trigger, and then :meth:`execute_complete`, with ``kwargs``."""
        self.defer(trigger=trigger, method_name="execute_complete", kwargs=kwargs or None)

    def trigger_arguments(self, files: Files, limits: TimeLimits) -> WaitArguments:
        """Returns the arguments of a trigger that waits for something in a home."""
        return {
            "home": files.url,
            "conn_id": self.conn_id,
            "deadline_at": limits.first_at,
            "timeout_s": limits.first_s,
            "poll_interval_s": self.poll_interval_s,
            "max_poll_interval_s": self.max_poll_interval_s,
        }


class PollingTask(WaitingTask):
    """A task that waits for something in a home, with pauses that the DAG chooses.

    Args:
        poll_interval_s: The pause between two looks at the home while something changes.
        max_poll_interval_s: The triggerer's pause after some time without a change; None: 3 s, and 30 s in an object store.
        kwargs: As for :class:`WaitingTask`.
    """

    def __init__(self, *, poll_interval_s: float = 2.0, max_poll_interval_s: float | None = None, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        if poll_interval_s <= 0:
            raise ValueError("poll_interval_s has to be above 0.")
        self.poll_interval_s = poll_interval_s
        self.max_poll_interval_s = max_poll_interval_s


class WaitingOperator(PollingTask, PipelineOperator):
    """An operator that waits for something in a pipeline's home.

    Args:
        home: The pipeline's home, inside the connection's home roots; a relative path starts at the first root. Templated.
        timeout_s: The longest wait, from the start of the try; None: as long as it takes.
        kwargs: As for :class:`PollingTask` and :class:`PipelineOperator`.
    """

    template_fields: Sequence[str] = ("home",)

    def __init__(self, *, home: str, timeout_s: float | None = None, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.home = home
        self.timeout_s = timeout_s

    def wait_or_defer(self, wait: HomeWait[Any, dict[str, Any]], limits: TimeLimits, **kwargs: Any) -> dict[str, Any]:
        """Returns the result of a wait. Defers the task if ``deferrable`` is set and there is no result yet; see :meth:`defer_wait`."""
        if not self.deferrable:
            end_s = None if limits.own_at is None else monotonic_at(limits.own_at)
            pause = partial(time.sleep, self.poll_interval_s)
            return wait_here(wait, end_s=end_s, timeout_s=self.timeout_s, log=self.log, pause=pause, limits=self.wait_limits)
        found = self.first_result(wait, Patience(None, self.wait_limits))
        if found is None:
            self.defer_wait(wait, limits, **kwargs)
        return found
