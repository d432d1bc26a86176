"""The position of a stage in its channels, and the unread rows."""

import pytest

from spark_jobs.protocol.ids import BatchId
from spark_jobs.runtime.inputs.bounds import NO_OFFSET
from spark_jobs.runtime.spark.spark_log import NO_BATCH
from spark_jobs.runtime.staged.channel_bound import ChannelBound, channel_position
from spark_jobs.runtime.staged.private_log import StagedAmount
from tests.support.channels import CONSUMER, PRODUCER, Channel

FILE_ROWS, FILE_BYTES = 2, 9


@pytest.fixture
def channel() -> Channel:
    return Channel()


def amount(files: int) -> StagedAmount:
    return StagedAmount(files * FILE_ROWS, files * FILE_BYTES, files)


def test_all_rows_are_unread_before_the_first_batch(channel: Channel) -> None:
    assert channel.consumption.lag() == {1: amount(6)}
    assert channel.consumption.in_flight_bytes({PRODUCER}) == 6 * FILE_BYTES
    assert not channel.consumption.has_consumed({PRODUCER})
    assert channel.consumption.in_flight_bytes(set()) == 0
    assert channel.consumption.has_consumed(set())


def test_all_rows_are_unread_after_a_batch_that_has_read_nothing_of_the_channel(channel: Channel) -> None:
    channel.consume(0, None)
    assert channel.consumption.lag() == {1: amount(6)}
    assert channel.consumption.consumed_by(BatchId(0)) == {}


def test_rows_that_were_read_are_not_unread(channel: Channel) -> None:
    channel.consume(0, 2)
    assert channel.consumption.lag() == {1: amount(5)}
    channel.consume(1, 5)
    assert channel.consumption.lag() == {1: amount(0)}
    assert channel.consumption.has_consumed({PRODUCER})


def test_a_version_that_was_read_in_part_counts_completely(channel: Channel) -> None:
    channel.consume(0, 2, index=0)
    assert channel.consumption.lag() == {1: amount(5)}
    assert channel.consumption.consumed_by(BatchId(0)) == {PRODUCER: 1}


@pytest.mark.parametrize(("produced", "files"), [(0, 0), (1, 2), (2, 2), (3, 5)])
def test_rows_in_flight_at_a_cut_are_the_rows_between_the_two_stages(channel: Channel, produced: int, files: int) -> None:
    channel.consume(0, 2)
    channel.consume(1, 5)
    cut = {CONSUMER: BatchId(0), PRODUCER: BatchId(produced)}
    assert channel.consumption.in_flight(CONSUMER, cut) == amount(files)


def test_all_produced_rows_are_in_flight_before_the_first_batch(channel: Channel) -> None:
    assert channel.consumption.in_flight(CONSUMER, {CONSUMER: NO_BATCH, PRODUCER: BatchId(1)}) == amount(3)


def test_the_rest_of_a_channel_goes_up_to_the_last_produced_batch(channel: Channel) -> None:
    channel.consume(0, 2, index=0)
    bound = channel.bounds[1]
    assert isinstance(bound, ChannelBound)
    rest = bound.rest(channel.spark_log.offsets(BatchId(0)).sources[1])
    assert rest is not None
    assert bound.reached(rest)
    position = channel_position(rest)
    assert position is not None
    channel.consume(1, position.version, position.index)
    assert channel.consumption.lag() == {1: amount(0)}


def test_a_channel_of_which_nothing_was_read_has_no_rest(channel: Channel) -> None:
    bound = channel.bounds[1]
    assert isinstance(bound, ChannelBound)
    assert bound.rest(NO_OFFSET) is None
