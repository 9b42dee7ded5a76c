"""Coordinators expire state by the broker's retention clock, which does not follow a jump of the wall clock at once."""

from __future__ import annotations

from random import Random
from typing import Any, cast

import pytest

from broker.coordinator.groups import GroupCoordinators
from broker.coordinator.transactions import TransactionCoordinators
from broker.core.coordinator.machine import Record
from broker.core.coordinator.records import OffsetKey, OffsetValue, write_key, write_offset
from broker.core.coordinator.transaction_records import (
    TransactionState,
    TransactionValue,
    write_transaction,
    write_transaction_key,
)
from quorumlog.runtime.clock import Sources, now_ms
from tests.unit.broker.replica.rig import TOPIC, Rig

NOW_MS = 1_700_000_000_000
YEAR_MS = 365 * 86_400_000
SEARCH_MS = 600_000
"""Time until coordinators look for expired state."""
NOTHING = cast(Any, None)


class Clock:
    def __init__(self) -> None:
        self.wall_ms = NOW_MS
        self.sources = Sources(lambda: self.wall_ms, Random(1))


@pytest.mark.parametrize("jump_ms", [YEAR_MS, -YEAR_MS])
async def test_a_jump_of_the_wall_clock_expires_no_offset_and_no_transactional_id(rig: Rig, jump_ms: int) -> None:
    await rig.create((1,))
    clock, table = Clock(), rig.role.table
    groups = GroupCoordinators(table, NOTHING, NOTHING, clock.sources)
    transactions = TransactionCoordinators(table, groups, NOTHING, NOTHING, NOTHING, NOTHING, clock.sources)
    offset = Record(write_key(OffsetKey("g", TOPIC, 0)), write_offset(OffsetValue(7, -1, "", NOW_MS)))
    value = TransactionValue(1, 0, 60_000, TransactionState.EMPTY, (), NOW_MS)
    idle = Record(write_transaction_key("x"), write_transaction(value))
    rig.role.logs.cautious_ms(clock.wall_ms, now_ms())  # as the upkeep of the logs does
    clock.wall_ms += jump_ms
    for machine, record in ((groups._machine(), offset), (transactions._machine(), idle)):
        machine.replay(record)
        machine.loaded(now_ms())
        assert machine.tick(now_ms() + SEARCH_MS).records == (), machine
