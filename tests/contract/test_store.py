"""The contract of `QuorumStore`."""

from __future__ import annotations

import asyncio

import pytest

from quorum.core.types import Batch, Election, QuorumState, TargetVoters, VoterSet
from quorum.ports import QuorumStore, StoreWrite
from quorumlog.errors import StoreRefusedError
from tests.contract.conftest import StoreKind
from tests.contract.samples import CLUSTER, KEYS, VOTERS, data, founding, leader_change, state


async def fill(store: QuorumStore) -> tuple[Batch, ...]:
    """Open the store and write a small log: founding, leader change, three data batches."""
    await store.open(1, None)
    batches = (founding(), leader_change(1), data(2, count=3), data(5), data(6, count=2))
    await store.write([StoreWrite(state(8), None, batches)])
    return batches


def test_a_blank_disk_is_formatted_and_keeps_its_identity(stores: StoreKind) -> None:
    async def scenario() -> None:
        store = stores.store()
        first = await store.open(1, None)
        assert first.node_id == 1
        assert first.directory_id.version == 4
        assert (first.state, first.log_start, first.log_end) == (QuorumState(), 0, 0)
        assert (first.epochs, first.controls) == ((), ())
        await store.close()
        again = stores.store()
        assert await again.open(1, None) == first
        await again.close()
        other = stores.store("b")
        assert (await other.open(1, None)).directory_id != first.directory_id
        await other.close()

    stores.run(scenario)


def test_written_data_survive_a_close(stores: StoreKind) -> None:
    async def scenario() -> None:
        store = stores.store()
        batches = await fill(store)
        await store.write([StoreWrite(state(8, epoch=2, voted_for=KEYS[2]), None, ())])
        await store.close()
        store = stores.store()
        stored = await store.open(1, CLUSTER)
        assert stored.state == state(8, epoch=2, voted_for=KEYS[2])
        assert (stored.log_start, stored.log_end) == (0, 8)
        assert stored.epochs == ((0, 0), (1, 1))
        assert stored.controls == batches[:2]
        assert await store.read(0, 8, 1 << 20) == batches
        await store.close()

    stores.run(scenario)


def test_written_data_survive_a_crash(stores: StoreKind) -> None:
    async def scenario() -> None:
        store = stores.store()
        batches = await fill(store)
        await stores.crash(store)
        store = stores.store()
        stored = await store.open(1, None)
        assert (stored.state, stored.log_end) == (state(8), 8)
        assert await store.read(0, 8, 1 << 20) == batches
        await store.close()

    stores.run(scenario)


def test_many_writes_take_effect_in_order(stores: StoreKind) -> None:
    async def scenario() -> None:
        store = stores.store()
        batches = await fill(store)
        replaced = data(5, epoch=2, payload=b"other"), data(6, epoch=2)
        await store.write(
            [
                StoreWrite(state(5, epoch=2), 5, ()),
                StoreWrite(state(6, epoch=2), None, replaced[:1]),
                StoreWrite(state(7, epoch=2), None, replaced[1:]),
                StoreWrite(state(6, epoch=3), 6, ()),
                StoreWrite(state(7, epoch=3), None, (data(6, epoch=3),)),
            ]
        )
        expected = (*batches[:3], replaced[0], data(6, epoch=3))
        assert await store.read(0, 100, 1 << 20) == expected
        await store.close()
        store = stores.store()
        stored = await store.open(1, None)
        assert stored.epochs == ((0, 0), (1, 1), (2, 5), (3, 6))
        assert (stored.log_end, stored.state) == (7, state(7, epoch=3))
        assert await store.read(0, 100, 1 << 20) == expected
        await store.close()

    stores.run(scenario)


def test_k11_a_read_during_truncation_and_append_is_consistent(stores: StoreKind) -> None:
    """KAFKA-18723: never two epochs that did not follow each other, never half a batch."""

    async def scenario() -> None:
        store = stores.store()
        batches = await fill(store)
        logs = [batches]
        reads = []
        for epoch in range(2, 12):
            later = tuple(data(offset, epoch=epoch, payload=b"other" * 50) for offset in range(5, 40))
            logs.append((*batches[:3], *later))
            writing = asyncio.ensure_future(store.write([StoreWrite(state(40, epoch=epoch), 5, later)]))
            reads += [asyncio.ensure_future(store.read(0, 100, 1 << 20)) for _ in range(3)]
            await writing
        found = await asyncio.gather(*reads)
        assert all(one in logs for one in found)
        await store.close()

    stores.run(scenario)


def test_an_empty_list_of_writes_changes_nothing(stores: StoreKind) -> None:
    async def scenario() -> None:
        store = stores.store()
        batches = await fill(store)
        await store.write([])
        assert await store.read(0, 8, 1 << 20) == batches
        await store.close()

    stores.run(scenario)


def test_reads_are_whole_batches_within_bounds(stores: StoreKind) -> None:
    async def scenario() -> None:
        store = stores.store()
        batches = await fill(store)
        assert await store.read(2, 6, 1 << 20) == batches[2:4]
        assert await store.read(5, 8, 1) == batches[3:4], "the first batch is returned whole, regardless of the limit"
        two = batches[2].size + batches[3].size
        assert await store.read(2, 8, two) == batches[2:4]
        assert await store.read(2, 8, two - 1) == batches[2:3]
        assert await store.read(3, 8, 1) == batches[2:3], "the batch that holds the offset"
        assert await store.read(8, 20, 1 << 20) == ()
        await store.close()

    stores.run(scenario)


def test_control_records_and_targets_survive(stores: StoreKind) -> None:
    async def scenario() -> None:
        store = stores.store()
        await store.open(1, None)
        target = VoterSet(VOTERS.voters[:2])
        batches = (founding(), Batch(1, 1, 1, 5, b"", TargetVoters(target)))
        written = QuorumState(CLUSTER, 0, Election(1), 2, VOTERS, target)
        await store.write([StoreWrite(written, None, batches)])
        await store.close()
        store = stores.store()
        stored = await store.open(1, None)
        assert (stored.state, stored.controls) == (written, batches)
        end = Batch(2, 1, 1, 6, b"", TargetVoters(None))
        await store.write([StoreWrite(QuorumState(CLUSTER, 0, Election(1), 3, VOTERS), None, (end,))])
        await store.close()
        store = stores.store()
        assert (await store.open(1, None)).state.target_voters is None
        await store.close()

    stores.run(scenario)


def test_another_nodes_disk_is_refused(stores: StoreKind) -> None:
    async def scenario() -> None:
        store = stores.store()
        await store.open(1, None)
        await store.close()
        with pytest.raises(StoreRefusedError, match="belongs to node 1, not to node 2"):
            await stores.store().open(2, None)

    stores.run(scenario)


def test_another_clusters_disk_is_refused(stores: StoreKind) -> None:
    async def scenario() -> None:
        store = stores.store()
        await fill(store)
        await store.close()
        with pytest.raises(StoreRefusedError, match=f"belongs to cluster {CLUSTER}, not to"):
            await stores.store().open(1, "another")
        store = stores.store()
        assert (await store.open(1, CLUSTER)).log_end == 8
        await store.close()

    stores.run(scenario)
