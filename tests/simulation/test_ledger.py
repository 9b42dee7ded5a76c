"""The judge of transactions: the sequences of events that it accepts, and those that it reports."""

from __future__ import annotations

from collections.abc import Callable
from typing import cast
from uuid import UUID

import pytest

from broker.log import LogKey, PartitionLog
from quorumlog.client.records import NewRecord, build_batch, stamp
from quorumlog.wire.control_records import EndTxnMarker, build_marker
from quorumlog.wire.record_batch import TRANSACTIONAL_FLAG, parse_header, patch, seal
from simulation.cluster.committed_reader import committed_in
from simulation.cluster.compaction import KeyedRecords
from simulation.cluster.evidence import Evidence
from simulation.cluster.history import Committed, History, Mark, batches_in
from simulation.cluster.ledger import NOTHING, Ledger, Transaction
from simulation.cluster.metadata import Spot
from simulation.cluster.plan import LEDGER
from simulation.cluster.transactional import Transactional
from simulation.kernel.violation import Violation

PRODUCER = (7, 0)
LATER = (7, 1)
SPOTS = (Spot(LEDGER, 0), Spot(LEDGER, 1))


class Run:
    """A ledger of two partitions, whose logs grow by `writes` and `marks`."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.evidence = Evidence(frozenset(), {})
        self.ledger = Ledger(self.evidence, LEDGER, self.evidence.check)
        self.histories = [History(LogKey(UUID(int=1), spot.index, 0), spot) for spot in SPOTS]
        self.evidence.metadata.names.update({one.key: one.spot for one in self.histories})
        self.evidence.histories.update({one.key: one for one in self.histories})
        monkeypatch.setattr(self.evidence, "current", lambda spot: self.histories[spot.index])
        self.ledger.begun("id", PRODUCER)
        self._number = 0

    def transaction(self, producer: tuple[int, int] = PRODUCER, *, asks: bool = True) -> Transaction:
        transaction = self.ledger.new_transaction(0, producer)
        transaction.has_asked = asks
        return transaction

    def writes(self, transaction: Transaction, index: int, *, is_lost: bool = False) -> Mark:
        """Acknowledge a record of the transaction, and commit it unless `is_lost`.  Return its mark."""
        self._number += 1
        mark = Mark(1, self._number)
        self.ledger.sends(transaction, [mark])
        transaction.acknowledged.setdefault(SPOTS[index], set()).add(mark)
        if not is_lost:
            self._commit(index, (mark,), Transactional(transaction.producer))
        return mark

    def marks(self, index: int, *, commits: bool, producer: tuple[int, int] = PRODUCER) -> None:
        self._commit(index, (None,), Transactional(producer, commits))

    def _commit(self, index: int, marks: tuple[Mark | None, ...], transaction: Transactional) -> None:
        history = self.histories[index]
        batch = Committed(history.end, history.end + len(marks), 0, 0, marks, (), transaction)
        assert history.add(batch, 0.0, 1.0) is None
        for watch in self.evidence.on_committed:
            watch(history, batch)

    def leader_reports(self, index: int, stable: int, epoch: int = 0) -> None:
        log = cast(PartitionLog, type("Log", (), {"last_stable_offset": stable}))
        for watch in self.evidence.on_leader_watermark:
            watch(self.histories[index], log, epoch)


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch) -> Run:
    return Run(monkeypatch)


def violated(rule: str, action: Callable[[], object]) -> None:
    with pytest.raises(Violation, match=f"^{rule}: "):
        action()


def test_a_committed_transaction_is_read_in_all_its_partitions(run: Run) -> None:
    one = run.transaction()
    marks = [run.writes(one, index) for index in (0, 1)]
    run.ledger.ended(one, True)
    for index in (0, 1):
        run.marks(index, commits=True)
        run.leader_reports(index, 2)
        run.ledger.read("c0", SPOTS[index], 0, 2, [(0, marks[index])])
    run.ledger.check_ends()
    assert not run.ledger.unsettled()


def test_an_aborted_record_must_not_be_read(run: Run) -> None:
    one = run.transaction(asks=False)
    mark = run.writes(one, 0)
    run.marks(0, commits=False)
    run.ledger.read("c0", SPOTS[0], 0, 2, [])
    violated("I33", lambda: run.ledger.read("c0", SPOTS[0], 0, 2, [(0, mark)]))


def test_a_committed_record_must_not_be_skipped(run: Run) -> None:
    run.writes(run.transaction(), 0)
    run.marks(0, commits=True)
    violated("I33", lambda: run.ledger.read("c0", SPOTS[0], 0, 2, []))


def test_readers_and_the_last_stable_offset_must_not_pass_an_undecided_record(run: Run) -> None:
    mark = run.writes(run.transaction(), 0)
    violated("I36", lambda: run.ledger.read("c0", SPOTS[0], 0, 1, [(0, mark)]))
    violated("I36", lambda: run.leader_reports(0, 1))
    violated("I36", lambda: run.ledger.listed("c0", SPOTS[0], 1))


def test_a_record_must_not_follow_the_marker_of_a_partition_that_had_no_records(run: Run) -> None:
    """A batch that arrives only after the marker would begin a transaction that nobody ends."""
    before, one = run.transaction(), run.transaction(asks=False)
    run.ledger.added(before, [SPOTS[0]])
    run.writes(before, 0)
    run.marks(0, commits=True)
    run.ledger.added(one, SPOTS)
    run.writes(one, 1)
    for index in (0, 1):
        run.marks(index, commits=False)
    violated("I34", lambda: run.writes(one, 0))


def test_a_transaction_must_not_be_committed_in_one_partition_and_aborted_in_another(run: Run) -> None:
    one = run.transaction()
    run.writes(one, 0)
    run.writes(one, 1)
    run.marks(0, commits=True)
    violated("I34", lambda: run.marks(1, commits=False))


def test_a_transaction_whose_commit_is_acknowledged_must_not_be_aborted(run: Run) -> None:
    one = run.transaction()
    run.writes(one, 0)
    run.marks(0, commits=False)
    violated("I34", lambda: run.ledger.ended(one, True))


def test_a_transaction_must_not_commit_without_a_request(run: Run) -> None:
    run.writes(run.transaction(asks=False), 0)
    violated("I34", lambda: run.marks(0, commits=True))


def test_a_committed_transaction_must_have_its_acknowledged_records(run: Run) -> None:
    one = run.transaction()
    run.writes(one, 0)
    run.writes(one, 0, is_lost=True)
    violated("I34", lambda: run.marks(0, commits=True))


def test_a_record_must_not_come_after_the_end_of_its_transaction(run: Run) -> None:
    one = run.transaction()
    run.writes(one, 0)
    run.marks(0, commits=True)
    violated("I34", lambda: run.writes(one, 0))


def test_one_marker_must_not_end_two_transactions(run: Run) -> None:
    run.writes(run.transaction(), 0)
    run.writes(run.transaction(), 0)
    violated("I34", lambda: run.marks(0, commits=True))


def test_every_partition_of_a_transaction_must_get_its_end(run: Run) -> None:
    one = run.transaction()
    run.writes(one, 0)
    assert len(run.ledger.unsettled()) == 1
    violated("I34", run.ledger.check_ends)


def test_a_fenced_producer_must_not_write(run: Run) -> None:
    fenced = run.transaction()
    run.ledger.begun("id", LATER)
    violated("I35", lambda: run.writes(fenced, 0))
    run.writes(run.transaction(LATER), 0)


def test_two_producers_must_not_have_the_same_id_and_epoch(run: Run) -> None:
    violated("I35", lambda: run.ledger.begun("id", PRODUCER))


def test_the_last_stable_offset_must_not_fall_within_an_epoch(run: Run) -> None:
    run.writes(run.transaction(), 0)
    run.marks(0, commits=True)
    run.leader_reports(0, 2)
    violated("I36", lambda: run.leader_reports(0, 1))
    run.leader_reports(0, 1, epoch=1)
    run.ledger.listed("c0", SPOTS[0], 2)
    violated("I36", lambda: run.ledger.listed("c0", SPOTS[0], 1))


def test_a_committed_offset_must_be_visible_if_and_only_if_its_transaction_is_committed(run: Run) -> None:
    undecided, aborted, committed = run.transaction(asks=False), run.transaction(), run.transaction()
    for offset, one in enumerate((undecided, aborted, committed)):
        run.ledger.sends_offset(one, offset)
    aborted.outcome, committed.outcome = False, True
    run.ledger.fetched(0, NOTHING)
    run.ledger.fetched(0, 2)
    violated("I37", lambda: run.ledger.fetched(0, 0))
    violated("I37", lambda: run.ledger.fetched(0, 1))
    run.ledger.check_offset(0, 2)
    violated("I37", lambda: run.ledger.check_offset(0, NOTHING))


def batch_of(mark: Mark, offset: int, producer: tuple[int, int]) -> bytes:
    batch = build_batch([NewRecord(b"key", mark.value, 0)])
    stamp(batch, *producer, 0)
    header = parse_header(batch)
    seal(batch, header._replace(attributes=header.attributes | TRANSACTIONAL_FLAG))
    patch(batch, offset, 0)
    return bytes(batch)


def marker_of(offset: int, producer: tuple[int, int], *, commits: bool) -> bytes:
    marker = build_marker(EndTxnMarker(commits, 0), *producer, 0)
    patch(marker, offset, 0)
    return bytes(marker)


def test_a_reader_skips_aborted_records_up_to_their_marker() -> None:
    other = (8, 0)
    data = (
        batch_of(Mark(1, 0), 4, PRODUCER)
        + batch_of(Mark(2, 0), 5, other)
        + marker_of(6, PRODUCER, commits=False)
        + batch_of(Mark(1, 1), 7, PRODUCER)
        + marker_of(8, PRODUCER, commits=True)
    )
    assert committed_in(data, ((7, 4),), 4) == ([(5, Mark(2, 0)), (7, Mark(1, 1))], 9)
    assert committed_in(data, (), 5) == ([(5, Mark(2, 0)), (7, Mark(1, 1))], 9)


def test_markers_of_a_compacted_partition_decide_which_records_may_be_missing() -> None:
    data = (
        batch_of(Mark(1, 0), 0, (8, 0))
        + marker_of(1, (8, 0), commits=True)
        + batch_of(Mark(2, 0), 2, PRODUCER)
        + marker_of(3, PRODUCER, commits=False)
        + batch_of(Mark(1, 1), 4, (8, 0))
    )
    records = KeyedRecords(0.0, 0)
    for one in batches_in(data, keyed=True):
        records.add(one, 0.0)
    assert records.lost([2], 1.0, 0) is None, "its transaction is aborted"
    assert "last one" in str(records.lost([0], 1.0, 0)), "the aborted and the open one do not replace it"
    assert "last one" in str(records.lost([4], 1.0, 0)), "its transaction is open"
    for one in batches_in(marker_of(5, (8, 0), commits=True), keyed=True):
        records.add(one, 0.0)
    assert records.lost([0], 1.0, 0) is None


@pytest.mark.parametrize("commits", [True, False])
def test_another_marker_may_decide_a_transaction_whose_marker_is_lost(commits: bool) -> None:
    """Seed 710000026: the broker's disk was restored from a backup without the marker that commits."""
    records = KeyedRecords(0.0, 0)
    for one in batches_in(batch_of(Mark(1, 0), 0, PRODUCER) + marker_of(1, PRODUCER, commits=commits), keyed=True):
        records.add(one, 0.0)
    assert (records.lost([0], 1.0, 0) is not None) == commits
    records.cut_to(1)
    assert "last one" in str(records.lost([0], 1.0, 0)), "its transaction is open again"
    for one in batches_in(marker_of(1, PRODUCER, commits=not commits), keyed=True):
        records.add(one, 0.0)
    assert (records.lost([0], 1.0, 0) is None) == commits


def test_a_truncation_also_removes_records_of_open_transactions() -> None:
    records = KeyedRecords(0.0, 0)
    for one in batches_in(batch_of(Mark(1, 0), 0, PRODUCER) + batch_of(Mark(1, 1), 1, PRODUCER), keyed=True):
        records.add(one, 0.0)
    records.cut_to(1)
    for one in batches_in(marker_of(1, PRODUCER, commits=False), keyed=True):
        records.add(one, 0.0)
    assert records.aborted == {0}


def test_a_transaction_that_an_unclean_election_has_removed_is_not_open(run: Run) -> None:
    run.writes(run.transaction(), 0)
    assert len(run.ledger.unsettled()) == 1
    run.histories[0].cut_to(0)
    assert not run.ledger.unsettled()
    run.writes(run.transaction(LATER), 0)
    assert len(run.ledger.unsettled()) == 1, "another transaction is open at this offset"
