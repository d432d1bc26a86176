"""Backfills losses: reads rows again that a stage has passed over, and stages the stage's result for them. See docs/adr/0041.

The rows are staged by a batch that reads nothing new. Its version of the private log names the losses. So the rows reach consumers, tables
and checkpoints as those of every batch do, and are staged once: an attempt that finds the version does not read them again.
"""

import logging
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any
from urllib.parse import unquote

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import StructType

from spark_jobs.api.functions import PARAMS
from spark_jobs.api.source import Source, Static
from spark_jobs.api.stage import Stage
from spark_jobs.protocol.documents import SinkMode
from spark_jobs.protocol.errors import BEGIN_ANEW, RejectedError
from spark_jobs.protocol.ids import StageName
from spark_jobs.protocol.losses import PassedOver, StagedFile, place_in_words
from spark_jobs.runtime.inputs.inputs import source_frame, source_rows, static_frame
from spark_jobs.runtime.inputs.source_kinds import kind_of
from spark_jobs.runtime.spark.plan import streaming_leaves
from spark_jobs.runtime.spark.spark_errors import refusing
from spark_jobs.runtime.stages.begin_anew import run_with
from spark_jobs.runtime.stages.build import call_stage, outlet_of, stage_session
from spark_jobs.runtime.stages.built_stage import Backfill
from spark_jobs.runtime.stages.round_site import RoundSite
from spark_jobs.runtime.stages.stage import StageRun
from spark_jobs.runtime.tables.schemas import as_stored

_LOG = logging.getLogger(__name__)
_SAFE = "None of its rows is staged or public."
_KEEP = "If its rows may stay out, accept the loss: spark-jobs accept."


def check_backfill(loss: PassedOver, reached: Sequence[StageRun]) -> None:
    """Refuses to backfill a loss if the tables would not equal those of a run that has never left its rows out.

    Args:
        loss: The loss.
        reached: Its stage and all stages downstream of it. Empty if the pipeline has no such stage.

    Raises:
        RejectedError: The loss is refused.
    """
    reads = {node.name for node in reached[0].stage.inputs.values()} if reached else set()
    if loss.input not in reads:
        raise _refused(loss, f"no stage '{loss.stage}' reads '{loss.input}' any more", f"Start the code that has them. {_KEEP}")
    for run in reached:
        if run.stateful:
            raise _refused(
                loss,
                f"stage '{run.stage.name}' keeps a state, in which these rows would be late or out of order",
                f"Restore a savepoint that was taken before the loss (--restore), with the corrected code, or {BEGIN_ANEW}. {_KEEP}",
            )
        sink, rule = run.stage.sink, run.outlet.merge
        if sink is not None and sink.mode is SinkMode.UPSERT and rule is not None and rule.sequence_by is None:
            raise _refused(
                loss,
                f"sink '{sink.name}' is an upsert without sequence_by=, so the older rows would replace newer ones",
                f"Restore a savepoint that was taken before the loss (--restore), with the corrected code, or {BEGIN_ANEW}. {_KEEP}",
            )


def backfill(run: StageRun, losses: Sequence[PassedOver], stages: Mapping[StageName, StageRun], site: RoundSite) -> None:
    """Stages the result of a stage for rows that it has left out.

    Args:
        run: The stage. Its query does not run, and no batch is planned.
        losses: Losses of the stage.
        stages: All stages of the pipeline.
        site: Site of the round.

    Raises:
        RejectedError: The rows are gone.
        InterruptedRunError: The stage still fails with these rows.
    """
    session = stage_session(run.stage, site.spark)
    results = [_result(run, loss, stages, session, site) for loss in losses]
    rows = results[0]
    for result in results[1:]:
        rows = rows.unionByName(result)
    count = sum(loss.rows for loss in losses)
    _LOG.info("stage %s processes %d rows of %d losses", run.stage.name, count, len(losses))
    run_with(replace(run, backfill=Backfill(rows, losses)), {})


def _result(
    run: StageRun, loss: PassedOver, stages: Mapping[StageName, StageRun], session: SparkSession, site: RoundSite
) -> DataFrame:
    """Returns the staged columns of a stage's result for the rows of one loss. Other streams of the stage have no rows."""
    available: dict[str, Any] = {PARAMS: site.params}
    for argument, node in run.stage.inputs.items():
        if isinstance(node, Static):
            available[argument] = static_frame(node, session, site.params, site.statics.pinned(node.name))[0]
        elif node.name == loss.input:
            available[argument] = _rows(loss, node, stages, session, site)
        else:
            available[argument] = session.createDataFrame([], _columns(node, stages, session, site))
    return outlet_of(run.stage, session, call_stage(run.stage, available, streaming=False), site).frame


def _columns(node: Source | Stage, stages: Mapping[StageName, StageRun], session: SparkSession, site: RoundSite) -> StructType:
    if isinstance(node, Source):
        return source_frame(node, session, site.params).schema
    return StructType([field for field in stages[node.name].table.schema if field.name in stages[node.name].frame.columns])


def _rows(
    loss: PassedOver, node: Source | Stage, stages: Mapping[StageName, StageRun], session: SparkSession, site: RoundSite
) -> DataFrame:
    """Returns the rows of a loss as the stage's function gets them.

    Raises:
        RejectedError: They are gone, or are not those that were left out.
    """
    with refusing(f"Loss {loss.id} cannot be backfilled: {place_in_words(loss)} cannot be read", _KEEP, _SAFE, loss=loss.id):
        found = (
            _staged_rows(loss, stages[node.name], session) if isinstance(node, Stage) else _source_rows(loss, node, session, site)
        )
        count = found.count()
    if count != loss.rows:
        raise _refused(loss, f"{place_in_words(loss)} had {loss.rows} rows, and has {count} now", f"Restore it. {_KEEP}")
    return found if isinstance(node, Stage) else source_rows(node, session, site.params, found)


def _source_rows(loss: PassedOver, source: Source, session: SparkSession, site: RoundSite) -> DataFrame:
    """Returns the rows of a loss as the source's function loads them."""
    leaves = streaming_leaves(source_frame(source, session, site.params))
    if len(leaves) != 1:
        raise _refused(loss, f"source '{source.name}' has several streams", f"To read its rows again, {BEGIN_ANEW}. {_KEEP}")
    return kind_of(leaves[0]).rows_of(session, leaves[0], loss.unit)


def _staged_rows(loss: PassedOver, producer: StageRun, session: SparkSession) -> DataFrame:
    """Returns the rows of a file that another stage has staged, with the columns of its channel."""
    unit, table = loss.unit, producer.table
    assert isinstance(unit, StagedFile)
    stored = as_stored(table.schema)
    in_file = [
        (name, field) for name, field in zip(table.schema.names, stored, strict=True) if field.name not in unit.partition_values
    ]
    read = session.read.schema(StructType([field for _, field in in_file])).parquet(
        f"{table.path}/{unquote(unit.path or unit.file)}"
    )
    rows = read.toDF(*(name for name, _ in in_file))
    for name, field in zip(table.schema.names, stored, strict=True):
        if field.name in unit.partition_values:
            rows = rows.withColumn(name, F.lit(unit.partition_values[field.name]).cast(field.dataType))
    return rows.select(*(name for name in table.schema.names if name in producer.frame.columns))


def _refused(loss: PassedOver, why: str, remedy: str) -> RejectedError:
    return RejectedError(
        f"Loss {loss.id} of stage '{loss.stage}' cannot be backfilled: {why}.",
        exists="The loss is open.",
        safe=_SAFE,
        remedy=remedy,
        loss=loss.id,
        stage=loss.stage,
    )
