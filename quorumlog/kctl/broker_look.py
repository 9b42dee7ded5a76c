"""The data for `kctl brokers`: the controller's knowledge of each broker, and the broker's own answer.

The controller learns of a broker's progress only from its heartbeats, while the broker knows it immediately.  Therefore
all brokers are asked at the same time, and the controller's knowledge is used for brokers that do not answer.  Without
a controller, the list of brokers comes from the metadata of any node.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from quorumlog.errors import ClusterError
from quorumlog.kctl.context import Context
from quorumlog.kctl.nodes import ask_each, ask_freshest, known_addresses
from quorumlog.kctl.output import Output, node_or_none
from quorumlog.kctl.reads import Reads
from quorumlog.wire.errors import ApiError

if TYPE_CHECKING:
    from quorumlog.client.controller import ControllerClient

QUORUM_S = 5.0
"""Time limit for finding the control addresses of the brokers."""


async def look(context: Context, client: ControllerClient, broker_id: int | None = None) -> list[dict[str, Any]]:
    """Return the JSON of all brokers, ascending by id, or of one broker.

    Raises:
        ClusterError: BROKER_ID_NOT_REGISTERED; or no node answers.
    """
    from quorumlog.wire import rpcs
    from quorumlog.wire.v1 import controller_pb2, node_pb2

    timeout_s = context.left_s
    loop = asyncio.get_running_loop()
    deadline = loop.time() + timeout_s
    reads = Reads(context, client)
    reply = await reads.call(rpcs.DESCRIBE_BROKERS, controller_pb2.DescribeBrokersRequest(), timeout_s / 2)
    found = {
        broker.broker_id: broker_document(broker) for broker in reply.brokers if broker_id in (None, broker.broker_id)
    }
    if not found and broker_id is not None:
        text = f"no broker {broker_id} is registered"
        raise reads.refused(ClusterError(ApiError.BROKER_ID_NOT_REGISTERED, text, "kctl brokers list"))
    reads.tell()
    try:
        addresses = known_addresses(await client.describe_quorum(min(max(deadline - loop.time(), 0.001) / 2, QUORUM_S)))
    except ClusterError:
        addresses = {}
    request = node_pb2.DescribeNodeRequest()
    answers = await ask_each(client, found, addresses, rpcs.DESCRIBE_NODE, request, max(deadline - loop.time(), 0.001))
    for each, one in sorted(found.items()):
        one["control"] = addresses.get(each)
        one |= reads.validity
        _add_own_word(one, answers[each], reply.offset)
    return [found[each] for each in sorted(found)]


def broker_document(broker: Any) -> dict[str, Any]:
    """Return the JSON of one broker, as the controller describes it."""
    is_heard = broker.metadata_offset >= 0  # negative: the current controller has received no heartbeat yet
    return {
        "id": broker.broker_id,
        "rack": broker.rack if broker.HasField("rack") else None,
        "endpoints": [
            {"name": e.name, "host": e.host, "port": e.port, "security": e.security} for e in broker.endpoints
        ],
        "state": broker.state,
        "cordoned": broker.cordoned if broker.HasField("cordoned") else None,
        "broker_epoch": broker.broker_epoch,
        "leaders": broker.leaders,
        "replicas": broker.replicas,
        "metadata_offset": broker.metadata_offset if is_heard else None,
        "metadata_lag": broker.metadata_lag if is_heard else None,
        "pending_changes": broker.pending_changes if is_heard else None,
    }


def _add_own_word(one: dict[str, Any], answer: Any, end_offset: int) -> None:
    one["answers"], one["problem"] = False, None
    one["directories_offline"] = None
    if isinstance(answer, ClusterError):
        one["problem"] = answer.message
    elif not answer.is_broker:
        one["problem"] = "the node with this id is not a broker"
    else:
        one["answers"] = True
        one["metadata_offset"] = answer.broker_applied_offset
        one["metadata_lag"] = max(0, max(end_offset, answer.high_watermark) - answer.broker_applied_offset)
        one["pending_changes"] = answer.pending_changes
        one["directories_offline"] = list(answer.directories_offline)
        failed = [f"{check.name}: {check.detail}" for check in answer.checks if not check.ok]
        one["problem"] = "; ".join(failed) or None


async def replicas_of(
    client: ControllerClient, output: Output, one: dict[str, Any], timeout_s: float
) -> list[dict[str, Any]]:
    """Return the JSON of each replica of a broker: its metadata, and the broker's own report if the broker answers.

    one: the broker's JSON, as `look` returns it.

    Raises:
        ClusterError: no node returned the metadata in time.
    """
    from quorumlog.wire import rpcs
    from quorumlog.wire.v1 import node_pb2

    loop = asyncio.get_running_loop()
    deadline = loop.time() + timeout_s
    own: dict[tuple[str, int], Any] = {}
    if one["answers"]:
        try:
            about = node_pb2.DescribeReplicasRequest()
            reply = await client.ask_node(one["control"], rpcs.DESCRIBE_REPLICAS, about, timeout_s / 2)
            own = {(each.topic, each.index): each for each in reply.replicas}
        except ClusterError as error:
            output.message(f"broker {one['id']} does not report its replicas: {error.message}")
    request = node_pb2.DescribeMetadataRequest(at_offset=-1)
    try:
        described = await ask_freshest(client, rpcs.DESCRIBE_METADATA, request, max(deadline - loop.time(), 0.001))
    except ClusterError as error:
        if error.code != ApiError.POLICY_VIOLATION:  # this code: one answer cannot contain so many partitions
            raise
        names = sorted({topic for topic, _ in own})
        output.message(f"{error.message}: only topics that the broker itself names are shown")
        request = node_pb2.DescribeMetadataRequest(at_offset=-1, topics=names or [""])
        described = await ask_freshest(client, rpcs.DESCRIBE_METADATA, request, max(deadline - loop.time(), 0.001))
    return [
        _replica(topic.name, partition, position, own.get((topic.name, partition.index)))
        for topic in sorted(described.topics, key=lambda topic: topic.name)
        for partition in topic.partitions
        for position, replica in enumerate(partition.replicas)
        if replica.broker_id == one["id"]
    ]


def _replica(topic: str, partition: Any, position: int, own: Any) -> dict[str, Any]:
    broker_id = partition.replicas[position].broker_id
    has_log = own is not None and own.state != "offline"
    return {
        "topic": topic,
        "partition": partition.index,
        "state": partition.replica_states[position],
        "role": own.state if own is not None else None,
        "in_sync": broker_id in partition.isr,
        "leader": node_or_none(partition.leader),
        "end_offset": own.end_offset if has_log else None,
        "high_watermark": own.high_watermark if has_log else None,
        "bytes": own.bytes if has_log else None,
        "directory": own.directory or None if has_log else None,
        "problem": own.problem or None if own is not None else None,
    }


def is_fine(replica: dict[str, Any]) -> bool:
    """Return whether a replica needs no attention."""
    return bool(replica["state"] == "online" and replica["in_sync"] and not replica["problem"])
