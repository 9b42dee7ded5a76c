"""Consumer groups of quorumlog beside Apache Kafka: idle groups, loading of committed offsets, commits, and joins.

idle: the memory and the processor time of all servers, while 10,000 groups have a million committed offsets and nobody
sends a request.
load: one partition of the topic for groups holds a million committed offsets, 100 of each of 10,000 groups.  The
partition's leader is stopped until another broker leads it; the figure is the time that the new coordinator reports for
its load.
commits: 16 loops, each with a group of its own, commit the offset of one partition, one commit after another.
joins: members of the classic protocol join an empty group, each with a connection of its own; then one more member
joins, and all others join again.  The duration consists mostly of group.initial.rebalance.delay.ms (3 s in both
clusters), and depends on the load of the machine.  The servers' processor time depends less on it.

The clients are small asyncio programs, the same for both clusters.
"""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

from bench.clusters import KAFKA, OURS, SYNCED, TIMEOUT_S, Cluster
from bench.plots import Panel, show
from bench.rounds import Figures, alternate
from broker.core.coordinator.placement import partition_of
from quorumlog.client import cluster as metadata
from quorumlog.client.group_descriptions import CommittedOffset
from quorumlog.client.group_protocol import CONSUMER, Subscription, encode_assignment, encode_subscription
from quorumlog.client.groups import GroupClient
from quorumlog.client.kafka import KafkaConnection
from quorumlog.wire.errors import KafkaCode
from quorumlog.wire.kafka import codec
from quorumlog.wire.kafka.codec import Api

PORT_BASE: Final = 27_300
TOPIC: Final = "groups"
PARTITIONS: Final = 100
OFFSETS_TOPIC_PARTITIONS: Final = 50
WANTED_PARTITION: Final = 7
COMMIT_VERSION: Final = 8
JOIN_VERSION, SYNC_VERSION, HEARTBEAT_VERSION = 7, 5, 4
COMMITTERS: Final = 16
SESSION_MS, REBALANCE_MS = 45_000, 60_000
CHECK_PAUSE_S: Final = 0.05
LOADED: Final = {
    OURS: re.compile(r"coordinator loaded.*?records=(\d+).*?\bms=(\d+)"),
    KAFKA: re.compile(r"Finished loading of metadata from .*? in (\d+)ms .*?Loaded (\d+) records"),
}
"""The log lines of a coordinator that has loaded its partition: records, then milliseconds; in Kafka the reverse."""


class Size(NamedTuple):
    """How much is measured.

    groups: the number of groups, each with 100 committed offsets.
    idle_s, commit_s: the durations of the measurements of idle groups and of commits.
    members: the number of members of each group that the joins measure.
    moves: whether the coordinator of the committed offsets moves, so that they are loaded.
    """

    rounds: int
    groups: int
    idle_s: float
    commit_s: float
    members: Sequence[int]
    moves: bool


FULL: Final = Size(3, 10_000, 10.0, 3.0, (100, 1000), moves=True)
TINY: Final = Size(1, 20, 0.3, 0.3, (3,), moves=False)


def run(tiny: bool) -> dict[str, Any]:
    size = TINY if tiny else FULL
    result = alternate(
        PORT_BASE,
        size,
        lambda *arguments: asyncio.run(_round(*arguments)),
        tiny=tiny,
        warm=lambda *arguments: asyncio.run(_warm(*arguments)),
    ).result()
    return {"offsets": size.groups * PARTITIONS, **result}


async def _warm(cluster: Cluster, size: Size) -> None:
    """Commit all offsets.  In full size, also run the commits and the smallest joins, so that Java compiles them."""
    await _commit_many(cluster, size)
    if size.moves:
        await _commits(cluster, -1, size)
        await _joins(cluster, "joins-warm", size.members[0])


def _group_names(count: int) -> list[str]:
    """Return names of equal length of groups whose state is in one partition."""
    names = (f"bench-{number:07d}" for number in range(10_000_000))
    fitting = (name for name in names if partition_of(name, OFFSETS_TOPIC_PARTITIONS) == WANTED_PARTITION)
    return [next(fitting) for _ in range(count)]


async def _commit_many(cluster: Cluster, size: Size) -> None:
    """Commit an offset of each partition in each group.  All requests differ only in the name of the group."""
    cluster.create(TOPIC, PARTITIONS, SYNCED)
    names = _group_names(size.groups)
    partitions = [
        {"partition_index": each, "committed_offset": 0, "committed_metadata": ""} for each in range(PARTITIONS)
    ]
    topics = [{"name": TOPIC, "partitions": partitions}]
    values = {"group_id": names[0], "generation_id_or_member_epoch": -1, "member_id": "", "topics": topics}
    body = codec.encode(codec.request(Api.OFFSET_COMMIT, COMMIT_VERSION, values))
    assert body.count(names[0].encode()) == 1, "the name of the group must be replaceable"

    async with metadata.Cluster(cluster.bootstrap) as clients:
        coordinator = await GroupClient(clients).calls.find(names[0], TIMEOUT_S)
    async with KafkaConnection(coordinator.address.host, coordinator.address.port) as connection:
        await connection.connect(TIMEOUT_S)

        async def commit(group: str) -> None:
            request = body.replace(names[0].encode(), group.encode())
            while True:
                raw = await connection.call(Api.OFFSET_COMMIT, COMMIT_VERSION, (request,), TIMEOUT_S)
                if bytes(raw) in expected:
                    return
                reply = codec.decode(codec.response_schema(Api.OFFSET_COMMIT, COMMIT_VERSION), raw, 0)
                codes = {int(each.error_code) for topic in reply.topics for each in topic.partitions}
                if codes == {0}:
                    expected.add(bytes(raw))
                elif not codes <= {KafkaCode.COORDINATOR_LOAD_IN_PROGRESS, KafkaCode.NOT_COORDINATOR}:
                    raise RuntimeError(f"commits of group {group} were refused: {codes}")
                await asyncio.sleep(CHECK_PAUSE_S)

        expected: set[bytes] = set()
        await commit(names[0])
        await _in_parallel(names[1:], commit)


async def _in_parallel(items: Sequence[str], work: Callable[[str], Awaitable[None]]) -> None:
    """Do the work for all items, COMMITTERS at a time."""
    left = iter(items)

    async def loop() -> None:
        for item in left:
            await work(item)

    async with asyncio.TaskGroup() as tasks:
        for _ in range(COMMITTERS):
            tasks.create_task(loop())


async def _round(cluster: Cluster, number: int, size: Size) -> Figures:
    found = await _idle(cluster, size)
    if size.moves:
        found |= await _load(cluster, size)
    found |= await _commits(cluster, number, size)
    for members in size.members:
        found |= await _joins(cluster, f"joins-{members}-{number}", members)
    return found


# --- idle groups ---


async def _idle(cluster: Cluster, size: Size) -> Figures:
    before = cluster.processor_s()
    await asyncio.sleep(size.idle_s)
    spent_s = cluster.processor_s() - before
    return {"idle: memory, MiB": cluster.resident_mib(), "idle: processor time, ms/s": 1e3 * spent_s / size.idle_s}


# --- load ---


async def _load(cluster: Cluster, size: Size) -> Figures:
    """Let another broker become the coordinator of the partition; return the time of its load."""
    name = _group_names(1)[0]
    async with metadata.Cluster(cluster.bootstrap) as clients:
        groups = GroupClient(clients)
        assert len(await groups.committed(name, TIMEOUT_S)) == PARTITIONS  # answered once any earlier load has ended
        coordinator = (await groups.calls.find(name, TIMEOUT_S)).broker_id
    ends = {path: path.stat().st_size for path in cluster.logs}
    before = cluster.processor_s()
    with cluster.stopped(coordinator):
        times = await asyncio.to_thread(_wait_for_load, cluster, ends, size.groups * PARTITIONS)
        spent = cluster.processor_s() - before
    cluster.resume()
    return {"load, s": times[0] / 1e3, "load with its failover: servers' processor time, s": spent}


def _wait_for_load(cluster: Cluster, ends: Mapping[Path, int], records_min: int) -> list[int]:
    deadline = time.monotonic() + TIMEOUT_S
    while not (times := _loads_since(cluster, ends, records_min)):
        assert time.monotonic() < deadline, f"no load of {records_min:,} records was logged within {TIMEOUT_S:g} s"
        time.sleep(CHECK_PAUSE_S)  # polls, because no event reports a line in a log
    return times


def _loads_since(cluster: Cluster, ends: Mapping[Path, int], records_min: int) -> list[int]:
    """Return the milliseconds of each load of at least `records_min` records.

    ends: log files and positions; only lines after these positions count.
    """
    found = []
    for path, end in ends.items():
        with path.open("rb") as file:
            file.seek(end)
            text = file.read().decode(errors="replace")
        for first, second in LOADED[cluster.name].findall(text):
            records, took = (int(first), int(second)) if cluster.name == OURS else (int(second), int(first))
            if records >= records_min:
                found.append(took)
    return found


# --- commits ---


async def _commits(cluster: Cluster, number: int, size: Size) -> Figures:
    count = 0
    async with metadata.Cluster(cluster.bootstrap) as clients:
        groups = GroupClient(clients)
        names = [f"commits-{number}-{each}" for each in range(COMMITTERS)]
        for name in names:
            await groups.commit(name, {(TOPIC, 0): CommittedOffset(0)}, TIMEOUT_S)
        before, began = cluster.processor_s(), time.monotonic()

        async def loop(name: str) -> None:
            nonlocal count
            while time.monotonic() < began + size.commit_s:
                refused = await groups.commit(name, {(TOPIC, 0): CommittedOffset(count)}, TIMEOUT_S)
                assert not refused, refused
                count += 1

        async with asyncio.TaskGroup() as tasks:
            for name in names:
                tasks.create_task(loop(name))
        took, spent = time.monotonic() - began, cluster.processor_s() - before
    return {"commits/s": count / took, "commits: servers' processor time, ms each": 1e3 * spent / count}


# --- joins ---


class _Member:
    """A member of the classic protocol; the leader assigns nothing to anybody."""

    def __init__(self, group: str, connection: KafkaConnection) -> None:
        self._group = group
        self._connection = connection
        self._id = ""
        self._generation = -1

    async def join(self) -> None:
        """Join and synchronise, again if another rebalance begins meanwhile."""
        while True:
            reply = await self._ask(
                Api.JOIN_GROUP,
                JOIN_VERSION,
                session_timeout=SESSION_MS,
                rebalance_timeout=REBALANCE_MS,
                protocol_type=CONSUMER,
                protocols=[{"name": "range", "metadata": _SUBSCRIPTION}],
            )
            self._id = reply.member_id or self._id
            if reply.error_code in (KafkaCode.MEMBER_ID_REQUIRED, KafkaCode.REBALANCE_IN_PROGRESS):
                continue
            assert reply.error_code == 0, f"JoinGroup of {self._group}: {reply.error_code}"
            self._generation = reply.generation_id
            reply = await self._ask(
                Api.SYNC_GROUP,
                SYNC_VERSION,
                generation_id=self._generation,
                protocol_type=CONSUMER,
                protocol_name="range",
                assignments=[{"member_id": each.member_id, "assignment": _ASSIGNMENT} for each in reply.members],
            )
            if reply.error_code == 0:
                return
            assert reply.error_code == KafkaCode.REBALANCE_IN_PROGRESS, f"SyncGroup: {reply.error_code}"

    async def join_again(self) -> None:
        """Join once a heartbeat reports a rebalance."""
        code = 0
        while code == 0:
            code = (await self._ask(Api.HEARTBEAT, HEARTBEAT_VERSION, generation_id=self._generation)).error_code
            await asyncio.sleep(CHECK_PAUSE_S if code == 0 else 0)
        assert code == KafkaCode.REBALANCE_IN_PROGRESS, f"Heartbeat of {self._group}: {code}"
        await self.join()

    async def _ask(self, api: Api, version: int, **values: Any) -> Any:
        asked = {"group_id": self._group, "member_id": self._id, "group_instance_id": None, **values}
        return await self._connection.ask(api, version, asked, TIMEOUT_S)


_SUBSCRIPTION: Final = encode_subscription(Subscription(frozenset({TOPIC})), "range")
_ASSIGNMENT: Final = encode_assignment(())


async def _joins(cluster: Cluster, group: str, count: int) -> Figures:
    async with metadata.Cluster(cluster.bootstrap) as clients:
        address = (await GroupClient(clients).calls.find(group, TIMEOUT_S)).address
    connections = [KafkaConnection(address.host, address.port) for _ in range(count + 1)]
    try:
        for connection in connections:
            await connection.connect(TIMEOUT_S)
        members = [_Member(group, connection) for connection in connections]
        first = await _measured(cluster, [member.join() for member in members[:count]])
        again = [member.join_again() for member in members[:count]]
        one_more = await _measured(cluster, [members[count].join(), *again])
    finally:
        for connection in connections:
            await connection.close()
    name = f"{count:,} member{'' if count == 1 else 's'}"
    return {
        f"{name} join: s": first[0],
        f"{name} join: servers' processor time, s": first[1],
        f"one more than {name} joins: s": one_more[0],
        f"one more than {name} joins: servers' processor time, s": one_more[1],
    }


async def _measured(cluster: Cluster, work: Sequence[Awaitable[None]]) -> tuple[float, float]:
    """Return the seconds until all work has ended, and the servers' processor seconds, at least 0.01 (its unit)."""
    before, began = cluster.processor_s(), time.monotonic()
    await asyncio.gather(*work)
    return time.monotonic() - began, max(cluster.processor_s() - before, 0.01)


def present(result: dict[str, Any]) -> list[Panel]:
    """Print all figures as a table."""
    show(f"groups, with {result['offsets']:,} committed offsets (medians)", result["results"])
    return []
