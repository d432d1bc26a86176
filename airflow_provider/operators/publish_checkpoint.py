"""The operator that publishes checkpoints of pipelines."""

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from typing import TYPE_CHECKING, Any

from airflow_provider.assets import emit_tables
from airflow_provider.drivers.driver_log import log_last_lines
from airflow_provider.drivers.local_driver import LocalDriver
from airflow_provider.exceptions import raising_airflow_errors
from airflow_provider.facts import HomeResult, publication_facts
from airflow_provider.hidden_values import refuse_hidden_arguments
from airflow_provider.links import LINKS, record_homes
from airflow_provider.operators.pipeline_task import PipelineOperator, WaitingTask
from airflow_provider.spark_conf import checked_conf, with_parent_run
from airflow_provider.tasks.time_limits import time_limits
from airflow_provider.triggers.home import failure_of
from airflow_provider.version_compat import container_of_one_task
from spark_jobs.checkpoint.checkpoint_store import CheckpointStore
from spark_jobs.control.liveness import publisher_at_work
from spark_jobs.protocol.errors import InterruptedRunError, InvalidParameterError, StreamPipelineError
from spark_jobs.protocol.ids import CheckpointId, RequestId, published_by
from spark_jobs.publication.publisher import plan_publication
from spark_jobs.publication.requests import ask_publication
from spark_jobs.storage.files import Files, is_mounted
from spark_jobs.waits.in_process import wait_here
from spark_jobs.waits.requests import RequestWait, answer_to

if TYPE_CHECKING:
    from airflow.sdk import Context

_SLICE_S = 0.5
_EXIT_WAIT_S = 10.0


class PublishCheckpointOperator(WaitingTask, PipelineOperator):
    """Publishes checkpoints of one or several pipelines: all of them, or none if a check fails before the first row is public.

    First it checks that every checkpoint is complete and that every table can take its rows. If one check fails, it publishes nothing.
    Then it publishes one checkpoint after another, those that need Spark first. After a failure a retry publishes the rest, and each row
    becomes public once. Pending earlier checkpoints of a pipeline are published, too.

    The task needs no JVM, and takes about a second. If a pipeline publishes with Spark, the task makes a request in the home, and starts a
    process of the connection's ``python`` that answers it. This Python needs Spark. The triggerer waits for the answer. The request and
    the process outlive the task: a retry waits for the same answer, and starts another process only if none is at work.

    Returns as XCom by home the value of :func:`airflow_provider.facts.publication_facts`.

    Args:
        pipelines: A home, several homes, or by home the number of its checkpoint, such as from the XCom of another task. Without a
            number, or with an empty one, the newest checkpoint is published. Homes are inside the connection's home roots. Templated.
        conf: Spark settings of a publication with Spark. They override the connection's. Templated as in the operator that runs a pipeline.
        kwargs: As for :class:`~airflow_provider.operators.pipeline_task.PipelineOperator`, and ``deferrable``: wait in the triggerer
            for a publication with Spark, without a worker's slot. In a container that ends with the task, the worker waits instead.

    Raises:
        PipelineRunRefusedError: A checkpoint or a table cannot be published; Airflow does not retry.
        PipelineRunError: Any other error; a retry publishes the rest.
    """

    template_fields: Sequence[str] = ("pipelines", "conf")
    template_fields_renderers = {"pipelines": "json", "conf": "json"}  # noqa: RUF012  # as every operator declares it
    operator_extra_links = LINKS
    poll_interval_s, max_poll_interval_s = 1.0, 2.0

    def __init__(
        self,
        *,
        pipelines: str | Sequence[str] | Mapping[str, int | str | None],
        conf: Mapping[str, str] | str | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.pipelines = pipelines
        self.conf = self.written_conf = conf
        self._spark: LocalDriver | None = None
        self._killed = False

    def execute(self, context: "Context") -> dict[str, Any]:
        """Checks all checkpoints, then publishes them. Deferred while Spark publishes, unless ``deferrable`` is off."""
        self._limits = time_limits(self)
        with raising_airflow_errors():
            refuse_hidden_arguments(self)
            conf = checked_conf(self, self.written_conf, self.conf)
            wanted = self._wanted_checkpoints()
            homes = {
                self.hook.files(home).url: number or _newest_checkpoint(self.hook.files(home)) for home, number in wanted.items()
            }
            record_homes(context, self.conn_id, homes)
            planned = [plan_publication(self.hook.files(home), number) for home, number in wanted.items()]
            if any(plan.by_spark for plan in planned):
                self.hook.check_publishes(conf)
            planned.sort(key=lambda plan: not plan.by_spark)  # a problem with Spark shows before anything else is public
            checkpoints = {plan.files.url: plan.checkpoint for plan in planned}
            if checkpoints != homes:  # the newest checkpoint was not usable, or there is a newer one now
                record_homes(context, self.conn_id, checkpoints)
            return self._publish(context, checkpoints)

    def execute_complete(
        self,
        context: "Context",
        event: dict[str, Any],
        began_at: float | None = None,
        checkpoints: Mapping[str, CheckpointId] | None = None,
    ) -> dict[str, Any]:
        """Continues after a request for a publication was answered or has failed.

        Args:
            context: The task's context.
            event: The event of the trigger.
            began_at: The start of the try, in seconds since 1970. None in `airflow dags test`, which keeps only the event.
            checkpoints: By home, the checkpoints that the task publishes, as its first look has chosen them. None if ``began_at`` is.
        """
        self._limits = time_limits(self, began_at=began_at)
        with raising_airflow_errors():
            home, request = event["home"], RequestId(event["request"])
            with self._output_shown(home, published_by(request)):
                if (error := failure_of(event)) is not None:
                    raise error
                answer_to(self.hook.files(home), request)
            return self.execute(context) if checkpoints is None else self._publish(context, checkpoints)

    def on_kill(self) -> None:
        """Ends the process that publishes with Spark; a retry publishes the rest. Called from a signal handler."""
        self._killed = True
        if self._spark is not None:
            self._spark.stop()

    def _wanted_checkpoints(self) -> dict[str, CheckpointId | None]:
        given = [self.pipelines] if isinstance(self.pipelines, str) else self.pipelines
        found: Mapping[str, Any] = given if isinstance(given, Mapping) else dict.fromkeys(given)
        if not found:
            raise InvalidParameterError(
                "pipelines= names no home.", safe="Nothing was published.", remedy="Name homes in pipelines=."
            )
        return {home: _number(home, number) for home, number in found.items()}

    def _publish(self, context: "Context", checkpoints: Mapping[str, CheckpointId]) -> dict[str, Any]:
        facts, self._results = {}, ()
        for home, checkpoint in checkpoints.items():
            self._check_not_killed(home, checkpoint)
            while (plan := plan_publication(self.hook.files(home), checkpoint)).by_spark:
                self.log.info("Checkpoint %s of %s: Spark publishes %s.", checkpoint, home, ", ".join(plan.by_spark))
                self._publish_by_spark(context, home, checkpoints)
            plan.carry_out()
            facts[home] = publication_facts(home, plan)
            self._results += (HomeResult(facts[home], None if plan.was_discarded else plan.manifest),)
            for sink in facts[home]["sinks"].values():
                public = (checkpoint, home, sink["table"], sink["version"])
                self.log.info("Checkpoint %s of %s is public in %s, version %s.", *public)
        for each in facts.values():
            emit_tables(self, context, each)
        return facts

    def _publish_by_spark(self, context: "Context", home: str, checkpoints: Mapping[str, CheckpointId]) -> None:
        """Requests the publication of one checkpoint with Spark, and waits for the answer."""
        checkpoint, files = checkpoints[home], self.hook.files(home)
        request = ask_publication(files, checkpoint)
        check = partial(self._check_not_killed, home, checkpoint)
        self._spark = None
        if not publisher_at_work(files, request):
            conf = with_parent_run(checked_conf(self, self.written_conf, self.conf), context)
            self._spark = self.hook.start_publication(home, request, conf)
            while self._spark.exit_code is None and not publisher_at_work(files, request):
                check()
                time.sleep(_SLICE_S)
        self.log.info("%s %s.", request, "is being answered already" if self._spark is None else "has a process that answers it")
        ends_with_task = self._spark is not None and container_of_one_task() is not None
        wait = RequestWait(files, request, restart_timeout_s=0.0)
        if self.deferrable and not ends_with_task and is_mounted(files):  # elsewhere the triggerer may not see the process
            if self._spark is not None:
                self._spark.detach()
                self._spark = None  # a signal after the deferral must not end it
            self.defer_wait(wait, self._limits, began_at=self._limits.began_at, checkpoints=dict(checkpoints))
        with self._output_shown(home, checkpoint):
            wait_here(wait, end_s=None, timeout_s=None, log=self.log, pause=lambda: time.sleep(_SLICE_S), check=check)
            if self._spark is not None:
                self._spark.wait(_EXIT_WAIT_S)
            answer_to(files, request)

    def _check_not_killed(self, home: str, checkpoint: CheckpointId) -> None:
        if self._killed:
            self.on_kill()  # again: the signal may have come before the task had started the process
            raise InterruptedRunError(
                f"The publication of checkpoint {checkpoint} of {home} was killed.",
                safe="Each row is public once, or not yet.",
                remedy="A retry publishes the rest.",
                home=home,
                checkpoint=checkpoint,
            )

    @contextmanager
    def _output_shown(self, home: str, checkpoint: CheckpointId) -> Iterator[None]:
        """Shows the last lines of the process in the task's log if the block fails."""
        try:
            yield
        except StreamPipelineError:
            with suppress(StreamPipelineError):  # the task fails with its own error
                log_last_lines(self.log, self.hook.publication_log(home, checkpoint))
            raise


def _newest_checkpoint(files: Files) -> CheckpointId | None:
    """Returns the number of the newest checkpoint, usable or not; None if there is none."""
    return max(CheckpointStore(files).taken(), default=None)


def _number(home: str, number: Any) -> CheckpointId | None:
    if number in (None, ""):
        return None
    try:
        return CheckpointId(int(number))
    except (TypeError, ValueError):
        raise InvalidParameterError(
            f"The checkpoint of {home} is {number!r}, not a number.",
            safe="Nothing was published.",
            remedy="Correct pipelines= of the task.",
            home=home,
        ) from None
