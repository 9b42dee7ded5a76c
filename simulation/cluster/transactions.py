"""Transactional producers, and readers of committed records, each on a host of its own.  `ledger.py` checks them.

Each transactional id has one producer, or two that fence each other.  A producer gets its epoch, writes transactions
into several partitions, some of them with an offset of a consumer group, and commits or aborts them.  Now and then it
waits for longer than its timeout before the end, or gets a new epoch without an end.

A request without an answer may still reach a broker much later.  With the first version of transactions, a late EndTxn
could end the next transaction of the same epoch (KIP-890).  So a producer gets the next epoch after a transaction in
which a request had no answer.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from itertools import count
from random import Random
from typing import Any

from metadata.image.internal_topics import CONSUMER_OFFSETS, TRANSACTION_STATE
from quorumlog.client.cluster import Cluster
from quorumlog.client.kafka import KafkaConnection
from quorumlog.client.partitions import PartitionCalls, refusal
from quorumlog.client.records import NewRecord, build_batch, stamp
from quorumlog.errors import ClusterError
from quorumlog.wire.errors import KafkaCode
from quorumlog.wire.kafka.codec import Api
from quorumlog.wire.record_batch import TRANSACTIONAL_FLAG, parse_header, seal
from simulation.cluster.committed_reader import CommittedReader
from simulation.cluster.coordinators import GROUP_KEY, TRANSACTION_KEY, CoordinatorLink, GivenUpError
from simulation.cluster.history import Mark
from simulation.cluster.ledger import Ledger, Transaction
from simulation.cluster.metadata import Spot
from simulation.cluster.plan import LEDGER
from simulation.cluster.world import ClusterWorld

GROUP = "transformers"
TIMEOUT_MS = 1_500
LATE_S = 2.5
"""How long a producer waits to let its transaction time out."""
PATIENCE_S = (0.5, 6.0)
"""How long a producer repeats a request, drawn for each transaction."""
FINAL_PATIENCE_S = 15.0
READ_PATIENCE_S = 80.0
"""Longer than it takes a leader to end a transaction that hangs."""
REQUEST_S = 1.0
BATCHES = 2
BATCH_RECORDS = 2
FIRST_WRITER = 1_000_000
"""Above the writer numbers of producers without transactions, which are counted from 1."""

Versions = {
    Api.INIT_PRODUCER_ID: 4,
    Api.ADD_PARTITIONS_TO_TXN: 3,
    Api.ADD_OFFSETS_TO_TXN: 3,
    Api.TXN_OFFSET_COMMIT: 3,
    Api.END_TXN: 3,
    Api.OFFSET_FETCH: 7,
    Api.PRODUCE: 9,
}
_BUSY = (KafkaCode.CONCURRENT_TRANSACTIONS,)
_UNKNOWN = (*_BUSY, KafkaCode.UNKNOWN_TOPIC_OR_PARTITION, KafkaCode.OPERATION_NOT_ATTEMPTED)


class _FencedError(Exception):
    """The producer must get a new epoch."""


class Transactions:
    """The producers and readers of a run.

    new_client: returns a new `Cluster`.
    """

    def __init__(self, world: ClusterWorld, new_client: Callable[[], Cluster]) -> None:
        self.world = world
        self.ledger = Ledger(world.watch.evidence, LEDGER, self._check)
        self.stop = asyncio.Event()
        self.tasks: list[asyncio.Task[None]] = []
        self.writers = count(FIRST_WRITER)
        self.offsets = count()
        self.new_client = new_client

    def _check(self, holds: bool, text: Callable[[], str]) -> None:
        """Check a promise, unless a partition has lost records in a permitted unclean election."""
        answers = self.world.watch.answers
        topics = (LEDGER, TRANSACTION_STATE, CONSUMER_OFFSETS)
        self.world.watch.check(holds or any(answers.has_lost(topic) for topic in topics), text)

    def start(self) -> None:
        for name in self.world.plan.transactional_hosts:
            random = Random(f"{self.world.plan.seed} {name}")
            client = _Reader(self, name, random) if name.startswith("c") else _Producer(self, name, random)
            self.tasks.append(self.world.start_client(name, client.run()))

    async def check_all(self) -> None:
        """Read everything back, after all transactions have ended."""
        self.ledger.check_ends()
        async with self.new_client() as cluster:
            reader = CommittedReader(cluster, self.ledger, "last")
            for index in range(self.world.plan.ledger_partitions):
                await reader.read_all(Spot(LEDGER, index))
            link = CoordinatorLink(cluster, Random(0))
            for place in range(len(self.world.plan.transactional)):
                self.ledger.check_offset(place, await self.fetch_offset(link, place, READ_PATIENCE_S))
            await link.close()

    async def fetch_offset(self, link: CoordinatorLink, place: int, patience_s: float) -> int:
        """Return the offset that is committed for the partition `place`."""
        reply = await link.ask(
            (GROUP_KEY, GROUP),
            Api.OFFSET_FETCH,
            Versions[Api.OFFSET_FETCH],
            {
                "group_id": GROUP,
                "topics": [{"name": LEDGER, "partition_indexes": [place]}],
                "require_stable": True,
            },
            lambda reply: reply.error_code or reply.topics[0].partitions[0].error_code,
            (KafkaCode.UNSTABLE_OFFSET_COMMIT,),
            patience_s,
        )
        row = reply.topics[0].partitions[0]
        if reply.error_code or row.error_code:
            raise GivenUpError(f"OFFSET_FETCH is answered with {reply.error_code or row.error_code}")
        offset = int(row.committed_offset)
        self.ledger.fetched(place, offset)
        return offset


class _Producer:
    """A transactional producer.  Its name is "t", the number of its transactional id, and "a" or "b"."""

    def __init__(self, transactions: Transactions, name: str, random: Random) -> None:
        self._transactions = transactions
        self._ledger = transactions.ledger
        self._name = name
        self._place = int(name[1:-1])
        self._id = f"id{self._place}"
        self._finishes = name.endswith("a")
        self._random = random
        self._identity = (-1, -1)
        self._sequences: dict[Spot, int] = {}
        self._numbers = count()
        self._writer = 0
        self._patience_s = 1.0

    @property
    def _seen(self) -> Any:
        return self._transactions.world.watch.seen

    async def run(self) -> None:
        async with self._transactions.new_client() as cluster:
            while not self._transactions.stop.is_set():
                await self._live(cluster, self._random.randint(1, 6), final=False)
            while self._finishes and not await self._live(cluster, 1, final=True):
                pass

    async def _live(self, cluster: Cluster, transactions: int, *, final: bool) -> bool:
        """Write some transactions in one epoch.  Return whether the commit of the last one was acknowledged."""
        link = self._link = CoordinatorLink(cluster, self._random)
        self._calls = PartitionCalls(cluster)
        is_committed = False
        try:
            self._patience_s = FINAL_PATIENCE_S if final else self._random.uniform(*PATIENCE_S)
            await self._begin()
            for _ in range(transactions):
                self._patience_s = FINAL_PATIENCE_S if final else self._random.uniform(*PATIENCE_S)
                is_committed = await self._transact(final=final)
                if link.is_in_doubt or self._transactions.stop.is_set():
                    break
                await asyncio.sleep(self._random.uniform(0, 0.3))
        except (GivenUpError, _FencedError, ClusterError) as error:
            self._seen["transactional producer began anew"] += 1
            self._seen["transactional producer fenced"] += isinstance(error, _FencedError)
            await asyncio.sleep(self._random.uniform(0.05, 0.6))
        finally:
            await link.close()
        return is_committed

    async def _begin(self) -> None:
        """Get a producer id and epoch, as a new client does."""
        reply = await self._ask(
            Api.INIT_PRODUCER_ID,
            {
                "transactional_id": self._id,
                "transaction_timeout": TIMEOUT_MS,
                "producer_id": -1,
                "producer_epoch": -1,
            },
        )
        self._refuse(reply.error_code)
        self._identity = (int(reply.producer_id), int(reply.producer_epoch))
        self._ledger.begun(self._id, self._identity)
        self._link.is_in_doubt = False
        self._sequences = {}
        self._numbers = count()
        self._writer = next(self._transactions.writers)

    async def _ask(self, api: Api, values: dict[str, Any], retried: tuple[KafkaCode, ...] = _BUSY) -> Any:
        """Ask the coordinator of the transactional id."""
        key = (TRANSACTION_KEY, self._id)
        return await self._link.ask(key, api, Versions[api], values, _code_of, retried, self._patience_s)

    def _refuse(self, code: int) -> None:
        if code:
            raise _FencedError(f"{self._id}: {KafkaCode(code).name}")

    @property
    def _named(self) -> dict[str, Any]:
        names = ("transactional_id", "producer_id", "producer_epoch")
        return dict(zip(names, (self._id, *self._identity), strict=True))

    # A transaction

    async def _transact(self, *, final: bool) -> bool:
        """Write one transaction, and end it.  Return whether its commit was acknowledged."""
        transaction = self._ledger.new_transaction(self._place, self._identity)
        random, plan = self._random, self._transactions.world.plan
        spots = [Spot(LEDGER, index) for index in range(plan.ledger_partitions)]
        spots = sorted(random.sample(spots, random.randint(1, len(spots))))
        wanted = random.random()
        try:
            if random.random() < 0.6:
                await self._add(transaction, spots)
                await asyncio.gather(*(self._write_all(transaction, spot) for spot in spots))
            else:
                for spot in spots:
                    await self._add(transaction, [spot])
                    await self._write_all(transaction, spot)
                    await self._pause()
            if random.random() < 0.5:
                await self._commit_offset(transaction)
        except GivenUpError:
            wanted = 0.85  # abort
        if final:
            wanted = 0.0
        if wanted > 0.93:
            self._seen["transaction abandoned"] += 1
            if random.random() < 0.5:
                raise GivenUpError("the producer disappears")
            await asyncio.sleep(LATE_S)
        else:
            await self._pause()
        return await self._end(transaction, commits=not 0.7 < wanted <= 0.93)

    async def _pause(self) -> None:
        """Wait in some cases; in a few, for longer than the timeout of the transaction."""
        kind = self._random.random()
        if kind < 0.3:
            await asyncio.sleep(LATE_S if kind < 0.02 else self._random.uniform(0, 0.4))

    async def _add(self, transaction: Transaction, spots: list[Spot]) -> None:
        """Add partitions to the transaction."""
        values = {f"v3_and_below_{name}": value for name, value in self._named.items()}
        topic = {"name": LEDGER, "partitions": [spot.index for spot in spots]}
        reply = await self._ask(Api.ADD_PARTITIONS_TO_TXN, {**values, "v3_and_below_topics": [topic]}, _UNKNOWN)
        self._refuse(_code_of(reply))
        self._ledger.added(transaction, spots)

    async def _write_all(self, transaction: Transaction, spot: Spot) -> None:
        for _ in range(self._random.randint(1, BATCHES)):
            marks = [Mark(self._writer, next(self._numbers)) for _ in range(self._random.randint(1, BATCH_RECORDS))]
            self._ledger.sends(transaction, marks)
            await self._write(spot, marks)
            transaction.acknowledged.setdefault(spot, set()).update(marks)

    async def _write(self, spot: Spot, marks: list[Mark]) -> None:
        """Append a batch.

        Raises:
            GivenUpError: it was not acknowledged in time.
            _FencedError: it was refused.
        """
        now_ms = self._transactions.world.wall_ms()
        batch = build_batch([NewRecord(None, mark.value, now_ms) for mark in marks])
        sequence = self._sequences.get(spot, 0)
        stamp(batch, *self._identity, sequence)
        header = parse_header(batch)
        seal(batch, header._replace(attributes=header.attributes | TRANSACTIONAL_FLAG))
        values = {
            "transactional_id": self._id,
            "acks": -1,
            "timeout": int(REQUEST_S * 1000),
            "topic_data": [{"name": LEDGER, "partition_data": [{"index": spot.index, "records": bytes(batch)}]}],
        }

        async def attempt(connection: KafkaConnection, left_s: float) -> None:
            reply = await connection.ask(Api.PRODUCE, Versions[Api.PRODUCE], values, min(left_s, REQUEST_S))
            code = int(reply.responses[0].partition_responses[0].error_code)
            if code not in (KafkaCode.NONE, KafkaCode.DUPLICATE_SEQUENCE_NUMBER):
                raise refusal(code, spot.topic, spot.index, "a batch of a transaction")

        late_s = self._transactions.world.late_batch(self._name, self._id, spot)
        patience_s = self._patience_s if late_s is None else min(late_s, self._patience_s)
        try:
            await self._calls.call(spot.topic, spot.index, patience_s, attempt)
        except ClusterError as error:
            self._link.is_in_doubt = True
            if not error.retriable:
                raise _FencedError(error.message) from error
            raise GivenUpError(error.message) from error
        self._sequences[spot] = sequence + len(marks)

    async def _commit_offset(self, transaction: Transaction) -> None:
        """Commit an offset of a group in the transaction, as a consumer that transforms and produces does."""
        self._refuse((await self._ask(Api.ADD_OFFSETS_TO_TXN, {**self._named, "group_id": GROUP})).error_code)
        offset = next(self._transactions.offsets)
        self._ledger.sends_offset(transaction, offset)
        row = {"partition_index": self._place, "committed_offset": offset, "committed_metadata": ""}
        reply = await self._link.ask(
            (GROUP_KEY, GROUP),
            Api.TXN_OFFSET_COMMIT,
            Versions[Api.TXN_OFFSET_COMMIT],
            {
                **self._named,
                "group_id": GROUP,
                "generation_id": -1,
                "member_id": "",
                "topics": [{"name": LEDGER, "partitions": [row]}],
            },
            lambda reply: reply.topics[0].partitions[0].error_code,
            (*_UNKNOWN, KafkaCode.NOT_ENOUGH_REPLICAS),
            self._patience_s,
        )
        self._refuse(reply.topics[0].partitions[0].error_code)

    async def _end(self, transaction: Transaction, *, commits: bool) -> bool:
        transaction.has_asked = commits
        values = {**self._named, "committed": commits}
        reply = await self._ask(Api.END_TXN, values)
        self._refuse(reply.error_code)
        self._ledger.ended(transaction, commits)
        return commits


class _Reader:
    """Reads committed records and offsets."""

    def __init__(self, transactions: Transactions, name: str, random: Random) -> None:
        self._transactions = transactions
        self._name = name
        self._random = random

    async def run(self) -> None:
        plan = self._transactions.world.plan
        async with self._transactions.new_client() as cluster:
            link = CoordinatorLink(cluster, self._random)
            reader = CommittedReader(cluster, self._transactions.ledger, self._name)
            while not self._transactions.stop.is_set():
                try:
                    if self._random.random() < 0.2:
                        place = self._random.randrange(len(plan.transactional))
                        await self._transactions.fetch_offset(link, place, 2.0)
                    else:
                        spot = Spot(LEDGER, self._random.randrange(plan.ledger_partitions))
                        await reader.read_some(spot, self._random)
                except (ClusterError, GivenUpError):
                    self._transactions.world.watch.seen["read failed"] += 1
                await asyncio.sleep(self._random.uniform(0, 0.2))
            await link.close()


def _code_of(reply: Any) -> int:
    """Return the code of an answer.  An answer to AddPartitionsToTxn counts as its first error."""
    if hasattr(reply, "error_code"):
        return int(reply.error_code)
    codes = [
        int(each.partition_error_code)
        for topic in reply.results_by_topic_v3_and_below
        for each in topic.results_by_partition
    ]
    return next((code for code in codes if code not in (0, KafkaCode.OPERATION_NOT_ATTEMPTED)), max(codes))
