"""The operator that runs a pipeline."""

import time
from collections.abc import Mapping, Sequence
from enum import Enum, StrEnum
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal, NoReturn, TypeVar

from airflow.sdk import BaseOperator

from airflow_provider.assets import emit_tables
from airflow_provider.driver_log import last_lines
from airflow_provider.exceptions import raising_airflow_errors
from airflow_provider.hooks.stream_pipeline import StartOrder, StreamPipelineHook
from airflow_provider.identity import run_id_of
from airflow_provider.local_driver import LocalDriver
from airflow_provider.triggers.run import RunTrigger
from airflow_provider.waiting import Next, ProgressLog, Wait, checked, first_step
from spark_jobs.protocol.documents import ErrorReport, OnEnd, OnRewind, Publish, StartResponse
from spark_jobs.protocol.errors import (
    ConflictError,
    DeadlineExceededError,
    InterruptedRunError,
    InvalidParameterError,
    RunCancelledError,
    StreamPipelineError,
)
from spark_jobs.protocol.ids import AttemptNumber, OwnerNumber, RunId, start_request_id
from spark_jobs.protocol.reports import reported_error

if TYPE_CHECKING:
    from airflow.sdk import Context

E = TypeVar("E", bound=StrEnum)

_PROGRESS_INTERVAL_S = 10.0
_LET_END_MAX_S = 60.0
"""How long a driver that has answered may take to end before the next one is started beside it."""
_EXIT_WAIT_S = 10.0
"""How long a task that has its answer waits for the driver's end, so that the next task finds the home free."""
_UNTIL_SEEN_S = 10.0
"""How long a worker waits for the first sign of a driver before the triggerer does: one that cannot start at all is told apart by
its exit code, which only the process that has started it can read."""
_SLICE_S = 0.5
"""A signal does not end a sleep; the flag that it sets is looked at this often."""
_LOG_LINES = 50


class Waited(Enum):
    """Why a worker stops waiting for an attempt that has not answered."""

    SEEN = "seen"
    """Its driver is at work, and the triggerer waits for the rest."""
    ENDED_BY_ANOTHER = "ended_by_another"
    """Who had charge of it before has cancelled it: the next one begins."""


class StreamPipelineOperator(BaseOperator):
    """Runs a pipeline to its final checkpoint.

    The home is the only truth. Each try reads it first: a run that was answered is not run again, a driver that is at work for
    this task is waited for, and only else a start is requested and a driver started on this host. The driver outlives the task's
    process. Two DAG runs are two runs of the pipeline; all tries of one task, also after it was cleared, are one.

    Returns as XCom what :func:`airflow_provider.facts.run_facts` says.

    Args:
        entry: ``FILE.py[:NAME]`` or ``package.module[:NAME]``. Not templated: it is code.
        home: The pipeline's home, inside the connection's home roots; a relative one starts at the first root. Templated.
        parameters: The pipeline's parameters, without secrets. Templated.
        secrets: Secret parameters: name to the id of the Airflow connection whose password is the value.
        on_end: ``"drain"`` or ``"suspend"``, instead of the pipeline's own. Templated; empty: the pipeline's.
        publish: ``"final"``, ``"every_checkpoint"`` or ``"external"``, instead of the sinks' own. Templated; empty: the sinks'.
        fresh: Begin a new incarnation.
        on_rewind: What a fresh start does with published rows: ``"refuse"``, ``"keep"`` or ``"replace"``.
        wait_for: What ends the task.
        deferrable: Wait in the triggerer, and hold no worker's slot meanwhile.
        conf: Spark settings, over the connection's. Not templated: some load code.
        poll_interval_s: Between two looks at the home, while something changes there.
        max_poll_interval_s: Between two looks by the triggerer, once nothing has changed for a while.
        timeout_s: How long to wait at most; then the task fails, the driver goes on, and a retry waits for it again. Airflow's own
            ``execution_timeout`` ends the driver, too, deferred or not.
        cancel_on_kill: A task that is killed, cleared or marked ends its driver, unless another try has taken charge of it.
        conn_id: The connection, of type ``stream_pipeline``.
        kwargs: As for every operator.

    Raises:
        PipelineRunRefusedError: A next try would meet the same error; Airflow does not retry.
        PipelineRunError: Anything else; a retry resumes from what is durable.
    """

    template_fields: Sequence[str] = ("home", "parameters", "on_end", "publish")
    template_fields_renderers = {"parameters": "json"}  # noqa: RUF012  # as every operator declares it
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
        on_rewind: str = OnRewind.REFUSE.value,
        wait_for: Literal["final_checkpoint"] = "final_checkpoint",
        deferrable: bool = True,
        conf: Mapping[str, str] | None = None,
        poll_interval_s: float = 2.0,
        max_poll_interval_s: float = 5.0,
        timeout_s: float | None = None,
        cancel_on_kill: bool = True,
        conn_id: str = StreamPipelineHook.default_conn_name,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        if wait_for != "final_checkpoint":
            raise ValueError(f"wait_for={wait_for!r} is not supported in this version; it is 'final_checkpoint'.")
        if poll_interval_s <= 0 or (timeout_s is not None and timeout_s <= 0):
            raise ValueError("poll_interval_s and timeout_s are above 0.")
        self.entry = entry
        self.home = home
        self.parameters = parameters
        self.secrets = secrets
        self.on_end = on_end
        self.publish = publish
        self.fresh = fresh
        self.on_rewind = on_rewind
        self.wait_for = wait_for
        self.deferrable = deferrable
        self.conf = conf
        self.poll_interval_s = poll_interval_s
        self.max_poll_interval_s = max_poll_interval_s
        self.timeout_s = timeout_s
        self.cancel_on_kill = cancel_on_kill
        self.conn_id = conn_id
        self._driver: LocalDriver | None = None
        self._charge: tuple[AttemptNumber, OwnerNumber] | None = None
        self._killed = False

    @cached_property
    def hook(self) -> StreamPipelineHook:
        return StreamPipelineHook(self.conn_id)

    def execute(self, context: "Context") -> dict[str, Any]:
        """Runs the pipeline, or takes up what an earlier try has begun; deferred unless ``deferrable`` is off."""
        self._forget()
        try:
            with raising_airflow_errors():
                order, token = self._order(run_id_of(context["ti"])), str(context["ti"].id)
                while True:
                    begun = self._begin(order, token)
                    if isinstance(begun, StartResponse):
                        self.log.info("This run was answered before: checkpoint %s.", begun.checkpoint)
                        return self._finished(context, checked(begun, self.home))
                    outcome = self._wait(begun, _UNTIL_SEEN_S if self.deferrable else None)
                    if isinstance(outcome, StartResponse):
                        return self._finished(context, outcome)
                    if outcome is Waited.SEEN:
                        self._defer(begun)
        except KeyboardInterrupt:  # Airflow's own test runs send no kill
            self.on_kill()
            raise

    def execute_complete(self, context: "Context", event: dict[str, Any]) -> dict[str, Any]:
        """Ends the task by what its trigger has seen, or begins anew where somebody else has ended the attempt."""
        self._forget()
        number = AttemptNumber(event["attempt"])
        with raising_airflow_errors():
            if "error" in event:
                error = reported_error(ErrorReport.model_validate(event["error"]))
                self._take_charge(number, str(context["ti"].id))
                if self._is_of_another(error):
                    return self.execute(context)
                if isinstance(error, DeadlineExceededError) and self._ends_its_driver_in_time:
                    self._cancel("its task has reached its execution_timeout")
                self._log_driver(number)
                raise error
            answer = self.hook.response(self.home, start_request_id(number))
            return self._finished(context, checked(answer, self.home))

    def on_kill(self) -> None:
        """Ends the driver of this task's attempt; :meth:`execute` then raises. Called from a signal handler."""
        self._killed = True
        if self.cancel_on_kill:
            self._cancel("its task was killed")

    def _cancel(self, reason: str) -> None:
        """Ends the attempt that this task has charge of, at once where its driver is a process of this one."""
        ours = self._charge is None or self.hook.cancel(self.home, *self._charge, reason)
        if ours and self._driver is not None:
            self._driver.stop()

    def _take_charge(self, attempt: AttemptNumber, token: str) -> None:
        self._charge = (attempt, self.hook.take_charge(self.home, attempt, token))
        self._check_not_killed()

    def _is_of_another(self, error: StreamPipelineError) -> bool:
        """Whether an attempt was ended by who had charge of it before: then this task goes on with the next one."""
        if not isinstance(error, RunCancelledError) or self._charge is None or error.evidence.get("owner") == self._charge[1]:
            return False
        self.log.info("Attempt %s was cancelled by who had charge of it before; the next one begins.", self._charge[0])
        return True

    def _forget(self) -> None:
        self._killed = False
        self._driver = self._charge = None

    def _finished(self, context: "Context", answer: StartResponse) -> dict[str, Any]:
        if self._driver is not None and not self._driver.wait(_EXIT_WAIT_S):
            self.log.info("The driver, process %s, has answered and is still on its way to its end.", self._driver.pid)
        facts = self.hook.facts(self.home, answer)
        for name, sink in facts["sinks"].items():
            version = "staged" if sink["version"] is None else f"version {sink['version']}"
            self.log.info("Sink %s: %s of %s, %s rows", name, version, sink["table"], f"{sink['rows']:,}")
        emit_tables(self, context, facts)
        return facts

    def _defer(self, attempt: AttemptNumber) -> NoReturn:
        assert self._charge is not None
        if self._driver is not None:
            self._driver.let_go()
        limits_s = (self.timeout_s, self._execution_timeout_s)
        timeout_s = min((seconds for seconds in limits_s if seconds is not None), default=None)
        self.defer(
            trigger=RunTrigger(
                home=self.hook.files(self.home).url,
                request=start_request_id(attempt),
                attempt=attempt,
                owner=self._charge[1],
                deadline_at=None if timeout_s is None else time.time() + timeout_s,
                timeout_s=timeout_s,
                poll_interval_s=self.poll_interval_s,
                max_poll_interval_s=self.max_poll_interval_s,
                cancel_on_kill=self.cancel_on_kill,
            ),
            method_name="execute_complete",
        )

    @property
    def _execution_timeout_s(self) -> float | None:
        return None if self.execution_timeout is None else self.execution_timeout.total_seconds()

    @property
    def _ends_its_driver_in_time(self) -> bool:
        """Whether it is Airflow's own timeout that ends a deferred wait: Airflow does not enforce it there."""
        limit_s = self._execution_timeout_s
        return limit_s is not None and (self.timeout_s is None or limit_s <= self.timeout_s)

    def _order(self, run: RunId) -> StartOrder:
        """What this task wants, checked as far as the Airflow side can."""
        if not isinstance(self.parameters, Mapping | None):
            raise _invalid("parameters", self.parameters, "a mapping")
        return StartOrder(
            entry=self.entry,
            run=run,
            parameters=self.parameters or {},
            on_end=_choice("on_end", self.on_end, OnEnd),
            publish=_choice("publish", self.publish, Publish),
            fresh=self.fresh,
            on_rewind=_choice("on_rewind", self.on_rewind, OnRewind) or OnRewind.REFUSE,
            conf=self.conf or {},
            secrets=self.secrets or {},
        )

    def _begin(self, order: StartOrder, token: str) -> StartResponse | AttemptNumber:
        """The answer that is there, or the attempt that will give it, with this task in charge."""
        end_s = time.monotonic() + _LET_END_MAX_S
        while True:
            look = self.hook.first_look(self.home, order.run)
            following = first_step(look, order.run)
            if following is Next.RETURN and look.answer is not None:
                return look.answer
            if following is Next.ADOPT and look.live is not None:
                self.log.info("Attempt %s is at work for this task on %s; waiting for it.", look.live.attempt, look.live.host)
                self._take_charge(look.live.attempt, token)
                return look.live.attempt
            if following is Next.GIVE_WAY and look.live is not None:
                raise _conflict(self.home, look.live.attempt, look.live.run)
            if following is Next.START or time.monotonic() >= end_s:
                break
            self._pause()
        request, self._driver = self.hook.submit(self.home, order)
        self.log.info("Requested attempt %s; its driver is process %s.", request.attempt, self._driver.pid)
        self.log.info("The driver's output: %s", self._driver.output)
        self._take_charge(request.attempt, token)
        return request.attempt

    def _wait(self, attempt: AttemptNumber, until_seen_s: float | None) -> "StartResponse | Waited":
        """The answer, or why there is none yet.

        Args:
            attempt: Whose answer it is.
            until_seen_s: How long to wait for the first sign of the driver; None: until it has answered.
        """
        request, began_s = start_request_id(attempt), time.monotonic()
        deadline_s = None if self.timeout_s is None else began_s + self.timeout_s
        wait = Wait(self.home, request, began_s=began_s, deadline_s=deadline_s, timeout_s=self.timeout_s)
        progress = ProgressLog(_PROGRESS_INTERVAL_S)
        try:
            while True:
                look = self.hook.look(self.home, request, self._driver)
                self._check_not_killed()
                now_s = time.monotonic()
                for line in progress.lines(look.status, now_s):
                    self.log.info(line)
                answer = wait.see(look, now_s)
                if answer is not None:
                    return answer
                if until_seen_s is not None and (look.at_work or now_s - began_s >= until_seen_s):
                    return Waited.SEEN
                self._pause()
        except StreamPipelineError as error:
            if self._is_of_another(error):
                return Waited.ENDED_BY_ANOTHER
            self._log_driver(attempt)
            raise

    def _pause(self) -> None:
        end_s = time.monotonic() + self.poll_interval_s
        while not self._killed and (left_s := end_s - time.monotonic()) > 0:
            time.sleep(min(_SLICE_S, left_s))
        self._check_not_killed()

    def _check_not_killed(self) -> None:
        """A task that was killed must not return: Airflow would call it a success.

        Raises:
            InterruptedRunError: It was killed.
        """
        if not self._killed:
            return
        self.on_kill()  # once more: the signal may have come before the driver was known
        raise InterruptedRunError(
            "The task was killed.",
            exists="Its driver was stopped." if self.cancel_on_kill else "A driver at work for it was left running.",
            safe="Completed checkpoints, and what was published, stay.",
            remedy="A next try resumes." if self.cancel_on_kill else "A next try waits for that driver.",
            home=self.home,
        )

    def _log_driver(self, attempt: AttemptNumber) -> None:
        for path in (self.hook.driver_log(self.home, attempt), self.hook.driver_output(self.home, attempt)):
            lines = last_lines(path, _LOG_LINES)
            if lines:
                self.log.error("The last %d lines of %s:\n%s", len(lines), path, "\n".join(lines))


def _choice(name: str, value: str | None, kind: type[E]) -> E | None:
    if not value:
        return None
    try:
        return kind(value)
    except ValueError:
        raise _invalid(name, value, f"one of {', '.join(kind)}") from None


def _invalid(name: str, found: object, wanted: str) -> InvalidParameterError:
    return InvalidParameterError(
        f"{name}={found!r} is not {wanted}.", safe="Nothing was started.", remedy=f"Correct {name}= of the task.", argument=name
    )


def _conflict(home: str, attempt: AttemptNumber, run: RunId) -> ConflictError:
    return ConflictError(
        f"{home} is in use: attempt {attempt} is at work for the run {run}.",
        safe="Nothing was started.",
        remedy="Let one DAG run at a time use a home (max_active_runs=1), or give each a home of its own.",
        home=home,
        attempt=attempt,
        run=run,
    )
