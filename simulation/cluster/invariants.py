"""The promises of brokers and their logs, watched in all processes of a cluster at every step that matters.

Theory of operation.  For each partition the watch keeps one *history*: the batches below the highest watermark that any
leader has ever had.  It grows when a leader's watermark moves, and otherwise never changes.  Every replica's log is
compared with it when its own watermark moves, only from where it was compared before, so that each batch is looked at
once a replica; a new leader's log is compared up to the end of the history, since all of it was promised.  Clients are
held against it, too: what is acknowledged must be in it, and what a consumer sees must be in it *now*.  That it never
changes is what makes those answers good for ever.

An unclean election is the exception, for the topics where it is allowed: the history then ends where the new leader's
log differs, and what leaders of earlier epochs do counts no more.

What is durable on each broker's disks is remembered over its process's end, so that the disks, too, can be held to what
brokers said of them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any
from uuid import UUID

from broker.core.partition import FollowerState, LeaderState
from broker.log import LogKey, PartitionLog
from broker.replica.context import ReplicaContext
from broker.replica.replica import Replica
from broker.server.process import BrokerProcess
from broker.server.role import BrokerRole
from metadata.control.election import min_isr_of
from metadata.image import ClusterImage, PartitionImage
from quorum.core.types import Batch
from quorumlog.errors import CorruptStoreError
from quorumlog.wire.rpcs import AnyRpc
from quorumlog_server import recover
from quorumlog_server.control_plane import ControlPlane
from simulation.cluster.history import History, Mark, batches_in, batches_of, peek
from simulation.cluster.metadata import Election, Follower, MetadataWatch, Proposed, Spot
from simulation.cluster.retention import Retention
from simulation.kernel.violation import Violation


@dataclass(eq=False)
class Copy:
    """A replica in one process: how far its log was compared with the history, and the watermark of its role."""

    log: PartitionLog
    compared: int = 0
    role: LeaderState | FollowerState | None = None
    watermark: int = 0


@dataclass(eq=False)
class BrokerRun:
    """One process of a broker, from its start to its end."""

    node_id: int
    role: BrokerRole
    copies: dict[LogKey, Copy] = field(default_factory=dict)
    recovered: bool = False
    opened: frozenset[LogKey] = frozenset()
    """The logs that it found when it started."""

    @property
    def context(self) -> ReplicaContext:
        return self.role.context


class ClusterWatch:
    """All invariants of one run of a cluster."""

    def __init__(
        self, unclean: frozenset[str], clock: Callable[[], float], forgets_s: float, retention: Retention
    ) -> None:
        """clock: true time.  forgets_s: producers that are silent for less are remembered."""
        self.clock = clock
        self.forgets_s = forgets_s
        self.retention = retention
        self.seen: Counter[str] = Counter()
        self.metadata = MetadataWatch(self.check, unclean, self.seen)
        self.metadata.on_unclean = self._unclean
        self.metadata.on_epoch = self._epoch_begins
        self.metadata.on_change = lambda line: None if self.note is None else self.note(line)
        self.generations = [self.metadata]
        self.histories: dict[LogKey, History] = {}
        self.latest: dict[tuple[str, Spot], int] = {}
        """By client: what is the least that ListOffsets may answer it."""
        self.note: Callable[[str], None] | None = None
        self.on_violation: Callable[[str], None] = lambda _: None
        self.closed = False
        self.checks = 0
        self._runs: dict[int, BrokerRun] = {}
        self._durable: dict[int, dict[LogKey, tuple[int, UUID]]] = {}
        self._lost: dict[tuple[int, LogKey], int] = {}
        """What was durable on disks that are gone: leaders may count it until they hear of it."""
        self._leaders: dict[tuple[LogKey, int], BrokerRun] = {}
        self.damaged: set[tuple[int, LogKey]] = set()
        """Replicas, by broker, in which bytes have changed on the disk."""
        self._crashed: set[UUID] = set()
        """Incarnations of brokers that have ended without a clean stop."""
        self._unsynced: set[tuple[int, LogKey]] = set()
        """Replicas with write.caching that were not led again since a power failure."""
        self._stale: set[tuple[int, LogKey]] = set()
        """Replicas that a restored backup has put back, until they are in sync again."""
        self._set_back: set[LogKey] = set()
        """Partitions that such a replica has led."""
        self.metadata.on_elected = self._elected
        self.metadata.on_joined = self._joined
        self.metadata.has_crashed = self._crashed.__contains__

    def check(self, holds: bool, message: Callable[[], str]) -> None:
        self.checks += 1
        if not holds and not self.closed:
            text = message()
            self.on_violation(text)
            raise Violation(text)

    def history(self, key: LogKey) -> History | None:
        """None: nobody has applied its creation yet."""
        found = self.histories.get(key)
        if found is None and (spot := self.metadata.names.get(key)) is not None:
            found = self.histories[key] = History(key, spot)
        return found

    def current(self, spot: Spot) -> History | None:
        """Of the partition that goes by this name now."""
        topic = self.metadata.image.topic(spot.topic)
        partition = None if topic is None else topic.partition(spot.index)
        if topic is None or partition is None:
            return None
        return self.history(LogKey(topic.origin, spot.index, partition.created))

    # A quorum that is rebuilt

    def rebuilt(self, survivor: Sequence[Batch], start: int) -> int:
        """The quorum goes on from this log, which begins at `start`; from where on committed metadata is lost.

        Processes of the generation before still apply what was committed in it.
        """
        old = self.metadata
        offset = old.first_lacking(survivor, start)
        kept, *later = old.images_from(offset)
        self.seen["metadata batches lost with the voters"] += len(later)
        for image in later:
            self._unseen(kept, image)
        old.on_image = lambda image: self._unseen(kept, image)
        self.metadata = old.rebuilt(offset)
        self.generations.append(self.metadata)
        return offset

    def _unseen(self, kept: ClusterImage, lost: ClusterImage) -> None:
        """Partitions of which a replica may be elected by the metadata that is kept, and not by that which is lost, may
        lose records."""
        for topic in kept.topics.values():
            after = lost.topics.get(topic.topic_id)
            for partition in topic.partitions:
                assert partition is not None
                now = None if after is None else after.partition(partition.index)
                sound = set() if now is None else {*now.isr, *now.elr}
                history = self.history(LogKey(topic.origin, partition.index, partition.created))
                if history is not None and not {*partition.isr, *partition.elr} <= sound:
                    self.seen["partition may lose records with the voters"] += history.unclean_epoch < 0
                    history.unclean_epoch = max(history.unclean_epoch, partition.leader_epoch + recover.EPOCH_JUMP)

    # Processes

    def opening(
        self, node_id: int, plane: ControlPlane, broker: BrokerProcess | None, generation: int | None = None
    ) -> None:
        """A process is about to run: see to it that everything is heard of.

        generation: of its quorum's log; None when that is empty.
        """
        replay = plane.replay
        metadata = self.metadata if generation is None else self.generations[generation]
        follower = Follower(node_id, lambda: plane.node.high_watermark)
        apply, load = replay.apply, replay.load_snapshot

        def applied(batch: Any) -> None:
            apply(batch)
            metadata.applied(follower, batch, replay.image)

        def loaded(image: ClusterImage) -> None:
            load(image)
            metadata.loaded(follower, image)

        replay.apply = applied  # type: ignore[method-assign]
        replay.load_snapshot = loaded  # type: ignore[method-assign]
        if broker is not None:
            self._watch_broker(node_id, broker)

    def _watch_broker(self, node_id: int, broker: BrokerProcess) -> None:
        context = broker.role.context
        run = self._runs[node_id] = BrokerRun(node_id, broker.role)
        open_logs = context.logs.open
        keeper = broker.role.isr
        call = keeper._call

        async def asked(rpc: AnyRpc, request: Any, timeout_ms: int) -> Any:
            for item in request.items:
                isr = frozenset((member.broker_id, member.broker_epoch) for member in item.isr)
                topic_id, epochs = UUID(bytes=item.topic_id), (item.leader_epoch, item.partition_epoch)
                self.metadata.proposals.add(Proposed(topic_id, item.index, *epochs, isr))
            return await call(rpc, request, timeout_ms)

        async def opened() -> None:
            await open_logs()
            self._recovered(run)

        keeper._call = asked
        context.events.watermark_moved.subscribe(lambda replica: self._watermark(run, replica))
        context.events.role_changed.subscribe(lambda replica: self._role(run, replica))
        context.logs.open = opened  # type: ignore[method-assign]

    def ended(self, node_id: int, *, clean: bool = False, power: bool = False) -> None:
        """Remember what was durable when a process ended.

        clean: it has left the mark of a clean stop.  power: what was not durable may be lost.
        """
        run = self._runs.pop(node_id, None)
        if run is None:
            return
        if not clean:
            if (life := run.role.lifecycle) is not None:
                self._crashed.add(life.identity.incarnation_id)
            # A process that dies before it has registered has already removed the mark that the last one left.
            if (registered := self.metadata.image.brokers.get(node_id)) is not None:
                self._crashed.add(registered.incarnation_id)
        if not run.recovered:
            if power:  # what an earlier process had written was still in the page cache
                self._unsynced.update(one for one in self._lost if one[0] == node_id and self._is_caching(one[1]))
            return
        self._judge_damage(run)
        logs, known = run.context.logs, self._durable.get(node_id, {})
        for key, log in logs.logs.items():
            if self._is_caching(key) and not clean:
                self._lost[node_id, key] = max(log.end_offset, self._lost.get((node_id, key), 0))
                if power:
                    self._unsynced.add((node_id, key))
        # What it has not looked at; what it found and then set aside is forgotten.
        kept = {key: one for key, one in known.items() if one[1] in logs.failed_disks and key not in run.opened}
        found = {key: (self._durable_in(node_id, key, log), log.directory_id) for key, log in logs.logs.items()}
        self._durable[node_id] = {**kept, **found}

    def wiped(self, node_id: int, directory_id: UUID) -> None:
        """The disk is gone with all that was on it."""
        kept = self._durable.get(node_id, {})
        for key, (end, where) in list(kept.items()):
            if where == directory_id:
                del kept[key]
                self._lost[node_id, key] = end

    def restored(self, node_id: int, directory_id: UUID, ends: Mapping[LogKey, int]) -> None:
        """A disk is as it was some time ago.  ends: of what was durable on it then."""
        now = self._durable.get(node_id, {})
        here = {key: end for key, (end, where) in now.items() if where == directory_id}
        for key, end in here.items():
            self._lost[node_id, key] = max(end, self._lost.get((node_id, key), 0))
            self._stale.add((node_id, key))
        kept = {key: one for key, one in now.items() if one[1] != directory_id}
        self._durable[node_id] = {**kept, **{key: (end, directory_id) for key, end in ends.items() if key not in kept}}

    def durable_ends(self, node_id: int, directory_id: UUID) -> dict[LogKey, int]:
        """Return the end of what is durable of each replica in a directory."""
        run = self._runs.get(node_id)
        if run is not None and run.recovered:
            logs = [(key, one) for key, one in run.context.logs.logs.items() if one.directory_id == directory_id]
            return {key: self._durable_in(node_id, key, one) for key, one in logs}
        return {key: end for key, (end, where) in self._durable.get(node_id, {}).items() if where == directory_id}

    def _is_caching(self, key: LogKey) -> bool:
        spot = self.metadata.names.get(key)
        return spot is not None and spot.topic in self.metadata.caching

    def _judge_damage(self, run: BrokerRun) -> None:
        """D2: only replicas whose bytes have changed count as damaged, and the error names the replica's files."""
        for key, error in run.context.logs.failures.items():
            text = f"{run.node_id} takes {key} for damaged: {error}"
            self.check((run.node_id, key) in self.damaged, lambda text=text: f"D1: {text}")  # type: ignore[misc]
            named = key.topic_id.hex in str(error)
            self.check(named, lambda text=text: f"D2: no file is named: {text}")  # type: ignore[misc]
            self.seen["damage found"] += 1

    def read_damaged(self) -> None:
        """D2: whoever reads a replica whose bytes have changed gets what was committed, or an error, nothing else."""
        for run in self._runs.values():
            for key, log in run.context.logs.logs.items():
                history = self.history(key)
                if (run.node_id, key) in self.damaged and history is not None:
                    self._compare(run, history, Copy(log, log.start_offset), history.end)
                    self.seen["damaged replica read to the end"] += 1

    def _recovered(self, run: BrokerRun) -> None:
        """D1: what was durable is there again, and no sound disk's replica is taken for damaged."""
        logs = run.context.logs
        self._judge_damage(run)
        for key, (end, directory_id) in self._durable.get(run.node_id, {}).items():
            if directory_id in logs.failed_disks or (key in logs.failures and (run.node_id, key) in self.damaged):
                continue
            log = logs.get(key) or logs.doubles.get(key, {}).get(directory_id)
            aside = any(key.topic_id.hex in one.folder and f".{key.created}" in one.folder for one in logs.strays())
            self.check(
                aside or end == 0 or (log is not None and log.end_offset >= end),
                lambda key=key, end=end, log=log: (  # type: ignore[misc]
                    f"D1: {run.node_id} had {self.history(key)} durable up to {end}, and finds"
                    f" {'nothing' if log is None else log.end_offset}"
                ),
            )
        run.recovered = True
        run.opened = frozenset(logs.logs)
        for key, log in logs.logs.items():
            self._copy(run, key, log)

    def durable_end(self, node_id: int, key: LogKey) -> int | None:
        """Return up to where the broker's disks hold the partition; None when that cannot be said.

        With write.caching, what the process has written counts.
        """
        run = self._runs.get(node_id)
        kept = self._durable.get(node_id, {}).get(key)
        if run is not None and run.recovered:
            log = run.context.logs.get(key)
            if log is None:
                return None
            return log.end_offset if self._is_caching(key) else self._durable_in(node_id, key, log)
        return None if kept is None or self._is_caching(key) else kept[0]

    def _durable_in(self, node_id: int, key: LogKey, log: PartitionLog) -> int:
        """After a start that was not clean, the broker itself takes less for durable than there is."""
        end, directory_id = self._durable.get(node_id, {}).get(key, (0, log.directory_id))
        return max(log.durable_offset, min(end, log.end_offset) if directory_id == log.directory_id else 0)

    def _forget_above(self, node_id: int, key: LogKey, offset: int) -> None:
        """What comes there from now on is not what was durable."""
        known = self._durable.get(node_id, {})
        if key in known and known[key][0] > offset:
            known[key] = (offset, known[key][1])

    # Replicas

    def _copy(self, run: BrokerRun, key: LogKey, log: PartitionLog) -> Copy:
        copy = run.copies.get(key)
        if copy is None or copy.log is not log:
            copy = run.copies[key] = Copy(log, log.start_offset)
            truncate, restart, append = log.truncate_to, log.restart_at, log.append_as_leader
            advance_start = log.advance_start_offset
            self._begins_at(run, key, log.start_offset)

            def restarted(offset: int, epoch: int = -1) -> None:
                self._restarts(run, key, log, offset)
                restart(offset, epoch)
                self._forget_above(run.node_id, key, 0)
                copy.compared = offset
                copy.watermark = min(copy.watermark, offset)

            def truncated(offset: int) -> None:
                self._truncates(run, key, log, offset)
                truncate(offset)
                self._forget_above(run.node_id, key, log.end_offset)
                copy.compared = min(copy.compared, log.end_offset)
                copy.watermark = min(copy.watermark, log.end_offset)

            def start_advanced(offset: int) -> None:
                before = log.start_offset
                advance_start(offset)
                after, log.start_offset = log.start_offset, before  # the judge reads what is about to go
                try:
                    self._deletes(run, key, log, after)
                finally:
                    log.start_offset = after

            def appended(batches: Any, leader_epoch: int, now_ms: int) -> Any:
                outcome = append(batches, leader_epoch, now_ms)
                if getattr(outcome, "duplicate", False):
                    self.seen["duplicate recognised"] += 1
                self._accepts(run, key, leader_epoch)
                return outcome

            log.truncate_to = truncated  # type: ignore[method-assign]
            log.restart_at = restarted  # type: ignore[method-assign]
            log.append_as_leader = appended  # type: ignore[method-assign]
            log.advance_start_offset = start_advanced  # type: ignore[method-assign]
        return copy

    def _accepts(self, run: BrokerRun, key: LogKey, leader_epoch: int) -> None:
        first = self._leaders.setdefault((key, leader_epoch), run)
        self.check(
            first is run,
            lambda: f"I17: {run.node_id} and {first.node_id} both lead epoch {leader_epoch} of {self.history(key)}",
        )

    def _role(self, run: BrokerRun, replica: Replica) -> None:
        log, history = replica.log, self.history(replica.key)
        if log is None:
            return
        assert history is not None, f"{replica} is carried out before anybody has applied its creation"
        copy = self._copy(run, replica.key, log)
        leader = replica.leader
        role = leader or replica.follower
        copy.role, copy.watermark = role, 0 if role is None else role.high_watermark
        if leader is None or leader.leader_epoch < history.unclean_epoch:
            return
        if self.note is not None:
            self.note(
                f"{run.node_id} leads epoch {leader.leader_epoch} of {history}, {log.end_offset} of {history.end}"
            )
        self._accepts(run, replica.key, leader.leader_epoch)
        anew = self._begin_anew(history, copy, leader.leader_epoch)
        # It may hear late that it leads, when there are others already: those have committed what it need not have.
        newest = max(history.ends, default=0)
        end = history.end if leader.leader_epoch >= newest else history.ends.get(leader.leader_epoch, 0)
        if (anew or replica.key in self._set_back) and leader.high_watermark > end:
            # A leader that did not know that it was deposed has gone on, and told it what it shows from now on.
            # Or the one before had its records from a backup, and this one still has what that one lacked.
            end = leader.high_watermark
            self._is_on_disks(run, replica, leader, history)
        self._compare(run, history, copy, end)
        self._begins_late(run, history, log.start_offset)
        self.check(
            log.end_offset >= end,
            lambda: (
                f"I20: {run.node_id} leads epoch {leader.leader_epoch} of {history} with {log.end_offset} records,"
                f" {end} were committed before"
            ),
        )

    def _watermark(self, run: BrokerRun, replica: Replica) -> None:
        log, history, role = replica.log, self.history(replica.key), replica.leader or replica.follower
        if log is None or role is None or history is None:
            return
        copy, watermark = self._copy(run, replica.key, log), role.high_watermark
        if copy.role is role:
            self.check(
                watermark >= copy.watermark,
                lambda: f"I5: the watermark of {history} on {run.node_id} goes from {copy.watermark} to {watermark}",
            )
        copy.role, copy.watermark = role, watermark
        if role.leader_epoch < history.unclean_epoch:
            return
        self.check(
            watermark <= log.end_offset,
            lambda: (
                f"I21: the watermark of {history} on {run.node_id} is {watermark}, the log ends at {log.end_offset}"
            ),
        )
        if isinstance(role, LeaderState):
            self._begin_anew(history, copy, role.leader_epoch)
            if self.note is not None:
                self.note(f"{run.node_id} shows {history} up to {watermark}, isr {role.isr}, {role.maximal_isr()}")
            if watermark > history.end:
                self._is_replicated(run, replica, role, history)
        else:
            self.check(
                watermark <= history.end,
                lambda: f"I21: {run.node_id} follows {history} with watermark {watermark}, committed is {history.end}",
            )
        self._compare(run, history, copy, watermark)

    def _is_replicated(self, run: BrokerRun, replica: Replica, leader: LeaderState, history: History) -> None:
        """I19: what becomes committed now is on the disk of every member of an ISR that is large enough."""
        self._is_on_disks(run, replica, leader, history)
        images = (run.context.cluster.applied, run.context.cluster.newest)
        least = min(min_isr_of(image, replica.topic_id) if replica.topic_id in image.topics else 1 for image in images)
        wanted = min(least, leader.limits.min_isr, replica.image.settled_count)
        self.check(
            len(leader.isr) >= wanted,
            lambda: (
                f"I19: {history} is committed up to {leader.high_watermark} by isr {leader.isr}, {wanted} must be in it"
            ),
        )

    def _is_on_disks(self, run: BrokerRun, replica: Replica, leader: LeaderState, history: History) -> None:
        watermark = leader.high_watermark
        for broker_id in leader.isr:
            if (member := self._runs.get(broker_id)) is not None and (log := member.context.logs.get(history.key)):
                self._begins_late(member, history, log.start_offset)
            end = self.durable_end(broker_id, replica.key)
            self.check(
                end is None or max(end, self._lost.get((broker_id, replica.key), 0)) >= watermark,
                lambda broker_id=broker_id, end=end: (  # type: ignore[misc]
                    f"I19: {history} is committed up to {watermark}, {broker_id} of the isr has {end} on its disk"
                ),
            )

    def _compare(self, run: BrokerRun, history: History, copy: Copy, end: int) -> None:
        """Hold the log against the history up to `end`, of which a leader's watermark may tell what is new."""
        log = copy.log
        end = min(end, log.end_offset)
        offset = max(copy.compared, log.start_offset)
        while offset < end:
            before = offset
            try:
                data = peek(log, offset, end)
            except CorruptStoreError as error:
                self.check(
                    (run.node_id, history.key) in self.damaged,
                    lambda error=error: f"D1: {run.node_id} finds damage: {error}",  # type: ignore[misc]
                )
                offset = end
                break
            for batch in batches_in(data):
                if batch.base_offset >= history.end:
                    problem = history.add(batch, self.clock(), self.forgets_s)
                    self.check(problem is None, lambda problem=problem: str(problem))  # type: ignore[misc]
                else:
                    known = history.at(batch.base_offset)
                    self.check(
                        known == batch or batch.base_offset in history.unknown,
                        lambda batch=batch, known=known: (  # type: ignore[misc]
                            f"I20: {run.node_id} has {batch} in {history}, committed is {known}"
                        ),
                    )
                offset = batch.end_offset
            self.check(
                offset > before,
                lambda offset=offset: f"I20: {run.node_id} has {history} cut at {end}, within the batch at {offset}",  # type: ignore[misc]
            )
        copy.compared = max(copy.compared, offset)

    def _truncates(self, run: BrokerRun, key: LogKey, log: PartitionLog, offset: int) -> None:
        history = self.history(key)
        if offset >= log.end_offset or history is None:
            return
        if self.note is not None:
            self.note(f"{run.node_id} cuts {history} from {log.end_offset} to {offset}, committed is {history.end}")
        self.seen["truncation"] += 1
        copy = run.copies.get(key)
        epoch = -1 if copy is None or copy.role is None else copy.role.leader_epoch
        if epoch < history.unclean_epoch or history.begun_epoch < history.unclean_epoch:
            return
        for batch in batches_of(log, offset, log.end_offset):
            self.check(
                history.at(batch.base_offset) != batch,
                lambda batch=batch: f"I20: {run.node_id} cuts {batch} off {history}, which is committed",  # type: ignore[misc]
            )

    # Deletion from the start

    def _begins_at(self, run: BrokerRun, key: LogKey, start: int) -> None:
        """I24: a log that is opened begins where all could see it begin before."""
        history = self.history(key)
        if history is not None and history.unclean_epoch < 0:
            self._begins_late(run, history, start)

    def _begins_late(self, run: BrokerRun, history: History, start: int) -> None:
        self.check(
            start <= history.start,
            lambda: f"I24: {run.node_id} has {history} from {start} on, retention has deleted up to {history.start}",
        )

    def _deletes(self, run: BrokerRun, key: LogKey, log: PartitionLog, offset: int) -> None:
        """I24: only what is committed is deleted, and only when retention asks for it.

        After an unclean election, a replica may still have, and delete, records that are no part of the history.
        """
        history = self.history(key)
        if history is None or offset <= log.start_offset:
            return
        if self.note is not None:
            kept_from = f"{log.start_offset} to {offset}"
            self.note(f"{run.node_id} deletes {history} from {kept_from}, committed is {history.end}")
        self.seen["records deleted by retention"] += offset - log.start_offset
        if offset <= history.start:
            return
        if history.unclean_epoch >= 0 and not _is_part_of(history, log, offset):
            if history.begun_epoch < history.unclean_epoch:
                history.start_meanwhile = max(history.start_meanwhile, offset)
            return
        self.check(
            offset <= history.end,
            lambda: f"I24: {run.node_id} deletes {history} up to {offset}, committed is {history.end}",
        )
        kept = self.retention.problem(history.spot.topic, log, offset, run.role._sources.wall_ms())
        self.check(kept is None, lambda: f"I24: {run.node_id} deletes {history} up to {offset}: {kept}")
        history.start = offset

    def _restarts(self, run: BrokerRun, key: LogKey, log: PartitionLog, offset: int) -> None:
        """A follower drops everything: its leader's log begins above its own end, or shares nothing with it."""
        history = self.history(key)
        if history is None:
            return
        self.seen["log restarted"] += 1
        history.rebuilt_at = max(history.rebuilt_at, offset)
        if self.note is not None:
            self.note(f"{run.node_id} restarts {history} at {offset}, had {log.start_offset} to {log.end_offset}")
        if history.unclean_epoch >= 0:
            return
        self.check(
            offset <= history.start,
            lambda: f"I24: {run.node_id} restarts {history} at {offset}, others begin at {history.start}",
        )
        for batch in batches_of(log, max(offset, log.start_offset), log.end_offset):
            self.check(
                history.at(batch.base_offset) != batch,
                lambda batch=batch: f"I20: {run.node_id} drops {batch} of {history}, which is committed",  # type: ignore[misc]
            )

    def _epoch_begins(self, election: Election) -> None:
        history = self.history(election.key)
        assert history is not None, election
        history.ends[election.leader_epoch] = history.end
        partition = self._partition(history.spot)
        alone = None if partition is None or len(partition.replicas) > 1 else partition.replica_ids[0]
        if (alone, election.key) in self._unsynced:
            # With write.caching, the only replica leads with what a power failure has left.  D1 judges that.
            self.seen["only replica led after a power failure"] += 1
            self._unclean(election)

    def _partition(self, spot: Spot) -> PartitionImage | None:
        topic = self.metadata.image.topic(spot.topic)
        return None if topic is None else topic.partition(spot.index)

    # Restored backups

    def _elected(self, election: Election, old: PartitionImage, new: PartitionImage) -> None:
        """A replica that a backup has put back may lead only if no other member of the ISR or ELR can.

        Nothing tells the cluster that it lacks records that it had acknowledged.
        """
        where = (new.leader, election.key)
        if where not in self._stale or not self._is_registered(new.leader):
            return  # who is elected before its new process has registered never leads in that epoch
        others = [each for each in old.isr if each != new.leader and self._can_lead(old, each)]
        self.check(
            not others,
            lambda: f"I20: {new.leader} leads with what a backup had, {others} of the isr can lead: {old} to {new}",
        )
        self.seen["leader from a restored backup"] += 1
        self._set_back.add(election.key)
        self._unclean(election)

    def _joined(self, key: LogKey, broker_ids: frozenset[int]) -> None:
        """I19: who joins the ISR has everything that is committed."""
        history = self.history(key)
        committed = 0 if history is None or history.unclean_epoch >= 0 else history.end
        for broker_id in sorted(broker_ids):
            end = self.durable_end(broker_id, key) if self._is_registered(broker_id) else None
            self.check(
                end is None or end >= committed,
                lambda broker_id=broker_id, end=end: (  # type: ignore[misc]
                    f"I19: {broker_id} joins the isr of {history} with {end} records, {committed} are committed"
                ),
            )
            self._stale.discard((broker_id, key))
            self._unsynced.discard((broker_id, key))

    def _is_registered(self, broker_id: int) -> bool:
        """Return whether the registration in force is that of the process that runs."""
        run, broker = self._runs.get(broker_id), self.metadata.image.brokers.get(broker_id)
        life = None if run is None else run.role.lifecycle
        return life is not None and broker is not None and broker.incarnation_id == life.identity.incarnation_id

    def _can_lead(self, partition: PartitionImage, broker_id: int) -> bool:
        broker, replica = self.metadata.image.brokers.get(broker_id), partition.replica(broker_id)
        return (
            broker is not None
            and broker.active
            and replica is not None
            and broker.directory_online(replica.directory_id)
        )

    # Unclean elections

    def _unclean(self, election: Election) -> None:
        history = self.history(election.key)
        assert history is not None, election
        history.unclean_epoch = election.leader_epoch

    def _begin_anew(self, history: History, copy: Copy, leader_epoch: int) -> bool:
        """The leader of an unclean election has what it has: that is what is committed from now on.  It is the first
        that leads since, in that epoch or, when it started again before it heard of that one, in a later one.
        """
        if leader_epoch < history.unclean_epoch or history.begun_epoch >= history.unclean_epoch:
            return False
        history.begun_epoch = history.unclean_epoch
        self._unsynced = {one for one in self._unsynced if one[1] != history.key}
        log = copy.log
        offset = log.start_offset
        for batch in batches_of(log, offset, log.end_offset):
            if history.at(batch.base_offset) != batch:
                break
            offset = batch.end_offset
        lost = history.cut_to(offset)
        history.begin_at(log.start_offset)
        self.seen["records lost in unclean elections"] += lost
        self.latest = {asked: least for asked, least in self.latest.items() if asked[1] != history.spot}
        for run in self._runs.values():
            for other in run.copies.values():
                if other.log.key == history.key:
                    other.compared = min(other.compared, history.end)
        return True

    # Clients

    def named(self, spot: Spot) -> list[History]:
        """Of all partitions that have ever gone by this name."""
        keys = self.metadata.identities.get(spot, [])
        return [history for key in keys if (history := self.history(key)) is not None]

    def _is_committed(self, spot: Spot, offset: int, marks: Sequence[Mark]) -> bool:
        """Or may have been before an unclean election: who was deposed by one does not know it at once."""
        return any(history.holds(offset, marks) or history.unclean_epoch >= 0 for history in self.named(spot))

    def acknowledged(self, spot: Spot, offset: int, marks: Sequence[Mark]) -> None:
        """An acks=all producer has its answer."""
        self.check(
            self._is_committed(spot, offset, marks),
            lambda: f"I20: {marks} of {spot} are acknowledged at {offset}, which is not committed",
        )

    def consumed(self, client: str, spot: Spot, offset: int, marks: Sequence[Mark]) -> None:
        """A consumer sees these records from `offset` on."""
        self.check(
            self._is_committed(spot, offset, marks),
            lambda: f"I21: a consumer sees {marks} of {spot} at {offset}, which is not committed",
        )
        self._is_past(client, spot, offset + len(marks))

    def listed_latest(self, client: str, spot: Spot, offset: int) -> None:
        """ListOffsets(latest) answered `offset`.  A leader that was deposed and has not heard of it knows less than its
        successor, so this is promised to each client for itself: it goes back to no leader of an older epoch."""
        if not self._may_lose(spot):
            least = self.latest.get((client, spot), 0)
            self.check(
                offset >= least, lambda: f"I21: the latest offset of {spot} is {offset} for {client}, was {least}"
            )
        self._is_past(client, spot, offset)

    def listed_earliest(self, client: str, spot: Spot, offset: int) -> None:
        """ListOffsets(earliest) answered `offset`: nothing may be missing that no retention has deleted."""
        self._is_gone(client, spot, offset)

    def refused(self, client: str, spot: Spot, offset: int) -> None:
        """A fetch from `offset`, which the client had reason to ask for, was answered with OFFSET_OUT_OF_RANGE."""
        self.seen["consumer out of range"] += 1
        self._is_gone(client, spot, offset + 1)

    def _is_gone(self, client: str, spot: Spot, below: int) -> None:
        """I21: that all records below this offset are missing is in order."""
        if not self._may_lose(spot):
            start = self.named(spot)[0].start
            self.check(
                below <= start, lambda: f"I21: {client} is told that {spot} is gone up to {below}, it begins at {start}"
            )

    def _is_past(self, client: str, spot: Spot, offset: int) -> None:
        if not self._may_lose(spot):
            self.latest[client, spot] = max(self.latest.get((client, spot), 0), offset)

    def has_lost(self, topic: str) -> bool:
        """Return whether any partition of this name has lost records in an election."""
        return any(one.unclean_epoch >= 0 for one in self.histories.values() if one.spot.topic == topic)

    def _may_lose(self, spot: Spot) -> bool:
        """What goes by this name has been another partition, or has lost records in an unclean election."""
        histories = self.named(spot)
        return len(histories) != 1 or histories[0].unclean_epoch >= 0


def _is_part_of(history: History, log: PartitionLog, offset: int) -> bool:
    """Whether what the log has below `offset` is what is committed."""
    return all(history.at(batch.base_offset) == batch for batch in batches_of(log, log.start_offset, offset))
