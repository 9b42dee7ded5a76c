"""I5, I17, I19, I20, I21: the roles, watermarks and logs of all replicas, compared with the histories.

A log is compared with its history only up to the watermark of its role, and only from the end of the last comparison,
so that each batch is compared once for each replica.  A new leader's log is compared up to the end of the history.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from broker.core.partition import LeaderState
from broker.log import LogKey, PartitionLog
from broker.replica.replica import Replica
from quorumlog.errors import CorruptStoreError
from simulation.cluster.compactions import CompactionWatch
from simulation.cluster.deletions import DeletionWatch
from simulation.cluster.disks import DiskWatch
from simulation.cluster.elections import ElectionWatch
from simulation.cluster.evidence import BrokerRun, Copy, Evidence
from simulation.cluster.history import History, batches_in, batches_of, peek


class ReplicaWatch:
    def __init__(
        self,
        evidence: Evidence,
        disks: DiskWatch,
        deletions: DeletionWatch,
        elections: ElectionWatch,
        clock: Callable[[], float],
        forgets_s: float,
    ) -> None:
        """clock: true time.  forgets_s: the shortest time for which a producer without requests is remembered."""
        self._evidence = evidence
        self._disks = disks
        self._deletions = deletions
        self._elections = elections
        self._clock = clock
        self._forgets_s = forgets_s
        self._compacted = CompactionWatch(evidence, clock)
        self._leaders: dict[tuple[LogKey, int], BrokerRun] = {}
        """By partition and leader epoch: the broker that leads."""

    def watch(self, run: BrokerRun) -> None:
        """Follow the roles and watermarks of the replicas in a process that is about to run."""
        events = run.context.events
        events.watermark_moved.subscribe(lambda replica: self._on_watermark(run, replica))
        events.role_changed.subscribe(lambda replica: self._on_role(run, replica))

    def recovered(self, run: BrokerRun) -> None:
        """Follow the logs that a process has recovered."""
        for key, log in run.context.logs.logs.items():
            self._copy(run, key, log)

    def read_damaged(self) -> None:
        """D2: reading a replica whose bytes have changed yields committed records or an error."""
        evidence = self._evidence
        for run in evidence.runs.values():
            for key, log in run.context.logs.logs.items():
                history = evidence.history(key)
                if (run.node_id, key) in evidence.damaged and history is not None:
                    self._compare(run, history, Copy(log, log.start_offset), history.end)
                    evidence.seen["damaged replica read to the end"] += 1

    def read_compacted(self) -> None:
        """I32: read every replica of every compacted partition."""
        for run in self._evidence.runs.values():
            for key, log in run.context.logs.logs.items():
                if (copy := run.copies.get(key)) is not None and copy.log is log:
                    self._read_again(run, key, copy)

    def _read_again(self, run: BrokerRun, key: LogKey, copy: Copy, changed: range | None = None) -> None:
        """Compare a replica of a compacted partition again, as far as it was compared before.

        changed: the offsets of the only segment that has changed since the last comparison, if that is known.
        """
        history = self._evidence.history(key)
        if history is None or not history.is_keyed or history.begun_epoch < history.unclean_epoch:
            return
        if copy.role is not None and copy.role.leader_epoch < history.unclean_epoch:
            return
        end = copy.compared = min(copy.compared, history.end)
        begin, stop = (copy.log.start_offset, end) if changed is None else (changed.start, min(changed.stop, end))
        if begin < stop:  # a segment above the compared records must not count as compared
            self._compare(run, history, copy, stop, begin)
        if changed is None:
            self._compacted.read_whole(run, history, copy.log, end)
        else:
            self._compacted.swapped(run, history, copy.log, end, changed)

    # Changes of a log

    def _copy(self, run: BrokerRun, key: LogKey, log: PartitionLog) -> Copy:
        copy = run.copies.get(key)
        if copy is None or copy.log is not log:
            copy = run.copies[key] = Copy(log, log.start_offset)
            self._deletions.opened(run, key, log)
            self._compacted.shortened(log, log.end_offset)  # by a restored backup, or by a loss of unsynced data
            self._follow_log(run, key, copy)
        return copy

    def _follow_log(self, run: BrokerRun, key: LogKey, copy: Copy) -> None:
        """Wrap the methods of the log that change it."""
        log = copy.log
        truncate, restart, append = log.truncate_to, log.restart_at, log.append_as_leader
        advance_start, swap = log.advance_start_offset, log.compaction.swap

        def swapped(replaced: Any, checked: Any) -> None:
            swap(replaced, checked)
            self._evidence.seen["segments replaced by compaction"] += len(replaced)
            self._read_again(run, key, copy, range(checked.segment.base_offset, checked.segment.end_offset))

        def restarted(offset: int, epoch: int = -1) -> None:
            self._deletions.restarts(run, key, log, offset)
            restart(offset, epoch)
            if key in self._elections.led_from_backup:
                # This replica has discarded its log to copy the restored leader's log.  It may be elected from the ELR
                # before it has fetched the records that both replicas had.
                self._evidence.stale.add((run.node_id, key))
            self._compacted.shortened(log, 0)
            self._disks.forget_above(run.node_id, key, 0)
            copy.compared = copy.noted = offset
            copy.watermark = min(copy.watermark, offset)

        def truncated(offset: int) -> None:
            self._truncates(run, key, log, offset)
            truncate(offset)
            self._compacted.shortened(log, log.end_offset)
            self._disks.forget_above(run.node_id, key, log.end_offset)
            copy.compared = min(copy.compared, log.end_offset)
            copy.watermark = min(copy.watermark, log.end_offset)
            copy.noted = min(copy.noted, log.end_offset)

        def start_advanced(offset: int) -> None:
            before = log.start_offset
            advance_start(offset)
            after, log.marks.start_offset = log.start_offset, before  # so that the check can read the deleted records
            try:
                self._deletions.deletes(run, key, log, after)
            finally:
                log.marks.start_offset = after

        def appended(batches: Any, leader_epoch: int, now_ms: int, *more: Any, **options: Any) -> Any:
            outcome = append(batches, leader_epoch, now_ms, *more, **options)
            if getattr(outcome, "duplicate", False):
                self._evidence.seen["duplicate recognised"] += 1
            self._check_only_leader(run, key, leader_epoch)
            return outcome

        log.compaction.swap = swapped  # type: ignore[method-assign]
        log.truncate_to = truncated  # type: ignore[method-assign]
        log.restart_at = restarted  # type: ignore[method-assign]
        log.append_as_leader = appended  # type: ignore[method-assign]
        log.advance_start_offset = start_advanced  # type: ignore[method-assign]

    def _truncates(self, run: BrokerRun, key: LogKey, log: PartitionLog, offset: int) -> None:
        evidence = self._evidence
        history = evidence.history(key)
        if offset >= log.end_offset or history is None:
            return
        if evidence.note is not None:
            span = f"from {log.end_offset} to {offset}"
            evidence.note(f"{run.node_id} truncates {history} {span}, committed is {history.end}")
        evidence.seen["truncation"] += 1
        copy = run.copies.get(key)
        epoch = -1 if copy is None or copy.role is None else copy.role.leader_epoch
        if epoch < history.unclean_epoch or history.begun_epoch < history.unclean_epoch:
            return
        for batch in batches_of(log, offset, log.end_offset, history.is_keyed):
            # The log of an uncleanly elected leader may begin above records of the history that it never had.
            is_deleted = batch.end_offset <= history.start
            evidence.check(
                is_deleted or not history.has(batch),
                lambda batch=batch: f"I20: {run.node_id} truncates {batch} of {history}, which is committed",  # type: ignore[misc]
            )

    # Roles and watermarks

    def _check_only_leader(self, run: BrokerRun, key: LogKey, leader_epoch: int) -> None:
        evidence, first = self._evidence, self._leaders.setdefault((key, leader_epoch), run)
        evidence.check(
            first is run,
            lambda: f"I17: {run.node_id} and {first.node_id} both lead epoch {leader_epoch} of {evidence.history(key)}",
        )

    def _on_role(self, run: BrokerRun, replica: Replica) -> None:
        evidence = self._evidence
        log, history = replica.log, evidence.history(replica.key)
        if log is None:
            return
        assert history is not None, f"{replica} has a role before any node has applied its creation"
        copy = self._copy(run, replica.key, log)
        leader = replica.leader
        role = leader or replica.follower
        copy.role, copy.watermark = role, 0 if role is None else role.high_watermark
        if leader is None or leader.leader_epoch < history.unclean_epoch:
            return
        if evidence.note is not None:
            position = f"{log.end_offset} of {history.end}"
            evidence.note(f"{run.node_id} leads epoch {leader.leader_epoch} of {history}, {position}")
        self._check_only_leader(run, replica.key, leader.leader_epoch)
        self._elections.start_history_over(history, copy, leader.leader_epoch)
        # A leader may learn of its leadership when later leaders exist.  It then lacks the records that they committed.
        newest = max(history.ends, default=0)
        end = history.end if leader.leader_epoch >= newest else history.ends.get(leader.leader_epoch, 0)
        begins_above = leader.high_watermark > end and self._elections.may_begin_above(history)
        if begins_above:
            end = leader.high_watermark
            self._check_on_disks(run, replica, leader, history)
            if log.start_offset > history.end:
                history.begin_at(log.start_offset)
        self._compare(run, history, copy, end)
        if begins_above:
            self._elections.note_begun(history)
        self._deletions.check_start(run, history, log.start_offset, end)
        evidence.check(
            log.end_offset >= end,
            lambda: (
                f"I20: {run.node_id} leads epoch {leader.leader_epoch} of {history} with {log.end_offset} records,"
                f" {end} were committed before"
            ),
        )

    def _on_watermark(self, run: BrokerRun, replica: Replica) -> None:
        evidence = self._evidence
        log, history, role = replica.log, evidence.history(replica.key), replica.leader or replica.follower
        if log is None or role is None or history is None:
            return
        copy, watermark = self._copy(run, replica.key, log), role.high_watermark
        if copy.role is role:
            evidence.check(
                watermark >= copy.watermark,
                lambda: f"I5: the watermark of {history} on {run.node_id} moves from {copy.watermark} to {watermark}",
            )
        copy.role, copy.watermark = role, watermark
        if role.leader_epoch < history.unclean_epoch:
            self._compacted.committed_aside(history, copy)
            return
        evidence.check(
            watermark <= log.end_offset,
            lambda: (
                f"I21: the watermark of {history} on {run.node_id} is {watermark}, the log ends at {log.end_offset}"
            ),
        )
        if isinstance(role, LeaderState):
            self._elections.start_history_over(history, copy, role.leader_epoch)
            if evidence.note is not None:
                isr = f"isr {role.isr}, maximal isr {role.maximal_isr()}"
                evidence.note(f"{run.node_id} commits {history} up to {watermark}, {isr}")
            if watermark > history.end:
                self._check_replicated(run, replica, role, history)
        else:
            evidence.check(
                watermark <= max(history.end, history.unread_end),
                lambda: f"I21: {run.node_id} follows {history} with watermark {watermark}, committed is {history.end}",
            )
        self._compare(run, history, copy, watermark)
        if isinstance(role, LeaderState):
            for watch in evidence.on_leader_watermark:
                watch(history, log, role.leader_epoch)

    def _check_replicated(self, run: BrokerRun, replica: Replica, leader: LeaderState, history: History) -> None:
        """I19: records become committed only when they are on the disk of each member of a large enough ISR."""
        self._check_on_disks(run, replica, leader, history)
        cluster, metadata = run.context.cluster, self._evidence.metadata
        least = metadata.least_min_isr(replica.topic_id, cluster.applied.end_offset, cluster.newest.end_offset)
        wanted = min(least, replica.image.settled_count)
        self._evidence.check(
            len(leader.isr) >= wanted,
            lambda: (
                f"I19: {history} is committed up to {leader.high_watermark} by isr {leader.isr}, which needs {wanted}"
            ),
        )

    def _check_on_disks(self, run: BrokerRun, replica: Replica, leader: LeaderState, history: History) -> None:
        watermark, partition = leader.high_watermark, self._evidence.partition(history)
        for broker_id in leader.isr:
            if partition is not None and broker_id in partition.adding and broker_id not in partition.isr:
                continue  # it was removed and added again, with an empty log; the leader has an older image
            member = self._evidence.runs.get(broker_id)
            if member is not None and (log := member.context.logs.get(history.key)):
                self._deletions.check_start(member, history, log.start_offset, watermark)
            end = self._disks.durable_end(broker_id, replica.key)
            self._evidence.check(
                end is None or max(end, self._disks.lost_end(broker_id, replica.key)) >= watermark,
                lambda broker_id=broker_id, end=end: (  # type: ignore[misc]
                    f"I19: {history} is committed up to {watermark}, {broker_id} of the isr has {end} on its disk"
                ),
            )

    # Records

    def _compare(self, run: BrokerRun, history: History, copy: Copy, end: int, begin: int | None = None) -> None:
        """Compare the log with the history up to `end`, and extend the history by batches above its end.

        begin: the offset of the first batch; None: the end of the last comparison.
        """
        check = self._evidence.check
        log = copy.log
        end = min(end, log.end_offset)
        offset = max(copy.compared if begin is None else begin, log.start_offset)
        while offset < end:
            before = offset
            try:
                data = peek(log, offset, end)
            except CorruptStoreError as error:
                check(
                    (run.node_id, history.key) in self._evidence.damaged,
                    lambda error=error: f"D1: {run.node_id} finds damage: {error}",  # type: ignore[misc]
                )
                if offset < history.end < end:
                    offset = history.end  # the damage may be in an older batch
                    continue
                history.unread_end = max(history.unread_end, end)
                offset = end
                break
            for batch in batches_in(data, history.is_keyed):
                self._compacted.reached(run, history, batch)
                if batch.base_offset >= history.end:
                    problem = history.add(batch, self._clock(), self._forgets_s)
                    check(problem is None, lambda problem=problem: str(problem))  # type: ignore[misc]
                    for watch in self._evidence.on_committed:
                        watch(history, batch)
                else:
                    check(
                        history.has(batch) or batch.base_offset in history.unknown,
                        lambda batch=batch: (  # type: ignore[misc]
                            f"I20: {run.node_id} has {batch} in {history}, committed is {history.at(batch.base_offset)}"
                        ),
                    )
                    self._compacted.compared(run, history, log, batch)
                offset = batch.end_offset
            # A replica may have compacted records into one batch before an unclean election removed some of them.
            check(
                offset > before or (history.is_keyed and history.unclean_epoch >= 0),
                lambda offset=offset: (  # type: ignore[misc]
                    f"I20: {run.node_id} has {history} truncated at {end}, within the batch at {offset}"
                ),
            )
            if offset == before:
                break
        copy.compared = max(copy.compared, offset)
