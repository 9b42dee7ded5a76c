"""Checks the promises of the quorum over all nodes of a `Lab` after every event."""

from __future__ import annotations

from collections import Counter
from itertools import zip_longest
from uuid import UUID

from quorum.core.events import (
    AdvanceHighWatermark,
    Effect,
    ReadConfirmed,
    ReadRefused,
    RoleChanged,
    Transferred,
    VotersChanged,
    Write,
)
from quorum.core.messages import Fetch, Vote, VoteReply
from quorum.core.roles import Leader
from quorum.core.types import Batch, ReplicaKey, Role, Voters, VoterSet
from tests.scenarios.lab import Disk, Lab, Message


class Checker:
    """Pass `effect` to the lab as its trace; call the other methods at the events that they name."""

    def __init__(self) -> None:
        self.lab: Lab
        self.committed: list[Batch] = []
        self.seen: Counter[str] = Counter()  # how often rare events happened: a test must see each of them
        self.voters: tuple[VoterSet, ...] = ()
        self._reads: dict[tuple[int, int], int] = {}  # (node, call) -> the committed end when the read began
        self._changes: set[tuple[int, int]] = set()
        self._lost: list[Disk] = []
        self._committed_in: list[int] = []  # the epoch in which each batch of `committed` was committed
        self._leaders: dict[int, int] = {}
        self._votes: dict[tuple[UUID, int], ReplicaKey] = {}
        self._batches: dict[tuple[int, int], tuple[Batch, int]] = {}  # (offset, epoch) -> batch, epoch before it
        self._logs: dict[int, list[Batch]] = {}
        self._watermarks: dict[int, int] = {}
        self._confirmed: dict[int, int] = {}  # how many batches of a node's log were compared with `committed`
        self._epochs: dict[int, int] = {}

    @property
    def end(self) -> int:
        return self.committed[-1].end_offset if self.committed else 0

    def started(self, node_id: int) -> None:
        """Check that a started node continues from its disk."""
        disk = self.lab.nodes[node_id].disk
        self._logs[node_id] = self._below(disk.start) + disk.batches
        self._watermarks[node_id] = self._confirmed[node_id] = 0
        epoch = disk.state.election.epoch
        assert epoch >= self._epochs.get(node_id, 0), f"{node_id} restarts in epoch {epoch}, was in {self._epochs}"

    def _below(self, start: int) -> list[Batch]:
        """Return the committed batches below `start`.  A log may start there only if one of them ends at `start`."""
        before = [batch for batch in self.committed if batch.end_offset <= start]
        assert (before[-1].end_offset if before else 0) == start, f"a log starts at {start}, of {self.end} committed"
        return before

    def wiped(self, node_id: int, lost: Disk) -> None:
        """Note that the node has another disk.

        It need not keep the promises of the lost disk, but the records that this disk held still count as durable.
        """
        self._epochs.pop(node_id, None)
        self._lost.append(lost)

    # Effects

    def effect(self, node_id: int, effect: Effect) -> None:
        match effect:
            case Write():
                self._write(node_id, effect)
            case RoleChanged(role=Role.LEADER, epoch=epoch):
                self._lead(node_id, epoch)
            case RoleChanged(role=role):
                self.seen[role.value] += 1
            case AdvanceHighWatermark(offset):
                assert offset > self._watermarks[node_id], f"{node_id}: {self._watermarks[node_id]} -> {offset}"
                self._watermarks[node_id] = offset
                disk = self.lab.nodes[node_id].disk
                durable = max([disk.end, *(end.offset for end in disk.snapshots)])
                assert offset <= durable, f"{node_id} announces {offset}, has {durable} on disk"
                self._commit(node_id, offset)
            case ReadConfirmed(call, offset):
                floor = self._reads.pop((node_id, call), 0)
                assert offset >= floor, f"{node_id} reads at {offset}, when {floor} was committed before it was asked"
                self.seen["confirmed read"] += 1
            case ReadRefused(call):
                self._reads.pop((node_id, call), None)
                self.seen["refused read"] += 1
            case VotersChanged(call, result):
                self._changes.discard((node_id, call))
                self.seen[f"change {result.error.value}"] += 1
                self.seen["changed"] += result.changed
            case Transferred(call, error):
                self._changes.discard((node_id, call))
                self.seen[f"transfer {error.value}"] += 1
            case _:
                pass

    def reads(self, node_id: int, call: int) -> None:
        """Note the request for a read, which must see everything that is committed now."""
        self._reads[node_id, call] = self.end

    def changes(self, node_id: int, call: int) -> None:
        """Note the request for a change or transfer, which must be answered."""
        self._changes.add((node_id, call))

    def crashed(self, node_id: int) -> None:
        """Forget the requests to the node, which are no longer answered."""
        self._reads = {key: floor for key, floor in self._reads.items() if key[0] != node_id}
        self._changes = {key for key in self._changes if key[0] != node_id}

    def all_answered(self) -> None:
        assert not self._reads, f"reads without an answer: {self._reads}"
        assert not self._changes, f"changes or transfers without an answer: {self._changes}"

    def _lead(self, node_id: int, epoch: int) -> None:
        self.seen["leader"] += 1
        other = self._leaders.setdefault(epoch, node_id)
        assert other == node_id, f"epoch {epoch} is led by {other} and {node_id}"
        # A candidate may count its votes late and lead an epoch that is over: it must have the batches that earlier
        # epochs committed.
        owed = [batch for batch, by in zip(self.committed, self._committed_in, strict=True) if by < epoch]
        for batch, own in zip_longest(owed, self._logs[node_id][: len(owed)]):
            assert batch == own, f"{node_id} leads epoch {epoch} without {batch}"

    def _write(self, node_id: int, write: Write) -> None:
        log = self._logs[node_id]
        if write.truncate_to is not None:
            self.seen["truncation"] += 1
            log[:] = [batch for batch in log if batch.base_offset < write.truncate_to]
        if write.base is not None:
            self.seen["trimmed" if write.truncate_to is None else "snapshot loaded"] += 1
            before = self._below(write.base.end.offset)
            if write.truncate_to is not None:
                log[:] = before
            end, epoch = write.base.end, before[-1].epoch
            assert end.epoch == epoch, f"{node_id}'s log starts at {end}, the record before is of epoch {epoch}"
            records = [batch.control for batch in before if isinstance(batch.control, Voters)]
            assert write.base.voters == records[-1], f"{node_id}'s log starts at {end} with {write.base.voters}"
        for batch in write.batches:
            if batch.epoch > 0:  # the founding batch may be lost and written again
                self._unique(node_id, log, batch)
            self._change_voters(log, batch)
            log.append(batch)
        election = write.state.election
        if election.leader_id is not None:
            leader = self._leaders.setdefault(election.epoch, election.leader_id)
            assert leader == election.leader_id, f"epoch {election.epoch} is led by {leader} and {election.leader_id}"

    def _unique(self, node_id: int, log: list[Batch], batch: Batch) -> None:
        """Batches with equal (offset, epoch) are equal and follow batches of equal epochs.

        By induction, the logs up to such a batch are equal.
        """
        before = log[-1].epoch if log else 0
        same = self._batches.setdefault((batch.base_offset, batch.epoch), (batch, before))
        assert same == (batch, before), f"{node_id} appends {batch} after epoch {before}, elsewhere it is {same}"

    def _commit(self, node_id: int, offset: int) -> None:
        """Compare the batches below `offset`, which this node treats as committed, with those that others committed."""
        log, position = self._logs[node_id], self._confirmed[node_id]
        while position < len(log) and log[position].end_offset <= offset:
            batch = log[position]
            if position < len(self.committed):
                same = self.committed[position]
                assert same == batch, f"{node_id} commits {batch} where {same} was"
            else:
                core = self.lab.nodes[node_id].core
                assert core is not None
                self.committed.append(batch)
                self._committed_in.append(core.epoch)
                # A step may commit under one voter set and append the next, so a majority of either set is enough.
                self.voters = (core.history.current, core.history.below(core.high_watermark)[0])
                self._check_majority(batch)
            position += 1
        self._confirmed[node_id] = position

    def _check_majority(self, batch: Batch) -> None:
        disks = [node.disk for node in self.lab.nodes.values()] + self._lost
        keys = [ReplicaKey(disk.node_id, disk.directory_id) for disk in disks if disk.holds(batch)]
        enough = any(sum(key in voters for key in keys) >= voters.majority for voters in self.voters)
        assert enough, f"{batch} is committed, but of {self.voters} only {keys} hold it durably"

    def _change_voters(self, log: list[Batch], batch: Batch) -> None:
        """Two voter sets that follow each other differ by one voter, so that their majorities overlap."""
        if isinstance(batch.control, Voters) and batch.base_offset > 0:
            earlier = next(entry.control for entry in reversed(log) if isinstance(entry.control, Voters))
            before, after = ({voter.key for voter in record.voters} for record in (earlier, batch.control))
            assert len(before ^ after) <= 1, f"voters {sorted(before)} are followed by {sorted(after)}"
            assert after, f"no voter is left after {sorted(before)}"
            self.seen["reconfiguration"] += 1

    # Moments

    def left(self, message: Message) -> None:
        """Check a sent message: its promises must be durable."""
        disk = self.lab.nodes[message.sender].disk
        durable = disk.state.election
        match message.request, message.reply:
            case Vote(pre_vote=False, sender=sender, epoch=epoch), VoteReply(granted=True):
                kept = durable.epoch > epoch or (durable.epoch, durable.voted_for) == (epoch, sender.key)
                assert kept, f"{message.target} grants {sender.key} epoch {epoch}, its disk says {durable}"
            case Vote(pre_vote=False, sender=sender, epoch=epoch), None:
                kept = durable.epoch > epoch or (durable.epoch, durable.voted_for) == (epoch, sender.key)
                assert kept, f"{message.source} is a candidate in epoch {epoch}, its disk says {durable}"
            case Fetch(offset=offset), None:
                assert disk.end >= offset, f"{message.source} acknowledges {offset}, its disk ends at {disk.end}"
            case _:
                pass

    def settled(self, node_id: int, write: Write) -> None:
        """Check a durable write: if it truncated a log, a majority must still have the committed batches."""
        election, directory_id = write.state.election, self.lab.nodes[node_id].disk.directory_id
        assert election.epoch >= self._epochs.get(node_id, 0), f"{node_id}: epoch {election} after {self._epochs}"
        self._epochs[node_id] = election.epoch
        if election.voted_for is not None:
            other = self._votes.setdefault((directory_id, election.epoch), election.voted_for)
            assert other == election.voted_for, f"{node_id} votes for {other} and {election}"
        for batch in write.batches:
            if batch.base_offset == 0:
                self._unique(node_id, [], batch)
        if write.truncate_to is not None:
            for batch in self.committed:
                if batch.end_offset > write.truncate_to:
                    self._check_majority(batch)

    def stepped(self) -> None:
        """Check the leaders after every event."""
        for node in self.lab.nodes.values():
            if node.core is not None and isinstance(node.core.role, Leader):
                self._commit(node.id, node.core.high_watermark)
                self.seen["paused"] += node.core.role.paused
