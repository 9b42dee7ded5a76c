"""kctl doctor about groups of a real cluster.  The commands that it prints are run as printed."""

from __future__ import annotations

import asyncio
import threading
from functools import partial
from pathlib import Path
from typing import Any

from confluent_kafka import Producer

from quorumlog.errors import ClusterError
from quorumlog.kctl.context import wait_until
from quorumlog.kctl.dev_cluster import DevCluster
from tests.integration.cli.test_doctor import FAST, examined
from tests.integration.cli.test_doctor_commands import heal, shell
from tests.integration.kafka.test_groups import MAKE_QUICK, PARTITIONS, RECORDS, Group, Member, group_of
from tests.integration.quorum.clusters import TIMEOUT_S, done, running


def has_first_partition(member: Member) -> bool:
    return any(partition == 0 for partition, _, _ in member.records)


def flap(group: Group) -> None:
    """Let members join and leave until the group has had more rebalances than doctor accepts.

    Afterwards the group has a committed offset of partition 0; without one, doctor knows no lag of this partition.
    """
    for number in range(4):
        group.produce(number * RECORDS)
        member = group.join()
        member.has(PARTITIONS)
        member.until(partial(has_first_partition, member), "a record of partition 0")
        member.commit()
        member.close()


async def shown(cluster: DevCluster, word: str) -> Any:
    """Wait for a finding."""
    seen: dict[str, list[Any]] = {}

    async def is_so() -> bool:
        nonlocal seen
        _, seen, _ = await examined(cluster)
        return word in seen

    try:
        await wait_until(is_so, 2 * TIMEOUT_S, f"found: {word}")
    except ClusterError as error:
        raise AssertionError(f"instead of {word}: {seen}") from error
    return seen[word][0]


def produce_until(group: Group, stop: threading.Event) -> None:
    producer = Producer({"bootstrap.servers": group.bootstrap})
    while not stop.wait(0.2):
        producer.produce(group.topic, "more", partition=0)
        producer.poll(0)
    producer.flush(TIMEOUT_S)


async def test_doctor_reports_flapping_groups_growing_lag_and_under_replicated_offsets(tmp_path: Path) -> None:
    async with running(tmp_path, voters=1, brokers=3, **FAST) as cluster:
        await done(cluster, *MAKE_QUICK, "default.replication.factor=2", "offsets.topic.num.partitions=4")
        with group_of(cluster.bootstrap, replicas=2) as group:
            await asyncio.to_thread(flap, group)
            flaps = await shown(cluster, "GROUP_FLAPS")
            assert f'"{group.name}"' in flaps["cause"]
            command = f"kctl groups explain {group.name}"
            assert flaps["next"].startswith(command)
            await shell(cluster, command)

            stop = threading.Event()
            producing = asyncio.create_task(asyncio.to_thread(produce_until, group, stop))
            try:
                grows = await shown(cluster, "LAG_GROWS")
            finally:
                stop.set()
                await producing
            assert f'"{group.name}" (Empty)' in grows["cause"]
            command = f"kctl groups lag {group.name} --follow"
            assert grows["next"].startswith(command)
            await shell(cluster, f"{command} --timeout 2")

            await heal(cluster, "OFFSETS_UNDER_REPLICATED")
