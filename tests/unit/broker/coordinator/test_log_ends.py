"""The high watermarks of partitions that several brokers lead, for the lag of share groups."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from broker.coordinator.limits import CoordinatorLimits
from broker.coordinator.log_ends import LogEnds
from broker.core.fetch_session import PartitionKey
from metadata.records import RemoveTopic
from quorumlog.errors import ClusterError
from quorumlog.wire.errors import ApiError, KafkaCode
from quorumlog.wire.kafka import codec
from quorumlog.wire.kafka.codec import Api
from tests.unit.broker.replica.rig import TOPIC, Rig

WAIT_S = 30.0
PARTITIONS = 5


class Place:
    """Broker 1 leads partition 0 of the topic, broker 2 partitions 1 and 2, broker 3 partition 3 and broker 4 the last.

    ends: the high watermark of each partition of another broker, or an error.
    refusing, hanging: brokers that do not answer.
    """

    def __init__(self, rig: Rig, limits: CoordinatorLimits) -> None:
        self.rig = rig
        self.topic_id = rig.hosted().topic_id
        self.ends: dict[int, int | KafkaCode] = {1: 10, 2: 20, 3: 30, 4: 40}
        self.refusing: set[int] = set()
        self.hanging: set[int] = set()
        self.asked: list[tuple[int, list[int]]] = []
        links: Any = self
        self._ends = LogEnds(rig.role.table, links, limits)

    async def ask(self, broker_id: int, api: Api, version: int, values: dict[str, Any], timeout_s: float) -> Any:
        assert (api, version, values["replica_id"], values["isolation_level"]) == (Api.LIST_OFFSETS, 7, -1, 0)
        codec.request(api, version, values)
        (topic,) = values["topics"]
        assert topic["name"] == TOPIC
        assert {each["timestamp"] for each in topic["partitions"]} == {-1}
        indexes = [each["partition_index"] for each in topic["partitions"]]
        self.asked.append((broker_id, indexes))
        if broker_id in self.refusing:
            raise ClusterError(ApiError.BROKER_UNAVAILABLE, "no answer", retriable=True)
        if broker_id in self.hanging:
            await asyncio.sleep(timeout_s)
            raise ClusterError(ApiError.REQUEST_TIMED_OUT, "no answer in time", retriable=True)
        answers = [self._answer(index) for index in indexes]
        return SimpleNamespace(topics=[SimpleNamespace(name=TOPIC, partitions=answers)])

    def _answer(self, index: int) -> SimpleNamespace:
        end = self.ends[index]
        code, offset = (end, -1) if isinstance(end, KafkaCode) else (KafkaCode.NONE, end)
        return SimpleNamespace(partition_index=index, error_code=int(code), offset=offset)

    async def look(self, *indexes: int) -> dict[int, int]:
        """Return the log ends that were found, of all partitions or of some."""
        keys = [PartitionKey(self.topic_id, index) for index in indexes or range(PARTITIONS)]
        async with asyncio.timeout(WAIT_S):
            found = await self._ends.of(keys)
        assert {key.topic_id for key in found} <= {self.topic_id}
        return {key.partition_index: end for key, end in found.items()}


@pytest.fixture
async def place(rig: Rig) -> Place:
    rig.cluster.start(4)
    await rig.create((1,), (2,), (2,), (3,), (4,))
    await rig.write(b"x", b"y")
    return Place(rig, CoordinatorLimits(share_log_end_timeout_ms=50))


async def test_each_remote_leader_is_asked_once_for_all_of_its_partitions(place: Place) -> None:
    assert await place.look() == {0: 2, 1: 10, 2: 20, 3: 30, 4: 40}
    assert place.asked == [(2, [1, 2]), (3, [3]), (4, [4])]


async def test_no_other_broker_is_asked_about_partitions_that_this_broker_leads(place: Place) -> None:
    assert await place.look(0) == {0: 2}
    assert place.asked == []


async def test_a_leader_that_fails_or_hangs_leaves_out_only_the_log_ends_of_its_own_partitions(place: Place) -> None:
    place.refusing.add(2)
    place.hanging.add(3)
    assert await place.look() == {0: 2, 4: 40}


async def test_a_partition_whose_leader_answers_with_an_error_has_no_log_end_in_the_result(place: Place) -> None:
    place.ends[1] = KafkaCode.NOT_LEADER_OR_FOLLOWER
    assert await place.look() == {0: 2, 2: 20, 3: 30, 4: 40}


async def test_a_partition_without_a_leader_has_no_log_end_and_no_broker_is_asked(place: Place) -> None:
    await place.rig.change(leader=-1)
    assert await place.look(0, 9) == {}
    assert place.asked == []


async def test_a_new_leader_reports_no_log_end_until_its_watermark_reaches_its_log_end_at_the_election(
    place: Place,
) -> None:
    rig = place.rig
    await rig.change(leader=1)
    assert await place.look(0) == {0: 2}
    rig.leader.high_watermark = 1
    assert not rig.leader.latest_known()
    assert await place.look(0) == {}


async def test_a_recreated_topic_gives_no_log_end_for_the_id_of_the_deleted_topic(place: Place) -> None:
    place.rig.cluster.apply([RemoveTopic(place.topic_id)])
    place.rig.cluster.create(TOPIC, (2,))
    await place.rig.learn()
    assert await place.look(0) == {}
    assert place.asked == []
