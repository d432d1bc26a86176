"""A consumer goes on in a private log that was built elsewhere from a checkpoint."""

import pytest
from pyspark.sql import DataFrame

from spark_jobs.checkpoint.checkpoint_store import CheckpointStore
from spark_jobs.home.layout import WORK
from spark_jobs.protocol.ids import AttemptNumber, BatchId, CheckpointId, StageName
from spark_jobs.publication.delta_jvm import DeltaJvm
from spark_jobs.runtime.spark.session import session_for_run
from spark_jobs.runtime.spark.spark_log import NO_BATCH, SparkLog, checkpoint_directory
from spark_jobs.runtime.staged.channel_cut import cut_channel, log_directory
from spark_jobs.runtime.staged.log_folding import Consumer, fold_consumed
from spark_jobs.runtime.staged.private_log import PrivateLog, StagedBatch
from spark_jobs.runtime.start.restore import restore
from spark_jobs.runtime.state.pinning import StateCopies, new_state_directory, persist, pin
from spark_jobs.storage.files import Files, local_path
from spark_jobs.storage.table_uris import table_uri
from tests.spark.conftest import Site
from tests.support.documents import a_sample_manifest
from tests.support.places import in_a_store_at_night
from tests.support.private_logs import begun
from tests.support.state_site import cut
from tests.support.systems import quick

pytestmark = pytest.mark.spark

PRODUCER, CONSUMER = StageName("producer"), StageName("consumer")
ROWS = 10


class Channel:
    """A stage that stages ten ids per batch, and a query that takes two versions per batch, in one work directory after the other."""

    def __init__(self, site: Site) -> None:
        self.spark, self.site = session_for_run(site.spark), site
        self.table = site.table("table of rows")
        self.spark.sql(f"CREATE TABLE delta.`{self.table}` (id LONG) USING delta")
        self.delta = DeltaJvm(self.spark)
        _, metadata, protocol = self.delta.snapshot(self.table)
        self.consumed: dict[int, list[int]] = {}
        self.move("first")
        self.log.begin(metadata, protocol, None)

    def move(self, work: str) -> None:
        self.work = self._work(work)
        self.log = PrivateLog(self.work, log_directory(PRODUCER), table_uri(self.table))
        self.spark_log = SparkLog(self.work, checkpoint_directory(CONSUMER))
        self.consumer = Consumer(self.spark_log, 0)

    @property
    def home(self) -> Files:
        """Returns the home as another host opens it."""
        return self.site.files

    def _work(self, name: str) -> Files:
        return quick(local_path(self.home, f"{WORK}/{name}"))

    def stage(self, batches: int, first: int) -> None:
        for batch in range(first, first + batches):
            rows = self.spark.range(batch * ROWS, (batch + 1) * ROWS, numPartitions=1).toDF("id")
            adds = self.delta.write_files(rows, self.table, f"prefix-{batch}-")
            self.log.append(StagedBatch(BatchId(batch), "", ROWS, 0, {}, tuple(adds)))

    def consume(self) -> None:
        def take(frame: DataFrame, batch: int) -> None:
            self.consumed[batch] = sorted(row.id for row in frame.collect())

        reader = self.spark.readStream.format("delta").option("startingVersion", 0).option("maxFilesPerTrigger", 2)
        stream = reader.load(self.log.url).writeStream.foreachBatch(take)
        place = str(local_path(self.work, checkpoint_directory(CONSUMER)))
        assert stream.option("checkpointLocation", place).trigger(availableNow=True).start().awaitTermination(120)

    def take_checkpoint(self, checkpoint: int, produced: int, consumed: BatchId) -> None:
        number, store = CheckpointId(checkpoint), CheckpointStore(self.home)
        channel = cut_channel(store, number, PRODUCER, self.log, BatchId(produced), [self.consumer.cut(consumed)])
        place = new_state_directory(self.home, CONSUMER, number, AttemptNumber(1))
        files = persist(pin(StateCopies(self.home, self.spark_log), consumed, place, None))
        nothing = cut_channel(store, number, CONSUMER, begun(self.home, "work/none/log"), NO_BATCH, [])
        stages = {
            PRODUCER: cut(produced, ()).model_copy(update={"channel": channel}),
            CONSUMER: cut(consumed, files).model_copy(update={"channel": nothing}),
        }
        self.cut, self.manifest = channel, a_sample_manifest(checkpoint, stages)
        self.consumed_at_cut = {batch: ids for batch, ids in self.consumed.items() if batch <= consumed}

    def restore(self, work: str) -> None:
        self.site.lose_work()
        restore(self.home, self.manifest, self._work(work))
        self.move(work)
        self.consumed = dict(self.consumed_at_cut)

    @property
    def ids(self) -> list[int]:
        return [each for batch in sorted(self.consumed) for each in self.consumed[batch]]


@in_a_store_at_night
@pytest.mark.parametrize(
    ("behind", "folded"),
    [
        (3, True),
        *(
            pytest.param(behind, folded, marks=pytest.mark.nightly)
            for behind, folded in ((0, True), (0, False), (1, True), (1, False), (3, False))
        ),
    ],
)
def test_a_consumer_sees_every_row_once_wherever_it_was_when_the_checkpoint_was_taken(
    site: Site, behind: int, folded: bool
) -> None:
    channel = Channel(site)
    channel.stage(10, 0)
    channel.consume()
    if folded:
        fold_consumed(channel.log, [channel.consumer], batches_min=1)
    at = BatchId(channel.spark_log.last_commit() - behind)
    channel.stage(2, 10)
    channel.take_checkpoint(1, 11, at)
    assert channel.cut.in_flight_rows == ROWS * (2 + 2 * behind)
    channel.stage(2, 12)  # rows after the cut are staged again
    channel.restore("second")
    assert channel.log.latest() == 12
    channel.stage(3, 12)
    channel.consume()
    assert channel.ids == list(range(15 * ROWS))
    channel.stage(1, 15)
    channel.take_checkpoint(2, 15, channel.spark_log.last_commit())
    channel.restore("third")
    channel.consume()
    assert channel.ids == list(range(16 * ROWS))


def test_a_consumer_that_has_not_begun_sees_everything(site: Site) -> None:
    channel = Channel(site)
    channel.stage(4, 0)
    channel.take_checkpoint(1, 3, NO_BATCH)
    channel.restore("second")
    channel.consume()
    assert channel.ids == list(range(4 * ROWS))
