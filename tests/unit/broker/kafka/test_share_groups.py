"""WriteDeadLetters, a request of brokers, in the protocol."""

from __future__ import annotations

from collections.abc import Sequence
from uuid import UUID

from broker.core.coordinator.share.states import ShareKey
from broker.kafka.listener import KafkaServer
from broker.kafka.share_groups import NoShares
from quorumlog.wire.errors import KafkaCode
from quorumlog.wire.kafka.codec import Api
from tests.unit.broker.kafka.fake import FakeController, FakeNode, FakeReplicas
from tests.unit.broker.kafka.raw import RawClient

TOPIC_ID = UUID(int=7)


class Shares(NoShares):
    def __init__(self) -> None:
        self.asked: list[ShareKey] = []

    def write_dead_letters(self, keys: Sequence[ShareKey]) -> None:
        self.asked += keys


async def test_a_reminder_of_dead_letters_names_share_partitions() -> None:
    shares, replicas = Shares(), FakeReplicas()
    call = FakeController(replicas).call
    server = KafkaServer(replicas, call, ("127.0.0.1:0",), node=FakeNode(), node_id=1, cluster_id="test", shares=shares)
    named = [
        {"group_id": "work", "topic_id": TOPIC_ID, "partition": 3},
        {"group_id": "", "topic_id": None, "partition": -1},
    ]
    await server.start()
    try:
        async with RawClient(server.endpoints[0].port) as client:
            reply = await client.ask(Api.WRITE_DEAD_LETTERS, 0, {"share_partitions": named})
            assert int(reply.error_code) == KafkaCode.NONE
    finally:
        await server.close()
    assert shares.asked == [ShareKey("work", TOPIC_ID, 3), ShareKey("", UUID(int=0), -1)]
