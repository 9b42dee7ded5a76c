"""The tool that changes the voters of the metadata quorum (KIP-853) while clients write."""

from __future__ import annotations

import json
import re
from typing import NamedTuple

from tests.clients.calls import Call, has
from tests.clients.outcomes import Skipped, expect
from tests.clients.peers import NEWCOMER_ID

COMMAND = "MetadataQuorumCommand"
UNKNOWN_DIRECTORY = "AAAAAAAAAAAAAAAAAAAABQ"
"""No disk has this id."""


class Replica(NamedTuple):
    """A replica of the metadata log.  directory_id: of its disk.  status: Leader, Follower or Observer."""

    directory_id: str
    status: str


def describe(call: Call) -> None:
    status = call.tool(COMMAND, "describe", "--status")
    has(status, "LeaderId: +[0-9]+", "HighWatermark: +[1-9]", r"CurrentVoters: +\[", "MaxFollowerLag: +[0-9]")
    replication = call.tool(COMMAND, "describe", "--replication")
    has(replication, r"(?m)Leader\s*$", r"(?m)Follower\s*$")


def add_and_remove(call: Call) -> None:
    """Add a controller that has just started, and remove it."""
    if call.peer.newcomer is None:
        raise Skipped("the cluster has a single process")
    before = _voters(call)
    with call.peer.newcomer() as address:
        call.until(lambda: call.tool(COMMAND, "describe", "--replication"), rf"(?m)^{NEWCOMER_ID}\s.*Observer")
        directory_id = _replicas(call)[NEWCOMER_ID].directory_id
        add = ("--command-config", _files(call, NEWCOMER_ID, directory_id, address), "add-controller")
        endpoint = rf"CONTROLLER://{re.escape(address)}"
        planned = call.tool(COMMAND, *add, "--dry-run")
        has(planned, rf"DRY RUN of adding controller {NEWCOMER_ID} with directory id {directory_id}.*{endpoint}")
        expect("voters after the dry run", _voters(call), before)

        has(call.tool(COMMAND, *add), rf"Added controller {NEWCOMER_ID} with directory id {directory_id}.*{endpoint}")
        expect("voters", _voters(call), {**before, NEWCOMER_ID: address})
        expect("status of the new voter", _replicas(call)[NEWCOMER_ID], Replica(directory_id, "Follower"))
        call.check_records(call.topic(filled=True))

        refused = call.tool(COMMAND, *_removal(NEWCOMER_ID, UNKNOWN_DIRECTORY), status=1)
        has(refused, "VoterNotFoundException")
        remove = _removal(NEWCOMER_ID, directory_id)
        named = rf"(KRaft )?controller {NEWCOMER_ID} with directory id {directory_id}"
        has(call.tool(COMMAND, *remove, "--dry-run"), rf"DRY RUN of removing {named}")
        expect("voters after the dry run", _voters(call), {**before, NEWCOMER_ID: address})
        has(call.tool(COMMAND, *remove), rf"Removed {named}")
        expect("voters", _voters(call), before)
    call.check_records(call.topic(filled=True))


def remove_leader(call: Call) -> None:
    """Remove the leader, which continues as an observer, and add it again."""
    before = _voters(call)
    (leader,) = (number for number, replica in _replicas(call).items() if replica.status == "Leader")
    directory_id = _replicas(call)[leader].directory_id
    topic = call.topic(filled=True)
    has(call.tool(COMMAND, *_removal(leader, directory_id)), f"Removed .*controller {leader} ")
    others = {number: address for number, address in before.items() if number != leader}
    replication = call.until(lambda: call.tool(COMMAND, "describe", "--replication"), rf"(?m)^{leader}\s.*Observer")
    has(replication, rf"(?m)^({'|'.join(map(str, others))})\s.*Leader")
    expect("voters without the leader", _voters(call), others)
    call.check_records(call.topic(filled=True))

    add = ("--command-config", _files(call, leader, directory_id, before[leader]), "add-controller")
    has(call.tool(COMMAND, *add), f"Added controller {leader} ")
    expect("voters", _voters(call), before)
    call.check_records(topic)


def _replicas(call: Call) -> dict[int, Replica]:
    """Return the replicas of the metadata log, by the id of their node."""
    _, *lines = call.tool(COMMAND, "describe", "--replication").splitlines()
    cells = [line.split() for line in lines]
    return {int(first): Replica(second, last) for first, second, *_, last in cells}


def _voters(call: Call) -> dict[int, str]:
    """Return the addresses of the voters, by id."""
    found = re.search(r"CurrentVoters: +(.*)", call.tool(COMMAND, "describe", "--status"))
    assert found
    return {each["id"]: each["endpoints"][0].removeprefix("CONTROLLER://") for each in json.loads(found[1])}


def _files(call: Call, node_id: int, directory_id: str, address: str) -> str:
    """Write the files of a controller that the tool reads; return the path of its settings."""
    home = call.folder / f"voter-{node_id}"
    home.mkdir()
    found = re.search(r"ClusterId: +(\S+)", call.tool(COMMAND, "describe", "--status"))
    assert found
    identity = {"version": 1, "cluster.id": found[1], "node.id": node_id, "directory.id": directory_id}
    settings = {
        "process.roles": "controller",
        "node.id": node_id,
        "log.dirs": home,
        "controller.listener.names": "CONTROLLER",
        "listeners": f"CONTROLLER://{address}",
    }
    for name, values in {"meta.properties": identity, "server.properties": settings}.items():
        (home / name).write_text("".join(f"{key}={value}\n" for key, value in values.items()))
    return str(home / "server.properties")


def _removal(node_id: int, directory_id: str) -> tuple[str, ...]:
    names = ("--controller-id", str(node_id), f"--controller-directory-id={directory_id}")
    return ("remove-controller", *names)
