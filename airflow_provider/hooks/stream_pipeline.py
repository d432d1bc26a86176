"""The hook, which opens pipelines' homes and starts drivers on this host."""

import re
import socket
import time
from collections.abc import Mapping
from contextlib import suppress
from functools import cached_property
from typing import TYPE_CHECKING

from airflow.sdk import BaseHook
from airflow.sdk.exceptions import AirflowRuntimeError

from airflow_provider.drivers.driver_log import LogFile, made_output_place
from airflow_provider.drivers.driver_probe import probe_driver
from airflow_provider.drivers.local_driver import LocalDriver, process_environment, start_local_driver
from airflow_provider.hidden_values import hide
from airflow_provider.homes import check_place, check_roots, home_options, open_allowed_home, open_savepoint
from airflow_provider.orders import StartOrder, json_values
from airflow_provider.settings import CONN_TYPE, Settings, read_settings
from airflow_provider.store_connections import read_store_connection, use_store_connection
from airflow_provider.version_compat import AirflowException, AirflowNotFoundException
from spark_jobs.background import run_with_deadline
from spark_jobs.checkpoint.checkpoint_store import CheckpointStore
from spark_jobs.control.channel import Channel
from spark_jobs.control.liveness import driver_at_work
from spark_jobs.control.refused_starts import forget_refused_start
from spark_jobs.control.status import read_status
from spark_jobs.control.supervision import answer_for_unstarted, goes_on
from spark_jobs.home.layout import publication_output_path
from spark_jobs.protocol.checkpointing import over
from spark_jobs.protocol.documents import Manifest, StartResponse, Status
from spark_jobs.protocol.errors import (
    InterruptedRunError,
    InvalidParameterError,
    MissingRequirementError,
    RejectedError,
    StorageError,
    StreamPipelineError,
)
from spark_jobs.protocol.ids import CheckpointId, RequestId, RunId, published_by
from spark_jobs.protocol.spark_settings import conf_environment, shown_settings
from spark_jobs.protocol.start_requests import StartRequest
from spark_jobs.storage.files import Files, is_mounted, local_path
from spark_jobs.storage.object_store_settings import ObjectStoreSettings

if TYPE_CHECKING:
    from airflow_provider.drivers.spark_submit import Submission

_SECRET_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_]*")


class StreamPipelineHook(BaseHook):
    """Opens pipelines' homes, requests runs, and starts drivers on this host.

    Every method with a ``home`` refuses a home outside the connection's home roots, and raises errors of
    :mod:`spark_jobs.protocol.errors`.

    Args:
        conn_id: A connection of type ``stream_pipeline``; for its extras see :class:`~airflow_provider.settings.Settings`.
    """

    conn_name_attr = "conn_id"
    default_conn_name = "stream_pipeline_default"
    conn_type = CONN_TYPE
    hook_name = "Stream pipeline"
    test_max_s = 20.0
    """How long the roots may take to answer a test of the connection, which holds a thread of Airflow's API server."""

    def __init__(self, conn_id: str = default_conn_name) -> None:
        super().__init__()
        self.conn_id = conn_id

    @cached_property
    def settings(self) -> Settings:
        """The settings in the connection. Reading them also gives this process the store that the connection names.

        Raises:
            MissingRequirementError: The connection, or the store's connection that it names, does not exist.
            InvalidParameterError: The connection has another type, or an extra that is not allowed.
        """
        try:
            connection = self.get_connection(self.conn_id)
        except AirflowNotFoundException as error:
            raise MissingRequirementError(
                f"There is no Airflow connection '{self.conn_id}'.",
                remedy=f"Create it: airflow connections add {self.conn_id} --conn-type {self.conn_type}"
                """ --conn-extra '{"home_root": "/the/directory/of/your/homes"}'""",
                connection=self.conn_id,
            ) from error
        found = read_settings(connection.extra_dejson, self.conn_id, connection.conn_type)
        use_store_connection(found, self.get_connection)
        return found

    def files(self, home: str) -> Files:
        """Opens a home at its resolved place."""
        return open_allowed_home(home, self.settings.roots, self.settings.work_root)

    def savepoint_files(self, savepoint: str) -> Files:
        """Opens a savepoint at its resolved place, inside a savepoint root or a home root."""
        return open_savepoint(savepoint, self.settings.savepoint_roots + self.settings.roots)

    @property
    def submits(self) -> bool:
        """True if ``spark-submit`` starts the drivers of this connection, which may then wait in a cluster's queue."""
        return self.settings.spark_conn_id is not None

    def driver_is_here(self, conf: Mapping[str, str]) -> bool:
        """Returns True if a driver with these settings, over the connection's, is a process on this host."""
        return not self.submits or self._submission(conf).driver_is_here

    def submit(self, home: str, order: StartOrder) -> tuple[StartRequest, LocalDriver]:
        """Requests a run, durably, and starts a driver for it on this host, or ``spark-submit``.

        Safe to repeat. A run with an open request gets that request again, and of several drivers for one request, all but one end by
        themselves. With ``spark-submit``, each request has one driver: an open request of this run is abandoned first, and so is a
        request whose driver could not be submitted.

        Raises:
            RejectedError: The order or the connection is not allowed. Nothing was written.
            StorageError: This host does not have the home's root. Nothing was written.
            ConflictError: Other processes requested starts at the same time, again and again.
        """
        files = self.files(home)
        here = self.driver_is_here(order.conf)
        check_place(files, self.settings.roots, self.settings.work_root if here else None)
        work_root = None if is_mounted(files) else self.settings.work_root
        conf = self.settings.driver_conf(order.conf)
        submission = self._submission(order.conf) if self.submits else None
        if submission is None:
            self.settings.check_python()
        else:
            submission.check_secrets(list(order.secrets))
        environment, parameters = self._secrets(order.secrets), json_values(order.parameters)
        if submission is not None and (stale := Channel(files).unclaimed()) is not None and stale.run == order.run:
            answer_for_unstarted(
                files, stale.attempt, _abandoned(stale, f"No driver had begun {stale.request} when the next one was asked for.")
            )
        request = Channel(files).request_start(
            order.run,
            parameters=parameters,
            options=order.model_copy(update={"checkpoint": over(self.settings.checkpoint, order.checkpoint)}),
            restarts=order.restarts,
        )
        try:
            if submission is None:
                words = (*home_options(files.url, work_root), "--request", request.request)
                command = self._command("run", order.entry, *words, conf=conf)
                environment |= conf_environment(conf)
            else:
                command = submission.command(entry=order.entry, home=files.url, request=request.request, work_root=work_root)
                environment |= submission.environment()
            output = made_output_place(files, request.attempt, driver_is_here=here)
            driver = start_local_driver(
                command,
                output=output,
                directory=output.parent if submission is None else None,
                environment=environment,
                store_settings=self._store_settings,
                submits=submission is not None and not submission.driver_is_here,
            )
        except Exception as error:
            with suppress(StreamPipelineError):  # the first error says more
                if submission is not None:  # a retry would wait for a driver that is in no queue
                    answer_for_unstarted(
                        files, request.attempt, _abandoned(request, f"Nothing was submitted for {request.request}: {error}")
                    )
                elif isinstance(error, RejectedError):
                    answer_for_unstarted(files, request.attempt, error)
                    forget_refused_start(files, request.attempt)
            raise
        return request, driver

    def check_publishes(self, conf: Mapping[str, str]) -> dict[str, str]:
        """Refuses settings that :meth:`start_publication` would refuse in any home. Returns the settings of its Spark."""
        settings = self.settings.local_conf(conf)
        self.settings.check_python()
        return settings

    def start_publication(self, home: str, request: RequestId, conf: Mapping[str, str]) -> LocalDriver:
        """Starts a process on this host that answers a request for a publication with Spark.

        Safe to repeat: of several processes for one request, all but one end by themselves.
        """
        files, settings = self.files(home), self.check_publishes(conf)
        work_root = None if is_mounted(files) else self.settings.work_root
        command = self._command("publish", *home_options(files.url, work_root), "--request", request, conf=settings)
        output = local_path(files, publication_output_path(published_by(request)))
        environment = conf_environment(settings)
        return start_local_driver(
            command, output=output, directory=output.parent, environment=environment, store_settings=self._store_settings
        )

    def publication_log(self, home: str, checkpoint: CheckpointId) -> LogFile:
        """Returns the output file of the processes of :meth:`start_publication` for a checkpoint, if this host has it."""
        return LogFile(name := publication_output_path(checkpoint), self.files(home).local(name))

    def environment(self) -> dict[str, str]:
        """Returns the environment for a process of your own, such as an audit of staged rows.

        It is the environment of this process without Airflow's settings and connections, and with the store that ``store_conn_id`` names
        in place of any other of its kind. From now on, Airflow masks the store's secrets in the logs of this task. Pass the environment
        to the process itself: a task's arguments, rendered templates and XComs are stored.

        Raises:
            MissingRequirementError: The connection, or the store's connection that it names, does not exist.
            InvalidParameterError: A connection has another type, or an extra that is not allowed.
        """
        return process_environment(self._store_settings)

    def answer(self, home: str, run: RunId) -> StartResponse | None:
        """Returns the newest answer to a run; None if there is none."""
        return Channel(self.files(home)).answer(run)

    def status(self, home: str) -> Status | None:
        """Returns the newest heartbeat of the live attempt, which may be out of date."""
        return read_status(self.files(home))

    def is_at_work(self, home: str) -> bool:
        """Returns True if a driver holds the home, as far as this host can tell."""
        return driver_at_work(self.files(home))

    def goes_on(self, home: str) -> bool:
        """Returns True if a driver holds the home or will be started again; see :func:`spark_jobs.control.supervision.goes_on`."""
        return goes_on(self.files(home))

    def head(self, home: str) -> Manifest | None:
        """Returns the newest checkpoint."""
        return CheckpointStore(self.files(home)).head()

    def manifests(self, home: str) -> list[Manifest]:
        """Returns the manifests of all usable checkpoints, newest first."""
        return CheckpointStore(self.files(home)).manifests()[::-1]

    def test_connection(self) -> tuple[bool, str]:
        """Tests from this host whether each root can hold homes and whether a driver can start. Leaves nothing behind."""
        try:
            if not self.settings.roots:
                return False, "home_root is empty: name the directory, or the URL in a store, that holds your pipelines' homes."
            here, settings = self.driver_is_here({}), self.settings
            places = run_with_deadline(
                lambda: check_roots(settings.roots, settings.savepoint_roots, settings.work_root, driver_is_here=here),
                time.monotonic() + self.test_max_s,
                lambda: StorageError(
                    f"The roots {', '.join(settings.roots)} do not answer.",
                    remedy="Check that they are mounted, or that their store can be reached.",
                ),
            )
            self.settings.check_python()
            self.settings.driver_conf({})
            submitting = self._probe_submission() if self.submits else ""
            found = probe_driver(self.settings.python) if here else {}
        except StreamPipelineError as error:
            return False, f"Seen from {socket.gethostname()}: {error}"
        versions = ", ".join(f"{name} {version}" for name, version in found.items())
        has = f" The driver has {versions}." if found else " The first run shows the versions of the driver."
        return True, f"Seen from {socket.gethostname()}: {places}{submitting}{has}"

    def _probe_submission(self) -> str:
        from airflow_provider.drivers.spark_submit import check_spark

        submission = self._submission({})
        return (
            f" Spark connection '{self.settings.spark_conn_id}': {submission.kind} master {submission.master}, deploy mode"
            f" {submission.deploy_mode}, submitted by {submission.program} of Spark {check_spark(submission)}; the master was not"
            " contacted."
        )

    def _command(self, *words: str, conf: Mapping[str, str]) -> list[str]:
        """Returns a command of ``spark-jobs`` with the Spark settings that may be visible.

        The driver's Python imports nothing from its working directory.
        """
        settings = (part for key, value in shown_settings(conf).items() for part in ("--conf", f"{key}={value}"))
        return [self.settings.python, "-P", "-m", "spark_jobs", *words, *settings]

    @property
    def _store_settings(self) -> ObjectStoreSettings | None:
        return read_store_connection(self.settings.store_conn_id, self.get_connection)

    def _submission(self, conf: Mapping[str, str]) -> "Submission":
        from airflow_provider.drivers.spark_submit import plan_submission

        return plan_submission(self.settings, self.settings.driver_conf(conf))

    def _secrets(self, connections: Mapping[str, str]) -> dict[str, str]:
        """Returns the driver's environment for secret parameters. From now on, Airflow masks them and their parts in logs."""
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
        """Has Airflow mask a driver's secrets in this process, which may not be the one that has started the driver."""
        for conn_id in connections.values():
            # The connection may be gone, or unavailable at the moment.
            with suppress(MissingRequirementError, AirflowException, AirflowRuntimeError):
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


def _abandoned(request: StartRequest, reason: str) -> InterruptedRunError:
    return InterruptedRunError(
        reason,
        safe="This attempt has not begun.",
        remedy="Do nothing: the next attempt does the work.",
        request=request.request,
    )
