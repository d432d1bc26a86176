"""Spark settings that a user may give, and settings that a guarantee fixes."""

from collections.abc import Mapping
from types import MappingProxyType

from spark_jobs.api.refusals import Place

NO_SETTINGS: Mapping[str, str] = MappingProxyType({})

_STATE = "a restart needs the state's format unchanged"
_RULES = "Spark must refuse queries that would give wrong results"
_FIXED: Mapping[str, str] = {
    "spark.databricks.delta.stats.collect": "rows are counted from the statistics of staged files",
    "spark.sql.files.ignoreCorruptFiles": "rows of files that cannot be read would be missing silently",
    "spark.sql.files.ignoreMissingFiles": "rows of missing files would be missing silently",
    "spark.sql.streaming.fileSource.log.compactInterval": "a batch that reads past its end is cut back in that log",
    "spark.sql.streaming.minBatchesToRetain": "a restart reads the plans of the last batches",
    "spark.sql.streaming.checkpointLocation": "the checkpoint directories belong to the home's work directory",
    "spark.sql.streaming.multipleWatermarkPolicy": "a drain relies on the smallest watermark of all inputs",
    "spark.sql.streaming.noDataMicroBatches.enabled": "windows that have passed must close before an input counts as ended",
    "spark.sql.streaming.offsetLog.formatVersion": "drain batches are written in the offset log's version 1",
    "spark.sql.streaming.stateStore.checkpointFormatVersion": _STATE,
    "spark.sql.streaming.stateStore.providerClass": _STATE,
    "spark.sql.streaming.stateStore.rocksdb.changelogCheckpointing.enabled": _STATE,
    "spark.sql.streaming.stateStore.rocksdb.trackTotalNumberOfRows": "a drain checks whether the state still holds a row",
    "spark.sql.streaming.statefulOperator.checkCorrectness.enabled": _RULES,
    "spark.sql.streaming.stopActiveRunOnRestart": "a stage may never run twice at once",
    "spark.sql.streaming.unsupportedOperationCheck": _RULES,
}
_RUNTIME_PREFIXES = ("spark.sql.", "spark.databricks.delta.", "spark.delta.")
_STATIC_PREFIXES = ("spark.sql.catalog", "spark.sql.extensions", "spark.sql.warehouse.dir")
_SHUFFLE_PARTITIONS = "spark.sql.shuffle.partitions"


def check_settings(place: Place, conf: Mapping[str, str]) -> Mapping[str, str]:
    """Returns the settings of an application unchanged.

    Raises:
        InvalidPipelineError: A setting is not a string, is not Spark's, or is fixed by a guarantee.
    """
    for key, value in conf.items():
        if not _is_text(key, value):
            raise place.refused(
                f"the setting {key!r} = {value!r} is not a string.", f'Write "{str(value).lower()}".', setting=str(key)
            )
        if not key.startswith("spark."):
            raise place.refused(f"{key!r} is not a Spark setting.", 'Their names begin with "spark.".', setting=key)
        if key in _FIXED:
            raise place.refused(f"{key} cannot be set: {_FIXED[key]}.", "Remove it.", setting=key)
    return MappingProxyType(dict(conf))


def check_stage_settings(place: Place, conf: Mapping[str, str]) -> Mapping[str, str]:
    """Returns the settings of a single stage. Each passes :func:`check_settings` and can differ between queries of one application.

    Raises:
        InvalidPipelineError: A setting belongs to the whole application.
    """
    for key in check_settings(place, conf):
        static = not key.startswith(_RUNTIME_PREFIXES) or key.startswith(_STATIC_PREFIXES)
        if static or key == _SHUFFLE_PARTITIONS:
            raise place.refused(f"{key} is a setting of the whole application.", "Move it to Pipeline(conf=...).", setting=key)
    return MappingProxyType(dict(conf))


def _is_text(*values: object) -> bool:
    return all(isinstance(value, str) for value in values)
