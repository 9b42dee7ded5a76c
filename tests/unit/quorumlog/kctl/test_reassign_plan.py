"""Plans: their JSON form, every error of a plan, and their generation."""

from __future__ import annotations

import json
import os
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from quorumlog.errors import ClusterError
from quorumlog.kctl.exits import exit_code
from quorumlog.kctl.main import run
from quorumlog.kctl.reassign_plan import FORM, Move, document, moved, parse, propose
from quorumlog.wire.errors import ExitCode


def plan(**changes: object) -> str:
    return json.dumps({"version": 1, "partitions": [{"topic": "t", "partition": 0, "replicas": [1, 2], **changes}]})


def test_plans_of_kafka_and_of_generate_are_read() -> None:
    move = Move("t", 0, (1, 2))
    assert parse(plan()) == parse(plan(log_dirs=["any", "any"])) == [move]
    assert parse(json.dumps({"partitions": document([move])["partitions"]})) == [move]
    assert parse(json.dumps({"plan": document([move]), "current": document([])})) == [move]


BAD = {
    "": "it is empty",
    " \n ": "it is empty",
    "{": "not JSON at line 1, column 2",
    '{"version": 1,\n "partitions": nine}': "not JSON at line 2, column 16",
    "9" * 5000: "nested too deeply, or a number is too long",
    "[" * 100_000: "not readable as JSON",
    "[]": "not an object",
    "3": "not an object",
    "null": "not an object",
    '{"version": 2, "partitions": [{}]}': "version 2",
    '{"version": true, "partitions": [{}]}': "version true",
    '{"version": "1", "partitions": [{}]}': 'version "1"',
    '{"version": 1}': "it has no `partitions`",
    '{"version": 1, "partitions": null}': "not a list",
    '{"partitions": []}': "names no partitions",
    '{"partitions": {"topic": "t"}}': "not a list",
    '{"partitions": [{"topic": "t", "replicas": [1]}]}': "partitions[0] has no `partition`",
    '{"partitions": [7]}': "partitions[0] is not an object",
    '{"partitions": [], "brokers": [1]}': 'unknown key, "brokers"',
    json.dumps({"partitions": [{"topic": "t", "partition": 0, "replicas": [1]}] * 2}): "t-0 more than once",
    plan(topic=None): "topic null",
    plan(topic=""): 'topic ""',
    plan(topic="t" * 250): "is not a topic name",
    plan(topic=7): "topic 7",
    plan(topic="\ud800"): "is not a topic name",
    plan(partition=-1): "partition -1",
    plan(partition=2**31): "partition 2147483648",
    plan(partition="0"): 'partitions[0].partition "0" is not a partition number (0 to',
    plan(partition=0.0): "partition 0.0",
    plan(partition=True): "partition true",
    plan(replicas=[]): "not a list of brokers",
    plan(replicas="1,2"): "not a list of brokers",
    plan(replicas=[1, "2"]): '"2" is not a broker id',
    plan(replicas=[1, -1]): "-1 is not a broker id",
    plan(replicas=[1, 1]): "broker 1 is named twice",
    plan(replicas=[1, None]): "null is not a broker id",
    plan(log_dirs=["/data"]): 'is not a list with a directory, or "any", for each replica',
    plan(log_dirs=["/data", ""]): '"" is not a path',
    plan(log_dirs=["/data", 7]): "7 is not a path",
    plan(log_dirs=["/data", "\ud800"]): "is not a path",
    plan(rack="a"): 'unknown key, "rack"',
}


@pytest.mark.parametrize("text", sorted(BAD))
def test_parse_explains_each_error_of_a_plan(text: str) -> None:
    with pytest.raises(ClusterError) as raised:
        parse(text)
    assert raised.value.code == "INVALID_PLAN"
    assert BAD[text] in raised.value.message
    assert len(raised.value.message) < 300
    assert exit_code(raised.value) == ExitCode.USAGE


def test_the_error_of_an_invalid_plan_names_its_file_and_shows_an_example(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "moves.json"
    file.write_text("t-0 to 1,2\n")
    assert run(["reassign", "start", "--plan", str(file), "-o", "json"]) == ExitCode.USAGE
    error = json.loads(capsys.readouterr().err)
    assert (error["error"], error["message"]) == (
        "INVALID_PLAN",
        f"'{file}' is not a plan: not JSON at line 1, column 1",
    )
    assert error["next"] == f"expected: {FORM}; `kctl reassign generate` generates one"
    assert parse(FORM.replace(", …", "")) == [Move("t", 0, (1, 2))]
    file.write_bytes(b"\xff\xfe")
    for path, why in ((file, "it is not text"), (tmp_path, "Is a directory"), (tmp_path / "none", "No such file")):
        assert run(["reassign", "start", "--plan", str(path), "-o", "json"]) == ExitCode.USAGE
        error = json.loads(capsys.readouterr().err)
        assert error["message"].startswith(f"the plan '{path}' cannot be read: {why}")
    with open(os.devnull) as standard_input:
        monkeypatch.setattr("sys.stdin", standard_input)
        assert run(["reassign", "start", "--plan", "-", "-o", "json"]) == ExitCode.USAGE
    assert json.loads(capsys.readouterr().err)["message"] == "standard input is not a plan: it is empty"


@given(st.recursive(st.none() | st.booleans() | st.integers() | st.floats() | st.text(), lambda inner: (
    st.lists(inner, max_size=3)
    | st.dictionaries(st.sampled_from(["version", "partitions", "topic", "partition", "replicas", "plan"]), inner)
)))  # fmt: skip
def test_any_json_is_read_as_a_plan_or_refused_as_an_invalid_plan(value: object) -> None:
    refused = ""
    try:
        found = parse(json.dumps(value))
        assert parse(json.dumps(document(found))) == found
    except ClusterError as error:
        refused = error.code
    assert refused in ("", "INVALID_PLAN")


# Generated plans


def spread(moves: list[Move]) -> tuple[Counter[int], Counter[int]]:
    replicas = Counter(broker for move in moves for broker in move.replicas)
    return replicas, Counter(move.replicas[0] for move in moves)


def test_a_balanced_cluster_moves_nothing() -> None:
    current = [Move("t", 0, (1, 2)), Move("t", 1, (2, 3)), Move("t", 2, (3, 1))]
    assert propose(current, {1: None, 2: None, 3: None}) == current


def test_a_new_broker_gets_its_share_with_the_fewest_moves() -> None:
    current = [Move("t", number, tuple((number + step) % 3 + 1 for step in range(2))) for number in range(12)]
    planned = propose(current, dict.fromkeys((1, 2, 3, 4)))
    replicas, leaders = spread(planned)
    assert sorted(replicas.values()) == [6, 6, 6, 6]
    assert max(leaders.values()) - min(leaders.values()) <= 1
    assert moved(current, planned)[0] == 6


def test_a_plan_can_drain_a_broker() -> None:
    current = [Move("t", number, tuple((number + step) % 4 + 1 for step in range(3))) for number in range(8)]
    planned = propose(current, dict.fromkeys((1, 2, 3)))
    assert all(set(move.replicas) == {1, 2, 3} for move in planned)
    assert moved(current, planned)[0] == 6


def test_spreading_over_racks_takes_precedence_over_an_even_load() -> None:
    racks = {1: "a", 2: "a", 3: "a", 4: "b"}
    planned = propose([Move("t", number, (1, 2)) for number in range(6)], racks)
    assert all(4 in move.replicas for move in planned)
    replicas, _ = spread(planned)
    assert [replicas[broker] for broker in (1, 2, 3)] == [2, 2, 2]


def test_a_plan_can_change_the_replication_factor() -> None:
    current = [Move("t", 0, (1,)), Move("t", 1, (1,))]
    assert {len(move.replicas) for move in propose(current, dict.fromkeys((1, 2, 3)), 3)} == {3}
    with pytest.raises(ClusterError) as raised:
        propose(current, dict.fromkeys((1, 2)), 3)
    assert raised.value.code == "INVALID_REPLICATION_FACTOR"


@settings(max_examples=200, deadline=None)
@given(st.data())
def test_generated_plans_are_valid_balanced_and_spread_over_racks(data: st.DataObject) -> None:
    all_ids = list(range(1, 8))
    wanted = data.draw(st.lists(st.sampled_from(all_ids), min_size=1, max_size=7, unique=True))
    racks = {broker: data.draw(st.sampled_from([None, "a", "b"])) for broker in wanted}
    factor = data.draw(st.integers(1, min(3, len(wanted))))
    rows = data.draw(st.lists(st.lists(st.sampled_from(all_ids), min_size=factor, max_size=factor, unique=True)))
    current = [Move("t", number, tuple(row)) for number, row in enumerate(rows)]
    planned = propose(current, racks)
    rack_count = len(set(racks.values()))
    for move in planned:
        assert len(set(move.replicas)) == factor
        assert set(move.replicas) <= set(wanted)
        if rack_count > 1:
            used = {racks[broker] for broker in move.replicas}
            assert len(used) == min(rack_count, factor)
    replicas, _ = spread(planned)
    if rack_count == 1:
        counts = [replicas[broker] for broker in wanted]
        assert max(counts) - min(counts) <= 1
        assert moved(planned, propose(planned, racks))[0] == 0
