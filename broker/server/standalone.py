"""Cluster configs that `--standalone` sets for development."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from broker.kafka.auto_topics import AUTO_CREATE
from metadata.image import ClusterImage
from metadata.records import ConfigScope
from quorumlog.runtime.logging import get_logger
from quorumlog.wire import rpcs
from quorumlog.wire.errors import ApiError
from quorumlog.wire.rpcs import ControllerCall
from quorumlog.wire.v1 import controller_pb2, metadata_pb2

logger = get_logger("broker")

TIMEOUT_MS = 5_000
REBALANCE_DELAY = "group.initial.rebalance.delay.ms"
WANTED = {AUTO_CREATE: "true", REBALANCE_DELAY: "0"}
"""Programs that are tried on a single broker expect topics to be created automatically.  Without the rebalance delay, a
new group reads its first record three seconds earlier."""


async def set_defaults(
    node_id: int, image: ClusterImage, call: ControllerCall, wait_applied: Callable[[int], Awaitable[None]]
) -> None:
    """Set the configs of `WANTED` in a cluster of this one broker, unless the cluster has values for them.

    A failure is logged, and the broker serves nevertheless.
    """
    configs = image.config(ConfigScope.CLUSTER, "")
    missing = {key: value for key, value in WANTED.items() if key not in configs}
    if set(image.brokers) != {node_id} or not missing:
        return
    changes = controller_pb2.ConfigChanges(resource={"scope": metadata_pb2.Config.SCOPE_CLUSTER})
    for key, value in missing.items():
        changes.changes.add(key=key, value=value)
    try:
        async with asyncio.timeout(TIMEOUT_MS / 1000):
            reply = await call(rpcs.ALTER_CONFIGS, controller_pb2.AlterConfigsRequest(resources=[changes]), TIMEOUT_MS)
            refused = [each for each in (reply.result, *(one.result for one in reply.resources)) if not _is_ok(each)]
            if not refused:
                await wait_applied(reply.offset)
                return
            cause = refused[0].message
    except TimeoutError:
        cause = f"the controller did not answer within {TIMEOUT_MS} ms"
    next_step = f"kctl configs set --cluster {' '.join(f'{key}={value}' for key, value in missing.items())}"
    logger.warning("the configs for development are not set", cause=cause, next=next_step)


def _is_ok(result: controller_pb2.Result) -> bool:
    return result.error in (ApiError.NONE, "")
