"""The checks after all faults have ended: a leader, answers, completed changes, equal images, and no busy loops.

Each step has a limit in virtual time; exceeding it is a violation.  At the end the images are compared with the log,
and the clients' history is checked for linearizability.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable

from msgspec.structs import replace

from quorum.core.events import CancelTarget
from quorum.node import QuorumNode
from simulation.kernel.violation import Violation
from simulation.quorum.linearizability import check
from simulation.quorum.world import CLIENTS, REQUEST_MS, Host, QuorumWorld

LEADER_S = 10.0
SLOW_LEADER_S = 30.0
"""The limit if some disks are slow.  If two of five disks are lost, each commit waits for a slow disk, for longer than
clients wait."""
SETTLE_S = 60.0
CONVERGE_S = 30.0
FIND_S = 10.0
QUIET_S = 2.0
CALM_S = 15.0
MOVES_MAX = 3
SLOW_SHARE = 4  # a disk is slow if a write takes at least the election timeout divided by this number
LOST_FETCH_S = 6.0  # longer than observers wait for an answer (RaftConfig.observer_wait_ms)
QUIET_TICKS_PER_S = 60
"""A node without requests may tick this often; more is a busy loop."""


class Aftermath:
    """The checks of one run."""

    def __init__(self, world: QuorumWorld) -> None:
        self.world = world

    async def check(self, stop_clients: asyncio.Event) -> None:
        """Check that the quorum recovers.

        Raises:
            Violation: it does not recover in time, or its state is wrong.
        """
        world = self.world
        bound_s = SLOW_LEADER_S if world.plan.slow_disks else LEADER_S
        await world.until(lambda: world.leader() is not None, "L1: a leader is elected", bound_s)
        await world.until(self._clients_are_served(), "L2: clients are answered", bound_s)
        stop_clients.set()
        await self._settle()
        await self._repair_addresses()
        await world.until(world.converged, "L2: all nodes are caught up", CONVERGE_S)
        await self._stay_quiet()
        if world.plan.slow_disks:
            await self._stay_with_one_leader()
        self._compare()
        self._check_history()

    def _clients_are_served(self) -> Callable[[], bool]:
        """Return a condition that holds once clients have received as many answers as there are clients.

        If disks are slow, a write may take longer than the client waits.  Then it suffices that as many records have
        been committed.
        """
        world = self.world
        answers, committed = world.acknowledged + CLIENTS, world.watch.committed_end + CLIENTS

        def are_served() -> bool:
            slow = bool(world.plan.slow_disks)
            return world.acknowledged >= answers or (slow and world.watch.committed_end >= committed)

        return are_served

    # Pending changes

    async def _settle(self) -> None:
        """L3: pending changes complete.  A target that cannot be reached names the obstacle and can be cancelled."""
        world = self.world
        is_settled = False
        while not is_settled:
            await world.until(self._is_at_target, "L3: the target is reached, or names its obstacle", SETTLE_S)
            if self._has_target():
                world.watch.seen["target cancelled at the end"] += 1
                await world.until(self._cancelled(), "L3: the target is cancelled", SETTLE_S)
            await world.until(
                lambda: self._has_target() or self._addresses_are_right(),
                "L3: the log has the addresses of the voters",
                SETTLE_S,
            )
            is_settled = not self._has_target()  # a late request may set another target
        await world.until(self.preference_is_kept, "a preferred controller leads", SETTLE_S)

    def _leading(self) -> QuorumNode | None:
        host = self.world.leader()
        return None if host is None else host.node

    def _has_target(self) -> bool:
        node = self._leading()
        return node is not None and node.core.history.target is not None

    def _is_at_target(self) -> bool:
        node = self._leading()
        if node is None or node.high_watermark <= node.core.history.changed_at:
            return False
        return node.core.history.target is None or node.core.target_problem is not None

    def _cancelled(self) -> Callable[[], bool]:
        """Return a condition that asks each leader to cancel the target, and holds when no target is left."""
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

    def preference_is_kept(self) -> bool:
        """Return whether a preferred controller leads, or none of them has to.

        A preferred controller does not have to lead if it is not a voter, has lost its disk, or had a slow disk.
        """
        host = self.world.leader()
        if host is None or host.node is None or host.replay is None:
            return False
        preferred = host.replay.image.preferred_controllers
        if host.node_id in preferred:
            return True
        present = self.world.present_disks()
        keys = [voter.key for voter in host.node.core.history.current]
        voters = [key.node_id for key in keys if (key.node_id, key.directory_id) in present]
        return not any(one in voters and self._was_fast(self.world.hosts[one]) for one in preferred)

    @staticmethod
    def _was_fast(host: Host) -> bool:
        """Return whether the host's disk was never slow.

        A write takes at most two syncs, and may first wait for another write.  So it may last as long as four syncs.
        """
        return 4 * host.disk.slowest_ms * SLOW_SHARE < host.config.election_timeout_ms

    async def _repair_addresses(self) -> None:
        """Restart each node that cannot find any voter, with the leader's address, as an operator would."""
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
                world.watch.seen["address configured by an operator"] += 1
                host.config = replace(host.config, bootstrap=(leader.address,))
                world.kill(host.node_id)
                world.start(host.node_id)

    # Quiet

    async def _stay_quiet(self) -> None:
        world = self.world
        await asyncio.sleep(REQUEST_MS / 1000)
        before = {host.node_id: host.run.ticks for host in world.hosts.values() if host.run is not None}
        await asyncio.sleep(QUIET_S)
        # An observer repeats a fetch that the last fault lost only when the fetch times out.
        await world.until(world.converged, "L2: all nodes stay caught up", LOST_FETCH_S)
        late = world.unanswered()
        if late is not None:
            raise Violation(f"L6: {late[0]} has not answered a call since {late[1]:.3f} s")
        for host in world.hosts.values():
            ticks = (host.run.ticks if host.run is not None else 0) - before[host.node_id]
            if ticks > QUIET_S * QUIET_TICKS_PER_S:
                raise Violation(f"busy: {host.name} ticks {ticks} times in {QUIET_S} quiet seconds")

    async def _stay_with_one_leader(self) -> None:
        """L8: with slow disks and clients that write, leadership rarely moves.

        This counts leaders, not epochs: an election that needs the vote of a slow disk may take several epochs.  L1
        limits its duration.
        """
        world = self.world
        before = world.watch.elected
        stop = world.start_clients()
        await asyncio.sleep(CALM_S)
        stop.set()
        await asyncio.sleep(2 * REQUEST_MS / 1000)  # of virtual time: lets the last requests end
        moved = world.watch.elected - before
        world.watch.seen["leadership moved with slow disks"] += moved
        if moved > MOVES_MAX:
            raise Violation(f"L8: {moved} leaders were elected in {CALM_S} s; {world.plan.slow_disks} have slow disks")
        await world.until(world.converged, "L2: all nodes are caught up again", CONVERGE_S)

    # The final state

    def _compare(self) -> None:
        world = self.world
        digests = {host.replay.image.digest() for host in world.hosts.values() if host.replay is not None}
        if digests != {world.watch.images.digest(world.watch.committed_end)}:
            raise Violation(f"I13: images differ from each other or from the replay of the log: {sorted(digests)}")

    def _check_history(self) -> None:
        world = self.world
        # An operation without an answer that is not in the log by now had no effect, and never will.
        history = world.history + [operation for number, operation in world.unknown if number in world.watch.marks]
        verdict = check(history)
        world.undecided += len(verdict.undecided)
        if verdict.bad:
            found = [str(one) for one in sorted(history, key=lambda one: one.began) if one.key in verdict.bad]
            world.note("\n".join(found))
            raise Violation(f"I14: the history of {', '.join(verdict.bad)} is not linearizable")
