"""The judge of the cluster's metadata: elections, in-sync replicas, and the limits under which leaders commit."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any, cast
from uuid import UUID

import pytest
from msgspec.structs import replace

from broker.log import LogKey
from metadata.image import BrokerImage, ClusterImage, PartitionImage
from metadata.records import Config, ConfigScope, Partition, Reason, Replica, Topic
from simulation.cluster import metadata
from simulation.cluster.evidence import BrokerRun, Evidence
from simulation.cluster.history import History
from simulation.cluster.metadata import MetadataWatch, Spot
from simulation.cluster.replicas import ReplicaWatch

DIRECTORY = UUID(int=9)
TOPIC = UUID(int=1)
KEY = LogKey(TOPIC, 0, 0)


def check(holds: bool, message: Callable[[], str]) -> None:
    assert holds, message()


@pytest.fixture
def watch() -> MetadataWatch:
    return MetadataWatch(check, frozenset({"loose"}), Counter())


def brokers(*active: int, fenced: tuple[int, ...] = ()) -> Any:
    made = [
        BrokerImage(one, one, UUID(int=one), (), None, (DIRECTORY,), fenced=one in fenced) for one in (*active, *fenced)
    ]
    return SimpleNamespace(brokers={one.broker_id: one for one in made})


def partition(isr: tuple[int, ...], elr: tuple[int, ...] = (), leader: int = -1, epoch: int = 0) -> PartitionImage:
    replicas = tuple([Replica(one, DIRECTORY) for one in (1, 2, 3)])
    return PartitionImage(0, 0, replicas, isr, elr, leader=leader, leader_epoch=epoch, partition_epoch=epoch)


def topic(name: str) -> Any:
    return SimpleNamespace(name=name, topic_id=TOPIC)


@pytest.mark.parametrize(
    ("image", "isr", "elr", "is_allowed"),
    [
        (brokers(3, fenced=(1, 2)), (1,), (2,), True),
        (brokers(1, 3, fenced=(2,)), (1,), (2,), False),
        (brokers(2, 3, fenced=(1,)), (1,), (2,), False),
        (brokers(3, fenced=(1, 2)), (), (2,), True),
    ],
)
def test_an_unclean_election_is_permitted_only_if_no_member_of_isr_or_elr_can_lead(
    watch: MetadataWatch, image: Any, isr: tuple[int, ...], elr: tuple[int, ...], is_allowed: bool
) -> None:
    """Even a topic that permits unclean elections loses records only if no replica with all of them can lead."""
    old, new = partition(isr, elr), partition((3,), leader=3, epoch=1)
    if is_allowed:
        watch._judge_election(image, topic("loose"), old, new, Reason.UNCLEAN_ELECTION, KEY)
        return
    with pytest.raises(AssertionError, match=r"^I20: an unclean election of loose-0, but \[\d\] can lead"):
        watch._judge_election(image, topic("loose"), old, new, Reason.UNCLEAN_ELECTION, KEY)


def test_a_replica_joins_the_isr_only_by_a_request_of_its_leader_or_its_own_election(watch: MetadataWatch) -> None:
    watch._judge_growth("t-0", partition((1,), (2,)), partition((2,), (1,), leader=2), Reason.BROKER_UNFENCED)
    watch._judge_growth("t-0", partition((1,)), partition((1, 2), leader=1), Reason.ISR_EXPAND)
    with pytest.raises(AssertionError, match=r"^I18: \[3\] join the isr of t-0, and no leader asked for it"):
        watch._judge_growth("t-0", partition((1,)), partition((1, 3), leader=1), Reason.BROKER_UNFENCED)


@pytest.mark.parametrize(("isr", "elr"), [((1,), ()), ((), (1,)), ((1,), (2,))])
def test_a_change_that_drops_the_last_members_of_isr_and_elr_is_reported(
    watch: MetadataWatch, monkeypatch: pytest.MonkeyPatch, isr: tuple[int, ...], elr: tuple[int, ...]
) -> None:
    before, after = brokers(1, 2), brokers(1, 2)
    least = {"before": 2, "after": 2}
    monkeypatch.setattr(metadata, "min_isr_of", lambda image, _: least["before" if image is before else "after"])
    old, new = partition(isr, elr), replace(partition(()), partition_epoch=1)
    with pytest.raises(AssertionError, match=r"^I18: t-0 drops \d, which has all committed records"):
        watch._judge_last(before, after, TOPIC, topic("t"), old, new)
    if not isr:  # the ELR was filled under another min.insync.replicas
        least["after"] = 1
        watch._judge_last(before, after, TOPIC, topic("t"), old, new)


def test_a_rebuilt_quorum_has_the_checks_of_the_quorum_before(watch: MetadataWatch) -> None:
    """Otherwise nobody checks, from then on, that a replica which joins an ISR has all committed records."""
    watch.on_joined = watch.on_elected = watch.on_unclean = watch.on_epoch = cast(Any, lambda *_: None)
    watch.has_crashed, watch.caching = lambda _: True, frozenset({"cached"})
    after = watch.rebuilt(0)
    names = ("on_joined", "on_elected", "on_unclean", "on_epoch", "has_crashed", "caching", "supported_by", "proposals")
    assert [name for name in names if getattr(after, name) != getattr(watch, name)] == []


def test_a_leader_is_judged_by_the_lowest_min_isr_that_it_may_know(watch: MetadataWatch) -> None:
    image = ClusterImage()
    records: list[Any] = [
        Topic(topic_id=TOPIC, name="t"),
        Partition(TOPIC, 0, (Replica(1), Replica(2)), (1, 2), leader=1),
    ]
    offset = 0
    for added in (
        records,
        *([Config(ConfigScope.TOPIC, TOPIC.hex, "min.insync.replicas", one)] for one in ("2", "1", "2")),
    ):
        image = image.apply(offset, added, 1)
        watch._note_min_isrs(image)
        offset = image.end_offset
    assert watch.least_min_isr(TOPIC, 3, 3) == 2
    assert watch.least_min_isr(TOPIC, 3, 5) == 1
    assert watch.least_min_isr(TOPIC, 5, 5) == 2
    assert watch.least_min_isr(UUID(int=7), 0, 5) == 1


def test_a_leader_that_commits_under_an_old_min_isr_is_reported(
    watch: MetadataWatch, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The check must not rely on the limit that the leader itself uses."""
    evidence = SimpleNamespace(metadata=watch, check=check)
    judge = ReplicaWatch(cast(Evidence, evidence), *cast(Any, (None,) * 5))
    monkeypatch.setattr(judge, "_check_on_disks", lambda *_: None)
    monkeypatch.setattr(watch, "least_min_isr", lambda topic_id, first, last: 2)
    at = SimpleNamespace(end_offset=4)
    run = SimpleNamespace(context=SimpleNamespace(cluster=SimpleNamespace(applied=at, newest=at)))
    replica = SimpleNamespace(topic_id=TOPIC, image=partition((1,)))
    leader = SimpleNamespace(isr=(1,), high_watermark=5, limits=SimpleNamespace(min_isr=1))
    with pytest.raises(AssertionError, match=r"^I19: t-0 is committed up to 5 by isr \(1,\), which needs 2"):
        judge._check_replicated(cast(BrokerRun, run), cast(Any, replica), cast(Any, leader), History(KEY, Spot("t", 0)))


@pytest.mark.parametrize(
    ("isr", "adding", "is_allowed"), [((1, 2), (3,), True), ((1, 2, 3), (3,), False), ((1,), (), False)]
)
def test_a_leader_with_an_old_image_may_commit_without_a_member_that_is_added_anew(
    isr: tuple[int, ...], adding: tuple[int, ...], is_allowed: bool
) -> None:
    """Broker 3 was removed from the partition meanwhile and added again, so its log is empty."""
    newest = replace(partition(isr), adding=adding)
    evidence = SimpleNamespace(check=check, runs={}, partition=lambda history: newest)
    disks = SimpleNamespace(durable_end=lambda broker_id, _: 0 if broker_id == 3 else 5, lost_end=lambda *_: 0)
    judge = ReplicaWatch(cast(Evidence, evidence), cast(Any, disks), *cast(Any, (None,) * 4))
    leader, replica = SimpleNamespace(isr=(1, 2, 3), high_watermark=5), SimpleNamespace(key=KEY)
    with nullcontext() if is_allowed else pytest.raises(AssertionError, match="3 of the isr has 0 on its disk"):
        judge._check_on_disks(*cast(Any, (None, replica, leader, History(KEY, Spot("t", 0)))))
