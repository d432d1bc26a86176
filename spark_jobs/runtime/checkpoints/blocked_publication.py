"""A blocked publication: the times of its retries, and the messages about it."""

import logging
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from spark_jobs.checkpoint.checkpoint_store import CheckpointStore
from spark_jobs.protocol.documents import BlockedPublication, CheckpointKind, Manifest, Publish, SinkResult
from spark_jobs.protocol.errors import StreamPipelineError
from spark_jobs.protocol.ids import SinkName
from spark_jobs.protocol.masking import Mask, masked_error
from spark_jobs.protocol.reports import report_error
from spark_jobs.publication.blocked import StagedRows, first_waiting, staged_rows, waiting_sinks
from spark_jobs.publication.holds import hold_ends, may_heal
from spark_jobs.publication.publisher import Publication, publish_due
from spark_jobs.publication.transactions import Publishers
from spark_jobs.storage.files import Files

_LOG = logging.getLogger(__name__)
FIRST_DELAY_S = 5.0
LONGEST_DELAY_S = 60.0


@dataclass
class Retries:
    """Decides when a blocked publication is tried again. The time is an argument."""

    tries: int = 0
    """The number of failed tries since the last success."""
    _delay_s: float = FIRST_DELAY_S
    _due_s: float = 0.0

    def failed(self, now_s: float) -> None:
        """Counts a failed try. The delay until the next one doubles each time."""
        self.tries += 1
        self._due_s, self._delay_s = now_s + self._delay_s, min(2 * self._delay_s, LONGEST_DELAY_S)

    def got_through(self) -> None:
        """Resets the failures."""
        self.tries, self._delay_s = 0, FIRST_DELAY_S

    def is_due(self, now_s: float) -> bool:
        """Returns True if a blocked publication must be tried now."""
        return self.tries > 0 and now_s >= self._due_s


def staged_results(manifest: Manifest) -> dict[SinkName, SinkResult]:
    """Returns the results of a checkpoint without public rows."""
    return {
        sink: SinkResult(table=cut.table, checkpoint=manifest.checkpoint, version=None, rows=cut.actions.rows)
        for sink, cut in manifest.sinks.items()
    }


class Blocking:
    """Records what blocks the publications of an attempt.

    Args:
        home: The home.
        mask: Removes secrets from messages.
        report: Called with the blocked publication; with None when none is blocked.
    """

    def __init__(
        self, home: Files, mask: Mask, report: Callable[[BlockedPublication | None], None] = lambda blocked: None
    ) -> None:
        self._home, self._mask, self._report = home, mask, report
        self._retries = Retries()
        self.blocked: BlockedPublication | None = None
        """The reported blocked publication; None if none is blocked."""
        self._first: Manifest | None = None
        """The first checkpoint whose publication was refused."""
        self._warned = False

    @property
    def is_blocked(self) -> bool:
        """Returns True if the last publication has failed for some tables."""
        return self.blocked is not None

    @property
    def held(self) -> tuple[SinkName, ...]:
        """Returns the sinks that wait while the others are published; none if all wait."""
        return () if self.blocked is None else self.blocked.held

    @property
    def all_wait(self) -> bool:
        """Returns True if no table is published."""
        return self.blocked is not None and not self.blocked.held

    def is_due(self) -> bool:
        """Returns True if a blocked publication must be tried now."""
        return self._retries.is_due(time.monotonic())

    def publish(self, manifest: Manifest, publishers: Publishers) -> None:
        """Publishes a checkpoint by policy, and records held tables. A drain holds none, because nothing after it would publish them.

        Raises:
            StreamPipelineError: A due sink that is not held is not published, or waiting rows may be deleted soon.
        """
        _, held = self._carry_out(manifest, publishers)
        self._record(manifest, held)

    def publish_or_block(self, manifest: Manifest, publishers: Publishers) -> None:
        """Publishes a checkpoint by policy, or records the blocked publication.

        Raises:
            StreamPipelineError: The checkpoint can never become public, or waiting rows may be deleted soon.
        """
        try:
            self.publish(manifest, publishers)
        except StreamPipelineError as error:
            self._block(manifest, error)

    def results(self, manifest: Manifest, publishers: Publishers, *, may_block: bool) -> Mapping[SinkName, SinkResult]:
        """Publishes a checkpoint as :meth:`publish` does, or as :meth:`publish_or_block` does, and returns the results.

        If it is blocked, or a table cannot be read, no sink has a version.
        """
        try:
            published, held = self._carry_out(manifest, publishers)
            results = published.results()
            self._record(manifest, held)
        except StreamPipelineError as error:
            if not may_block:
                raise
            self._block(manifest, error)
            return staged_results(manifest)
        return results

    def _carry_out(
        self, manifest: Manifest, publishers: Publishers
    ) -> tuple[Publication, Mapping[SinkName, StreamPipelineError]]:
        """Publishes a checkpoint by policy. Returns the publication, and the errors of held tables, also of the ended round."""
        is_drain = manifest.checkpoint_kind is CheckpointKind.STOP and manifest.drained
        ended = self._ended_round(manifest)
        of_round = {} if ended is None else publish_due(self._home, ended.checkpoint, publishers, holds=True).held
        published = publish_due(self._home, manifest.checkpoint, publishers, holds=not is_drain)
        return published, {**published.held, **of_round}

    def _record(self, manifest: Manifest, held: Mapping[SinkName, StreamPipelineError]) -> None:
        if held:
            self.record_held(manifest, held)
        else:
            self.got_through()

    def _block(self, manifest: Manifest, error: StreamPipelineError) -> None:
        if not may_heal(error):
            raise error
        self.failed(manifest, error)

    def record_held(self, manifest: Manifest, held: Mapping[SinkName, StreamPipelineError]) -> None:
        """Records that tables with a hold have refused a publication, which is done in the other tables.

        Raises:
            UnsupportedTableError: Waiting rows may be deleted soon.
        """
        store, now = CheckpointStore(self._home), datetime.now(UTC)
        ends = [hold_ends(store, manifest, sink, now) for sink in held]
        self.failed(manifest, next(iter(held.values())), min((each for each in ends if each is not None), default=now))

    def failed(self, manifest: Manifest, error: StreamPipelineError, all_wait_from: datetime | None = None) -> None:
        """Records a failed publication that may succeed later.

        Args:
            manifest: The checkpoint.
            error: Error of the publication.
            all_wait_from: Time until which other tables are published. None: all wait.

        Raises:
            UnsupportedTableError: Waiting rows may be deleted soon.
        """
        self._retries.failed(time.monotonic())
        now = datetime.now(UTC)
        before, ended = self.blocked, self._ended_round(manifest)
        waiting = list(dict.fromkeys([*(waiting_sinks(ended) if ended else ()), *waiting_sinks(manifest)]))
        self._first = self._first or manifest
        oldest = min(self._staged(manifest, waiting), key=lambda rows: rows.kept_until, default=None)
        if before is None:
            first = first_waiting(self._home, manifest, waiting)
            checkpoint, since = first.checkpoint, first.completed_at
        else:
            checkpoint, since = before.checkpoint, before.since
        blocked = BlockedPublication(
            checkpoint=checkpoint,
            since=since,
            tries=self._retries.tries,
            waiting=tuple(waiting),
            error=report_error(masked_error(error, self._mask)),
            rows_kept_until=oldest.kept_until if oldest else None,
            all_wait_from=all_wait_from,
        )
        if before is None or before.summary != blocked.summary:
            _LOG.warning("%s", blocked.summary)
        self.blocked = blocked
        self._report(blocked)
        if oldest is not None:
            oldest.check(manifest.checkpoint, now)
            self._warn(oldest, now)

    def got_through(self) -> None:
        """Records that all due checkpoints are public."""
        self._retries.got_through()
        if self.blocked is not None:
            _LOG.info("the publication is not blocked any more: all due checkpoints are public")
            self.blocked, self._first, self._warned = None, None, False
            self._report(None)

    def _ended_round(self, manifest: Manifest) -> Manifest | None:
        """Returns the first refused checkpoint, if it ends its round and a sink is published with it but not with ``manifest``."""
        first = self._first
        if first is None or not first.ends_round or manifest.ends_round:
            return None
        return first if any(cut.publish is Publish.FINAL for cut in first.sinks.values()) else None

    def _staged(self, manifest: Manifest, waiting: Sequence[SinkName]) -> Iterator[StagedRows]:
        for sink in waiting:
            try:
                rows = staged_rows(self._home, manifest, sink)
            except StreamPipelineError as error:
                _LOG.warning("the retention of the rows of sink %s cannot be read: %s", sink, error)
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
