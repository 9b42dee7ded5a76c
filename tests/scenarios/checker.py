"""The promises of the quorum, checked over all nodes of a `Lab` after every event."""

from __future__ import annotations

from collections import Counter
from itertools import zip_longest
from uuid import UUID

from quorum.core.events import AdvanceHighWatermark, Effect, RoleChanged, Write
from quorum.core.messages import Fetch, Vote, VoteReply
from quorum.core.roles import Leader
from quorum.core.types import Batch, ReplicaKey, Role, Voters, VoterSet
from tests.scenarios.lab import Lab, Message


class Checker:
    """Give `effect` to the lab as its trace; call the other methods as their names say."""

    def __init__(self) -> None:
        self.lab: Lab
        self.committed: list[Batch] = []
        self.seen: Counter[str] = Counter()  # how often the rare things happened: a test must have had some of each
        self.voters = VoterSet()
        self._last_voters = VoterSet()
        self._committed_in: list[int] = []  # by the leader of which epoch
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
        disk = self.lab.nodes[node_id].disk
        self._logs[node_id] = list(disk.batches)
        self._watermarks[node_id] = self._confirmed[node_id] = 0
        epoch = disk.state.election.epoch
        assert epoch >= self._epochs.get(node_id, 0), f"{node_id} restarts in epoch {epoch}, was in {self._epochs}"

    def wiped(self, node_id: int) -> None:
        """Another disk: what this node's last one had promised is no longer its own."""
        del self._epochs[node_id]

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
                durable = self.lab.nodes[node_id].disk.end
                assert offset <= durable, f"{node_id} announces {offset}, has {durable} on disk"
                self._commit(node_id, offset)
            case _:
                pass

    def _lead(self, node_id: int, epoch: int) -> None:
        self.seen["leader"] += 1
        other = self._leaders.setdefault(epoch, node_id)
        assert other == node_id, f"epoch {epoch} is led by {other} and {node_id}"
        # A candidate may count its votes late and lead an epoch that is over: it owes what earlier epochs committed.
        owed = [batch for batch, by in zip(self.committed, self._committed_in, strict=True) if by < epoch]
        for batch, own in zip_longest(owed, self._logs[node_id][: len(owed)]):
            assert batch == own, f"{node_id} leads epoch {epoch} without {batch}"

    def _write(self, node_id: int, write: Write) -> None:
        log = self._logs[node_id]
        if write.truncate_to is not None:
            self.seen["truncation"] += 1
            log[:] = [batch for batch in log if batch.base_offset < write.truncate_to]
        for batch in write.batches:
            if batch.epoch > 0:  # the founding may be lost before anyone hears of it, and made again
                self._unique(node_id, log, batch)
            log.append(batch)
        election = write.state.election
        if election.leader_id is not None:
            leader = self._leaders.setdefault(election.epoch, election.leader_id)
            assert leader == election.leader_id, f"epoch {election.epoch} is led by {leader} and {election.leader_id}"

    def _unique(self, node_id: int, log: list[Batch], batch: Batch) -> None:
        """Equal (offset, epoch) means an equal batch after an equal epoch: by induction, an equal log up to there."""
        before = log[-1].epoch if log else 0
        same = self._batches.setdefault((batch.base_offset, batch.epoch), (batch, before))
        assert same == (batch, before), f"{node_id} appends {batch} after epoch {before}, elsewhere it is {same}"

    def _commit(self, node_id: int, offset: int) -> None:
        """Everything below `offset` is committed, says this node: it must be what everyone else committed."""
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
                self._change_voters(batch)
                self.voters = core.history.current  # in force where it was committed
                self._check_majority(batch)
            position += 1
        self._confirmed[node_id] = position

    def _check_majority(self, batch: Batch) -> None:
        voters = self.voters
        holders = [
            node.id
            for node in self.lab.nodes.values()
            if ReplicaKey(node.id, node.disk.directory_id) in voters and node.disk.holds(batch)
        ]
        assert len(holders) >= voters.majority, f"{batch} is committed, but only {holders} hold it durably"

    def _change_voters(self, batch: Batch) -> None:
        """Two voter sets that follow each other differ by one voter, so that their majorities overlap."""
        if isinstance(batch.control, Voters):
            before, after = ({voter.key for voter in voters} for voters in (self._last_voters, batch.control.voters))
            assert not before or len(before ^ after) <= 1, f"voters {sorted(before)} are followed by {sorted(after)}"
            self._last_voters = batch.control.voters
            self.seen["reconfiguration"] += bool(before)

    # Moments

    def left(self, message: Message) -> None:
        """A message has got onto the wire: what it promises must be durable."""
        disk = self.lab.nodes[message.sender].disk
        durable = disk.state.election
        match message.request, message.reply:
            case Vote(pre_vote=False, sender=sender, epoch=epoch), VoteReply(granted=True):
                kept = durable.epoch > epoch or (durable.epoch, durable.voted_for) == (epoch, sender.key)
                assert kept, f"{message.target} grants {sender.key} epoch {epoch}, its disk says {durable}"
            case Vote(pre_vote=False, sender=sender, epoch=epoch), None:
                kept = durable.epoch > epoch or (durable.epoch, durable.voted_for) == (epoch, sender.key)
                assert kept, f"{message.source} stands in epoch {epoch}, its disk says {durable}"
            case Fetch(offset=offset), None:
                assert disk.end >= offset, f"{message.source} acknowledges {offset}, its disk ends at {disk.end}"
            case _:
                pass

    def settled(self, node_id: int, write: Write) -> None:
        """A write is durable; if it cut a log, a majority must still hold what is committed."""
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
        """After every event."""
        for node in self.lab.nodes.values():
            if node.core is not None and isinstance(node.core.role, Leader):
                self._commit(node.id, node.core.high_watermark)
                self.seen["paused"] += node.core.role.paused
