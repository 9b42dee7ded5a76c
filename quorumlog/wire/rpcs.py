"""Every RPC of the control plane: its name, the types of request and reply, and the permitted sender.

Clients, services, transports and tests name an RPC by its constant here, so mypy checks the types at each call.  The
`.proto` files stay the source of the wire format; a test compares them with this table.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Any, Generic, Protocol, TypeVar

from google.protobuf.message import Message

from quorumlog.wire.v1 import controller_pb2 as controller
from quorumlog.wire.v1 import node_pb2 as node
from quorumlog.wire.v1 import quorum_pb2 as quorum

RequestT = TypeVar("RequestT", bound=Message)
ReplyT = TypeVar("ReplyT", bound=Message)


class Service(Enum):
    """A gRPC service.  The value is its full name."""

    CONTROLLER = "quorumlog.v1.Controller"
    """Any node accepts the request and forwards it to the active controller."""
    NODE = "quorumlog.v1.Node"
    """The receiving node answers."""
    QUORUM = "quorumlog.v1.Quorum"
    """Raft, between the nodes of one cluster."""


class Sender(Enum):
    """The processes that may send a request."""

    CLIENT = "any client"
    BROKER = "a broker"
    NODE = "a node of the cluster"
    VOTER = "a voter"


@dataclass(frozen=True, slots=True, eq=False)
class Rpc(Generic[RequestT, ReplyT]):
    """One RPC.

    reads_only: the RPC changes nothing, so a client may send it again when no reply arrived.
    is_stream: one call carries many requests, and a reply to each, in order.
    """

    service: Service
    name: str
    request: type[RequestT]
    reply: type[ReplyT]
    sender: Sender
    reads_only: bool = False
    is_stream: bool = False

    @property
    def path(self) -> str:
        """The path of the HTTP/2 request."""
        return f"/{self.service.value}/{self.name}"

    def reply_of(self, result: controller.Result) -> ReplyT:
        """Return a reply that has only a `result`.  The RPC must belong to `CONTROLLER` or `NODE`."""
        return self.reply(result=result)

    def __str__(self) -> str:
        return self.name


AnyRpc = Rpc[Any, Any]
"""An RPC whose types of request and reply are not known."""


class ControllerCall(Protocol):
    """Send a request to the active controller and return its reply.

    `reply.result` is the outcome of the request.  Nothing is raised, and the call ends within `timeout_ms`.
    """

    async def __call__(self, rpc: Rpc[RequestT, ReplyT], request: RequestT, timeout_ms: int, /) -> ReplyT: ...


def header_of(request: Message) -> controller.RequestHeader:
    """Return the header of a request to `CONTROLLER` or `NODE`; changes to it change the request."""
    header: controller.RequestHeader = request.header  # type: ignore[attr-defined]
    return header


def result_of(reply: Message) -> controller.Result:
    """Return the result of a reply from `CONTROLLER` or `NODE`."""
    result: controller.Result = reply.result  # type: ignore[attr-defined]
    return result


REGISTER_BROKER = Rpc(
    Service.CONTROLLER,
    "RegisterBroker",
    controller.RegisterBrokerRequest,
    controller.RegisterBrokerReply,
    Sender.BROKER,
)
BROKER_HEARTBEAT = Rpc(
    Service.CONTROLLER,
    "BrokerHeartbeat",
    controller.BrokerHeartbeatRequest,
    controller.BrokerHeartbeatReply,
    Sender.BROKER,
)
ALTER_PARTITION = Rpc(
    Service.CONTROLLER,
    "AlterPartition",
    controller.AlterPartitionRequest,
    controller.AlterPartitionReply,
    Sender.BROKER,
)
ASSIGN_DIRECTORIES = Rpc(
    Service.CONTROLLER,
    "AssignDirectories",
    controller.AssignDirectoriesRequest,
    controller.AssignDirectoriesReply,
    Sender.BROKER,
)
ALLOCATE_PRODUCER_IDS = Rpc(
    Service.CONTROLLER,
    "AllocateProducerIds",
    controller.AllocateProducerIdsRequest,
    controller.AllocateProducerIdsReply,
    Sender.BROKER,
)
CREATE_TOPICS = Rpc(
    Service.CONTROLLER, "CreateTopics", controller.CreateTopicsRequest, controller.CreateTopicsReply, Sender.CLIENT
)
DELETE_TOPICS = Rpc(
    Service.CONTROLLER, "DeleteTopics", controller.DeleteTopicsRequest, controller.DeleteTopicsReply, Sender.CLIENT
)
DESCRIBE_TOPICS = Rpc(
    Service.CONTROLLER,
    "DescribeTopics",
    controller.DescribeTopicsRequest,
    controller.DescribeTopicsReply,
    Sender.CLIENT,
    reads_only=True,
)
DESCRIBE_BROKERS = Rpc(
    Service.CONTROLLER,
    "DescribeBrokers",
    controller.DescribeBrokersRequest,
    controller.DescribeBrokersReply,
    Sender.CLIENT,
    reads_only=True,
)
ADD_PARTITIONS = Rpc(
    Service.CONTROLLER, "AddPartitions", controller.AddPartitionsRequest, controller.AddPartitionsReply, Sender.CLIENT
)
REMOVE_PARTITIONS = Rpc(
    Service.CONTROLLER,
    "RemovePartitions",
    controller.RemovePartitionsRequest,
    controller.RemovePartitionsReply,
    Sender.CLIENT,
)
UNREGISTER_BROKER = Rpc(
    Service.CONTROLLER,
    "UnregisterBroker",
    controller.UnregisterBrokerRequest,
    controller.UnregisterBrokerReply,
    Sender.CLIENT,
)
ALTER_CONFIGS = Rpc(
    Service.CONTROLLER, "AlterConfigs", controller.AlterConfigsRequest, controller.AlterConfigsReply, Sender.CLIENT
)
DESCRIBE_CONFIGS = Rpc(
    Service.CONTROLLER,
    "DescribeConfigs",
    controller.DescribeConfigsRequest,
    controller.DescribeConfigsReply,
    Sender.CLIENT,
    reads_only=True,
)
ELECT_LEADERS = Rpc(
    Service.CONTROLLER, "ElectLeaders", controller.ElectLeadersRequest, controller.ElectLeadersReply, Sender.CLIENT
)
ALTER_REASSIGNMENTS = Rpc(
    Service.CONTROLLER,
    "AlterReassignments",
    controller.AlterReassignmentsRequest,
    controller.AlterReassignmentsReply,
    Sender.CLIENT,
)
LIST_REASSIGNMENTS = Rpc(
    Service.CONTROLLER,
    "ListReassignments",
    controller.ListReassignmentsRequest,
    controller.ListReassignmentsReply,
    Sender.CLIENT,
    reads_only=True,
)
CHANGE_VOTERS = Rpc(
    Service.CONTROLLER, "ChangeVoters", controller.ChangeVotersRequest, controller.ChangeVotersReply, Sender.CLIENT
)
TRANSFER_LEADER = Rpc(
    Service.CONTROLLER,
    "TransferLeader",
    controller.TransferLeaderRequest,
    controller.TransferLeaderReply,
    Sender.CLIENT,
)
SET_PREFERRED_CONTROLLERS = Rpc(
    Service.CONTROLLER,
    "SetPreferredControllers",
    controller.SetPreferredControllersRequest,
    controller.SetPreferredControllersReply,
    Sender.CLIENT,
)
DESCRIBE_PREFERRED_CONTROLLERS = Rpc(
    Service.CONTROLLER,
    "DescribePreferredControllers",
    controller.DescribePreferredControllersRequest,
    controller.DescribePreferredControllersReply,
    Sender.CLIENT,
    reads_only=True,
)
DESCRIBE_FEATURES = Rpc(
    Service.CONTROLLER,
    "DescribeFeatures",
    controller.DescribeFeaturesRequest,
    controller.DescribeFeaturesReply,
    Sender.CLIENT,
    reads_only=True,
)
UPGRADE_FEATURE = Rpc(
    Service.CONTROLLER,
    "UpgradeFeature",
    controller.UpgradeFeatureRequest,
    controller.UpgradeFeatureReply,
    Sender.CLIENT,
)

DESCRIBE_NODE = Rpc(
    Service.NODE, "DescribeNode", node.DescribeNodeRequest, node.DescribeNodeReply, Sender.CLIENT, reads_only=True
)
READ_METADATA = Rpc(
    Service.NODE, "ReadMetadata", node.ReadMetadataRequest, node.ReadMetadataReply, Sender.CLIENT, reads_only=True
)
DESCRIBE_METADATA = Rpc(
    Service.NODE,
    "DescribeMetadata",
    node.DescribeMetadataRequest,
    node.DescribeMetadataReply,
    Sender.CLIENT,
    reads_only=True,
)
EXPLAIN_PARTITION = Rpc(
    Service.NODE,
    "ExplainPartition",
    node.ExplainPartitionRequest,
    node.ExplainPartitionReply,
    Sender.CLIENT,
    reads_only=True,
)
LIST_APPLIED_BATCHES = Rpc(
    Service.NODE,
    "ListAppliedBatches",
    node.ListAppliedBatchesRequest,
    node.ListAppliedBatchesReply,
    Sender.CLIENT,
    reads_only=True,
)
DESCRIBE_REPLICAS = Rpc(
    Service.NODE,
    "DescribeReplicas",
    node.DescribeReplicasRequest,
    node.DescribeReplicasReply,
    Sender.CLIENT,
    reads_only=True,
)
PURGE_STRAYS = Rpc(Service.NODE, "PurgeStrays", node.PurgeStraysRequest, node.PurgeStraysReply, Sender.CLIENT)
REPORT_END = Rpc(Service.NODE, "ReportEnd", node.ReportEndRequest, node.ReportEndReply, Sender.NODE)

VOTE = Rpc(Service.QUORUM, "Vote", quorum.VoteRequest, quorum.VoteReply, Sender.VOTER)
BEGIN_QUORUM_EPOCH = Rpc(
    Service.QUORUM, "BeginQuorumEpoch", quorum.BeginQuorumEpochRequest, quorum.BeginQuorumEpochReply, Sender.VOTER
)
END_QUORUM_EPOCH = Rpc(
    Service.QUORUM, "EndQuorumEpoch", quorum.EndQuorumEpochRequest, quorum.EndQuorumEpochReply, Sender.VOTER
)
FETCH = Rpc(Service.QUORUM, "Fetch", quorum.FetchRequest, quorum.FetchReply, Sender.NODE)
FETCH_STREAM = Rpc(Service.QUORUM, "FetchStream", quorum.FetchRequest, quorum.FetchReply, Sender.NODE, is_stream=True)
FETCH_SNAPSHOT = Rpc(
    Service.QUORUM, "FetchSnapshot", quorum.FetchSnapshotRequest, quorum.FetchSnapshotReply, Sender.NODE
)
INTRODUCE = Rpc(Service.QUORUM, "Introduce", quorum.IntroduceRequest, quorum.IntroduceReply, Sender.NODE)
DESCRIBE_QUORUM = Rpc(
    Service.QUORUM,
    "DescribeQuorum",
    quorum.DescribeQuorumRequest,
    quorum.DescribeQuorumReply,
    Sender.CLIENT,
    reads_only=True,
)

RPCS: tuple[AnyRpc, ...] = tuple(value for value in vars().copy().values() if isinstance(value, Rpc))
"""All RPCs, in the order above."""
