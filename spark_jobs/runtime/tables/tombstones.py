"""The deleted keys of sinks with keys. Each incarnation stores them in its own tables.

A publication stores deleted keys before its rows become public. So the last stored keys of an abandoned incarnation may belong to rows that
never became public. The next incarnation begins with the keys of the newest public checkpoint.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from pyspark.sql import DataFrame, SparkSession

from spark_jobs.api.sink import MergeRule, Sink
from spark_jobs.home.layout import tombstones_path
from spark_jobs.protocol.delta_log import DELTA_LOG
from spark_jobs.protocol.ids import AppId, CheckpointId, IncarnationId, SinkName
from spark_jobs.protocol.steps import Step, step
from spark_jobs.publication.delta_rs import open_table
from spark_jobs.publication.publisher import SinkIncarnation
from spark_jobs.runtime.tables.channels import own_design
from spark_jobs.runtime.tables.table_places import TablePlace
from spark_jobs.runtime.tables.tables import StagingTable, prepare_table
from spark_jobs.storage.files import Files, sync_below
from spark_jobs.storage.table_uris import spark_path, uri_of

_KEPT_BY_US = {
    "delta.enableExpiredLogCleanup": "false",
    "delta.checkpointInterval": "1000000000",
    "delta.checkpointPolicy": "classic",
    "delta.enableDeletionVectors": "false",
}
"""Properties that keep Delta from deleting old versions and from writing checkpoints.

:mod:`spark_jobs.publication.deleted_keys` folds the table. When an incarnation is abandoned, at any time, an older version is read, so
Delta must not delete versions by age. A checkpoint of the log marks the end of the folded part, so Delta must not write one. """


@dataclass(frozen=True)
class Tombstones:
    """The deleted keys of the live incarnation.

    Args:
        session: A session with Delta.
        sinks: Sinks as this start declares them.
        places: Places of their tables.
    """

    session: SparkSession
    home: Files
    incarnation: IncarnationId
    sinks: Mapping[SinkName, Sink]
    places: Mapping[SinkName, TablePlace]

    def remembered_by(self, incarnation: IncarnationId, sink: SinkName) -> bool:
        """Returns True if an incarnation has stored deletes of a sink."""
        return bool(self.home.names(f"{tombstones_path(incarnation)}/{sink}/{DELTA_LOG}"))

    def inherit(self, in_sink: SinkIncarnation, earlier: IncarnationId, reached: CheckpointId | None) -> None:
        """Copies an earlier incarnation's keys of public checkpoints. Idempotent, durable on return.

        Does nothing if there are none, or if the sink has other key columns now.

        Args:
            in_sink: The earlier incarnation in the sink.
            earlier: Its id.
            reached: Its newest public checkpoint in the sink.
        """
        rule = self._rule(in_sink)
        if rule is None or rule.sequence_by is None or not self.remembered_by(earlier, in_sink.sink):
            return
        source = self._uri(earlier, in_sink.sink)
        version = _version_at(source, in_sink.app, reached)
        public = self.session.read.format("delta").option("versionAsOf", version).load(spark_path(source))
        *keys, sequence = (name.casefold() for name in public.columns)
        if {key.casefold() for key in rule.keys} != set(keys) or rule.sequence_by.casefold() != sequence:
            return
        target = self._uri(self.incarnation, in_sink.sink)
        with step(Step.INHERIT_KEYS):
            prepare_tombstones(self.session, public, target)
            public.write.format("delta").mode("overwrite").save(spark_path(target))
            sync_below(self.home, f"{tombstones_path(self.incarnation)}/{in_sink.sink}")

    def _rule(self, in_sink: SinkIncarnation) -> MergeRule | None:
        here = in_sink.sink in self.places and self.places[in_sink.sink].uri == in_sink.table
        return self.sinks[in_sink.sink].merge if here else None

    def _uri(self, incarnation: IncarnationId, sink: SinkName) -> str:
        return uri_of(self.home.below(f"{tombstones_path(incarnation)}/{sink}"))


def prepare_tombstones(session: SparkSession, remembered: DataFrame, uri: str) -> StagingTable:
    """Returns the table at ``uri``. Creates it if it is missing. Idempotent.

    Args:
        session: A session with Delta.
        remembered: A frame with the columns of the keys, then ``sequence_by``.
        uri: URI of the table. Its last part is the sink's name.
    """
    return prepare_table(session, TablePlace(uri), remembered, own_design(remembered, _KEPT_BY_US), uri.rpartition("/")[2])


def _version_at(uri: str, app: AppId, reached: CheckpointId | None) -> int:
    """Returns the newest version without keys of a later checkpoint. Each version has the number of its checkpoint."""
    version = open_table(uri).facts.version
    while (open_table(uri, version).transaction_version(app) or 0) > (reached or 0):
        version -= 1
    return version
