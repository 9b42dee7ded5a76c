"""The transactional programs of the torture run: `python -m tests.transactions.workers ACTION`, with ACTION as JSON.

A writer begins transactions of several records over several partitions, and commits most of them.  A loop reads the
input and writes each record to its output, with its offsets in the transaction.  Both exist for confluent-kafka and for
`quorumlog.client`; the writer of the Java client is in `tests/clients/programs/java`.  A writer reports each
transaction before its first record (`begun`) and after its end (`ended`).  A loop reports the end of each transaction
(`copied`), and the close of its consumer.  A worker ends when its standard input does.
"""

from __future__ import annotations

import asyncio
import json
import random
import sys
import time
from collections.abc import Callable
from typing import Any, NamedTuple

from confluent_kafka import Consumer as ConfluentConsumer
from confluent_kafka import KafkaException, Message, TopicPartition
from confluent_kafka import Producer as ConfluentProducer

from quorumlog.client import ClusterError, Consumer, Producer, Record
from tests.clients.programs.python.common import Action, Input, report
from tests.transactions.check import Fate, Seen, Written, loop_value

CALL_S = 30.0
GIVE_UP_S = 240.0
"""A call that has not succeeded by then is a defect: the worker fails."""
TRANSACTION_TIMEOUT_S = 20
SESSION_S = 10
ABORTED_SHARE = 0.2
RECORDS_MAX = 12
PAUSE_MAX_S = 0.1
READ_MAX = 50
READ_S = 0.5


class Plan(NamedTuple):
    """A transaction of a writer.  partitions: one for each of its records."""

    number: int
    partitions: list[int]
    aborts: bool
    pause_s: float

    def values(self, writer: str) -> list[tuple[int, str]]:
        size = len(self.partitions)
        return [(where, str(Written(writer, self.number, size, index))) for index, where in enumerate(self.partitions)]

    def report_begin(self) -> None:
        # A transaction whose writer means to abort it can be committed by nobody.
        report("begun", number=self.number, size=len(self.partitions), aborts=self.aborts)

    def report_end(self, fate: Fate) -> None:
        report("ended", number=self.number, fate=fate)


class Plans:
    """Draws transactions."""

    def __init__(self, action: Action) -> None:
        self._choices = random.Random(f"{action['seed']}/{action['id']}/{action['first']}")
        self._number = action["first"]
        self._partitions = action["partitions"]

    def draw(self) -> Plan:
        choices = self._choices
        partitions = [choices.randrange(self._partitions) for _ in range(choices.randint(1, RECORDS_MAX))]
        self._number += 1
        return Plan(self._number, partitions, self.aborts(), choices.uniform(0, PAUSE_MAX_S))

    def aborts(self) -> bool:
        return self._choices.random() < ABORTED_SHARE


class Lost(Exception):
    """This producer cannot continue.  The end of its transaction is unknown."""


# -- confluent-kafka


def _repeated(call: Callable[[float], object]) -> None:
    """Repeat a call of a transaction until it succeeds, or fails for a reason that will not pass.

    Raises:
        KafkaException: the failure.
    """
    deadline = time.monotonic() + GIVE_UP_S
    while True:
        try:
            call(CALL_S)
            return
        except KafkaException as error:
            if not error.args[0].retriable():
                raise
            if time.monotonic() >= deadline:
                raise AssertionError(f"{call} did not succeed within {GIVE_UP_S:g} s") from error


def _confluent_producer(action: Action) -> ConfluentProducer:
    """Raises: KafkaException."""
    producer = ConfluentProducer(
        {
            "bootstrap.servers": action["bootstrap"],
            "transactional.id": action["id"],
            "transaction.timeout.ms": TRANSACTION_TIMEOUT_S * 1000,
            "linger.ms": 0,
        }
    )
    _repeated(producer.init_transactions)
    return producer


def _confluent_transaction(producer: ConfluentProducer, fill: Callable[[], None], *, aborts: bool) -> Fate:
    """Fill and end a transaction.

    Raises:
        Lost
    """
    try:
        producer.begin_transaction()
        fill()
        if aborts:
            producer.flush(CALL_S)  # so that the logs have records to abort
            _repeated(producer.abort_transaction)
            return Fate.ABORTED
        _repeated(producer.commit_transaction)
        return Fate.COMMITTED
    except KafkaException as error:
        report("failed", why=str(error))
        if not error.args[0].txn_requires_abort():
            raise Lost from error
    try:
        _repeated(producer.abort_transaction)
    except KafkaException as error:
        report("failed", why=str(error))
        raise Lost from error
    return Fate.ABORTED


def confluent_writer(action: Action, ending: Input) -> None:
    plans = Plans(action)
    while not ending.has_ended:
        try:
            producer = _confluent_producer(action)
            while not ending.has_ended:
                plan = plans.draw()
                plan.report_begin()

                def fill(plan: Plan = plan, producer: ConfluentProducer = producer) -> None:
                    for partition, value in plan.values(action["id"]):
                        producer.produce(action["topic"], value.encode(), partition=partition)

                plan.report_end(_confluent_transaction(producer, fill, aborts=plan.aborts))
                time.sleep(plan.pause_s)  # so that transactions of writers overlap differently
        except (Lost, KafkaException) as error:
            report("restarted", why=repr(error))


def confluent_loop(action: Action, ending: Input) -> None:
    plans = Plans(action)
    while not ending.has_ended:
        consumer = ConfluentConsumer(
            {
                "bootstrap.servers": action["bootstrap"],
                "group.id": action["id"],
                "isolation.level": "read_committed",
                "enable.auto.commit": False,
                "auto.offset.reset": "earliest",
                "session.timeout.ms": SESSION_S * 1000,
            }
        )
        try:
            consumer.subscribe([action["topic"]])
            producer = _confluent_producer(action)
            while not ending.has_ended:
                messages = [each for each in consumer.consume(READ_MAX, READ_S) if each.error() is None]
                if not messages:
                    continue
                fate = _confluent_copy(action, consumer, producer, messages, plans.aborts())
                report("copied", records=len(messages), fate=fate)
                if fate is Fate.ABORTED:
                    _rewind(consumer)
        except (Lost, KafkaException) as error:
            report("restarted", why=repr(error))
        finally:
            report("closing")  # it may block for as long as librdkafka waits for a broker
            consumer.close()
            report("closed")


def _confluent_copy(
    action: Action,
    consumer: ConfluentConsumer,
    producer: ConfluentProducer,
    messages: list[Message],
    aborts: bool,
) -> Fate:
    def fill() -> None:
        ends: dict[int, int] = {}
        for message in messages:
            partition, offset, value = message.partition(), message.offset(), message.value()
            assert partition is not None
            assert offset is not None
            assert value is not None
            copy = loop_value(Seen(partition, offset, value.decode()))
            producer.produce(action["output"], copy.encode(), partition=partition)
            ends[partition] = offset + 1
        offsets = [TopicPartition(action["topic"], partition, end) for partition, end in ends.items()]
        metadata = consumer.consumer_group_metadata()
        _repeated(lambda limit_s: producer.send_offsets_to_transaction(offsets, metadata, limit_s))

    return _confluent_transaction(producer, fill, aborts=aborts)


def _rewind(consumer: ConfluentConsumer) -> None:
    """Move the consumer back to its committed offsets.  Raises: KafkaException."""
    for each in consumer.committed(consumer.assignment(), CALL_S):
        consumer.seek(TopicPartition(each.topic, each.partition, max(each.offset, 0)))


# -- quorumlog.client


def _producer(action: Action) -> Producer:
    return Producer(action["bootstrap"], transactional_id=action["id"], transaction_timeout_s=TRANSACTION_TIMEOUT_S)


async def _end(producer: Producer, *, aborts: bool) -> Fate:
    """End a transaction, whose outcome is asked until it is known.

    Raises:
        ClusterError: PRODUCER_FENCED and others: the producer cannot continue.
    """
    deadline = time.monotonic() + GIVE_UP_S
    while True:
        try:
            await (producer.abort_transaction() if aborts else producer.commit_transaction())
        except ClusterError as error:
            report("failed", why=str(error))
            if error.code == "TRANSACTION_ABORTABLE":
                aborts = True
            elif not error.retriable:
                raise
            if time.monotonic() >= deadline:
                raise AssertionError(f"a transaction did not end within {GIVE_UP_S:g} s") from error
            continue
        return Fate.ABORTED if aborts else Fate.COMMITTED


async def _our_writer(action: Action, ending: Input) -> None:
    plans = Plans(action)
    while not ending.has_ended:
        try:
            async with _producer(action) as producer:
                while not ending.has_ended:
                    plan = plans.draw()
                    plan.report_begin()
                    producer.begin_transaction()
                    has_failed = False
                    try:
                        for partition, value in plan.values(action["id"]):
                            await producer.send(action["topic"], value.encode(), partition=partition)
                        if plan.aborts:
                            await producer.flush()
                    except ClusterError as error:
                        report("failed", why=str(error))
                        has_failed = True
                    plan.report_end(await _end(producer, aborts=plan.aborts or has_failed))
                    await asyncio.sleep(plan.pause_s)
        except ClusterError as error:
            report("restarted", why=str(error))


async def _our_loop(action: Action, ending: Input) -> None:
    plans = Plans(action)
    while not ending.has_ended:
        gone: list[Any] = []
        settings: dict[str, Any] = {
            "auto_commit": False,
            "auto_offset_reset": "earliest",
            "session_timeout_s": SESSION_S,
            "on_revoked": gone.extend,
            "on_lost": gone.extend,
        }
        try:
            async with (
                Consumer(action["bootstrap"], topics=[action["topic"]], group=action["id"], **settings) as consumer,
                _producer(action) as producer,
            ):
                while not ending.has_ended:
                    gone.clear()
                    records = await _read(consumer)
                    # A rebalance while we read several batches has others copy the first ones, or us again.
                    if records and (gone or await _our_copy(action, consumer, producer, records, plans.aborts())):
                        offsets = await consumer.committed()
                        for partition in consumer.assignment():
                            consumer.seek(partition, offsets.get(partition, 0))
        except ClusterError as error:
            report("restarted", why=str(error))


async def _read(consumer: Consumer) -> list[Record]:
    """Return the records of several batches, because writers make small ones.  Raises: ClusterError."""
    records: list[Record] = []
    timeout_s = READ_S
    while len(records) < READ_MAX:
        batch = await consumer.get_many(READ_MAX - len(records), timeout_s)
        if batch is None:
            break
        records += batch
        timeout_s = 0
    return records


async def _our_copy(
    action: Action, consumer: Consumer, producer: Producer, records: list[Record], aborts: bool
) -> bool:
    """Write the records in a transaction; return whether it was aborted.  Raises: ClusterError."""
    producer.begin_transaction()
    try:
        for record in records:
            assert record.value is not None
            copy = loop_value(Seen(record.partition, record.offset, record.value.decode()))
            await producer.send(action["output"], copy.encode(), partition=record.partition)
        await producer.send_offsets(consumer)
    except ClusterError as error:
        report("failed", why=str(error))
        aborts = True
    fate = await _end(producer, aborts=aborts)
    report("copied", records=len(records), fate=fate)
    return fate is Fate.ABORTED


WORKERS: dict[str, Callable[[Action, Input], None]] = {
    "confluent writer": confluent_writer,
    "confluent loop": confluent_loop,
    "our writer": lambda action, ending: asyncio.run(_our_writer(action, ending)),
    "our loop": lambda action, ending: asyncio.run(_our_loop(action, ending)),
}


def main() -> None:
    action = json.loads(sys.argv[1])
    WORKERS[action["kind"]](action, Input())


if __name__ == "__main__":
    main()
