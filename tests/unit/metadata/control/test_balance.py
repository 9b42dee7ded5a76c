"""Elections on request, and the automatic return of leadership to preferred replicas."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from uuid import UUID

import pytest

from metadata.control.balance import BALANCE_BATCH, balance, elect_leaders
from metadata.control.decision import Decision
from metadata.control.election import Policy
from metadata.image import ClusterImage
from metadata.records import NO_LEADER, Config, ConfigScope, PartitionChange, Reason
from quorumlog.wire import rpcs
from quorumlog.wire.v1 import controller_pb2 as pb
from quorumlog.wire.v1 import metadata_pb2
from tests.unit.metadata.builders import Cluster, check_invariants
from tests.unit.metadata.control.test_partitions import Case
from tests.unit.metadata.controller.test_controller import beat, started
from tests.unit.metadata.fake_node import Plane, run, settle

PREFERRED = pb.ElectLeadersRequest.POLICY_PREFERRED
UNCLEAN = pb.ElectLeadersRequest.POLICY_UNCLEAN


def moved(case: Case) -> None:
    """Fence broker 1, the preferred leader, and let it become in sync again."""
    case.cluster.fence(1)
    case.cluster.beat(1)
    case.ask(case.change(1, 2, 3), sender=2)
    assert case.cluster.partition(case.topic).leader == 2


def ask(case: Case, policy: Policy, *named: tuple[str, int], validate_only: bool = False) -> list[tuple[str, int]]:
    """Return (error, leader) of each answer."""
    decision = elect_leaders(case.cluster.image, policy, named, validate_only=validate_only)
    case.cluster.apply(decision.records)
    check_invariants(case.cluster.image)
    return [(each.outcome.error, each.leader) for each in decision.reply]


def test_a_preferred_election_returns_leadership_to_the_preferred_replica() -> None:
    case = Case()
    moved(case)
    epoch = case.cluster.partition(case.topic).leader_epoch
    assert ask(case, Policy.PREFERRED, ("t", 0), validate_only=True) == [("NONE", 1)]
    assert case.cluster.partition(case.topic).leader == 2
    assert ask(case, Policy.PREFERRED, ("t", 0)) == [("NONE", 1)]
    assert (case.cluster.partition(case.topic).leader, case.cluster.partition(case.topic).leader_epoch) == (
        1,
        epoch + 1,
    )
    change = case.cluster.log[-1]
    assert isinstance(change, PartitionChange)
    assert change.reason is Reason.PREFERRED_ELECTION
    assert ask(case, Policy.PREFERRED, ("t", 0)) == [("ELECTION_NOT_NEEDED", 1)]


def test_a_preferred_replica_that_is_fenced_or_not_in_sync_is_not_elected() -> None:
    case = Case()
    case.cluster.fence(1)
    assert ask(case, Policy.PREFERRED, ("t", 0)) == [("PREFERRED_LEADER_NOT_AVAILABLE", 2)]
    case.cluster.beat(1)
    assert ask(case, Policy.PREFERRED, ("t", 0)) == [("PREFERRED_LEADER_NOT_AVAILABLE", 2)]  # unfenced, but not in sync
    assert ask(case, Policy.PREFERRED) == []
    assert balance(case.cluster.image, [case.topic]).records == ()
    case.ask(case.change(1, 2, 3), sender=2)
    case.cluster.beat(1, want_shutdown=True, others_applied=0)
    assert ask(case, Policy.PREFERRED, ("t", 0)) == [("PREFERRED_LEADER_NOT_AVAILABLE", 2)]


def test_an_unclean_election_is_made_only_in_partitions_without_a_leader() -> None:
    case = Case()
    assert ask(case, Policy.UNCLEAN, ("t", 0)) == [("ELECTION_NOT_NEEDED", 1)]
    case.cluster.fence(3, 2, 1)
    assert ask(case, Policy.UNCLEAN, ("t", 0)) == [("ELIGIBLE_LEADERS_NOT_AVAILABLE", NO_LEADER)]
    assert ask(case, Policy.UNCLEAN) == []
    case.cluster.beat(3)
    assert case.cluster.partition(case.topic).leader == NO_LEADER
    assert ask(case, Policy.UNCLEAN) == [("NONE", 3)]
    assert case.cluster.reason() is Reason.UNCLEAN_ELECTION
    assert case.cluster.partition(case.topic).isr == (3,)


@pytest.mark.parametrize("policy", [Policy.PREFERRED, Policy.UNCLEAN])
def test_elections_in_missing_or_repeated_partitions_are_refused(policy: Policy) -> None:
    case = Case()
    named = [("t", 0), ("t", 0), ("t", 1), ("t", -1), ("t", 2**31 - 1), ("", 0), ("nobody\n" * 100, 0)]
    words = ask(case, policy, *named)
    assert [word for word, _ in words] == [
        "ELECTION_NOT_NEEDED", "INVALID_REQUEST", *["UNKNOWN_TOPIC_OR_PARTITION"] * 5
    ]  # fmt: skip
    reply = elect_leaders(case.cluster.image, policy, named).reply
    assert all("\n" not in each.outcome.message for each in reply[1:])


def many(count: int) -> tuple[Cluster, UUID]:
    """Return a topic with `count` partitions that 2 leads, although 1 is preferred and in sync."""
    cluster = Cluster()
    cluster.start(1, 2)
    topic_id = cluster.create("t", *[(1, 2)] * count)
    changes = [PartitionChange(topic_id, index, Reason.CONTROLLED_SHUTDOWN, -1, 0, leader=2) for index in range(count)]
    cluster.apply(changes)
    return cluster, topic_id


def test_leaders_are_balanced_in_batches() -> None:
    cluster, topic_id = many(BALANCE_BATCH + 1)
    first = balance(cluster.image, [UUID(int=99), topic_id])
    assert (len(first.records), first.more) == (BALANCE_BATCH, True)
    cluster.apply(first.records)
    second = balance(cluster.image, [topic_id])
    assert (len(second.records), second.more) == (1, False)
    cluster.apply(second.records)
    assert cluster.image.leader_count(1) == BALANCE_BATCH + 1
    changes = [record for record in first.records if isinstance(record, PartitionChange)]
    assert len(changes) == BALANCE_BATCH
    assert {change.reason for change in changes} == {Reason.PREFERRED_BALANCE}


def test_an_election_of_all_partitions_makes_at_most_one_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("metadata.control.balance.RECORDS_PER_BATCH_MAX", 5)
    cluster, _ = many(7)
    decision = elect_leaders(cluster.image, Policy.PREFERRED, [])
    assert len(decision.records) == len(decision.reply) == 5
    cluster.apply(decision.records)
    assert len(elect_leaders(cluster.image, Policy.PREFERRED, []).records) == 2
    refused = elect_leaders(many(7)[0].image, Policy.PREFERRED, [("t", index) for index in range(7)])
    assert refused.records == ()
    assert {each.outcome.error for each in refused.reply} == {"POLICY_VIOLATION"}


# At the controller


async def unbalanced(*configs: tuple[str, str]) -> Plane:
    """Return a plane with a topic of two replicas, whose preferred leader was down and is in sync again."""
    plane = await started(1, 2)
    plane.node.auto_commit = True
    for key, value in configs:
        await plane.controller.execute(set_config(key, value), 1000)
    topic = pb.NewTopic(name="t", partitions=-1, replication_factor=-1)
    topic.assignment.add(values=[1, 2])
    await plane.call(rpcs.CREATE_TOPICS, pb.CreateTopicsRequest(topics=[topic]))
    epoch = plane.replay.image.brokers[1].epoch
    await plane.call(rpcs.BROKER_HEARTBEAT, beat(plane, 1, broker_epoch=epoch, want_fence=True))
    await plane.call(rpcs.BROKER_HEARTBEAT, beat(plane, 1, broker_epoch=epoch))
    partition = next(iter(plane.replay.image.topics.values())).partitions[0]
    assert partition is not None
    assert partition.leader == 2
    item = pb.AlterPartitionItem(
        topic_id=next(iter(plane.replay.image.topics)).bytes, index=0, leader_epoch=partition.leader_epoch,
        partition_epoch=partition.partition_epoch,
        isr=[pb.IsrMember(broker_id=each, broker_epoch=plane.replay.image.brokers[each].epoch) for each in (1, 2)],
    )  # fmt: skip
    request = pb.AlterPartitionRequest(broker_id=2, broker_epoch=plane.replay.image.brokers[2].epoch, items=[item])
    assert (await plane.call(rpcs.ALTER_PARTITION, request)).items[0].result.error == "NONE"
    return plane


def set_config(key: str, value: str) -> Callable[[ClusterImage], Decision[None]]:
    decision: Decision[None] = Decision(None, (Config(ConfigScope.CLUSTER, "", key, value),))
    return lambda image: decision


def leader(plane: Plane) -> int:
    partition = next(iter(plane.replay.image.topics.values())).partitions[0]
    assert partition is not None
    return partition.leader


async def live_for(plane: Plane, seconds: float) -> None:
    """Let time pass while both brokers send heartbeats."""
    loop = asyncio.get_running_loop()
    end = loop.time() + seconds
    while loop.time() < end:
        for broker_id in (1, 2):
            await plane.call(rpcs.BROKER_HEARTBEAT, beat(plane, broker_id))
        await asyncio.sleep(2)


def test_leaderships_return_automatically_after_the_interval() -> None:
    async def test() -> None:
        plane = await unbalanced()
        await live_for(plane, 250)
        assert leader(plane) == 2
        await live_for(plane, 60)
        assert leader(plane) == 1

    run(test())


@pytest.mark.parametrize(("enabled", "found"), [("true", 1), ("false", 2)])
def test_configs_turn_leader_balancing_on_and_off_and_set_its_interval(enabled: str, found: int) -> None:
    async def test() -> None:
        configs = (("auto.leader.rebalance.enable", enabled), ("leader.rebalance.interval.ms", "5000"))
        plane = await unbalanced(*configs)
        assert leader(plane) == 2
        await live_for(plane, 8)
        assert leader(plane) == found

    run(test())


def test_changes_of_other_configs_do_not_delay_leader_balancing() -> None:
    async def test() -> None:
        plane = await unbalanced()
        for number in range(6):
            change = pb.ConfigChange(key="retention.ms", value=str(60_000 + number))
            resource = pb.ConfigResource(scope=metadata_pb2.Config.SCOPE_TOPIC, name="t")
            wanted = pb.ConfigChanges(resource=resource, changes=[change])
            reply = await plane.call(rpcs.ALTER_CONFIGS, pb.AlterConfigsRequest(resources=[wanted]))
            assert reply.resources[0].changed
            await live_for(plane, 60)
        assert leader(plane) == 1

    run(test())


def test_a_former_controller_makes_no_elections() -> None:
    async def test() -> None:
        plane = await unbalanced(("leader.rebalance.interval.ms", "1000"))
        plane.node.lose(2, "there:1")
        before = plane.node.log_end_offset
        await asyncio.sleep(10)
        await settle()
        assert plane.node.log_end_offset == before

    run(test())


def test_the_service_makes_requested_elections_and_refuses_invalid_requests() -> None:
    async def test() -> None:
        plane = await unbalanced()
        one = [pb.TopicPartition(topic="t", index=0)]
        request = pb.ElectLeadersRequest(policy=PREFERRED, partitions=one)
        request.header.validate_only = True
        reply = await plane.call(rpcs.ELECT_LEADERS, request)
        assert (reply.result.error, reply.changed, reply.partitions[0].leader) == ("NONE", False, 1)
        assert leader(plane) == 2
        request.header.validate_only = False
        reply = await plane.call(rpcs.ELECT_LEADERS, request)
        assert (reply.changed, reply.offset, leader(plane)) == (True, plane.node.log_end_offset, 1)
        reply = await plane.call(rpcs.ELECT_LEADERS, pb.ElectLeadersRequest(policy=PREFERRED))
        assert (reply.result.error, reply.changed, list(reply.partitions)) == ("NONE", False, [])
        reply = await plane.call(rpcs.ELECT_LEADERS, pb.ElectLeadersRequest(policy=UNCLEAN, partitions=one))
        assert reply.partitions[0].result.error == "ELECTION_NOT_NEEDED"
        assert (await plane.call(rpcs.ELECT_LEADERS, pb.ElectLeadersRequest())).result.error == "INVALID_REQUEST"
        wild = pb.ElectLeadersRequest.FromString(b"\x10\x63")  # policy 99
        assert (await plane.call(rpcs.ELECT_LEADERS, wild)).result.error == "INVALID_REQUEST"
        huge = pb.ElectLeadersRequest(policy=PREFERRED, partitions=one * 100_001)
        assert (await plane.call(rpcs.ELECT_LEADERS, huge)).result.error == "INVALID_REQUEST"

    run(test())
