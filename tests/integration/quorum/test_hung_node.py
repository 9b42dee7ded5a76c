"""A client of a hanging node sends its changes to other nodes."""

from __future__ import annotations

from pathlib import Path
from signal import SIGCONT, SIGSTOP

import pytest

from quorumlog.client import controller
from quorumlog.client.controller import ControllerClient
from quorumlog.kctl import processes
from quorumlog.kctl.dev_cluster import VOTER
from quorumlog.wire import rpcs
from quorumlog.wire.v1 import controller_pb2 as pb
from tests.integration.quorum.clusters import TIMEOUT_S, running


def new_topic(name: str) -> pb.CreateTopicsRequest:
    return pb.CreateTopicsRequest(topics=[pb.NewTopic(name=name, partitions=1, replication_factor=1)])


async def test_changes_continue_although_the_connected_node_was_stopped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(controller, "ANSWER_FRESH_S", 0.0)  # as if it had answered a while ago
    async with running(tmp_path, voters=3, brokers=1) as cluster:
        voters = [node for node in cluster.nodes if node.role == VOTER]
        async with ControllerClient([voters[0].control]) as client:
            leader_id = (await client.describe_quorum(TIMEOUT_S)).known.leader_id
        follower, *others = sorted(voters, key=lambda node: node.id == leader_id)
        async with ControllerClient([follower.control, *(node.control for node in others)]) as client:
            reply = await client.call(rpcs.CREATE_TOPICS, new_topic("before"), TIMEOUT_S)
            assert (reply.topics[0].result.error, client.addresses[0]) == ("NONE", follower.control)
            processes.send(follower.pid, SIGSTOP)
            try:
                for number in range(5):
                    reply = await client.call(rpcs.CREATE_TOPICS, new_topic(f"after-{number}"), TIMEOUT_S)
                    assert reply.topics[0].result.error == "NONE"
            finally:
                processes.send(follower.pid, SIGCONT)
            assert client.addresses[0] != follower.control
