"""The operator that runs a pipeline."""

import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any, Literal, NoReturn

from airflow.sdk import BaseOperator

from airflow_provider.assets import emit_tables
from airflow_provider.drivers.local_driver import check_host_lasts
from airflow_provider.exceptions import PipelineRunRefusedError, raising_airflow_errors
from airflow_provider.facts import live_facts, log_result, run_facts
from airflow_provider.hooks.stream_pipeline import StreamPipelineHook
from airflow_provider.links import LINKS, record_homes
from airflow_provider.losses import OnLoss, not_accepted
from airflow_provider.orders import StartOrder, check_waits
from airflow_provider.params import refuse_links_out, warn_of_unknown
from airflow_provider.retry import RETRIES, is_automatic_retry
from airflow_provider.tasks.charge import Charge
from airflow_provider.tasks.identity import run_id_of
from airflow_provider.tasks.kill import Kill
from airflow_provider.tasks.task_orders import RESTORE_FIELDS, order_of
from airflow_provider.tasks.time_limits import not_due, time_limits
from airflow_provider.tasks.worker_wait import WorkerWait
from airflow_provider.triggers.patience import SETTLE_S
from airflow_provider.triggers.run import RunTrigger
from airflow_provider.version_compat import container_of_one_task
from airflow_provider.waits.clocks import monotonic_at
from airflow_provider.waits.goals import Goal, WaitFor
from airflow_provider.waits.looking import start_limit
from airflow_provider.waits.patient_look import answered
from airflow_provider.waits.waiting import Next, Patience, Wait, Waited, checked, first_step, in_use, not_ending
from spark_jobs.control.losses import LossLedger
from spark_jobs.control.rounds import Rounds
from spark_jobs.control.supervision import End, Restart, next_start
from spark_jobs.protocol.documents import ErrorReport, OnRewind, StartResponse
from spark_jobs.protocol.errors import DeadlineExceededError, StorageError, StreamPipelineError
from spark_jobs.protocol.ids import AttemptNumber, OwnerNumber, start_request_id
from spark_jobs.protocol.reports import reported_error
from spark_jobs.storage.files import is_here

if TYPE_CHECKING:
    from airflow.sdk import Context

_LET_END_MAX_S = 60.0
"""How long a driver that has answered may take to end: it holds the home until then."""
_EXIT_WAIT_S = 10.0
"""How long a task that has its answer waits for the driver's end, so that the next task finds the home free."""
_UNTIL_SEEN_S = 10.0
"""How long a worker waits for a sign of a driver that another process has started before the triggerer does."""
_SLICE_S = 0.5
"""A signal does not end a sleep; the flag that it sets is looked at this often."""


class StreamPipelineOperator(BaseOperator):
    """Runs a pipeline to its final checkpoint, or supervises one without an end for as long as it lives.

    The home is the only truth. Each try reads it first: a run that was answered is not run again, a driver that is at work for
    this task is waited for, and only else a start is requested and a driver started: on this host, or by ``spark-submit`` where
    the connection names a Spark connection. The driver outlives the task's process. Two DAG runs are two runs of the pipeline; all
    tries of one task, also after it was cleared, are one.

    A pipeline with a restart strategy is started again by it, at the cost of no retry. Returns as XCom what
    :func:`airflow_provider.facts.run_facts` says.

    Args:
        entry: ``FILE.py[:NAME]``, ``package.module[:NAME]`` or a project's ``spark-pipeline.yml``. Not templated: it is code.
        home: The pipeline's home, inside the connection's home roots; a relative one starts at the first root. Templated.
        parameters: The pipeline's parameters, without secrets. Templated.
        secrets: Secret parameters: name to the id of the Airflow connection whose password is the value.
        on_end: ``"drain"`` or ``"suspend"``, instead of the pipeline's own. Templated; empty: the pipeline's.
        publish: ``"final"``, ``"every_checkpoint"`` or ``"external"``, instead of the sinks' own. Templated; empty: the sinks'.
        fresh: Begin a new incarnation.
        restore: Directory of the savepoint to begin with, inside a savepoint root. Every DAG run begins with it anew; all tries of one
            go on with what they have begun. Templated; empty or ``"latest"``: the home goes on from its newest checkpoint.
        allow_drained: The savepoint may be one that was taken after a drain. Templated.
        allow_dropped: The state of stages that the pipeline no longer has may be left behind; their tables stay. Templated.
        take_pending: The rows that it holds staged, for sinks that keep their table, are published first. Templated.
        state_partitions: In how many partitions the state is kept from this start on. Templated; empty: in as many as it is.
        new_sources: Sources that are read from their beginning, once in the run, while the state of the stages stays. They may be
            other ones than before, such as a table that was made anew. Templated.
        accept_data_loss: Sources of which something may be gone for good, such as expired records or deleted files. The run leaves out
            what is gone, and records it; what is there is read. Templated.
        on_loss: What a run comes to that has left out rows of its inputs which nobody has accepted as lost: ``"succeed"``, or
            ``"fail"``. What it has published stays. Once the losses are accepted the task can be cleared, and succeeds at once.
        on_rewind: What such a start, or a fresh one, does with published rows: ``"refuse"``, ``"keep"`` or ``"replace"``. Templated.
        checkpoint: Some of the fields of ``CheckpointSettings``, over the connection's and the pipeline's:
            ``{"interval": "30 seconds"}``. Templated; empty fields are not given.
        wait_for: What ends the task: ``"final_checkpoint"``; ``"running"``, once the pipeline is at work, or ``"submitted"``, once its
            driver was started: these leave it at work, and nobody starts it again when it fails.
        deferrable: Wait in the triggerer, and hold no worker's slot meanwhile.
        conf: Spark settings, over the connection's. Templated; what the DAG file does not have as it is may be of ``RUN_MAY_SET`` only.
        poll_interval_s: Between two looks at the home, while something changes there.
        max_poll_interval_s: The same for the triggerer, once nothing has changed for a while; None: 3 s, and 30 s in an object store.
        timeout_s: How long to wait at most, from the try's start; then the task fails, the driver goes on, and a retry waits for it
            again. Airflow's own ``execution_timeout`` ends the driver, too, deferred or not, unless ``cancel_on_kill`` is off.
        cancel_on_kill: A task that is killed, cleared or marked ends its driver, unless another try has taken charge of it.
        start_timeout_s: How long a driver that ``spark-submit`` starts may take until it is seen in the home, from when it was asked
            for; then it is given up. A worker waits as long for the first sign of a driver that it has started itself.
        allow_driver_in_pod: Start a driver also where its host ends with the task; the task then waits in its worker.
        conn_id: The connection, of type ``stream_pipeline``.
        retries: As for every operator, but for the default: a next try is what finds the work of one that was lost.
        kwargs: As for every operator.

    Raises:
        PipelineRunRefusedError: A next try would meet the same error; Airflow does not retry.
        PipelineRunError: Anything else; a retry resumes from what is durable.
    """

    template_fields: Sequence[str] = (
        *("home", "parameters", "on_end", "publish"),
        *RESTORE_FIELDS,
        *("on_rewind", "checkpoint", "conf"),
    )
    template_fields_renderers = {"parameters": "json", "checkpoint": "json", "conf": "json"}  # noqa: RUF012  # as every operator declares it
    operator_extra_links = LINKS
    ui_color = "#e8f0e4"

    def __init__(
        self,
        *,
        entry: str,
        home: str,
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
        on_loss: OnLoss | Literal["succeed", "fail"] = "succeed",
        on_rewind: str = OnRewind.REFUSE.value,
        checkpoint: Mapping[str, Any] | str | None = None,
        wait_for: Literal["final_checkpoint", "running", "submitted"] = "final_checkpoint",
        deferrable: bool = True,
        conf: Mapping[str, str] | str | None = None,
        poll_interval_s: float = 2.0,
        max_poll_interval_s: float | None = None,
        timeout_s: float | None = None,
        cancel_on_kill: bool = True,
        start_timeout_s: float = 600.0,
        allow_driver_in_pod: bool = False,
        conn_id: str = StreamPipelineHook.default_conn_name,
        retries: int | None = RETRIES,
        **kwargs: Any,
    ) -> None:
        super().__init__(retries=retries, **kwargs)
        check_waits(wait_for, poll_interval_s, timeout_s, start_timeout_s)
        self.entry, self.home = entry, home
        self.parameters, self.secrets = parameters, secrets
        self.on_end = on_end
        self.publish = publish
        self.fresh, self.on_rewind = fresh, on_rewind
        self.restore, self.state_partitions = restore, state_partitions
        self.new_sources, self.accept_data_loss = new_sources, accept_data_loss
        self.on_loss = OnLoss(on_loss).value
        self.allow_drained, self.allow_dropped, self.take_pending = allow_drained, allow_dropped, take_pending
        self.checkpoint = checkpoint
        self.wait_for = wait_for
        self.deferrable = deferrable
        self.conf = self.written_conf = conf
        self.poll_interval_s, self.max_poll_interval_s = poll_interval_s, max_poll_interval_s
        self.timeout_s, self.start_timeout_s = timeout_s, start_timeout_s
        self.cancel_on_kill = cancel_on_kill
        self.allow_driver_in_pod = allow_driver_in_pod
        self.conn_id = conn_id
        self._charge: Charge | None = None
        self._kill = Kill()

    @cached_property
    def hook(self) -> StreamPipelineHook:
        return StreamPipelineHook(self.conn_id)

    def execute(self, context: "Context") -> dict[str, Any]:
        """Runs the pipeline, or takes up what an earlier try has begun; deferred unless ``deferrable`` is off."""
        self._forget()
        warn_of_unknown(self, context)
        with raising_airflow_errors(), self._kill.until_the_end_of(self.home):
            refuse_links_out(context)
            return self._carry_on(context, goes_on=is_automatic_retry(context["ti"], self.retries))

    def execute_complete(
        self, context: "Context", event: dict[str, Any], began_at: float | None = None, owner: int | None = None
    ) -> dict[str, Any]:
        """Ends the task by what its trigger has seen, or begins the next attempt where the one that it has waited for is over.

        Args:
            context: The task's.
            event: What the trigger has sent.
            began_at: When the try began, in seconds since 1970; None: `airflow dags test` resumes the task, and keeps the event alone.
            owner: As whom it took charge of the attempt before it was deferred.
        """
        self.home, number = event["home"], AttemptNumber(event["attempt"])  # the DAG file may say another one by now
        charge = self._forget(began_at)
        with raising_airflow_errors(), self._kill.until_the_end_of(self.home):
            if "error" in event:
                error = reported_error(ErrorReport.model_validate(event["error"]))
                if owner is not None:
                    charge.held = (number, OwnerNumber(owner))
                elif not isinstance(error, StorageError):  # nothing is written where a home may be away
                    self._take_charge(number, str(context["ti"].id))
                if charge.was_ended_before(error):
                    return self._carry_on(context, goes_on=True)
                charge.log_driver(number, self.secrets or {})
                if self._restart_after(number, error) is not None:
                    return self._carry_on(context, goes_on=True)
                if isinstance(error, DeadlineExceededError) and self._limits.airflows_is_first and self.cancel_on_kill:
                    charge.cancel("its task has reached its execution_timeout")
                charge.give_up(number, error)
                raise error
            if "reached" in event:
                return self._left_at_work(context, number)
            answer = self.hook.response(self.home, start_request_id(number), run_id_of(context["ti"]))
            return self._finished(context, checked(answer, self.home))

    def on_kill(self) -> None:
        """Ends the driver of this task's attempt; :meth:`execute` then raises. Called from a signal handler."""
        self._kill.hear()

    def _carry_on(self, context: "Context", *, goes_on: bool) -> dict[str, Any]:
        """Until there is an answer, or the task is deferred; what somebody has cancelled ends one that only ``goes_on``."""
        try:
            order, token = order_of(self, run_id_of(context["ti"])), str(context["ti"].id)
            url = answered(lambda: self.hook.files(self.home).url, self._check_not_killed)
            record_homes(context, self.conn_id, {url: None})
            while True:
                self._check_not_killed()
                if goes_on:
                    answered(lambda: self._in_charge.check_not_called_off(order.run), self._check_not_killed)
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
        except KeyboardInterrupt:  # Airflow's own test runs send no kill
            self.on_kill()
            raise

    def _take_charge(self, attempt: AttemptNumber, token: str) -> AttemptNumber:
        self._in_charge.take(attempt, token)
        self._check_not_killed()
        return attempt

    @property
    def _supervises(self) -> bool:
        """Whether a driver that fails is this task's business for as long as the pipeline lives."""
        return WaitFor(self.wait_for) is WaitFor.FINAL_CHECKPOINT

    @property
    def _in_charge(self) -> Charge:
        return self._charge if self._charge is not None else self._forget()

    def _forget(self, began_at: float | None = None) -> Charge:
        self._limits = time_limits(self, self.timeout_s, began_at)
        self._charge = Charge(self.hook, self.home, self.log)
        self._kill.ends(self._charge if self.cancel_on_kill else None)
        return self._charge

    def _restart_after(self, attempt: AttemptNumber, error: StreamPipelineError) -> Restart | None:
        """The start that follows from the end of the attempt by the pipeline's restart strategy; None: nobody but Airflow may retry.

        Raises:
            PipelineRunRefusedError: The strategy, or somebody, has ended the pipeline: Airflow's retries are not to begin it again.
        """
        if not self._kill.came and (cancelled := self._in_charge.cancelled_since(error)) is not None:
            raise PipelineRunRefusedError(cancelled) from error
        if not self._supervises or self._kill.came:
            return None
        following = self._in_charge.after_end(error)
        if isinstance(following, End):
            self._in_charge.give_up(attempt, error)
            raise PipelineRunRefusedError(following.error) from error
        return following

    def _finished(self, context: "Context", answer: StartResponse) -> dict[str, Any]:
        self._in_charge.let_end(_EXIT_WAIT_S)
        manifest = self.hook.kept(self.home, answer)
        files = self.hook.files(self.home)
        lost = LossLedger(files).open_of(answer.run, {loss.id for loss in manifest.losses if loss.id} if manifest else ())
        tidied = Rounds(files).tidied(manifest.round) if manifest else {}
        facts = run_facts(files.url, answer, manifest, tidied, {entry.recorded.loss.id for entry in lost})
        done_by = answer.run if manifest is None else manifest.run
        log_result(self.log, facts, done_by)
        if done_by == answer.run:
            emit_tables(self, context, facts)
        if lost and self.on_loss == OnLoss.FAIL:
            raise not_accepted(files.url, answer, [entry.recorded.loss for entry in lost])
        return facts

    def _left_at_work(self, context: "Context", attempt: AttemptNumber) -> dict[str, Any]:
        self._in_charge.leave(attempt, str(context["ti"].id))
        self.log.info("Attempt %s is %s, and is left at work.", attempt, self.wait_for)
        return live_facts(self.hook.files(self.home).url, run_id_of(context["ti"]), attempt, self.hook.status(self.home))

    def _defer(self, attempt: AttemptNumber, token: str) -> NoReturn:
        charge = self._in_charge
        assert charge.held is not None
        charge.let_go()
        self.defer(
            trigger=RunTrigger(
                home=self.hook.files(self.home).url,
                conn_id=self.conn_id,
                request=start_request_id(attempt),
                attempt=attempt,
                owner=charge.held[1],
                token=token,
                deadline_at=self._limits.first_at,
                timeout_s=self._limits.first_s,
                poll_interval_s=self.poll_interval_s,
                max_poll_interval_s=self.max_poll_interval_s,
                cancel_on_kill=self.cancel_on_kill,
                start_by=self._start_by(attempt),
                start_timeout_s=self.start_timeout_s,
                wait_for=self.wait_for,
            ),
            method_name="execute_complete",
            kwargs={"began_at": self._limits.began_at, "owner": charge.held[1]},
        )

    def _start_by(self, attempt: AttemptNumber) -> float | None:
        """Until when the driver may be on its way; None where its lock is seen as soon as it starts."""
        if not self.hook.submits and is_here(self.hook.files(self.home)):
            return None
        return self.hook.asked_at(self.home, start_request_id(attempt)) + self.start_timeout_s

    @property
    def _until_seen_s(self) -> float | None:
        """How long this worker waits for the first sign of a driver; None: until it has answered."""
        driver = self._in_charge.driver
        ends_with_it = driver is not None and not driver.submits and container_of_one_task() is not None
        until_seen_s = _UNTIL_SEEN_S if driver is None else self.start_timeout_s
        return until_seen_s if self.deferrable and not ends_with_it else None

    def _begin(self, order: StartOrder, token: str) -> StartResponse | AttemptNumber:
        """The answer that is there, or the attempt that will give it, with this task in charge."""
        end_s = time.monotonic() + _LET_END_MAX_S
        look_first = partial(self.hook.first_look, self.home, order.run, self.start_timeout_s if self.hook.submits else None)
        while True:
            look = answered(look_first, self._check_not_killed)
            following = first_step(look, order.run)
            if following is Next.RETURN and look.answer is not None:
                return look.answer
            if following is Next.ADOPT and look.live is not None:
                self.log.info("Attempt %s is at work for this task on %s; waiting for it.", look.live.attempt, look.live.host)
                return self._take_charge(look.live.attempt, token)
            if following is Next.AWAIT and look.starting is not None:
                self.log.info("A driver for attempt %s was asked for; waiting for it.", look.starting.attempt)
                return self._take_charge(look.starting.attempt, token)
            if following is Next.GIVE_WAY:
                raise in_use(self.home, look)
            if following is Next.START:
                break
            if time.monotonic() >= end_s:
                raise not_ending(self.home, look)
            self._pause()
        if self._supervises and (restart := next_start(self.hook.files(self.home), order.run)) is not None:
            if restart.due_at > time.time():
                return self._take_charge(restart.after, token)
            order = replace(order, restarts=restart.history)
        if self.hook.driver_is_here(order.conf) and not (self.allow_driver_in_pod and self._supervises):
            check_host_lasts()
        return self._take_charge(self._in_charge.start(order), token)

    def _wait(self, attempt: AttemptNumber, until_seen_s: float | None) -> "StartResponse | Waited":
        """The answer, or why there is none yet.

        Args:
            attempt: Whose answer it is.
            until_seen_s: How long to wait for the first sign of the driver; None: until it has answered.
        """
        charge, request, began_s = self._in_charge, start_request_id(attempt), time.monotonic()
        deadline_s = None if self._limits.own_at is None else monotonic_at(self._limits.own_at)
        start = start_limit(self._start_by(attempt), self.start_timeout_s)
        wait = Wait(self.home, request, began_s=began_s, deadline_s=deadline_s, timeout_s=self.timeout_s, start=start)
        here = WorkerWait(self.hook, self.home, request, charge.driver, self.log, self._pause, self._check_not_killed)
        try:
            return here.answer(wait, Patience(deadline_s), Goal(WaitFor(self.wait_for)), until_seen_s)
        except StreamPipelineError as error:
            charge.let_go()  # it may be on its way to its end
            if self._kill.came:
                raise  # at once: the home may not answer
            if charge.was_ended_before(error):
                return Waited.ENDED_BY_ANOTHER
            charge.log_driver(attempt, self.secrets or {})
            if (restart := self._restart_after(attempt, error)) is not None:
                waited = self._until_due(restart, until_seen_s)
                self._restart_after(attempt, error)  # somebody may have cancelled it meanwhile
                return waited
            charge.give_up(attempt, error)
            raise

    def _until_due(self, restart: Restart, until_seen_s: float | None) -> Waited:
        """Waits for a restart, here only if there is no triggerer to wait or it is not worth a deferral."""
        while (left_s := restart.due_at - time.time()) > 0:
            if until_seen_s is not None and left_s > SETTLE_S:
                return Waited.SEEN
            if self._limits.own_at is not None and time.time() >= self._limits.own_at:
                raise not_due(restart, self.timeout_s)
            self._pause(left_s)
        return Waited.RESTARTS

    def _pause(self, at_most_s: float = math.inf) -> None:
        end_s = time.monotonic() + min(self.poll_interval_s, at_most_s)
        while not self._kill.came and (left_s := end_s - time.monotonic()) > 0:
            time.sleep(min(_SLICE_S, left_s))
        self._check_not_killed()

    def _check_not_killed(self) -> None:
        self._kill.check(self.home)
