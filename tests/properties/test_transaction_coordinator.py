"""The coordinator of transactions and the logs of their partitions, against what each client knows.

Clients of both versions begin, write, end, repeat requests and fence each other.  Batches of newer clients and copies
of their markers arrive late, the coordinator fails over, and transactions time out.  In the end every transaction must
be decided, alike in all its partitions, and with the outcome that its client knows.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from random import Random

from hypothesis import given, settings
from hypothesis import strategies as st

from broker.core.coordinator.machine import Record
from broker.core.coordinator.transaction_records import (
    EPOCH_MAX,
    EPOCH_RISES,
    Partition,
    TransactionState,
    TransactionValue,
    write_transaction,
    write_transaction_key,
)
from broker.core.coordinator.transaction_requests import (
    AddPartitions,
    EndTransaction,
    InitProducer,
    MarkersWritten,
    WriteMarkers,
)
from broker.core.producer_state import Accept, Duplicate, ProducerState, Refuse
from broker.core.transactions import NO_PRODUCER, Marker, ProducerKey
from quorumlog.wire.errors import KafkaCode
from tests.unit.broker.core.coordinator.test_transaction_machine import ID, WALL, Rig
from tests.unit.broker.core.test_producer_state import B

PARTITIONS = (("t", 0), ("t", 1), ("u", 0))
RETRIED = (KafkaCode.CONCURRENT_TRANSACTIONS, KafkaCode.NOT_ENOUGH_REPLICAS)


@dataclass(eq=False)
class Transaction:
    """One transaction of a client.  told: the outcome that its client knows; written: acknowledged records."""

    number: int
    told: bool | None = None
    written: int = 0
    outcomes: list[bool] = field(default_factory=list)


@dataclass(eq=False)
class Client:
    """ending: the decision whose answer the client does not have yet."""

    version: int
    producer: ProducerKey
    transaction: Transaction
    sequences: dict[Partition, int] = field(default_factory=dict)
    ending: bool | None = None
    is_dead: bool = False


@dataclass(eq=False)
class Late:
    """A batch that is under way to its leader."""

    client: Client
    transaction: Transaction
    producer: ProducerKey
    sequence: int
    partition: Partition


@dataclass(eq=False)
class Log:
    """A partition.  opened: the records of each open transaction."""

    state: ProducerState = field(default_factory=ProducerState)
    end: int = 0
    opened: dict[int, list[Transaction]] = field(default_factory=lambda: defaultdict(list))

    def write(self, producer: ProducerKey, sequence: int, transaction: Transaction) -> None:
        batch = B(sequence, sequence, producer.epoch, producer.producer_id, is_transactional=True)
        self.state.apply(batch, self.end, self.end + 1)
        self.opened[producer.producer_id].append(transaction)
        self.end += 1

    def mark(self, marker: Marker) -> None:
        producer_id, epoch = marker.producer
        batch = B(-1, -1, epoch, producer_id, is_control=True, is_transactional=True)
        self.state.apply(batch, self.end, self.end + 1, marker)
        self.end += 1
        for each in self.opened.pop(producer_id, []):
            each.outcomes.append(marker.is_commit)


class Story:
    def __init__(self, random: Random) -> None:
        self.random = random
        self.rig = Rig()
        self.logs = {partition: Log() for partition in PARTITIONS}
        self.clients: list[Client] = []
        self.transactions: list[Transaction] = []
        self.late: list[Late] = []
        self.copies: list[tuple[WriteMarkers, Partition, int]] = []
        self.epoch = 0
        first = EPOCH_MAX - random.randrange(5)
        value = TransactionValue(100, first, 10_000, TransactionState.EMPTY, (), WALL)
        self.rig.log.append(Record(write_transaction_key(ID), write_transaction(value)))
        self.fail_over()

    # -- clients

    def begin(self) -> Transaction:
        self.transactions.append(Transaction(len(self.transactions)))
        return self.transactions[-1]

    def new_client(self, continued: Client | None = None) -> None:
        """Begin as another client, or as the same one with another epoch; its request may arrive twice."""
        earlier = NO_PRODUCER if continued is None else continued.producer
        found = self.rig.ask(InitProducer(ID, 10_000, earlier))
        if found.needs_id:
            self.rig.next_id += 1
            found = self.rig.ask(InitProducer(ID, 10_000, earlier, self.rig.next_id))
        if continued is not None and self.random.random() < 0.3:
            found = self.rig.ask(InitProducer(ID, 10_000, earlier, 1))
        if found.error is KafkaCode.NONE:
            if continued is not None:
                continued.is_dead = True
            version = self.random.choice((0, EPOCH_RISES))
            self.clients = [*self.clients[-2:], Client(version, found.producer, self.begin())]

    def write(self, client: Client) -> None:
        partition = self.random.choice(PARTITIONS)
        sequence = client.sequences.get(partition, 0)
        if client.version == 0:
            (code,) = self.rig.ask(AddPartitions(ID, client.producer, (partition,))).errors
            if code is not KafkaCode.NONE:
                client.is_dead = code not in RETRIED
                return
        elif self.random.random() < 0.1:
            self.late.append(Late(client, client.transaction, client.producer, sequence, partition))
            client.ending = False  # it does not wait for the acknowledgement, so it may not commit
            return
        code = self.append(client.version, client.producer, sequence, partition, client.transaction)
        if code is KafkaCode.NONE:
            client.transaction.written += 1
            client.sequences[partition] = sequence + 1
        else:
            client.is_dead = code not in RETRIED

    def append(
        self, version: int, producer: ProducerKey, sequence: int, partition: Partition, transaction: Transaction
    ) -> KafkaCode:
        """Append a batch as its leader does."""
        log = self.logs[partition]
        token = log.state.start_verification(*producer, sequence)
        if token is not None and not token.is_confirmed:
            request = AddPartitions(ID, producer, (partition,), version == 0, version)
            (code,) = self.rig.ask(request).errors
            if code is not KafkaCode.NONE:
                return KafkaCode(code)
            token.is_confirmed = True
        batch = B(sequence, sequence, producer.epoch, producer.producer_id, is_transactional=True)
        verdict = log.state.check(batch, 0, token)
        if isinstance(verdict, Refuse):
            return verdict.code
        if isinstance(verdict, Accept):
            log.write(producer, sequence, transaction)
        return KafkaCode.NONE

    def end(self, client: Client) -> None:
        commit = self.random.random() < 0.7 if client.ending is None else client.ending
        client.ending = commit
        request = EndTransaction(ID, client.producer, commit, client.version)
        found = self.rig.ask(request)
        if found.needs_id:
            self.rig.next_id += 1
            found = self.rig.ask(EndTransaction(ID, client.producer, commit, client.version, self.rig.next_id))
        if self.random.random() < 0.2 or found.error in RETRIED:
            return  # the answer is lost, or the client must repeat the request: both are the same to it
        client.ending = None
        if found.error is not KafkaCode.NONE:
            client.is_dead = True
            return
        client.transaction.told = commit
        client.transaction = self.begin()
        if client.version >= EPOCH_RISES:
            client.producer = found.producer
            client.sequences.clear()

    # -- the network, the coordinator, and time

    def deliver_late(self) -> None:
        if self.late:
            late = self.late.pop(self.random.randrange(len(self.late)))
            self.append(late.client.version, late.producer, late.sequence, late.partition, late.transaction)

    def deliver_marker(self) -> None:
        if not self.copies:
            return
        effect, partition, epoch = self.copies[self.random.randrange(len(self.copies))]
        raises_epoch = effect.client_version >= EPOCH_RISES
        log, marker = self.logs[partition], Marker(effect.producer, effect.is_commit, epoch, raises_epoch)
        verdict = log.state.check_marker(marker)
        if isinstance(verdict, Accept):
            log.mark(marker)
        settled = isinstance(verdict, Accept | Duplicate) or verdict.code is KafkaCode.INVALID_PRODUCER_EPOCH
        if settled and epoch == self.epoch:
            report = MarkersWritten(ID, effect.producer, (partition,))
            self.take(self.rig.machine.markers_written(report, self.rig.now))
        if not raises_epoch or self.random.random() < 0.8:
            self.copies.remove((effect, partition, epoch))

    def take(self, step: object) -> None:
        self.rig.take(step)  # type: ignore[arg-type]
        self.collect()

    def collect(self) -> None:
        """Send the markers that the coordinator has ordered."""
        for effect in self.rig.effects:
            self.copies += [(effect, partition, self.epoch) for partition in effect.partitions]
            if not effect.partitions:
                self.rig.take(self.rig.machine.markers_written(MarkersWritten(ID, effect.producer, ()), self.rig.now))
        self.rig.effects.clear()

    def fail_over(self) -> None:
        """Copies of a client of version 0 end with their coordinator: nothing protects the next transaction."""
        self.epoch += 1
        self.copies = [each for each in self.copies if each[0].client_version >= EPOCH_RISES]
        self.rig.fail_over()

    def step(self) -> None:
        living = [each for each in self.clients if not each.is_dead]
        action = self.random.random()
        if not living or action < 0.04:
            self.new_client()
        elif action < 0.06:
            self.new_client(self.random.choice(living))
        elif action < 0.45:
            client = self.random.choice(living)
            if client.ending is None:
                self.write(client)
        elif action < 0.6:
            self.end(self.random.choice(living))
        elif action < 0.65:
            self.deliver_late()
        elif action < 0.67:
            self.fail_over()
        elif action < 0.69:
            self.rig.pass_time(self.random.choice((500, 11_000)))
        else:
            self.deliver_marker()
        self.collect()

    def heal(self) -> None:
        """Let everything arrive and every transaction time out."""
        for _ in range(3):
            while self.late:
                self.deliver_late()
                self.collect()
            self.rig.pass_time(11_000)
            self.collect()
            while self.copies:
                self.deliver_marker()
                self.collect()

    def check(self) -> None:
        for log in self.logs.values():
            assert log.state.transactions.open == {}, "a transaction hangs"
        for transaction in self.transactions:
            outcomes = set(transaction.outcomes)
            assert len(outcomes) <= 1, f"{transaction} is visible in part"
            if transaction.told is not None:
                assert outcomes <= {transaction.told}, f"{transaction} has another outcome than its client was told"
                if transaction.told:
                    assert len(transaction.outcomes) == transaction.written, f"{transaction} has lost a record"


@given(st.integers(0, 2**32 - 1))
@settings(max_examples=150, deadline=None)
def test_every_transaction_has_the_outcome_that_its_client_knows_in_all_partitions(seed: int) -> None:
    story = Story(Random(seed))
    for _ in range(150):
        story.step()
    story.heal()
    story.check()
