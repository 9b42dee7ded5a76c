"""The addition of --standalone: a broker that turns on the automatic creation of topics."""

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


async def allow_auto_create(
    node_id: int, image: ClusterImage, call: ControllerCall, wait_applied: Callable[[int], Awaitable[None]]
) -> None:
    """Turn on auto.create.topics.enable in a cluster of this one broker, unless the cluster has a value for it.

    Programs that are tried on a single broker expect it.  A failure is logged, and the broker serves nevertheless.
    """
    if set(image.brokers) != {node_id} or AUTO_CREATE in image.config(ConfigScope.CLUSTER, ""):
        return
    changes = controller_pb2.ConfigChanges(resource={"scope": metadata_pb2.Config.SCOPE_CLUSTER})
    changes.changes.add(key=AUTO_CREATE, value="true")
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
    next_step = f"kctl configs set --cluster {AUTO_CREATE}=true"
    logger.warning("topics are not created automatically", cause=cause, next=next_step)


def _is_ok(result: controller_pb2.Result) -> bool:
    return result.error in (ApiError.NONE, "")
