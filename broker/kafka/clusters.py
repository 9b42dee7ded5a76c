"""DescribeCluster: the brokers of the cluster, and their addresses for the clients of a listener.  UnregisterBroker."""

from __future__ import annotations

from typing import Any, Final

from broker.kafka.admin import Forwarder, is_ok, outcome
from metadata.image import ClusterImage
from quorumlog.wire import rpcs
from quorumlog.wire.v1 import controller_pb2 as pb

_BROKERS, _CONTROLLERS = 1, 2
_MISMATCHED_ENDPOINT_TYPE: Final = 114
_UNSUPPORTED_ENDPOINT_TYPE: Final = 115


def describe_cluster(request: Any, image: ClusterImage, listener: str, cluster_id: str, node_id: int) -> dict[str, Any]:
    """Return the values of a DescribeCluster response.  Brokers that have no address for the listener are left out."""
    kind = getattr(request, "endpoint_type", _BROKERS)
    if kind != _BROKERS:
        code = _MISMATCHED_ENDPOINT_TYPE if kind == _CONTROLLERS else _UNSUPPORTED_ENDPOINT_TYPE
        return {"error_code": code, "error_message": "this endpoint serves brokers", "endpoint_type": _BROKERS}
    with_fenced = getattr(request, "include_fenced_brokers", False)
    brokers = []
    for broker_id in sorted(image.brokers):
        broker = image.brokers[broker_id]
        endpoint = broker.endpoint(listener)
        if endpoint is None or (broker.fenced and not with_fenced):
            continue
        brokers.append(
            {
                "broker_id": broker_id,
                "host": endpoint.host,
                "port": endpoint.port,
                "rack": broker.rack,
                "is_fenced": broker.fenced,
            }
        )
    known = any(broker["broker_id"] == node_id and not broker["is_fenced"] for broker in brokers)
    return {
        "cluster_id": cluster_id,
        "controller_id": node_id if known else -1,  # any broker forwards requests to the controller
        "endpoint_type": _BROKERS,
        "brokers": brokers,
    }


async def unregister_broker(forwarder: Forwarder, request: Any, timeout_ms: int) -> dict[str, Any]:
    """Forward an UnregisterBroker request; return the values of its response.

    Unlike in Kafka, a broker that is unfenced or has replicas is refused.
    """
    deadline = forwarder.deadline(timeout_ms)
    message = pb.UnregisterBrokerRequest(broker_id=request.broker_id)
    reply = await forwarder.forward(rpcs.UNREGISTER_BROKER, message, deadline)
    if is_ok(reply.result) and reply.changed:
        await forwarder.wait_for([reply.offset], deadline)
    return outcome(reply.result)
