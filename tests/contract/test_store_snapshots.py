"""The contract of `QuorumStore` for snapshots, and for a log that starts after one."""

from __future__ import annotations

import pytest

from quorum.core.types import LogEnd
from quorum.ports import BadSnapshotError, QuorumStore, SnapshotMissingError, StoreWrite
from quorumlog.errors import CorruptStoreError
from tests.contract.conftest import StoreKind
from tests.contract.samples import base, data, snapshot_bytes, state
from tests.contract.test_store import fill

END = LogEnd(1, 6)
BYTES = snapshot_bytes(6, b"one", b"two")


async def put(store: QuorumStore, end: LogEnd = END, content: bytes = BYTES) -> None:
    assert await store.begin_snapshot(end, resume=False) == 0
    await store.extend_snapshot(end, 0, content)
    info = await store.finish_snapshot(end)
    assert (info.end, info.size) == (end, len(content))


def test_a_finished_snapshot_survives_a_crash(stores: StoreKind) -> None:
    async def scenario() -> None:
        store = stores.store()
        await fill(store)
        await put(store)
        assert await store.read_snapshot(END, 0, 10) == (len(BYTES), BYTES[:10])
        await stores.crash(store)
        store = stores.store()
        stored = await store.open(1, None)
        assert stored.snapshots == (END,)
        assert (stored.log_start, stored.base) == (0, None)
        assert [info.header.base for info in await store.snapshots()] == [base(6)]
        assert await store.read_snapshot(END, 10, 1 << 20) == (len(BYTES), BYTES[10:])
        assert await store.read_snapshot(END, len(BYTES), 1) == (len(BYTES), b"")
        await store.delete_snapshot(END)
        await store.delete_snapshot(END)
        with pytest.raises(SnapshotMissingError):
            await store.read_snapshot(END, 0, 1)
        await store.close()

    stores.run(scenario)


def test_an_unfinished_snapshot_is_resumed(stores: StoreKind) -> None:
    async def scenario() -> None:
        store = stores.store()
        await fill(store)
        await store.begin_snapshot(END, resume=True)
        await store.extend_snapshot(END, 0, BYTES[:7])
        assert await store.begin_snapshot(END, resume=True) == 7
        assert await store.snapshots() == ()
        await store.extend_snapshot(END, 7, BYTES[7:])
        await store.finish_snapshot(END)
        assert await store.begin_snapshot(END, resume=True) == len(BYTES)  # the durable one serves
        assert (await store.finish_snapshot(END)).end == END
        await store.begin_snapshot(END, resume=True)
        assert [info.end for info in await store.snapshots()] == [END]
        await store.close()

    stores.run(scenario)


def test_a_partial_download_survives_a_crash(stores: StoreKind) -> None:
    """A download resumes if its snapshot ends above the log.

    An unfinished snapshot of our own, or an older download, starts over.
    """

    async def scenario() -> None:
        store = stores.store()
        await fill(store)
        far, further = LogEnd(3, 20), LogEnd(3, 30)
        content = snapshot_bytes(30, b"one", b"two", epoch=3)
        await store.begin_snapshot(END, resume=False)
        await store.extend_snapshot(END, 0, b"abc")
        await store.begin_snapshot(far, resume=True)
        await store.extend_snapshot(far, 0, b"abc")
        await store.begin_snapshot(further, resume=True)
        await store.extend_snapshot(further, 0, content[:50])
        await stores.crash(store)
        store = stores.store()
        assert (await store.open(1, None)).snapshots == ()
        assert await store.begin_snapshot(END, resume=False) == 0
        assert await store.begin_snapshot(further, resume=True) == 50
        await store.extend_snapshot(further, 50, content[50:])
        await put(store)
        assert (await store.finish_snapshot(further)).size == len(content)
        assert await store.begin_snapshot(far, resume=True) == 0
        await store.close()

    stores.run(scenario)


def test_a_snapshot_set_aside_as_damaged_is_no_longer_listed(stores: StoreKind) -> None:
    async def scenario() -> None:
        store = stores.store()
        await fill(store)
        await put(store)
        for _ in range(2):
            await store.set_snapshot_aside(END)
            assert await store.snapshots() == ()
            with pytest.raises(SnapshotMissingError):
                await store.read_snapshot(END, 0, 1)
        await put(store)
        await store.close()

    stores.run(scenario)


def test_a_snapshot_with_extra_bytes_is_set_aside(stores: StoreKind) -> None:
    """Another leader's snapshot of the same end may be longer: resuming a download must not fail permanently."""

    async def scenario() -> None:
        store = stores.store()
        await fill(store)
        far = LogEnd(3, 20)
        content = snapshot_bytes(20, b"one", epoch=3)
        await put(store, far, content)
        assert await store.begin_snapshot(far, resume=True) == len(content)
        await store.extend_snapshot(far, len(content), b"more")
        with pytest.raises(BadSnapshotError):
            await store.finish_snapshot(far)
        assert await store.begin_snapshot(far, resume=True) == 0
        await store.extend_snapshot(far, 0, content)
        assert (await store.finish_snapshot(far)).end == far
        await store.close()

    stores.run(scenario)


def test_a_truncated_or_damaged_snapshot_is_refused(stores: StoreKind) -> None:
    async def scenario() -> None:
        store = stores.store()
        await fill(store)
        flipped = [BYTES[:at] + bytes([BYTES[at] ^ 0x10]) + BYTES[at + 1 :] for at in range(len(BYTES))]
        for bad in (BYTES[:-1], BYTES[:40], b"", BYTES + b"x", BYTES + BYTES, snapshot_bytes(7, b"one"), *flipped):
            await store.begin_snapshot(END, resume=False)
            await store.extend_snapshot(END, 0, bad)
            with pytest.raises(BadSnapshotError):
                await store.finish_snapshot(END)
        assert await store.snapshots() == ()
        await put(store)
        await store.close()

    stores.run(scenario)


def test_the_log_can_start_at_a_snapshot(stores: StoreKind) -> None:
    async def scenario() -> None:
        store = stores.store()
        batches = await fill(store)
        await put(store)
        await store.write([StoreWrite(state(9), None, (data(8),), base(6))])
        expected = (batches[4], data(8))
        assert await store.read(6, 9, 1 << 20) == expected
        await stores.crash(store)
        store = stores.store()
        stored = await store.open(1, None)
        assert (stored.log_start, stored.log_end, stored.base) == (6, 9, base(6))
        assert (stored.epochs, stored.controls, stored.snapshots) == (((1, 6),), (), (END,))
        assert await store.read(6, 9, 1 << 20) == expected
        await store.write([StoreWrite(state(6), 6, ())])
        await store.write([StoreWrite(state(7), None, (data(6, epoch=2),))])
        assert await store.read(6, 9, 1 << 20) == (data(6, epoch=2),)
        await store.close()

    stores.run(scenario)


def test_a_log_that_is_behind_restarts_at_a_snapshot(stores: StoreKind) -> None:
    async def scenario() -> None:
        store = stores.store()
        await fill(store)
        far = LogEnd(3, 20)
        await put(store, far, snapshot_bytes(20, epoch=3))
        await stores.crash(store)
        store = stores.store()
        assert (await store.open(1, None)).snapshots == ()  # not in force: the log does not reach that offset yet
        await store.write([StoreWrite(state(20, epoch=3), 0, (), base(20, 3)), StoreWrite(state(21), None, ())])
        await store.write([StoreWrite(state(21, epoch=3), None, (data(20, epoch=3),))])
        await store.close()
        store = stores.store()
        stored = await store.open(1, None)
        assert (stored.log_start, stored.log_end, stored.base) == (20, 21, base(20, 3))
        assert stored.snapshots == (far,)
        assert await store.read(20, 99, 1 << 20) == (data(20, epoch=3),)
        await store.close()

    stores.run(scenario)


@pytest.mark.parametrize(
    ("end", "in_force"),
    [
        (LogEnd(0, 1), True),
        (LogEnd(1, 1), False),
        (LogEnd(1, 6), True),
        (LogEnd(2, 6), False),
        (LogEnd(0, 6), False),
        (LogEnd(1, 8), True),
        (LogEnd(2, 8), False),
        (LogEnd(1, 9), False),
    ],
)
def test_k20_a_snapshot_of_another_history_is_ignored(stores: StoreKind, end: LogEnd, in_force: bool) -> None:
    """It replaces a divergent log, and the node died before the log began at the snapshot.

    The records of that log below the snapshot's end were never committed.
    """

    async def scenario() -> None:
        store = stores.store()
        await fill(store)
        await put(store, end, snapshot_bytes(end.offset, epoch=end.epoch))
        await stores.crash(store)
        store = stores.store()
        assert (await store.open(1, None)).snapshots == ((end,) if in_force else ())
        await store.close()

    stores.run(scenario)


def test_k14238_a_log_without_its_beginning_and_without_a_snapshot_is_refused(stores: StoreKind) -> None:
    """KAFKA-14238: a log that starts above 0 is useless without a snapshot."""

    async def scenario() -> None:
        store = stores.store()
        await fill(store)
        await put(store)
        await store.write([StoreWrite(state(8), None, (), base(6))])
        await store.delete_snapshot(END)
        await store.close()
        with pytest.raises(CorruptStoreError, match="no snapshot holds the earlier records"):
            await stores.store().open(1, None)

    stores.run(scenario)
