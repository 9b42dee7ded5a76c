"""Progress of reassignments, from the controller and the brokers, with bars on standard error.

The active controller makes the change, and this module only watches it.  The bytes to copy are the part of the leader's
log that an added replica does not have yet.  They are unknown if the leader or that replica's broker does not answer.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from quorumlog.errors import ClusterError
from quorumlog.kctl.brokers import node_addresses
from quorumlog.kctl.context import LEFT_MIN_S, Context
from quorumlog.kctl.topic_reads import describe_topics
from quorumlog.wire.errors import ApiError
from quorumlog.words import Key, counted, listed, named

if TYPE_CHECKING:
    from quorumlog.client.controller import ControllerClient
    from quorumlog.client.reads import Caller

LOOK_S = 0.5
ASK_S = 5.0
LAST_LOOK_S = 3.0
BARS_MAX = 12
SHOWN_MAX = 5
NO_LEADER = -1


def state_of(ongoing: Any, waits_for: Sequence[int] = ()) -> str:
    """Return the state of a reassignment.

    no_leader: the partition has no leader.  broker_down: it waits for unavailable brokers.  copying: some added
    replicas are not in sync.  waiting: all added replicas are in sync, but too few replicas would remain in sync.
    """
    if ongoing.leader == NO_LEADER:
        return "no_leader"
    if waits_for:
        return "broker_down"
    return "copying" if _missing(ongoing) else "waiting"


def _missing(ongoing: Any) -> set[int]:
    """Return the added replicas that are not in sync yet."""
    return set(ongoing.adding).difference(ongoing.isr, ongoing.removing)


async def waited_for(client: Caller, ongoing: Sequence[Any], timeout_s: float) -> dict[Key, list[int]]:
    """Return the brokers for which each partition waits because they are fenced or not registered."""
    needed = {
        (each.topic, each.index): _missing(each) or set(each.replicas).difference(each.removing, each.isr)
        for each in ongoing
    }
    if not any(needed.values()):
        return {key: [] for key in needed}
    from quorumlog.wire import rpcs
    from quorumlog.wire.v1 import controller_pb2 as pb

    reply = await client.call(rpcs.DESCRIBE_BROKERS, pb.DescribeBrokersRequest(), timeout_s)
    usable = {broker.broker_id for broker in reply.brokers if broker.state != "fenced"}
    return {key: sorted(brokers - usable) for key, brokers in needed.items()}


def blocked_reason(ongoing: Any, waits_for: Sequence[int]) -> str:
    """Describe why a reassignment does not progress; empty if it does."""
    state = state_of(ongoing, waits_for)
    if state == "broker_down":
        return f"waits for broker {listed(waits_for)}, which {'is' if len(waits_for) == 1 else 'are'} down"
    return "" if state == "copying" else state


async def list_ongoing(client: Caller, keys: Iterable[Key], timeout_s: float) -> tuple[list[Any], int]:
    """Return the reassignments in progress of these partitions, and the throttle.

    keys: empty means all partitions.  The throttle is in bytes per second; -1: there is none.

    Raises:
        ClusterError: refused, or no answer in time.
    """
    from quorumlog.wire import rpcs
    from quorumlog.wire.v1 import controller_pb2 as pb

    wanted = [pb.TopicPartition(topic=topic, index=index) for topic, index in sorted(keys)]
    reply = await client.call(rpcs.LIST_REASSIGNMENTS, pb.ListReassignmentsRequest(partitions=wanted), timeout_s)
    return list(reply.partitions), int(reply.throttle)


class Sizes:
    """Sizes of replicas, from the brokers that have them."""

    def __init__(self, client: ControllerClient) -> None:
        self._client = client
        self._addresses: dict[int, str] = {}

    async def left(self, ongoing: Sequence[Any], timeout_s: float) -> dict[Key, int | None]:
        """Return the bytes that remain to copy, by partition; None if a broker that knows them did not answer."""
        topics = sorted({each.topic for each in ongoing})
        brokers = {each.leader for each in ongoing} | {broker for each in ongoing for broker in each.adding}
        loop = asyncio.get_running_loop()
        deadline = loop.time() + timeout_s
        if brokers - {NO_LEADER} - self._addresses.keys():
            await self._find(min(timeout_s / 2, ASK_S))
        asked = sorted((brokers - {NO_LEADER}) & self._addresses.keys())
        left_s = min(deadline - loop.time(), ASK_S)
        answers = await asyncio.gather(*(self._ask(broker, topics, left_s) for broker in asked))
        sizes = dict(zip(asked, answers, strict=True))
        return {(each.topic, each.index): _left(each, sizes) for each in ongoing}

    async def _find(self, timeout_s: float) -> None:
        with contextlib.suppress(ClusterError):
            self._addresses.update(await node_addresses(self._client, timeout_s))

    async def _ask(self, broker_id: int, topics: Sequence[str], timeout_s: float) -> dict[Key, int] | None:
        from quorumlog.wire import rpcs
        from quorumlog.wire.v1 import node_pb2 as pb

        try:
            request = pb.DescribeReplicasRequest(topics=topics)
            reply = await self._client.ask_node(self._addresses[broker_id], rpcs.DESCRIBE_REPLICAS, request, timeout_s)
        except ClusterError:
            return None
        return {(each.topic, each.index): each.bytes for each in reply.replicas}


def _left(ongoing: Any, sizes: dict[int, dict[Key, int] | None]) -> int | None:
    key = (ongoing.topic, ongoing.index)
    whole = (sizes.get(ongoing.leader) or {}).get(key)
    if whole is None:
        return None
    left = 0
    for broker in ongoing.adding:
        if broker in ongoing.isr or broker in ongoing.removing:
            continue
        known = sizes.get(broker)
        if known is None:
            return None
        left += max(0, whole - known.get(key, 0))
    return left


# Waiting


class Watch:
    """Follows reassignments until none of them is in progress.  Ctrl-C ends only the watching.

    targets: the target replicas of each partition.  A reassignment that another command cancels or replaces is no
    longer followed, and does not count as moved.
    """

    def __init__(self, context: Context, client: ControllerClient, targets: Mapping[Key, Collection[int]]) -> None:
        self._context = context
        self._client = client
        self._targets = {key: frozenset(replicas) for key, replicas in targets.items()}
        self._sizes = Sizes(client)
        self._view = _view(context, len(self._targets))
        self._moved: set[Key] = set()
        self._given_up: set[Key] = set()
        self._left = len(self._targets)

    async def run(self) -> None:
        """Return once every reassignment has ended, whether its partition was moved or not.

        Raises:
            ClusterError: TIMED_OUT; the reassignments continue.
        """
        context = self._context
        context.interrupted = "the reassignment continues"
        try:
            with self._view:
                while not await self._look():
                    if context.left_s <= LEFT_MIN_S:
                        raise self._late()
                    await asyncio.sleep(min(LOOK_S, context.left_s))
        except asyncio.CancelledError:
            context.interrupted = await self._last_look()
            raise

    async def _look(self) -> bool:
        """Show the progress, or the error of a failed request; return whether every reassignment has ended."""
        context = self._context
        try:
            ongoing = await self._under_way(context.left_s)
            self._left = len(ongoing)
            if not ongoing:
                self._view.end(self._moved, self._given_up)
                return True
            if context.left_s > LEFT_MIN_S:
                waits = await waited_for(self._client, ongoing, context.left_s)
                sizes = await self._sizes.left(ongoing, context.left_s)
                self._view.show(ongoing, sizes, waits, len(self._moved), self._given_up)
        except ClusterError as error:
            if not error.retriable:
                raise
            self._view.report(f"waiting: {error.message}")
        return False

    async def _under_way(self, timeout_s: float) -> list[Any]:
        """Return the reassignments that are still in progress, and store the outcome of the others."""
        deadline = asyncio.get_running_loop().time() + timeout_s
        found, _ = await list_ongoing(self._client, self._targets, timeout_s)
        under_way = {
            (each.topic, each.index): each
            for each in found
            if set(each.replicas).difference(each.removing) == self._targets[each.topic, each.index]
        }
        ended = self._targets.keys() - under_way.keys() - self._moved - self._given_up
        if ended:
            left_s = max(deadline - asyncio.get_running_loop().time(), LEFT_MIN_S)
            replicas = await _replicas_of(self._client, ended, left_s)
            moved = {key for key in ended if replicas.get(key) == self._targets[key]}
            self._moved |= moved
            self._given_up |= ended - moved
        self._moved -= under_way.keys()
        self._given_up -= under_way.keys()
        return list(under_way.values())

    def _late(self) -> ClusterError:
        after = f"{self._context.deadline_s:g} s"
        text = f"{self._moving(self._left)} after {after}; the reassignment continues"
        return ClusterError(ApiError.TIMED_OUT, text, "kctl reassign status", retriable=True)

    async def _last_look(self) -> str:
        try:
            ongoing = await self._under_way(LAST_LOOK_S)
        except ClusterError as error:
            return f"the reassignment was not cancelled; its state is unknown: {error.message}"
        if ongoing:
            moving = self._moving(len(ongoing))
            return f"the reassignment is not complete: {moving}; it continues (kctl reassign status)"
        if self._given_up:
            return f"the reassignment was cancelled or replaced for {named(self._given_up)}"
        return "the reassignment is complete"

    def _moving(self, left: int) -> str:
        return f"{left} of {counted(len(self._targets), 'partition')} {'is' if left == 1 else 'are'} still being moved"


async def _replicas_of(client: ControllerClient, keys: Iterable[Key], timeout_s: float) -> dict[Key, frozenset[int]]:
    """Return the replicas of each existing partition, without those that are being removed."""
    loop = asyncio.get_running_loop()
    deadline = loop.time() + timeout_s
    topics = {topic for topic, _ in keys}
    found = await describe_topics(client, topics, lambda: max(deadline - loop.time(), LEFT_MIN_S))
    return {
        (topic.name, each.index): frozenset(replica.broker_id for replica in each.replicas).difference(each.removing)
        for topic in found
        for each in topic.partitions
    }


class _Lines:
    """The view if standard error is not a terminal: a line for each change."""

    def __init__(self, context: Context, count: int) -> None:
        self._output = context.output
        self._count = count
        self._last_line = ""

    def __enter__(self) -> _Lines:
        return self

    def __exit__(self, *_: object) -> None:
        """Nothing was opened."""

    def report(self, line: str) -> None:
        if line != self._last_line:
            self._last_line = line
            self._output.message(line)

    def show(
        self,
        ongoing: Sequence[Any],
        left: dict[Key, int | None],
        waits: dict[Key, list[int]],
        moved: int,
        given_up: Collection[Key],
    ) -> None:
        text = f"{moved} of {counted(self._count, 'partition')} moved"
        self.report(f"{text}, {summary(ongoing, left, waits)}{_ended_early(given_up)}")

    def end(self, moved: Collection[Key], given_up: Collection[Key]) -> None:
        self.report(f"{len(moved)} of {counted(self._count, 'partition')} moved{_ended_early(given_up)}")


def _ended_early(given_up: Collection[Key]) -> str:
    return f"; cancelled or replaced elsewhere: {named(given_up)}" if given_up else ""


def summary(ongoing: Sequence[Any], left: dict[Key, int | None], waits: dict[Key, list[int]]) -> str:
    """Return one line on the reassignments in progress."""
    known = [size for size in left.values() if size is not None]
    text = f"{counted(sum(known), 'byte')} to copy"
    if len(known) < len(left):
        text += f" (unknown for {len(left) - len(known)})"
    reasons = [(each, why) for each in ongoing if (why := blocked_reason(each, waits[each.topic, each.index]))]
    if reasons:
        names = ", ".join(f"{each.topic}-{each.index} ({why})" for each, why in reasons[:SHOWN_MAX])
        text += f"; blocked: {names}" + (f" and {len(reasons) - SHOWN_MAX} more" if len(reasons) > SHOWN_MAX else "")
    return text


class _Bars(_Lines):
    """The view on a terminal: one bar for all partitions, and one for each of the first BARS_MAX partitions."""

    def __init__(self, context: Context, count: int) -> None:
        super().__init__(context, count)
        from rich.console import Console
        from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn
        from rich.progress import TransferSpeedColumn as Speed

        console = Console(file=sys.stderr, no_color=bool(os.environ.get("NO_COLOR")) or None, highlight=False)
        columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), Speed(), TimeRemainingColumn())
        self._progress = Progress(*columns, console=console, speed_estimate_period=60)
        self._whole = self._progress.add_task(f"0 of {counted(count, 'partition')}", total=None)
        self._bars: dict[Key, Any] = {}
        self._most: dict[Key, int] = {}

    def __enter__(self) -> _Bars:
        self._progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._progress.stop()

    def report(self, line: str) -> None:
        if line != self._last_line:
            self._last_line = line
            self._progress.console.print(line, markup=False)

    def show(
        self,
        ongoing: Sequence[Any],
        left: dict[Key, int | None],
        waits: dict[Key, list[int]],
        moved: int,
        given_up: Collection[Key],
    ) -> None:
        for key, size in left.items():
            self._most[key] = max(self._most.get(key, 0), size or 0)
        total = sum(self._most.values())
        open_bytes = sum(self._most[key] if size is None else size for key, size in left.items())
        text = f"{moved} of {counted(self._count, 'partition')}{_ended_early(given_up)}"
        self._progress.update(self._whole, description=text, total=total or None, completed=total - open_bytes)
        for key, bar in list(self._bars.items()):
            if key not in left:
                self._progress.remove_task(bar)
                del self._bars[key]
        for each in ongoing:
            key = (each.topic, each.index)
            if key not in self._bars and len(self._bars) < BARS_MAX and self._count > 1:
                self._bars[key] = self._progress.add_task(f"{each.topic}-{each.index}", total=None)
            if key in self._bars:
                most, size = self._most[key], left[key]
                description = f"{each.topic}-{each.index} {blocked_reason(each, waits[key]) or 'copying'}"
                done = most - (most if size is None else size)
                self._progress.update(self._bars[key], description=description, total=most or None, completed=done)

    def end(self, moved: Collection[Key], given_up: Collection[Key]) -> None:
        total = sum(self._most.values())
        for bar in self._bars.values():
            self._progress.remove_task(bar)
        if given_up:
            self._progress.remove_task(self._whole)
            return super().end(moved, given_up)
        text = f"{len(moved)} of {counted(self._count, 'partition')}"
        self._progress.update(self._whole, description=text, total=total or 1, completed=total or 1)
        return None


def _view(context: Context, count: int) -> _Lines:
    return _Bars(context, count) if sys.stderr.isatty() else _Lines(context, count)
