"""kctl groups on a real cluster, with members that use confluent-kafka and kafka-python."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from functools import partial
from pathlib import Path
from signal import SIGKILL
from typing import Any

from broker.core.coordinator.placement import partition_of
from quorumlog.kctl import processes
from quorumlog.kctl.context import wait_until
from quorumlog.kctl.dev_cluster import DevCluster
from tests.integration.kafka.test_groups import MAKE_QUICK, OFFSETS, PARTITIONS, RECORDS, Group, group_of, has_more
from tests.integration.quorum.clusters import ROOT, TIMEOUT_S, done, everybody, kctl, node_of, running

FAST = {"broker_session_timeout_ms": 1_500, "broker_heartbeat_interval_ms": 300}
WAIT_S = 60.0


def read_half(group: Group) -> None:
    """Let a member of each client read a part of the records and commit."""
    group.produce()
    for client in ("Confluent", "KafkaPython"):
        group.join(client=client)
    for member in group.members:
        member.has(PARTITIONS // 2)
        member.until(partial(has_more, member, RECORDS // 2 - 1), "half of the records")
        member.commit()
    group.produce(RECORDS)


async def test_kctl_shows_resets_and_deletes_a_group(tmp_path: Path) -> None:
    async with running(tmp_path, voters=1, brokers=2, **FAST) as cluster:
        await done(cluster, "configs", "set", "--cluster", "default.replication.factor=2")
        await done(cluster, *MAKE_QUICK)
        with group_of(cluster.bootstrap, replicas=2) as group:
            await asyncio.to_thread(read_half, group)
            reset = ("groups", "reset-offsets", group.name, "--topic", group.topic, "--to-latest")

            async def is_stable() -> bool:
                return bool(await done(cluster, "groups", "list", "--state", "Stable"))

            await wait_until(is_stable, TIMEOUT_S, "the group was stable")
            (listed,) = await done(cluster, "groups", "list", "--state", "Stable")
            assert (listed["group"], listed["type"], listed["protocol_type"]) == (group.name, "classic", "consumer")
            described = await done(cluster, "groups", "describe", group.name)
            assert sorted(each["client_id"] for each in described["members"])[-1] == "rdkafka"
            assigned = [each["assignment"] for each in described["members"]]
            assert sorted(p for each in assigned for t in each for p in t["partitions"]) == list(range(PARTITIONS))
            rows = await done(cluster, "groups", "lag", group.name)
            assert {row["topic"] for row in rows} == {group.topic}
            assert {row["member_id"] for row in rows} == {each["member_id"] for each in described["members"]}

            explained = await done(cluster, "groups", "explain", group.name)
            ids = {each["member_id"] for each in described["members"]}
            assert explained["last_joined"]["member_id"] in ids
            assert {each["reason"] for each in explained["rebalances"]} >= {"joined"}
            assert explained["rebalances"][-1]["duration_ms"] >= 0
            assert explained["rebalances"][-1]["members"] == 2

            code, error = await kctl(cluster, *reset)
            assert (code, error["error"]) == (5, "NON_EMPTY_GROUP")
            assert all(repr(each["member_id"]) in error["message"] for each in described["members"])
            code, _ = await kctl(cluster, "groups", "delete", group.name)
            assert code == 5
            for member in group.members:
                await asyncio.to_thread(member.close)

            explained = await done(cluster, "groups", "explain", group.name)
            assert {each["member_id"] for each in explained["rebalances"] if each["reason"] == "left"} <= ids
            assert explained["rebalances"][-1]["reason"] == "left"
            assert explained["empty_since_at"] is not None

            before = await asyncio.to_thread(group.committed)
            planned = await done(cluster, *reset, "--dry-run")
            assert await asyncio.to_thread(group.committed) == before
            assert (await done(cluster, *reset))["partitions"] == planned["partitions"]
            ends = dict.fromkeys(range(PARTITIONS), 2 * RECORDS // PARTITIONS)
            assert await asyncio.to_thread(group.committed) == ends
            assert (await done(cluster, *reset))["changed"] is False
            assert [(row["lag"], row["unknown"]) for row in await done(cluster, "groups", "lag")] == [(0, 0)]

            deleted = await done(cluster, "groups", "delete-offsets", group.name, f"{group.topic}:0")
            assert (deleted["changed"], deleted["partitions"]) == (True, [0])
            assert 0 not in await asyncio.to_thread(group.committed)
            assert (await done(cluster, "groups", "delete", group.name))["changed"] is True
            assert await done(cluster, "groups", "list") == []
            code, error = await kctl(cluster, "groups", "describe", group.name)
            assert (code, error["error"]) == (3, "GROUP_ID_NOT_FOUND")


class Following:
    """A `kctl groups lag --follow` and the samples that it has printed."""

    def __init__(self, cluster: DevCluster, group: str) -> None:
        self._command = (sys.executable, "-P", "-m", "quorumlog.kctl.main", "groups", "lag", group)
        self._environment = {**os.environ, "PYTHONPATH": str(ROOT), "KCTL_CONTROLLERS": ",".join(everybody(cluster))}
        self.samples: list[dict[str, Any]] = []

    async def __aenter__(self) -> Following:
        self._process = await asyncio.create_subprocess_exec(
            *self._command, *("--follow", "--interval", "0.2", "-o", "json", "--timeout", "120"),
            env=self._environment, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
        )  # fmt: skip
        self._reader = asyncio.create_task(self._read())
        return self

    async def _read(self) -> None:
        assert self._process.stdout is not None
        async for line in self._process.stdout:
            self.samples.append(json.loads(line))

    async def shows(self, lag: int) -> None:
        """Wait for a new sample with this lag."""
        seen = len(self.samples)

        async def is_so() -> bool:
            assert self._process.returncode is None, "kctl has ended"
            return any(each["lag"] == lag and not each["unknown"] for each in self.samples[seen:])

        await wait_until(is_so, WAIT_S, f"a lag of {lag}, after {self.samples[-1:]}")

    async def __aexit__(self, *_: object) -> None:
        if self._process.returncode is None:
            self._process.kill()
        async with asyncio.timeout(TIMEOUT_S):
            await self._process.wait()
            await self._reader


async def test_kctl_follows_the_lag_of_a_group_although_its_coordinator_is_killed(tmp_path: Path) -> None:
    async with running(tmp_path, voters=1, brokers=3, **FAST) as cluster:
        await done(cluster, *MAKE_QUICK)
        with group_of(cluster.bootstrap, replicas=3) as group:
            await asyncio.to_thread(read_half, group)
            for member in group.members:
                await asyncio.to_thread(member.close)
            await done(cluster, "groups", "reset-offsets", group.name, "--topic", group.topic, "--to-earliest")
            async with Following(cluster, group.name) as following:
                await following.shows(2 * RECORDS)
                [offsets] = await done(cluster, "topics", "describe", OFFSETS)
                index = partition_of(group.name, len(offsets["partitions"]))
                old = offsets["partitions"][index]["leader"]
                processes.send(node_of(cluster, old).pid, SIGKILL)
                await done(cluster, "groups", "reset-offsets", group.name, "--all-topics", "--to-latest")
                await following.shows(0)
            assert (await done(cluster, "groups", "describe", group.name))["coordinator"] != old
