"""The operator that publishes what pipelines have staged."""

import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any, NoReturn

from airflow.sdk import BaseOperator

from airflow_provider.assets import emit_tables
from airflow_provider.drivers.driver_log import log_last_lines
from airflow_provider.drivers.local_driver import LocalDriver, is_at_work
from airflow_provider.exceptions import raising_airflow_errors
from airflow_provider.facts import publication_facts
from airflow_provider.hidden_values import refuse_hidden_arguments
from airflow_provider.hooks.stream_pipeline import StreamPipelineHook
from airflow_provider.links import LINKS, record_homes
from airflow_provider.retry import RETRIES
from airflow_provider.spark_conf import checked_conf
from airflow_provider.tasks.time_limits import time_limits
from airflow_provider.triggers.spark_publication import SparkPublicationTrigger
from airflow_provider.version_compat import container_of_one_task
from airflow_provider.waits.patient_look import patient_look
from airflow_provider.waits.waiting import Patience
from spark_jobs.protocol.documents import ErrorReport
from spark_jobs.protocol.errors import InterruptedRunError, InvalidParameterError, StreamPipelineError
from spark_jobs.protocol.ids import CheckpointId
from spark_jobs.protocol.reports import reported_error
from spark_jobs.storage.files import is_here

if TYPE_CHECKING:
    from airflow.sdk import Context

_SLICE_S = 0.5
_EXIT_WAIT_S = 10.0


class PublishCheckpointOperator(BaseOperator):
    """Publishes checkpoints of one or several pipelines: of all, or of none, as far as can be known before the first row is public.

    Every checkpoint is looked at before anything is written to any table: each has to be complete, and every table of every one
    fit for it. If one is not, none is published. Then they are published one after the other, those that need Spark first; whatever
    dies, or changes in a table, in between, a retry does the rest, and each row becomes public once. All before a checkpoint that is
    pending is published with it.

    Without a JVM, in this worker, in about a second. A pipeline whose sinks Spark publishes needs the connection's ``python``, with
    Spark, on this host: a process that outlives the task's, is found again by a next try, and is waited for in the triggerer.

    Returns as XCom by home what :func:`airflow_provider.facts.publication_facts` says.

    Args:
        pipelines: A home, several, or by home the number of its checkpoint, such as that of another task's XCom. Without a number,
            or with an empty one: its newest. Homes are inside the connection's home roots. Templated.
        deferrable: Wait for a Spark that publishes in the triggerer, and hold no worker's slot meanwhile. In a container that ends
            with the task, the worker waits all the same.
        conf: Spark settings, over the connection's, where Spark publishes. Templated as those of the operator that runs a pipeline.
        conn_id: The connection, of type ``stream_pipeline``.
        retries: As for every operator, but for the default: a next try is what finds the work of one that was lost.
        kwargs: As for every operator.

    Raises:
        PipelineRunRefusedError: A checkpoint or a table is not fit for it; Airflow does not retry.
        PipelineRunError: Anything else; a retry does what is missing.
    """

    template_fields: Sequence[str] = ("pipelines", "conf")
    template_fields_renderers = {"pipelines": "json", "conf": "json"}  # noqa: RUF012  # as every operator declares it
    operator_extra_links = LINKS
    ui_color = "#e8f0e4"

    def __init__(
        self,
        *,
        pipelines: str | Sequence[str] | Mapping[str, int | str | None],
        deferrable: bool = True,
        conf: Mapping[str, str] | str | None = None,
        conn_id: str = StreamPipelineHook.default_conn_name,
        retries: int | None = RETRIES,
        **kwargs: Any,
    ) -> None:
        super().__init__(retries=retries, **kwargs)
        self.pipelines = pipelines
        self.deferrable = deferrable
        self.conf = self.written_conf = conf
        self.conn_id = conn_id
        self._spark: LocalDriver | None = None
        self._killed = False

    @cached_property
    def hook(self) -> StreamPipelineHook:
        return StreamPipelineHook(self.conn_id)

    def execute(self, context: "Context") -> dict[str, Any]:
        """Checks all, then publishes all; deferred while Spark does, unless ``deferrable`` is off."""
        self._limits = time_limits(self)
        with raising_airflow_errors():
            refuse_hidden_arguments(self)
            conf = checked_conf(self, self.written_conf, self.conf)
            wanted = self._wanted()
            homes = {self.hook.files(home).url: number or self.hook.newest_checkpoint(home) for home, number in wanted.items()}
            record_homes(context, self.conn_id, homes)
            planned = [self.hook.plan_publication(home, number) for home, number in wanted.items()]
            if any(plan.by_spark for plan in planned):
                self.hook.check_publishes(conf)
            planned.sort(key=lambda plan: not plan.by_spark)  # what a Spark lacks is seen before anything else is public
            checkpoints = {plan.files.url: plan.checkpoint for plan in planned}
            if checkpoints != homes:  # the newest could not be used, or is another one by now
                record_homes(context, self.conn_id, checkpoints)
            return self._publish(context, checkpoints)

    def execute_complete(self, context: "Context", event: dict[str, Any], began_at: float | None = None) -> dict[str, Any]:
        """Goes on after Spark has published one of them, or has failed to.

        Args:
            context: The task's.
            event: What the trigger has sent.
            began_at: When the try began, in seconds since 1970; None: `airflow dags test` resumes the task, and keeps the event alone.
        """
        self._limits = time_limits(self, began_at=began_at)
        with raising_airflow_errors():
            if "error" in event:
                with suppress(StreamPipelineError):  # it is not what the task has failed with
                    log_last_lines(self.log, self.hook.publication_log(event["home"], event["checkpoints"][event["home"]]))
                raise reported_error(ErrorReport.model_validate(event["error"]))
            checkpoints = {home: CheckpointId(number) for home, number in event["checkpoints"].items()}
            if event["started"]:
                self._check_published(event["home"], checkpoints[event["home"]])
            return self._publish(context, checkpoints)

    def on_kill(self) -> None:
        """Ends a Spark that publishes; what it has not made public yet, a next try does. Called from a signal handler."""
        self._killed = True
        if self._spark is not None:
            self._spark.stop()

    def _wanted(self) -> dict[str, CheckpointId | None]:
        given = [self.pipelines] if isinstance(self.pipelines, str) else self.pipelines
        found: Mapping[str, Any] = given if isinstance(given, Mapping) else dict.fromkeys(given)
        if not found:
            raise InvalidParameterError(
                "No pipeline is named.", safe="Nothing was published.", remedy="Name homes in pipelines=."
            )
        return {home: _number(home, number) for home, number in found.items()}

    def _publish(self, context: "Context", checkpoints: Mapping[str, CheckpointId]) -> dict[str, Any]:
        facts = {}
        for home, checkpoint in checkpoints.items():
            self._check_not_killed(home, checkpoint)
            while (plan := self.hook.plan_publication(home, checkpoint)).by_spark:
                self.log.info("Checkpoint %s of %s: Spark publishes %s.", checkpoint, home, ", ".join(plan.by_spark))
                self._publish_by_spark(home, checkpoints)
            facts[home] = publication_facts(home, plan, plan.carry_out())
            for sink in facts[home]["sinks"].values():
                public = (checkpoint, home, sink["table"], sink["version"])
                self.log.info("Checkpoint %s of %s is public in %s, version %s.", *public)
        for each in facts.values():
            emit_tables(self, context, each)
        return facts

    def _publish_by_spark(self, home: str, checkpoints: Mapping[str, CheckpointId]) -> None:
        """Lets Spark publish one of them: here, or somebody else who is at it already."""
        checkpoint = checkpoints[home]
        output = self.hook.publication_output(home, checkpoint)
        self._spark = self.hook.start_publication(home, checkpoint, checked_conf(self, self.written_conf, self.conf))
        self._check_not_killed(home, checkpoint)
        started = self._spark is not None
        self.log.info("%s Its output: %s", "It is started." if started else "It is at work already.", output)
        ends_with_us = started and container_of_one_task() is not None
        if self.deferrable and not ends_with_us and is_here(self.hook.files(home)):  # else the triggerer may not see the output
            self._defer(home, checkpoints, started=started)
        patience, check = Patience(None), partial(self._check_not_killed, home, checkpoint)
        while patient_look(lambda: is_at_work(output), patience, self.log, check) is not False:
            check()
            time.sleep(_SLICE_S)
        check()
        if self._spark is not None:
            self._spark.wait(_EXIT_WAIT_S)
            self._check_published(home, checkpoint)

    def _check_not_killed(self, home: str, checkpoint: CheckpointId) -> None:
        if self._killed:
            self.on_kill()  # once more: the signal may have come before the process was known
            raise _interrupted(home, checkpoint)

    def _check_published(self, home: str, checkpoint: CheckpointId) -> None:
        """Raises why the process that this task has started has not done it."""
        output = self.hook.publication_output(home, checkpoint)
        if not is_at_work(output) and self.hook.plan_publication(home, checkpoint).by_spark:
            log_last_lines(self.log, self.hook.publication_log(home, checkpoint))
            raise self.hook.publication_error(home, checkpoint)

    def _defer(self, home: str, checkpoints: Mapping[str, CheckpointId], *, started: bool) -> NoReturn:
        if self._spark is not None:
            self._spark.let_go()
            self._spark = None  # a signal that comes when the task is deferred already ends it no more
        self.defer(
            trigger=SparkPublicationTrigger(
                home=home,
                checkpoints=dict(checkpoints),
                output=str(self.hook.publication_output(home, checkpoints[home])),
                started=started,
                deadline_at=self._limits.first_at,
                timeout_s=self._limits.first_s,
            ),
            method_name="execute_complete",
            kwargs={"began_at": self._limits.began_at},
        )


def _interrupted(home: str, checkpoint: CheckpointId) -> InterruptedRunError:
    return InterruptedRunError(
        f"The publication of checkpoint {checkpoint} of {home} was killed.",
        safe="Each row is public once, or not yet.",
        remedy="A next try does the rest.",
        home=home,
        checkpoint=checkpoint,
    )


def _number(home: str, number: Any) -> CheckpointId | None:
    if number in (None, ""):
        return None
    try:
        return CheckpointId(int(number))
    except (TypeError, ValueError):
        raise InvalidParameterError(
            f"The checkpoint of {home} is {number!r}, which is no number.",
            safe="Nothing was published.",
            remedy="Correct pipelines= of the task.",
            home=home,
        ) from None
