"""The Node service: the metadata and the state that a node reports, and requests that it cannot answer."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any
from uuid import UUID

import pytest
from google.protobuf.message import Message
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from metadata.codec import decode
from metadata.controller import node_service, reported_ends
from metadata.controller.describe import describe_metadata
from metadata.controller.node_service import METHODS, NodeService, NodeState
from metadata.controller.reported_ends import END_DIRECTORIES_MAX, END_TEXT_MAX, ENDS_MAX
from metadata.image import ClusterImage
from metadata.records import Config, ConfigScope, Topic
from quorum.core.types import ReplicaKey, TargetVoters, VoterSet
from quorum.ports import LeadershipLostError, UnreachableError
from quorumlog.errors import RemoteProtocolError
from quorumlog.runtime import turns
from quorumlog.runtime.clock import now_ms
from quorumlog.runtime.space import Space
from quorumlog.wire import rpcs
from quorumlog.wire.rpcs import AnyRpc
from quorumlog.wire.v1 import controller_pb2, metadata_pb2
from quorumlog.wire.v1 import node_pb2 as pb
from tests.contract.samples import VOTERS
from tests.other_tasks import counting
from tests.unit.metadata.controller.test_controller import register
from tests.unit.metadata.controller.test_history import lived
from tests.unit.metadata.fake_node import Plane, run, settle
from tests.unit.metadata.kept_log import KeptLog


class FakeBroker:
    def __init__(self) -> None:
        self.replicas = [pb.ReplicaDescription(topic="kept", index=0, state="leader", end_offset=7)]
        self.purged = 0
        self.problem = ""

    async def describe_replicas(self, topics: Sequence[str]) -> list[pb.ReplicaDescription]:
        return [each for each in self.replicas if not topics or each.topic in topics]

    def applied_batches(self, from_offset: int) -> tuple[int, list[pb.AppliedBatch]]:
        return 3, [pb.AppliedBatch(end_offset=end) for end in (5, 9) if end > from_offset]

    def progress(self) -> tuple[int, int]:
        return 8, 3

    def failed_directories(self) -> dict[str, str]:
        return {"/b": "no space left"}

    def dead_letters(self) -> pb.DeadLetters:
        return pb.DeadLetters(failing_count=2)

    def compaction(self) -> pb.Compaction:
        return pb.Compaction(due=4)

    def strays(self) -> list[pb.Stray]:
        return [pb.Stray(topic="old", path="/a/old-0")]

    async def purge_strays(self) -> str:
        self.purged += 1
        return self.problem


class Node:
    """A node with some history, whose service the tests call."""

    def __init__(self, plane: Plane, kept: KeptLog) -> None:
        self.plane, self.kept = plane, kept
        self.state = NodeState(
            "leader", True, 12, 3000, {"cluster": (True, "c"), "leader": (False, "none")}, 1_700_000_000_000
        )
        self.service = NodeService(kept, plane.replay, lambda: self.state)

    async def ask(self, rpc: AnyRpc, request: Any) -> Any:
        return await self.service.handle(rpc, request)


async def node() -> Node:
    return Node(*await lived())


REQUESTS: dict[AnyRpc, Message] = {
    rpcs.DESCRIBE_NODE: pb.DescribeNodeRequest(),
    rpcs.READ_METADATA: pb.ReadMetadataRequest(),
    rpcs.DESCRIBE_METADATA: pb.DescribeMetadataRequest(at_offset=-1),
    rpcs.EXPLAIN_PARTITION: pb.ExplainPartitionRequest(partition=controller_pb2.TopicPartition(topic="kept")),
    rpcs.LIST_APPLIED_BATCHES: pb.ListAppliedBatchesRequest(),
    rpcs.DESCRIBE_REPLICAS: pb.DescribeReplicasRequest(),
    rpcs.PURGE_STRAYS: pb.PurgeStraysRequest(dry_run=True),
    rpcs.REPORT_END: pb.ReportEndRequest(node_id=9),
}


def test_every_method_of_the_node_service_answers() -> None:
    assert {rpc for rpc in rpcs.RPCS if rpc.service is rpcs.Service.NODE} == set(METHODS) == set(REQUESTS)

    async def test() -> None:
        one = await node()
        for rpc in METHODS:
            reply = await one.ask(rpc, REQUESTS[rpc])
            assert isinstance(reply, rpc.reply)
            assert reply.result.error == "NONE", (rpc, reply.result)
        with pytest.raises(RemoteProtocolError):
            await one.ask(rpcs.DESCRIBE_TOPICS, controller_pb2.DescribeTopicsRequest())
        with pytest.raises(RemoteProtocolError):
            await one.ask(rpcs.DESCRIBE_NODE, REQUESTS[rpcs.READ_METADATA])

    run(test())


def test_another_clusters_request_is_refused() -> None:
    async def test() -> None:
        one = await node()
        for rpc, request in REQUESTS.items():
            copy: Any = type(request)()
            copy.CopyFrom(request)
            copy.header.cluster_id = "strange\ncluster"
            reply = await one.ask(rpc, copy)
            assert reply.result.error == "INCONSISTENT_CLUSTER_ID"
            assert "\n" not in reply.result.message

    run(test())


def test_the_whole_log_is_read_in_pieces_of_any_size() -> None:
    async def test() -> None:
        one = await node()
        for max_bytes in (0, 1, 200, 2**31 - 1):
            offset, records, controls = 0, 0, []
            while offset < one.plane.node.high_watermark:
                reply = await one.ask(
                    rpcs.READ_METADATA, pb.ReadMetadataRequest(from_offset=offset, max_bytes=max_bytes)
                )
                assert reply.result.error == "NONE"
                assert (reply.log_start, reply.high_watermark) == (0, one.plane.node.high_watermark)
                for batch in reply.batches:
                    assert batch.base_offset == offset
                    offset += batch.count
                    controls += [batch.control] if batch.control else []
                    if not batch.control:
                        decoded = decode(batch.records.SerializeToString(), batch.base_offset)
                        assert len(decoded) == batch.count == len(batch.records.records)
                        records += batch.count
                assert reply.next_offset == offset
            assert controls == [
                "LeaderChange: 1 leads epoch 1, with the votes of 1",
                "TargetVoters: none",
            ]
            assert records == offset - 2

    run(test())


def test_a_read_begins_with_the_batch_that_contains_the_offset() -> None:
    async def test() -> None:
        one = await node()
        batch = next(batch for batch in one.plane.node.log if batch.count > 2)
        request = pb.ReadMetadataRequest(from_offset=batch.base_offset + 1, max_bytes=1)
        [found] = (await one.ask(rpcs.READ_METADATA, request)).batches
        assert (found.base_offset, found.count) == (batch.base_offset, batch.count)

    run(test())


def test_a_read_at_the_end_waits_for_new_records() -> None:
    async def test() -> None:
        one = await node()
        one.plane.node.lose(2)  # otherwise the silent brokers would be fenced meanwhile
        end = one.plane.node.high_watermark
        loop = asyncio.get_running_loop()
        began = loop.time()
        nothing = await one.ask(rpcs.READ_METADATA, pb.ReadMetadataRequest(from_offset=-1, wait_ms=3000))
        assert (list(nothing.batches), nothing.next_offset) == ([], end)
        assert loop.time() - began == 3
        reading = asyncio.ensure_future(
            one.ask(rpcs.READ_METADATA, pb.ReadMetadataRequest(from_offset=end, wait_ms=2**32 - 1))
        )
        await settle()
        assert not reading.done()
        one.plane.node.append_control(TargetVoters(None))
        one.plane.node.commit()
        reply = await reading
        assert ([batch.base_offset for batch in reply.batches], reply.next_offset) == ([end], end + 1)
        began = loop.time()
        await one.ask(rpcs.READ_METADATA, pb.ReadMetadataRequest(from_offset=-1, wait_ms=2**32 - 1))
        assert loop.time() - began == node_service.WAIT_MAX_MS / 1000, "no caller waits longer"

    run(test())


def test_a_read_that_waits_while_the_node_stops_fails_as_unreachable(monkeypatch: pytest.MonkeyPatch) -> None:
    async def stop(end_offset: int) -> None:
        raise LeadershipLostError("this node is stopping")

    async def test() -> None:
        one = await node()
        monkeypatch.setattr(one.kept, "applied", stop)
        with pytest.raises(UnreachableError, match="stopping"):
            await one.ask(rpcs.READ_METADATA, pb.ReadMetadataRequest(from_offset=-1, wait_ms=3000))

    run(test())


def test_an_offset_out_of_range_is_refused_with_the_range() -> None:
    async def test() -> None:
        one = await node()
        end = one.plane.node.high_watermark
        for offset in (end + 1, 2**63 - 1, -2, -(2**63)):
            text = f"offset {offset}: history on node 1 contains offsets 0 to {end}"
            read = await one.ask(rpcs.READ_METADATA, pb.ReadMetadataRequest(from_offset=offset))
            assert (read.result.error, read.result.message) == ("OFFSET_OUT_OF_RANGE", text)
            described = await one.ask(rpcs.DESCRIBE_METADATA, pb.DescribeMetadataRequest(at_offset=offset))
            assert (described.result.error, described.result.message) == ("OFFSET_OUT_OF_RANGE", text)
        begins = sorted(one.kept.images)[5]
        one.kept.drop_below(begins)
        for rpc, request in (
            (rpcs.READ_METADATA, pb.ReadMetadataRequest(from_offset=begins - 1)),
            (rpcs.DESCRIBE_METADATA, pb.DescribeMetadataRequest(at_offset=begins - 1)),
        ):
            reply = await one.ask(rpc, request)
            assert reply.result.error == "OFFSET_OUT_OF_RANGE"
            assert reply.result.message == f"history on node 1 begins at offset {begins}"
            assert not reply.result.retriable

    run(test())


def test_metadata_are_described_at_an_earlier_offset() -> None:
    async def test() -> None:
        one = await node()
        now = await one.ask(rpcs.DESCRIBE_METADATA, pb.DescribeMetadataRequest(at_offset=-1))
        assert now.offset == one.plane.node.high_watermark
        assert now == await one.ask(rpcs.DESCRIBE_METADATA, pb.DescribeMetadataRequest(at_offset=now.offset))
        assert [topic.name for topic in now.topics] == ["kept"]
        assert [(broker.broker_id, broker.state) for broker in now.brokers] == [(1, "unfenced"), (2, "unfenced")]
        ends = sorted(one.kept.images)
        states = set()
        for offset in ends:
            then = await one.ask(rpcs.DESCRIBE_METADATA, pb.DescribeMetadataRequest(at_offset=offset))
            image = one.kept.images[offset]
            assert (then.offset, then.history_begins) == (offset, 0)
            assert [topic.name for topic in then.topics] == sorted(image.topic_ids)
            assert {broker.broker_id: broker.state == "fenced" for broker in then.brokers} == {
                broker_id: broker.fenced for broker_id, broker in image.brokers.items()
            }
            states.add(tuple((broker.broker_id, broker.state) for broker in then.brokers))
            named = await one.ask(rpcs.DESCRIBE_METADATA, pb.DescribeMetadataRequest(at_offset=offset, topics=["gone"]))
            word = "NONE" if "gone" in image.topic_ids else "UNKNOWN_TOPIC_OR_PARTITION"
            assert [topic.result.error for topic in named.topics] == [word]
        assert len(states) > 3

    run(test())


def test_voters_are_described_at_an_earlier_offset() -> None:
    async def test() -> None:
        one = await node()
        one.kept.voters = (VOTERS, VoterSet(VOTERS.voters[:2]))
        now = await one.ask(rpcs.DESCRIBE_METADATA, pb.DescribeMetadataRequest(at_offset=-1))
        assert [(voter.node_id, voter.address) for voter in now.voters] == [
            (voter.key.node_id, voter.address) for voter in VOTERS
        ]
        assert [voter.node_id for voter in now.target_voters] == [1, 2]
        first = await one.ask(rpcs.DESCRIBE_METADATA, pb.DescribeMetadataRequest(at_offset=0))
        assert (list(first.voters), list(first.target_voters)) == ([], [])

    run(test())


@pytest.mark.parametrize("was_asked_before", [False, True])
def test_an_offset_below_the_log_is_refused_although_its_image_is_known(was_asked_before: bool) -> None:
    """Without the log, the voters at that offset are unknown."""

    async def test() -> None:
        one = await node()
        earlier, begins = sorted(one.kept.images)[3:5]
        request = pb.DescribeMetadataRequest(at_offset=earlier)
        if was_asked_before:
            assert (await one.ask(rpcs.DESCRIBE_METADATA, request)).result.error == "NONE"
        one.kept.drop_below(begins)
        one.kept.snapshots = [earlier, begins]  # the newer one was received from a leader
        reply = await one.ask(rpcs.DESCRIBE_METADATA, request)
        assert reply.result.error == "OFFSET_OUT_OF_RANGE"
        assert reply.result.message == f"history on node 1 begins at offset {begins}"

    run(test())


def test_a_description_of_more_partitions_than_one_reply_holds_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("metadata.controller.describe.PARTITIONS_IN_REPLY_MAX", 2)

    async def test() -> None:
        one = await node()
        all_of_them = await one.ask(rpcs.DESCRIBE_METADATA, pb.DescribeMetadataRequest(at_offset=-1))
        assert (all_of_them.result.error, bool(all_of_them.result.next)) == ("POLICY_VIOLATION", True)
        request = pb.DescribeMetadataRequest(at_offset=-1, without_partitions=True)
        names = await one.ask(rpcs.DESCRIBE_METADATA, request)
        [topic] = names.topics
        known = one.plane.replay.image.topic("kept")
        assert known is not None
        assert (topic.name, topic.topic_id, len(topic.partitions)) == ("kept", known.topic_id.bytes, 0)
        assert len(names.brokers) == 2

    run(test())


def test_other_tasks_run_while_the_names_of_many_topics_are_described(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(turns, "YIELD_MS", 0)
    monkeypatch.setattr(turns, "SORTED_AT_ONCE_MAX", 10)

    async def test() -> None:
        image = ClusterImage().apply(0, [Topic(UUID(int=number), f"t{number % 7}-{number}") for number in range(100)])
        with counting() as passed:
            reply = await describe_metadata(image, "cluster", (), partitions=False)
            assert passed() >= 200, "while the names are sorted, and while they are described"
        assert [each.name for each in reply.topics] == sorted(image.topic_ids)

    run(test())


def test_other_tasks_run_while_a_description_is_refused_as_too_large(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(turns, "YIELD_MS", 0)
    monkeypatch.setattr("metadata.controller.describe.PARTITIONS_IN_REPLY_MAX", 0)

    async def test() -> None:
        image = (await node()).plane.replay.image
        more = image.apply(image.end_offset, [Topic(UUID(int=number), f"empty{number}") for number in range(100)])
        with counting() as passed:
            reply = await describe_metadata(more, "cluster", ())
            assert reply.result.error == "POLICY_VIOLATION"
            assert 100 <= passed() < 150, "while the partitions are counted; nothing is sorted"

    run(test())


def test_other_tasks_run_while_the_configs_of_many_groups_are_described(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(turns, "YIELD_MS", 0)
    monkeypatch.setattr(turns, "SORTED_AT_ONCE_MAX", 10)

    async def test() -> None:
        groups = [
            Config(ConfigScope.GROUP, f"g{number % 7}-{number}", "share.delivery.count.limit", "9")
            for number in range(100)
        ]
        image = ClusterImage().apply(0, groups)
        with counting() as passed:
            reply = await describe_metadata(image, "cluster", (), partitions=False)
            assert passed() >= 300, "while the configs are chosen, sorted and described"
        assert [each.resource for each in reply.configs] == sorted(image.group_configs)

    run(test())


def test_a_damaged_history_is_reported_in_the_reply(monkeypatch: pytest.MonkeyPatch) -> None:
    async def test() -> None:
        one = await node()
        newer = metadata_pb2.Records(version=9).SerializeToString()

        async def read(start: int, max_bytes: int) -> Any:
            return (replace(one.plane.node.log[1], base_offset=start, payload=newer),)

        monkeypatch.setattr(one.kept, "read_committed", read)
        reply = await one.ask(rpcs.DESCRIBE_METADATA, pb.DescribeMetadataRequest(at_offset=5))
        assert (reply.result.error, "cannot be read" in reply.result.message) == ("INVALID_REQUEST", True)
        assert reply.result.next

    run(test())


def test_the_changes_of_a_partition_are_explained() -> None:
    async def test() -> None:
        one = await node()
        asked = pb.ExplainPartitionRequest(partition=controller_pb2.TopicPartition(topic="kept", index=1))
        reply = await one.ask(rpcs.EXPLAIN_PARTITION, asked)
        assert reply.complete
        assert reply.history_begins == 0
        assert reply.chain[0].reason == "created"
        assert reply.chain[0].text.startswith("created with replicas ")
        assert {change.reason for change in reply.chain} >= {"created", "broker_fenced"}
        assert all(change.timestamp_ms == one.kept.timestamps[_end(one, change.offset)] for change in reply.chain)
        fenced = next(change for change in reply.chain if change.reason == "broker_fenced")
        assert "broker 1 was fenced" in fenced.text
        assert 0 <= fenced.cause_offset < fenced.offset
        assert reply.now.startswith("kept-1: leader ")
        asked.max_changes = 1
        assert [change.offset for change in (await one.ask(rpcs.EXPLAIN_PARTITION, asked)).chain] == [
            reply.chain[-1].offset
        ]
        for topic, index in (("gone", 0), ("kept", 3), ("kept", -1), ("", 0)):
            asked = pb.ExplainPartitionRequest(partition=controller_pb2.TopicPartition(topic=topic, index=index))
            assert (await one.ask(rpcs.EXPLAIN_PARTITION, asked)).result.error == "UNKNOWN_TOPIC_OR_PARTITION"
        asked = pb.ExplainPartitionRequest(partition=controller_pb2.TopicPartition(topic="kept"), max_changes=-1)
        assert (await one.ask(rpcs.EXPLAIN_PARTITION, asked)).result.error == "INVALID_REQUEST"

    run(test())


def _end(one: Node, offset: int) -> int:
    return min(end for end in one.kept.images if end > offset)


def test_requests_about_the_broker_return_its_state_or_report_that_the_node_is_no_broker() -> None:
    async def test() -> None:
        one = await node()
        for rpc in (rpcs.LIST_APPLIED_BATCHES, rpcs.DESCRIBE_REPLICAS, rpcs.PURGE_STRAYS):
            reply = await one.ask(rpc, REQUESTS[rpc])
            assert (reply.result.error, reply.is_broker) == ("NONE", False)
        broker = one.service.broker = FakeBroker()
        applied = await one.ask(rpcs.LIST_APPLIED_BATCHES, pb.ListAppliedBatchesRequest(from_offset=5))
        assert (applied.is_broker, applied.kept_from, [each.end_offset for each in applied.batches]) == (True, 3, [9])
        assert len((await one.ask(rpcs.DESCRIBE_REPLICAS, pb.DescribeReplicasRequest(topics=["no"]))).replicas) == 0
        assert len((await one.ask(rpcs.DESCRIBE_REPLICAS, pb.DescribeReplicasRequest())).replicas) == 1
        would = await one.ask(rpcs.PURGE_STRAYS, pb.PurgeStraysRequest(dry_run=True))
        assert ([each.path for each in would.strays], broker.purged) == (["/a/old-0"], 0)
        await one.ask(rpcs.PURGE_STRAYS, pb.PurgeStraysRequest())
        assert broker.purged == 1
        broker.problem = "/a: read-only"
        failed = await one.ask(rpcs.PURGE_STRAYS, pb.PurgeStraysRequest())
        assert (failed.result.error, failed.result.message) == ("STORAGE_ERROR", "/a: read-only")

    run(test())


def test_a_description_of_more_replicas_than_one_reply_holds_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(node_service, "PARTITIONS_IN_REPLY_MAX", 1)

    async def test() -> None:
        one = await node()
        one.service.broker = broker = FakeBroker()
        broker.replicas.append(pb.ReplicaDescription(topic="other"))
        assert (await one.ask(rpcs.DESCRIBE_REPLICAS, pb.DescribeReplicasRequest())).result.error == "POLICY_VIOLATION"
        named = await one.ask(rpcs.DESCRIBE_REPLICAS, pb.DescribeReplicasRequest(topics=["other"]))
        assert [each.topic for each in named.replicas] == ["other"]

    run(test())


def test_a_node_describes_itself() -> None:
    async def test() -> None:
        one = await node()
        reply = await one.ask(rpcs.DESCRIBE_NODE, pb.DescribeNodeRequest())
        assert (reply.node_id, reply.role, reply.controller_active, reply.leading_ms) == (1, "leader", True, 12)
        assert (reply.applied_offset, reply.high_watermark) == (one.plane.node.high_watermark,) * 2
        assert [(check.name, check.ok, check.detail) for check in reply.checks] == [
            ("cluster", True, "c"),
            ("leader", False, "none"),
        ]
        assert (reply.fsync_p99_us, reply.is_broker, list(reply.directories_offline)) == (3000, False, [])
        assert not reply.HasField("broker_applied_offset")
        assert not reply.HasField("compaction")
        assert not reply.HasField("dead_letters")
        one.state = one.state._replace(fsync_p99_us=None, leading_ms=None)
        one.service.broker = FakeBroker()
        reply = await one.ask(rpcs.DESCRIBE_NODE, pb.DescribeNodeRequest())
        assert (reply.HasField("fsync_p99_us"), reply.HasField("leading_ms")) == (False, False)
        assert (reply.is_broker, list(reply.directories_offline)) == (True, ["/b"])
        assert (reply.broker_applied_offset, reply.pending_changes, reply.compaction.due) == (8, 3, 4)
        assert reply.dead_letters.failing_count == 2

    run(test())


def test_the_number_of_concurrent_requests_is_limited() -> None:
    async def test() -> None:
        one = await node()
        waiting = [
            asyncio.ensure_future(one.ask(rpcs.READ_METADATA, pb.ReadMetadataRequest(from_offset=-1, wait_ms=1000)))
            for _ in range(node_service.IN_PROGRESS_MAX)
        ]
        await settle()
        reply = await one.ask(rpcs.DESCRIBE_NODE, pb.DescribeNodeRequest())
        assert (reply.result.error, reply.result.retriable) == ("OVERLOADED", True)
        await asyncio.gather(*waiting)
        assert (await one.ask(rpcs.DESCRIBE_NODE, pb.DescribeNodeRequest())).result.error == "NONE"

    run(test())


@settings(max_examples=200, deadline=None)
@given(st.sampled_from(list(REQUESTS)), st.binary(max_size=60))
def test_no_request_to_the_node_service_raises_an_exception(rpc: AnyRpc, data: bytes) -> None:
    request = rpc.request()
    try:
        request.ParseFromString(data)
    except Exception:  # the transport refuses invalid messages
        return
    request.header.Clear()

    async def test() -> None:
        one = await node()
        assert (await one.ask(rpc, request)).result.error

    run(test())


def test_a_node_reports_the_free_space_and_failures_of_its_disks() -> None:
    async def test() -> None:
        one = await node()
        one.state = one.state._replace(spaces=[Space("/a", 5, 10), Space("/b", 0, 20)])
        one.service.broker = FakeBroker()
        reply = await one.ask(rpcs.DESCRIBE_NODE, pb.DescribeNodeRequest())
        assert list(reply.directories) == [
            pb.Directory(path="/a", free_bytes=5, total_bytes=10),
            pb.Directory(path="/b", total_bytes=20, problem="no space left"),
        ]
        assert list(reply.directories_offline) == ["/b"]

    run(test())


def ended(node_id: int, cause: str = "disk full", at_ms: int = 5_000, status: int = 7) -> pb.ReportEndRequest:
    end = pb.NodeEnd(node_id=77, at_ms=at_ms, exit_status=status, cause=cause, next="make room")
    end.directories.add(path="/data", free_bytes=0, total_bytes=10)
    return pb.ReportEndRequest(node_id=node_id, end=end)


def observe(one: Node, *node_ids: int) -> None:
    """Make these observers known to the quorum."""
    one.kept.observers = tuple(ReplicaKey(node_id, UUID(int=node_id)) for node_id in node_ids)


async def ends_of(one: Node) -> list[int]:
    return [end.node_id for end in (await one.ask(rpcs.DESCRIBE_NODE, pb.DescribeNodeRequest())).ends]


def test_the_last_reported_end_of_another_node_is_kept_until_it_runs_again() -> None:
    async def test() -> None:
        one = await node()
        observe(one, 14, 15)
        for request in (ended(14, "disk full"), ended(15), ended(14, "disk\nfailed")):
            assert (await one.ask(rpcs.REPORT_END, request)).result.error == "NONE"
        (first, second) = (await one.ask(rpcs.DESCRIBE_NODE, pb.DescribeNodeRequest())).ends
        assert (first.node_id, second.node_id) == (15, 14)  # the id in the request counts, not the id in the report
        assert (second.cause, second.next, second.exit_status, second.at_ms) == ("disk failed", "make room", 7, 5_000)
        assert list(second.directories) == [pb.Directory(path="/data", total_bytes=10)]
        assert (await one.ask(rpcs.REPORT_END, pb.ReportEndRequest(node_id=14))).result.error == "NONE"
        assert await ends_of(one) == [15]
        assert (
            await one.ask(rpcs.REPORT_END, ended(one.kept.node_id))
        ).result.error == "NONE"  # the node itself still runs
        assert await ends_of(one) == [15]

    run(test())


def test_only_ends_of_known_voters_observers_and_brokers_are_accepted() -> None:
    async def test() -> None:
        one = await node()
        one.kept.voters = (VoterSet(VOTERS.voters[2:]), None)  # voter 3; the brokers are 1 and 2
        observe(one, 14)
        for node_id in (2, 3, 14):
            assert (await one.ask(rpcs.REPORT_END, ended(node_id))).result.error == "NONE"
        for node_id in range(100, 100 + ENDS_MAX):
            result = (await one.ask(rpcs.REPORT_END, ended(node_id))).result
            assert result.error == "INVALID_REQUEST"
            assert result.message == f"node 1 knows no voter, observer or broker with id {node_id}"
        assert await ends_of(one) == [2, 3, 14]

    run(test())


def test_the_reported_end_of_a_node_is_dropped_when_the_node_fetches_again() -> None:
    async def test() -> None:
        one = await node()
        observe(one, 14)
        one.kept.fetched_ms = {3: now_ms(), 14: now_ms() - 5}
        for node_id in (2, 3, 14):
            await one.ask(rpcs.REPORT_END, ended(node_id))
        assert await ends_of(one) == [2, 3, 14]
        await asyncio.sleep(1)
        one.kept.fetched_ms[3] = now_ms()
        assert await ends_of(one) == [2, 14]
        one.kept.fetched_ms[14] = now_ms()
        assert await ends_of(one) == [2]
        await one.ask(rpcs.REPORT_END, ended(14))  # the node ends once more
        assert await ends_of(one) == [2, 14]

    run(test())


def test_the_reported_end_of_a_node_is_dropped_when_its_broker_registers_again() -> None:
    async def test() -> None:
        one = await node()
        one.plane.node.auto_commit = True
        await one.ask(rpcs.REPORT_END, ended(2))
        await one.plane.call(rpcs.REGISTER_BROKER, register(1))
        assert await ends_of(one) == [2]
        await asyncio.sleep(60)  # the session of broker 2 has ended
        reply = await one.plane.call(rpcs.REGISTER_BROKER, register(2, 1))
        assert reply.result.error == "NONE"
        assert await ends_of(one) == []

    run(test())


def test_the_number_and_the_size_of_reported_ends_are_limited() -> None:
    async def test() -> None:
        one = await node()
        observe(one, *range(1_000, 1_000 + ENDS_MAX + 5))
        for node_id in range(1_000, 1_000 + ENDS_MAX + 5):
            request = ended(node_id, "x" * 10_000)
            for number in range(1_000):
                request.end.directories.add(path=f"/{number}" + "y" * 10_000)
            await one.ask(rpcs.REPORT_END, request)
        ends = (await one.ask(rpcs.DESCRIBE_NODE, pb.DescribeNodeRequest())).ends
        assert [end.node_id for end in ends] == list(range(1_005, 1_005 + ENDS_MAX))
        assert {(len(end.cause), len(end.directories), len(end.directories[1].path)) for end in ends} == {
            (END_TEXT_MAX, END_DIRECTORIES_MAX, END_TEXT_MAX)
        }

    run(test())


def test_the_number_of_log_lines_for_reported_ends_is_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    lines: list[dict[str, Any]] = []
    logger = SimpleNamespace(warning=lambda event, **keys: lines.append({"event": event, **keys}))
    monkeypatch.setattr(reported_ends, "logger", logger)

    async def test() -> None:
        one = await node()
        for _ in range(1_000):
            await one.ask(rpcs.REPORT_END, ended(2))
            await one.ask(rpcs.REPORT_END, ended(1_000))
        assert len(lines) == reported_ends.LINES
        await asyncio.sleep(reported_ends.LINES_INTERVAL_S)
        await one.ask(rpcs.REPORT_END, ended(3))
        assert lines[-1] == {
            "event": "a node reports its end",
            "node": 3,
            "status": 7,
            "cause": "disk full",
            "lines_suppressed": 1_000 - reported_ends.LINES,
        }

    run(test())


@pytest.mark.parametrize("wrong", [ended(-1), ended(3, at_ms=-1), ended(3, at_ms=2**60), ended(3, status=256)])
def test_an_invalid_reported_end_is_refused(wrong: pb.ReportEndRequest) -> None:
    async def test() -> None:
        one = await node()
        assert (await one.ask(rpcs.REPORT_END, wrong)).result.error == "INVALID_REQUEST"
        assert not (await one.ask(rpcs.DESCRIBE_NODE, pb.DescribeNodeRequest())).ends

    run(test())
