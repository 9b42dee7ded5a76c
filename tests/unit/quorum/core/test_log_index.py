"""`LogIndex` against a plain list of batches, and writes that complete after their batch was truncated."""

from __future__ import annotations

from random import Random

import pytest

from quorum.core.log_index import LogIndex
from quorum.core.types import Batch, LogEnd


def batch(offset: int, epoch: int, count: int = 1, payload: bytes = b"x") -> Batch:
    return Batch(offset, epoch, count, 0, payload)


def index(*epochs: tuple[int, int], end: int = 0, recent: int = 1 << 20) -> LogIndex:
    return LogIndex(0, end, epochs, recent)


def test_an_epoch_ends_where_the_next_one_begins() -> None:
    log = index((1, 0), (3, 4), (6, 9), end=12)
    assert log.last == LogEnd(6, 12)
    assert log.end_of_epoch(6) == LogEnd(6, 12)
    assert log.end_of_epoch(9) == LogEnd(6, 12)
    assert log.end_of_epoch(5) == LogEnd(3, 9)
    assert log.end_of_epoch(1) == LogEnd(1, 4)
    assert log.end_of_epoch(0) == LogEnd(0, 0)
    assert [log.epoch_at(offset) for offset in (-1, 0, 3, 4, 11, 12)] == [None, 1, 1, 3, 6, None]


def test_the_index_stores_epochs_not_batches() -> None:
    log = index(recent=0)
    for offset in range(1000):
        log.append(batch(offset, 1 + offset // 500), offset)
    assert (log.end_of_epoch(1), log.epoch_at(499), log.epoch_at(500)) == (LogEnd(1, 500), 1, 2)
    assert len(log._epochs) == 2, "otherwise the index of a long log would fill the memory"


def test_an_empty_log_has_no_records_and_ends_at_0() -> None:
    log = index()
    assert log.last == LogEnd(0, 0)
    assert log.end_of_epoch(5) == LogEnd(5, 0)
    assert log.recent(0, 100) == ()


def test_a_write_that_completes_makes_only_batches_durable_that_were_not_truncated() -> None:
    """Write 1 appends offsets 0 to 2, the log is truncated to 1, and write 2 appends offsets 1 to 3.

    So write 1 makes only offset 0 durable.
    """
    log = index()
    log.append(batch(0, 1), 1)
    log.append(batch(1, 1, 2), 1)
    log.truncate(1)
    log.append(batch(1, 2, 3), 2)
    assert (log.end, log.durable_end) == (4, 0)
    log.written(1)
    assert log.durable_end == 1
    log.written(2)
    assert log.durable_end == 4


def test_truncation_lowers_the_durable_end() -> None:
    log = index((1, 0), end=5)
    log.truncate(3)
    assert (log.end, log.durable_end) == (3, 3)
    log.append(batch(3, 2, 9), 1)
    assert log.durable_end == 3


def test_truncation_within_a_batch_fails_an_assertion() -> None:
    log = index()
    log.append(batch(0, 1), 1)
    log.append(batch(1, 1, 3), 1)
    assert [log.splits_a_batch(offset) for offset in range(5)] == [False, False, True, True, False]
    with pytest.raises(AssertionError, match="within a batch"):
        log.truncate(2)


@pytest.mark.parametrize(("offset", "epoch", "count"), [(1, 1, 1), (0, 0, 0)])
def test_an_append_at_a_wrong_offset_or_without_records_fails_an_assertion(offset: int, epoch: int, count: int) -> None:
    with pytest.raises(AssertionError):
        index().append(batch(offset, epoch, count), 1)


def test_an_append_of_an_older_epoch_fails_an_assertion() -> None:
    log = index((5, 0), end=1)
    with pytest.raises(AssertionError, match="epoch 4 after 5"):
        log.append(batch(1, 4), 1)


def test_k20726_only_durable_batches_leave_the_memory() -> None:
    log = index(recent=1000)
    for offset in range(40):
        log.append(batch(offset, 1, payload=bytes(36)), offset + 1)  # 100 bytes each
    assert log.recent_start == 0
    assert log.unwritten_bytes == 4000
    log.written(5)
    assert log.recent_start == 5
    log.written(40)
    assert log.unwritten_bytes == 0
    assert log.recent_start == 30
    assert log.recent(29, 1000) is None
    kept = log.recent(30, 1000)
    assert kept is not None
    assert [b.base_offset for b in kept] == list(range(30, 40))


def test_reads_are_limited_but_never_empty() -> None:
    log = index()
    for offset in range(5):
        log.append(batch(offset, 1, payload=bytes(36)), 1)
    sizes = [len(log.recent(0, max_bytes) or ()) for max_bytes in (1, 100, 199, 200, 1000)]
    assert sizes == [1, 1, 1, 2, 5]
    assert log.recent(5, 100) == ()


def test_offsets_within_a_batch_are_not_served() -> None:
    log = index()
    log.append(batch(0, 1, 3), 1)
    assert log.recent(1, 100) == ()


def test_random_operations_match_a_list_of_batches() -> None:
    """Random appends, truncations and completions; the twin is a list of batches and the list of writes."""
    random = Random(7)
    for _ in range(200):
        log = index(recent=200)
        twin: list[Batch] = []
        writes: list[tuple[int, list[Batch]]] = []  # each write with the log as it will be on disk after it
        durable: list[Batch] = []
        write_id = 0
        for _ in range(60):
            choice = random.random()
            if choice < 0.5:
                write_id += 1
                epoch = (twin[-1].epoch if twin else 0) + random.choice([0, 0, 1, 3])
                added = batch(twin[-1].end_offset if twin else 0, epoch, random.randint(1, 3), bytes([write_id % 256]))
                log.append(added, write_id)
                twin.append(added)
                writes.append((write_id, list(twin)))
            elif choice < 0.65 and twin:
                write_id += 1
                kept = random.randrange(len(twin))
                log.truncate(twin[kept].base_offset)
                del twin[kept:]
                writes.append((write_id, list(twin)))
            elif writes:
                done, durable = writes.pop(0)
                log.written(done)
            assert log.end == (twin[-1].end_offset if twin else 0)
            common = sum(1 for a, b in zip(durable, twin, strict=False) if a == b)
            assert log.durable_end <= (twin[common - 1].end_offset if common else 0)
            if not writes:
                assert log.durable_end == log.end
            for entry in twin[-3:]:
                found = log.recent(entry.base_offset, 1)
                assert found is None or found == (entry,)
                assert log.epoch_at(entry.base_offset) == entry.epoch
                ends = [b.end_offset for b in twin if b.epoch <= entry.epoch]
                assert log.end_of_epoch(entry.epoch) == LogEnd(entry.epoch, ends[-1])
