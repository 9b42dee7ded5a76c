"""What must come when the faults have ended: a leader, answers, ends of what was begun, equal images, quiet.

Each step has a bound in virtual time; what does not come within it is a broken promise like any other.  At the end the
state is compared with the log, and the clients' history is judged.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from dataclasses import replace

from quorum.core.events import CancelTarget
from quorum.node import QuorumNode
from simulation.kernel.violation import Violation
from simulation.quorum.linearizability import check
from simulation.quorum.world import CLIENTS, REQUEST_MS, QuorumWorld

LEADER_S = 10.0
SLOW_LEADER_S = 30.0
"""With slow disks.  Where two of five disks are lost, each commit waits for a slow one, for longer than clients do."""
SETTLE_S = 60.0
CONVERGE_S = 30.0
FIND_S = 10.0
QUIET_S = 2.0
CALM_S = 15.0
MOVES_MAX = 3
LOST_FETCH_S = 6.0  # longer than observers wait for an answer (RaftConfig.observer_wait_ms)
QUIET_TICKS_PER_S = 60
"""A node that is asked for nothing may tick this often; more is a busy loop."""


class Aftermath:
    def __init__(self, world: QuorumWorld) -> None:
        self.world = world

    async def follow(self, stop_clients: asyncio.Event) -> None:
        """
        Raises:
            Violation: something did not come in time, or is not as it must be.
        """
        world = self.world
        bound_s = SLOW_LEADER_S if world.plan.slow_disks else LEADER_S
        await world.until(lambda: world.leader() is not None, "L1: a leader is", bound_s)
        before = world.acknowledged
        await world.until(lambda: world.acknowledged >= before + CLIENTS, "L2: clients are answered", bound_s)
        stop_clients.set()
        await self._settle()
        await self._help_the_lost()
        await world.until(world.converged, "L2: all nodes are caught up", CONVERGE_S)
        await self._stay_quiet()
        if world.plan.slow_disks:
            await self._stay_with_one_leader()
        self._compare()
        self._judge()

    # What was begun ends

    async def _settle(self) -> None:
        """L3: what was begun comes to its end.  A target that cannot be reached says why, and can be cancelled."""
        world = self.world
        await world.until(self._is_at_target, "L3: the target is reached, or says what is in its way", SETTLE_S)
        leader = self._leading()
        if leader is not None and leader.core.history.target is not None:
            world.watch.seen["target cancelled at the end"] += 1
            await world.until(self._cancelled(), "L3: the target is cancelled", SETTLE_S)
        await world.until(self._addresses_are_right, "L3: the log says where the voters are", SETTLE_S)
        await world.until(self._preference_is_kept, "a preferred controller leads", SETTLE_S)

    def _leading(self) -> QuorumNode | None:
        host = self.world.leader()
        return None if host is None else host.node

    def _is_at_target(self) -> bool:
        node = self._leading()
        if node is None or node.high_watermark <= node.core.history.changed_at:
            return False
        return node.core.history.target is None or node.core.target_problem is not None

    def _cancelled(self) -> Callable[[], bool]:
        """Ask each leader that there is to cancel the target; whether there is none any more."""
        asked: set[tuple[int, int, int]] = set()

        async def cancel(node: QuorumNode) -> None:
            await node.change_voters(CancelTarget(), dry_run=False, timeout_ms=REQUEST_MS)

        def is_cancelled() -> bool:
            host = self.world.leader()
            if host is None or host.node is None or host.process is None:
                return False
            if host.node.core.history.target is None:
                return host.node.high_watermark > host.node.core.history.changed_at
            turn = (host.node_id, host.node.epoch, int(self.world.loop.true_time()))  # once a second
            if turn not in asked:
                asked.add(turn)
                host.process.start(cancel(host.node))
            return False

        return is_cancelled

    def _addresses_are_right(self) -> bool:
        node = self._leading()
        return node is not None and not self.world.misplaced(node.core.history.current)

    def _preference_is_kept(self) -> bool:
        """A preferred voter leads, if one has its disk."""
        host = self.world.leader()
        if host is None or host.node is None or host.replay is None:
            return False
        present = self.world.present_disks()
        keys = [voter.key for voter in host.node.core.history.current]
        voters = [key.node_id for key in keys if (key.node_id, key.directory_id) in present]
        preferred = [one for one in host.replay.image.preferred_controllers if one in voters]
        return not preferred or host.node_id in preferred

    async def _help_the_lost(self) -> None:
        """Whom nobody could tell where all voters that it knew have moved to needs an operator, who starts it anew."""
        world = self.world
        lives_at = {host.address for host in world.hosts.values()}
        with contextlib.suppress(Violation):
            await world.until(world.converged, "all nodes are caught up", FIND_S)
        if world.broken.is_set():
            raise Violation(world.violation)
        leader = world.leader()
        for host in world.hosts.values():
            named = host.node.core.config.bootstrap if host.node is not None else ()
            knows_nobody = not host.disk.state.voters and lives_at.isdisjoint(named)
            if leader is not None and (knows_nobody or world.misplaced(host.disk.state.voters)):
                world.watch.seen["told an address by its operator"] += 1
                host.config = replace(host.config, bootstrap=(leader.address,))
                world.kill(host.node_id)
                world.start(host.node_id)

    # Quiet

    async def _stay_quiet(self) -> None:
        world = self.world
        await asyncio.sleep(REQUEST_MS / 1000)
        before = {host.node_id: host.run.ticks for host in world.hosts.values() if host.run is not None}
        await asyncio.sleep(QUIET_S)
        # An observer's fetch that was lost with the last fault is asked again only when it would have been answered.
        await world.until(world.converged, "L2: all nodes stay caught up", LOST_FETCH_S)
        late = world.unanswered()
        if late is not None:
            raise Violation(f"L6: {late[0]} has not answered a call since {late[1]:.3f} s")
        for host in world.hosts.values():
            ticks = (host.run.ticks if host.run is not None else 0) - before[host.node_id]
            if ticks > QUIET_S * QUIET_TICKS_PER_S:
                raise Violation(f"busy: {host.name} ticks {ticks} times in {QUIET_S} quiet seconds")

    async def _stay_with_one_leader(self) -> None:
        """L8: with slow disks and clients that write, leadership hardly moves."""
        world = self.world
        before = self._epoch()
        stop = world.start_clients()
        await asyncio.sleep(CALM_S)
        stop.set()
        await asyncio.sleep(2 * REQUEST_MS / 1000)
        moved = self._epoch() - before
        world.watch.seen["leadership moved with slow disks"] += moved
        if moved > MOVES_MAX:
            raise Violation(f"L8: {moved} epochs began in {CALM_S} s; {world.plan.slow_disks} have slow disks")
        await world.until(world.converged, "L2: all nodes are caught up again", CONVERGE_S)

    def _epoch(self) -> int:
        return max(host.node.epoch for host in self.world.hosts.values() if host.node is not None)

    # The end

    def _compare(self) -> None:
        world = self.world
        digests = {host.replay.image.digest() for host in world.hosts.values() if host.replay is not None}
        if digests != {world.watch.images.digest(world.watch.committed_end)}:
            raise Violation(f"I13: images differ, from each other or from what the log says: {sorted(digests)}")

    def _judge(self) -> None:
        world = self.world
        # What is not in the log now has not happened, and will not.
        history = world.history + [operation for number, operation in world.unknown if number in world.watch.marks]
        verdict = check(history)
        world.undecided += len(verdict.undecided)
        if verdict.bad:
            found = [str(one) for one in sorted(history, key=lambda one: one.began) if one.key in verdict.bad]
            world.note("\n".join(found))
            raise Violation(f"I14: the history of {', '.join(verdict.bad)} is not linearizable")
