"""Differences between two states in words: few lines for a small change, shared lines for a large one."""

from __future__ import annotations

import copy
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quorumlog.kctl.metadata_diff import diff, words
from quorumlog.words import ranges


def partition(index: int, leader: int | None, *isr: int, **changes: Any) -> dict[str, Any]:
    fields = {
        "partition": index, "leader": leader, "leader_epoch": 0, "partition_epoch": 0, "replicas": [1, 2, 3],
        "isr": list(isr), "elr": [], "adding": [], "removing": [],
    }  # fmt: skip
    return {**fields, **changes}


def topic(name: str, *partitions: dict[str, Any], topic_id: str = "A", **configs: str) -> dict[str, Any]:
    shown = [{"name": key, "value": value} for key, value in configs.items()]
    return {"name": name, "topic_id": topic_id, "configs": shown, "partitions": list(partitions)}


def broker(broker_id: int, state: str = "unfenced", epoch: int = 5, rack: str | None = None) -> dict[str, Any]:
    endpoints = [{"name": "default", "host": "h", "port": 9092, "security": "PLAINTEXT"}]
    return {"id": broker_id, "state": state, "broker_epoch": epoch, "rack": rack, "endpoints": endpoints}


def voter(node_id: int, address: str | None = None) -> dict[str, Any]:
    return {"id": node_id, "address": address or f"h:{node_id}"}


def config(scope: str, resource: str | None, name: str, value: str) -> dict[str, Any]:
    return {"scope": scope, "resource": resource, "name": name, "value": value}


def state(**parts: Any) -> dict[str, Any]:
    empty: dict[str, Any] = {
        "voters": [],
        "target_voters": None,
        "brokers": [],
        "topics": [],
        "configs": [],
        "preferred_controllers": [],
        "features": [],
    }
    return {**empty, **parts}


def said(old: dict[str, Any], new: dict[str, Any]) -> list[str]:
    return words(diff(old, new))


def test_diff_shows_a_failover_of_many_partitions_in_a_few_lines() -> None:
    old = state(topics=[topic("t", *(partition(index, 1, 1, 2, 3, leader_epoch=index) for index in range(5000)))])
    new = copy.deepcopy(old)
    for index in (*range(2000), 4000):
        new["topics"][0]["partitions"][index] |= {"leader": 2, "isr": [2, 3], "leader_epoch": index + 1}
    new["topics"][0]["partitions"][3000] |= {"leader": None, "isr": [1], "elr": [2]}
    assert said(old, new) == [
        "~ t-{0..1999,4000}: leader 1 -> 2; in sync 1,2,3 -> 2,3",
        "~ t-3000: leader 1 -> none; in sync 1,2,3 -> 1; eligible none -> 2",
    ]
    assert len(diff(old, new)) == 2001 * 3 + 3, "scripts get every field of every partition"


CASES = [
    (state(), state(), []),
    (
        state(voters=[voter(1), voter(2)]),
        state(voters=[voter(1, "new:1"), voter(3)], target_voters=[voter(1), voter(4)]),
        [
            "~ voter 1: address h:1 -> new:1",
            "- voter 2: deleted; it was at h:2",
            "+ voter 3: new, at h:3",
            "~ target voters: none -> 1,4",
        ],
    ),
    (state(brokers=[broker(1)]), state(), ["- broker 1: deleted; it was unfenced, default=h:9092"]),
    (
        state(brokers=[broker(1), broker(2)]),
        state(brokers=[broker(1), broker(2, "fenced", 9, "r")]),
        ["~ broker 2: state unfenced -> fenced; restarted, broker epoch 5 -> 9; rack none -> r"],
    ),
    (
        state(topics=[topic("a", partition(0, 1, 1)), topic("b", partition(0, 1, 1), k="1")]),
        state(topics=[topic("b", partition(0, 1, 1), k="2"), topic("c", topic_id="C")]),
        [
            "- topic a: deleted; it was 1 partition, replication factor 3",
            "~ config topic b: k 1 -> 2",
            "+ topic c: new, 0 partitions, replication factor none",
        ],
    ),
    (
        state(topics=[topic("t", partition(0, 1, 1), partition(1, 1, 1))]),
        state(topics=[topic("t", partition(0, 1, 1), topic_id="B")]),
        ["~ topic t: id A -> B", "- t-1: deleted; it was leader 1, replicas 1,2,3, in sync 1"],
    ),
    (
        state(topics=[topic("t", partition(0, 1, 1))]),
        state(topics=[topic("t", *(partition(index, 1, 1) for index in range(4)))]),
        ["+ t-1..3: new, leader 1, replicas 1,2,3, in sync 1"],
    ),
    (
        state(topics=[topic("t", partition(0, 1, 1))]),
        state(topics=[topic("t", partition(0, 1, 1, leader_epoch=1, adding=[4], replicas=[1, 2, 3, 4]))]),
        ["~ t-0: leader epoch 0 -> 1; replicas 1,2,3 -> 1,2,3,4; adding none -> 4"],
    ),
    (
        state(configs=[config("cluster", None, "a", "1"), config("broker", "7", "cordoned", "true")]),
        state(configs=[config("cluster", None, "a", "2"), config("cluster", None, "b", "x")]),
        [
            "- config broker 7: cordoned true -> none",
            "~ config cluster: a 1 -> 2",
            "+ config cluster: b none -> x",
        ],
    ),
    (
        state(preferred_controllers=[1], features=[{"name": "f", "level": 1}]),
        state(preferred_controllers=[2, 3], features=[{"name": "f", "level": 2}, {"name": "g", "level": 1}]),
        ["~ preferred controllers: 1 -> 2,3", "~ feature f: level 1 -> 2", "+ feature g: new, level 1"],
    ),
]


@pytest.mark.parametrize(("old", "new", "lines"), CASES)
def test_diff_describes_each_change_in_words(old: dict[str, Any], new: dict[str, Any], lines: list[str]) -> None:
    assert said(old, new) == lines


@pytest.mark.parametrize(("old", "new", "lines"), CASES)
def test_the_reverse_diff_contains_the_same_changes_reversed(
    old: dict[str, Any], new: dict[str, Any], lines: list[str]
) -> None:
    turned = {"added": "removed", "removed": "added", "changed": "changed"}
    back = {(turned[c.change], c.what, c.name, c.field, str(c.after), str(c.before)) for c in diff(new, old)}
    assert back == {(c.change, c.what, c.name, c.field, str(c.before), str(c.after)) for c in diff(old, new)}


@given(st.sets(st.integers(0, 60)))
def test_ranges_name_every_number_once(numbers: set[int]) -> None:
    if not numbers:
        return
    text = ranges(numbers).strip("{}")
    found: list[int] = []
    for part in text.split(","):
        first, _, last = part.partition("..")
        found += range(int(first), int(last or first) + 1)
    assert found == sorted(numbers)
