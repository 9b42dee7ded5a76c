"""The configs that a standalone broker sets for development."""

from __future__ import annotations

from typing import Any

import pytest

from broker.kafka.auto_topics import AUTO_CREATE
from broker.server.standalone import REBALANCE_DELAY, set_defaults
from metadata.records import Config, ConfigScope
from quorumlog.wire.rpcs import AnyRpc
from quorumlog.wire.v1 import controller_pb2 as pb
from tests.unit.metadata.builders import Cluster


@pytest.mark.parametrize(
    ("existing", "brokers", "wanted"),
    [
        ({}, (1,), {AUTO_CREATE: "true", REBALANCE_DELAY: "0"}),
        ({AUTO_CREATE: "false"}, (1,), {REBALANCE_DELAY: "0"}),
        ({REBALANCE_DELAY: "3000"}, (1,), {AUTO_CREATE: "true"}),
        ({AUTO_CREATE: "false", REBALANCE_DELAY: "3000"}, (1,), None),
        ({}, (1, 2), None),
    ],
)
async def test_only_configs_without_a_value_are_set_and_only_in_a_cluster_of_one_broker(
    existing: dict[str, str], brokers: tuple[int, ...], wanted: dict[str, str] | None
) -> None:
    cluster = Cluster()
    cluster.start(*brokers)
    cluster.apply([Config(ConfigScope.CLUSTER, "", key, value) for key, value in existing.items()])
    asked: list[dict[str, str]] = []
    applied: list[int] = []

    async def call(_: AnyRpc, request: Any, timeout_ms: int) -> Any:
        (resource,) = request.resources
        asked.append({change.key: change.value for change in resource.changes})
        return pb.AlterConfigsReply(offset=7)

    async def wait_applied(offset: int) -> None:
        applied.append(offset)

    await set_defaults(1, cluster.image, call, wait_applied)
    assert (asked, applied) == (([], []) if wanted is None else ([wanted], [7]))
