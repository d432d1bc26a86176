"""The deleted keys of sinks with keys: each incarnation remembers them in tables of its own.

A publication buries keys before its rows become public. So what an abandoned incarnation has buried last may be of rows that never
became public; the next one begins with what it had when its newest public checkpoint was.
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
from spark_jobs.publication.publisher import SinkLine
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
"""The table is folded by :mod:`spark_jobs.publication.deleted_keys`. An older version is read when the incarnation is abandoned, whenever
that is: so Delta, which goes by age, deletes none. A checkpoint of the log says up to where the table was folded: so Delta writes none."""


@dataclass(frozen=True)
class Tombstones:
    """Those of the live incarnation.

    Args:
        session: A session with Delta.
        sinks: As this start declares them.
        places: Where it finds their tables.
    """

    session: SparkSession
    home: Files
    incarnation: IncarnationId
    sinks: Mapping[SinkName, Sink]
    places: Mapping[SinkName, TablePlace]

    def remembered_by(self, incarnation: IncarnationId, sink: SinkName) -> bool:
        """Whether an incarnation has come to remember a sink's deletes."""
        return bool(self.home.names(f"{tombstones_path(incarnation)}/{sink}/{DELTA_LOG}"))

    def inherit(self, line: SinkLine, earlier: IncarnationId, reached: CheckpointId | None) -> None:
        """Takes over what an earlier incarnation remembers of its public checkpoints; idempotent, durable on return.

        Nothing where it remembers nothing, or what it remembers is of other keys.

        Args:
            line: What the earlier incarnation publishes into the sink.
            earlier: That incarnation.
            reached: The newest checkpoint that it has made public there.
        """
        rule = self._rule(line)
        if rule is None or rule.sequence_by is None or not self.remembered_by(earlier, line.sink):
            return
        source = self._uri(earlier, line.sink)
        version = _version_at(source, line.app, reached)
        public = self.session.read.format("delta").option("versionAsOf", version).load(spark_path(source))
        *keys, sequence = (name.casefold() for name in public.columns)
        if {key.casefold() for key in rule.keys} != set(keys) or rule.sequence_by.casefold() != sequence:
            return
        target = self._uri(self.incarnation, line.sink)
        with step(Step.INHERIT_KEYS):
            prepare_tombstones(self.session, public, target)
            public.write.format("delta").mode("overwrite").save(spark_path(target))
            sync_below(self.home, f"{tombstones_path(self.incarnation)}/{line.sink}")

    def _rule(self, line: SinkLine) -> MergeRule | None:
        here = line.sink in self.places and self.places[line.sink].uri == line.table
        return self.sinks[line.sink].merge if here else None

    def _uri(self, incarnation: IncarnationId, sink: SinkName) -> str:
        return uri_of(self.home.below(f"{tombstones_path(incarnation)}/{sink}"))


def prepare_tombstones(session: SparkSession, remembered: DataFrame, uri: str) -> StagingTable:
    """The table at ``uri``, made if it is missing; idempotent.

    Args:
        session: A session with Delta.
        remembered: A frame with the columns of the keys, then ``sequence_by``.
        uri: The table; the last part is the sink's name.
    """
    return prepare_table(session, TablePlace(uri), remembered, own_design(remembered, _KEPT_BY_US), uri.rpartition("/")[2])


def _version_at(uri: str, app: AppId, reached: CheckpointId | None) -> int:
    """The newest version that buries nothing of a later checkpoint; each burial carries the number of its checkpoint."""
    version = open_table(uri).facts.version
    while (open_table(uri, version).transaction_version(app) or 0) > (reached or 0):
        version -= 1
    return version
