"""A quorum node that commits on request, and an event loop that jumps to the next timer instead of waiting."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from itertools import count
from typing import Any, TypeVar
from uuid import UUID

from metadata.controller import ActiveController, ControllerService, ControllerSettings, MetadataReplay
from quorum.core.events import Transferred, VoterChange, VoterChangeError, VoterChangeResult
from quorum.core.types import Batch, ControlRecord, LeaderChange, ReplicaKey, TargetVoters, VoterSet
from quorum.ports import CannotAppendNowError, LeadershipLostError, NotLeaderError
from quorumlog.wire.rpcs import AnyRpc, ReplyT, RequestT, Rpc

T = TypeVar("T")


class JumpingLoop(asyncio.SelectorEventLoop):
    """Time does not advance while any callback is ready; then it jumps to the next timer."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 1000.0

    def time(self) -> float:
        return self.now

    def _run_once(self) -> None:
        scheduled: list[asyncio.TimerHandle] = self._scheduled  # type: ignore[attr-defined]  # private to asyncio
        if not self._ready:  # type: ignore[attr-defined]  # private to asyncio
            self.now = max(self.now, min((each.when() for each in scheduled if not each.cancelled()), default=0))
        super()._run_once()  # type: ignore[misc]  # private to asyncio


def run(work: Coroutine[Any, Any, T]) -> T:
    """Run a test under virtual time."""
    with asyncio.Runner(loop_factory=JumpingLoop) as runner:
        return runner.run(work)


async def settle() -> None:
    """Run everything that can run now."""
    for _ in range(50):
        await asyncio.sleep(0)


class FakeNode:
    """`commit` sets the committed end; `win` and `lose` set the leader. While it is `busy` it refuses appends."""

    def __init__(self, node_id: int = 1) -> None:
        self.asked: list[tuple[object, bool]] = []
        self.changed = VoterChangeResult(VoterChangeError.NONE, "", "", True, 7, VoterSet(), None)
        self.node_id = node_id
        self.cluster_id: str | None = "cluster"
        self.leader_id: int | None = None
        self.leader_address: str | None = None
        self.machine: MetadataReplay | None = None
        self.log: list[Batch] = []
        self.generation = 0
        self.epoch = 0
        self.leading = False
        self.paused = False
        self.resumed_at = 0.0
        self.busy = False
        self.control_addresses: dict[int, str] = {}
        self.refused = 0  # number of appends that it refused while it was busy
        self.high_watermark = 0
        self.applied = 0
        self.auto_commit = False
        self.rounds = 0
        self.confirm: asyncio.Event | None = None
        self._waiters: list[tuple[int, asyncio.Future[None]]] = []

    def control_address_of(self, node_id: int) -> str | None:
        return self.control_addresses.get(node_id)

    @property
    def log_end_offset(self) -> int:
        return self.log[-1].end_offset if self.log else 0

    def append(self, epoch: int, payload: bytes, count: int) -> int:
        if not self.leading or epoch != self.epoch:
            raise NotLeaderError
        if self.busy:
            self.refused += 1
            raise CannotAppendNowError("busy")
        return self._add(count, payload, None)

    def append_control(self, control: ControlRecord | None = None) -> int:
        return self._add(1, b"", control or TargetVoters(None))

    voter_ids = (1, 2, 3)

    async def confirm_read(self, timeout_ms: int) -> int:
        """Confirm immediately, or when `confirm` is set; refuse when this node no longer leads."""
        self.rounds += 1
        if self.leading and self.confirm is not None:
            async with asyncio.timeout(timeout_ms / 1000):
                await self.confirm.wait()
        if not self.leading:
            raise NotLeaderError("leads no more")
        return self.high_watermark

    async def change_voters(self, change: VoterChange, *, dry_run: bool, timeout_ms: int) -> VoterChangeResult:
        """Note the change, and return `changed`."""
        self.asked.append((change, dry_run))
        return self.changed

    async def transfer_leader(self, to: int | None, timeout_ms: int) -> Transferred:
        self.asked.append((to, False))
        return Transferred(1, VoterChangeError.NONE, "")

    def _add(self, number: int, payload: bytes, control: ControlRecord | None) -> int:
        base = self.log_end_offset
        self.log.append(Batch(base, self.epoch, number, 1_700_000_000_000 + base, payload, control))
        if self.auto_commit:
            asyncio.get_running_loop().call_soon(self.commit)
        return base

    async def committed(self, end_offset: int, epoch: int) -> None:
        if not self.leading or epoch != self.epoch:
            raise LeadershipLostError
        if end_offset > self.high_watermark:
            future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._waiters.append((end_offset, future))
            await future

    def commit(self, end_offset: int | None = None) -> None:
        """Commit and apply everything, or the whole batches below `end_offset`."""
        assert self.machine is not None
        end = self.log_end_offset if end_offset is None else end_offset
        for batch in self.log:
            if self.applied <= batch.base_offset and batch.end_offset <= end:
                self.high_watermark = self.applied = batch.end_offset
                self.machine.apply(batch)
        for wanted, future in self._waiters:
            if wanted <= self.high_watermark and not future.done():
                future.set_result(None)

    def win(self, *, commit: bool = True) -> None:
        """Lead a new epoch."""
        assert self.machine is not None
        self.epoch += 1
        self.leading, self.leader_id, self.leader_address = True, self.node_id, "here:1"
        key = ReplicaKey(self.node_id, UUID(int=self.node_id))
        self.append_control(LeaderChange(key, (key,), (key,)))
        self.machine.leadership(self.epoch, self.node_id, True)
        if commit:
            self.commit()

    def lose(self, leader_id: int | None = None, address: str | None = None, *, truncate: bool = False) -> None:
        """Let another node lead the next epoch, or none yet.  With `truncate`, uncommitted records are lost."""
        assert self.machine is not None
        self.epoch += 1
        self.leading, self.leader_id, self.leader_address = False, leader_id, address
        if truncate:
            self.log = [batch for batch in self.log if batch.end_offset <= self.high_watermark]
        waiters, self._waiters = self._waiters, []
        for _, future in waiters:
            if not future.done():
                future.set_exception(LeadershipLostError())
        self.machine.leadership(self.epoch, leader_id, False)


class FakeTransport:
    """Records forwarded requests, and answers with `answer`.  A `hanging` address gives no answer until `fails`."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, AnyRpc, Any, int]] = []
        self.answer: Any = None
        self.hanging: set[str] = set()
        self._hung: dict[str, asyncio.Future[None]] = {}  # by address

    def fails(self, address: str, error: Exception) -> None:
        """End the call to a hanging address with an error."""
        self._hung.pop(address).set_exception(error)

    async def call(self, address: str, rpc: AnyRpc, request: Any, timeout_ms: int) -> Any:
        self.calls.append((address, rpc, request, timeout_ms))
        if address in self.hanging:
            await self._hung.setdefault(address, asyncio.get_running_loop().create_future())
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer


class Plane:
    """One process's metadata plane on a fake node."""

    def __init__(self, settings: ControllerSettings | None = None) -> None:
        self.node = FakeNode()
        self.replay = MetadataReplay()
        self.node.machine = self.replay
        numbers = count(1)
        self.controller = ActiveController(self.node, self.replay, lambda: UUID(int=next(numbers) << 64), settings)
        self.transport = FakeTransport()
        self.service = ControllerService(self.node, self.controller, self.transport)

    async def call(self, rpc: Rpc[RequestT, ReplyT], request: RequestT, timeout_ms: int = 10_000) -> ReplyT:
        return await self.service.call(rpc, request, timeout_ms)

    def start(self, rpc: Rpc[RequestT, ReplyT], request: RequestT, timeout_ms: int = 10_000) -> asyncio.Task[ReplyT]:
        return asyncio.ensure_future(self.call(rpc, request, timeout_ms))
