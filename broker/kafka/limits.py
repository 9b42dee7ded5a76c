"""Every bound of the Kafka listener, and `MemoryBudget`, which enforces one of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import msgspec


class KafkaLimits(msgspec.Struct, frozen=True):
    """Every bound of the Kafka listeners of a broker."""

    frame_max_bytes: int = 100 << 20
    """A larger frame closes its connection before it is read."""
    small_request_max_bytes: int = 4 << 20
    """A larger request closes its connection, unless it is Produce.  Other requests take many times their size in
    memory once they are decoded."""
    connections_max: int = 4_000
    """Maximum number of connections of all listeners.  A further connection replaces an idle one, or is closed
    immediately if none is idle.  All connections together use at most half of the process's file descriptors."""
    inter_broker_connections_max: int = 500
    """Maximum number of connections that the listener for other brokers accepts beyond `connections_max`, at most a
    quarter of that limit; 0 if the broker has only one listener.  So clients that are never idle cannot keep followers
    out."""
    requests_per_connection_max: int = 64
    """Maximum number of requests of one connection that were read and are not answered yet.  At this number, reading
    stops."""
    held_max_bytes: int = 512 << 20
    """Bytes held for all connections: half for frames that are arriving, half for whole requests and unsent replies.
    `MemoryBudget` describes what happens above the limit."""
    idle_ms: int = 600_000
    """A connection that sends no request for this time is closed."""
    frame_stall_ms: int = 30_000
    """Time for a frame to arrive, in addition to one second for each MiB.  Then its connection is closed."""
    crowded_stall_ms: int = 1_000
    crowded_progress_bytes: int = 64 << 10
    """While others wait for room for their frames, a connection whose frame grows by less than this in
    `crowded_stall_ms` is closed."""
    write_stall_ms: int = 60_000
    """A connection whose peer reads less than `write_stall_bytes` of its replies in this time is closed."""
    write_stall_bytes: int = 64 << 10
    write_buffer_bytes: int = 1 << 20
    """Bytes of unsent replies of one connection.  Above it, no further request of the connection begins."""
    sweep_ms: int = 5_000
    """Time between two searches for idle and stalled connections."""
    close_ms: int = 2_000
    """Time that a closing server waits for replies to be made and sent.  Then it closes all connections."""
    metadata_cache_max_bytes: int = 16 << 20
    """Maximum size of all cached Metadata responses.  A response that would exceed it empties the cache first."""
    auto_topics_per_request_max: int = 100
    """Maximum number of topics that are created for one Metadata request: the first missing ones that it names.  The
    client asks again for the others."""
    auto_topics_max: int = 1_000
    """Maximum number of automatic creations that are under way, or were refused less than `auto_topics_pause_ms` ago.
    Above this number, a missing topic is not created; the client asks again."""
    auto_topics_pause_ms: int = 1_000
    """Time after a refusal before the creation of a topic is requested again.  Clients ask every 100 ms."""
    auto_topics_timeout_ms: int = 30_000
    """Longest time for one request of automatic creations to the controller."""
    describe_quorum_timeout_ms: int = 5_000
    """Longest time for the answer of the quorum's leader to DescribeQuorum."""
    voter_change_timeout_ms: int = 25_000
    """Longest time for RemoveRaftVoter and UpdateRaftVoter, which contain no timeout.  Clients wait for 30 s."""
    controller_timeout_max_ms: int = 120_000
    """Longest time for a forwarded request, even if the client allows more."""


REPLY_MIN_BYTES = 1 << 20
"""Bytes of records that one reply may always contain, even if the held bytes exceed their limit.  One batch is always
sent whole."""


class Reading(Protocol):
    """The part of a connection that `MemoryBudget` uses."""

    def hold_reading(self) -> None:
        """Stop reading until `go_on_reading`."""
        ...

    def go_on_reading(self) -> None:
        """Resume reading, unless another bound prevents it."""
        ...

    def make_way(self, now: float) -> None:
        """Close the connection if its frame hardly grows.  now: time of the loop's clock, in seconds."""
        ...


class MemoryBudget:
    """Counts held bytes, and stops connections from reading while too many are held.

    Theory of operation.  There are two accounts.  Each has half of the limit, so that neither can starve the other.

    The first account has *whole* requests and unsent replies.  A frame counts from its arrival until its answer.  The
    reply to a fetch counts as soon as it exists, so that fetches that arrive together share the room.  While the
    account exceeds its half, a connection with more than its share stops reading.  The share is the half divided by the
    number of connections that hold anything.  So a client whose requests are not answered, or that does not read its
    replies, delays itself and not others.

    The second account has *growing* frames, which are too large for the staging buffer and have not arrived completely.
    While the account exceeds its half, a connection whose frame grows stops reading.  Every connection may always have
    `allowance` bytes, so that small requests continue.  If every connection held part of a frame, none could ever give
    bytes back.  So this account never stops the connection whose frame began first (the elder).  `on_crowded` informs
    the server, which closes connections whose frames do not grow.

    The memory held is thus at most the limit, plus a share and an allowance for each connection that was just reading,
    plus one frame.  Each connection may also have one reply of `REPLY_MIN_BYTES`, and unsent replies below
    `KafkaLimits.write_buffer_bytes`, which do not count.
    """

    def __init__(self, max_bytes: int, allowance: int, on_crowded: Callable[[], None]) -> None:
        self._half = max_bytes // 2
        self._allowance = allowance
        self._on_crowded = on_crowded
        self._whole = 0
        self._whole_of: dict[Reading, int] = {}
        self._above_share: dict[Reading, None] = {}
        self._growing = 0
        self._growing_of: dict[Reading, int] = {}  # in the order in which they began
        self._crowded_out: dict[Reading, None] = {}

    @property
    def held(self) -> int:
        """Bytes of both accounts."""
        return self._whole + self._growing

    @property
    def is_crowded(self) -> bool:
        """Return whether a connection waits for room for a growing frame."""
        return bool(self._crowded_out)

    # -- whole requests, and replies

    def take(self, who: Reading, size: int) -> None:
        """Count `size` bytes of a whole request or an unsent reply.  This may stop the connection from reading."""
        self._whole += size
        self._whole_of[who] = self._whole_of.get(who, 0) + size
        if self._whole > self._half and self._whole_of[who] > self._share():
            self._above_share[who] = None
            who.hold_reading()

    def give(self, who: Reading, size: int) -> None:
        """Release bytes that `take` counted.  Connections that have stopped reading may resume."""
        left = self._whole_of.get(who, 0) - size
        assert left >= 0, f"{-left} bytes given back that were never taken"
        self._whole -= size
        if left:
            self._whole_of[who] = left
        else:
            self._whole_of.pop(who, None)
        if who in self._above_share and left <= self._share():
            self._go_on(self._above_share, who)
        while self._whole <= self._half and self._above_share:
            self._go_on(self._above_share, next(iter(self._above_share)))

    def room(self) -> int:
        """Return how many bytes of records the next reply may contain, at least `REPLY_MIN_BYTES`.

        The more bytes are held, the fewer the reply may contain.
        """
        return max(REPLY_MIN_BYTES, (self._half - self._whole) // 8)

    def _share(self) -> int:
        return self._half // max(1, len(self._whole_of))

    # -- growing frames

    def grow(self, who: Reading, size: int) -> None:
        """Count `size` bytes of a growing frame.  This may stop the connection from reading."""
        self._growing += size
        own = self._growing_of[who] = self._growing_of.get(who, 0) + size
        if self._growing > self._half and own > self._allowance and who is not self._elder():
            self._crowded_out[who] = None
            who.hold_reading()
            self._on_crowded()

    def grown(self, who: Reading) -> None:
        """Release a growing frame that is complete, or whose connection is lost.

        The next elder resumes reading, and so do others if there is room.
        """
        self._growing -= self._growing_of.pop(who, 0)
        elder = self._elder()
        if elder is not None and elder in self._crowded_out:
            self._go_on(self._crowded_out, elder)
        while self._growing <= self._half and self._crowded_out:
            self._go_on(self._crowded_out, next(iter(self._crowded_out)))

    def growing(self) -> list[Reading]:
        """Return the connections with a growing frame that are not stopped."""
        return [who for who in self._growing_of if who not in self._crowded_out and who not in self._above_share]

    def _elder(self) -> Reading | None:
        return next(iter(self._growing_of), None)

    def forget(self, who: Reading) -> None:
        """Release everything that a lost connection held."""
        self._above_share.pop(who, None)
        self._crowded_out.pop(who, None)
        self.give(who, self._whole_of.get(who, 0))
        self.grown(who)

    def _go_on(self, waiting: dict[Reading, None], who: Reading) -> None:
        del waiting[who]
        if who not in self._above_share and who not in self._crowded_out:
            who.go_on_reading()
