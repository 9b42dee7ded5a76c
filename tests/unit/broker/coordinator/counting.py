"""A machine that counts, and coordinators of it on the broker of a `Rig`."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

from broker.coordinator.limits import CoordinatorLimits
from broker.coordinator.partition import Coordinator, State
from broker.coordinator.shell import CoordinatorShell
from broker.core.coordinator.fields import BadRecord
from broker.core.coordinator.machine import Answer, Machine, Record, Step, replay_each
from broker.core.transactions import ProducerKey
from broker.replica.replica import Replica
from quorumlog.wire._record_scan import Record as LoggedRecord
from tests.unit.broker.replica.rig import Rig

TOPIC = "__consumer_offsets"
WAIT_S = 20.0
WALL_MS = 1_700_000_000_000


class Counting(Machine[str, None]):
    """A machine whose state is one number.

    Requests: "add" raises the number, and "get" returns it.  "park" is answered by a tick 10 ms later, which raises the
    number, too.  "sly" adds, although its caller declares it as a read.

    replayed: the value and the producer of each record that was replayed.
    """

    def __init__(self) -> None:
        self.count = 0
        self.loads = 0
        self.is_closed = False
        self.replayed_at_once: list[int] = []
        self.replayed: list[tuple[bytes | None, ProducerKey | None]] = []
        self.forgotten: list[int] = []
        self._parked: list[tuple[int, int]] = []

    def _set(self, count: int) -> Record:
        self.count = count
        return Record(b"count", b"%d" % count)

    def replay(self, record: Record) -> None:
        if record.marker is not None:
            self.replayed.append((None, record.marker.producer))
            return
        self.replayed.append((record.value, record.producer))
        if record.value is None or not record.value.isdigit():
            raise BadRecord(f"{record.value!r} is not a number")
        self.count = int(record.value)

    def replay_batch(self, records: list[LoggedRecord], producer: ProducerKey | None) -> None:
        self.replayed_at_once.append(len(records))
        replay_each(self.replay, records, producer)

    def loaded(self, now_ms: int) -> Step:
        self.loads += 1
        return Step()

    def request(self, call: int, request: str, now_ms: int) -> Step:
        assert self.loads == 1
        if request == "park":
            self._parked.append((now_ms + 10, call))
            return Step()
        if request == "get":
            return Step(answers=(Answer(call, self.count),))
        return Step((self._set(self.count + 1),), (Answer(call, self.count),), ("counted",))

    def forget(self, call: int, now_ms: int) -> Step:
        self.forgotten.append(call)
        self._parked = [each for each in self._parked if each[1] != call]
        return Step()

    def tick(self, now_ms: int) -> Step:
        due = [call for at, call in self._parked if at <= now_ms]
        self._parked = [each for each in self._parked if each[0] > now_ms]
        return Step((self._set(self.count + 1),), tuple(Answer(call, self.count) for call in due))

    @property
    def deadline_ms(self) -> int | None:
        return min((at for at, _ in self._parked), default=None)

    def close(self) -> None:
        self.is_closed = True

    def configure(self, limits: None, now_ms: int) -> Step:
        return Step()


class Bench:
    """The coordinators of a rig's broker, and their one partition."""

    def __init__(self, rig: Rig, shell: CoordinatorShell[Counting]) -> None:
        self.rig = rig
        self.shell = shell

    async def create(self, *row: int, min_isr: int = 1) -> None:
        self.rig.cluster.create(TOPIC, row, configs=(("min.insync.replicas", str(min_isr)),))
        await self.rig.learn()

    @property
    def replica(self) -> Replica:
        found = self.rig.role.table.find(TOPIC, 0)
        assert found is not None
        return found

    @property
    def coordinator(self) -> Coordinator[Counting]:
        return self.shell._by_index[0]

    @property
    def state(self) -> State:
        return self.coordinator.state

    @property
    def machine(self) -> Counting:
        machine = self.coordinator.machine
        assert machine is not None
        return machine

    def call(self, request: str, size: int = 10) -> asyncio.Future[Any]:
        is_read = request in ("get", "sly", "park")
        return self.shell.call(0, lambda machine, call, now: machine.request(call, request, now), size, is_read=is_read)

    async def ask(self, request: str) -> Any:
        async with asyncio.timeout(WAIT_S):
            return await self.call(request)

    async def serving(self) -> None:
        await until(lambda: self.state is State.SERVING)

    async def flush(self) -> None:
        """Let pending calls append their records, then flush the log."""
        await turns()
        log = self.replica.log
        assert log is not None
        await self.rig.role.logs.flush_all([log])

    async def acknowledge(self, broker_id: int = 2) -> None:
        """Let a follower fetch from the log end, which acknowledges all records."""
        log, leader = self.replica.log, self.replica.leader
        assert log is not None
        assert leader is not None
        await self.flush()
        end = log.end_offset
        self.replica.on_fetch(broker_id, self.rig.cluster.epoch(broker_id), end, None)

    async def change(self, **fields: Any) -> None:
        """Change the partition: its leader (with another leader epoch), its ISR, …"""
        from metadata.records import NO_OFFSET, PartitionChange, Reason

        image = self.replica.image
        topic_id = self.replica.topic_id
        self.rig.cluster.apply(
            [PartitionChange(topic_id, 0, Reason.ISR_SHRINK, NO_OFFSET, image.last_offset, **fields)]
        )
        await self.rig.learn()


@asynccontextmanager
async def coordinating(rig: Rig, limits: CoordinatorLimits | None = None) -> AsyncIterator[Bench]:
    """Coordinators on the rig's broker."""
    limits = limits or CoordinatorLimits(retry_ms=10)
    shell: CoordinatorShell[Counting] = CoordinatorShell(TOPIC, rig.role.table, Counting, lambda: WALL_MS, limits)
    async with asyncio.TaskGroup() as group:
        shell.start(group)
        try:
            yield Bench(rig, shell)
        finally:
            await shell.close()
            assert (shell.counters.waiting, shell.counters.waiting_bytes) == (0, 0)


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(WAIT_S):
        while not condition():  # noqa: ASYNC110
            await asyncio.sleep(0.001)


async def turns(count: int = 10) -> None:
    """Let other tasks run."""
    for _ in range(count):
        await asyncio.sleep(0)
