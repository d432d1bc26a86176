"""Publications of sinks with keys by delta-rs: decides which ones it can make, and makes them.

Loaded only when one is due. It needs pyarrow, which takes an Airflow worker longer to load than a publication takes.
"""

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import pyarrow as pa

from spark_jobs.protocol.documents import Publisher, SinkCut
from spark_jobs.protocol.ids import AppId, CheckpointId
from spark_jobs.protocol.merge_cut import MergeCut
from spark_jobs.protocol.steps import Step, step
from spark_jobs.publication.delta_rs import OpenTable, data_files, open_table
from spark_jobs.publication.merge_rows import RowOrder, insert, upsert
from spark_jobs.publication.merge_source import MergeSource, fields_of, in_turn_or_at_once, read_file

_FILES_MOST = 10_000
"""Maximum number of files of a table. delta-rs opens such a table in a few hundredths of a second."""


def why_spark(cut: SinkCut, table: OpenTable, lines: Sequence[Mapping[str, Any]], *, replace: bool) -> list[str]:
    """Returns the reasons to leave a publication of a sink with keys to Spark although delta-rs can merge into its table.

    Args:
        cut: Cut of the sink.
        table: Table of the sink.
        lines: Staged files.
        replace: True if the present rows of the table are removed.

    Raises:
        StorageError: The storage fails.
    """
    rule = _rule(cut)
    if replace:
        return ["it replaces the rows of the table"]
    found = _source(cut, rule, table).obstacles() if lines else []
    if rule.tombstones is not None:
        found += open_table(rule.tombstones).obstacles(Publisher.DELTA_RS, cut.mode)
    return found or _too_large(rule, table, lines)


def publish_merge(
    table: OpenTable,
    cut: SinkCut,
    lines: Sequence[Mapping[str, Any]],
    app: AppId,
    version: CheckpointId,
    commit_info: Mapping[str, Any],
) -> None:
    """Merges staged rows into a table in one Delta transaction with ``SetTransaction(app, version)``. Durable on return.

    Deletes are stored before, in their own transaction. Repeating either changes nothing. Any commit since the table was opened is a
    conflict. The errors are those of :meth:`OpenTable.commit`.
    """
    if not lines:
        table.commit((), app, version, commit_info)
        return
    rule = _rule(cut)
    source = _source(cut, rule, table)
    order = source.order
    rows = source.read(lines)
    if source.adds_only:
        table.merge(insert(order.least(rows), order, source.written), app, version, commit_info)
        return
    if rule.tombstones is not None:
        with step(Step.BURY_KEYS):
            _bury(rule.tombstones, rows, order, app, version, commit_info)
    rows = order.greatest(rows)
    if rule.tombstones is not None:
        rows = order.risen(rows, _tombstones(rule.tombstones, rows, order))
    table.merge(upsert(rows, order, source.written, compared=source.is_compared), app, version, commit_info)


def _too_large(rule: MergeCut, table: OpenTable, lines: Sequence[Mapping[str, Any]]) -> list[str]:
    """Returns the reason why a publication is too large for a process without Spark, or nothing."""
    if table.file_count > _FILES_MOST:
        return [f"the table has more than {_FILES_MOST} files"]
    size_bytes = sum(int(line["add"]["size"]) for line in lines)
    for uri in (table.facts.uri, rule.tombstones):
        size_bytes += sum(size for _, size in data_files(uri)) if uri is not None else 0
    if size_bytes <= rule.spark_above_bytes:
        return []
    return [f"it reads {size_bytes} bytes, and spark_merge_above is {rule.spark_above_bytes}"]


def _bury(
    tombstones: str, rows: pa.Table, order: RowOrder, app: AppId, version: CheckpointId, commit_info: Mapping[str, Any]
) -> None:
    """Stores the deletes among staged rows. Makes no version without deletes. Idempotent."""
    deletes = rows.filter(rows[order.deleted])
    graves = open_table(tombstones)
    if not len(deletes) or (graves.transaction_version(app) or 0) >= version:
        return
    by_sequence = RowOrder(order.keys, order.sequence, order.deleted, ())
    latest = by_sequence.greatest(deletes).select([*order.keys, order.sequence])
    spelled = {name.casefold(): name for name in graves.columns}
    latest = latest.rename_columns([spelled[name.casefold()] for name in latest.schema.names])
    *keys, sequence = latest.schema.names
    latest = latest.append_column(order.deleted, pa.repeat(False, len(latest)))
    there = RowOrder(tuple(keys), sequence, order.deleted, ())
    graves.merge(upsert(latest, there, [*keys, sequence], compared=True), app, version, commit_info)


def _tombstones(uri: str, rows: pa.Table, order: RowOrder) -> pa.Table:
    """Returns the stored deleted keys, with the names and types of staged rows."""
    schema = pa.schema([rows.schema.field(name) for name in (*order.keys, order.sequence)])
    fields = {field["name"].casefold(): field for field in fields_of(open_table(uri).facts.shape)}
    wanted = [fields[name.casefold()] for name in schema.names]
    reads = [partial(read_file, uri, path, wanted) for path, _ in data_files(uri)]
    parts = [found.rename_columns(schema.names).cast(schema) for found in in_turn_or_at_once(uri, reads)]
    return pa.concat_tables(parts) if parts else schema.empty_table()


def _source(cut: SinkCut, rule: MergeCut, table: OpenTable) -> MergeSource:
    return MergeSource(cut, rule, open_table(rule.staged_in).facts.shape, table.facts.shape)


def _rule(cut: SinkCut) -> MergeCut:
    if cut.merge is None:
        raise ValueError(f"the rows of sink cut {cut.app} are not merged")
    return cut.merge
