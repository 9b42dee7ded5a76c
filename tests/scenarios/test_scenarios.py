"""Runs the scenarios: text files of commands and the resulting output of the cores.

A file consists of blocks separated by blank lines: comments (`#`), commands, `----`, and the expected output.
`REWRITE=1` writes the actual output into the files; then read the diff.  Nothing happens without a command: messages
stay on the wire, writes stay pending, and no time passes.

    founded 1 2 3          start the voters of a founded cluster
    newborn 1 2 3 [list=1,2] [cluster=X] [standalone]
    observer 4 [cluster=X] start a node that knows only the addresses of the others
    limit 1                limit fetch replies (to one batch) and pieces of a snapshot to this many bytes, at nodes that
                           are started later
    watermark-wait 5       let a voter that has every record wait this many ms for a new high watermark, at nodes that
                           are started later; 0 by default, so that no time has to pass
    crash 1 / start 1      lose everything that is not durable; start from the durable state
    wipe 1                 give a crashed node an empty disk with another directory id
    elapse 500 [1 2]       let time pass; at these nodes (or none) requests time out, and ticks come until nothing is
                           due
    deliver [FILTER]       deliver the messages that are on the wire now, in order
    repeat [FILTER]        the same, and keep a copy
    drop [FILTER]          lose them
    fail [FILTER]          lose them, and report the failure to the sender
    cut 1 2 / heal         lose all messages between these nodes and the others from now on; end all such losses
    sever 1 2              lose all messages between these two, until `heal`
    written [1] [one]      complete the pending writes of one or all nodes, oldest first (or only one of them)
    backup 1 / restore 1   copy the node's disk; give a crashed node that copy
    hang 1 / unhang 1      stop completing writes of the node's disk; resume
    read 1                 let the node's disk answer a ReadLog or ReadSnapshot
    snapshot 1             let the node take a snapshot of its applied records
    trim 1 [E:O]           permit its log to start after its newest snapshot, or after the one with this end
    delete 1               delete its oldest snapshot
    damage 1 [longer|shorter|mended]
                           flip a bit of its newest snapshot, or change its size; or repair it
    receive 1              let the node do its next step of receiving a snapshot: look up, store, or load
    run                    deliver, complete writes, read and receive until nothing is left
    live 3000 1 2          `elapse` and `run`, in steps of 100 ms
    propose 1 TEXT [N]     append N records
    resign 1
    confirm 1              ask leader 1 to confirm a read
    add 1 4 [at=n5:1] [replace] [dry] [within=5000]
                           ask leader 1 to make 4 a voter; `remove 1 3` and `update 1 3 at=n5:1` likewise
    target 1 1,4,5 [dry] / cancel 1
    transfer 1 [2]         hand over leadership
    prefer 3,2             set the preferred voters at all nodes
    move 3 n33:1           let node 3 advertise another address from its next start on
    forget                 let the checker start over, for another cluster
    looking on|off         permit nodes to search for the leader (DescribeQuorum); off by default
    show [1]               show roles, epochs, log ends
    log [1] / wire         show snapshots and batches on disk; show messages on the wire
    quietly COMMAND        run without output

FILTER: `1->2`, `1->`, `->2`, words of the message's text, or both.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable
from pathlib import Path
from random import Random

import pytest
from msgspec.structs import replace

from quorum.core import RaftConfig, RaftCore
from quorum.core.describe import describe, describe_reply, describe_request
from quorum.core.events import (
    AddVoter,
    CancelTarget,
    ChangeVoters,
    ConfirmRead,
    Effect,
    Event,
    Prefer,
    Propose,
    RemoveVoter,
    Resign,
    SendReply,
    SendRequest,
    SetTarget,
    Transfer,
    UpdateVoter,
    VoterChange,
)
from quorum.core.messages import DescribeQuorum, DescribeQuorumReply
from quorum.core.types import LogEnd, ReplicaKey
from tests.scenarios.checker import Checker
from tests.scenarios.lab import Disk, Lab, Message, founded_disks

FILES = sorted(Path(__file__).parent.glob("*.txt"))


class Steady(Random):
    """A source without jitter: every draw is the lowest."""

    def random(self) -> float:
        return 0.0


class Scenario:
    """The state of one scenario: a lab, its checker, and the output of the commands (`lines`)."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.looking = False
        self.wiped = 0
        self.limit = 1 << 20
        self.watermark_wait_ms = 0
        self.calls = 0
        self.side: set[int] = set()
        self.severed: set[frozenset[int]] = set()
        self.hung: set[int] = set()
        self.copies: dict[int, Disk] = {}
        self.asked: list[tuple[int, Message]] = []  # with the time at which the sender gives up the request
        self.checker = Checker()
        self.lab = self.checker.lab = Lab(self.trace)

    def trace(self, node_id: int, effect: Effect) -> None:
        self.checker.effect(node_id, effect)
        match effect:
            case SendRequest(request=DescribeQuorum()) | SendReply(reply=DescribeQuorumReply()) if not self.looking:
                return
            case SendReply(call, reply, after):
                to = self.lab.nodes[node_id].calls[call].source
                waits = f" (after write {after})" if after is not None else ""
                self.lines.append(f"{node_id}: answer {to}: {describe_reply(reply)}{waits}")
            case _:
                self.lines.append(f"{node_id}: {describe(effect)}")

    # Commands

    def command(self, line: str) -> None:
        if line.startswith("quietly "):
            kept = list(self.lines)
            self.command(line.removeprefix("quietly "))
            self.lines = kept
            return
        name, *words = line.split()
        commands: dict[str, Callable[[list[str]], None]] = {
            "founded": self.founded,
            "newborn": self.newborn,
            "observer": self.observer,
            "crash": lambda words: self.each(words, self.lab.crash),
            "start": lambda words: self.each(words, self.start),
            "wipe": self.wipe,
            "backup": self.backup,
            "restore": self.restore,
            "elapse": self.elapse,
            "deliver": lambda words: self.on_wire(words, self.deliver),
            "drop": lambda words: self.on_wire(words, lambda message: None),
            "fail": lambda words: self.on_wire(words, self.fail),
            "repeat": self.repeat,
            "written": self.written,
            "run": lambda words: self.run(),
            "read": lambda words: self.lab.read(int(words[0])),
            "receive": lambda words: self.lab.receive(int(words[0])),
            "snapshot": lambda words: self.each(words, self.lab.take_snapshot),
            "trim": self.trim,
            "delete": self.delete,
            "damage": self.damage,
            "propose": self.propose,
            "resign": lambda words: self.do(words, Resign("on request")),
            "confirm": lambda words: self.do(words, ConfirmRead(self.call())),
            "add": self.add,
            "remove": self.remove,
            "update": self.update,
            "target": self.target,
            "cancel": lambda words: self.change(words, CancelTarget()),
            "transfer": self.transfer,
            "prefer": self.prefer,
            "move": self.move,
            "show": self.show,
            "log": self.log,
            "wire": lambda words: self.lines.extend(map(text, self.lab.wire)),
            "forget": self.forget,
            "looking": self.look,
            "hang": lambda words: self.hung.update(map(int, words)),
            "unhang": lambda words: self.hung.difference_update(map(int, words)),
            "live": self.live,
            "limit": lambda words: setattr(self, "limit", int(words[0])),
            "watermark-wait": lambda words: setattr(self, "watermark_wait_ms", int(words[0])),
            "cut": lambda words: self.side.update(map(int, words)),
            "sever": lambda words: self.severed.add(frozenset(map(int, words))),
            "heal": self.heal,
        }
        commands[name](words)
        self.tidy()

    def each(self, words: list[str], action: Callable[[int], object]) -> None:
        for word in words:
            action(int(word))

    def do(self, words: list[str], event: Event) -> None:
        self.lab.step(int(words[0]), event)

    def tidy(self) -> None:
        """Check the sent messages.  Drop those on cut links, and searches for the leader while searches are off."""
        for message in self.lab.wire:
            self.checker.left(message)
            if message.reply is None and all(message is not asked for _, asked in self.asked):
                self.asked.append((self.lab.now_ms + message.timeout_ms, message))
        self.checker.stepped()
        self.lab.wire = [message for message in self.lab.wire if self.passes(message)]

    def passes(self, message: Message) -> bool:
        if isinstance(message.request, DescribeQuorum) and not self.looking:
            return False
        if {message.sender, message.receiver} in self.severed:
            return False
        return (message.sender in self.side) == (message.receiver in self.side)

    def look(self, words: list[str]) -> None:
        self.looking = words == ["on"]

    def founded(self, words: list[str]) -> None:
        addresses = {int(word): f"n{word}:1" for word in words}
        for node_id, disk in founded_disks(addresses).items():
            listed = tuple(addresses.items())
            config = RaftConfig(node_id, addresses[node_id], initial_voters=listed, fetch_max_bytes=self.limit)
            self.place(config, disk)
        for node_id in addresses:
            self.start(node_id)

    def newborn(self, words: list[str]) -> None:
        given = options(words)
        ids = [word for word in words if word.isdigit()]
        listed = tuple((int(word), f"n{word}:1") for word in given.get("list", ",".join(ids)).split(","))
        for word in ids:
            config = RaftConfig(
                int(word),
                f"n{word}:1",
                initial_voters=() if "standalone" in words else listed,
                standalone="standalone" in words,
                cluster_id=given.get("cluster"),
                new_cluster_id=f"made-by-{word}",
            )
            self.place(config)
        for word in ids:
            self.start(int(word))

    def observer(self, words: list[str]) -> None:
        known = tuple(node.config.address for node in self.lab.nodes.values())
        cluster = options(words).get("cluster")
        address = f"n{words[0]}:1"
        config = RaftConfig(int(words[0]), address, bootstrap=known, cluster_id=cluster, fetch_max_bytes=self.limit)
        self.place(config)
        self.start(int(words[0]))

    def place(self, config: RaftConfig, disk: Disk | None = None) -> None:
        self.lab.add(replace(config, watermark_wait_ms=self.watermark_wait_ms), disk)

    def start(self, node_id: int) -> None:
        self.lab.start(node_id, Steady())
        self.checker.started(node_id)
        self.lab.tick(node_id)

    def wipe(self, words: list[str]) -> None:
        self.wiped += 1
        node = self.lab.nodes[int(words[0])]
        lost = node.disk
        self.lab.wipe(int(words[0]), 100 + self.wiped)
        node.config = replace(node.config, new_cluster_id=f"made-by-{node.id}-again")
        self.checker.wiped(int(words[0]), lost)

    def backup(self, words: list[str]) -> None:
        disk = self.lab.nodes[int(words[0])].disk
        self.copies[disk.node_id] = dataclasses.replace(disk, batches=list(disk.batches), pending=[], parts={})

    def restore(self, words: list[str]) -> None:
        node = self.lab.nodes[int(words[0])]
        assert node.core is None, f"{node.id} runs"
        node.disk = self.copies.pop(node.id)

    def heal(self, words: list[str]) -> None:
        self.side.clear()
        self.severed.clear()

    def forget(self, words: list[str]) -> None:
        self.checker = Checker()
        self.checker.lab = self.lab

    def elapse(self, words: list[str]) -> None:
        self.lab.now_ms += int(words[0])
        for node_id in map(int, words[1:]):
            for entry in [entry for entry in self.asked if entry[0] <= self.lab.now_ms and entry[1].source == node_id]:
                self.asked.remove(entry)
                self.lab.fail(entry[1])
                self.tidy()
            for _ in range(20):
                if self.core(node_id).deadline_ms > self.lab.now_ms:
                    break
                self.lab.tick(node_id)
                self.tidy()
            else:
                raise AssertionError(f"{node_id} is still due after 20 ticks")

    def on_wire(self, words: list[str], act: Callable[[Message], None]) -> None:
        chosen = [message for message in self.lab.wire if matches(message, words)]
        for message in chosen:
            self.lab.wire.remove(message)
        for message in chosen:
            act(message)

    def deliver(self, message: Message) -> None:
        self.lab.deliver(message)

    def fail(self, message: Message) -> None:
        self.lab.fail(message)

    def repeat(self, words: list[str]) -> None:
        for message in [message for message in self.lab.wire if matches(message, words)]:
            self.lab.deliver(message)

    def written(self, words: list[str]) -> None:
        chosen = [int(words[0])] if words else list(self.lab.nodes)
        for node_id in chosen:
            if node_id in self.hung:
                continue
            pending = self.lab.nodes[node_id].disk.pending
            for _ in range(1 if "one" in words else len(pending)):
                write = pending[0]
                self.lab.settle(node_id)
                self.checker.settled(node_id, write)

    def run(self) -> None:
        for _ in range(200):
            disks = [node for node in self.lab.nodes.values() if node.id not in self.hung]
            if not self.lab.wire and not any(node.disk.pending or node.reads or node.receiving for node in disks):
                return
            self.on_wire([], self.lab.deliver)
            self.written([])
            for node in self.lab.nodes.values():
                while node.reads:
                    self.lab.read(node.id)
                while node.receiving and node.id not in self.hung:
                    self.lab.receive(node.id)
            self.tidy()
        raise AssertionError("messages or disk work are left after 200 rounds")

    def live(self, words: list[str]) -> None:
        for _ in range(int(words[0]) // 100):
            self.elapse(["100", *words[1:]])
            self.run()

    def newest(self, word: str) -> LogEnd:
        return max(self.lab.nodes[int(word)].disk.snapshots, key=lambda end: end.offset)

    def trim(self, words: list[str]) -> None:
        ends = [LogEnd(*map(int, word.split(":"))) for word in words if ":" in word]
        for word in words[: len(words) - len(ends)]:
            self.lab.trim(int(word), ends[0] if ends else self.newest(word))

    def delete(self, words: list[str]) -> None:
        snapshots = self.lab.nodes[int(words[0])].disk.snapshots
        del snapshots[min(snapshots, key=lambda end: end.offset)]

    def damage(self, words: list[str]) -> None:
        disk, end = self.lab.nodes[int(words[0])].disk, self.newest(words[0])
        data = disk.snapshots[end]
        flipped = data[:-1] + bytes([data[-1] ^ 1])
        other = {"longer": data + b"!", "shorter": data[:-1], "mended": self.lab.taken[end][1]}
        disk.snapshots[end] = other.get(words[-1], flipped)

    def propose(self, words: list[str]) -> None:
        node_id = int(words[0])
        count = int(words[2]) if len(words) > 2 else 1
        epoch = self.core(node_id).epoch
        self.lab.step(node_id, Propose(epoch, words[1].encode(), count, self.lab.now_ms))

    def call(self) -> int:
        self.calls += 1
        return self.calls

    def change(self, words: list[str], change: VoterChange) -> None:
        within = int(options(words).get("within", 30_000))
        self.lab.step(int(words[0]), ChangeVoters(self.call(), change, "dry" in words, within))

    def add(self, words: list[str]) -> None:
        address = options(words).get("at", f"n{words[1]}:1")
        self.change(words, AddVoter(int(words[1]), address, None, "replace" in words))

    def remove(self, words: list[str]) -> None:
        self.change(words, RemoveVoter(int(words[1])))

    def update(self, words: list[str]) -> None:
        key = ReplicaKey(int(words[1]), self.lab.nodes[int(words[1])].disk.directory_id)
        self.change(words, UpdateVoter(key, options(words)["at"]))

    def target(self, words: list[str]) -> None:
        ids = [int(word) for word in words[1].split(",")]
        self.change(words, SetTarget(tuple((node_id, f"n{node_id}:1") for node_id in ids)))

    def transfer(self, words: list[str]) -> None:
        to = int(words[1]) if len(words) > 1 else None
        self.lab.step(int(words[0]), Transfer(self.call(), to))

    def prefer(self, words: list[str]) -> None:
        wanted = tuple(int(word) for word in words[0].split(",")) if words else ()
        for node in list(self.lab.nodes.values()):
            if node.core is not None:
                self.lab.step(node.id, Prefer(wanted))

    def move(self, words: list[str]) -> None:
        node = self.lab.nodes[int(words[0])]
        node.config = replace(node.config, address=words[1])

    def core(self, node_id: int) -> RaftCore:
        core = self.lab.nodes[node_id].core
        assert core is not None, f"{node_id} is down"
        return core

    def chosen(self, words: list[str]) -> list[int]:
        return [int(word) for word in words] or sorted(self.lab.nodes)

    def show(self, words: list[str]) -> None:
        for node_id in self.chosen(words):
            core = self.lab.nodes[node_id].core
            if core is None:
                self.lines.append(f"{node_id}: down")
                continue
            known, log = core.known, core.log
            what = f"{core.role.role.value}{' (paused)' if core.paused else ''} epoch={core.epoch}"
            leader = known.leader_id if known.leader_id is not None else "none"
            start = f"start={log.base_epoch}:{log.start} " if log.start > 0 else ""
            ends = f"{start}end={log.last.epoch}:{log.end} durable={log.durable_end} hw={core.high_watermark}"
            self.lines.append(f"{node_id}: {what} leader={leader} {ends}")

    def log(self, words: list[str]) -> None:
        for node_id in self.chosen(words):
            disk = self.lab.nodes[node_id].disk
            batches = disk.batches
            payloads = [batch.payload.decode() or type(batch.control).__name__ for batch in batches]
            entries = [f"{batch.base_offset}e{batch.epoch} {p}" for batch, p in zip(batches, payloads, strict=True)]
            kept = [f"<{end.epoch}:{end.offset}>" for end in sorted(disk.snapshots, key=lambda end: end.offset)]
            start = [f"from {disk.start}"] if disk.start > 0 else []
            self.lines.append(f"{node_id}: {' | '.join(kept + start + entries) or 'empty'}")


def options(words: list[str]) -> dict[str, str]:
    return dict(word.split("=", 1) for word in words if "=" in word)


def text(message: Message) -> str:
    content = describe_request(message.request) if message.reply is None else describe_reply(message.reply)
    return f"{message.sender}->{message.receiver} {content}"


def matches(message: Message, words: list[str]) -> bool:
    _, content = text(message).split(" ", 1)
    for word in words:
        sender, arrow, receiver = word.partition("->")
        if arrow:
            if (sender and sender != str(message.sender)) or (receiver and receiver != str(message.receiver)):
                return False
        elif word not in content.split():
            return False
    return True


def run(source: str) -> str:
    """Return the scenario with the actual output of its commands."""
    scenario = Scenario()
    blocks = []
    for block in source.strip().split("\n\n"):
        script = block.split("----", 1)[0].rstrip().split("\n")
        scenario.lines = []
        for line in script:
            if line and not line.startswith("#"):
                scenario.command(line)
        commands = any(not line.startswith("#") for line in script)
        blocks.append("\n".join([*script, *(["----", *scenario.lines] if commands else [])]))
    return "\n\n".join(blocks) + "\n"


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_the_cores_give_the_output_of_the_scenario(path: Path) -> None:
    source = path.read_text()
    happened = run(source)
    if os.environ.get("REWRITE"):
        path.write_text(happened)
    else:
        assert happened == source


def test_the_scenario_files_are_found() -> None:
    assert len(FILES) >= 20
