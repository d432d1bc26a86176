"""A publication that is blocked: when it is tried again, and what people are told of it."""

import logging
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from spark_jobs.checkpoint.store import CheckpointStore
from spark_jobs.protocol.documents import BlockedPublication, Manifest, SinkResult
from spark_jobs.protocol.errors import StreamPipelineError
from spark_jobs.protocol.ids import SinkName
from spark_jobs.protocol.masking import Mask, masked_error
from spark_jobs.protocol.reports import report_error, reported_error
from spark_jobs.publication.blocked import StagedRows, staged_rows, waiting_sinks
from spark_jobs.publication.holds import hold_ends, may_heal
from spark_jobs.publication.publisher import publish_due
from spark_jobs.publication.transactions import Publishers
from spark_jobs.storage.files import Files

_LOG = logging.getLogger(__name__)
FIRST_DELAY_S = 5.0
LONGEST_DELAY_S = 60.0


@dataclass
class Retries:
    """Decides when a blocked publication is tried again. Pure: the time is an argument."""

    tries: int = 0
    """That have failed since the last one that got through."""
    _delay_s: float = FIRST_DELAY_S
    _due_s: float = 0.0

    def failed(self, now_s: float) -> None:
        """Counts a failed try; the next one is due after a delay that doubles each time."""
        self.tries += 1
        self._due_s, self._delay_s = now_s + self._delay_s, min(2 * self._delay_s, LONGEST_DELAY_S)

    def got_through(self) -> None:
        """Forgets what has failed."""
        self.tries, self._delay_s = 0, FIRST_DELAY_S

    def is_due(self, now_s: float) -> bool:
        """Returns whether a blocked publication is to be tried now."""
        return self.tries > 0 and now_s >= self._due_s


def staged_results(manifest: Manifest) -> dict[SinkName, SinkResult]:
    """Returns what a checkpoint has left in its sinks of which nothing is public."""
    return {
        sink: SinkResult(table=cut.table, checkpoint=manifest.checkpoint, version=None, rows=cut.actions.rows)
        for sink, cut in manifest.sinks.items()
    }


class Blocking:
    """Remembers what blocks the publications of an attempt.

    Args:
        home: The home.
        mask: Takes secrets out of what people are told.
        tell: Called with what is blocked; None once nothing is.
    """

    def __init__(self, home: Files, mask: Mask, tell: Callable[[BlockedPublication | None], None] = lambda told: None) -> None:
        self._home, self._mask, self._tell = home, mask, tell
        self._retries = Retries()
        self.told: BlockedPublication | None = None
        """What people are told; None if nothing is blocked."""
        self._warned = False

    def is_due(self) -> bool:
        """Returns whether a blocked publication is to be tried now."""
        return self._retries.is_due(time.monotonic())

    def publish(self, manifest: Manifest, publishers: Publishers) -> Mapping[SinkName, SinkResult]:
        """Publishes a checkpoint by policy, and takes up which tables are held.

        Raises:
            StreamPipelineError: Not every sink is public that should be, and is not held; or rows that wait may be deleted soon.
        """
        published = publish_due(self._home, manifest.checkpoint, publishers)
        if published.held:
            self.is_held(manifest, published.held)
        else:
            self.got_through()
        return published.results

    def publish_or_block(self, manifest: Manifest, publishers: Publishers) -> Mapping[SinkName, SinkResult]:
        """Publishes a checkpoint by policy, or takes up what blocks that: then no sink has a version.

        Raises:
            StreamPipelineError: It can never become public, or rows that wait may be deleted soon.
        """
        try:
            return self.publish(manifest, publishers)
        except StreamPipelineError as error:
            if not may_heal(error):
                raise
            self.failed(manifest, error)
            return staged_results(manifest)

    def check_none_held(self) -> None:
        """Refuses that tables are held: for a drain, after which nothing would publish their rows.

        Raises:
            StreamPipelineError: What a table has refused.
        """
        if self.told is not None:
            raise reported_error(self.told.error)

    def is_held(self, manifest: Manifest, held: Mapping[SinkName, StreamPipelineError]) -> None:
        """Takes up that tables with a hold have refused a publication, and the others have it.

        Raises:
            UnsupportedTableError: Rows that wait may be deleted soon.
        """
        store, now = CheckpointStore(self._home), datetime.now(UTC)
        ends = [hold_ends(store, manifest, sink, now) for sink in held]
        self.failed(manifest, next(iter(held.values())), min((each for each in ends if each is not None), default=now))

    def failed(self, manifest: Manifest, error: StreamPipelineError, all_wait_from: datetime | None = None) -> None:
        """Takes up that a publication has failed that may succeed later.

        Args:
            manifest: The checkpoint.
            error: Why it has failed.
            all_wait_from: Until when the tables that do not wait are published. None: all wait.

        Raises:
            UnsupportedTableError: Rows that wait may be deleted soon.
        """
        self._retries.failed(time.monotonic())
        now = datetime.now(UTC)
        before, waiting = self.told, waiting_sinks(manifest)
        oldest = min(self._staged(manifest, waiting), key=lambda rows: rows.kept_until, default=None)
        told = BlockedPublication(
            checkpoint=before.checkpoint if before else manifest.checkpoint,
            since=before.since if before else now,
            tries=self._retries.tries,
            waiting=tuple(waiting),
            error=report_error(masked_error(error, self._mask)),
            rows_kept_until=oldest.kept_until if oldest else None,
            all_wait_from=all_wait_from,
        )
        if before is None or before.summary != told.summary:
            _LOG.warning("%s", told.summary)
        self.told = told
        self._tell(told)
        if oldest is not None:
            oldest.check(manifest.checkpoint, now)
            self._warn(oldest, now)

    def got_through(self) -> None:
        """Takes up that everything that is due is public."""
        self._retries.got_through()
        if self.told is not None:
            _LOG.info("the publication is not blocked any more: everything that is due is public")
            self.told, self._warned = None, False
            self._tell(None)

    def _staged(self, manifest: Manifest, waiting: Sequence[SinkName]) -> Iterator[StagedRows]:
        for sink in waiting:
            try:
                rows = staged_rows(self._home, manifest, sink)
            except StreamPipelineError as error:
                _LOG.warning("how long the rows of sink %s are kept cannot be read: %s", sink, error)
            else:
                if rows is not None:
                    yield rows

    def _warn(self, oldest: StagedRows, now: datetime) -> None:
        if oldest.is_old(now) and not self._warned:
            self._warned = True
            _LOG.warning(
                "sink %s: rows have waited since %s; from %s on a VACUUM of table %s may delete them, and the pipeline ends before that",
                *(oldest.sink, oldest.since.isoformat(" "), oldest.kept_until.isoformat(" "), oldest.table),
            )
