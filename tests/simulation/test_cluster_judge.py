"""The judge of cluster runs: the histories that it accepts, and the histories that it reports."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from random import Random
from types import SimpleNamespace
from typing import Any, cast
from uuid import UUID

import pytest

from broker.log import LogKey, PartitionLog
from metadata.codec import decode, encode
from metadata.image import ClusterImage, PartitionImage
from metadata.records import Config, ConfigScope, Replica
from quorum.core import messages
from quorum.core.types import Batch, LogEnd, ReplicaKey, Voter, VoterSet
from quorum.transport import convert
from quorumlog.client.producer import ACKS_ALL
from quorumlog.client.records import NewRecord, build_batch
from quorumlog.errors import CorruptStoreError
from quorumlog.wire.record_batch import Codec, patch
from simulation.cluster import compactions, deletions, replicas
from simulation.cluster.answers import AnswerWatch
from simulation.cluster.clients import Clients
from simulation.cluster.compaction import Compaction, Entry, KeyedRecords
from simulation.cluster.disks import DiskWatch
from simulation.cluster.elections import ElectionWatch, only_settled
from simulation.cluster.evidence import BrokerRun, Copy, Evidence
from simulation.cluster.groups import GroupWatch
from simulation.cluster.history import Committed, History, Mark, batches_in
from simulation.cluster.metadata import Follower, MetadataWatch, Spot
from simulation.cluster.orders import Orders
from simulation.cluster.replicas import ReplicaWatch
from simulation.cluster.retention import Kept, Retention, StrayWatch
from simulation.cluster.voters import VoterOrders
from simulation.cluster.world import ClusterWorld
from simulation.kernel import network
from simulation.kernel.disk import SimulatedDisk
from simulation.kernel.violation import Violation

FORGETS_S = 2.0
NOW_MS = 1_000_000


def batch(base: int, *numbers: int) -> Committed:
    return Committed(base, base + len(numbers), 0, 0, tuple(Mark(1, number) for number in numbers))


@pytest.fixture
def history() -> History:
    found = History(LogKey(UUID(int=1), 0, 0), Spot("t", 0))
    assert found.add(batch(0, 0, 1), 0.0, FORGETS_S) is None
    return found


def test_a_gap_between_committed_batches_is_reported(history: History) -> None:
    assert "the one before ends at 2" in str(history.add(batch(3, 2), 0.1, FORGETS_S))


def test_a_record_may_repeat_only_after_its_producer_expired(history: History) -> None:
    assert "I22" in str(history.add(batch(2, 1), 1.9, FORGETS_S))
    assert history.add(batch(2, 1), 4.0, FORGETS_S) is None


def test_records_acknowledged_without_an_offset_must_be_committed(
    history: History, monkeypatch: pytest.MonkeyPatch
) -> None:
    evidence = Evidence(frozenset(), {})
    monkeypatch.setattr(evidence, "named", lambda spot: [history])
    answers = AnswerWatch(evidence)
    answers.acknowledged_somewhere(history.spot, (Mark(1, 0), Mark(1, 1)))
    with pytest.raises(Violation, match=r"^I20: .* without an offset"):
        answers.acknowledged_somewhere(history.spot, (Mark(1, 1), Mark(1, 2)))
    history.unclean_epoch = 1
    answers.acknowledged_somewhere(history.spot, (Mark(1, 2),))


def answers_about(history: History, monkeypatch: pytest.MonkeyPatch) -> AnswerWatch:
    evidence = Evidence(frozenset(), {})
    monkeypatch.setattr(evidence, "named", lambda spot: [history])
    return AnswerWatch(evidence)


def test_an_acknowledgement_without_an_offset_is_checked_against_the_committed_records(
    history: History, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A leader returns no offset for a repeated batch if it no longer knows the batch's offset."""
    answers = answers_about(history, monkeypatch)
    world = SimpleNamespace(watch=SimpleNamespace(answers=answers), acknowledged=0, by_leader_only=[])
    clients = cast(Clients, SimpleNamespace(world=world))

    def sent(offset: int) -> asyncio.Future[int]:
        found: Any = SimpleNamespace(cancelled=lambda: False, exception=lambda: None, result=lambda: offset)
        return cast("asyncio.Future[int]", found)

    Clients._on_sent(clients, sent(-1), history.spot, (Mark(1, 1),), ACKS_ALL)
    with pytest.raises(Violation, match=r"^I20: .* without an offset"):
        Clients._on_sent(clients, sent(-1), history.spot, (Mark(1, 2),), ACKS_ALL)


@pytest.mark.parametrize("change", [{"marks": ()}, {"marks": (Mark(1, 0),)}, {"crc": 1}, {"leader_epoch": 1}])
def test_a_consumed_batch_that_differs_from_the_committed_one_is_reported(
    history: History, monkeypatch: pytest.MonkeyPatch, change: dict[str, Any]
) -> None:
    answers = answers_about(history, monkeypatch)
    answers.consumed_batch("r0", history.spot, batch(0, 0, 1))
    with pytest.raises(Violation, match=r"^I21: r0 receives .* which is not committed"):
        answers.consumed_batch("r0", history.spot, batch(0, 0, 1)._replace(**change))


def test_a_latest_offset_above_the_committed_records_is_reported(
    history: History, monkeypatch: pytest.MonkeyPatch
) -> None:
    answers = answers_about(history, monkeypatch)
    answers.listed_latest("r0", history.spot, 2)
    with pytest.raises(Violation, match=r"^I21: the latest offset of .* is 3 for r0, committed is 2"):
        answers.listed_latest("r0", history.spot, 3)


def test_an_unclean_leader_may_start_above_its_shared_history(history: History) -> None:
    history.cut_to(0)
    history.begin_at(5)
    assert (history.start, history.end) == (5, 5)
    assert history.add(batch(5, 2), 0.1, FORGETS_S) is None
    assert history.at(3) is None


def test_a_replica_may_truncate_committed_records_only_below_the_log_start_of_the_leader(
    history: History, monkeypatch: pytest.MonkeyPatch
) -> None:
    evidence = Evidence(frozenset(), {})
    monkeypatch.setattr(evidence, "history", lambda key: history)
    monkeypatch.setattr(replicas, "batches_of", lambda *_: [batch(0, 0, 1)])
    watch: Any = SimpleNamespace(_evidence=evidence)
    run: Any = SimpleNamespace(node_id=1, copies={})
    log: Any = SimpleNamespace(end_offset=2)
    with pytest.raises(Violation, match=r"^I20: 1 truncates "):
        ReplicaWatch._truncates(watch, run, history.key, log, 0)
    history.begin_at(2)
    ReplicaWatch._truncates(watch, run, history.key, log, 0)


def test_leaders_may_begin_above_the_committed_end_until_one_of_them_commits_more(history: History) -> None:
    """A leader deposed by an unclean election may have sent its watermark to several replicas."""
    evidence = Evidence(frozenset(), {})
    elections = ElectionWatch(evidence, DiskWatch(evidence), AnswerWatch(evidence))
    assert not elections.may_begin_above(history), "there was no unclean election"
    elections.note_begun(history)
    assert elections.may_begin_above(history)
    assert history.add(batch(history.end, 9), 0.1, FORGETS_S) is None
    assert not elections.may_begin_above(history)


def test_records_that_an_unclean_leader_had_deleted_before_it_led_are_unknown(history: History) -> None:
    history.begin_at(5)
    assert list(history.unknown) == [2, 3, 4]


def test_a_replica_that_kept_what_a_restored_backup_lacked_may_begin_where_retention_had_ended_before(
    history: History,
) -> None:
    watch = deletions.DeletionWatch(Evidence(frozenset(), {}), cast(Retention, None))
    run = cast(BrokerRun, SimpleNamespace(node_id=1))
    history.start = 2
    history.start_over(0, 0, 0)
    watch.check_start(run, history, 2, 5)
    for start, end in ((3, 5), (2, 1)):
        with pytest.raises(Violation, match=r"^I24: 1 has .* from \d on, retention has deleted up to 0"):
            watch.check_start(run, history, start, end)


@pytest.mark.parametrize(("damaged_at", "expected_end", "unread_end"), [(0, 4, 0), (2, 2, 4)])
def test_a_leader_with_a_damaged_log_extends_the_history_by_the_batches_that_can_be_read(
    history: History, monkeypatch: pytest.MonkeyPatch, damaged_at: int, expected_end: int, unread_end: int
) -> None:
    """The leader finds the damage only when it reads the batch, and commits meanwhile."""
    evidence = Evidence(frozenset(), {})
    evidence.damaged.add((1, history.key))
    watch = ReplicaWatch(evidence, *(cast(Any, SimpleNamespace()),) * 3, lambda: 0.1, FORGETS_S)

    def peeked(log: Any, offset: int, end: int) -> list[Committed]:
        if offset <= damaged_at:
            raise CorruptStoreError("damaged")
        return [batch(2, 2, 3)]

    monkeypatch.setattr(replicas, "peek", peeked)
    monkeypatch.setattr(replicas, "batches_in", lambda data, keyed: data)
    copy = Copy(cast(PartitionLog, SimpleNamespace(start_offset=0, end_offset=4)), 0)
    monkeypatch.setattr(watch._compacted, "reached", lambda *_: None)
    watch._compare(cast(BrokerRun, SimpleNamespace(node_id=1)), history, copy, 4)
    assert (history.end, history.unread_end, copy.compared) == (expected_end, unread_end, 4)


def test_a_partition_that_took_the_name_of_another_is_not_its_newest_state(
    history: History, monkeypatch: pytest.MonkeyPatch
) -> None:
    evidence = Evidence(frozenset(), {})
    created: Any = object()
    topic = SimpleNamespace(partition=lambda index: created)
    monkeypatch.setattr(evidence.metadata, "image", SimpleNamespace(topic=lambda name: topic))
    newest = history
    monkeypatch.setattr(evidence, "current", lambda spot: newest)
    assert evidence.partition(history) is created
    newest = History(LogKey(history.key.topic_id, 0, 7), history.spot)
    assert evidence.partition(history) is None


def test_a_log_start_raised_before_an_unclean_election_was_observed_stays_raised(history: History) -> None:
    history.start_meanwhile = 2
    history.begin_at(0)
    assert history.start == 2


def test_a_rebuilt_quorum_may_lack_only_records_that_its_survivor_lacks() -> None:
    watch, image = MetadataWatch(check, frozenset(), Counter()), ClusterImage()
    follower = Follower(1, lambda: 3)
    batches = [config_batch(offset, "a") for offset in range(3)]
    for one in batches:
        image = image.apply(one.base_offset, decode(one.payload, one.base_offset), one.epoch)
        watch.applied(follower, one, image)

    assert watch.first_lacking(batches, 0) == 3
    assert watch.first_lacking(batches[:2], 0) == 2
    assert watch.first_lacking([batches[0], config_batch(1, "b"), batches[2]], 0) == 1
    assert watch.first_lacking(batches[2:], 2) == 3, "a snapshot holds the records below the start of its log"
    assert [one.end_offset for one in watch.images_from(1)] == [1, 2, 3]

    after = watch.rebuilt(2)
    another = config_batch(2, "b")
    image = after.image.apply(2, decode(another.payload, 2), another.epoch)
    after.applied(Follower(2, lambda: 3, applied=2), another, image)
    assert watch.image.config(ConfigScope.CLUSTER, "")["key"] == "a"
    assert after.image.config(ConfigScope.CLUSTER, "")["key"] == "b"


def config_batch(offset: int, value: str) -> Batch:
    return Batch(offset, 1, 1, 0, encode([Config(ConfigScope.CLUSTER, "", "key", value)]))


def check(holds: bool, message: Callable[[], str]) -> None:
    assert holds, message()


class Log:
    """Two segments of one batch each, with the fields that `Retention` reads."""

    def __init__(self, *ages_ms: int) -> None:
        self.start_offset = 0
        self._batches = []
        self.segments = []
        for base, age_ms in enumerate(ages_ms):
            data = build_batch([NewRecord(None, b"x", NOW_MS - age_ms, ())])
            patch(data, base, 0, 0)
            self._batches.append(bytes(data))
            self.segments.append(SimpleNamespace(base_offset=base, end_offset=base + 1, size=len(data), _checked=None))
        self.size = sum(map(len, self._batches))
        self._reader = SimpleNamespace(_recent=None)

    def read(self, offset: int, max_bytes: int, end: int) -> bytes:
        return self._batches[offset]


@pytest.mark.parametrize(
    ("kept", "ages_ms", "allowed"),
    [
        (Kept(for_ms=100), (101, 0), True),
        (Kept(for_ms=100), (100, 0), False),
        (Kept(size=69), (0, 0), True),
        (Kept(size=70), (0, 0), False),
        (Kept(), (999_999, 0), False),
    ],
)
def test_retention_may_delete_old_or_excess_records(kept: Kept, ages_ms: tuple[int, int], allowed: bool) -> None:
    log: Any = Log(*ages_ms)
    assert log.segments[0].size == 69
    assert (Retention({"t": kept}).problem("t", log, 1, NOW_MS) is None) is allowed


def test_an_early_deletion_of_a_stray_log_is_reported() -> None:
    broken: list[str] = []
    now = [0.0]
    disk = SimulatedDisk(Random(1))
    StrayWatch(lambda holds, text: None if holds else broken.append(text()), lambda: now[0], 1.0).attach(disk)
    for name in ("a", "b"):
        disk.rename(f"logs/{name}", f"strays/{name}")
    now[0] = 0.9
    disk.remove_tree("strays/a")
    assert len(broken) == 1
    now[0] = 1.0
    disk.remove_tree("strays/b")
    assert len(broken) == 1


def test_marks_are_found_in_compressed_batches() -> None:
    data = build_batch([NewRecord(None, Mark(3, 4).value, NOW_MS, ())] * 40, Codec.GZIP)
    assert Mark(3, 4).value not in bytes(data)
    assert [one.marks for one in batches_in(bytes(data))] == [(Mark(3, 4),) * 40]


def test_a_message_changed_in_transit_is_detected(monkeypatch: pytest.MonkeyPatch) -> None:
    sender = messages.Sender("c", 0, ReplicaKey(1, UUID(int=1)))
    request = messages.DescribeQuorum(sender)
    assert network._converted_request(request) == request
    other = messages.DescribeQuorum(messages.Sender("d", 0, ReplicaKey(1, UUID(int=1))))
    monkeypatch.setattr(convert, "request_from_wire", lambda name, wire: (0, other))
    with pytest.raises(AssertionError, match="arrives as"):
        network._converted_request(request)


def test_bit_rot_changes_the_disk_and_the_cache() -> None:
    disk = SimulatedDisk(Random(1))
    file: Any = disk.open("logs/a/0.log", create=True)
    file.append(b"abcd")
    file.flushed = b"abc"
    file.rot(1, 1)
    assert (bytes(file.content), file.flushed) == (b"accd", b"acc")
    file.rot(3, 1)  # not on the disk yet
    assert (bytes(file.content), file.flushed) == (b"acce", b"acc")


def test_a_restored_backup_durably_replaces_all_files_and_names() -> None:
    disk = SimulatedDisk(Random(1))
    disk.make_dir("logs")
    disk.open("logs/a", create=True).append(b"old")
    backup = disk.image()
    disk.open("logs/a").append(b" and new")
    disk.open("logs/b", create=True)
    disk.restore(backup)
    disk.crash()  # all of it is durable
    assert disk.list("logs") == ["a"]
    assert disk.open("logs/a").pread(0, 100) == b"old"


def test_a_power_failure_loses_cached_writes_on_a_disk_that_the_last_process_could_not_open() -> None:
    key = LogKey(UUID(int=1), 0, 0)
    metadata = SimpleNamespace(image=SimpleNamespace(brokers={}))
    evidence = SimpleNamespace(metadata=metadata, is_caching=lambda key: True, unsynced=set(), check=check)
    watch = DiskWatch(cast(Evidence, evidence))

    def run(*logs: LogKey) -> BrokerRun:
        log = SimpleNamespace(end_offset=9, marks=SimpleNamespace(durable_offset=1), directory_id=UUID(int=2))
        opened = SimpleNamespace(logs=dict.fromkeys(logs, log), failed_disks={}, failures={})
        role = SimpleNamespace(lifecycle=None)
        return cast(
            BrokerRun, SimpleNamespace(role=role, recovered=True, context=SimpleNamespace(logs=opened), opened=())
        )

    watch.ended(run(key), 11, clean=False, power=False)
    assert evidence.unsynced == set()
    watch.ended(run(), 11, clean=False, power=True)
    assert evidence.unsynced == {(11, key)}


@pytest.mark.parametrize(("has_record", "is_left"), [("both", False), ("leader", False), ("none", True)])
def test_a_removal_after_the_loss_of_a_disk_may_leave_no_candidate(has_record: str, is_left: bool) -> None:
    """Voter 3 lost its disk, and leader 1 appended the removal of voter 2.

    The voters are then 1 and 3, so leader 1 has no majority without the lost disk.
    """
    keys = [ReplicaKey(number, UUID(int=number)) for number in (1, 2, 3)]
    before = VoterSet(tuple(Voter(key, f"n{key.node_id}:9093") for key in keys))
    after = VoterSet((before.voters[0], before.voters[2]))

    def host(key: ReplicaKey, has_it: bool) -> Any:
        history = SimpleNamespace(
            current=after if has_it else before,
            was_just_removed=lambda other, end: has_it and other == keys[1],
        )
        core = SimpleNamespace(
            key=key, history=history, high_watermark=5, log=SimpleNamespace(last=LogEnd(1, 5 + has_it))
        )
        return SimpleNamespace(plane=SimpleNamespace(node=SimpleNamespace(core=core)))

    hosts = {1: host(keys[0], has_record != "none"), 2: host(keys[1], has_record == "both")}
    changes = VoterOrders(cast(ClusterWorld, SimpleNamespace(hosts=hosts)), cast(Orders, None))
    assert changes.has_candidate() is is_left


def test_nodes_that_are_starting_at_the_end_do_not_count_as_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise many runs would end without their last checks, because often all nodes restart when the faults end."""
    hosts = {1: SimpleNamespace(plane=None), 2: SimpleNamespace(plane=None)}
    changes = VoterOrders(cast(ClusterWorld, SimpleNamespace(hosts=hosts)), cast(Orders, None))
    assert asyncio.run(changes.is_majority_left()), "no disk was lost"

    async def opened() -> bool:
        changes._has_lost_one = True
        monkeypatch.setattr(changes, "has_candidate", lambda: all(host.plane is not None for host in hosts.values()))
        left = asyncio.ensure_future(changes.is_majority_left())
        for host in hosts.values():
            await asyncio.sleep(0)
            host.plane = object()
        return await left

    assert asyncio.run(opened())


class Judged:
    """A `GroupWatch` and the violations that it reports."""

    def __init__(self) -> None:
        self.violations: list[str] = []
        self.watch = GroupWatch(self._check)

    def _check(self, holds: bool, text: Callable[[], str]) -> None:
        if not holds:
            self.violations.append(text())


def test_a_committed_offset_must_not_be_lower_than_an_acknowledged_one() -> None:
    judged = Judged()
    judged.watch.committed(0, 5, generation=1, newest=1)
    judged.watch.fetched(0, 6, least=5)
    assert not judged.violations
    judged.watch.fetched(0, 4, least=judged.watch.acknowledged[0])
    assert judged.violations == ["I30: offset 5 of partition 0 is committed, not 4"]


def test_a_commit_of_an_earlier_generation_must_be_refused() -> None:
    judged = Judged()
    judged.watch.joined("a", 1, [0])
    judged.watch.committed(0, 5, generation=1, newest=judged.watch.newest_generation)
    judged.watch.joined("b", 2, [0])
    judged.watch.committed(0, 6, generation=1, newest=1)  # this commit was sent before b joined
    assert not judged.violations
    judged.watch.committed(0, 7, generation=1, newest=judged.watch.newest_generation)
    assert len(judged.violations) == 1


def test_a_second_owner_of_a_partition_in_one_generation_is_reported() -> None:
    judged = Judged()
    judged.watch.joined("a", 1, [0])
    judged.watch.joined("a", 1, [0])
    judged.watch.joined("b", 2, [0])
    assert not judged.violations
    judged.watch.joined("c", 2, [0])
    assert judged.violations == ["I31: partition 0 belongs to b and c in generation 2"]


def entry(key: bytes, value: bytes | None, at_ms: int = 0) -> Entry:
    return Entry(key, value, at_ms, ())


def keyed_batch(base: int, *entries: Entry | None, epoch: int = 0) -> Committed:
    """Return a batch.  An entry is None if compaction has removed the record."""
    present = tuple((base + place, one) for place, one in enumerate(entries) if one is not None)
    return Committed(base, base + len(entries), epoch, 0, (None,) * len(entries), present)


@pytest.fixture
def compacted() -> History:
    """Key a at 0 and 1, key b at 2, whose tombstone is at 3; committed at 10 s."""
    records = Compaction(keys=2, delete_retention_ms=1000).records(exact_clocks=True, clock_rate_max=1.0)
    found = History(LogKey(UUID(int=1), 0, 0), Spot("t", 0), records)
    whole = keyed_batch(0, entry(b"a", b"1"), entry(b"a", b"2"), entry(b"b", b"3"), entry(b"b", None))
    assert found.add(whole, 10.0, FORGETS_S) is None
    return found


def test_a_replica_may_lack_records_that_a_later_one_of_their_key_replaces(compacted: History) -> None:
    less = keyed_batch(0, None, entry(b"a", b"2"), None, entry(b"b", None))
    assert compacted.has(less)
    assert compacted.lost(less, 10.0, NOW_MS) is None


def test_a_replica_that_lacks_the_last_value_of_a_key_is_reported(compacted: History) -> None:
    less = keyed_batch(0, entry(b"a", b"1"), None, None, entry(b"b", None))
    assert "the record at 1 is the last one of key b'a'" in str(compacted.lost(less, 99.0, NOW_MS))


def test_a_tombstone_that_is_removed_before_the_end_of_its_retention_is_reported(compacted: History) -> None:
    less = keyed_batch(0, None, entry(b"a", b"2"), None, None)
    assert "the tombstone at 3 was committed 0.900 s ago" in str(compacted.lost(less, 10.9, NOW_MS))
    assert compacted.lost(less, 11.0, NOW_MS) is None


def test_a_record_that_is_compacted_before_its_minimum_lag_is_reported() -> None:
    records = Compaction(keys=1, min_lag_ms=400).records(exact_clocks=True, clock_rate_max=1.0)
    records.add(keyed_batch(0, entry(b"a", b"1", NOW_MS), entry(b"a", b"2", NOW_MS)), 0.0)
    assert "is 399 ms old" in str(records.lost([0], 0.4, NOW_MS + 399))
    assert records.lost([0], 0.4, NOW_MS + 400) is None


def test_a_compacted_batch_with_other_records_or_another_epoch_is_not_part_of_the_history(compacted: History) -> None:
    assert not compacted.has(keyed_batch(0, None, entry(b"a", b"other"), None, None))
    assert not compacted.has(keyed_batch(0, None, entry(b"a", b"2"), None, None, epoch=1))
    assert not compacted.has(keyed_batch(3, entry(b"b", None), None)), "it ends after the committed records"


def test_a_compacted_batch_may_reach_above_the_end_only_after_an_unclean_election(compacted: History) -> None:
    compacted.cut_to(0)
    assert compacted.add(keyed_batch(0, entry(b"a", b"1")), 10.0, FORGETS_S) is None
    reaching = keyed_batch(0, entry(b"a", b"1"), None, entry(b"b", b"3"))
    assert compacted.reach(reaching, 10.0, NOW_MS) is None
    assert compacted.end == 1, "nothing was lost"
    compacted.unclean_epoch = 3
    assert compacted.reach(keyed_batch(0, entry(b"a", b"other"), None, None), 10.0, NOW_MS) is None
    assert compacted.end == 1, "it has another record"
    assert compacted.reach(keyed_batch(0, entry(b"a", b"1"), None, epoch=1), 10.0, NOW_MS) is None
    assert compacted.end == 1, "it has another epoch"
    assert compacted.reach(reaching, 10.0, NOW_MS) is None
    assert compacted.end == 0
    assert compacted.add(reaching, 10.0, FORGETS_S) is None


@pytest.mark.parametrize(("end", "start"), [(6, 3), (2, 2)])
def test_the_log_start_stays_raised_if_a_merged_batch_of_an_unclean_leader_begins_below_it(
    compacted: History, end: int, start: int
) -> None:
    """end: the end of the leader's log.  A follower may begin at 3, but not above the end of its leader."""
    compacted.start = 3
    assert compacted.start_over(0, 0, end) == 0, "its records have no marks"
    assert compacted.start == start


def test_a_batch_that_reaches_above_the_end_and_lacks_the_last_value_of_a_key_is_reported(compacted: History) -> None:
    compacted.unclean_epoch = 3
    reaching = keyed_batch(0, None, None, None, entry(b"b", None), entry(b"b", b"5"))
    assert "the record at 1 is the last one of key b'a'" in str(compacted.reach(reaching, 99.0, NOW_MS))


def test_a_value_that_is_found_again_after_its_tombstone_was_removed_is_reported(compacted: History) -> None:
    records = compacted.records
    assert records is not None
    left = [(1, entry(b"a", b"2")), (2, entry(b"b", b"3"))]
    assert "key b'b' has the value of offset 2 again" in str(records.outlived(left, 4, had={3}))
    assert records.outlived(left, 4, had=set()) is None, "it was fetched after the retention of the tombstone"
    assert records.outlived(left, 3, had={3}) is None, "the tombstone is above the records that are compared"
    assert records.outlived([*left, (3, entry(b"b", None))], 4, had={3}) is None


@pytest.mark.parametrize(("end", "is_known"), [(4, True), (3, False)])
def test_a_log_that_is_opened_without_its_tail_may_lack_the_tombstones_of_the_tail(
    compacted: History, monkeypatch: pytest.MonkeyPatch, end: int, is_known: bool
) -> None:
    """The disk was restored from a backup, or lost data that was not synced.

    The replica fetches the tail again, in the state that the tail has by then.
    """
    evidence = Evidence(frozenset(), {})
    monkeypatch.setattr(evidence, "history", lambda key: compacted)
    watch = ReplicaWatch(evidence, *(cast(Any, SimpleNamespace(opened=lambda *_: None)),) * 3, lambda: 20.0, FORGETS_S)

    def opened(end: int) -> tuple[BrokerRun, Any]:
        log: Any = SimpleNamespace(
            key=compacted.key, directory_id=UUID(int=2), start_offset=0, end_offset=end, append_as_leader=None,
            truncate_to=None, restart_at=None, advance_start_offset=None, compaction=SimpleNamespace(swap=None),
        )  # fmt: skip
        context = SimpleNamespace(logs=SimpleNamespace(logs={log.key: log}))
        role = SimpleNamespace(context=context, _sources=SimpleNamespace(wall_ms=lambda: NOW_MS))
        run = BrokerRun(1, cast(Any, role))
        watch.recovered(run)
        return run, log

    whole = keyed_batch(0, None, entry(b"a", b"2"), entry(b"b", b"3"), entry(b"b", None))
    run, log = opened(4)
    watch._compacted.compared(run, compacted, log, whole)

    run, log = opened(end)
    left = keyed_batch(0, None, entry(b"a", b"2"), entry(b"b", b"3"), None)
    monkeypatch.setattr(compactions, "batches_of", lambda *_, **__: [left])
    if is_known:
        with pytest.raises(Violation, match="key b'b' has the value of offset 2 again"):
            watch._compacted.read_whole(run, compacted, log, 4)
    else:
        watch._compacted.read_whole(run, compacted, log, 4)


class CompactedReplica:
    """A replica of the fixture `compacted`, with the values of keys a and b, and then the tombstone of b.

    present: its batches, by which a test compacts it.
    """

    def __init__(self, compacted: History, monkeypatch: pytest.MonkeyPatch) -> None:
        self.history = compacted
        self.log = cast(Any, SimpleNamespace(key=compacted.key, directory_id=UUID(int=2), start_offset=0))
        self.run = BrokerRun(1, cast(Any, SimpleNamespace(_sources=SimpleNamespace(wall_ms=lambda: NOW_MS))))
        self.watch = compactions.CompactionWatch(Evidence(frozenset(), {}), lambda: 20.0)
        self.present = [
            keyed_batch(0, None, entry(b"a", b"2"), entry(b"b", b"3"), None),
            keyed_batch(3, entry(b"b", None)),
        ]
        self.whole_reads = 0
        monkeypatch.setattr(compactions, "batches_of", self._batches_of)
        whole = keyed_batch(0, None, entry(b"a", b"2"), entry(b"b", b"3"), entry(b"b", None))
        self.watch.compared(self.run, compacted, self.log, whole)

    def _batches_of(self, _: Any, start: int, end: int, keyed: bool) -> list[Committed]:
        self.whole_reads += start == 0 and end == 4
        return [batch for batch in self.present if start <= batch.base_offset < end]

    def swap(self, changed: range, *batches: Committed) -> None:
        self.present = [*(one for one in self.present if one.base_offset not in changed), *batches]
        self.watch.swapped(self.run, self.history, self.log, 4, changed)


@pytest.fixture
def replica(compacted: History, monkeypatch: pytest.MonkeyPatch) -> CompactedReplica:
    return CompactedReplica(compacted, monkeypatch)


def test_a_compaction_that_removes_a_tombstone_and_leaves_an_older_value_elsewhere_is_reported(
    replica: CompactedReplica,
) -> None:
    with pytest.raises(Violation, match="key b'b' has the value of offset 2 again"):
        replica.swap(range(3, 4), keyed_batch(3, None))


def test_a_compaction_that_leaves_an_older_value_after_its_tombstone_was_removed_is_reported(
    replica: CompactedReplica,
) -> None:
    replica.present[0] = keyed_batch(0, None, entry(b"a", b"2"), None)
    replica.swap(range(3, 4), keyed_batch(3, None))
    with pytest.raises(Violation, match="key b'b' has the value of offset 2 again"):
        replica.swap(range(3), keyed_batch(0, None, None, entry(b"b", b"3")))


def test_the_whole_replica_is_read_only_after_compactions_that_may_contradict_its_tombstones(
    replica: CompactedReplica,
) -> None:
    replica.swap(range(3), keyed_batch(0, None, entry(b"a", b"2"), None))
    assert replica.whole_reads == 0
    replica.swap(range(3, 4), keyed_batch(3, None))
    assert replica.whole_reads == 1
    replica.swap(range(3, 4), keyed_batch(3, None))
    assert replica.whole_reads == 1


def test_a_compacted_segment_above_the_compared_records_does_not_count_as_compared(
    compacted: History, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A follower that has just started is compared when its watermark moves; compaction may come first."""
    evidence = Evidence(frozenset(), {})
    monkeypatch.setattr(evidence, "history", lambda key: compacted)
    watch = ReplicaWatch(evidence, *(cast(Any, SimpleNamespace(opened=lambda *_: None)),) * 3, lambda: 20.0, FORGETS_S)
    log: Any = SimpleNamespace(start_offset=0, end_offset=4)
    copy = Copy(log, log.start_offset)
    monkeypatch.setattr(watch._compacted, "swapped", lambda *_: None)
    watch._read_again(cast(BrokerRun, None), compacted.key, copy, range(2, 4))
    assert copy.compared == 0


def test_records_that_an_unclean_leader_had_compacted_are_not_compared() -> None:
    history = History(LogKey(UUID(int=1), 0, 0), Spot("t", 0), KeyedRecords(0.0, 0))
    assert history.add(keyed_batch(0, None, entry(b"a", b"2")), 0.0, FORGETS_S) is None
    assert history.has(keyed_batch(0, entry(b"a", b"1"), entry(b"a", b"2")))


def test_a_deposed_leader_may_compact_records_that_it_has_committed_itself(compacted: History) -> None:
    less = keyed_batch(0, entry(b"a", b"1"), None, None, entry(b"b", None))
    assert compacted.records is not None
    compacted.records.note(((4, entry(b"a", b"of the deposed leader")),), 10.0)
    assert compacted.lost(less, 10.0, NOW_MS) is None


@pytest.mark.parametrize(("tombstone", "is_kept"), [(entry(b"c", None, 1), False), (entry(b"c", None, 2), True)])
def test_the_retention_of_a_tombstone_begins_when_a_deposed_leader_commits_it(
    compacted: History, tombstone: Entry, is_kept: bool
) -> None:
    """The deposed leader leads again, so that its records become part of the history."""
    assert compacted.records is not None
    compacted.records.note(((4, entry(b"c", None, 1)),), 20.0)
    assert compacted.add(keyed_batch(4, tombstone), 25.0, FORGETS_S) is None
    problem = compacted.lost(keyed_batch(4, None), 25.5, NOW_MS)
    assert (problem is not None) == is_kept, problem


@pytest.mark.parametrize(
    ("batches", "expected"),
    [
        ([keyed_batch(0, None, None), keyed_batch(2, None), keyed_batch(3, entry(b"x", b"1"))], True),
        ([keyed_batch(0, None, None, None), keyed_batch(3, entry(b"x", b"1"))], True),
        ([keyed_batch(0, None, None, None, None, None)], False),
        ([keyed_batch(0, None, None)], False),
        ([], False),
    ],
    ids=["batches end there", "one batch ends there", "a batch that is not committed spans it", "damage", "unreadable"],
)
def test_a_replica_deletes_a_part_of_the_history_only_if_all_of_it_is_found(
    batches: list[Committed], expected: bool, compacted: History, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Seed 200006409: in a replica of a cut history, compaction had merged deleted and later records into one batch."""
    monkeypatch.setattr(deletions, "batches_of", lambda *_: iter(batches))
    log = cast("PartitionLog", SimpleNamespace(start_offset=0, end_offset=5))
    assert deletions._is_part_of(compacted, log, 3) is expected


def test_a_replica_that_a_reassignment_adds_does_not_end_the_exemption_of_the_only_settled_replica() -> None:
    """Seed 200007238: the reassignment began between the power failure and the election of the only replica."""
    growing = PartitionImage(0, 0, (Replica(3), Replica(1)), (1,), adding=(3,), removing=(1,))
    assert only_settled(growing) == 1
    assert only_settled(PartitionImage(0, 0, (Replica(3), Replica(1)), (1,))) is None


def test_marks_of_a_compacted_batch_are_at_their_offsets() -> None:
    now_ms = NOW_MS
    data = build_batch(
        [NewRecord(b"k", Mark(3, 4).value, now_ms, ()), NewRecord(b"k", None, now_ms, (("mark", Mark(3, 5).value),))]
    )
    (found,) = batches_in(bytes(data), keyed=True)
    assert found.marks == (Mark(3, 4), Mark(3, 5))
    assert [one.value for _, one in found.entries] == [Mark(3, 4).value, None]
