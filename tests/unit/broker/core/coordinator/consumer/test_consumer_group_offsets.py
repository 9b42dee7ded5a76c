"""Groups of the newer protocol: commits, and offsets that are deleted or expire."""

from __future__ import annotations

import pytest

from broker.core.coordinator import group_requests as g
from broker.core.transactions import Marker, ProducerKey
from tests.unit.broker.core.coordinator.consumer.driver import (
    SESSION_MS,
    ConsumerClient,
    coordinator,
    joined,
)
from tests.unit.broker.core.coordinator.driver import GROUP


def test_a_member_commits_and_fetches_only_with_its_current_epoch() -> None:
    home = coordinator(sales=4)
    client = ConsumerClient(home, "m1")
    joined(home, client)
    assert client.commit(5) == "NONE"
    assert client.fetch() == "NONE"
    assert client.commit(6, epoch=0) == "STALE_MEMBER_EPOCH"
    assert client.fetch(epoch=0) == "STALE_MEMBER_EPOCH"
    stranger = ConsumerClient(home, "m9")
    assert stranger.commit(7) == "UNKNOWN_MEMBER_ID"
    assert stranger.fetch() == "UNKNOWN_MEMBER_ID"
    assert home.offsets() == {("sales", 0): 5}


def test_clients_that_are_not_members_commit_only_while_the_group_is_empty() -> None:
    home = coordinator(sales=4)
    client = ConsumerClient(home, "m1")
    joined(home, client)
    assert home.commit(g.OffsetToCommit("sales", 0, 5)) == ["UNKNOWN_MEMBER_ID"]
    client.leave()
    assert home.commit(g.OffsetToCommit("sales", 0, 5)) == ["NONE"]
    assert client.commit(7, epoch=1) == "UNKNOWN_MEMBER_ID"


def test_a_commit_in_a_request_version_without_member_epochs_is_refused() -> None:
    home = coordinator(sales=4)
    client = ConsumerClient(home, "m1")
    joined(home, client)
    request = g.OffsetCommit(GROUP, "m1", None, 1, (g.OffsetToCommit("sales", 0, 5),))
    assert [each.error.name for each in home.ask(request).results] == ["UNSUPPORTED_VERSION"]


@pytest.mark.parametrize(
    ("member_id", "epoch", "error"),
    [("m1", 0, "NONE"), ("m1", -1, "ILLEGAL_GENERATION"), ("m9", 0, "UNKNOWN_MEMBER_ID")],
)
def test_a_transactional_commit_is_accepted_only_for_a_member_and_its_current_epoch(
    member_id: str, epoch: int, error: str
) -> None:
    """TxnOffsetCommit has no errors for epochs, in any version.

    epoch: the difference from the member's epoch.
    """
    home = coordinator(sales=4)
    client = ConsumerClient(home, "m1")
    joined(home, client)
    commit = g.OffsetCommit(GROUP, member_id, None, client.epoch + epoch, (g.OffsetToCommit("sales", 0, 5),))
    assert [each.error.name for each in home.ask(g.TxnOffsetCommit(commit, ProducerKey(7, 0))).results] == [error]
    home.ask(g.EndOffsetTransaction(Marker(ProducerKey(7, 0), True, 0)))
    assert home.offsets() == ({("sales", 0): 5} if error == "NONE" else {})


def test_a_commit_with_an_epoch_for_a_missing_group_is_refused() -> None:
    home = coordinator(sales=4)
    assert ConsumerClient(home, "m1").commit(5, epoch=3) == "GROUP_ID_NOT_FOUND"


def test_offsets_of_subscribed_topics_are_not_deleted() -> None:
    home = coordinator(sales=4)
    client = ConsumerClient(home, "m1", (), regex="sal.*")
    joined(home, client)
    client.commit(5)
    delete = g.OffsetDelete(GROUP, (g.TopicPartitions("sales", (0,)), g.TopicPartitions("other", (0,))))
    results = home.ask(delete).results
    assert [each.error.name for each in results] == ["GROUP_SUBSCRIBED_TO_TOPIC", "NONE"]


def test_offsets_expire_after_the_group_became_empty() -> None:
    home = coordinator(sales=4)
    client = ConsumerClient(home, "m1")
    joined(home, client)
    client.commit(5)
    for _ in range(50):
        home.pass_time(SESSION_MS - 1)
        client.beat()
    client.leave()
    day_ms = 86_400_000
    home.pass_time(day_ms - 1_000_000)
    assert home.offsets() == {("sales", 0): 5}
    home.pass_time(2_000_000)
    assert home.offsets() == {}
    assert home.machine._groups == {}
