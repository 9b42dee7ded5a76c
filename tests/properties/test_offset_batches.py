"""Batches of `__consumer_offsets` that are replayed in compiled code, against their records replayed one at a time."""

from __future__ import annotations

from random import Random
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.core.coordinator import group_requests as g
from broker.core.coordinator.fields import BadRecord
from broker.core.coordinator.group_machine import GroupMachine
from broker.core.coordinator.machine import Record as ToReplay
from broker.core.coordinator.machine import replay_each
from broker.core.coordinator.records import (
    GroupKey,
    GroupValue,
    OffsetKey,
    OffsetValue,
    write_group,
    write_key,
    write_offset,
)
from broker.core.transactions import Marker, ProducerKey
from tests.unit.broker.core.coordinator.driver import Cluster
from tests.unit.broker.core.coordinator.replays import logged

Pair = tuple[bytes | None, bytes | None]

GROUPS = st.sampled_from(["", "a", "b", "ä", "g" * 300])
TOPICS = st.sampled_from(["", "sales", "ö", "t" * 249])
METADATA = st.one_of(st.just(""), st.text(max_size=3), st.integers(120, 132).map("m".__mul__))
offset_keys = st.builds(OffsetKey, GROUPS, TOPICS, st.integers(-1, 2)).map(write_key)
offset_values = st.builds(
    OffsetValue,
    offset=st.integers(0, 2**63 - 1),
    leader_epoch=st.integers(-1, 5),
    metadata=METADATA,
    commit_ms=st.integers(0, 2**62),
    expire_ms=st.sampled_from([-1, -1, -1, 5]),
    topic_id=st.sampled_from([None, UUID(int=1), UUID(int=2**128 - 1)]),
).map(write_offset)
group_keys = st.builds(GroupKey, GROUPS).map(write_key)
group_values = st.just(write_group(GroupValue("consumer", 1, None, None, -1, ())))
offset_pairs = st.tuples(offset_keys, st.none() | offset_values)
good_pairs = st.one_of(offset_pairs, offset_pairs, offset_pairs, st.tuples(group_keys, st.none() | group_values))


@st.composite
def damaged_pairs(draw: st.DrawFn) -> Pair:
    """Return a pair with one byte changed, inserted or removed."""
    parts: list[bytes | None] = list(draw(good_pairs))
    which = 0 if parts[1] is None else draw(st.integers(0, 1))
    part = parts[which]
    assert part is not None
    position = draw(st.integers(0, len(part)))
    inserted = draw(st.sampled_from([b"", b"\0", b"\1", b"\x7f", b"\x80", b"\xff"]))
    parts[which] = part[:position] + inserted + part[position + draw(st.integers(0, 1)) :]
    return parts[0], parts[1]


keyless = st.tuples(st.none(), st.none() | offset_values)
arbitrary = st.tuples(st.binary(max_size=12), st.none() | st.binary(max_size=50))
bad_pairs = st.one_of(damaged_pairs(), damaged_pairs(), arbitrary, keyless)
transactions = st.none() | st.tuples(offset_pairs, st.booleans())
"""An offset of a transaction, and whether the transaction is open during the batch."""


def machine() -> GroupMachine:
    return GroupMachine(g.GroupLimits(), Cluster(), Random(0), lambda: 0)


def state(machine: GroupMachine) -> object:
    groups = {name: getattr(group, "stored", None) for name, group in machine._groups.items()}
    pending = machine._pending_offsets
    offsets = machine._offsets
    return offsets._groups, offsets.count, groups, pending._by_producer, pending.count, machine.unknown_records


def replay(machine: GroupMachine, batches: list[list[Pair]], transaction: object, *, compiled: bool) -> str | None:
    """Replay the batches, with an offset of a transaction before them; return the error, if any."""
    if isinstance(transaction, tuple):
        (key, value), is_open = transaction
        machine.replay(ToReplay(key, value, ProducerKey(7, 0)))
        if not is_open:
            machine.replay(ToReplay(b"", None, marker=Marker(ProducerKey(7, 0), True, 0)))
    base = 0
    try:
        for batch in batches:
            if compiled:
                machine.replay_batch(logged(batch, base), None)
            else:
                replay_each(machine.replay, logged(batch, base))
            base += len(batch)
    except BadRecord as error:
        return str(error)
    machine.replay(ToReplay(b"", None, marker=Marker(ProducerKey(7, 0), True, 0)))
    assert machine._offsets.count == sum(map(len, machine._offsets._groups.values()))
    assert all(machine._offsets._groups.values()), "a group without offsets"
    return None


@given(st.lists(st.lists(good_pairs, min_size=1, max_size=12), max_size=4), transactions)
def test_compiled_replay_of_batches_gives_the_same_state_as_replay_of_single_records(
    batches: list[list[Pair]], transaction: object
) -> None:
    one, many = machine(), machine()
    assert replay(one, batches, transaction, compiled=False) is None
    assert replay(many, batches, transaction, compiled=True) is None
    assert state(one) == state(many)


@given(st.lists(good_pairs, max_size=5), bad_pairs, st.lists(good_pairs, max_size=3))
def test_compiled_replay_of_batches_refuses_the_same_records_as_replay_of_single_records(
    before: list[Pair], bad: Pair, after: list[Pair]
) -> None:
    one, many = machine(), machine()
    batches = [[*before, bad, *after]]
    refusal = replay(one, batches, None, compiled=False)
    assert replay(many, batches, None, compiled=True) == refusal
    if refusal is None:
        assert state(one) == state(many)
    else:
        assert refusal.startswith(f"the record at offset {len(before)}")


@pytest.mark.parametrize("size", [0, 1, 125, 126])
@pytest.mark.parametrize("topic_id", [None, UUID(int=1)], ids=["version 3", "version 4"])
def test_compiled_replay_leaves_only_offsets_with_long_metadata_to_python(size: int, topic_id: UUID | None) -> None:
    value = write_offset(OffsetValue(3, 1, "m" * size, 9, topic_id=topic_id))
    key = write_key(OffsetKey("a", "sales", 0))
    found = machine()._offsets
    left: list[object] = []
    found.apply_batch(logged([(key, value), (key, None), (key, value)]), left.append)
    assert len(left) == (0 if size <= 125 else 2)
    assert found.count == (1 if size <= 125 else 0)
