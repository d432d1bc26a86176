"""A Kafka broker for the tests: one process on loopback with free ports, and functions that write into it.

A query without recorded offsets begins where its source's ``startingOffsets`` (or ``startingTimestamp``, …) say. Spark's default is
``latest``, so a test that writes before it starts a query gives ``earliest``. Spark resolves them once, into ``sources/<n>/0`` of the
query's checkpoint. A restart ignores the options and goes on after the last entry of the offset log. A partition that is added later is
read from its earliest offset, with any options.
"""

import itertools
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Iterable, Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import (  # type: ignore[attr-defined]  # some are exported without a word
    AclBinding,
    AclBindingFilter,
    AclOperation,
    AclPermissionType,
    AdminClient,
    ResourcePatternType,
    ResourceType,
)
from confluent_kafka.cimpl import NewPartitions, NewTopic

if TYPE_CHECKING:
    from concurrent.futures import Future

DEADLINE_S = 60.0
BROKER_JARS, SOURCE_JARS = ".kafka-broker.jars", ".source.jars"
_JAVA = ("-Xmx384m", "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn")
_SETTINGS = {
    "process.roles": "broker,controller",
    "node.id": 1,
    "controller.listener.names": "CONTROLLER",
    "inter.broker.listener.name": "PLAINTEXT",
    "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT",
    "auto.create.topics.enable": "false",
    "offsets.topic.replication.factor": 1,
    "offsets.topic.num.partitions": 1,
    "transaction.state.log.replication.factor": 1,
    "transaction.state.log.min.isr": 1,
    "transaction.state.log.num.partitions": 1,
    "share.coordinator.state.topic.replication.factor": 1,
    "share.coordinator.state.topic.min.isr": 1,
    "group.initial.rebalance.delay.ms": 0,
    "broker.session.timeout.ms": 1500,
    "broker.heartbeat.interval.ms": 300,
    "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
    "allow.everyone.if.no.acl.found": "true",
    "log.cleaner.backoff.ms": 200,
    "log.cleaner.min.cleanable.ratio": 0.01,
}
_EVERYBODY = "User:ANONYMOUS"
Value = bytes | None


def jars(name: str) -> list[str]:
    """Returns the jars that ``make test`` has fetched: :data:`BROKER_JARS` or :data:`SOURCE_JARS`."""
    stamp = Path(sys.prefix) / name
    assert stamp.exists(), f"{stamp} is missing: run `make warm`"
    return stamp.read_text().split("\n")[:-1]


@dataclass
class KafkaBroker:
    """A running broker.

    Every method that writes returns once the broker has the record.
    """

    servers: str
    """The bootstrap servers for clients."""
    process: "subprocess.Popen[bytes]"

    def create_topic(self, topic: str, partitions: int = 1, **settings: str) -> None:
        """Creates a topic. Settings have ``_`` for the dots of their names."""
        configs = {key.replace("_", "."): value for key, value in settings.items()}
        _done(self.admin.create_topics([NewTopic(topic, partitions, 1, config=configs)]))

    def add_partitions(self, topic: str, total: int) -> None:
        _done(self.admin.create_partitions([NewPartitions(topic, total)]))

    def delete_topic(self, topic: str) -> None:
        _done(self.admin.delete_topics([topic]))

    def expire(self, topic: str, partition: int, before: int) -> None:
        """Removes the records of a partition before an offset, as its retention would."""
        _done(self.admin.delete_records([TopicPartition(topic, partition, before)]))

    def send(self, topic: str, values: Iterable[Value], partition: int = 0, key: bytes | None = None) -> None:
        """Adds records to one partition, in this order. A value of None is a tombstone of ``key``."""
        producer = self.producer()
        for value in values:
            producer.produce(topic, value, key, partition)
        assert producer.flush(DEADLINE_S) == 0

    def send_in_transaction(self, topic: str, values: Iterable[Value], partition: int = 0, *, commit: bool = True) -> None:
        """Adds records in a transaction of their own, whose end also takes an offset. It is aborted unless ``commit``."""
        producer = self.producer(**{"transactional.id": f"test-{next(_TRANSACTIONS)}"})
        producer.init_transactions(DEADLINE_S)
        producer.begin_transaction()
        for value in values:
            producer.produce(topic, value, None, partition)
        assert producer.flush(DEADLINE_S) == 0
        (producer.commit_transaction if commit else producer.abort_transaction)(DEADLINE_S)

    def end_offsets(self, topic: str) -> dict[int, int]:
        """Returns for each partition the offset of the next record."""
        partitions = self.admin.list_topics(topic, DEADLINE_S).topics[topic].partitions
        with closing(Consumer(self._client | {"group.id": "ends"})) as consumer:
            return {number: consumer.get_watermark_offsets(TopicPartition(topic, number))[1] for number in partitions}

    def forbid(self, topic: str) -> None:
        """Takes the permission to see and to read a topic from all clients."""
        nobody = _EVERYBODY, "*", AclOperation.ALL, AclPermissionType.DENY
        _done(self.admin.create_acls([AclBinding(ResourceType.TOPIC, topic, ResourcePatternType.LITERAL, *nobody)]))

    def permit(self, topic: str) -> None:
        """Undoes :meth:`forbid`."""
        rule: Any = None, None, AclOperation.ANY, AclPermissionType.ANY  # the stubs forbid None
        _done(self.admin.delete_acls([AclBindingFilter(ResourceType.TOPIC, topic, ResourcePatternType.LITERAL, *rule)]))

    def producer(self, **settings: Any) -> Producer:
        return Producer(self._client | {"linger.ms": 0} | settings)

    @cached_property
    def admin(self) -> AdminClient:
        return AdminClient(self._client)

    @property
    def _client(self) -> dict[str, Any]:
        return {"bootstrap.servers": self.servers, "log_level": 0}  # otherwise it would log the broker's end


_TRANSACTIONS = itertools.count()


def _done(changes: "Mapping[Any, Future[Any]]") -> None:
    for change in changes.values():
        change.result(DEADLINE_S)


@contextmanager
def kafka_broker(directory: Path) -> Iterator[KafkaBroker]:
    """Starts a broker with its data in ``directory``. It answers on entry, and ends when the context closes."""
    port, controller_port = _free_ports()
    listeners = f"PLAINTEXT://127.0.0.1:{port},CONTROLLER://127.0.0.1:{controller_port}"
    own = {
        "listeners": listeners,
        "advertised.listeners": listeners,
        "controller.quorum.voters": f"1@127.0.0.1:{controller_port}",
        "log.dirs": directory / "data",
    }
    directory.mkdir(parents=True, exist_ok=True)
    settings = directory / "server.properties"
    settings.write_text("".join(f"{key}={value}\n" for key, value in (_SETTINGS | own).items()))
    with (directory / "broker.log").open("wb") as log:
        subprocess.run(
            _java("kafka.tools.StorageTool", "format", "-t", "kafkabrokeroftests0000", "-c", str(settings)),
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            check=True,
            timeout=DEADLINE_S,
        )
        process = subprocess.Popen(
            _java("kafka.Kafka", str(settings)),
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    try:
        _wait_until_it_answers(process, port, directory / "broker.log")
        yield KafkaBroker(f"127.0.0.1:{port}", process)
    finally:
        process.kill()  # its data is thrown away
        process.wait(DEADLINE_S)


def _java(main: str, *arguments: str) -> list[str]:
    home = os.environ.get("JAVA_HOME")
    java = str(Path(home) / "bin/java") if home else "java"
    return [java, *_JAVA, "-cp", os.pathsep.join(jars(BROKER_JARS)), main, *arguments]


def _free_ports() -> tuple[int, int]:
    with closing(socket.socket()) as one, closing(socket.socket()) as other:
        for taken in (one, other):
            taken.bind(("127.0.0.1", 0))
        return one.getsockname()[1], other.getsockname()[1]


def _wait_until_it_answers(process: "subprocess.Popen[bytes]", port: int, log: Path) -> None:
    pause = threading.Event()
    for _ in range(int(DEADLINE_S / 0.05)):
        assert process.poll() is None, log.read_text(errors="replace")
        with closing(socket.socket()) as client:
            if client.connect_ex(("127.0.0.1", port)) == 0:
                return
        pause.wait(0.05)
    raise AssertionError(log.read_text(errors="replace"))


def kafka_options(broker: KafkaBroker, topics: str, **more: Any) -> dict[str, str]:
    """Returns options of ``spark.readStream.format("kafka")`` that read topics from their beginning."""
    return {"kafka.bootstrap.servers": broker.servers, "subscribe": topics, "startingOffsets": "earliest"} | {
        key: str(value) for key, value in more.items()
    }
