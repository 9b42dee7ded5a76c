"""Brokers apply the configs of a topic during other changes."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from uuid import UUID

import pytest

from broker.kafka.api import LATEST_TIMESTAMP
from metadata.control.configs import Changes, Resource, alter_configs
from metadata.control.partitions_count import remove_partitions
from metadata.records import ConfigScope
from quorumlog.runtime import turns
from quorumlog.wire.errors import KafkaCode
from tests.integration.broker.harness import Cluster, batch


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[Cluster]:
    async with Cluster(tmp_path, lag_max_ms=500) as running:
        yield running


def configure(cluster: Cluster, topic: str, key: str, value: str) -> None:
    wanted = [Changes(Resource(ConfigScope.TOPIC, topic), ((key, value),))]
    answer = cluster.controller.decide(lambda image: alter_configs(image, wanted))[0]
    assert answer.outcome.ok, answer


@pytest.mark.parametrize("steps", range(6))
async def test_a_config_stays_with_a_topic_that_gets_another_id_meanwhile(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch, steps: int
) -> None:
    monkeypatch.setattr(turns, "YIELD_MS", 0)
    cluster.controller.create("t", (1, 2, 3), (1, 2, 3))
    await cluster.until(lambda: cluster[1].table.find("t", 1) is not None, "hosted")
    configure(cluster, "t", "retention.ms", "-1")
    for _ in range(steps):
        await asyncio.sleep(0)
    renewed = UUID(int=99)
    cluster.controller.decide(lambda image: remove_partitions(image, "t", 1, lambda: renewed))
    await cluster.until(lambda: renewed in cluster[1].replicas.image.topics, "applied")
    log = cluster[1].hosted("t").log
    assert log is not None
    assert log.config.retention_ms == -1


async def test_a_lower_min_insync_replicas_commits_waiting_records(cluster: Cluster) -> None:
    cluster.controller.create("t", (1, 2), min_insync_replicas="1")
    leader = cluster[1]
    await cluster.until(lambda: (found := leader.table.find("t", 0)) is not None and found.leader is not None)
    await cluster[2].stop(clean=False)
    cluster.controller.fence(2)
    configure(cluster, "t", "min.insync.replicas", "2")
    hosted = leader.hosted("t")
    await cluster.until(lambda: hosted.leader is not None and hosted.leader.min_isr == 2, "applied")
    written = await leader.replicas.produce("t", 0, memoryview(batch(b"a")), 1, 10_000)
    assert written.error_code == KafkaCode.NONE
    assert (await leader.replicas.list_offset("t", 0, LATEST_TIMESTAMP)).offset == 0
    configure(cluster, "t", "min.insync.replicas", "1")
    await cluster.until(lambda: hosted.leader is not None and hosted.leader.min_isr == 1, "applied")
    assert (await leader.replicas.list_offset("t", 0, LATEST_TIMESTAMP)).offset == 1
