"""Requests of every kind to the Controller service, and a node that does not lead."""

from __future__ import annotations

from google.protobuf.message import Message

from quorumlog.wire import rpcs
from quorumlog.wire.rpcs import AnyRpc
from quorumlog.wire.v1 import controller_pb2 as pb
from tests.unit.metadata.controller.test_controller import new_topic, register
from tests.unit.metadata.fake_node import Plane


def follower(address: str | None = "there:1") -> Plane:
    plane = Plane()
    plane.node.lose(2, address)
    return plane


REQUESTS: dict[AnyRpc, Message] = {
    rpcs.REGISTER_BROKER: register(1),
    rpcs.BROKER_HEARTBEAT: pb.BrokerHeartbeatRequest(broker_id=1),
    rpcs.ALTER_PARTITION: pb.AlterPartitionRequest(broker_id=1),
    rpcs.ASSIGN_DIRECTORIES: pb.AssignDirectoriesRequest(broker_id=1),
    rpcs.ALLOCATE_PRODUCER_IDS: pb.AllocateProducerIdsRequest(broker_id=1),
    rpcs.CREATE_TOPICS: new_topic("t"),
    rpcs.DELETE_TOPICS: pb.DeleteTopicsRequest(names=["t"]),
    rpcs.DESCRIBE_TOPICS: pb.DescribeTopicsRequest(),
    rpcs.DESCRIBE_BROKERS: pb.DescribeBrokersRequest(),
    rpcs.ADD_PARTITIONS: pb.AddPartitionsRequest(topics=[pb.NewPartitions(topic="t", count=2)]),
    rpcs.REMOVE_PARTITIONS: pb.RemovePartitionsRequest(topic="t", count=1),
    rpcs.UNREGISTER_BROKER: pb.UnregisterBrokerRequest(broker_id=1),
    rpcs.ALTER_CONFIGS: pb.AlterConfigsRequest(),
    rpcs.DESCRIBE_CONFIGS: pb.DescribeConfigsRequest(),
    rpcs.ELECT_LEADERS: pb.ElectLeadersRequest(policy=pb.ElectLeadersRequest.POLICY_PREFERRED),
    rpcs.ALTER_REASSIGNMENTS: pb.AlterReassignmentsRequest(partitions=[pb.Reassignment(topic="t", replicas=[1])]),
    rpcs.LIST_REASSIGNMENTS: pb.ListReassignmentsRequest(),
    rpcs.CHANGE_VOTERS: pb.ChangeVotersRequest(remove=pb.RemoveVoter(node_id=2)),
    rpcs.TRANSFER_LEADER: pb.TransferLeaderRequest(to=2),
    rpcs.SET_PREFERRED_CONTROLLERS: pb.SetPreferredControllersRequest(node_ids=[2]),
    rpcs.DESCRIBE_PREFERRED_CONTROLLERS: pb.DescribePreferredControllersRequest(),
    rpcs.DESCRIBE_FEATURES: pb.DescribeFeaturesRequest(),
    rpcs.UPGRADE_FEATURE: pb.UpgradeFeatureRequest(name="metadata.version", level=1),
}
