"""The interface between a coordinator's pure core and its shell.

The shell appends the records of a step in order.  Consecutive records of one transaction, or of no transaction, become
one batch.  The shell sends the answers when the high watermark reaches the end that the log had after the step.  This
also applies to answers to reads, so that no client sees uncommitted state.  When an append fails or the broker resigns,
the shell drops the core.  After a failed append, it loads a new core by replay.

A machine never answers a call within `replay`, never answers a call twice, and answers each call that was not dropped.
A call that waits for other clients has a deadline, at which `tick` answers it if nothing else has.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

import msgspec

from broker.core.coordinator.fields import BadRecord
from broker.core.transactions import Marker, ProducerKey

if TYPE_CHECKING:
    from quorumlog.wire._record_scan import Record as LoggedRecord

Request_contra = TypeVar("Request_contra", contravariant=True)
Limits_contra = TypeVar("Limits_contra", contravariant=True)


class Record(msgspec.Struct, frozen=True):
    """One record of the internal topic.  A value of None is a tombstone.

    producer: the producer to whose transaction the record belongs; None without a transaction.
    marker: set only if this record is a transaction marker.  Such a record has an empty key and no value, and the
        marker names its own producer.
    """

    key: bytes
    value: bytes | None
    producer: ProducerKey | None = None
    marker: Marker | None = None


class Answer(msgspec.Struct, frozen=True):
    """The response to the call with this number."""

    call: int
    response: Any


class Step(msgspec.Struct, frozen=True):
    """The result of one operation: records to append, and answers to send when the records are committed.

    notes: changes of state, each as a line for the log.
    effects: actions that the shell's owner performs once the records are committed, in the order of the steps.
    """

    records: tuple[Record, ...] = ()
    answers: tuple[Answer, ...] = ()
    notes: tuple[str, ...] = ()
    effects: tuple[Any, ...] = ()


class Machine(Protocol[Request_contra, Limits_contra]):
    """The state of one partition of an internal topic.

    All arguments `now_ms` are in ms of the same monotonic clock.
    """

    def replay(self, record: Record) -> None:
        """Apply one record or marker of the log, in log order, before `loaded`.

        Raises:
            BadRecord: the record is damaged, and nothing was changed.
        """
        ...

    def replay_batch(self, records: list[LoggedRecord], producer: ProducerKey | None) -> None:
        """Apply consecutive records of one batch, as `replay` does one at a time.

        producer: see `Record`.

        Raises:
            BadRecord: a record is damaged.  Its offset is in the message, and the machine must be dropped.
        """
        ...

    def loaded(self, now_ms: int) -> Step:
        """Start to serve: the log has been replayed up to its end.  To be called once, before any request."""
        ...

    def request(self, call: int, request: Request_contra, now_ms: int) -> Step:
        """Apply a request.  call: a number that is never used again; the answer to it may come in a later step."""
        ...

    def forget(self, call: int, now_ms: int) -> Step:
        """Drop a call whose client disconnected.  No answer to it follows.  A call that was answered is ignored.

        The step has no records, so it can be applied while nothing can be appended.
        """
        ...

    def tick(self, now_ms: int) -> Step:
        """Perform the work that is due at `now_ms`.  Afterwards `deadline_ms` is later than `now_ms`."""
        ...

    @property
    def deadline_ms(self) -> int | None:
        """Return the time of the next tick; None if nothing has a deadline.  Every other method may change it."""
        ...

    def configure(self, limits: Limits_contra, now_ms: int) -> Step:
        """Apply changed configs.  State that was accepted under the old limits stays."""
        ...

    def close(self) -> None:
        """End; no call follows.  Afterwards the state is in no reference cycle, so that its memory is freed at once.

        The state may take hundreds of MB, and the garbage collector of a server skips old objects
        (`quorumlog.runtime.garbage`).
        """
        ...


def replay_each(
    replay: Callable[[Record], None], records: Iterable[LoggedRecord], producer: ProducerKey | None = None
) -> None:
    """Replay records one at a time; see `Machine.replay_batch`."""
    for record in records:
        if record.key is None:
            raise BadRecord(f"the record at offset {record.offset} has no key")
        try:
            replay(Record(record.key, record.value, producer))
        except BadRecord as error:
            raise BadRecord(f"the record at offset {record.offset}: {error}") from error
