"""`QuorumNode` over a store and a transport that the test controls."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager

import pytest

from quorum.core.config import RaftConfig
from quorum.core.events import ConfirmRead, Event, Peer, ReadConfirmed, RemoveVoter, VoterChangeError, Write
from quorum.core.messages import ErrorCode, Reply, Request, Sender, Vote, VoteReply
from quorum.core.types import Batch, Election, LogEnd, QuorumState, Role, StoredQuorum, Voter, Voters, VoterSet
from quorum.node import QuorumNode
from quorum.node_metrics import FSYNC_RECENT_MS, FSYNCS_KEPT
from quorum.ports import (
    ControllerHandler,
    Handler,
    LeadershipLostError,
    NotLeaderError,
    StoreWrite,
    UnreachableError,
)
from quorum.questions import Questions, TooManyQuestionsError
from quorum.recent import RecentBatches
from quorum.waiters import OffsetWaiters
from quorumlog.errors import ConfigError, FatalError
from quorumlog.runtime.clock import Sources, now_ms
from quorumlog.wire.rpcs import ReplyT, RequestT, Rpc
from tests.contract.samples import CLUSTER, KEYS, VOTERS, data, founding, state
from tests.without_snapshots import MachineWithoutSnapshots, StoreWithoutSnapshots


class GatedStore(StoreWithoutSnapshots):
    """Keeps batches in memory; a write goes through while `gate` is set, and fails with `error`."""

    def __init__(self, voters: VoterSet = VOTERS) -> None:
        first = Batch(0, 0, 1, 1, b"", Voters(CLUSTER, 0, voters))
        self.batches = [first]
        self.state = QuorumState(CLUSTER, 0, Election(1), 1, voters)
        self.gate = asyncio.Event()
        self.gate.set()
        self.arrived = asyncio.Event()
        self.writes: list[list[StoreWrite]] = []
        self.error: Exception | None = None
        self.closed = False
        self.left_files = False

    async def open(self, node_id: int, cluster_id: str | None) -> StoredQuorum:
        controls = tuple(batch for batch in self.batches if batch.control is not None)
        end = self.batches[-1].end_offset if self.batches else 0
        epochs = ((0, 0),) if self.batches else ()
        return StoredQuorum(node_id, KEYS[0].directory_id, self.state, 0, end, epochs, controls)

    async def write(self, writes: Sequence[StoreWrite]) -> None:
        self.writes.append(list(writes))
        self.arrived.set()
        await self.gate.wait()
        if self.error is not None:
            raise self.error
        for write in writes:
            self.batches += write.batches

    async def read(self, start: int, end: int, max_bytes: int) -> tuple[Batch, ...]:
        return tuple(batch for batch in self.batches if start <= batch.base_offset < end)

    async def close(self, *, leave_files: bool = False) -> None:
        self.closed = True
        self.left_files = leave_files


class DeafTransport:
    """A transport in which no peer answers."""

    handler: Handler
    closed = False

    def serve(self, handler: Handler) -> None:
        self.handler = handler

    def serve_controller(self, handler: ControllerHandler) -> None:
        raise AssertionError("not served here")

    def bind(self) -> str:
        return "127.0.0.1:9001"

    async def start(self) -> None:
        pass

    async def ask(self, to: Peer, request: Request, timeout_ms: int) -> Reply:
        raise UnreachableError(f"{to.address} is deaf")

    async def call(self, address: str, rpc: Rpc[RequestT, ReplyT], request: RequestT, timeout_ms: int) -> ReplyT:
        raise UnreachableError(f"{address} is deaf")

    async def reset(self) -> None:
        pass

    async def close(self) -> None:
        self.closed = True


class Machine(MachineWithoutSnapshots):
    def __init__(self) -> None:
        self.batches: list[Batch] = []
        self.led: asyncio.Event = asyncio.Event()

    def apply(self, batch: Batch) -> None:
        self.batches.append(batch)

    def leadership(self, epoch: int, leader_id: int | None, is_leader: bool) -> None:
        if is_leader:
            self.led.set()


SOLE = VoterSet((Voter(KEYS[0], "127.0.0.1:9001"),))


class Rig:
    def __init__(self, voters: VoterSet, append_linger_ms: int = 0) -> None:
        self.store = GatedStore(voters)
        self.transport = DeafTransport()
        self.machine = Machine()
        config = RaftConfig(
            1,
            "127.0.0.1:9001",
            bootstrap=("127.0.0.1:9002",),
            election_timeout_ms=60_000,
            append_linger_ms=append_linger_ms,
        )
        self.node = QuorumNode(config, self.store, self.transport, self.machine, Sources.real())

    async def run_until_it_fails(self, scenario: Callable[[], Awaitable[None]] | None = None) -> None:
        async with asyncio.timeout(30), self.node:
            if scenario is not None:
                await scenario()
            await asyncio.Event().wait()


@asynccontextmanager
async def running(voters: VoterSet = SOLE, append_linger_ms: int = 0) -> AsyncIterator[Rig]:
    rig = Rig(voters, append_linger_ms)
    async with asyncio.timeout(30), rig.node:
        if voters is SOLE:
            await rig.machine.led.wait()
            await rig.node.applied(2)
        yield rig


async def test_the_meter_reports_the_durations_of_recent_syncs_only(monkeypatch: pytest.MonkeyPatch) -> None:
    async with running() as rig:
        assert rig.node.meter.recent_fsyncs_s(), "the node has founded the quorum and leads it"
        assert all(seconds >= 0 for seconds in rig.node.meter.recent_fsyncs_s())
        later = now_ms() + FSYNC_RECENT_MS + 1
        monkeypatch.setattr("quorum.node_metrics.now_ms", lambda: later)
        assert rig.node.meter.recent_fsyncs_s() == []
        for _ in range(2 * FSYNCS_KEPT):
            rig.node.meter.fsynced(0.5)
        assert rig.node.meter.recent_fsyncs_s() == [0.5] * FSYNCS_KEPT


async def test_a_vote_is_sent_only_after_it_is_durable() -> None:
    async with running(VOTERS) as rig:
        rig.store.gate.clear()
        rig.store.arrived.clear()
        vote = Vote(Sender(CLUSTER, 0, KEYS[1]), KEYS[0], 7, LogEnd(1, 100), False)
        answer = asyncio.ensure_future(rig.transport.handler(vote))
        await rig.store.arrived.wait()
        for _ in range(10):
            await asyncio.sleep(0)
        assert not answer.done()
        assert rig.store.writes[-1][-1].state.election == Election(7, None, KEYS[1])
        rig.store.gate.set()
        reply = await answer
        assert isinstance(reply, VoteReply)
        assert reply.error is ErrorCode.NONE
        assert reply.granted


@pytest.mark.parametrize(("append_linger_ms", "written_first"), [(0, [b"x"]), (100, [b"x", b"y"])])
async def test_an_append_waits_for_further_appends_during_the_linger_time(
    append_linger_ms: int, written_first: list[bytes]
) -> None:
    async with running(append_linger_ms=append_linger_ms) as rig:
        before = len(rig.store.writes)
        rig.node.append(rig.node.epoch, b"x", 1)
        for _ in range(10):
            await asyncio.sleep(0)
        end = rig.node.append(rig.node.epoch, b"y", 1) + 1
        await rig.node.committed(end, rig.node.epoch)
        assert [batch.payload for write in rig.store.writes[before] for batch in write.batches] == written_first


async def test_a_sole_voters_commit_waits_for_its_disk() -> None:
    async with running() as rig:
        rig.store.gate.clear()
        rig.store.arrived.clear()
        end = rig.node.append(rig.node.epoch, b"x", 1) + 1
        waiting = asyncio.ensure_future(rig.node.committed(end, rig.node.epoch))
        await rig.store.arrived.wait()
        for _ in range(10):
            await asyncio.sleep(0)
        assert not waiting.done()
        assert rig.node.high_watermark == end - 1
        rig.store.gate.set()
        await waiting
        await rig.node.applied(end)
        assert rig.machine.batches[-1].payload == b"x"


async def test_waiting_appends_share_one_write() -> None:
    async with running() as rig:
        rig.store.gate.clear()
        rig.store.arrived.clear()
        epoch = rig.node.epoch
        rig.node.append(epoch, b"first", 1)
        await rig.store.arrived.wait()
        end = max(rig.node.append(epoch, b"%d" % number, 2) for number in range(10)) + 2
        before = len(rig.store.writes)
        rig.store.gate.set()
        await rig.node.committed(end, epoch)
        assert len(rig.store.writes) == before + 1
        assert [write.batches[0].payload for write in rig.store.writes[-1]] == [b"%d" % number for number in range(10)]
        await rig.node.applied(end)
        assert [batch.base_offset for batch in rig.machine.batches] == [0, 1, 2, *range(3, 23, 2)]


async def test_a_failed_write_ends_the_node_and_fails_waiting_appends() -> None:
    rig = Rig(SOLE)
    waiting: list[asyncio.Future[None]] = []

    async def lose_the_disk() -> None:
        await rig.machine.led.wait()
        await rig.node.applied(2)
        rig.store.error = FatalError("the disk is lost")
        end = rig.node.append(rig.node.epoch, b"x", 1) + 1
        waiting.append(asyncio.ensure_future(rig.node.committed(end, rig.node.epoch)))

    with pytest.raises(FatalError, match="disk is lost"):
        await rig.run_until_it_fails(lose_the_disk)
    with pytest.raises(LeadershipLostError):
        await waiting[0]
    assert rig.store.closed
    assert rig.store.left_files
    assert rig.transport.closed
    with pytest.raises(NotLeaderError):
        rig.node.append(rig.node.epoch, b"y", 1)
    with pytest.raises(UnreachableError):
        await rig.transport.handler(Vote(Sender(CLUSTER, 0, KEYS[1]), KEYS[0], 7, LogEnd(1, 100), False))


async def test_an_error_in_the_body_of_the_nodes_context_is_raised_unchanged() -> None:
    rig = Rig(SOLE)
    with pytest.raises(ValueError, match="the body's own"):
        async with rig.node:
            raise ValueError("the body's own")
    assert rig.store.closed
    assert not rig.store.left_files


async def test_a_disk_failure_elsewhere_in_the_process_leaves_the_store_unchanged() -> None:
    rig = Rig(SOLE)
    with pytest.raises(FatalError, match="every data directory"):
        async with rig.node:
            raise FatalError("every data directory has failed")
    assert rig.store.left_files


async def test_a_task_that_runs_beside_the_node_stops_with_the_node_and_stops_the_node_if_it_fails() -> None:
    started, ended = asyncio.Event(), asyncio.Event()

    async def beside() -> None:
        started.set()
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()

    async with running() as rig:
        rig.node.run_beside(beside(), "beside")
        await started.wait()
    assert ended.is_set()

    rig = Rig(SOLE)

    async def broken() -> None:
        raise AssertionError("an invariant")

    async def start_it() -> None:
        rig.node.run_beside(broken(), "broken")

    with pytest.raises(AssertionError, match="an invariant"):
        await rig.run_until_it_fails(start_it)


async def test_a_refusal_of_the_core_is_a_configuration_error() -> None:
    rig = Rig(SOLE)
    rig.node._config = RaftConfig(1, "127.0.0.1:9001", cluster_id="another")
    with pytest.raises(ConfigError, match=f"cluster {CLUSTER}"):
        await rig.run_until_it_fails()


async def test_a_leader_resigns_when_its_node_stops() -> None:
    async with running() as rig:
        assert rig.node.role is Role.LEADER
    assert rig.node.role is not Role.LEADER
    assert not rig.node.is_caught_up()


def write(number: int, *batches: Batch, truncate_to: int | None = None) -> Write:
    return Write(number, state(0), truncate_to, batches)


def test_recent_batches_include_all_batches_that_are_not_durable() -> None:
    recent = RecentBatches(0, max_bytes=0)
    recent.add(write(1, founding(), data(1, payload=b"a" * 1000)))
    recent.add(write(2, data(2, count=3)))
    assert (recent.start, recent.end) == (0, 5)
    assert recent.read(1, 5, 1 << 20) == (data(1, payload=b"a" * 1000), data(2, count=3))
    assert recent.read(1, 5, 1) == (data(1, payload=b"a" * 1000),)
    assert recent.read(1, 2, 1 << 20) == (data(1, payload=b"a" * 1000),)
    recent.written(1)
    assert recent.start == 2
    recent.written(2)
    assert (recent.start, recent.end) == (5, 5)
    assert recent.read(5, 9, 100) == ()


def test_recent_batches_follow_truncations() -> None:
    recent = RecentBatches(0, max_bytes=1 << 20)
    recent.add(write(1, data(0), data(1), data(2)))
    recent.add(write(2, data(1, epoch=2), truncate_to=1))
    assert recent.read(0, 9, 1 << 20) == (data(0), data(1, epoch=2))
    recent.add(write(3, truncate_to=0))
    assert (recent.start, recent.end) == (0, 0)
    with pytest.raises(AssertionError, match="batch at 5 after end 0"):
        recent.add(write(4, data(5)))


async def test_waiters_wake_in_the_order_of_offsets_despite_a_cancelled_waiter() -> None:
    waiters, woken = OffsetWaiters(), []

    async def wait(offset: int) -> None:
        await waiters.wait(offset)
        woken.append(offset)

    tasks = [asyncio.ensure_future(wait(offset)) for offset in (5, 3, 9, 3)]
    await asyncio.sleep(0)
    tasks[1].cancel()
    waiters.complete(5)
    await asyncio.wait(tasks[:2])
    assert woken == [3, 5]
    waiters.fail(LeadershipLostError("over"))
    with pytest.raises(LeadershipLostError):
        await tasks[2]


async def test_a_current_read_is_confirmed_by_a_sole_voter_and_refused_by_a_follower() -> None:
    async with running() as rig:
        assert await rig.node.confirm_read(1000) == 2
    async with running(VOTERS) as rig:
        with pytest.raises(NotLeaderError):
            await rig.node.confirm_read(1000)


async def test_concurrent_reads_share_one_confirmation(monkeypatch: pytest.MonkeyPatch) -> None:
    async with running() as rig:
        node, post = rig.node, rig.node._post
        asked: asyncio.Queue[ConfirmRead] = asyncio.Queue()

        def watch(event: Event) -> None:
            if isinstance(event, ConfirmRead):
                asked.put_nowait(event)
            else:
                post(event)

        monkeypatch.setattr(node._inquirer, "_post", watch)
        first = [asyncio.ensure_future(node.confirm_read(10_000)) for _ in range(100)]
        question = await asked.get()
        late = [asyncio.ensure_future(node.confirm_read(10_000)) for _ in range(100)]
        late[0].cancel()
        with pytest.raises(TimeoutError):
            await node.confirm_read(1)
        assert asked.empty(), "one question serves all callers that arrived in time"
        post(question)
        assert await asyncio.gather(*first) == [2] * 100
        assert not any(task.done() for task in late[1:]), "earlier questions prove nothing for later callers"
        post(await asked.get())
        assert await asyncio.gather(*late[1:]) == [2] * 99
        assert asked.empty()


async def test_queued_reads_fail_when_the_node_stops(monkeypatch: pytest.MonkeyPatch) -> None:
    async with running() as rig:
        reads = []
        monkeypatch.setattr(rig.node._inquirer, "_post", lambda event: None)
        for _ in range(3):
            reads.append(asyncio.ensure_future(rig.node.confirm_read(10_000)))
            await asyncio.sleep(0)
    for read in reads:
        with pytest.raises(NotLeaderError):
            await read


async def test_voter_changes_transfers_and_reads_are_refused_after_the_node_stopped() -> None:
    async with running(VOTERS) as rig:
        node = rig.node
        result = await node.change_voters(RemoveVoter(2, None), dry_run=True, timeout_ms=1000)
        assert (result.changed, result.offset) == (False, 0)
        assert result.error is not VoterChangeError.NONE
        assert (await node.transfer_leader(2, 1000)).error is not VoterChangeError.NONE
        node.prefer((2, 1))
    after = await node.change_voters(RemoveVoter(2, None), dry_run=False, timeout_ms=1000)
    assert after.error is VoterChangeError.NOT_LEADER
    assert (await node.transfer_leader(None, 1000)).error is VoterChangeError.NOT_LEADER
    with pytest.raises(NotLeaderError):
        await node.confirm_read(1000)


async def test_late_answers_are_dropped_and_the_number_of_open_questions_is_limited(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("quorum.questions.QUESTIONS_MAX", 1)
    questions = Questions()
    call, future = questions.ask()
    with pytest.raises(TooManyQuestionsError):
        questions.ask()
    future.cancel()
    await asyncio.sleep(0)
    questions.answer(ReadConfirmed(call, 5))
    second, future = questions.ask()
    questions.answer(ReadConfirmed(call, 6))
    questions.answer(ReadConfirmed(second, 7))
    assert (await future).offset == 7
