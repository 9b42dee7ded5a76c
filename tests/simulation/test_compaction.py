"""A compacted topic while brokers lose power: no replica loses the latest record of a key."""

from __future__ import annotations

import asyncio
from collections import Counter
from random import Random

import pytest

from broker.log import PartitionLog
from broker.replica.limits import ReplicaLimits
from quorumlog.client.cluster import Cluster
from quorumlog.client.consumer import EARLIEST, LATEST, Consumer
from quorumlog.client.producer import Producer
from quorumlog.client.records import NewRecord, Record, build_batch, decode_batches
from quorumlog.wire import rpcs
from quorumlog.wire.errors import ApiError
from quorumlog.wire.record_batch import Codec, iter_headers
from quorumlog.wire.v1 import controller_pb2 as pb
from simulation.cluster.nodes import Host, World
from simulation.cluster.world import QUICK
from simulation.smoke import all_ready, quiet
from tests.unit.broker.log.compaction_rig import read_all

TOPIC = "compacted"
CONFIGS = {
    "cleanup.policy": "compact",
    "delete.retention.ms": "2000",
    "min.cleanable.dirty.ratio": "0.1",
    "min.insync.replicas": "2",
    "segment.ms": "3000",
}
LIMITS = ReplicaLimits(
    fetcher_wait_ms=300,
    fetcher_backoff_min_ms=30,
    fetcher_backoff_max_ms=300,
    checkpoint_interval_ms=700,
    maintenance_interval_ms=900,
    segment_size_max=1_500,
    index_interval_bytes=300,
    log_checkpoint_bytes=2_000,
)
WRITES = 300
KEYS = 12
SEEDS = 6

Values = dict[bytes, bytes | None]


class Story:
    """One run: a writer, a fault at a time, and the checks at the end.

    latest: the last acknowledged value of each key.  places: the acknowledged records, by offset.
    """

    def __init__(self, seed: int) -> None:
        settings = {**QUICK, "log_cleaner_backoff_ms": 150, "log_cleaner_memory": Random(seed).choice([700, 1 << 20])}
        self.random = Random(seed + 1)
        self.world = World(seed, voters=1, brokers=3, settings=settings, limits=LIMITS, torn=seed % 2 == 1)
        self.latest: Values = {}
        self.places: dict[int, tuple[bytes, bytes | None]] = {}
        self.is_writing = True
        self.seen: Counter[str] = Counter()

    async def run(self) -> None:
        world = self.world
        world.start_all()
        await world.until(all_ready(world), "the brokers are ready")
        await self._create()
        async with (
            Cluster(world.bootstrap, random=world.random) as cluster,
            Producer(cluster, request_timeout_s=2.0) as producer,
        ):
            faults = asyncio.get_running_loop().create_task(self._faults())
            await self._write(producer)
            self.is_writing = False
            await faults
            await world.until(all_ready(world), "the brokers are ready again")
            end = max(self.places) + 1
            logs = [self._log(host) for host in world.brokers]
            await world.until(lambda: all(log.high_watermark == end for log in logs), "all replicas have all records")
            await world.until(lambda: all(self._is_clean(host) for host in world.brokers), "all logs are compacted")
            self._check(logs)
            await self._check_consumer(cluster)

    async def _create(self) -> None:
        plane = self.world.hosts[1].plane
        assert plane is not None
        new = pb.NewTopic(name=TOPIC, partitions=1, replication_factor=3)
        for key, value in CONFIGS.items():
            new.configs.add(key=key, value=value)
        reply = await plane.service.call(rpcs.CREATE_TOPICS, pb.CreateTopicsRequest(topics=[new]), 10_000)
        assert isinstance(reply, pb.CreateTopicsReply)
        assert [topic.result.error for topic in reply.topics] == [ApiError.NONE], reply

    async def _write(self, producer: Producer) -> None:
        random = self.random
        for number in range(WRITES):
            pairs = []
            for _ in range(random.randint(1, 3)):
                key = b"key-%d" % random.randrange(KEYS)
                pairs.append((key, None if random.random() < 0.15 else b"%d" % number * random.randint(1, 25)))
            records = [NewRecord(key, value, self.world.wall_ms()) for key, value in pairs]
            sent = await producer.send(TOPIC, 0, build_batch(records, random.choice([Codec.NONE, Codec.ZSTD])))
            offset = await sent
            for place, (key, value) in enumerate(pairs):
                self.latest[key] = value
                self.places[offset + place] = key, value
            await asyncio.sleep(random.uniform(0, 0.15))

    async def _faults(self) -> None:
        """Cut the power of one broker after the other."""
        random = self.random
        while self.is_writing:
            await asyncio.sleep(random.uniform(0.2, 2.0))
            host = random.choice(self.world.brokers)
            self._count(host)
            self.world.kill(host.config.node_id)
            await asyncio.sleep(random.uniform(0.05, 2.0))
            self.world.start(host.config.node_id)
            await self.world.until(lambda host=host: host.broker is not None and host.broker.is_ready()[0], "restarted")  # type: ignore[misc]

    def _count(self, host: Host) -> None:
        if host.broker is not None:
            cleaner = host.broker.role.cleaner
            self.seen["failed"] += cleaner.failed_jobs
            self.seen["removed bytes"] += cleaner.removed_bytes

    def _log(self, host: Host) -> PartitionLog:
        assert host.broker is not None
        replica = host.broker.role.table.find(TOPIC, 0)
        assert replica is not None
        assert replica.log is not None, f"{host.name}: {replica.offline}"
        return replica.log

    def _is_clean(self, host: Host) -> bool:
        assert host.broker is not None
        cleaner = host.broker.role.cleaner
        assert not any(one.is_final for one in cleaner.uncleanable.values()), cleaner.uncleanable
        log = self._log(host)
        dirty = log.compaction.dirty(log.config, self.world.wall_ms())
        return log.marks.cleaned_offset > 0 and not log.compaction.is_due(log.config, dirty, self.world.wall_ms())

    # The judge

    def _check(self, logs: list[PartitionLog]) -> None:
        by_offset: dict[int, Record] = {}
        for log in logs:
            records = list(decode_batches(read_all(log)))
            assert len(records) < len(self.places), "nothing was compacted"
            for record in records:
                assert (record.key, record.value) == self.places[record.offset], record
                assert by_offset.setdefault(record.offset, record) == record
            self._check_latest({one.key or b"": one.value for one in records})
            for _, header in iter_headers(read_all(log)):
                assert log.epochs.epoch_of(header.last_offset) == header.leader_epoch
        for host in self.world.brokers:
            self._count(host)
        assert self.seen["removed bytes"] > 0

    def _check_latest(self, found: Values) -> None:
        for key, value in self.latest.items():
            assert found.get(key) == value, f"{key!r} has {found.get(key)!r}, {value!r} was acknowledged last"
            assert value is None or key in found

    async def _check_consumer(self, cluster: Cluster) -> None:
        consumer = Consumer(cluster)
        offset = (await consumer.list_offset(TOPIC, 0, EARLIEST)).offset
        end = (await consumer.list_offset(TOPIC, 0, LATEST)).offset
        found: Values = {}
        while offset < end:
            fetched = await consumer.fetch(TOPIC, 0, offset)
            for record in decode_batches(fetched.records, first_offset=offset):
                found[record.key or b""] = record.value
            after = max(header.end_offset for _, header in iter_headers(bytes(fetched.records)))
            assert after > offset
            offset = after
        self._check_latest(found)


@pytest.mark.parametrize("seed", range(SEEDS))
def test_replicas_that_lose_power_keep_the_latest_record_of_each_key(seed: int) -> None:
    quiet()
    story = Story(seed)
    story.world.run(story.run())
