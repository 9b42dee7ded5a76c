"""The judge of cluster runs: what it lets pass, and what it does not."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from random import Random
from types import SimpleNamespace
from typing import Any
from uuid import UUID

import pytest

from broker.log import LogKey
from metadata.codec import decode, encode
from metadata.image import ClusterImage
from metadata.records import Config, ConfigScope
from quorum.core import messages
from quorum.core.types import Batch
from quorumlog.client.records import NewRecord, build_batch
from quorumlog.wire.record_batch import Codec, patch
from simulation.cluster.history import Committed, History, Mark, batches_in
from simulation.cluster.metadata import Follower, MetadataWatch, Spot
from simulation.cluster.retention import Kept, Retention, StrayWatch
from simulation.kernel import network
from simulation.kernel.disk import SimulatedDisk

FORGETS_S = 2.0
NOW_MS = 1_000_000


def batch(base: int, *numbers: int) -> Committed:
    return Committed(base, base + len(numbers), 0, 0, tuple(Mark(1, number) for number in numbers))


@pytest.fixture
def history() -> History:
    found = History(LogKey(UUID(int=1), 0, 0), Spot("t", 0))
    assert found.add(batch(0, 0, 1), 0.0, FORGETS_S) is None
    return found


def test_committed_batches_leave_no_gap(history: History) -> None:
    assert "all before ends at 2" in str(history.add(batch(3, 2), 0.1, FORGETS_S))


def test_a_record_may_be_there_again_only_after_a_long_silence(history: History) -> None:
    assert "I22" in str(history.add(batch(2, 1), 1.9, FORGETS_S))
    assert history.add(batch(2, 1), 4.0, FORGETS_S) is None


def test_an_unclean_leader_may_begin_above_what_it_shares(history: History) -> None:
    history.cut_to(0)
    history.begin_at(5)
    assert (history.start, history.end) == (5, 5)
    assert history.add(batch(5, 2), 0.1, FORGETS_S) is None
    assert history.at(3) is None


def test_records_that_an_unclean_leader_had_deleted_before_it_led_are_unknown(history: History) -> None:
    history.begin_at(5)
    assert list(history.unknown) == [2, 3, 4]


def test_deletions_before_an_unclean_leader_is_heard_of_count_from_then_on(history: History) -> None:
    history.start_meanwhile = 2
    history.begin_at(0)
    assert history.start == 2


def test_a_rebuilt_quorum_may_lack_only_what_its_survivor_lacks() -> None:
    watch, image = MetadataWatch(check, frozenset(), Counter()), ClusterImage()
    follower = Follower(1, lambda: 3)
    batches = [config_batch(offset, "a") for offset in range(3)]
    for one in batches:
        image = image.apply(one.base_offset, decode(one.payload, one.base_offset), one.epoch)
        watch.applied(follower, one, image)

    assert watch.first_lacking(batches, 0) == 3
    assert watch.first_lacking(batches[:2], 0) == 2
    assert watch.first_lacking([batches[0], config_batch(1, "b"), batches[2]], 0) == 1
    assert watch.first_lacking(batches[2:], 2) == 3, "a snapshot holds what is below the start of its log"
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
    """Two segments of one batch each, as far as `Retention` looks."""

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
def test_retention_deletes_what_is_too_old_or_too_much(kept: Kept, ages_ms: tuple[int, int], allowed: bool) -> None:
    log: Any = Log(*ages_ms)
    assert log.segments[0].size == 69
    assert (Retention({"t": kept}).problem("t", log, 1, NOW_MS) is None) is allowed


def test_a_stray_is_not_deleted_early() -> None:
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


def test_compressed_batches_show_their_marks() -> None:
    data = build_batch([NewRecord(None, Mark(3, 4).value, NOW_MS, ())] * 40, Codec.GZIP)
    assert Mark(3, 4).value not in bytes(data)
    assert [one.marks for one in batches_in(bytes(data))] == [(Mark(3, 4),) * 40]


def test_a_message_that_changes_on_its_way_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    sender = messages.Sender("c", 0, messages.ReplicaKey(1, UUID(int=1)))
    request = messages.DescribeQuorum(sender)
    assert network._converted_request(request) == request
    other = messages.DescribeQuorum(messages.Sender("d", 0, messages.ReplicaKey(1, UUID(int=1))))
    monkeypatch.setattr(network.convert, "request_from_wire", lambda name, wire: (0, other))
    with pytest.raises(AssertionError, match="arrives as"):
        network._converted_request(request)


def test_a_byte_that_rots_changes_on_the_disk_and_in_memory() -> None:
    disk = SimulatedDisk(Random(1))
    file: Any = disk.open("logs/a/0.log", create=True)
    file.append(b"abcd")
    file.flushed = b"abc"
    file.rot(1, 1)
    assert (bytes(file.content), file.flushed) == (b"accd", b"acc")
    file.rot(3, 1)  # not on the disk yet
    assert (bytes(file.content), file.flushed) == (b"acce", b"acc")


def test_a_backup_puts_back_files_names_and_facts() -> None:
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
