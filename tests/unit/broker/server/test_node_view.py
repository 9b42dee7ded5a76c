"""The state that a broker reports: the metadata that it applied, and its replicas."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast
from uuid import UUID

from broker.coordinator.dead_letters import Failing
from broker.core.coordinator.share.states import ShareKey
from broker.log import LogKey, LogManager
from broker.log.cleaner import CleanerLimits, LogCleaner, Uncleanable
from broker.log.cleaning.ports import LocalWorker
from broker.replica.progress import BATCHES_KEPT, AppliedBatches, Progress
from broker.replica.replica import Replica
from broker.server.node_view import NodeView
from metadata.image import ClusterImage, PartitionImage
from metadata.records import Replica as AssignedReplica
from quorumlog.wire.v1 import node_pb2 as pb


class Clock:
    def __init__(self) -> None:
        self.now = 1000

    def __call__(self) -> int:
        return self.now


def times(applied: AppliedBatches, from_offset: int = 0) -> list[tuple[int, int, int]]:
    return [(each.end_offset, each.received_ms, each.completed_ms) for each in applied.since(from_offset)]


def test_batches_are_received_and_then_applied_together() -> None:
    clock = Clock()
    applied = AppliedBatches(clock)
    applied.received(3)
    clock.now = 1005
    applied.received(7)
    assert times(applied) == [(3, 1000, 0), (7, 1005, 0)]
    clock.now = 1020
    applied.completed(5)
    assert times(applied) == [(3, 1000, 1020), (7, 1005, 0)]
    clock.now = 1030
    applied.completed(7)
    assert times(applied) == [(3, 1000, 1020), (7, 1005, 1030)]
    assert times(applied, 3) == [(7, 1005, 1030)]
    assert times(applied, 7) == []
    assert applied.kept_from == 0


def test_the_number_of_kept_batches_is_limited() -> None:
    applied = AppliedBatches(Clock())
    for end in range(1, BATCHES_KEPT + 11):
        applied.received(end)
        applied.completed(end)
    assert applied.kept_from == 10
    assert len(applied.since(0)) == BATCHES_KEPT
    assert times(applied)[0][0] == 11
    for end in range(1, BATCHES_KEPT + 4):
        applied.received(100_000 + end)
    assert applied.kept_from == 100_003
    assert sum(each.completed_ms == 0 for each in applied.since(0)) == BATCHES_KEPT


def test_batches_before_the_start_or_within_a_snapshot_are_not_listed() -> None:
    applied = AppliedBatches(Clock())
    applied.begin(40)
    assert (applied.kept_from, applied.since(0)) == (40, [])
    applied.received(43)
    applied.completed(43)
    applied.begin(900)
    assert applied.kept_from == 900
    assert times(applied) == [(43, 1000, 1000)]


class Table(list[Replica]):
    """Replaces the replica table."""

    context: Any


def hosted(topic: str, index: int, *, role: str = "", offline: str = "") -> Replica:
    partition = PartitionImage(index, 5, (AssignedReplica(1),), (1,), leader=1)
    made = Replica(cast(Any, None), LogKey(UUID(int=7), index, 5), UUID(int=9), topic, partition)
    log = SimpleNamespace(
        start_offset=1, end_offset=9, flushed_offset=8, high_watermark=7, size=640, directory_id=UUID(int=1)
    )
    made.log = None if offline else cast(Any, log)
    made.offline = offline
    if role:
        setattr(made, role, cast(Any, object()))
        made.role_epoch = 4
    return made


async def test_replicas_report_their_state_and_directory() -> None:
    all_of_them = [
        hosted("b", 0, offline="checksum of batch 3"),
        hosted("a", 10, role="follower"),
        hosted("a", 2, role="leader"),
        hosted("a", 3),
    ]
    failed = {UUID(int=2): "full", UUID(int=3): "gone"}
    table = Table(all_of_them)
    logs = {LogKey(UUID(int=9), number, 0): SimpleNamespace(topic="a") for number in range(30)}
    table.context = SimpleNamespace(logs=SimpleNamespace(failed_disks=failed, get=logs.get))
    cleaner = LogCleaner(LogManager([]), LocalWorker(), CleanerLimits(), lambda: 0)
    view = NodeView(
        cast(Any, table),
        {UUID(int=1): "/a", UUID(int=2): "/b"},
        AppliedBatches(Clock()),
        Progress(9, 7, 2),
        cleaner,
        {},
    )
    assert view.compaction() == pb.Compaction()
    for key in logs:
        cleaner.uncleanable[key] = Uncleanable(f"cause {key.index}", 0, is_final=key.index > 5)
    compaction = view.compaction()
    assert compaction.uncleanable_count == 30
    assert [one.index for one in compaction.uncleanable] == list(range(6, 26))
    assert (compaction.uncleanable[0].cause, compaction.uncleanable[0].is_final) == ("cause 6", True)
    assert view.progress() == (7, 2)
    described = await view.describe_replicas(())
    assert [(each.topic, each.index, each.state) for each in described] == [
        ("a", 2, "leader"), ("a", 3, "idle"), ("a", 10, "follower"), ("b", 0, "offline"),
    ]  # fmt: skip
    leader, offline = described[0], described[3]
    assert (leader.start_offset, leader.end_offset, leader.flushed_offset, leader.high_watermark) == (1, 9, 8, 7)
    assert (leader.bytes, leader.directory, leader.leader_epoch, leader.topic_id) == (640, "/a", 4, UUID(int=9).bytes)
    assert (offline.problem, offline.end_offset, offline.directory) == ("checksum of batch 3", 0, "")
    assert [each.topic for each in await view.describe_replicas(["b"])] == ["b"]
    assert await view.describe_replicas(["no"]) == []
    assert view.failed_directories() == {"/b": "full", str(UUID(int=3)): "gone"}


async def test_the_dead_letters_that_have_failed_for_longest_are_listed() -> None:
    context = SimpleNamespace(logs=None, cluster=SimpleNamespace(newest=ClusterImage()))
    table = Table()
    table.context = context
    keys = [ShareKey("g", UUID(int=7), number) for number in range(30)]
    failing = {key: Failing("dlq.t", f"cause {key.partition}", 100 - key.partition) for key in keys}
    cleaner = LogCleaner(LogManager([]), LocalWorker(), CleanerLimits(), lambda: 0)
    view = NodeView(cast(Any, table), {}, AppliedBatches(Clock()), Progress(9, 7, 2), cleaner, failing)
    letters = view.dead_letters()
    assert letters.failing_count == 30
    assert [each.index for each in letters.failing] == list(range(29, 9, -1))
    first = letters.failing[0]
    assert (first.group, first.topic, first.dead_letter_topic) == ("g", str(UUID(int=7)), "dlq.t")
    assert (first.cause, first.since_ms) == ("cause 29", 71)
