"""Requests about share groups: the calls that they cause."""

from __future__ import annotations

from collections.abc import Sequence
from uuid import UUID

from broker.core.coordinator.share.states import ShareKey
from broker.core.share.requests import ShareFetched, ShareFetchPlan, ShareReply
from broker.kafka.limits import KafkaLimits
from broker.kafka.share_groups import NoShares
from quorumlog.wire.errors import KafkaCode
from quorumlog.wire.kafka.codec import Api
from tests.unit.broker.kafka.fake import FakeReplicas, listening
from tests.unit.broker.kafka.raw import RawClient

TOPIC_ID = UUID(int=7)


class Shares(NoShares):
    def __init__(self) -> None:
        self.asked: list[ShareKey] = []
        self.fetched: list[ShareFetchPlan] = []
        self.records = b""  # the records in each reply

    async def fetch(self, plan: ShareFetchPlan) -> ShareReply:
        self.fetched.append(plan)
        return ShareReply(KafkaCode.NONE, fetched=(ShareFetched((TOPIC_ID, 0), KafkaCode.NONE, self.records),))

    def write_dead_letters(self, keys: Sequence[ShareKey]) -> None:
        self.asked += keys


LIMITS = KafkaLimits(held_max_bytes=64 << 20)


async def test_replies_to_share_consumers_have_the_same_memory_limit_as_replies_to_other_consumers() -> None:
    shares = Shares()
    wanted = [0, 1_000, 60 << 20, 2**31 - 1]
    async with (
        listening(FakeReplicas(), shares=shares, limits=LIMITS) as server,
        RawClient(server.endpoints[0].port) as client,
    ):
        for version in (1, 2):
            for max_bytes in wanted:
                values = {"group_id": "work", "member_id": "m", "max_bytes": max_bytes, "max_records": 500}
                await client.ask(Api.SHARE_FETCH, version, values)
    found = [plan.max_bytes for plan in shares.fetched]
    assert found[:2] == found[4:6] == wanted[:2]
    assert all((4 << 20) - 1_000 < each < 4 << 20 for each in (*found[2:4], *found[6:])), (
        "a reply may have an eighth of half of held_max_bytes"
    )


async def test_replies_to_share_consumers_that_are_built_at_the_same_time_share_the_memory_limit() -> None:
    shares = Shares()
    shares.records = bytes(16 << 20)
    values = {"group_id": "work", "member_id": "m", "max_bytes": 60 << 20, "max_records": 500}
    async with listening(FakeReplicas(), shares=shares, limits=LIMITS) as server:
        port = server.endpoints[0].port
        async with RawClient(port) as one, RawClient(port) as other:
            for client in (one, other):
                await client.ask(Api.API_VERSIONS, 0, {})
            for client in (one, other):
                client.send(Api.SHARE_FETCH, 1, values)
            for client in (one, other):
                await client.receive(Api.SHARE_FETCH, 1)
    first, second = (plan.max_bytes for plan in shares.fetched)
    assert first > (4 << 20) - 1_000
    assert second <= 3 << 20, "about an eighth of the memory that the first reply leaves"


async def test_write_dead_letters_passes_on_the_named_share_partitions() -> None:
    shares = Shares()
    named = [
        {"group_id": "work", "topic_id": TOPIC_ID, "partition": 3},
        {"group_id": "", "topic_id": None, "partition": -1},
    ]
    async with listening(FakeReplicas(), shares=shares) as server, RawClient(server.endpoints[0].port) as client:
        reply = await client.ask(Api.WRITE_DEAD_LETTERS, 0, {"share_partitions": named})
        assert int(reply.error_code) == KafkaCode.NONE
    assert shares.asked == [ShareKey("work", TOPIC_ID, 3), ShareKey("", UUID(int=0), -1)]
