"""Nodes that join and leave the voters automatically, and nodes that must not."""

from __future__ import annotations

import asyncio
from itertools import pairwise
from pathlib import Path
from random import Random
from types import SimpleNamespace
from typing import Any, cast
from uuid import UUID

import pytest
from structlog.testing import capture_logs

from quorum.core.core import RaftCore
from quorum.core.types import Batch, LogBase, LogEnd, ReplicaKey, Voter, Voters, VoterSet
from quorum.core.voters import VoterHistory
from quorumlog.errors import CorruptStoreError, FatalError
from quorumlog.wire.rpcs import AnyRpc
from quorumlog.wire.v1 import controller_pb2 as pb
from quorumlog_server.standing import FILE, FileStanding, MemoryStanding, Standing
from quorumlog_server.volunteer import WAIT_FIRST_S, WAIT_MAX_S, Volunteer
from tests.unit.metadata.fake_node import run, settle

OWN = ReplicaKey(4, UUID(int=4))


def voters(*ids: int) -> VoterSet:
    return VoterSet(tuple(Voter(ReplicaKey(one, UUID(int=one)), f"n{one}:1") for one in ids))


class FakeNode:
    """An observer that is caught up; `voters_are` appends and commits a voter set."""

    node_id, directory_id, address, leader_id = 4, OWN.directory_id, "n4:1", 1

    def __init__(self, *ids: int) -> None:
        self.history = VoterHistory(())
        self.high_watermark = self.log_start = 0
        self.caught_up = True
        self._changed = asyncio.Event()
        self.voters_are(*ids)

    @property
    def core(self) -> RaftCore:
        parts = SimpleNamespace(met=True, key=OWN, log=SimpleNamespace(start=self.log_start), history=self.history)
        return cast(RaftCore, parts)

    def voters_are(self, *ids: int) -> None:
        self.history.append(Batch(self.high_watermark, 1, 1, 0, control=Voters("c", 0, voters(*ids))))
        self.high_watermark += 1
        self.notify()

    def trim(self) -> None:
        """Let the log start at its end, after a snapshot of everything."""
        voters, target = self.history.in_force_below(self.high_watermark)
        self.history.trim(LogBase(LogEnd(1, self.high_watermark), voters, target))
        self.log_start = self.high_watermark

    def notify(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()

    def is_caught_up(self) -> bool:
        return self.caught_up

    async def changed(self) -> None:
        await self._changed.wait()


class Controller:
    """Answers first with `errors`, then as a controller would."""

    def __init__(self, node: FakeNode) -> None:
        self.node = node
        self.errors: list[str] = []
        self.asked: list[tuple[float, str]] = []
        self.standing: list[Standing] = []
        self.store = MemoryStanding()
        self.gate: asyncio.Event | None = None
        self.is_removed = False  # an operator has removed the node, which does not know it yet

    async def __call__(self, rpc: AnyRpc, request: Any, timeout_ms: int) -> Any:
        kind = request.WhichOneof("change")
        if kind == "add" and self.gate is not None:
            await self.gate.wait()
        self.asked.append((asyncio.get_running_loop().time(), kind))
        self.standing.append(self.store.standing)
        if self.errors:
            return pb.ChangeVotersReply(result=pb.Result(error=self.errors.pop(0), message="because", next="do it"))
        if kind == "add":
            assert (request.add.node_id, request.add.address, request.add.replace) == (4, "n4:1", False)
            assert request.add.directory_id == OWN.directory_id.bytes
            self.node.voters_are(1, 2, 3, 4)
        else:
            assert (request.remove.node_id, request.remove.directory_id) == (4, OWN.directory_id.bytes), (
                "only this disk"
            )
            self.node.voters_are(1, 2, 3)
        return pb.ChangeVotersReply(result=pb.Result(error="NONE"), changed=not self.is_removed)

    @property
    def kinds(self) -> list[str]:
        return [kind for _, kind in self.asked]


class Rig:
    """A running volunteer with a fake node and controller."""

    def __init__(self, *ids: int, standing: Standing = Standing.NEW) -> None:
        self.node = FakeNode(*ids)
        self.controller = Controller(self.node)
        self.controller.store.standing = standing
        self.volunteer = Volunteer(self.node, self.controller, self.controller.store, Random(1))
        self.running = asyncio.ensure_future(self.volunteer.run())

    @property
    def standing(self) -> Standing:
        return self.controller.store.standing

    def restart(self) -> None:
        self.running.cancel()
        self.volunteer = Volunteer(self.node, self.controller, self.controller.store, Random(2))
        self.running = asyncio.ensure_future(self.volunteer.run())


async def a_while(seconds: float = 100.0) -> None:
    """Let virtual time pass, then run all tasks until they wait."""
    await asyncio.sleep(seconds)
    await settle()


async def leaving() -> Rig:
    """Return a voter whose request to leave was answered."""
    rig = Rig(1, 2, 3, 4)
    await a_while(1)
    assert await rig.volunteer.leave(4000)
    return rig


async def joining() -> tuple[Rig, asyncio.Event]:
    """Return a rig whose request to be added is not answered before the event is set."""
    rig = Rig(1, 2, 3)
    rig.controller.gate = gate = asyncio.Event()
    await a_while(1)
    return rig, gate


def test_a_new_node_joins_once_it_is_caught_up() -> None:
    async def test() -> None:
        rig = Rig(1, 2, 3)
        rig.node.caught_up = False
        await a_while()
        assert rig.controller.asked == []
        rig.node.caught_up = True
        await a_while()
        assert rig.controller.kinds == ["add"]
        assert (rig.volunteer.is_voter, rig.standing) == (True, Standing.VOTER)

    run(test())


def test_a_node_that_stops_while_it_joins_records_that_it_left_on_its_own_request() -> None:
    class SlowStanding(MemoryStanding):
        """A disk on which each save takes less time than the save before it."""

        def __init__(self) -> None:
            super().__init__()
            self.saves = 0
            self.begun = asyncio.Event()

        async def save(self, standing: Standing) -> None:
            self.saves += 1
            self.begun.set()
            await asyncio.sleep(1 / self.saves)
            await super().save(standing)

    async def test() -> None:
        rig = Rig(1, 2, 3)
        rig.running.cancel()
        store = rig.controller.store = SlowStanding()
        rig.volunteer = Volunteer(rig.node, rig.controller, store, Random(1))
        rig.running = asyncio.ensure_future(rig.volunteer.run())
        await store.begun.wait()
        assert await rig.volunteer.leave(4_000)
        await a_while()
        assert (rig.controller.kinds, rig.standing) == (["add", "remove"], Standing.LEAVING)
        rig.restart()
        await a_while()
        assert rig.volunteer.is_voter, "the node joins again"

    run(test())


def test_refused_requests_to_join_are_repeated_with_growing_pauses() -> None:
    async def test() -> None:
        rig = Rig(1, 2, 3)
        rig.controller.errors = ["CHANGE_PENDING", "TARGET_IN_PROGRESS", "DUPLICATE_VOTER"] * 5
        await a_while(2000)
        assert rig.volunteer.is_voter
        times = [at for at, _ in rig.controller.asked]
        gaps = [later - earlier for earlier, later in pairwise(times)]
        assert len(gaps) == 15
        assert gaps[0] < 1.1
        assert all(WAIT_MAX_S / 2 <= gap <= WAIT_MAX_S + 0.1 for gap in gaps[7:]), gaps

    run(test())


def test_the_pauses_between_requests_to_join_start_over_after_a_success() -> None:
    """The new voter set may arrive after the reply, or never, if the quorum is rebuilt without it."""

    async def test() -> None:
        rig = Rig(1, 2, 3)
        rig.controller.errors = [*["CHANGE_PENDING"] * 5, "NONE", *["CHANGE_PENDING"] * 2]
        await a_while(2000)
        assert rig.volunteer.is_voter
        gaps = [later - earlier for (earlier, _), (later, _) in pairwise(rig.controller.asked)]
        after_success, after_refusal, after_second_refusal = gaps[5:]
        assert after_success <= WAIT_FIRST_S + 0.1
        assert WAIT_FIRST_S / 2 <= after_refusal <= WAIT_FIRST_S + 0.1, gaps
        assert WAIT_FIRST_S <= after_second_refusal <= 2 * WAIT_FIRST_S + 0.1, gaps

    run(test())


def test_each_problem_of_joining_is_logged_once(monkeypatch: pytest.MonkeyPatch) -> None:
    logged: list[tuple[str, object]] = []

    def info(event: str, **fields: object) -> None:
        logged.append((event, fields.get("next")))

    monkeypatch.setattr("quorumlog_server.volunteer.logger", SimpleNamespace(info=info))

    async def test() -> None:
        rig = Rig(1, 2, 3)
        rig.controller.errors = ["CHANGE_PENDING"] * 3 + ["TARGET_IN_PROGRESS"] * 2 + ["CHANGE_PENDING"]
        await a_while(2000)
        assert rig.volunteer.is_voter

    run(test())
    assert logged == [
        ("not a voter yet: CHANGE_PENDING: because", "do it"),
        ("not a voter yet: TARGET_IN_PROGRESS: because", "do it"),
        ("not a voter yet: CHANGE_PENDING: because", "do it"),
        ("joined the voters", None),
    ]


def test_a_removed_voter_does_not_join_again() -> None:
    """KAFKA-19850: neither the running nor the restarted node adds itself, even if the log has lost the record."""

    async def test() -> None:
        rig = Rig(1, 2, 3, 4)
        await a_while(1)
        assert rig.standing is Standing.VOTER
        rig.node.voters_are(1, 2, 3)
        await a_while()
        rig.restart()
        await a_while()
        rig.node.history = VoterHistory(())
        rig.node.voters_are(1, 2, 3)
        rig.restart()
        await a_while()
        assert rig.controller.asked == []

    run(test())


def test_a_node_whose_removal_is_only_in_the_log_does_not_join_again() -> None:
    async def test() -> None:
        rig = Rig(1, 2, 3, 4)
        rig.node.voters_are(1, 2, 3)
        await a_while()
        assert (rig.controller.asked, rig.standing) == ([], Standing.NEW)

    run(test())


def test_a_node_that_left_on_its_own_request_rejoins() -> None:
    async def test() -> None:
        rig = await leaving()
        assert rig.controller.standing == [Standing.LEAVING], "durable before the request is sent"
        await a_while()
        assert rig.controller.kinds == ["remove"], "the node does not join again before a restart"
        rig.restart()
        await a_while()
        assert rig.controller.kinds == ["remove", "add"]
        rig.node.voters_are(1, 2, 3)
        await a_while()
        rig.restart()
        await a_while()
        assert rig.controller.kinds == ["remove", "add"], "the second time, an operator removed the node"

    run(test())


def test_a_voter_that_an_operator_removed_before_it_could_leave_does_not_rejoin() -> None:
    async def test() -> None:
        rig = Rig(1, 2, 3, 4)
        await a_while(1)
        rig.controller.is_removed = True
        assert await rig.volunteer.leave(4000)
        assert (rig.controller.kinds, rig.standing) == (["remove"], Standing.VOTER)
        rig.restart()
        await a_while()
        assert rig.controller.kinds == ["remove"]

    run(test())


def test_leaving_succeeds_if_the_voter_set_no_longer_contains_the_voter() -> None:
    async def test() -> None:
        rig = Rig(1, 2, 3, 4)
        await a_while(1)
        rig.controller.errors = ["VOTER_NOT_FOUND"]
        with capture_logs() as lines:
            assert await rig.volunteer.leave(4000)
        assert rig.standing is Standing.VOTER
        assert [line for line in lines if line["log_level"] == "warning"] == []

    run(test())


def test_a_new_node_that_stops_before_its_first_answer_asks_to_join_again_later() -> None:
    """The node was never a voter, so it must not be treated as one that an operator has removed."""

    async def test() -> None:
        rig, _ = await joining()
        rig.controller.errors = ["VOTER_NOT_FOUND"]
        assert not await rig.volunteer.leave(4000), "it may still be added"
        assert rig.controller.kinds == ["remove"]
        rig.controller.gate = None
        rig.restart()
        await a_while()
        assert rig.controller.kinds == ["remove", "add"]

    run(test())


def test_a_node_that_may_have_been_added_while_it_stops_asks_to_be_removed() -> None:
    async def test() -> None:
        rig, gate = await joining()
        rig.controller.errors = ["OUTCOME_UNKNOWN"]
        asyncio.get_running_loop().call_later(0.5, gate.set)
        assert await rig.volunteer.leave(4000)
        assert rig.controller.kinds == ["add", "remove"]

    run(test())


def has_left_and_restarts(rig: Rig) -> None:
    """Restart a node that left and knows only its snapshot, in which it is a voter."""
    rig.node.high_watermark -= 1
    rig.node.caught_up = False
    rig.restart()
    assert rig.volunteer.is_voter, "according to its snapshot"


def test_a_node_that_left_rejoins_although_it_is_a_voter_in_its_snapshot() -> None:
    async def test() -> None:
        rig = await leaving()
        has_left_and_restarts(rig)
        await a_while()
        assert rig.standing is Standing.LEAVING
        rig.node.high_watermark += 1
        rig.node.caught_up = True
        rig.node.notify()
        await a_while()
        assert rig.controller.kinds == ["remove", "add"]

    run(test())


def test_a_node_that_left_and_stops_before_it_has_caught_up_rejoins_later() -> None:
    """Its second request to be removed finds that its own first request has removed it."""

    async def test() -> None:
        rig = await leaving()
        has_left_and_restarts(rig)
        await a_while()
        rig.controller.is_removed = True
        assert await rig.volunteer.leave(4000)
        assert (rig.controller.kinds, rig.standing) == (["remove", "remove"], Standing.LEAVING)

    run(test())


@pytest.mark.parametrize("error", ["TARGET_IN_PROGRESS", "CHANGE_PENDING"])
def test_a_refused_second_request_to_leave_does_not_undo_the_first(error: str) -> None:
    """The controller refuses the second before it looks for the voter, so the first may have taken effect."""

    async def test() -> None:
        rig = await leaving()
        has_left_and_restarts(rig)
        await a_while()
        rig.controller.errors = [error] * 100
        assert not await rig.volunteer.leave(4000)
        assert rig.standing is Standing.LEAVING

    run(test())


@pytest.mark.parametrize("error", ["LAST_VOTER", "VOTER_NOT_FOUND"])
def test_a_node_that_was_added_while_it_stops_counts_as_a_voter(error: str) -> None:
    """Its request to be removed was refused, or an operator removed it first.  In neither case may it rejoin later."""

    async def test() -> None:
        rig, gate = await joining()
        leaving = asyncio.ensure_future(rig.volunteer.leave(4000))
        await settle()
        rig.controller.errors = ["NONE", error]  # the new voters have not reached this node yet
        gate.set()
        assert await leaving is (error == "VOTER_NOT_FOUND")
        assert (rig.controller.kinds, rig.standing) == (["add", "remove"], Standing.VOTER)

    run(test())


def test_a_voter_whose_log_is_empty_after_a_snapshot_leaves() -> None:
    """The log of an idle quorum: its last record is in the snapshot, and no older snapshot is retained."""

    async def test() -> None:
        rig = Rig(1, 2, 3, 4)
        rig.node.trim()
        await a_while(1)
        assert (rig.volunteer.is_voter, rig.standing) == (True, Standing.VOTER)
        assert await rig.volunteer.leave(4000)
        assert rig.controller.kinds == ["remove"]

    run(test())


def test_an_initial_voter_is_not_reported_as_removed_before_the_first_commit(monkeypatch: pytest.MonkeyPatch) -> None:
    logged: list[str] = []
    monkeypatch.setattr(
        "quorumlog_server.volunteer.logger", SimpleNamespace(info=lambda event, **_: logged.append(event))
    )

    async def test() -> None:
        rig = Rig(1, 2, 3, 4)
        rig.node.high_watermark = 0
        await a_while()
        assert (logged, rig.controller.asked) == ([], [])
        rig.node.high_watermark = 1
        rig.node.notify()
        await a_while(1)
        assert (logged, rig.standing) == ([], Standing.VOTER)

    run(test())


def test_a_node_without_any_record_is_no_voter() -> None:
    async def test() -> None:
        rig = Rig(4)
        rig.node.history, rig.node.high_watermark = VoterHistory(()), 0
        assert not rig.volunteer.is_voter
        rig.running.cancel()

    run(test())


@pytest.mark.parametrize(
    ("error", "asked", "standing"),
    [
        ("NO_MAJORITY", 1, Standing.VOTER),
        ("LAST_VOTER", 1, Standing.VOTER),
        ("TARGET_IN_PROGRESS", 1, Standing.VOTER),
        ("CHANGE_PENDING", 5, Standing.VOTER),
        ("OUTCOME_UNKNOWN", 1, Standing.LEAVING),
    ],
)
def test_a_failed_request_to_leave_keeps_the_standing_of_a_voter_unless_its_outcome_is_unknown(
    error: str, asked: int, standing: Standing
) -> None:
    async def test() -> None:
        rig = Rig(1, 2, 3, 4)
        await a_while(1)
        rig.controller.errors = [error] * 100
        loop = asyncio.get_running_loop()
        began = loop.time()
        assert not await rig.volunteer.leave(4000)
        assert loop.time() - began <= 4
        assert len(rig.controller.asked) >= asked
        assert (len(rig.controller.asked) > 1) is (asked > 1)
        assert rig.standing is standing

    run(test())


def test_a_node_stopped_while_it_joins_leaves_the_voters_again() -> None:
    async def test() -> None:
        rig, gate = await joining()
        assert not rig.volunteer.is_voter
        leaving = asyncio.ensure_future(rig.volunteer.leave(4000))
        await settle()
        gate.set()
        assert await leaving
        assert rig.controller.kinds == ["add", "remove"]
        assert (rig.volunteer.is_voter, rig.standing) == (False, Standing.LEAVING)

    run(test())


def test_a_node_whose_request_to_join_was_refused_need_not_leave() -> None:
    async def test() -> None:
        rig, gate = await joining()
        rig.controller.errors = ["CHANGE_PENDING"]
        leaving = asyncio.ensure_future(rig.volunteer.leave(4000))
        await settle()
        gate.set()
        assert await leaving
        assert rig.controller.kinds == ["add"]

    run(test())


def test_a_removed_node_is_not_recorded_as_one_that_left_on_its_own_request() -> None:
    """It must not be treated as a voter that left on its own request, because it would then join again."""

    async def test() -> None:
        rig = Rig(1, 2, 3)
        await a_while(1)
        rig.node.voters_are(1, 2, 3)
        await a_while()
        assert await rig.volunteer.leave(4000)
        assert (rig.controller.kinds, rig.standing) == (["add"], Standing.VOTER)

    run(test())


def test_an_observer_does_not_leave() -> None:
    async def test() -> None:
        rig = Rig(1, 2, 3)
        rig.running.cancel()
        assert await rig.volunteer.leave(4000)
        assert (rig.controller.asked, rig.standing) == ([], Standing.NEW)

    run(test())


class HangingStanding(MemoryStanding):
    """The disk hangs at each save of `hangs_at`."""

    hangs_at: Standing | None = None

    async def save(self, standing: Standing) -> None:
        if standing is self.hangs_at:
            await asyncio.get_running_loop().create_future()
        await super().save(standing)


@pytest.mark.parametrize(
    ("hangs_at", "errors", "asked"),
    [(Standing.LEAVING, [], []), (Standing.VOTER, ["UNSAFE"], ["remove"]), (Standing.VOTER, ["PAUSED"] * 99, None)],
)
def test_a_hanging_disk_does_not_delay_the_stop_of_a_voter(
    hangs_at: Standing, errors: list[str], asked: list[str] | None
) -> None:
    async def test() -> None:
        rig = Rig(1, 2, 3, 4, standing=Standing.VOTER)
        rig.controller.errors = errors
        store = HangingStanding()
        store.standing, store.hangs_at = Standing.VOTER, hangs_at
        rig.controller.store = store
        rig.restart()
        await a_while()
        begin = asyncio.get_running_loop().time()
        with capture_logs() as logs:
            assert not await asyncio.wait_for(rig.volunteer.leave(4000), 60)
        assert asyncio.get_running_loop().time() <= begin + 4
        assert asked is None or rig.controller.kinds == asked, "the request needs a durable standing"
        assert [line["event"] for line in logs if "the disk hangs" in line["event"]]
        rig.running.cancel()

    run(test())


def test_the_outcome_of_a_leave_is_stored_although_its_request_took_its_whole_time_limit() -> None:
    class SlowStanding(MemoryStanding):
        async def save(self, standing: Standing) -> None:
            await asyncio.sleep(0.3)
            await super().save(standing)

    async def refused_late(rpc: AnyRpc, request: Any, timeout_ms: int) -> Any:
        await asyncio.sleep(timeout_ms / 1000)
        return pb.ChangeVotersReply(result=pb.Result(error="UNSAFE", message="because"))

    async def test() -> None:
        store = SlowStanding()
        volunteer = Volunteer(FakeNode(1, 2, 3, 4), refused_late, store, Random(1))
        begin = asyncio.get_running_loop().time()
        assert not await volunteer.leave(4000)
        assert asyncio.get_running_loop().time() <= begin + 4
        assert store.standing is Standing.VOTER

    run(test())


async def test_the_standing_survives_a_restart(tmp_path: Path) -> None:
    assert await FileStanding(str(tmp_path)).load() is Standing.NEW
    for standing in (Standing.VOTER, Standing.LEAVING):
        await FileStanding(str(tmp_path)).save(standing)
        assert await FileStanding(str(tmp_path)).load() is standing


@pytest.mark.parametrize("text", [b"", b"{}", b'{"standing": "king"}', b"\xff", b"[]", b'{"standing": []}'])
async def test_a_damaged_standing_is_refused(tmp_path: Path, text: bytes) -> None:
    (tmp_path / FILE).write_bytes(text)
    with pytest.raises(CorruptStoreError, match="damaged"):
        await FileStanding(str(tmp_path)).load()


async def test_a_failing_disk_fails_the_save_of_a_standing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("quorumlog_server.standing.os.fsync", full)
    with pytest.raises(FatalError, match="ENOSPC"):
        await FileStanding(str(tmp_path)).save(Standing.VOTER)
    assert await FileStanding(str(tmp_path)).load() is Standing.NEW
