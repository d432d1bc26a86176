"""The operator that runs a pipeline."""

import math
import time
from collections.abc import Callable, Mapping, Sequence
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Literal, NoReturn, TypeVar

from airflow_provider.assets import emit_tables
from airflow_provider.drivers.local_driver import check_host_lasts
from airflow_provider.exceptions import PipelineRunRefusedError, raising_airflow_errors
from airflow_provider.facts import HomeResult, live_facts, log_result, run_facts
from airflow_provider.hidden_values import refuse_hidden_arguments
from airflow_provider.links import LINKS, record_homes
from airflow_provider.operators.pipeline_task import WaitingOperator
from airflow_provider.orders import StartOrder, check_waits, mapping
from airflow_provider.params import refuse_links_out, warn_of_unknown
from airflow_provider.retry import is_automatic_retry
from airflow_provider.spark_conf import checked_conf, with_parent_run
from airflow_provider.tasks.driver_lease import DriverLease, TaskKillHandler
from airflow_provider.tasks.identity import run_id_of
from airflow_provider.tasks.time_limits import not_due, time_limits
from airflow_provider.triggers.home import SETTLE_S, failure_of
from airflow_provider.triggers.run import RunTrigger
from airflow_provider.version_compat import AirflowSkipException, container_of_one_task
from airflow_provider.waits.clocks import monotonic_at
from airflow_provider.waits.first_looks import Next, first_look, first_step, in_use, not_ending
from airflow_provider.waits.goals import Goal, WaitFor
from airflow_provider.waits.runs import Waited, WorkerWait, checked, start_limit
from spark_jobs.checkpoint.checkpoint_store import CheckpointStore
from spark_jobs.control.channel import Channel
from spark_jobs.control.losses import LossLedger
from spark_jobs.control.pipeline_metrics import read_budgets_left
from spark_jobs.control.rounds import Rounds
from spark_jobs.control.supervision import End, Restart, next_start
from spark_jobs.protocol.documents import OnRewind, StartResponse
from spark_jobs.protocol.errors import (
    DeadlineExceededError,
    InterruptedRunError,
    RejectedError,
    StorageError,
    StreamPipelineError,
)
from spark_jobs.protocol.ids import AttemptNumber, OwnerNumber, RunId, start_request_id
from spark_jobs.protocol.losses import Loss, said
from spark_jobs.protocol.start_requests import START_ARGUMENTS, documented, read_start_arguments
from spark_jobs.storage.files import is_mounted
from spark_jobs.waits.in_process import look_or_fail, wait_here

if TYPE_CHECKING:
    from airflow.sdk import Context

T = TypeVar("T")

_SLICE_S = 0.5
"""The longest sleep: a signal does not end a sleep, so the flag that it sets is read this often."""
STARTS_WITH = tuple(name for name in START_ARGUMENTS if name not in ("adopt_offsets", "backfill"))
"""The start arguments that a task takes. All but ``fresh`` are templated."""
LATEST = "latest"
"""The value of ``restore`` for the newest checkpoint of the home, as without ``restore``."""


class OnLoss(StrEnum):
    """The result of a task whose run has left out rows and whose losses are not accepted."""

    SUCCEED = "succeed"
    """The task succeeds. Its log and its XCom name the losses."""
    FAIL = "fail"
    """The task fails without a retry until the losses are accepted."""
    SKIP = "skip"
    """The task is skipped until the losses are accepted. Its log and its XCom name the losses."""


class StreamPipelineOperator(WaitingOperator):
    """Runs a pipeline to its final checkpoint, or supervises a pipeline without an end for as long as it lives.

    Each try first reads the home. If the run was answered, the try returns that answer. If a driver works on this run, the try waits for
    it. Otherwise the try requests a start and starts a driver: on this host, or with ``spark-submit`` if the connection names a Spark
    connection. The driver outlives the task's process. Two DAG runs are two runs of the pipeline. All tries of a task are one run, also
    after it was cleared.

    If the pipeline has a restart strategy, the strategy starts it again without using up a retry. Returns as XCom the value of
    :func:`airflow_provider.facts.run_facts`.

    Args:
        entry: ``FILE.py[:NAME]``, ``package.module[:NAME]`` or ``spark-pipeline.yml[:live]``. Not templated, because it is code.
        parameters: The pipeline's parameters, without secrets. Templated.
        secrets: Secret parameters: by name, the id of the Airflow connection whose password is the value.
        options: The options of a start. Templated, except for ``fresh``; an empty text counts as not given. Every DAG run starts from the
            savepoint of ``restore`` again, but a retry continues its own run. ``restore="latest"`` is the newest checkpoint of the home.
        on_loss: The result of a run that has left out rows whose loss is not accepted: ``"succeed"``, ``"fail"`` or ``"skip"``.
            Its published rows stay. After the losses were accepted, a cleared task succeeds at once.
        wait_for: The event that ends the task: ``"final_checkpoint"``; ``"running"``, when the pipeline runs; or ``"submitted"``, when
            its driver was started. The last two leave the driver at work, and it is not started again after a failure.
        conf: Spark settings, which override the connection's. Templated; settings that are not literally in the DAG file have to be in
            ``RUN_MAY_SET``.
        timeout_s: The longest wait, from the start of the try. The task then fails, the driver goes on, and a retry waits for it again.
            Airflow's own ``execution_timeout`` also ends the driver, deferred or not, unless ``cancel_on_kill`` is off.
        cancel_on_kill: End the driver of a task that is killed, cleared, or marked as success or failed, unless another try has taken it
            over.
        start_timeout_s: How long a driver from ``spark-submit`` may take to appear in the home, from its request on; after that it is
            abandoned. A worker also waits this long for the first sign of its own driver.
        allow_driver_in_pod: Start a driver even if its host ends with the task. The task then waits in its worker.
        kwargs: As for :class:`~airflow_provider.operators.pipeline_task.WaitingOperator`.

    Raises:
        PipelineRunRefusedError: A retry would meet the same error; Airflow does not retry.
        PipelineRunError: Any other error; a retry resumes from the durable state.
    """

    template_fields: Sequence[str] = (
        *("home", "parameters", "conf"),
        *(name for name in STARTS_WITH if name != "fresh"),
    )
    template_fields_renderers = {"parameters": "json", "checkpoint": "json", "conf": "json"}  # noqa: RUF012  # as every operator declares it
    operator_extra_links = LINKS
    losses: Sequence[str] | str | None = None
    """The losses that the run backfills: see :class:`~airflow_provider.operators.losses.BackfillLossOperator`."""

    def __init__(
        self,
        *,
        entry: str,
        parameters: Mapping[str, Any] | None = None,
        secrets: Mapping[str, str] | None = None,
        on_end: str | None = None,
        publish: str | None = None,
        fresh: bool = False,
        restore: str | None = None,
        allow_drained: bool | str = False,
        allow_dropped: bool | str = False,
        take_pending: bool | str = False,
        state_partitions: int | str | None = None,
        new_sources: Sequence[str] | str | None = None,
        accept_data_loss: Sequence[str] | str | None = None,
        full_refresh: Sequence[str] | str | None = None,
        on_loss: OnLoss | Literal["succeed", "fail", "skip"] = "succeed",
        on_rewind: str = OnRewind.REFUSE.value,
        checkpoint: Mapping[str, Any] | str | None = None,
        wait_for: Literal["final_checkpoint", "running", "submitted"] = "final_checkpoint",
        conf: Mapping[str, str] | str | None = None,
        cancel_on_kill: bool = True,
        start_timeout_s: float = 600.0,
        allow_driver_in_pod: bool = False,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        check_waits(wait_for, self.timeout_s, start_timeout_s)
        self.entry = entry
        self.parameters, self.secrets = parameters, secrets
        self.on_end = on_end
        self.publish = publish
        self.fresh, self.on_rewind = fresh, on_rewind
        self.restore, self.state_partitions = restore, state_partitions
        self.new_sources, self.accept_data_loss, self.full_refresh = new_sources, accept_data_loss, full_refresh
        self.on_loss = OnLoss(on_loss).value
        self.allow_drained, self.allow_dropped, self.take_pending = allow_drained, allow_dropped, take_pending
        self.checkpoint = checkpoint
        self.wait_for = wait_for
        self.conf = self.written_conf = conf
        self.start_timeout_s = start_timeout_s
        self.cancel_on_kill = cancel_on_kill
        self.allow_driver_in_pod = allow_driver_in_pod
        self._lease: DriverLease | None = None
        self._kill = TaskKillHandler()

    def execute(self, context: "Context") -> dict[str, Any]:
        """Runs the pipeline, or continues the work of an earlier try. Deferred unless ``deferrable`` is off."""
        self._forget()
        warn_of_unknown(self, context)
        with raising_airflow_errors(), self._kill.during_try(self.home):
            refuse_links_out(context)
            return self._carry_on(context, goes_on=is_automatic_retry(context["ti"], self.retries))

    def execute_complete(
        self, context: "Context", event: dict[str, Any], began_at: float | None = None, owner: int | None = None
    ) -> dict[str, Any]:
        """Ends the task with the result of its trigger, or begins the next attempt if the strategy restarts the pipeline.

        Args:
            context: The task's context.
            event: The event of the trigger.
            began_at: The start of the try, in seconds since 1970. None in `airflow dags test`, which keeps only the event.
            owner: The task's owner number of the attempt before it was deferred.
        """
        self.home, number = event["home"], AttemptNumber(event["attempt"])  # the DAG file may have changed since
        lease = self._forget(began_at)
        with raising_airflow_errors(), self._kill.during_try(self.home):
            if (error := failure_of(event)) is not None:
                if owner is not None:
                    lease.held = (number, OwnerNumber(owner))
                elif not isinstance(error, StorageError):  # an unavailable home cannot be written
                    self._take_lease(number, str(context["ti"].id))
                if lease.was_ended_by_earlier_owner(error):
                    return self._carry_on(context, goes_on=True)
                lease.log_driver(number, self.secrets or {})
                if self._restart_after(number, error) is not None:
                    return self._carry_on(context, goes_on=True)
                if isinstance(error, DeadlineExceededError) and self._limits.airflows_is_first and self.cancel_on_kill:
                    lease.cancel("its task has reached its execution_timeout")
                lease.abandon(number, error)
                raise error
            if "reached" in event:
                return self._left_at_work(context, number)
            answer = self._answer(number, run_id_of(context["ti"]))
            return self._finished(context, checked(answer, self.home))

    def on_kill(self) -> None:
        """Ends the driver of this task's attempt; :meth:`execute` then raises. Called from a signal handler."""
        self._kill.handle()

    def _carry_on(self, context: "Context", *, goes_on: bool) -> dict[str, Any]:
        """Runs until the run is answered or the task is deferred.

        If ``goes_on``, it stops if the run was cancelled: after a cancel, only a person may start the run again.
        """
        try:
            order, token = order_of(self, run_id_of(context["ti"])), str(context["ti"].id)
            order = order.model_copy(update={"conf": with_parent_run(order.conf, context)})
            url = self._look(lambda: self.hook.files(self.home).url)
            record_homes(context, self.conn_id, {url: None})
            while True:
                self._check_not_killed()
                if goes_on:
                    self._look(lambda: self._current_lease.check_not_cancelled(order.run))
                begun, goes_on = self._begin(order, token), True
                if isinstance(begun, StartResponse):
                    self.log.info("This run was answered before: checkpoint %s.", begun.checkpoint)
                    return self._finished(context, checked(begun, self.home))
                outcome = self._wait(begun, self._until_seen_s)
                if isinstance(outcome, StartResponse):
                    return self._finished(context, outcome)
                if outcome is Waited.FAR_ENOUGH:
                    return self._left_at_work(context, begun)
                if outcome is Waited.SEEN:
                    self._defer(begun, token)
        except KeyboardInterrupt:  # a test run of a DAG gets no kill
            self.on_kill()
            raise

    def _take_lease(self, attempt: AttemptNumber, token: str) -> AttemptNumber:
        """Makes this task the newest owner of an attempt, and returns the attempt.

        Raises:
            InterruptedRunError: The task was killed.
        """
        self._current_lease.take(attempt, token)
        self._check_not_killed()
        return attempt

    @property
    def _supervises(self) -> bool:
        """True if the task starts a failed driver again for as long as the pipeline lives."""
        return WaitFor(self.wait_for) is WaitFor.FINAL_CHECKPOINT

    @property
    def _current_lease(self) -> DriverLease:
        return self._lease if self._lease is not None else self._forget()

    def _forget(self, began_at: float | None = None) -> DriverLease:
        """Forgets an earlier use of this object, and returns a new lease that holds nothing.

        Args:
            began_at: The start of the try, in seconds since 1970; None: now.
        """
        self._limits = time_limits(self, self.timeout_s, began_at)
        self._lease = DriverLease(self.hook, self.home, self.log, self.wait_limits)
        self._kill.guard(self._lease if self.cancel_on_kill else None)
        return self._lease

    def _restart_after(self, attempt: AttemptNumber, error: StreamPipelineError) -> Restart | None:
        """Returns the restart after the end of an attempt, by the pipeline's restart strategy; None: only Airflow may retry.

        Raises:
            PipelineRunRefusedError: The strategy or a person has ended the pipeline, so Airflow's retries must not start it again.
        """
        if not self._kill.was_killed and (cancelled := self._current_lease.later_cancel(error)) is not None:
            raise PipelineRunRefusedError(cancelled) from error
        if not self._supervises or self._kill.was_killed:
            return None
        following = self._current_lease.after_end(error)
        if isinstance(following, End):
            self._current_lease.abandon(attempt, error)
            raise PipelineRunRefusedError(following.error) from error
        return following

    def _finished(self, context: "Context", answer: StartResponse) -> dict[str, Any]:
        """Returns the XCom of an answered run, and emits the assets of its tables if the run itself has made the checkpoint.

        Raises:
            RejectedError: Losses are not accepted, and ``on_loss`` is "fail".
            AirflowSkipException: Losses are not accepted, and ``on_loss`` is "skip".
        """
        self._current_lease.wait_for_end(self.wait_limits.exit_s)
        assert answer.checkpoint is not None
        files = self.hook.files(self.home)
        manifest = CheckpointStore(files).kept(answer.checkpoint)
        ledger = LossLedger(files)
        lost = ledger.open_of(answer.run, {loss.id for loss in manifest.losses if loss.id} if manifest else ())
        exact = ledger.is_exact(manifest) if manifest else None
        tidied = Rounds(files).tidied(manifest.round) if manifest else {}
        budgets = read_budgets_left(ledger, self.hook.status(self.home))
        facts = run_facts(files.url, answer, manifest, tidied, {entry.recorded.loss.id for entry in lost}, exact, budgets)
        done_by = answer.run if manifest is None else manifest.run
        log_result(self.log, facts, done_by)
        if done_by == answer.run:
            emit_tables(self, context, facts)
            self._results = (HomeResult(facts, manifest),)
        if lost and self.on_loss == OnLoss.FAIL:
            raise not_accepted(files.url, answer, [entry.recorded.loss for entry in lost])
        if lost and self.on_loss == OnLoss.SKIP:
            context["ti"].xcom_push("return_value", facts)
            named = ", ".join(str(entry.recorded.loss.id) for entry in lost)
            raise AirflowSkipException(f"Run {answer.run} has left out rows. These losses are not accepted: {named}.")
        return facts

    def _answer(self, attempt: AttemptNumber, run: RunId) -> StartResponse:
        """Returns the answer of an attempt.

        Raises:
            InterruptedRunError: There is no answer for ``run``.
        """
        request = start_request_id(attempt)
        found = Channel(self.hook.files(self.home)).response(request)
        if found is None or found.run != run:
            raise InterruptedRunError(
                f"{request} in {self.home} has no answer for {run} any more.",
                exists="It was deleted after many later starts, or a new home was made at the same place.",
                safe="Nothing was changed.",
                remedy="A retry looks at the home again.",
                home=self.home,
                request=request,
            )
        return found

    def _left_at_work(self, context: "Context", attempt: AttemptNumber) -> dict[str, Any]:
        """Leaves the driver at work for good, and returns the XCom of a task that does not wait for the answer."""
        self._current_lease.leave_running(attempt, str(context["ti"].id))
        self.log.info("Attempt %s is %s, and is left at work.", attempt, self.wait_for)
        return live_facts(self.hook.files(self.home).url, run_id_of(context["ti"]), attempt, self.hook.status(self.home))

    def _defer(self, attempt: AttemptNumber, token: str) -> NoReturn:
        lease = self._current_lease
        assert lease.held is not None
        lease.release_driver()
        trigger = RunTrigger(
            request=start_request_id(attempt),
            attempt=attempt,
            owner=lease.held[1],
            token=token,
            cancel_on_kill=self.cancel_on_kill,
            start_by=self._start_by(attempt),
            start_timeout_s=self.start_timeout_s,
            wait_for=self.wait_for,
            **self.trigger_arguments(self.hook.files(self.home), self._limits),
        )
        self.defer_to(trigger, began_at=self._limits.began_at, owner=lease.held[1])

    def _start_by(self, attempt: AttemptNumber) -> float | None:
        """Returns the time by which the driver has to begin; None if its lock shows at once that it has started."""
        if not self.hook.submits and is_mounted(self.hook.files(self.home)):
            return None
        request = Channel(self.hook.files(self.home)).request(start_request_id(attempt))
        return request.requested_at.timestamp() + self.start_timeout_s

    @property
    def _until_seen_s(self) -> float | None:
        """The longest wait of this worker for the first sign of a driver; None: until the driver has answered."""
        driver = self._current_lease.driver
        ends_with_it = driver is not None and not driver.submits and container_of_one_task() is not None
        until_seen_s = self.wait_limits.first_sign_s if driver is None else self.start_timeout_s
        return until_seen_s if self.deferrable and not ends_with_it else None

    def _begin(self, order: StartOrder, token: str) -> StartResponse | AttemptNumber:
        """Returns the existing answer, or the attempt that will give it, owned by this task."""
        end_s = time.monotonic() + self.wait_limits.driver_end_s
        start_timeout_s = self.start_timeout_s if self.hook.submits else None
        while True:
            look = self._look(lambda: first_look(self.hook.files(self.home), order.run, start_timeout_s))
            following = first_step(look, order.run)
            if following is Next.RETURN and look.answer is not None:
                return look.answer
            if following is Next.ADOPT and look.live is not None:
                self.log.info("Attempt %s of this task is at work on %s; waiting for it.", look.live.attempt, look.live.host)
                return self._take_lease(look.live.attempt, token)
            if following is Next.AWAIT and look.starting is not None:
                self.log.info("A driver for attempt %s was requested; waiting for it.", look.starting.attempt)
                return self._take_lease(look.starting.attempt, token)
            if following is Next.FAIL:
                raise in_use(self.home, look)
            if following is Next.START:
                break
            if time.monotonic() >= end_s:
                raise not_ending(self.home, look)
            self._pause()
        if self._supervises and (restart := next_start(self.hook.files(self.home), order.run)) is not None:
            if restart.due_at > time.time():
                return self._take_lease(restart.after, token)
            order = order.model_copy(update={"restarts": restart.history})
        if self.hook.driver_is_here(order.conf) and not (self.allow_driver_in_pod and self._supervises):
            check_host_lasts()
        return self._take_lease(self._current_lease.start(order), token)

    def _wait(self, attempt: AttemptNumber, until_seen_s: float | None) -> "StartResponse | Waited":
        """Returns the answer, or the reason why the wait has ended without one.

        Args:
            attempt: The attempt.
            until_seen_s: How long to wait for the first sign of the driver; None: until the driver has answered.
        """
        lease = self._current_lease
        wait = WorkerWait(
            self.hook.files(self.home),
            start_request_id(attempt),
            Goal(WaitFor(self.wait_for)),
            start_limit(self._start_by(attempt), self.start_timeout_s),
            limits=self.wait_limits,
            driver=lease.driver,
            until_seen_s=until_seen_s,
        )
        end_s = None if self._limits.own_at is None else monotonic_at(self._limits.own_at)
        try:
            return wait_here(
                wait,
                end_s=end_s,
                timeout_s=self.timeout_s,
                log=self.log,
                pause=self._pause,
                check=self._check_not_killed,
                limits=self.wait_limits,
            )
        except StreamPipelineError as error:
            lease.release_driver()  # it may be about to end
            if self._kill.was_killed:
                raise  # at once, because the home may not answer
            if lease.was_ended_by_earlier_owner(error):
                return Waited.ENDED_BY_ANOTHER
            lease.log_driver(attempt, self.secrets or {})
            if (restart := self._restart_after(attempt, error)) is not None:
                waited = self._until_due(restart, until_seen_s)
                self._restart_after(attempt, error)  # a cancel may have come since
                return waited
            lease.abandon(attempt, error)
            raise

    def _until_due(self, restart: Restart, until_seen_s: float | None) -> Waited:
        """Waits for a restart. Leaves a long wait to the triggerer, if there is one."""
        while (left_s := restart.due_at - time.time()) > 0:
            if until_seen_s is not None and left_s > SETTLE_S:
                return Waited.SEEN
            if self._limits.own_at is not None and time.time() >= self._limits.own_at:
                raise not_due(restart, self.timeout_s)
            self._pause(left_s)
        return Waited.RESTARTS

    def _look(self, look: Callable[[], T]) -> T:
        """Looks once at the home. A kill ends a look that hangs."""
        return look_or_fail(look, self._check_not_killed, self.wait_limits)

    def _pause(self, at_most_s: float = math.inf) -> None:
        end_s = time.monotonic() + min(self.poll_interval_s, at_most_s)
        while not self._kill.was_killed and (left_s := end_s - time.monotonic()) > 0:
            time.sleep(min(_SLICE_S, left_s))
        self._check_not_killed()

    def _check_not_killed(self) -> None:
        self._kill.check(self.home)


StreamPipelineOperator.__doc__ = documented(StreamPipelineOperator.__doc__ or "", STARTS_WITH)


def order_of(task: StreamPipelineOperator, run: RunId) -> StartOrder:
    """Returns the order of a task, checked as far as the Airflow side can. Reads and writes nothing.

    Raises:
        RejectedError: Or a subclass: an argument is invalid, would show a secret, or names a place outside the roots.
    """
    refuse_hidden_arguments(task)
    written = {name: getattr(task, name) for name in STARTS_WITH} | {"backfill": task.losses}
    if task.restore == LATEST:
        written["restore"] = None
    return StartOrder(
        entry=task.entry,
        run=run,
        parameters=mapping("parameters", task.parameters),
        conf=checked_conf(task, task.written_conf, task.conf),
        secrets=task.secrets or {},
        **read_start_arguments(written, lambda place: task.hook.savepoint_files(place).url),
    )


def not_accepted(home: str, answer: StartResponse, losses: Sequence[Loss]) -> RejectedError:
    """Returns the error for losses that are not accepted."""
    ids = [loss.id for loss in losses if loss.id is not None]
    named = "; ".join(f"loss {loss.id}, stage '{loss.stage}' of '{loss.input}': {said(loss)}" for loss in losses)
    return RejectedError(
        f"Run {answer.run} has left out rows of its inputs, and these losses are not accepted: {named}.",
        exists=f"Checkpoint {answer.checkpoint} is complete, with all other rows.",
        safe="The loss ledger lists everything that was left out.",
        remedy=f"See spark-jobs losses --home {home}. If the rows may stay out: spark-jobs accept {' '.join(ids)} --home {home} "
        "--reason TEXT, or an AcceptLossOperator. Then clear the task: it succeeds at once.",
        home=home,
        losses=ids,
    )
