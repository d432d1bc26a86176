"""The hook: a pipeline's home, and drivers for it on this host."""

import re
import socket
import time
from collections.abc import Mapping
from contextlib import suppress
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from airflow.sdk import BaseHook
from airflow.sdk.exceptions import AirflowRuntimeError

from airflow_provider.drivers.driver_log import LogFile, answered_error, driver_log, driver_output, last_lines, made_output_place
from airflow_provider.drivers.driver_probe import probe_driver
from airflow_provider.drivers.local_driver import LocalDriver, start_local_driver
from airflow_provider.hidden_values import hide
from airflow_provider.homes import check_place, check_roots, home_options, open_home, open_savepoint
from airflow_provider.orders import StartOrder, json_values
from airflow_provider.settings import CONN_TYPE, Settings, read_settings
from airflow_provider.stores import read_store, use_store_of
from airflow_provider.version_compat import AirflowException, AirflowNotFoundException
from airflow_provider.waits.looking import first_look, look_for_answer
from airflow_provider.waits.waiting import FirstLook, Look
from spark_jobs.checkpoint.store import CheckpointStore
from spark_jobs.control.channel import Channel
from spark_jobs.control.home import workspace_of
from spark_jobs.control.liveness import driver_at_work
from spark_jobs.control.owners import Owners
from spark_jobs.control.refused_starts import forget_refused_start
from spark_jobs.control.status import read_status
from spark_jobs.control.supervision import goes_on
from spark_jobs.home.layout import publication_output_path
from spark_jobs.protocol.checkpointing import over
from spark_jobs.protocol.documents import Manifest, StartRequest, StartResponse, Status
from spark_jobs.protocol.errors import (
    InterruptedRunError,
    InvalidParameterError,
    MissingRequirementError,
    RejectedError,
    StorageError,
    StreamPipelineError,
)
from spark_jobs.protocol.ids import AttemptNumber, CheckpointId, OwnerNumber, RequestId, RunId, start_request_id
from spark_jobs.protocol.spark_settings import conf_environment, shown_settings
from spark_jobs.publication.publisher import Publication, plan_publication
from spark_jobs.storage.beside import in_time
from spark_jobs.storage.files import Files, local_path
from spark_jobs.storage.object_store_settings import ObjectStoreSettings

if TYPE_CHECKING:
    from airflow_provider.drivers.spark_submit import Submission

_SECRET_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_]*")
_LAST_LINES = 500
"""Of an output, where the answer of a command is looked for."""
_TEST_MAX_S = 20.0
"""For the roots to answer who tests a connection: Airflow's API server has one thread less meanwhile."""


class StreamPipelineHook(BaseHook):
    """Asks for runs of a pipeline, starts drivers on this host, and reads what a home says.

    Every method that takes a ``home`` refuses one outside the connection's home roots, and raises errors of
    :mod:`spark_jobs.protocol.errors`.

    Args:
        conn_id: A connection of type ``stream_pipeline``; for its extras see :class:`~airflow_provider.settings.Settings`.
    """

    conn_name_attr = "conn_id"
    default_conn_name = "stream_pipeline_default"
    conn_type = CONN_TYPE
    hook_name = "Stream pipeline"

    def __init__(self, conn_id: str = default_conn_name) -> None:
        super().__init__()
        self.conn_id = conn_id

    @cached_property
    def settings(self) -> Settings:
        """What the connection says. This process has the store that it names from then on.

        Raises:
            MissingRequirementError: There is no such connection, or none that it names.
            InvalidParameterError: It is of another type, or says something that is not allowed.
        """
        try:
            connection = self.get_connection(self.conn_id)
        except AirflowNotFoundException as error:
            raise MissingRequirementError(
                f"There is no Airflow connection '{self.conn_id}'.",
                safe="Nothing was read or written.",
                remedy=f"Create it: airflow connections add {self.conn_id} --conn-type {self.conn_type}"
                """ --conn-extra '{"home_root": "/the/directory/of/your/homes"}'""",
                connection=self.conn_id,
            ) from error
        found = read_settings(connection.extra_dejson, self.conn_id, connection.conn_type)
        use_store_of(found, self.get_connection)
        return found

    def files(self, home: str) -> Files:
        """The home's files, at their resolved place."""
        return open_home(home, self.settings.roots, self.settings.workspace_root)

    def savepoint_files(self, savepoint: str) -> Files:
        """The files of a savepoint, at their resolved place: inside a savepoint root or a home root."""
        return open_savepoint(savepoint, self.settings.savepoint_roots + self.settings.roots)

    @property
    def submits(self) -> bool:
        """Whether ``spark-submit`` starts the drivers of this connection, and a cluster may let them wait."""
        return self.settings.spark_conn_id is not None

    def driver_is_here(self, conf: Mapping[str, str]) -> bool:
        """Whether a driver with these settings, over the connection's, is a process on this host."""
        return not self.submits or self._submission(conf).driver_is_here

    def first_look(self, home: str, run: RunId, start_timeout_s: float | None = None) -> FirstLook:
        """What the home shows before anything is asked; see :func:`airflow_provider.waits.looking.first_look`."""
        return first_look(self.files(home), run, start_timeout_s)

    def asked_at(self, home: str, request: RequestId) -> float:
        """When a request was made, in seconds since 1970."""
        return Channel(self.files(home)).request(request).requested_at.timestamp()

    def give_up(self, home: str, attempt: AttemptNumber, error: StreamPipelineError, owner: OwnerNumber | None = None) -> None:
        """Answers the request of an attempt with ``error``, unless its driver has begun, or another than ``owner`` has charge of it.

        A driver that begins later ends by itself, and a next try asks anew.
        """
        channel, owners = Channel(self.files(home)), Owners(self.files(home), attempt)
        newest = owners.newest()
        if attempt in channel.attempts.numbers() or (owner and newest and newest.owner != owner):
            return
        if newest is not None:  # for a driver that begins right now: it has seen no answer
            owners.cancel(newest.owner, "its driver had not begun in time")
        channel.respond_failure(channel.request(start_request_id(attempt)), error)

    def forget_refused(self, home: str, attempt: AttemptNumber) -> None:
        """Deletes what a start that was refused has left; see :func:`spark_jobs.control.refused_starts.forget_refused_start`."""
        forget_refused_start(self.files(home), attempt)

    def look(self, home: str, request: RequestId, driver: LocalDriver | None = None) -> Look:
        """What the home shows of an open request."""
        return look_for_answer(self.files(home), request, driver)

    def take_charge(self, home: str, attempt: AttemptNumber, token: str) -> OwnerNumber:
        """Makes ``token`` the one who may cancel an attempt; idempotent, durable on return."""
        return Owners(self.files(home), attempt).take_charge(token).owner

    def has_charge(self, home: str, attempt: AttemptNumber, owner: OwnerNumber) -> bool:
        """Whether nobody else has taken charge of an attempt since."""
        newest = Owners(self.files(home), attempt).newest()
        return newest is not None and newest.owner == owner

    def cancel(self, home: str, attempt: AttemptNumber, owner: OwnerNumber, reason: str) -> None:
        """Asks the driver of an attempt to end; it does unless somebody else has taken charge since."""
        Owners(self.files(home), attempt).cancel(owner, reason)

    def ended_by_another(self, home: str, attempt: AttemptNumber, owner: OwnerNumber) -> bool:
        """Whether an attempt has ended without an answer, and who had charge of it before ``owner`` has asked for that."""
        files = self.files(home)
        return Channel(files).response(start_request_id(attempt)) is None and Owners(files, attempt).was_cancelled_before(owner)

    def submit(self, home: str, order: StartOrder) -> tuple[StartRequest, LocalDriver]:
        """Asks for a run, durably, and starts a driver for it on this host, or ``spark-submit``.

        Safe to repeat: a run that has an open request is given that one, and of several drivers for one request all but one end
        by themselves. With ``spark-submit`` each request has one driver: an open one of this run is given up, and
        one that nothing could be submitted for.

        Raises:
            RejectedError: The order or the connection is not allowed. Nothing was written.
            StorageError: This host does not have the home's root. Nothing was written.
            ConflictError: Others asked at the same time, every time.
        """
        files = self.files(home)
        here = self.driver_is_here(order.conf)
        check_place(files, self.settings.roots, self.settings.workspace_root if here else None)
        workspace = workspace_of(files)
        conf = self.settings.driver_conf(order.conf)
        submission = self._submission(order.conf) if self.submits else None
        if submission is None:
            self.settings.check_python()
        else:
            submission.check_secrets(list(order.secrets))
        environment, parameters = self._secrets(order.secrets), json_values(order.parameters)
        if submission is not None and (stale := Channel(files).unclaimed()) is not None and stale.run == order.run:
            self.give_up(
                home, stale.attempt, _given_up(stale, f"No driver had begun {stale.request} when the next one was asked for.")
            )
        request = Channel(files).request_start(
            order.run,
            parameters=parameters,
            on_end=order.on_end,
            publish=order.publish,
            fresh=order.fresh,
            on_rewind=order.on_rewind,
            restore=order.restore,
            state_partitions=order.state_partitions,
            allow_dropped=order.allow_dropped,
            new_sources=order.new_sources,
            accept_data_loss=order.accept_data_loss,
            checkpoint=over(self.settings.checkpoint, order.checkpoint),
            restarts=order.restarts,
        )
        try:
            if submission is None:
                words = (*home_options(files.url, workspace), "--request", request.request)
                command = self._command("run", order.entry, *words, conf=conf)
                environment |= conf_environment(conf)
            else:
                command = submission.command(entry=order.entry, home=files.url, request=request.request, workspace=workspace)
                environment |= submission.environment()
            output = made_output_place(files, request.attempt, driver_is_here=here)
            driver = start_local_driver(
                command,
                output=output,
                directory=output.parent if submission is None else None,
                environment=environment,
                store=self._store,
                submits=submission is not None and not submission.driver_is_here,
            )
        except Exception as error:
            with suppress(StreamPipelineError):  # what has failed first says more
                if submission is not None:  # a next try would wait for a driver that may be in a cluster's queue
                    self.give_up(
                        home, request.attempt, _given_up(request, f"Nothing was submitted for {request.request}: {error}")
                    )
                elif isinstance(error, RejectedError):
                    self.give_up(home, request.attempt, error)
                    self.forget_refused(home, request.attempt)
            raise
        return request, driver

    def newest_checkpoint(self, home: str) -> CheckpointId | None:
        """The number of the newest checkpoint there is, fit for something or not; None: there is none."""
        return max(CheckpointStore(self.files(home)).taken(), default=None)

    def plan_publication(self, home: str, checkpoint: CheckpointId | None) -> Publication:
        """A publication of a checkpoint, by default of the newest one, checked; writes nothing."""
        return plan_publication(self.files(home), checkpoint)

    def check_publishes(self, conf: Mapping[str, str]) -> dict[str, str]:
        """Refuses what :meth:`start_publication` would refuse, for every home; the settings of its Spark."""
        settings = self.settings.local_conf(conf)
        self.settings.check_python()
        return settings

    def start_publication(self, home: str, checkpoint: CheckpointId, conf: Mapping[str, str]) -> LocalDriver | None:
        """Starts a process on this host that publishes with Spark; None where one is at work already. Safe to repeat, also at once."""
        files, settings = self.files(home), self.check_publishes(conf)
        words = ("publish", "--home", files.url, "--checkpoint", str(checkpoint), "--output", "json")
        command = self._command(*words, conf=settings)
        output = self.publication_output(home, checkpoint)
        try:
            environment = conf_environment(settings)
            return start_local_driver(
                command, output=output, directory=output.parent, environment=environment, store=self._store, alone=True
            )
        except BlockingIOError:
            return None

    def publication_output(self, home: str, checkpoint: CheckpointId) -> Path:
        """Where a process of :meth:`start_publication` says what it does, on this host."""
        return local_path(self.files(home), publication_output_path(checkpoint))

    def publication_log(self, home: str, checkpoint: CheckpointId) -> LogFile:
        """:meth:`publication_output`, where this host has it."""
        return LogFile(name := publication_output_path(checkpoint), self.files(home).local(name))

    def publication_error(self, home: str, checkpoint: CheckpointId) -> StreamPipelineError:
        """Why the last process of :meth:`start_publication` has not done it."""
        output = self.publication_output(home, checkpoint)
        return answered_error("\n".join(last_lines(output, _LAST_LINES))) or InterruptedRunError(
            f"The process that published checkpoint {checkpoint} of {home} has ended, and said nothing.",
            safe="Each row is public once, or not yet.",
            remedy=f"See {output}; a retry does the rest.",
            home=home,
            checkpoint=checkpoint,
        )

    def response(self, home: str, request: RequestId, run: RunId) -> StartResponse:
        """The answer to a start request of ``run``.

        Raises:
            InterruptedRunError: There is none.
        """
        found = Channel(self.files(home)).response(request)
        if found is None or found.run != run:
            raise InterruptedRunError(
                f"{request} in {home} has no answer for {run} any more.",
                safe="Nothing was changed.",
                exists="It was forgotten, because many later starts have been asked for; or the home was made anew.",
                remedy="A retry looks at what is there.",
                home=home,
                request=request,
            )
        return found

    def answer(self, home: str, run: RunId) -> StartResponse | None:
        """The newest answer that a run was given; None while there is none."""
        return Channel(self.files(home)).answer(run)

    def status(self, home: str) -> Status | None:
        """The live attempt's newest heartbeat: a hint."""
        return read_status(self.files(home))

    def is_at_work(self, home: str) -> bool:
        """Whether a driver holds the home, as far as this host can tell."""
        return driver_at_work(self.files(home))

    def goes_on(self, home: str) -> bool:
        """Whether a driver holds the home, or one follows by itself; see :func:`spark_jobs.control.supervision.goes_on`."""
        return goes_on(self.files(home))

    def head(self, home: str) -> Manifest | None:
        """The newest checkpoint."""
        return CheckpointStore(self.files(home)).head()

    def manifest(self, home: str, checkpoint: CheckpointId) -> Manifest:
        """A checkpoint that can be used."""
        return CheckpointStore(self.files(home)).manifest(checkpoint)

    def manifests(self, home: str) -> list[Manifest]:
        """All checkpoints that can be used, newest first."""
        return CheckpointStore(self.files(home)).manifests()[::-1]

    def kept(self, home: str, answer: StartResponse) -> Manifest | None:
        """The checkpoint that a run was answered with; None where it was discarded since."""
        assert answer.checkpoint is not None
        return CheckpointStore(self.files(home)).kept(answer.checkpoint)

    def driver_output(self, home: str, attempt: AttemptNumber) -> LogFile:
        """The standard output of this attempt's driver, or of ``spark-submit``."""
        return driver_output(self.files(home), attempt)

    def driver_log(self, home: str, attempt: AttemptNumber) -> LogFile:
        """The driver's own log, JSON lines."""
        return driver_log(self.files(home), attempt)

    def test_connection(self) -> tuple[bool, str]:
        """Whether homes can be kept in each root and a driver can be started, seen from this host. Leaves nothing behind."""
        try:
            if not self.settings.roots:
                return False, "home_root is empty: name the directory that holds your pipelines' homes."
            here, settings = self.driver_is_here({}), self.settings
            places = in_time(
                lambda: check_roots(settings.roots, settings.savepoint_roots, settings.workspace_root, driver_is_here=here),
                time.monotonic() + _TEST_MAX_S,
                lambda: StorageError(
                    f"The roots {', '.join(settings.roots)} do not answer.", remedy="See whether they are mounted."
                ),
            )
            self.settings.check_python()
            self.settings.driver_conf({})
            submitting = self._probe_submission() if self.submits else ""
            found = probe_driver(self.settings.python) if here else {}
        except StreamPipelineError as error:
            return False, f"Seen from {socket.gethostname()}: {error}"
        versions = ", ".join(f"{name} {version}" for name, version in found.items())
        has = f" The driver has {versions}." if found else " What the driver has there, its first run says."
        return True, f"Seen from {socket.gethostname()}: {places}{submitting}{has}"

    def _probe_submission(self) -> str:
        from airflow_provider.drivers.spark_submit import check_spark

        submission = self._submission({})
        return (
            f" Spark connection '{self.settings.spark_conn_id}': {submission.kind} master {submission.master}, deploy mode"
            f" {submission.deploy_mode}, submitted by {submission.program} of Spark {check_spark(submission)}; the master was not asked."
        )

    def _command(self, *words: str, conf: Mapping[str, str]) -> list[str]:
        """Returns a command of ``spark-jobs``, with the Spark settings that may be seen.

        The driver's Python imports nothing from where it starts.
        """
        settings = (part for key, value in shown_settings(conf).items() for part in ("--conf", f"{key}={value}"))
        return [self.settings.python, "-P", "-m", "spark_jobs", *words, *settings]

    @property
    def _store(self) -> ObjectStoreSettings | None:
        return read_store(self.settings.store_conn_id, self.get_connection)

    def _submission(self, conf: Mapping[str, str]) -> "Submission":
        from airflow_provider.drivers.spark_submit import plan_submission

        return plan_submission(self.settings, self.settings.driver_conf(conf))

    def _secrets(self, connections: Mapping[str, str]) -> dict[str, str]:
        """The driver's environment for secret parameters. Airflow masks them and their parts in logs from here on."""
        environment = {}
        for name, conn_id in connections.items():
            if not _SECRET_NAME.fullmatch(name):
                raise InvalidParameterError(
                    f"{name!r} is not the name of a parameter.", remedy="Correct secrets=.", parameter=name
                )
            password = self._password(conn_id)
            if password is None:
                raise InvalidParameterError(
                    f"The secret parameter '{name}' has no value: connection '{conn_id}' has no password.",
                    safe="No driver was started.",
                    remedy="Set the password of that connection.",
                    parameter=name,
                    connection=conn_id,
                )
            hide(password)
            environment[f"SPARK_JOBS_PARAM_{name.upper()}"] = password
        return environment

    def hide_secrets(self, connections: Mapping[str, str]) -> None:
        """Has Airflow mask a driver's secrets in this process, which need not be the one that has started the driver."""
        for conn_id in connections.values():
            with suppress(
                MissingRequirementError, AirflowException, AirflowRuntimeError
            ):  # it has gone, or cannot be asked for now
                hide(self._password(conn_id) or "")

    def _password(self, conn_id: str) -> str | None:
        try:
            return self.get_connection(conn_id).password
        except AirflowNotFoundException as error:
            raise MissingRequirementError(
                f"There is no Airflow connection '{conn_id}', which secrets= names.",
                safe="No driver was started.",
                remedy=f"Create it with the secret as its password: airflow connections add {conn_id} --conn-type generic",
                connection=conn_id,
            ) from error


def _given_up(request: StartRequest, why: str) -> InterruptedRunError:
    return InterruptedRunError(
        why,
        safe="Nothing of this attempt was begun.",
        remedy="None is needed: the next attempt does the work.",
        request=request.request,
    )
