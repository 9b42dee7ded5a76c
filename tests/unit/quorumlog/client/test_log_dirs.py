"""The client of data directories."""

from __future__ import annotations

import pytest

from quorumlog.client.log_dirs import LogDirClient
from quorumlog.errors import ClusterError
from tests.unit.quorumlog.client.fake_cluster import client_of, fake_brokers

TIMEOUT_S = 10.0
TOPIC_AUTHORIZATION_FAILED = 29


async def test_a_refusal_that_only_other_brokers_send_is_a_cluster_error(monkeypatch: pytest.MonkeyPatch) -> None:
    async def move_replicas(moves: object) -> list[int]:
        return [TOPIC_AUTHORIZATION_FAILED]

    async with fake_brokers(1) as brokers, client_of(brokers) as cluster:
        monkeypatch.setattr(brokers.replicas[1], "move_replicas", move_replicas)
        log_dirs = LogDirClient(cluster)
        path = next(each.path for each in await log_dirs.describe(1, TIMEOUT_S) if not each.is_failed)
        with pytest.raises(ClusterError, match="t-0: the directory on broker 1") as refusal:
            await log_dirs.move(1, {("t", 0): path}, TIMEOUT_S)
        assert refusal.value.code == "TOPIC_AUTHORIZATION_FAILED"
