"""Phase 1 of the two-phase commit: each batch's rows become Parquet files, named only by the stage's private log."""

import json
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field, replace
from typing import Any
from urllib.parse import unquote
from weakref import ref

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from spark_jobs.api.source import Static
from spark_jobs.checkpoint.named_files import make_durable
from spark_jobs.protocol.documents import SinkMode
from spark_jobs.protocol.errors import BEGIN_ANEW, InterruptedRunError, InvalidPipelineError, RejectedError, SourceChangedError
from spark_jobs.protocol.ids import BatchId, StageName
from spark_jobs.protocol.steps import Step, step
from spark_jobs.publication.delta_jvm import DeltaJvm
from spark_jobs.publication.merges import repeated_keys
from spark_jobs.runtime.inputs.bounds import NO_OFFSET, Bound, ExpectedFile
from spark_jobs.runtime.inputs.lost_errors import without_it
from spark_jobs.runtime.spark.plan import (
    BatchFacts,
    ListedFiles,
    batch_facts,
    data_files,
    limit_kafka_streams,
    listed_files,
    rows_read,
    rows_read_by_stream,
)
from spark_jobs.runtime.spark.session import file_statuses
from spark_jobs.runtime.spark.spark_errors import says, summary
from spark_jobs.runtime.staged.log_folding import fold_consumed
from spark_jobs.runtime.staged.private_log import StagedBatch
from spark_jobs.runtime.stages.built_stage import BuiltStage
from spark_jobs.runtime.stages.judging import has_violations, of_batch, violations_of
from spark_jobs.runtime.stages.watermark import BEGINNING_OF_TIME_MS, END_OF_TIME_MS, FOR_EVER_MS
from spark_jobs.runtime.tables.schemas import as_stored, fit

_FILES_NAMED = 5
_BROKEN_CONSTRAINT = "DELTA_VIOLATE_CONSTRAINT_WITH_VALUES"
_FOR_FILE_SYSTEMS = "Restore the files with their modification times (cp -p, touch -d), then run again: it goes on with them."
_FOR_STORES = "An object store gives a restored file another time: use another name there, and the next round reads it."
_Ends = Sequence[tuple[Bound, str | None, str]]
"""The ends of a batch from :meth:`BuiltStage.ends_of`."""


class ReplanError(Exception):
    """A batch has to be run in another way. None of its rows was staged. The stage handles the error, and users never see it."""


class PastPinError(ReplanError):
    """A batch reads beyond a recorded end."""


class BeforeEpochError(ReplanError):
    """A batch had a watermark at 1970 and earlier rows, which Spark dropped as late."""


class RefusedRowsError(ReplanError):
    """The sink's table has a CHECK constraint that rows of a batch violate."""


class ProbePassedError(Exception):
    """A batch that was only run as a test has not failed. None of its rows was staged.

    The stage handles the error, and users never see it.
    """


@dataclass
class StageWriter:
    """Stages the batches of one query of a stage. It is passed to ``foreachBatch``.

    An exception is kept in :attr:`failure`, because Spark only passes on its text.
    """

    run: BuiltStage
    failure: BaseException | None = None
    query: "Future[ref[StreamingQuery]]" = field(default_factory=Future)
    """The query of these batches. The first batch can run before Spark's start call has returned.

    Java keeps the writer as long as the query. If the writer also kept the query, neither would ever be freed.
    """
    _are_streams_limited: bool = False
    """True if the query's streams end at the stage's ends."""

    @property
    def _query(self) -> StreamingQuery:
        found = self.query.result()()
        if found is None:
            raise RuntimeError(f"the query of stage {self._name} has ended")
        return found

    @property
    def _name(self) -> StageName:
        return self.run.stage.name

    def __call__(self, frame: DataFrame, batch: int) -> None:
        try:
            self.run.spark_log.begun(BatchId(batch))
            with self.run.gate.batch(staged=batch < self.run.log.latest()):
                self._stage(frame, BatchId(batch))
        except BaseException as error:  # noqa: BLE001 - the driver raises the original
            self.failure = error
            raise RuntimeError(f"stage {self._name}, batch {batch} was not staged: {type(error).__name__}") from None

    def _stage(self, frame: DataFrame, batch: BatchId) -> None:
        ends = self.run.ends_of(batch)
        if any(bound.exceeded(before, line) for bound, before, line in ends):
            raise PastPinError
        self._limit_streams(ends)
        run, offsets = self.run, self.run.spark_log.offsets_text(batch)
        earlier = run.log.read(batch)
        fitted = self._fitted(frame, batch)
        if earlier is not None:
            # no state needs a batch after a backfill, or of a stage that reads tables, a second time
            if not (earlier.backfilled or run.stage.reads_tables):
                self._check_same(earlier, offsets, fitted.count())
            return
        if run.backfill is not None:
            fitted = fitted.union(self._fitted(run.backfill.rows, batch))
        self._check_columns(batch, ends)
        with step(Step.STAGE_FILES):
            adds = self._write_files(fitted, f"{run.file_prefix}{batch}-")
        self._check_unique(frame.sparkSession, batch, adds)
        if run.is_probe:
            raise ProbePassedError
        self._check_files(frame.sparkSession, batch, ends)
        self._check_data_files(frame.sparkSession, batch)
        self._check_sources(ends)
        violations = self._violations(frame.sparkSession, adds)
        facts = self._facts(batch)
        self._check_event_times(batch, facts)
        adds = make_durable(run.directory, adds)
        run.log.append(
            StagedBatch(
                batch=batch,
                offsets=offsets,
                rows=sum(json.loads(add["stats"])["numRecords"] for add in adds),
                late_rows=facts.late_rows,
                newest_event_ms=self._newest_by_input(batch, facts),
                adds=tuple(adds),
                input_rows=self._input_rows(frame.sparkSession, ends),
                state_rows=self._left_by_drain(batch, facts),
                violations=violations,
                backfilled=run.backfill.ids if run.backfill else (),
            )
        )
        run.heartbeat.violated(self._name, violations)
        for output in (run.output, *run.upstream):
            fold_consumed(output.log, output.consumers)

    def _write_files(self, fitted: DataFrame, prefix: str) -> list[dict[str, Any]]:
        """Writes the rows of a batch as files.

        Raises:
            RefusedRowsError: Rows violate a constraint of the table that the publication can check instead.
        """
        run = self.run
        is_left = run.may_leave_constraints and not run.checks_constraints
        is_checked = run.outlet.is_own_constraint if is_left else None
        try:
            return DeltaJvm(fitted.sparkSession).write_files(fitted, run.table.path, prefix, is_checked)
        except Exception as error:
            if run.may_leave_constraints and not is_left and says(error, _BROKEN_CONSTRAINT):
                raise RefusedRowsError(summary(error)) from error
            raise

    def _fitted(self, frame: DataFrame, batch: BatchId) -> DataFrame:
        """Returns rows of the stage as they are staged."""
        expectations = self.run.stage.expectations
        if expectations is not None:
            frame = of_batch(expectations, frame, batch, self.run.watermark_before(batch))
        return fit(frame, self.run.table.schema)

    def _check_unique(self, session: SparkSession, batch: BatchId, adds: Sequence[Mapping[str, Any]]) -> None:
        """Refuses a key that occurs twice in an upsert. Without ``sequence_by`` the newer row is unknown."""
        sink, rule = self.run.stage.sink, self.run.outlet.merge
        if sink is None or sink.mode is not SinkMode.UPSERT or rule is None or rule.sequence_by is not None or not adds:
            return
        if repeated := repeated_keys(self._staged_rows(session, adds), rule.keys):
            raise InvalidPipelineError(
                f"Batch {batch} of stage '{self._name}' has {repeated} keys ({', '.join(rule.keys)}) more than once.",
                exists="The batches before it are staged.",
                safe="No row of this round is public.",
                remedy=f"Give the sink sequence_by=, which decides which row wins, or return one row per key; then {BEGIN_ANEW}.",
                stage=self._name,
                batch=batch,
                keys=list(rule.keys),
            )

    def _violations(self, session: SparkSession, adds: Sequence[Mapping[str, Any]]) -> dict[str, int]:
        expectations = self.run.stage.expectations
        if expectations is None or not expectations.sorts or not has_violations(adds):
            return {}
        return violations_of(self._staged_rows(session, adds))

    def _staged_rows(self, session: SparkSession, adds: Sequence[Mapping[str, Any]]) -> DataFrame:
        """Returns the rows in files of a table without partitions, because a batch's frame can be computed only once."""
        table = self.run.table
        paths = [f"{table.path}/{unquote(add['path'])}" for add in adds]
        return session.read.schema(as_stored(table.schema)).parquet(*paths).toDF(*table.schema.names)

    def _check_files(self, session: SparkSession, batch: BatchId, ends: _Ends) -> None:
        """Compares the files of a batch with the pins. Spark leaves out missing files, and reads replaced ones.

        First the total of the files that Spark found when it planned the batch is compared. Then each file is checked.
        """
        run = self.run
        if not any(bound.names_files for bound in run.bounds):
            return
        found: list[ListedFiles] | None = None
        for argument, (bound, previous, line) in zip(run.arguments, ends, strict=False):
            expected = bound.files_between(previous, line)
            if not expected:
                continue
            found = listed_files(self._query) if found is None else found
            listed = next((files for files in found if files.first in expected), None)
            if changed := _changed_files(session, expected, listed):
                in_store = any(file.is_in_store for file in expected.values())
                named = "; ".join([*changed[:_FILES_NAMED], *(["…"] if len(changed) > _FILES_NAMED else [])])
                raise InterruptedRunError(
                    f"Source '{argument}' of stage '{self._name}' has files that were changed or removed since they were found: {named}.",
                    exists=f"The batches before {batch} are staged.",
                    safe="No row of this batch is staged or public.",
                    remedy=f"{_FOR_STORES if in_store else _FOR_FILE_SYSTEMS} {without_it([run.stage.inputs[argument].name])}",
                    stage=self._name,
                    batch=batch,
                    files=len(changed),
                )

    def _check_sources(self, ends: _Ends) -> None:
        """Refuses a batch if a source was replaced since the query was started, or if the batch has skipped rows."""
        for number, (stream, (_, before, line)) in enumerate(zip(self.run.sources, ends, strict=True)):
            if stream is not None:
                read = replace(stream.read, line=before or NO_OFFSET)
                stream.kind.check_batch(read, line, stream.losses, self._query, number)

    def _check_data_files(self, session: SparkSession, batch: BatchId) -> None:
        """Refuses missing data files of Delta tables that are not accepted losses. Spark leaves out every missing file."""
        lost = self.run.lost_files
        if lost is None:
            return
        found = file_statuses(session, data_files(session, self._query))
        gone = sorted(path for path, status in found.items() if status is None and path not in lost)
        if gone:
            raise InterruptedRunError(
                f"Batch {batch} of stage '{self._name}' has read Delta tables with {len(gone)} missing data files, such as {gone[0]}.",
                exists=f"The batches before {batch} are staged.",
                safe="No row of this batch is staged or public.",
                remedy=f"Restore them, then run again: it continues. {without_it(self._source_names())}",
                stage=self._name,
                batch=batch,
                files=len(gone),
            )

    def _source_names(self) -> list[str]:
        return sorted({stream.read.name for stream in self.run.sources if stream is not None})

    def _check_event_times(self, batch: BatchId, facts: BatchFacts) -> None:
        """Refuses event times that no watermark can pass. Their results would stay in the state for ever."""
        limited, inputs = self.run.limited_times(), {mark.node: name for name, mark in self.run.watermarks.items()}
        for node, event_ms in facts.newest_event_ms.items():
            name = inputs[node]
            if name in limited and event_ms >= FOR_EVER_MS:
                raise RejectedError(
                    f"Batch {batch} of stage '{self._name}' has rows of input '{name}' with an event time in the year 9999 or later: what "
                    "is made of them may end after Spark's last watermark, and would stay in the state for ever.",
                    exists=f"The batches before {batch} are staged.",
                    safe="No row of this batch is staged or public.",
                    remedy="Leave such rows out in the function of the source, or give them another time, and run again: it continues. Or "
                    f"set them aside in a stage before this one, with expect= and violations=, and {BEGIN_ANEW}.",
                    stage=self._name,
                    input=name,
                    batch=batch,
                    found_ms=event_ms,
                )

    def _left_by_drain(self, batch: BatchId, facts: BatchFacts) -> dict[str, int]:
        is_drain = bool(facts.state_rows) and self.run.spark_log.offsets(batch).watermark_ms >= END_OF_TIME_MS
        return facts.state_rows if is_drain else {}

    def _input_rows(self, session: SparkSession, ends: _Ends) -> dict[str, int]:
        """Returns the number of rows that the batch has read and not left out, by input."""
        found = self._rows_read(session)
        for stream, argument, (_, before, line) in zip(self.run.sources, self.run.arguments, ends, strict=False):
            if stream is not None and argument in found:
                read = replace(stream.read, line=before or NO_OFFSET)
                found[argument] -= stream.kind.filtered(read, line, stream.losses)
        names = {node.name: argument for argument, node in self.run.stage.inputs.items()}
        for loss in self.run.backfill.losses if self.run.backfill else ():
            found[names[loss.input]] = found.get(names[loss.input], 0) + loss.rows
        return found

    def _rows_read(self, session: SparkSession) -> dict[str, int]:
        """Returns the number of rows that Spark has read, by input."""
        names = set(self.run.arguments)
        only_streams = not any(isinstance(node, Static) for node in self.run.stage.inputs.values())
        if len(names) == 1 and only_streams:
            return {names.pop(): rows_read(self._query)}
        by_stream = rows_read_by_stream(session, self._query) if names else None
        found: dict[str, int] = {}
        for number, rows in (by_stream or {}).items():
            if number < len(self.run.arguments):
                found[self.run.arguments[number]] = found.get(self.run.arguments[number], 0) + rows
        return found

    def _check_columns(self, batch: BatchId, ends: _Ends) -> None:
        """Refuses a batch whose files have more or moved columns than the stage was built with. Spark would not notice."""
        for stream, (bound, previous, line) in zip(self.run.sources, ends, strict=False):
            if stream is not None and bound.names_files:
                stream.kind.check_files(stream.read, bound.files_between(previous, line))
        for number, (bound, previous, line) in enumerate(ends):
            if bound.has_outgrown(previous, line):
                raise SourceChangedError(
                    f"Source '{self.run.arguments[number]}' of stage '{self._name}' has files with other columns or wider types.",
                    exists=f"The batches before {batch} are staged.",
                    safe="No row of this batch is staged.",
                    remedy="Run it again: it continues with the new columns.",
                    stage=self._name,
                    batch=batch,
                )

    def _limit_streams(self, ends: _Ends) -> None:
        """Sets the ends of the query's streams to those of the stage, once. When a query starts, Spark finds other ends by itself.

        Otherwise each of the next batches would be cut back, and run by a start of its own.
        """
        if not self._are_streams_limited:
            self._are_streams_limited, available = True, [bound.available(line) for bound, _, line in ends]
            if any(available):
                limit_kafka_streams(self._query, available)

    def _facts(self, batch: BatchId) -> BatchFacts:
        facts = batch_facts(self._query)
        if self.run.held and self.run.spark_log.offsets(batch).watermark_ms == 0:
            # if its first batch has no event times, a query loses a watermark before 1970, and would close windows too early
            forgotten = batch > 0 and self.run.spark_log.offsets(BatchId(batch - 1)).watermark_ms < 0
            if forgotten or facts.late_rows > 0:
                raise BeforeEpochError
        if self.run.held and self.run.spark_log.offsets(batch).watermark_ms == BEGINNING_OF_TIME_MS and facts.late_rows > 0:
            raise RejectedError(
                f"Batch {batch} of stage '{self._name}' has rows with an event time before the year 1, which Spark would drop.",
                exists=f"The batches before {batch} are staged.",
                safe="Nothing of this batch is staged, and nothing of it is public.",
                remedy="Leave such rows out in the function of the source, or give them another time, and run again: it continues.",
                stage=self._name,
                batch=batch,
                rows=facts.late_rows,
            )
        return facts

    def _newest_by_input(self, batch: BatchId, facts: BatchFacts) -> dict[str, int]:
        before = self.run.log.read(BatchId(batch - 1)) if batch > 0 else None
        newest = dict(before.newest_event_ms) if before else {}
        inputs = {mark.node: name for name, mark in self.run.watermarks.items()}
        for node, event_ms in facts.newest_event_ms.items():
            name = inputs[node]
            newest[name] = max(newest.get(name, event_ms), event_ms)
        return newest

    def _check_same(self, earlier: StagedBatch, offsets: str, rows: int) -> None:
        """Refuses a second result of a batch if it differs from the first.

        The first result counts. The second is only computed for the state.
        """
        if earlier.offsets == offsets and earlier.rows == rows:
            return
        what = "other input" if earlier.offsets != offsets else f"{rows} rows after {earlier.rows}"
        raise InterruptedRunError(
            f"Batch {earlier.batch} of stage '{self._name}' was computed twice and had {what}: the stage is not deterministic.",
            exists="The first result is staged and not public.",
            safe="No table was changed.",
            remedy="Remove everything that differs between two runs of the same rows (random values, the clock, an unpinned static input), "
            f"then {BEGIN_ANEW}.",
            stage=self._name,
            batch=earlier.batch,
            expected=earlier.rows,
            found=rows,
        )


def _changed_files(session: SparkSession, expected: Mapping[str, ExpectedFile], listed: ListedFiles | None) -> list[str]:
    """Returns descriptions of changed files.

    A file that was deleted after Spark opened it was read. So if Spark found all files, only existing files are compared.
    """
    sizes = [file.size_bytes for file in expected.values()]
    whole = listed is not None and listed.count == len(expected)
    whole = whole and listed is not None and (None in sizes or listed.size_bytes == sum(size or 0 for size in sizes))
    unlisted = set() if whole or listed is None else set(expected) - listed.paths()
    changed = [f"{path} was missing" for path in sorted(unlisted)]
    for path, status in file_statuses(session, expected).items():
        if path in unlisted or (status is None and whole):
            continue
        if difference := expected[path].difference(status):
            changed.append(f"{path} {difference}")
    if not whole and listed is not None and not changed:
        changed.append(
            f"{listed.size_bytes} bytes were found in {listed.count} files, but {sum(s or 0 for s in sizes)} were expected"
        )
    return changed
