"""The tools that show the data directories of replicas, and move replicas between them."""

from __future__ import annotations

import json
import re
from typing import Any

from tests.clients.calls import REASSIGN_COMMAND, SLOW_RATE, Call, has
from tests.clients.outcomes import expect
from tests.clients.records import COUNT

ANYWHERE = "any"

Places = dict[str, list[bool]]
"""By data directory of a broker: for each log of a topic in it, whether it is the copy of a move."""


def show(call: Call) -> None:
    """Find the replicas of a topic in the directories of their brokers."""
    topic = call.topic(filled=True)
    described = _described(call, topic)
    partitions = [
        (broker["broker"], partition["partition"], partition["size"] > 0, partition["isFuture"])
        for broker in described
        for directory in broker["logDirs"]
        for partition in directory["partitions"]
    ]
    expect("partitions", sorted(partitions), [(broker, f"{topic}-0", True, False) for broker in call.peer.brokers])
    expect("errors", {each["error"] for broker in described for each in broker["logDirs"]}, {None})


def move(call: Call) -> None:
    """Move a leader and a follower to the other directories of their brokers."""
    leader, follower, _ = call.peer.brokers
    topic = _filled_topic(call, leader, follower)
    before = _places(call, topic)
    targets = {broker: _other(before[broker]) for broker in (leader, follower)}
    plan = _plan(call, topic, targets)
    elsewhere = call.tool(REASSIGN_COMMAND, "--verify", *plan)
    has(elsewhere, *(f"broker {broker} is not being moved from .* to {path}" for broker, path in targets.items()))
    started = call.tool(REASSIGN_COMMAND, "--execute", *plan)
    has(started, *(_started(topic, broker, path) for broker, path in targets.items()))
    for broker in targets:
        call.until(lambda: call.tool(REASSIGN_COMMAND, "--verify", *plan), _completed(topic, broker))
    moved = {broker: _swapped(places) if broker in targets else places for broker, places in before.items()}
    expect("places", _places(call, topic), moved)
    call.check_records(topic)


def place(call: Call) -> None:
    """Replace a follower by a replica on another broker, in the directory that the plan names."""
    leader, follower, newcomer = call.peer.brokers
    topic = _filled_topic(call, leader, follower)
    before = _places(call, topic)
    first, second = before[newcomer]
    plan = _plan(call, topic, {leader: ANYWHERE, newcomer: second})
    missing = call.tool(REASSIGN_COMMAND, "--verify", *plan)
    has(missing, f"{topic}-0 is not found in any live log dir on broker {newcomer}")
    has(call.tool(REASSIGN_COMMAND, "--execute", *plan), _started(topic, newcomer, second))
    call.until(lambda: call.tool(REASSIGN_COMMAND, "--verify", *plan), _completed(topic, newcomer))
    nowhere: Places = {path: [] for path in before[follower]}
    _until_places(call, topic, {**before, follower: nowhere, newcomer: {first: [], second: [False]}})
    call.check_records(topic)


def refuse(call: Call) -> None:
    """Name a directory that does not exist, and one with a slash at its end."""
    leader, follower, _ = call.peer.brokers
    topic = _filled_topic(call, leader, follower)
    before = _places(call, topic)
    for path in ("/nowhere", _other(before[follower]) + "/"):
        plan = _plan(call, topic, {leader: ANYWHERE, follower: path})
        refused = call.tool(REASSIGN_COMMAND, "--execute", *plan, status=1)
        has(refused, f"Failed to alter dir for {topic}-0-{follower}", "LogDirNotFoundException")
    expect("places", _places(call, topic), before)


def cancel(call: Call) -> None:
    """Cancel a move that a throttle delays."""
    leader, follower, _ = call.peer.brokers
    topic = call.large_topic_on(leader, follower)
    before = _places(call, topic)
    source, target = _other(_swapped(before[follower])), _other(before[follower])
    plan = _plan(call, topic, {leader: ANYWHERE, follower: target})
    started = call.tool(REASSIGN_COMMAND, "--execute", *plan, "--replica-alter-log-dirs-throttle", str(SLOW_RATE))
    has(started, f"throttle limit was set to {SLOW_RATE} B/s", _started(topic, follower, target))
    moving: Places = {source: [False], target: [True]}
    expect("places during the move", _places(call, topic), {**before, follower: moving})
    has(call.tool(REASSIGN_COMMAND, "--verify", *plan), f"replica {topic}-0-{follower} is still in progress")
    cancelled = call.tool(REASSIGN_COMMAND, "--cancel", *plan)
    has(cancelled, "None of the specified partition reassignments are active", _started(topic, follower, source))
    has(cancelled, "Clearing broker-level throttles")
    _until_places(call, topic, before)
    has(call.tool(REASSIGN_COMMAND, "--cancel", *plan), "None of the specified partition moves are active")
    call.check_large_values(topic)


def _filled_topic(call: Call, *brokers: int) -> str:
    topic = call.topic_on(*brokers)
    call.harness.produce(topic, range(COUNT))
    return topic


def _described(call: Call, topic: str) -> list[dict[str, Any]]:
    """Return the directories of each broker, with the logs of a topic, as kafka-log-dirs shows them."""
    output = call.tool("LogDirsCommand", "--describe", "--topic-list", topic)
    described = json.loads(next(line for line in output.splitlines() if line.startswith("{")))
    brokers: list[dict[str, Any]] = described["brokers"]
    return brokers


def _places(call: Call, topic: str) -> dict[int, Places]:
    """Return the places of the replicas of a topic with one partition, by broker."""
    found = {
        broker["broker"]: {
            directory["logDir"]: [partition["isFuture"] for partition in directory["partitions"]]
            for directory in broker["logDirs"]
        }
        for broker in _described(call, topic)
    }
    return {broker: dict(sorted(found[broker].items())) for broker in sorted(found)}


def _until_places(call: Call, topic: str, wanted: dict[int, Places]) -> None:
    call.until(lambda: str(_places(call, topic)), re.escape(str(wanted)))


def _other(places: Places) -> str:
    """Return the directory without the replica."""
    (path,) = (path for path, logs in places.items() if not logs)
    return path


def _swapped(places: Places) -> Places:
    """Return the places after the replica has moved to the other directory."""
    return dict(zip(places, reversed(places.values()), strict=True))


def _plan(call: Call, topic: str, directories: dict[int, str]) -> tuple[str, str]:
    """Return the options that give a plan for partition 0: its replicas in order, and a directory for each."""
    wanted = {
        "topic": topic,
        "partition": 0,
        "replicas": list(directories),
        "log_dirs": list(directories.values()),
    }
    return "--reassignment-json-file", call.file("plan.json", {"version": 1, "partitions": [wanted]})


def _started(topic: str, broker: int, path: str) -> str:
    """Return a pattern for the report of an accepted move."""
    return f"Successfully started moving log directory to {re.escape(path)} for replica {topic}-0 with broker {broker}"


def _completed(topic: str, broker: int) -> str:
    """Return a pattern for the report of a move that has ended in its directory."""
    return f"Reassignment of replica {topic}-0-{broker} completed successfully"
