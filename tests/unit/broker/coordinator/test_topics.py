"""Topics as coordinators see them: the matches and the cost of regular expressions."""

from __future__ import annotations

from uuid import UUID

import pytest

from broker.coordinator import topics
from broker.coordinator.topics import ImageTopics
from broker.core.coordinator.consumer.requests import Topic
from broker.replica.cluster_view import ClusterView
from metadata.records import Partition, Record, RemoveTopic, Replica
from metadata.records import Topic as TopicRecord

SALES, OTHER = UUID(int=1), UUID(int=2)


class Bench:
    def __init__(self) -> None:
        self.cluster = ClusterView(1)
        self.topics = ImageTopics(self.cluster)

    def apply(self, *records: Record) -> None:
        image = self.cluster.newest
        self.cluster.newest = image.apply(image.end_offset, records)
        self.topics.changed()

    def create(self, name: str, topic_id: UUID) -> None:
        self.apply(TopicRecord(topic_id, name))


@pytest.fixture
def bench() -> Bench:
    bench = Bench()
    bench.create("sales", SALES)
    bench.create("resales", OTHER)
    bench.create("__consumer_offsets", UUID(int=3))
    return bench


def test_a_regular_expression_matches_whole_names(bench: Bench) -> None:
    assert bench.topics.matching("sales") == ["sales"]
    assert bench.topics.matching("^sales$") == ["sales"]
    assert bench.topics.matching(".*sales") == ["resales", "sales"]
    assert bench.topics.matching("nothing") == []


def test_internal_topics_do_not_match(bench: Bench) -> None:
    assert bench.topics.matching(".*") == ["resales", "sales"]


def test_no_offset_is_committed_to_a_recreated_topic_before_this_broker_has_applied_its_creation(bench: Bench) -> None:
    """The next coordinator knows everything that this broker has applied, but perhaps not the newest metadata."""
    bench.apply(Partition(SALES, 0, (Replica(1, SALES),), (1,), 1))
    bench.cluster.applied = bench.cluster.newest
    assert bench.topics.may_commit("sales", 0)
    assert bench.topics.origin("sales") == SALES
    bench.apply(RemoveTopic(SALES))
    assert bench.topics.origin("sales") is None
    again = UUID(int=9)
    bench.create("sales", again)
    bench.apply(Partition(again, 0, (Replica(1, again),), (1,), 1))
    assert bench.topics.origin("sales") == again
    assert not bench.topics.may_commit("sales", 0)
    bench.cluster.applied = bench.cluster.newest
    assert bench.topics.may_commit("sales", 0)


def test_a_regular_expression_also_matches_topics_that_are_created_later(bench: Bench) -> None:
    assert bench.topics.matching("sales.*") == ["sales"]
    bench.create("sales.eu", UUID(int=4))
    assert bench.topics.matching("sales.*") == ["sales", "sales.eu"]
    bench.apply(RemoveTopic(SALES))
    assert bench.topics.matching("sales.*") == ["sales.eu"]


@pytest.mark.parametrize("regex", ["(", "(?=a)", r"(a)\1", "(((a{100}){100}){100}){100}", "*"])
def test_an_expression_that_re2_does_not_support_or_that_is_too_large_is_invalid(bench: Bench, regex: str) -> None:
    assert bench.topics.matching(regex) is None
    assert bench.topics.matching(regex) is None, "a repeated request gets the same answer"


def test_an_expression_that_takes_exponential_time_in_backtracking_engines_is_matched(bench: Bench) -> None:
    bench.create("a" * 200, UUID(int=4))
    assert bench.topics.matching("(a*)*(a|aa)*b") == []


def test_the_cache_of_expressions_drops_the_least_recently_used_one_above_its_limit(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(topics, "REGEXES_MAX", 2)
    for regex in ("a", "b", "a", "c"):
        bench.topics.matching(regex)
    assert list(bench.topics._matched) == ["a", "c"]


def test_a_topic_is_found_by_its_name_and_a_name_by_its_topic_id(bench: Bench) -> None:
    assert bench.topics.topic("sales") == Topic(SALES, 0)
    assert bench.topics.topic("missing") is None
    assert bench.topics.topic_name(SALES) == "sales"
    assert bench.topics.topic_name(UUID(int=9)) is None
