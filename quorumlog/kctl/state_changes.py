"""kctl state-changes: each metadata change, with the times at which the brokers received and applied it.

The changes come from the metadata log of any node.  Each broker is asked for its own times, which only that broker
knows.  A broker keeps its times only for its latest batches since its start.  The output shows which brokers do not
answer in time.  Every time is by the clock of its own node.  So the duration between receiving and applying depends on
one clock, but a delay since the controller's record depends on two.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from quorumlog.errors import ClusterError
from quorumlog.kctl.brokers import node_addresses
from quorumlog.kctl.context import Command, Context, with_loop
from quorumlog.kctl.nodes import AT_ONCE_MAX, EACH_TIMEOUT_S, ask_each
from quorumlog.kctl.numbers import FloatRange, IntRange
from quorumlog.kctl.output import Output, duration_text
from quorumlog.wire.errors import ApiError
from quorumlog.words import counted, rfc3339

if TYPE_CHECKING:
    from quorumlog.client.controller import ControllerClient
    from quorumlog.kctl.metadata_history import History
    from quorumlog.kctl.metadata_records import Line, Names

NOW = -1
LAST = 100
SHOWN_PER_BATCH = 20
PATIENCE_S = 2.0
LOOK_S = 0.05
SPAN_MIN = 64
BROKERS_SHOWN = 6
AGAIN_S = 0.5

_SPACE = " " * 10
_KINDS = frozenset(
    {
        "register_broker", "broker_change", "unregister_broker", "topic", "partition", "partition_change",
        "remove_partition", "remove_topic", "renew_topic", "config", "leader_change",
    }
)  # fmt: skip
"""The kinds of records that brokers act upon, and changes of the leader; `kctl metadata tail` shows all kinds."""


class Batch(NamedTuple):
    """The changes of one batch, which is committed as a whole.  timestamp_ms: ms since 1970."""

    end_offset: int
    timestamp_ms: int
    epoch: int
    lines: list[Line]
    is_control: bool


@click.command("state-changes", cls=Command)
@click.option("--follow", is_flag=True, help="Continue, and show each change as it is made.")
@click.option("--from", "start", type=IntRange(0, 2**63 - 1), metavar="OFFSET", help="Begin at this offset.")
@click.option(
    "--last", type=IntRange(0, 10_000), metavar="N",
    help=f"Begin with the latest N changes (default {LAST}, with --follow 0).",
)  # fmt: skip
@click.option(
    "--patience", "patience_s", type=FloatRange(0, 600), default=PATIENCE_S, show_default=True, metavar="SECONDS",
    help="With --follow, how long to wait for all brokers to apply a change before showing it.",
)  # fmt: skip
@click.option("--topic", "topics", multiple=True, metavar="T", help="Only this topic (may be given more than once).")
@with_loop
async def command(
    context: Context, follow: bool, start: int | None, last: int | None, patience_s: float, topics: tuple[str, ...]
) -> None:
    """Show each metadata change, and when each broker applied it.

    With --follow, --timeout, if given, limits the whole command; its default limits only each request.
    """
    from quorumlog.kctl.metadata_history import History

    if start is not None and last is not None:
        raise click.UsageError("give only one of --from and --last")
    context.interrupted, context.ends_with_output = "" if follow else "nothing was changed", follow
    async with context.client() as client:
        is_limited = not follow or context.timeout_s is not None
        begin = History(client, lambda: context.left_s if is_limited else context.deadline_s)
        reader = _Reader(begin, frozenset(topics))
        wanted = (0 if follow else LAST) if last is None and start is None else last
        if not follow:
            batches = await reader.begin(start, wanted)
            await _show_once(context, reader, Brokers(client, context.left_s), batches)
            _report_unknown(context, reader)
            return
        context.lift_limit()
        with suppress(TimeoutError):  # a success: the user chose this time, and a failure to begin is reported before
            async with asyncio.timeout(context.follow_s):
                batches = await reader.begin(start, wanted)
                _report_unknown(context, reader)
                reader.history = History(client, lambda: context.deadline_s)  # each later request may take that long
                await _follow(context, reader, Brokers(client, context.deadline_s), batches, patience_s)


def _report_unknown(context: Context, reader: _Reader) -> None:
    for name in reader.unknown_topics():
        context.output.message(f"topic {name!a} does not exist, and did not exist at the offsets that were read")


async def _show_once(context: Context, reader: _Reader, brokers: Brokers, batches: list[Batch]) -> None:
    times = await brokers.times(batches, reader.broker_epochs, patience_s=0)
    if context.output.is_json:
        context.output.document([one for batch in batches for one in documents(batch, times)])
        return
    teller = _Teller(context.output)
    for batch in batches:
        teller.tell(batch, times)
    if not batches:
        context.output.message("no such changes")


async def _follow(context: Context, reader: _Reader, brokers: Brokers, batches: list[Batch], patience_s: float) -> None:
    teller = _Teller(context.output)
    context.output.message(f"following from offset {reader.offset}; press Ctrl-C to stop")
    while True:
        if batches:
            times = await brokers.times(batches, reader.broker_epochs, patience_s)
            for batch in batches:
                if context.output.is_json:
                    for one in documents(batch, times):
                        context.output.line(one)
                else:
                    teller.tell(batch, times)
        try:
            batches = await reader.next()
        except ClusterError as error:
            if not error.retriable:
                raise
            context.output.message(f"waiting: {error.message}")
            batches = []
            await asyncio.sleep(AGAIN_S)  # no event signals that a node has restarted
        if (gap := reader.gap) is not None:
            reader.gap = None
            context.output.message(
                f"the changes from offset {gap[0]} to {gap[1]} are omitted: no node that answers retains them"
            )


# Reading the changes


class _Reader:
    """Reads batches of changes, ascending.

    offset: the end of the changes that were read.  gap: the first and last offset of changes that were omitted because
    no node that answers retains them; the caller resets it to None.  history: reads the log; assignable.
    broker_epochs: the epochs of the registered brokers, by id.
    """

    def __init__(self, history: History, topics: frozenset[str]) -> None:
        self.history = history
        self._topics = topics
        self._names: Names | None = None
        self.offset = 0
        self.gap: tuple[int, int] | None = None
        self.broker_epochs: dict[int, int] = {}

    async def begin(self, start: int | None, last: int | None) -> list[Batch]:
        """Return the existing changes: all from offset `start` on, or the latest `last` ones."""
        await self.history.learn_nodes()
        first = await self.history.read(NOW, wait=False)
        end, lowest = first.high_watermark, first.log_start
        if start is not None:
            await self._name_topics(start)
            self.offset = start
            return await self._read_up_to(end)
        if not last:
            await self._name_topics(NOW)
            self.offset = end
            return []
        span = max(4 * last, SPAN_MIN)
        while True:
            begin = self.offset = max(lowest, end - span)
            await self._name_topics(begin)
            batches = await self._read_up_to(end)
            if begin == lowest or sum(len(batch.lines) for batch in batches) >= last:
                return _latest(batches, last)
            span *= 4

    async def next(self) -> list[Batch]:
        """Return the next changes; empty if none arrived for a while, or if changes were omitted (see `gap`).

        Raises:
            ClusterError: no node answers.
        """
        try:
            return self._take(await self.history.follow(self.offset))
        except ClusterError as error:
            if error.code != ApiError.OFFSET_OUT_OF_RANGE:
                raise
        lowest = min((each.begins for each in await self.history.ranges()), default=self.offset)
        if lowest > self.offset:
            self.gap = (self.offset, lowest - 1)
            self.offset = lowest
            await self._name_topics(lowest)
        return []

    def unknown_topics(self) -> list[str]:
        """Return the wanted topics that did not exist at any offset that was read."""
        assert self._names is not None, "begin comes first"
        return sorted(name for name in self._topics if name not in self._names)

    async def _read_up_to(self, end: int) -> list[Batch]:
        found: list[Batch] = []
        while self.offset < end:
            found += self._take(await self.history.read_known(self.offset))
        return found

    def _take(self, reply: Any) -> list[Batch]:
        from quorumlog.kctl.metadata_records import lines

        assert self._names is not None, "begin comes first"
        found = []
        for batch in reply.batches:
            end = batch.base_offset + batch.count
            taken = [line for line in lines(batch, self._names) if line.offset >= self.offset and line.kind in _KINDS]
            for line in taken:
                self._note_broker(line)
            if self._topics:
                taken = [line for line in taken if line.topic in self._topics]
            if taken:
                found.append(Batch(end, batch.timestamp_ms, batch.epoch, taken, bool(batch.control)))
        self.offset = max(self.offset, reply.next_offset)
        return found

    def _note_broker(self, line: Line) -> None:
        broker_id = (line.record or {}).get("broker_id")
        if line.kind == "register_broker" and broker_id is not None:
            self.broker_epochs[broker_id] = line.offset
        elif line.kind == "unregister_broker" and broker_id is not None:
            self.broker_epochs.pop(broker_id, None)

    async def _name_topics(self, offset: int) -> None:
        from quorumlog.kctl.metadata_records import Names

        described = await self.history.describe(offset, without_partitions=True)
        self._names = Names((topic.topic_id, topic.name) for topic in described.topics)
        self.broker_epochs = {broker.broker_id: broker.broker_epoch for broker in described.brokers}


def _latest(batches: list[Batch], count: int) -> list[Batch]:
    """Return only the last `count` changes."""
    kept: list[Batch] = []
    for batch in reversed(batches):
        if count <= 0:
            break
        kept.append(batch._replace(lines=batch.lines[-count:]))
        count -= len(batch.lines)
    return kept[::-1]


# Asking the brokers


class Applied(NamedTuple):
    """The times of one broker for one batch, in ms since 1970 by its clock; None for an unknown or future time.

    problem: the reason why a time is missing.  is_silent: the problem also affects other batches, so it is reported
    only once.  at_start: the broker applied the batch while it started and read the log from its disk again.
    """

    broker_id: int
    received_ms: int | None = None
    completed_ms: int | None = None
    problem: str | None = None
    is_silent: bool = False
    at_start: bool = False


Times = dict[int, list[Applied]]
"""The times of all brokers, by the end offset of the batch."""


class Brokers:
    """Asks brokers for the times at which they received and applied batches."""

    def __init__(self, client: ControllerClient, timeout_s: float) -> None:
        self._client = client
        self._timeout_s = timeout_s
        self._addresses: dict[int, str] = {}

    async def times(self, batches: Sequence[Batch], broker_epochs: dict[int, int], patience_s: float) -> Times:
        """Return each broker's times for each batch; wait up to `patience_s` for brokers that lack some batches.

        The result has no entry for a control batch.
        """
        from quorumlog.wire.v1 import node_pb2

        ends = [batch.end_offset for batch in batches if not batch.is_control]
        if not ends:
            return {}
        with suppress(ClusterError):  # without an answer, use the addresses that are already known
            self._addresses |= await node_addresses(self._client, min(self._timeout_s, EACH_TIMEOUT_S))
        request = node_pb2.ListAppliedBatchesRequest(from_offset=ends[0] - 1)
        deadline = asyncio.get_running_loop().time() + patience_s
        free = asyncio.Semaphore(AT_ONCE_MAX)
        asked = sorted(broker_epochs)
        found = await asyncio.gather(*(self._until_through(each, request, ends[-1], deadline, free) for each in asked))
        answers = dict(zip(asked, found, strict=True))
        told = {broker_id: _by_end(answers[broker_id]) for broker_id in sorted(answers)}
        return {
            end: [
                _applied(each, answers[each], told[each].get(end), end)._replace(at_start=end <= broker_epochs[each])
                for each in told
            ]
            for end in ends
        }

    async def _until_through(
        self, broker_id: int, request: Any, end_offset: int, deadline: float, free: asyncio.Semaphore
    ) -> Any:
        """Return the broker's answer once it has applied everything below `end_offset`, or its last answer in time."""
        from quorumlog.wire import rpcs

        loop = asyncio.get_running_loop()
        limit = min(self._timeout_s, EACH_TIMEOUT_S)
        while True:
            async with free:
                answers = await ask_each(
                    self._client, [broker_id], self._addresses, rpcs.LIST_APPLIED_BATCHES, request, limit
                )
            answer = answers[broker_id]
            left = deadline - loop.time()
            if left <= 0 or not _is_behind(answer, end_offset):
                return answer
            await asyncio.sleep(min(LOOK_S, left))  # brokers do not notify kctl


def _is_behind(answer: Any, end_offset: int) -> bool:
    """Return whether a broker runs but has not applied everything below `end_offset`, or is slow to answer."""
    if isinstance(answer, ClusterError):
        return answer.code == ApiError.TIMED_OUT
    if not answer.is_broker or answer.kept_from >= end_offset:
        return False
    done = max((batch.end_offset for batch in answer.batches if batch.completed_ms), default=0)
    return done < end_offset


def _by_end(answer: Any) -> dict[int, Any]:
    return {} if isinstance(answer, ClusterError) else {batch.end_offset: batch for batch in answer.batches}


def _applied(broker_id: int, answer: Any, batch: Any, end_offset: int) -> Applied:
    if isinstance(answer, ClusterError):
        return Applied(broker_id, problem=answer.message, is_silent=True)
    if not answer.is_broker:
        return Applied(broker_id, problem="the node with this id is not a broker", is_silent=True)
    if batch is not None:
        problem = None if batch.completed_ms else "received, but not applied yet"
        return Applied(broker_id, batch.received_ms, batch.completed_ms or None, problem)
    if end_offset <= answer.kept_from:
        text = "has no times: the change came before its start, or too many batches ago"
        return Applied(broker_id, problem=text, is_silent=True)
    return Applied(broker_id, problem="not received yet")


# Output


def documents(batch: Batch, times: Times) -> list[dict[str, Any]]:
    """Return the JSON of each change of a batch."""
    brokers = [
        {
            "id": one.broker_id,
            "received_at": None if one.received_ms is None else rfc3339(one.received_ms),
            "completed_at": None if one.completed_ms is None else rfc3339(one.completed_ms),
            "took_ms": _took_ms(one),
            "at_start": one.at_start and one.received_ms is not None,
            "problem": one.problem,
        }
        for one in times.get(batch.end_offset, ())
    ]
    return [
        {
            "offset": line.offset,
            "at": rfc3339(line.timestamp_ms),
            "controller_epoch": line.epoch,
            "topic": line.topic,
            "partition": line.partition,
            "kind": line.kind,
            "reason": "created" if line.kind == "partition" else (line.record or {}).get("reason"),
            "cause_offset": (line.record or {}).get("cause_offset"),
            "text": line.text,
            "brokers": brokers,
        }
        for line in batch.lines
    ]


def _took_ms(one: Applied) -> int | None:
    if one.received_ms is None or one.completed_ms is None:
        return None
    return one.completed_ms - one.received_ms


class _Teller:
    """Prints changes for people.  An unresponsive broker is reported once, not with every change."""

    def __init__(self, output: Output) -> None:
        self._output = output
        self._silent: dict[int, str] = {}

    def tell(self, batch: Batch, times: Times) -> None:
        output = self._output
        output.styled(f"{rfc3339(batch.timestamp_ms)}  controller epoch {batch.epoch}", "cyan")
        for line in batch.lines[:SHOWN_PER_BATCH]:
            output.hanging(f"{line.offset:>8}", line.text)
        if len(batch.lines) > SHOWN_PER_BATCH:
            more = len(batch.lines) - SHOWN_PER_BATCH
            output.text(f"{_SPACE}… and {more} more up to offset {batch.lines[-1].offset} (-o json shows all)")
        told = times.get(batch.end_offset, [])
        fine = [one for one in told if one.problem is None]
        for one in fine if len(fine) <= BROKERS_SHOWN else ():
            output.text(f"{_SPACE}broker {one.broker_id}: {_when(one, batch)}")
        if len(fine) > BROKERS_SHOWN:
            last = max(fine, key=lambda one: one.completed_ms or 0)
            output.text(f"{_SPACE}{counted(len(fine), 'broker')}; the last is {last.broker_id}: {_when(last, batch)}")
        for one in told:
            self._tell_problem(one)

    def _tell_problem(self, one: Applied) -> None:
        problem = one.problem
        if problem is not None and self._silent.get(one.broker_id) != problem:
            further = " (reported once)" if one.is_silent else ""
            self._output.styled(f"{_SPACE}broker {one.broker_id}: {problem}{further}", "red")
        if problem is not None and one.is_silent:
            self._silent[one.broker_id] = problem
        else:
            self._silent.pop(one.broker_id, None)


def _when(one: Applied, batch: Batch) -> str:
    assert one.received_ms is not None, one
    assert one.completed_ms is not None, one
    if one.at_start:
        return f"at its start, {duration_text(one.completed_ms - batch.timestamp_ms)} later"
    received = duration_text(one.received_ms - batch.timestamp_ms)
    completed = duration_text(one.completed_ms - batch.timestamp_ms)
    took = duration_text(one.completed_ms - one.received_ms)
    return f"received after {received}, applied after {completed} (took {took})"
