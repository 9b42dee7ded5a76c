"""`quorum-node recover`: rebuilds the metadata quorum from a surviving directory, after its majority is lost.

This is not Raft: records that only lost disks held are lost, and records that no majority had confirmed become
committed.  So an operator runs this program offline, and the program explains the consequences.  Among the given
directories of the newest generation, it uses the one with the greatest (epoch, end offset), and appends to its log, in
one transaction:

- `Voters` of a new generation, with only this node, under a new directory id.  Nodes of older generations are
  refused because of their generation, and a copy of the old directory is another replica;
- for every partition, a leader epoch that is 1000 higher, and no leader.  Leaders that the lost records elected may
  still run, so every later epoch must be above theirs;
- producer ids far above those known to be in use, since the lost records may have allocated more.

The epoch of the quorum is also raised by 1000.  The node then starts as the only voter, and the other voters are added
again with empty disks.

The new directory id is also written to the identity file, after the log.  If the program is interrupted between the two
writes, the log names a voter whose disk does not exist, and there is no leader.  To repair that, run the program again
on the same directory.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from uuid import UUID

from msgspec.structs import replace

from metadata.codec import encode
from metadata.controller.replay import MetadataReplay
from metadata.image import ClusterImage
from metadata.records import NO_LEADER, RECORDS_PER_BATCH_MAX, PartitionChange, ProducerIds, Reason
from quorum.core.types import (
    Batch,
    ControlRecord,
    Election,
    LogEnd,
    QuorumState,
    ReplicaKey,
    StoredQuorum,
    TargetVoters,
    Voter,
    Voters,
    VoterSet,
)
from quorum.core.voters import VoterHistory
from quorum.ports import QuorumStore, StoreWrite
from quorum.snapshots import SnapshotPolicy, Snapshotter
from quorum.store import SqliteQuorumStore
from quorum.store.directory import find_identity, read_identity, refusal, replace_identity
from quorumlog.errors import ConfigError, CorruptStoreError, FatalError
from quorumlog.runtime.clock import Sources
from quorumlog.words import uuid_text

EPOCH_JUMP = 1000
PRODUCER_ID_JUMP = 1 << 32
READ_BYTES = 4 << 20


@dataclass(frozen=True, slots=True)
class Found:
    """One open quorum directory.  where: its path."""

    where: str
    store: QuorumStore
    stored: StoredQuorum

    @property
    def end(self) -> LogEnd:
        stored = self.stored
        base = 0 if stored.base is None else stored.base.end.epoch
        return LogEnd(stored.epochs[-1][0] if stored.epochs else base, stored.log_end)

    def __str__(self) -> str:
        return (
            f"{self.where}: node {self.stored.node_id}, epoch {self.end.epoch}, end offset "
            f"{self.end.offset}, cluster {self.stored.state.cluster_id}, generation {self.stored.state.generation}"
        )


@dataclass(frozen=True, slots=True)
class Plan:
    """The changes to the chosen directory.

    partitions: number of partitions that lose their leader.
    is_found: whether the other nodes look for the quorum at this address.
    was_cut_off: whether an earlier run was interrupted between its two writes.
    """

    write: StoreWrite
    key: ReplicaKey
    address: str
    generation: int
    partitions: int
    is_found: bool
    was_cut_off: bool


async def recover(
    directories: Sequence[str],
    sources: Sources,
    *,
    address: str | None,
    confirm: Callable[[], bool],
    say: Callable[[str], None],
) -> bool:
    """Rebuild the quorum from the best of these quorum directories.

    Return whether it was rebuilt; False if `confirm` returned False.
    address: control address of the node (HOST:PORT); None: its address as a voter.
    say: prints a line.

    Raises:
        ConfigError: the directories do not belong to one cluster, one is in use, or the node's address is not known.
        FatalError: the disk fails, or the best directory is damaged.
    """
    opened: list[Found] = []
    try:
        for directory in directories:
            opened.append(await _open(directory, sources))
            say(f"found {opened[-1]}")
        best = choose(opened)
        say(f"chosen: {best.where}, which has the greatest (epoch, end offset)")
        image, stored = await image_of(best, sources)
        plan = plan_rebuild(stored, best.end, image, address, sources)
        if plan.was_cut_off:
            say(f"an earlier run was interrupted at generation {plan.generation - 1}; this run repeats it")
        say(f"to be written: generation {plan.generation}, epoch {plan.write.state.election.epoch}, with node")
        say(f"  {plan.key.node_id} at {plan.address} as the only voter, under the new directory id")
        say(f"  {uuid_text(plan.key.directory_id)}, and {plan.partitions} partitions without a leader")
        say("records that existed only on lost disks are lost; the other directories are no longer used")
        if not confirm():
            say("nothing was changed")
            return False
        say('writing; if this ends without "done", run it again: until then there is no leader')
        await _write(best, plan)
        say(f"done: {len(plan.write.batches)} batches appended, the log ends at {plan.write.state.applied_offset}")
    finally:
        for found in opened:
            await found.store.close()
    for line in _next_steps(plan):
        say(line)
    return True


async def _write(best: Found, plan: Plan) -> None:
    """Write both files.

    Raises:
        FatalError: the disk fails; the run must be repeated.
    """
    try:
        await best.store.write([plan.write])
        identity = read_identity(best.where)
        assert identity is not None, f"{best.where} has lost its identity"
        replace_identity(best.where, replace(identity, directory_id=str(plan.key.directory_id)))
    except (OSError, FatalError) as error:
        raise FatalError(
            f"the rebuild failed, but may be partly written: {error}", next_step="repair the disk, and run it again"
        ) from error


def _next_steps(plan: Plan) -> Iterator[str]:
    if plan.is_found:
        yield f"next: start node {plan.key.node_id} as before; brokers rejoin automatically"
    else:
        yield f"next: start node {plan.key.node_id} as before; the others do not find it, because no former voter"
        yield f"  was at {plan.address}: start one of the former voters, with its disk empty or set aside, or else each"
        yield f"  other node, with --join {plan.address} instead of its own addresses of the cluster"
    yield "  a former voter that still has its disk is refused: run `quorum-node set-aside --data-dir DIR`, start it"
    yield f"  with --join {plan.address}, and make it a voter: kctl add-voter ID@HOST:PORT"


async def _open(directory: str, sources: Sources) -> Found:
    try:
        identity = find_identity(directory)
    except OSError as error:
        raise refusal(directory, error) from error
    if identity is None:
        raise ConfigError(
            f"{directory} is not the data directory of a node", next_step="give the data directories of surviving nodes"
        )
    store = SqliteQuorumStore(directory, sources)
    return Found(directory, store, await store.open(identity.node_id, None))


def choose(opened: Sequence[Found]) -> Found:
    """Return the directory to continue from: the one with the greatest (epoch, end offset) in the newest generation.

    Raises:
        ConfigError: the directories belong to different clusters, or to none.
    """
    clusters = sorted({str(found.stored.state.cluster_id) for found in opened})
    if len(clusters) > 1:
        raise ConfigError(
            f"these are directories of different clusters: {', '.join(clusters)}",
            next_step="give the directories of one cluster",
        )
    generation = max(found.stored.state.generation for found in opened)
    best = max((found for found in opened if found.stored.state.generation == generation), key=lambda found: found.end)
    if best.end.offset == 0:
        raise ConfigError(
            "none of these directories has ever taken part in a cluster",
            next_step="give the data directories of surviving nodes",
        )
    return best


async def image_of(found: Found, sources: Sources) -> tuple[ClusterImage, StoredQuorum]:
    """Return the image of the whole log, committed or not, and the stored state without damaged snapshots.

    This changes nothing on the disk.  The node sets damaged snapshots aside when it starts.
    """
    replay = MetadataReplay()
    snapshots = Snapshotter(found.store, replay, sources, lambda event: None, SnapshotPolicy())
    stored = await snapshots.restore(found.stored, read_only=True)
    offset = snapshots.restored_end
    while offset < stored.log_end:
        batches = await found.store.read(offset, stored.log_end, READ_BYTES)
        if not batches:
            raise CorruptStoreError(
                f"{found.where}: the log ends at offset {stored.log_end}, but has no batch at offset {offset}"
            )
        for batch in batches:
            replay.apply(batch)
        offset = batches[-1].end_offset
    return replay.image, stored


def plan_rebuild(stored: StoredQuorum, end: LogEnd, image: ClusterImage, address: str | None, sources: Sources) -> Plan:
    """Return the changes that turn this directory into a new generation of the quorum.

    Raises:
        ConfigError: `address` is None and the node was not a voter.
    """
    history = VoterHistory(stored.controls, stored.base)
    record = history.record
    assert record is not None, f"a log that ends at {end} without voters"
    known = history.current.by_id(stored.node_id)
    if address is None and known is None:
        raise ConfigError(
            f"node {stored.node_id} was not a voter, so the other nodes do not know its address",
            next_step="give --address HOST:PORT",
        )
    where = address if address is not None or known is None else known.address
    assert where is not None, "checked above"
    key = ReplicaKey(stored.node_id, sources.uuid4())
    generation = max(record.generation, stored.state.generation) + 1
    epoch = max(end.epoch, stored.state.election.epoch) + EPOCH_JUMP
    voters = VoterSet((Voter(key, where),))
    log = _Log(end.offset, epoch, sources.wall_ms())
    log.add_control(Voters(record.cluster_id, generation, voters))
    if history.target is not None:
        log.add_control(TargetVoters(None))
    log.add(encode([ProducerIds(key.node_id, end.offset, image.next_producer_id + PRODUCER_ID_JUMP)]), 1)
    partitions = 0
    for changes in rebuilt_partitions(image, cause_offset=end.offset):
        log.add(encode(changes), len(changes))
        partitions += len(changes)
    state = QuorumState(record.cluster_id, generation, Election(epoch), log.end, voters)
    is_found = any(voter.address == where for voter in _voters_before(stored))
    write = StoreWrite(state, None, tuple(log.batches))
    return Plan(write, key, where, generation, partitions, is_found, _was_cut_off(stored, record))


def _was_cut_off(stored: StoredQuorum, record: Voters) -> bool:
    """Return whether this node is the only voter of a rebuilt quorum, under a directory id that it does not have."""
    own = record.voters.by_id(stored.node_id)
    is_rebuilt = record.generation > 0 and len(record.voters) == 1
    return is_rebuilt and own is not None and own.key.directory_id != stored.directory_id


def _voters_before(stored: StoredQuorum) -> VoterSet:
    """Return the last voters that other nodes can know.  Other nodes never learned the voters of an interrupted run."""
    records = [] if stored.base is None else [stored.base.voters]
    records += [batch.control for batch in stored.controls if isinstance(batch.control, Voters)]
    return next((each.voters for each in reversed(records) if not _was_cut_off(stored, each)), VoterSet())


def rebuilt_partitions(image: ClusterImage, cause_offset: int) -> Iterator[list[PartitionChange]]:
    """Yield, batch by batch, a change for every partition: no leader, and an epoch above all that may be lost."""
    changes: list[PartitionChange] = []
    topic_ids: list[UUID] = sorted(image.topics)
    for topic_id in topic_ids:
        for partition in image.topics[topic_id].partitions:
            assert partition is not None, f"topic {topic_id} has a hole between batches"
            changes.append(
                PartitionChange(
                    topic_id,
                    partition.index,
                    Reason.QUORUM_REBUILT,
                    cause_offset=cause_offset,
                    previous_offset=partition.last_offset,
                    leader=NO_LEADER,
                    leader_epoch=partition.leader_epoch + EPOCH_JUMP,
                )
            )
            if len(changes) == RECORDS_PER_BATCH_MAX:
                yield changes
                changes = []
    if changes:
        yield changes


class _Log:
    """Builds consecutive batches."""

    def __init__(self, end: int, epoch: int, timestamp_ms: int) -> None:
        self.batches: list[Batch] = []
        self.end = end
        self._epoch = epoch
        self._timestamp_ms = timestamp_ms

    def add(self, payload: bytes, count: int, control: ControlRecord | None = None) -> None:
        self.batches.append(Batch(self.end, self._epoch, count, self._timestamp_ms, payload, control))
        self.end += count

    def add_control(self, record: ControlRecord) -> None:
        self.add(b"", 1, record)
