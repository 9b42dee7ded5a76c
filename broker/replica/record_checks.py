"""Checks the records of produces before they are appended, and keeps the order of arrival in each lane.

Theory of operation.  A batch with compression must be inflated before its records can be checked.  A small batch is
inflated on the event loop, a larger one in a thread.  A batch whose codec differs from the codec of its topic is always
recompressed in a thread, whatever its size (`broker.log.recompression`).  Only the produce at the head of a lane's
queue is appended, so a later produce that needs no thread waits behind an earlier one that needs a thread.  The order
of appends of a producer is thus the order of arrival, which its sequence numbers rely on.

Bounds: At most `record_check_threads` checks run concurrently, and each inflates a bounded number of bytes
(`inflated_size_max`).  The caller bounds the number of waiting produces.  They hold the bytes of their requests, which
the listener bounds, and recompressed bytes, which `recompressed_waiting_bytes` bounds.  A produce that waits for longer
than `record_check_wait_ms` is refused and not appended, and its client tries again.  An answered produce is removed
together with its check.  Only a check that is already running keeps the batches of an answered produce.  A produce that
its caller cancels stays until it is the head of its queue; the broker itself cancels none.

The threads do not belong to the loop's default executor.  That executor also deletes folders, so a disk that hangs may
block all its threads.  Such a disk must not delay produces to other directories.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict, deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial

from broker.core.producer_state import NO_PRODUCER_ID, Verification
from broker.kafka.api import ProduceResult
from broker.log import LogConfig, Refused
from broker.log.produced import Produced, check_inflated, inflated_size_max
from broker.log.recompression import needs_recompression, recompress
from broker.replica.limits import ReplicaLimits
from quorumlog.wire.errors import KafkaCode
from quorumlog.wire.record_batch import BatchHeader

Lane = tuple[str, int, int]
"""A partition, and a producer id or -1.  A coordinator that is slow to confirm the transaction of one producer must not
delay the other producers of the partition."""


@dataclass(slots=True, eq=False)
class Produce:
    """One produce to one partition, not appended yet.

    batches: the batches, as far as they are checked now, or the refusal.
    first_batch: the header of the first batch; None if the headers were refused.
    verification: see `ProducerState.check`.
    verifying: the request to the coordinator about the transaction, while it is under way; see `ProduceService`.
    recompressed_size: size of `batches` if they were recompressed, while the produce waits; otherwise 0.
    lane: produces with the same lane are appended in the order of arrival.
    """

    topic: str
    index: int
    acks: int
    timeout_ms: int
    future: asyncio.Future[ProduceResult]
    batches: Produced | Refused
    is_checked: bool = False
    verification: Verification | None = None
    verifying: asyncio.Future[KafkaCode] | None = None
    timer: asyncio.TimerHandle | None = None
    recompressed_size: int = 0
    first_batch: BatchHeader | None = field(init=False)
    lane: Lane = field(init=False)

    def __post_init__(self) -> None:
        batches = self.batches
        first = self.first_batch = None if isinstance(batches, Refused) else batches.headers[0]
        self.lane = self.topic, self.index, NO_PRODUCER_ID if first is None else first.producer_id


@dataclass(slots=True, eq=False)
class _Check:
    """A check of a produce.  work: runs in a thread."""

    produce: Produce
    work: Callable[[], Produced | Refused]


class RecordChecks:
    """Queues produces until their records are checked; see the theory of operation.

    append: called once with each produce whose turn has come; `produce.batches` is then final.  If it raises, the
        produce is answered with UNKNOWN_SERVER_ERROR, and the loop's exception handler gets the error.
    timed_out: called with each produce that was refused because it waited for too long, before a later produce of its
        lane is appended.
    """

    def __init__(
        self, limits: ReplicaLimits, append: Callable[[Produce], None], timed_out: Callable[[Produce], None]
    ) -> None:
        self._limits = limits
        self._append = append
        self._timed_out = timed_out
        self._queues: dict[Lane, deque[Produce]] = {}
        self._waiting: OrderedDict[Produce, _Check] = OrderedDict()  # each belongs to a produce in a queue
        self._running = 0
        self._threads = ThreadPoolExecutor(limits.record_check_threads, "record-check")
        self.produces = 0
        """Number of produces in the queues of all lanes."""
        self.recompressed_bytes = 0
        """Size of the recompressed batches in these queues."""
        self.recompressed_total = 0
        """Size, as received, of all batches that were recompressed so far."""

    def admit(self, produce: Produce, config: LogConfig) -> bool:
        """Return whether `produce` may be appended now.  If not, it waits, and `append` is called in its turn."""
        check = self._needed(produce, config)
        queue = self._queues.get(produce.lane)
        if check is None:
            produce.is_checked = True
            if queue is None and produce.verifying is None:
                return True
        if queue is None:
            queue = self._queues[produce.lane] = deque()
        queue.append(produce)
        self.produces += 1
        loop = asyncio.get_running_loop()
        produce.timer = loop.call_later(self._limits.record_check_wait_ms / 1000, self._on_timeout, produce)
        if check is not None:
            self._waiting[produce] = check
            self._start()
        return False

    def verified(self, produce: Produce) -> None:
        """Continue with a produce, because the coordinator has answered about its transaction."""
        self._advance(produce.lane)

    def refuse_all(self, code: KafkaCode) -> None:
        """Answer every waiting produce with an error, and append none of them."""
        for queue in list(self._queues.values()):
            for produce in queue:
                if not produce.future.done():
                    produce.future.set_result(ProduceResult(int(code)))
        for lane in list(self._queues):
            self._advance(lane)

    def _needed(self, produce: Produce, config: LogConfig) -> _Check | None:
        """Return the check that must run in a thread; None after a check that was small enough for the loop."""
        batches = produce.batches
        if isinstance(batches, Refused):
            return None
        target = config.recompression
        if target is not None and needs_recompression(batches, target):
            size_max = inflated_size_max(batches, config)
            return _Check(produce, partial(recompress, batches, target, size_max, config.message_size_max))
        if not config.opens_compressed:
            return None
        if not (compressed_size := batches.compressed_size):
            return None
        size_max = inflated_size_max(batches, config)
        if compressed_size <= self._limits.inline_check_bytes:
            inline_max = min(size_max, self._limits.inline_check_inflated_bytes)
            checked = check_inflated(batches, inline_max)
            if not (
                isinstance(checked, Refused) and checked.code == KafkaCode.MESSAGE_TOO_LARGE and inline_max < size_max
            ):
                produce.batches = checked
                return None
        return _Check(produce, partial(check_inflated, batches, size_max))

    def _start(self) -> None:
        while self._waiting and self._running < self._limits.record_check_threads:
            produce, check = self._waiting.popitem(last=False)
            if produce.future.done():
                continue  # the caller cancelled the produce
            loop = asyncio.get_running_loop()
            running = loop.run_in_executor(self._threads, check.work)
            self._running += 1
            running.add_done_callback(lambda done, check=check: self._on_checked(check, done))  # type: ignore[misc]

    def _on_checked(self, check: _Check, done: asyncio.Future[Produced | Refused]) -> None:
        self._running -= 1
        produce = check.produce
        if done.cancelled() or done.exception() is not None:
            produce.batches = Refused(int(KafkaCode.UNKNOWN_SERVER_ERROR), "the check of the records failed")
        elif not isinstance(produce.batches, Refused) and not produce.future.done():
            # Otherwise its transaction was refused during the check, or it was answered with a timeout.
            self._take(produce, produce.batches, done.result())
        produce.is_checked = True
        self._advance(produce.lane)
        if self.recompressed_bytes > self._limits.recompressed_waiting_bytes and produce.recompressed_size:
            self._release(produce)
            text = "too many recompressed bytes wait for earlier produces; nothing was appended"
            produce.batches = Refused(int(KafkaCode.REQUEST_TIMED_OUT), text)
        self._start()
        if not done.cancelled() and (error := done.exception()) is not None:
            raise error  # a bug: the loop's exception handler reports it

    def _take(self, produce: Produce, received: Produced, checked: Produced | Refused) -> None:
        produce.batches = checked
        if isinstance(checked, Produced) and checked.data is not received.data:
            self.recompressed_total += len(received.data)
            produce.recompressed_size = len(checked.data)
            self.recompressed_bytes += produce.recompressed_size

    def _release(self, produce: Produce) -> None:
        self.recompressed_bytes -= produce.recompressed_size
        produce.recompressed_size = 0

    def _on_timeout(self, produce: Produce) -> None:
        produce.timer = None
        if not produce.future.done():
            message = "the records were not checked in time; nothing was appended"
            produce.future.set_result(ProduceResult(int(KafkaCode.REQUEST_TIMED_OUT), error_message=message))
            self._timed_out(produce)
        self._advance(produce.lane)

    def _advance(self, lane: Lane) -> None:
        """Remove the produces at the head of the queue that are ready or answered; hand over the ready ones."""
        queue = self._queues.get(lane)
        while queue and ((queue[0].is_checked and queue[0].verifying is None) or queue[0].future.done()):
            produce = queue.popleft()
            self.produces -= 1
            self._waiting.pop(produce, None)
            self._release(produce)
            if produce.timer is not None:
                produce.timer.cancel()
            if not produce.future.done():
                self._hand_over(produce)
        if queue is not None and not queue:
            del self._queues[lane]

    def _hand_over(self, produce: Produce) -> None:
        try:
            self._append(produce)
        except Exception as error:  # a bug: the loop's exception handler reports it
            if not produce.future.done():
                message = "the broker failed while it appended; the records may have been appended"
                produce.future.set_result(ProduceResult(int(KafkaCode.UNKNOWN_SERVER_ERROR), error_message=message))
            context = {"message": "append of a checked produce failed", "exception": error}
            asyncio.get_running_loop().call_exception_handler(context)
