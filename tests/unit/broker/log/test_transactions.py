"""Transactions in a log: after restarts, truncations, retention and compaction."""

from __future__ import annotations

from typing import Any

import pytest

from broker.core.transactions import Marker, ProducerKey
from broker.log import Appended, LogConfig, PartitionLog, Refused, segment
from broker.log.segment import segment_path
from quorumlog.errors import CorruptStoreError
from quorumlog.runtime.file_disk import _File
from quorumlog.wire.errors import KafkaCode
from quorumlog.wire.record_batch import TRANSACTIONAL_FLAG, parse_header
from tests.unit.broker.core.test_transactions import confirmed
from tests.unit.broker.log.batches import make_batch
from tests.unit.broker.log.rig import KEY, OTHER, SMALL, Rig, append, batches_of, stopped_at

MAX_TIMESTAMP_END = 43


def write(log: PartitionLog, producer_id: int, sequence: int = 0, *, epoch: int = 0, **options: Any) -> Appended:
    batch = make_batch([b"v"], producer=(producer_id, epoch, sequence), attributes=TRANSACTIONAL_FLAG, **options)
    token = confirmed(log.producers, parse_header(batch).producer_id)
    appended = log.append_as_leader(batch, 0, 0, token)
    assert isinstance(appended, Appended), appended
    return appended


def end(log: PartitionLog, producer_id: int, *, commit: bool = True, epoch: int = 0) -> int:
    appended = log.append_marker(Marker(ProducerKey(producer_id, epoch), commit, 0), 1_000, 0, 0)
    assert isinstance(appended, Appended), appended
    return appended.first_offset


def aborted(log: PartitionLog) -> list[tuple[int, int, int]]:
    rows = log.producers.transactions.aborted_between(log.start_offset, log.end_offset)
    return [(row.producer_id, row.first_offset, row.last_offset) for row in rows]


async def test_a_transactional_batch_without_a_confirmed_transaction_is_refused(rig: Rig) -> None:
    log = rig.create()
    batch = make_batch([b"v"], producer=(1, 0, 0), attributes=TRANSACTIONAL_FLAG)
    refused = log.append_as_leader(batch, 0, 0)
    assert isinstance(refused, Refused)
    assert refused.code == KafkaCode.INVALID_TXN_STATE
    assert log.end_offset == 0


async def test_a_transactional_batch_without_a_producer_id_is_refused(rig: Rig) -> None:
    refused = rig.create().append_as_leader(make_batch([b"v"], attributes=TRANSACTIONAL_FLAG), 0, 0)
    assert isinstance(refused, Refused)
    assert refused.code == KafkaCode.INVALID_RECORD


@pytest.mark.parametrize("how", ["clean", "killed", "no snapshots", "damaged snapshot"])
async def test_transactions_are_the_same_after_a_restart(rig: Rig, how: str) -> None:
    log = rig.create(SMALL)
    for number in range(10):
        write(log, 1, 2 * number)
        write(log, 2, number)
        write(log, 1, 2 * number + 1)
        end(log, 1, commit=number % 2 == 0)
        if number < 9:
            end(log, 2, commit=number % 3 == 0)
    await rig.settle(log)
    await rig.logs.checkpoint([log])
    wanted = aborted(log), log.last_stable_offset, dict(log.producers.transactions.open)
    assert len(wanted[0]) == 11
    assert wanted[2] == {2: log.last_stable_offset}
    snapshots = rig.files(log, "producers")
    assert snapshots
    await (rig.stop() if how == "clean" else rig.kill())
    for path in snapshots:
        if how == "no snapshots":
            path.unlink()
    if how == "damaged snapshot":
        snapshots[-1].write_bytes(snapshots[-1].read_bytes()[:-1] + b"?")
    await rig.start()
    log = rig.log
    log.advance_high_watermark(log.end_offset)
    assert (aborted(log), log.last_stable_offset, dict(log.producers.transactions.open)) == wanted


async def test_truncating_a_transaction_marker_reopens_its_transaction(rig: Rig) -> None:
    log = rig.create()
    first = write(log, 1).first_offset
    marker = end(log, 1, commit=False)
    append(log, [b"x"])
    log.truncate_to(marker)
    assert dict(log.producers.transactions.open) == {1: first}
    assert aborted(log) == []
    end(log, 1)
    await rig.settle(log)
    assert log.last_stable_offset == log.end_offset


async def test_a_follower_has_the_same_transactions_as_its_leader(rig: Rig) -> None:
    log, follower = rig.create(), rig.create(key=OTHER)
    write(log, 1)
    write(log, 2)
    end(log, 1, commit=False)
    end(log, 2)
    write(log, 3)
    for batch in batches_of(log):
        assert isinstance(follower.append_as_follower(batch, 0, 0), Appended)
    assert follower.producers.snapshot() == log.producers.snapshot()
    assert follower.last_stable_offset == 0  # the follower has no committed records yet
    follower.advance_high_watermark(follower.end_offset)
    assert follower.last_stable_offset == 4


async def test_the_last_stable_offset_is_never_below_the_log_start_offset(rig: Rig) -> None:
    log = rig.create()
    write(log, 1)
    write(log, 1, 1)
    await rig.settle(log)
    assert log.last_stable_offset == 0
    log.advance_start_offset(1)
    assert log.last_stable_offset == 1
    await rig.logs.maintain(stopped_at(0), 0)
    end(log, 1, commit=False)
    await rig.settle(log)
    assert log.last_stable_offset == 3


async def test_producers_are_read_from_all_parts_of_a_long_log(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    """The log is read in parts; a batch that is larger than a part is a part of its own."""
    monkeypatch.setattr(segment, "READ_CHUNK", 1_000)
    log = rig.create(LogConfig())
    for number in range(30):
        append(log, [b"v" * (5_000 if number % 10 == 9 else 100)], producer=(number, 0, 0))
    (path,) = rig.files(log)
    await rig.stop()
    for snapshot in path.parent.glob("*.producers"):
        snapshot.unlink()
    await rig.start()
    assert {producer_id for producer_id, _ in rig.log.producers} == set(range(30))


async def test_a_damaged_first_batch_of_an_open_transaction_is_found(rig: Rig) -> None:
    """A snapshot covers the batch, so only the time of the transaction is read from the batch."""
    log = rig.create(LogConfig())
    write(log, 1, timestamps=[5])
    append(log, [b"v"])
    (path,) = rig.files(log)
    await rig.stop()
    data = bytearray(path.read_bytes())
    data[MAX_TIMESTAMP_END - 1] ^= 1
    path.write_bytes(bytes(data))
    await rig.start()
    with pytest.raises(CorruptStoreError, match=path.name):
        _ = rig.log.producers


async def test_the_time_of_an_open_transaction_is_read_from_its_first_batch_alone(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A log may have many open or aborted transactions, and the loop waits while their batches are read."""
    log = rig.create(LogConfig())
    for producer_id in (1, 2, 3):
        write(log, producer_id, timestamps=[producer_id])
        append(log, [b"v" * 100_000])
    await rig.restart(clean=True)
    sizes: list[int] = []
    pread = _File.pread

    def counting(file: _File, position: int, size: int) -> bytes:
        data = pread(file, position, size)
        sizes.append(len(data))
        return data

    monkeypatch.setattr(_File, "pread", counting)
    assert [producer.last_timestamp_ms for _, producer in rig.log.producers] == [1, 2, 3]
    assert sum(sizes) < 100_000


async def test_retention_drops_the_aborted_transactions_below_the_start(rig: Rig) -> None:
    log = rig.create()
    write(log, 1)
    end(log, 1, commit=False)
    write(log, 1, 1)
    end(log, 1, commit=False)
    await rig.settle(log)
    log.advance_start_offset(2)
    await rig.logs.maintain(stopped_at(0), 0)
    assert log.producers.transactions.aborted_count == 1
    await rig.restart(clean=False)
    assert aborted(rig.log) == [(1, 2, 3)]


async def test_a_read_reports_the_aborted_transactions_of_its_records(rig: Rig) -> None:
    log = rig.create(LogConfig())
    write(log, 1)
    write(log, 2)
    end(log, 1, commit=False)
    end(log, 2)
    append(log, [b"plain"])
    await rig.settle(log)
    data = log.read(0, 1 << 20, log.last_stable_offset)
    assert [tuple(one) for one in log.aborted_in(data, 0)] == [(1, 0, 2)]
    data = log.read(3, 1 << 20, log.last_stable_offset)
    assert log.aborted_in(data, 3) == []


async def test_a_snapshot_with_a_transaction_whose_marker_compaction_removed_is_not_used(rig: Rig) -> None:
    """The marker follows the snapshot; compaction removed both the records and the marker."""
    log = rig.create(LogConfig(index_interval=100))
    write(log, 1)
    await rig.settle(log)
    await rig.logs.checkpoint([log])
    log._producers.write_snapshot()
    await rig.settle(log)
    assert (rig.folder / segment_path(log.folder, 1, "producers")).exists()
    log.marks.compacted_end = 2
    state, offset = log._producers._newest_snapshot()
    assert (len(state), offset) == (0, 0)
    assert log.key == KEY
