"""Failures of other systems in controllers, by the numbers of docs/known_failures.md."""

from __future__ import annotations

import asyncio
from uuid import UUID

import pytest

from metadata.control.configs import Changes, Resource, alter_configs
from metadata.control.election import Eligibility
from metadata.control.partitions import Assignment, IsrChange, Member, alter_partition, assign_directories
from metadata.control.topics import NewTopic, create_topics, delete_topics
from metadata.controller import ControllerSettings
from metadata.image import ClusterImage, delta
from metadata.records import LOST, NO_LEADER, ConfigScope, PartitionChange, Reason
from metadata.snapshot import ImageLoader, chunks
from quorumlog.wire import rpcs
from quorumlog.wire.v1 import controller_pb2 as pb
from tests.unit.metadata.builders import Cluster, check_invariants, directory
from tests.unit.metadata.controller.test_controller import beat, new_topic, register, started
from tests.unit.metadata.fake_node import run, settle


def isr_change(cluster: Cluster, topic_id: UUID, *isr: int, **epochs: int) -> IsrChange:
    """Return the proposal of the leader.  epochs: broker epochs that it knows wrongly (`b2=…`)."""
    now = cluster.partition(topic_id)
    members = tuple([Member(each, epochs.get(f"b{each}", cluster.epoch(each))) for each in isr])
    return IsrChange(topic_id, 0, now.leader_epoch, now.partition_epoch, members)


def propose(cluster: Cluster, sender: int, change: IsrChange) -> str:
    """Return the error of the answer."""
    decision = alter_partition(cluster.image, sender, cluster.epoch(sender), [change])
    cluster.apply(decision.records)
    check_invariants(cluster.image)
    return decision.reply.items[0].outcome.error


def test_k29_a_stale_controller_does_not_refuse_a_newer_leader() -> None:
    """The answer must be "ask another controller".

    Otherwise the leader would drop a proposal that was never decided.
    """
    cluster = Cluster()
    cluster.start(1, 2)
    topic_id = cluster.create("t", (1, 2))
    stale = cluster.image
    assert propose(cluster, 1, isr_change(cluster, topic_id, 1)) == "NONE"
    ahead = isr_change(cluster, topic_id, 1, 2)
    answer = alter_partition(stale, 1, cluster.epoch(1), [ahead]).reply.items[0]
    assert (answer.outcome.error, answer.outcome.error.retriable) == ("NOT_CONTROLLER", True)
    assert propose(cluster, 1, ahead) == "NONE"
    assert cluster.partition(topic_id).isr == (1, 2)


def test_k31_a_fetch_before_the_restart_adds_no_broker_to_the_isr() -> None:
    """Incarnation one fetched up to the log end.  Incarnation two is registered when the leader proposes the broker."""
    cluster = Cluster()
    cluster.start(1, 2)
    topic_id = cluster.create("t", (1, 2))
    assert propose(cluster, 1, isr_change(cluster, topic_id, 1)) == "NONE"
    fetched_by = cluster.epoch(2)
    cluster.register(2, 1)
    assert not cluster.beat(2).fenced
    assert propose(cluster, 1, isr_change(cluster, topic_id, 1, 2, b2=fetched_by)) == "INELIGIBLE_REPLICA"
    assert cluster.partition(topic_id).isr == (1,)
    assert propose(cluster, 1, isr_change(cluster, topic_id, 1, 2)) == "NONE"


def test_k13916_a_fenced_broker_never_enters_the_isr() -> None:
    cluster = Cluster()
    cluster.start(1, 2)
    topic_id = cluster.create("t", (1, 2))
    cluster.fence(2)
    assert propose(cluster, 1, isr_change(cluster, topic_id, 1, 2)) == "INELIGIBLE_REPLICA"
    cluster.register(2, 1)
    assert propose(cluster, 1, isr_change(cluster, topic_id, 1, 2)) == "INELIGIBLE_REPLICA"
    cluster.beat(2)
    assert propose(cluster, 1, isr_change(cluster, topic_id, 1, 2)) == "NONE"


def test_k16952_the_same_incarnation_registers_again_and_keeps_its_epoch() -> None:
    cluster = Cluster()
    cluster.start(1)
    topic_id = cluster.create("t", (1,))
    epoch = cluster.epoch(1)
    assert cluster.register(1, rack="other").broker_epoch == epoch == cluster.epoch(1)
    assert cluster.partition(topic_id).leader == 1


def test_k13173_two_brokers_that_stop_answering_together_are_both_fenced() -> None:
    async def test() -> None:
        plane = await started(1, 2, 3, settings=ControllerSettings(session_timeout_ms=1000))
        plane.node.auto_commit = True
        await plane.call(rpcs.CREATE_TOPICS, new_topic("t", 6, 3))
        loop = asyncio.get_running_loop()
        end = loop.time() + 3
        while loop.time() < end:
            await plane.call(rpcs.BROKER_HEARTBEAT, beat(plane, 3))
            await asyncio.sleep(0.2)
        image = plane.replay.image
        assert {broker_id: broker.fenced for broker_id, broker in image.brokers.items()} == {
            1: True, 2: True, 3: False
        }  # fmt: skip
        topic = image.topic("t")
        assert topic is not None
        assert {(each.leader, each.isr) for each in topic.partitions if each} == {(3, (3,))}
        check_invariants(image)

    run(test())


def test_k14457_only_committed_state_is_described() -> None:
    async def test() -> None:
        plane = await started(1)
        asked = plane.start(rpcs.CREATE_TOPICS, new_topic("t"))
        await settle()
        assert plane.controller.pending is not None
        assert plane.controller.pending.topic("t") is not None
        assert plane.replay.image.topic("t") is None
        described = plane.start(rpcs.DESCRIBE_TOPICS, pb.DescribeTopicsRequest())
        await settle()
        assert not described.done()
        plane.node.commit()
        assert [topic.name for topic in (await described).topics] == ["t"]
        assert (await asked).topics[0].result.error == "NONE"

    run(test())


def test_k13841_a_new_controller_places_topics_before_the_first_heartbeat() -> None:
    async def test() -> None:
        plane = await started(1, 2, 3)
        plane.node.lose(2, "there:1")
        plane.node.auto_commit = True
        plane.node.win()
        await settle()
        reply = await plane.call(rpcs.CREATE_TOPICS, new_topic("t", 3, 3))
        assert reply.topics[0].result.error == "NONE"
        topic = plane.replay.image.topic("t")
        assert topic is not None
        assert {each.leader for each in topic.partitions if each} == {1, 2, 3}

    run(test())


def test_k35_the_last_replica_is_not_elected_when_it_returns_empty() -> None:
    """The ISR shrinks to one replica, whose disk is then lost.

    No election may silently truncate acknowledged records, in whichever way the loss is noticed.
    """
    for emptied in ("another directory", "reported lost"):
        cluster = Cluster()
        cluster.start(1, 2, 3)
        topic_id = cluster.create("t", (1, 2, 3), configs=(("min.insync.replicas", "2"),))
        for broker_id in (3, 2):
            assert propose(cluster, 1, isr_change(cluster, topic_id, *range(1, broker_id))) == "NONE"
        cluster.fence(2)
        cluster.fence(1)
        assert (cluster.partition(topic_id).leader, cluster.partition(topic_id).isr) == (NO_LEADER, (1,))
        if emptied == "another directory":
            cluster.register(1, 1, directory_ids=(directory(1, 9),))
            cluster.beat(1)
        else:
            cluster.register(1, 1)
            items = [Assignment(topic_id, 0, LOST)]
            cluster.apply(assign_directories(cluster.image, 1, cluster.epoch(1), items).records)
            cluster.beat(1)
        assert cluster.partition(topic_id).leader == NO_LEADER
        check_invariants(cluster.image)
        assert cluster.beat(3).outcome.ok
        assert cluster.partition(topic_id).leader == NO_LEADER  # 3 left while the ISR was large enough
        cluster.beat(2)
        now = cluster.partition(topic_id)
        assert (now.leader, now.isr) == (2, (2,))  # 2 holds all committed records, so the election was clean
        assert cluster.reason() is Reason.BROKER_UNFENCED


def test_k19522_a_fenced_broker_is_never_elected() -> None:
    cluster = Cluster()
    cluster.start(1, 2)
    topic_id = cluster.create("t", (1, 2), configs=(("unclean.leader.election.enable", "true"),))
    cluster.fence(1, 2)
    cluster.register(1, 1)
    assert cluster.partition(topic_id).leader == NO_LEADER
    eligible = Eligibility(cluster.image)
    assert not any(eligible(replica) for replica in cluster.partition(topic_id).replicas)
    cluster.beat(1)
    assert cluster.partition(topic_id).leader == 1


def test_k18106_an_unclean_registration_raises_the_epochs_of_its_leaderships() -> None:
    cluster = Cluster()
    cluster.start(1, 2)
    alone, shared = cluster.create("alone", (1,)), cluster.create("shared", (1, 2))
    cluster.register(1, 1)
    assert (cluster.partition(alone).leader, cluster.partition(alone).leader_epoch) == (NO_LEADER, 1)
    assert (cluster.partition(shared).leader, cluster.partition(shared).leader_epoch) == (2, 1)
    cluster.beat(1)
    now = cluster.partition(alone)
    assert (now.leader, now.leader_epoch) == (1, 2)
    assert now.last_offset > cluster.epoch(1)


@pytest.mark.parametrize("value", ["1", "3"])
def test_k16540_a_change_of_min_isr_clears_the_eligible_leader_replicas(value: str) -> None:
    cluster = Cluster()
    cluster.start(1, 2, 3)
    topic_id = cluster.create("t", (1, 2, 3), configs=(("min.insync.replicas", "2"),))
    cluster.fence(3, 2)
    assert cluster.partition(topic_id).elr == (2,)
    wanted = Changes(Resource(ConfigScope.TOPIC, "t"), (("min.insync.replicas", value),))
    decision = alter_configs(cluster.image, [wanted])
    assert len(decision.records) == 2  # one batch: both or neither
    cluster.apply(decision.records)
    assert cluster.partition(topic_id).elr == ()


def test_k37_a_topic_is_created_deleted_and_created_again_in_one_delta() -> None:
    """From the log, from a snapshot in the middle, and from one delta over everything, the image is the same."""
    cluster = Cluster()
    cluster.start(1, 2)
    before = cluster.image
    first = cluster.create("t", (1, 2), (2, 1))
    cluster.apply([PartitionChange(first, 0, Reason.ISR_SHRINK, -1, 0, leader=2)])
    middle = cluster.image
    cluster.apply(delete_topics(cluster.image, ["t"], []).records)
    second = cluster.create("t", (2, 1))
    records = cluster.log[before.end_offset :]
    assert before.apply(before.end_offset, records).digest() == cluster.image.digest()
    found = delta(before, cluster.image, records)
    assert found.topics_removed == ()
    assert found.partitions == {second: (0,)}
    loader = ImageLoader("test")
    for chunk in chunks(middle):
        if chunk:
            loader.feed(chunk)
    loaded = loader.finish().apply(middle.end_offset, cluster.log[middle.end_offset :])
    assert loaded.digest() == cluster.image.digest() == ClusterImage().apply(0, cluster.log).digest()
    assert cluster.partition(second).leader_epoch == 2  # clients ignore lower epochs of the same topic name
    [again] = create_topics(cluster.image, [NewTopic("t")], cluster.new_id).reply
    assert again.outcome.error == "TOPIC_ALREADY_EXISTS"


def test_k41_heartbeats_are_answered_while_a_large_change_is_applied() -> None:
    async def test() -> None:
        plane = await started(1, 2)
        plane.node.auto_commit = True
        for number in range(3):
            await plane.call(rpcs.CREATE_TOPICS, new_topic(f"t{number}", 9000, 2))
        again = plane.start(rpcs.REGISTER_BROKER, register(1, 1))  # 27,000 changes, in three batches
        await asyncio.sleep(0)
        answered = 0
        while not again.done():
            if (await plane.call(rpcs.BROKER_HEARTBEAT, beat(plane, 2))).result.error == "NONE":
                answered += not again.done()
            await asyncio.sleep(0)
        assert (await again).result.error == "NONE"
        assert answered > 1

    run(test())


def test_k15021_a_smaller_isr_does_not_raise_the_leader_epoch() -> None:
    """A request of the leader or the shutdown of a follower must not interrupt current fetches and writes."""
    cluster = Cluster()
    cluster.start(1, 2, 3)
    topic_id = cluster.create("t", (1, 2, 3))
    assert propose(cluster, 1, isr_change(cluster, topic_id, 1, 2)) == "NONE"
    assert propose(cluster, 1, isr_change(cluster, topic_id, 1, 2, 3)) == "NONE"
    cluster.beat(3, want_shutdown=True)
    now = cluster.partition(topic_id)
    assert (now.isr, now.leader, now.leader_epoch, now.partition_epoch) == ((1, 2), 1, 0, 3)
