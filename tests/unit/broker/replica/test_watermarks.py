"""Changed high watermarks are stored together, once per interval."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any
from uuid import UUID

from broker.core.fetch_session import PartitionKey
from broker.log import LogKey
from broker.log.state import watermark_fact
from broker.replica.context import ReplicaEvents
from broker.replica.watermarks import CHANGES_MAX, Watermarks
from tests.unit.metadata.fake_node import run

DIRECTORY = UUID(int=5)
TOPIC = UUID(int=7)


class Rig:
    """`count` replicas in one directory, all with the watermark `mark`."""

    def __init__(self, count: int) -> None:
        self.mark = 0
        self.moves_meanwhile = False
        self.commits: list[dict[str, bytes | None]] = []
        log = SimpleNamespace(directory_id=DIRECTORY, marks=SimpleNamespace(take_watermark=lambda: self.mark))
        keys = [PartitionKey(TOPIC, index) for index in range(count)]
        self.replicas: dict[PartitionKey, Any] = {
            key: SimpleNamespace(key=LogKey(TOPIC, key.partition_index, 1), partition=key, log=log) for key in keys
        }
        table: Any = SimpleNamespace(get=self.replicas.get, context=SimpleNamespace(events=ReplicaEvents()))
        disk: Any = SimpleNamespace(directory_id=DIRECTORY, facts=self)
        self.watermarks = Watermarks([disk], table, lambda *_: None)

    def move(self) -> None:
        self.mark += 1
        for replica in self.replicas.values():
            self.watermarks.note(replica)

    def load(self, prefix: str) -> Mapping[str, bytes]:
        return {}

    async def commit(self, changes: dict[str, bytes | None]) -> None:
        self.commits.append(changes)
        await asyncio.sleep(0.01)
        if self.moves_meanwhile:
            self.move()


def test_changed_high_watermarks_are_written_once_per_interval() -> None:
    async def test() -> None:
        rig = Rig(3)
        rig.moves_meanwhile = True
        rig.move()
        saving = asyncio.ensure_future(rig.watermarks.run(interval_ms=1000))
        await asyncio.sleep(3.5)
        saving.cancel()
        assert [set(changes.values()) for changes in rig.commits] == [{b"1"}, {b"2"}, {b"3"}]

    run(test())


def test_all_changed_high_watermarks_are_written_in_transactions_of_limited_size() -> None:
    async def test() -> None:
        rig = Rig(2 * CHANGES_MAX + 1)
        rig.move()
        await rig.watermarks.save()
        assert [len(changes) for changes in rig.commits] == [CHANGES_MAX, CHANGES_MAX, 1]
        assert not rig.watermarks._unsaved
        last = watermark_fact(LogKey(TOPIC, 2 * CHANGES_MAX, 1))
        assert rig.commits[-1] == {last: b"1"}

    run(test())


def test_the_stored_high_watermark_of_a_deleted_replica_is_removed() -> None:
    """Otherwise the watermark would apply to a new replica of the same name."""

    async def test() -> None:
        rig = Rig(2)
        rig.move()
        await rig.watermarks.save()
        key = LogKey(TOPIC, 1, 1)
        rig.replicas.popitem()
        rig.watermarks.forget(key)
        await rig.watermarks.save()
        assert rig.commits[-1] == {watermark_fact(key): None}

    run(test())
