"""Checks of transactions: the requests and answers of clients, compared with the committed logs and with each reader.

I33: A reader of committed records gets exactly the records of committed transactions, at their offsets.  It gets no
record of an aborted or undecided transaction, and skips no other record.  I34: A transaction ends in the same way in
every partition, and in the way that was acknowledged.  It commits only if its producer asked for the commit, and only
with all its acknowledged records.  No record of a transaction comes after its end in a partition, even if the
transaction had no record there before.  I35: Once a producer has begun, no record of an earlier producer with the same
transactional id becomes committed, and no two producers have the same id and epoch.  I36: The last stable offset does
not decrease within a leader epoch, nor for a client that asks for it; every record below it is decided.  I37: The
offsets of a transaction become visible if it commits, and never if it aborts; at the end of a run, the newest committed
offset is visible.  L10: After the faults have ended, every transactional id commits a transaction, and then no
transaction is open.

Theory of operation.  A record's mark names its transaction.  The ledger sees each batch as it becomes committed.  So it
knows the open transactions of each partition, and the outcomes of all others from their markers.  It compares both with
the requests and answers of the producers (`Transaction`), and with the records that readers get.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from broker.log import LogKey, PartitionLog
from quorumlog.errors import CorruptStoreError
from quorumlog.runtime.disk import DiskError
from simulation.cluster.evidence import Evidence
from simulation.cluster.history import Committed, History, Mark
from simulation.cluster.metadata import Spot

NOTHING = -1
"""The committed offset of a partition for which no offset was committed."""


@dataclass(eq=False)
class Transaction:
    """A transaction as its producer knows it.

    place: the number of its transactional id, and of the partition whose offset it commits.
    offset: the offset that it commits; None if it commits none.
    acknowledged: its acknowledged records, by partition.
    has_asked: a request to commit it was sent.  outcome: whether it was committed; None until its end is acknowledged.
    ends: by partition, whether the marker commits the transaction.
    markers_before: by partition, the number of its producer's markers there when the partition was added to the
        transaction.  Once the partition has more markers, the transaction has ended there, even if none of its records
        arrived.
    """

    number: int
    place: int
    producer: tuple[int, int]
    acknowledged: dict[Spot, set[Mark]] = field(default_factory=dict)
    offset: int | None = None
    has_asked: bool = False
    outcome: bool | None = None
    ends: dict[Spot, bool] = field(default_factory=dict)
    markers_before: dict[Spot, int] = field(default_factory=dict)

    def __str__(self) -> str:
        return f"transaction {self.number} of producer {self.producer}"

    @property
    def is_committed(self) -> bool | None:
        """Return the outcome according to its markers, or to the answer if there are no markers; None if unknown."""
        return next(iter(self.ends.values()), self.outcome)


@dataclass
class _Partition:
    """The transactions in one partition.

    open: the offsets and marks of undecided records, by producer id.  Open transactions without records in this
    partition are not listed.
    ended: by offset, the marks of decided records, and whether each is committed.
    markers: the number of markers, by producer id.
    """

    open: dict[int, list[tuple[int, Mark]]] = field(default_factory=dict)
    ended: dict[int, tuple[Mark, bool]] = field(default_factory=dict)
    markers: Counter[int] = field(default_factory=Counter)

    @property
    def undecided(self) -> int | None:
        """Return the offset of the first undecided record, or None."""
        return min((records[0][0] for records in self.open.values()), default=None)


class Ledger:
    """The checks of one run for all transactions that write to one topic.

    on_end: called when a marker ends a transaction in a partition, with both, and whether the marker commits.
    """

    def __init__(self, evidence: Evidence, topic: str, check: Callable[[bool, Callable[[], str]], None]) -> None:
        self.check = check
        self.on_end: Callable[[Transaction, Spot, bool], None] = lambda transaction, spot, commits: None
        self._topic = topic
        self._evidence = evidence
        self._seen = evidence.seen
        self._transactions: list[Transaction] = []
        self._by_mark: dict[Mark, Transaction] = {}
        self._by_offset: dict[tuple[int, int], Transaction] = {}
        self._given: set[tuple[int, int]] = set()
        self._newest: dict[int, int] = {}
        """By producer id: the newest epoch that a client was given."""
        self._partitions: dict[LogKey, _Partition] = {}
        self._stable: dict[tuple[LogKey, int], int] = {}
        """By partition and leader epoch: the last stable offset."""
        self._listed: dict[tuple[str, Spot], int] = {}
        evidence.on_committed.append(self._on_committed)
        evidence.on_leader_watermark.append(self._on_leader_watermark)

    # The producers

    def begun(self, name: str, producer: tuple[int, int]) -> None:
        """Note, and check, that a client got a producer id and epoch."""
        self.check(producer not in self._given, lambda: f"I35: two producers of {name} have the identity {producer}")
        self._given.add(producer)
        producer_id, epoch = producer
        self._newest[producer_id] = max(epoch, self._newest.get(producer_id, epoch))

    def new_transaction(self, place: int, producer: tuple[int, int]) -> Transaction:
        """Return a new transaction of this producer id and epoch."""
        transaction = Transaction(len(self._transactions), place, producer)
        self._transactions.append(transaction)
        return transaction

    def added(self, transaction: Transaction, spots: Sequence[Spot]) -> None:
        """Note that the addition of partitions to a transaction was acknowledged.

        By then, all markers of the producer's previous transaction are committed.
        """
        for spot in spots:
            if (history := self._evidence.current(spot)) is not None:
                markers = self._partitions.setdefault(history.key, _Partition()).markers
                transaction.markers_before[spot] = markers[transaction.producer[0]]

    def sends(self, transaction: Transaction, marks: Sequence[Mark]) -> None:
        """Note that the producer will send these records."""
        for mark in marks:
            self._by_mark[mark] = transaction

    def sends_offset(self, transaction: Transaction, offset: int) -> None:
        """Note that the producer will commit this offset in the transaction."""
        transaction.offset = offset
        self._by_offset[transaction.place, offset] = transaction

    def ended(self, transaction: Transaction, is_committed: bool) -> None:
        """Note, and check, that the end of a transaction was acknowledged."""
        transaction.outcome = is_committed
        self._seen["transaction committed" if is_committed else "transaction aborted"] += 1
        self._check_ends(transaction)
        if is_committed and transaction.offset is not None:
            self._seen["offset committed in a transaction"] += 1

    # The committed batches

    def _on_committed(self, history: History, batch: Committed) -> None:
        if history.spot.topic != self._topic or batch.transaction is None:
            return
        partition = self._partitions.setdefault(history.key, _Partition())
        if batch.transaction.commits is None:
            self._on_records(history.spot, partition, batch, batch.transaction.producer)
        else:
            self._on_marker(history.spot, partition, batch.transaction.producer[0], batch.transaction.commits)

    def _on_records(self, spot: Spot, partition: _Partition, batch: Committed, producer: tuple[int, int]) -> None:
        producer_id, epoch = producer
        newest = self._newest.get(producer_id, -1)
        self.check(
            epoch >= newest,
            lambda: f"I35: {batch} of {spot} becomes committed, although epoch {newest} of its producer has begun",
        )
        for place, mark in enumerate(batch.marks):
            assert mark is not None, batch
            transaction = self._by_mark[mark]
            markers = partition.markers[producer_id]
            has_ended = spot in transaction.ends or markers > transaction.markers_before.get(spot, markers)
            self.check(
                not has_ended,
                lambda transaction=transaction: f"I34: {batch} of {spot} comes after the end of {transaction}",  # type: ignore[misc]
            )
            partition.open.setdefault(producer_id, []).append((batch.base_offset + place, mark))

    def _on_marker(self, spot: Spot, partition: _Partition, producer_id: int, commits: bool) -> None:
        records = partition.open.pop(producer_id, [])
        partition.markers[producer_id] += 1
        partition.ended.update({offset: (mark, commits) for offset, mark in records})
        found = {self._by_mark[mark] for _, mark in records}
        self.check(len(found) <= 1, lambda: f"I34: one marker of {spot} ends several: {[str(each) for each in found]}")
        for transaction in found:
            transaction.ends[spot] = commits
            self._check_ends(transaction)
            lost = transaction.acknowledged.get(spot, set()) - {mark for _, mark in records}
            self.check(not (commits and lost), lambda: f"I34: {transaction} commits {spot} without {lost}")  # noqa: B023
            self.on_end(transaction, spot, commits)

    def _check_ends(self, transaction: Transaction) -> None:
        ends = {*transaction.ends.values(), *([] if transaction.outcome is None else [transaction.outcome])}
        self.check(
            len(ends) <= 1,
            lambda: f"I34: {transaction} ends in two ways: {transaction.ends}, acknowledged: {transaction.outcome}",
        )
        self.check(True not in ends or transaction.has_asked, lambda: f"I34: {transaction} commits without a request")

    def _on_leader_watermark(self, history: History, log: PartitionLog, leader_epoch: int) -> None:
        """I36: check the last stable offset of a leader."""
        if history.spot.topic != self._topic:
            return
        try:
            stable = log.last_stable_offset
        except (CorruptStoreError, DiskError):
            return
        least = self._stable.get((history.key, leader_epoch), 0)
        self.check(
            stable >= least,
            lambda: f"I36: the last stable offset of {history} falls from {least} to {stable} in epoch {leader_epoch}",
        )
        self._stable[history.key, leader_epoch] = stable
        self._check_decided(history, stable)

    def _check_decided(self, history: History, stable: int) -> None:
        undecided = self._partitions.setdefault(history.key, _Partition()).undecided
        self.check(
            undecided is None or stable <= undecided,
            lambda: f"I36: the last stable offset of {history} is {stable}, {undecided} is undecided",
        )

    # The readers

    def listed(self, client: str, spot: Spot, offset: int) -> None:
        """Check an answer to ListOffsets(latest) for a reader of committed records."""
        least = self._listed.get((client, spot), 0)
        self.check(offset >= least, lambda: f"I36: the end of {spot} falls from {least} to {offset} for {client}")
        self._listed[client, spot] = offset
        if (history := self._evidence.current(spot)) is not None:
            self.check(offset <= history.end, lambda: f"I36: {spot} ends at {offset}, committed is {history.end}")
            self._check_decided(history, offset)

    def read(self, client: str, spot: Spot, start: int, end: int, records: Sequence[tuple[int, Mark]]) -> None:
        """Check the records of committed transactions that a reader got from `start` to `end`, with their offsets."""
        history = self._evidence.current(spot)
        assert history is not None, spot
        self._seen["record of a transaction read"] += len(records)
        self._check_decided(history, end)
        ended = self._partitions[history.key].ended if history.key in self._partitions else {}
        wanted = [(offset, ended[offset][0]) for offset in range(start, end) if ended.get(offset, (None, False))[1]]
        self.check(
            list(records) == wanted,
            lambda: f"I33: {client} reads {records} of {spot} from {start} to {end}, committed are {wanted}",
        )

    def fetched(self, place: int, offset: int) -> None:
        """Check a committed offset that a client got.

        It may be older than an acknowledged offset, because a deposed coordinator may have answered.
        """
        if offset == NOTHING:
            return
        transaction = self._by_offset[place, offset]
        self.check(
            transaction.has_asked and transaction.is_committed is not False,
            lambda: f"I37: offset {offset} of place {place} is visible, but {transaction} is not committed",
        )

    # At the end

    def unsettled(self) -> list[str]:
        """Return the open transactions, in words.  Omit transactions whose records an unclean election has removed."""
        found = []
        for key, partition in self._partitions.items():
            history = self._evidence.histories[key]
            for records in partition.open.values():
                kept = [(offset, mark) for offset, mark in records if history.mark_at(offset) == mark]
                if kept:
                    offset, mark = kept[0]
                    found.append(f"{self._evidence.metadata.names[key]}: {self._by_mark[mark]} from {offset}")
        return found

    def check_ends(self) -> None:
        """I34: check that every transaction has ended in all its partitions, with the acknowledged outcome."""
        for transaction in self._transactions:
            self._check_ends(transaction)
            missing = [spot for spot in transaction.acknowledged if spot not in transaction.ends]
            self.check(not missing, lambda: f"I34: {transaction} has no end in {missing}")  # noqa: B023

    def check_offset(self, place: int, offset: int) -> None:
        """I37: check the committed offset of a place after all transactions have ended."""
        committed = [
            each.offset
            for each in self._transactions
            if each.place == place and each.offset is not None and each.is_committed
        ]
        newest = max(committed, default=NOTHING)
        self.check(offset == newest, lambda: f"I37: the offset of place {place} is {offset}, committed was {newest}")
