"""The events `elected` and `resigned`, which report the start and the end of leaderships."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from uuid import UUID

import pytest

from broker.core.fetch_session import PartitionKey
from metadata.control.partitions_count import remove_partitions
from quorumlog.runtime.disk import DiskError
from tests.unit.broker.replica.rig import TOPIC, Rig
from tests.unit.broker.replica.test_roles import lose_leadership, lose_the_disk, lose_the_topic

Heard = list[tuple[str, PartitionKey, int]]


def listen(rig: Rig) -> Heard:
    heard: Heard = []
    rig.context.events.elected.subscribe(lambda partition, epoch: heard.append(("elected", partition, epoch)))
    rig.context.events.resigned.subscribe(lambda partition, epoch: heard.append(("resigned", partition, epoch)))
    return heard


async def test_an_election_is_reported_once_the_replica_leads(rig: Rig) -> None:
    leaders: list[bool] = []
    rig.context.events.elected.subscribe(lambda *_: leaders.append(rig.hosted().serving() is not None))
    heard = listen(rig)
    await rig.create((1, 2))
    assert heard == [("elected", rig.hosted().partition, 0)]
    assert leaders == [True]


async def test_a_follower_reports_no_election_and_no_resignation(rig: Rig) -> None:
    heard = listen(rig)
    await rig.create((2, 1))
    await rig.change(leader=3, isr=(3,))
    assert heard == []


async def test_a_change_of_the_isr_is_not_reported_as_an_election(rig: Rig) -> None:
    await rig.create((1, 2))
    heard = listen(rig)
    await rig.change(isr=(1,))
    assert heard == []


async def test_a_later_epoch_of_the_same_leader_is_reported_as_an_election_without_a_resignation(rig: Rig) -> None:
    await rig.create((1, 2, 3))
    heard = listen(rig)
    await rig.change(leader=1, isr=(1, 2))
    assert heard == [("elected", rig.hosted().partition, 1)]


@pytest.mark.parametrize("cause", [lose_leadership, lose_the_topic, lose_the_disk])
async def test_the_end_of_a_leadership_is_reported(rig: Rig, cause: Callable[[Rig], Awaitable[None]]) -> None:
    await rig.create((1, 2, 3))
    partition = rig.hosted().partition
    heard = listen(rig)
    await cause(rig)
    assert heard == [("resigned", partition, 0)]


async def test_a_resignation_is_reported_once(rig: Rig) -> None:
    await rig.create((1, 2, 3))
    heard = listen(rig)
    await rig.change(leader=2)
    rig.hosted().take_offline(DiskError("I/O error"))
    assert [what for what, *_ in heard] == ["resigned"]


async def test_a_leader_resigns_and_is_elected_again_when_its_topic_gets_another_id(rig: Rig) -> None:
    await rig.create((1, 2), (1, 2))
    before = rig.hosted().partition
    heard = listen(rig)
    renewed = PartitionKey(UUID(int=99), 0)
    rig.cluster.execute(lambda image: remove_partitions(image, TOPIC, 1, lambda: renewed.topic_id))
    await rig.learn()
    epoch = rig.leader.leader_epoch
    of_the_first = [each for each in heard if each[1].partition_index == 0]
    assert of_the_first == [("resigned", before, 0), ("elected", renewed, epoch)]
