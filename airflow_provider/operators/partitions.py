"""The operator that emits an asset event for each finished hour or day of a table."""

import re
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Literal

from airflow.sdk import Asset

from airflow_provider.exceptions import raising_airflow_errors
from airflow_provider.hidden_values import refuse_hidden_arguments
from airflow_provider.operators.pipeline_task import PipelineOperator
from airflow_provider.version_compat import AirflowSkipException, check_partition_events
from spark_jobs.protocol.codec import canonical, sha256
from spark_jobs.protocol.errors import InvalidParameterError
from spark_jobs.protocol.ids import SinkName
from spark_jobs.publication.completeness import complete_until
from spark_jobs.publication.delta_rs import open_table

if TYPE_CHECKING:
    from airflow.sdk import Context

KEY_FORMAT = "%Y-%m-%dT%H:%M:%S"
"""The format of a partition's key: its start in UTC, as Airflow's partition mappers read it by default."""
_PROPERTY = re.compile(r"(?!delta\.)[A-Za-z][\w.-]*")
"""The names of table properties that have no meaning for Delta."""
_EVENTS = 1_000
"""The number of newest events of the asset that are searched for those of this operator."""


class Every(StrEnum):
    """The length of a partition."""

    HOUR = "hour"
    DAY = "day"

    @property
    def length(self) -> timedelta:
        return timedelta(hours=1) if self is Every.HOUR else timedelta(days=1)


class EmitFinishedPartitionsOperator(PipelineOperator):
    """Emits an asset event with a partition for each hour or day of a public table that has become complete since the last event.

    A partition is finished when the watermark has passed its end, in the newest checkpoint that is public in the table. The events of a
    task are created together with its success, and the next run reads them. So each partition is emitted once, even if a task is killed.
    If nothing was finished, the task is skipped.

    Schedule its DAG on an asset with a :class:`~airflow_provider.triggers.publication.PublicationTrigger`, with ``max_active_runs=1``. Use
    one asset for each sink.

    Returns as XCom the keys of the ``partitions``, ``complete_until`` and ``checkpoint``.

    Args:
        home: The pipeline's home, inside the connection's home roots. Templated.
        sink: The sink. Its stage has windows, or another operator that drops late rows.
        every: The length of a partition, ``"hour"`` or ``"day"``, in UTC.
        allowance: The longest time by which rows of the stage are older than its watermark, as for joins of time ranges.
        table_property: The name of a table property that is set to the end of the newest finished partition, before the events are
            emitted. None: no property is set. Delta fails transactions of other writers that began before such a commit.
        kwargs: As for :class:`~airflow_provider.operators.pipeline_task.PipelineOperator`. ``outlets`` names one asset.

    Raises:
        PipelineRunRefusedError: The sink does not exist, its stage drops no late rows, or its table has a feature with which only Spark can
            set a property. Airflow does not retry.
        PipelineRunError: The home or the table cannot be read; a retry reads again.
    """

    template_fields: Sequence[str] = ("home",)
    events_max = 1_000
    """The largest number of events of one task. The next run continues."""

    def __init__(
        self,
        *,
        home: str,
        sink: str,
        every: Every | Literal["hour", "day"] = "hour",
        allowance: timedelta = timedelta(0),
        table_property: str | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        check_partition_events(type(self).__name__)
        self.home = home
        self.sink = sink
        self.every = Every(every).value
        self.allowance = allowance
        self.table_property = table_property
        assets = [outlet for outlet in self.outlets if isinstance(outlet, Asset)]
        if len(assets) != 1 or len(self.outlets) != 1:
            raise ValueError("outlets has to name one asset, which gets the events.")
        if allowance < timedelta(0):
            raise ValueError("allowance may not be negative.")
        if table_property is not None and not _PROPERTY.fullmatch(table_property):
            raise ValueError(f"table_property={table_property!r} has to be a name of your own, such as 'complete_until'.")
        self.inlets = [*self.inlets, *(asset for asset in assets if asset not in self.inlets)]  # to read its earlier events

    def execute(self, context: "Context") -> dict[str, Any]:
        """Emits the events. Reads the table's log and the manifests of the home."""
        with raising_airflow_errors():
            refuse_hidden_arguments(self)
            self._check_runs_alone()
            files = self.hook.files(self.home)
            source = {"home": files.url, "sink": self.sink, "every": self.every}
            (asset,) = self.outlets
            before = _emitted_until(context, asset, source)
            found = complete_until(files, SinkName(self.sink))
            length = Every(self.every).length
            end = None if found is None else _floor(found.time - self.allowance, length)
            starts = list(_starts(before, end, length, self.events_max))
            if found is None or not starts:
                raise AirflowSkipException(f"No {self.every} of {self.sink} has finished since {before or 'the first run'}.")
            keys = [start.strftime(KEY_FORMAT) for start in starts]
            until = starts[-1] + length
            if self.table_property is not None:
                open_table(found.table).set_property(self.table_property, until.isoformat())
            events = context["outlet_events"][asset]
            events.extra = {**source, "complete_until": until.isoformat(), "checkpoint": int(found.checkpoint)}
            events.add_partitions(keys)
            self.log.info("Checkpoint %s finishes %s: %s.", found.checkpoint, f"each {self.every}", ", ".join(keys))
            return {"partitions": keys, "complete_until": until.isoformat(), "checkpoint": found.checkpoint}

    def _check_runs_alone(self) -> None:
        """Refuses a DAG whose runs overlap: both would emit the same partitions."""
        if self.dag.max_active_runs != 1:
            raise InvalidParameterError(
                f"DAG {self.dag.dag_id} may have {self.dag.max_active_runs} active runs, which could emit a partition twice.",
                safe="No event was emitted.",
                remedy="Set max_active_runs=1 for the DAG.",
                dag=self.dag.dag_id,
            )


def _emitted_until(context: "Context", asset: Asset, source: Mapping[str, str]) -> datetime | None:
    """Returns the end of the newest partition that was emitted; None if none was.

    The asset's events are created together with the success of a task, so they are exact. Airflow may clean them, so their newest end is
    also kept in the asset's store, once a later run has seen it.
    """
    store, key = context["asset_state_store"][asset], f"finished-{sha256(canonical(source))[:16]}"
    events = context["inlet_events"][asset].ascending(False).limit(_EVENTS)
    extras = [event.extra for event in events if event.extra and source.items() <= event.extra.items()]
    ends = [str(extra["complete_until"]) for extra in extras]
    kept = store.get(key)
    newest = max([*ends, *([str(kept)] if kept else [])], default=None)
    if newest is None:
        return None
    if newest != kept:
        store.set(key, newest)
    return datetime.fromisoformat(newest)


def _floor(time: datetime, length: timedelta) -> datetime:
    epoch = datetime(1970, 1, 1, tzinfo=UTC)
    return epoch + (time - epoch) // length * length


def _starts(before: datetime | None, end: datetime | None, length: timedelta, count_max: int) -> Iterator[datetime]:
    """Yields the starts of at most ``count_max`` finished partitions up to ``end``, oldest first.

    If none was emitted before, yields only the newest.
    """
    if end is None:
        return
    start = end - length if before is None else before
    for number in range(count_max):
        if start + (number + 1) * length > end:
            return
        yield start + number * length
