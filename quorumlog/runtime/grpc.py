"""Creates every gRPC server and channel of the product.

The settings were measured.  gRPC's defaults let a second server bind a port in use silently, did not recover within
42 s of the end of a 60 s network cut, and ended an idle call after 5 s because of its keepalive pings.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass

import grpc
import grpc.aio

from quorumlog.runtime.addresses import Address, cannot_listen, listen_problem, listen_refused
from quorumlog.runtime.descriptors import descriptor_limit
from quorumlog.wire.rpcs import ReplyT, RequestT, Rpc

_MIB = 1 << 20

_Options = list[tuple[str, str | int]]


@dataclass(frozen=True, slots=True)
class MessageLimits:
    """Size limits of serialised messages, as seen from this side.  A larger message that arrives is refused
    with RESOURCE_EXHAUSTED before it is parsed, and before it is fully decompressed."""

    receive_max_bytes: int
    send_max_bytes: int


SERVER_LIMITS = MessageLimits(receive_max_bytes=16 * _MIB, send_max_bytes=64 * _MIB)
CHANNEL_LIMITS = MessageLimits(receive_max_bytes=64 * _MIB, send_max_bytes=16 * _MIB)

_KEEPALIVE: _Options = [
    ("grpc.keepalive_time_ms", 1000),
    ("grpc.keepalive_timeout_ms", 500),
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.http2.max_pings_without_data", 0),  # 0: no limit, which keeps parked fetches alive
]

_SERVER: _Options = [
    ("grpc.so_reuseport", 0),
    ("grpc.http2.min_recv_ping_interval_without_data_ms", 500),
    ("grpc.http2.max_ping_strikes", 0),
    ("grpc.max_concurrent_streams", 1024),  # per connection; calls above it wait at the client
    ("grpc.max_metadata_size", 8 * 1024),
    ("grpc.absolute_max_metadata_size", 16 * 1024),
    # Time in which a new connection must send something.  With gRPC's 120 s, or with 10 s, a flood of idle connections
    # locks operators out for longer than kctl waits.
    ("grpc.server_handshake_timeout_ms", 2_000),
]

_CHANNEL: _Options = [
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.min_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 500),
    ("grpc.dns_min_time_between_resolutions_ms", 500),
    ("grpc.enable_retries", 0),  # the caller knows whether a retry is safe
    ("grpc.use_local_subchannel_pool", 1),  # a new channel opens a new connection
    ("grpc.enable_http_proxy", 0),  # an http_proxy variable must not redirect quorum traffic
]

SERVER_CONNECTIONS_MAX = 4_096
"""Maximum number of connections of one server.  They may also use at most an eighth of the process's file descriptors
(but always 16), so that enough descriptors remain for the disks.  Further connections are closed."""

RECONNECT_S = 0.3
"""Time to wait for a peer that was unreachable before."""

SERVER_CALLS_MAX = 16_384
"""Maximum number of calls in progress on one server; further calls are refused with RESOURCE_EXHAUSTED."""


def _sizes(limits: MessageLimits) -> _Options:
    return [
        ("grpc.max_receive_message_length", limits.receive_max_bytes),
        ("grpc.max_send_message_length", limits.send_max_bytes),
    ]


def _connections_max() -> int:
    return max(16, min(SERVER_CONNECTIONS_MAX, descriptor_limit() // 8))


def make_server(
    handlers: Sequence[grpc.GenericRpcHandler] = (), *, limits: MessageLimits = SERVER_LIMITS
) -> grpc.aio.Server:
    """Return a server on the running loop, neither bound (`bind`) nor started."""
    return grpc.aio.server(
        handlers=list(handlers),
        options=[*_SERVER, *_KEEPALIVE, *_sizes(limits), ("grpc.max_allowed_incoming_connections", _connections_max())],
        maximum_concurrent_rpcs=SERVER_CALLS_MAX,
    )


def bind(server: grpc.aio.Server, address: Address, credentials: grpc.ServerCredentials | None = None) -> int:
    """Bind `server` to `address` and return the port (chosen by the system for port 0).

    Raises:
        ConfigError: the address cannot be bound, for example because it is in use.  The message gives the system's
            reason.
    """
    # First, since gRPC prints lines of its own on failure, and does not report the system's reason.
    if (problem := listen_problem(address, address, ipv6_only=False)) is not None:
        raise listen_refused(problem)
    try:
        if credentials is None:
            port = server.add_insecure_port(str(address))
        else:
            port = server.add_secure_port(str(address), credentials)
    except RuntimeError as error:  # newer gRPC raises, older returns 0
        raise listen_refused(cannot_listen(address, "gRPC could not bind it")) from error
    if port == 0:
        raise listen_refused(cannot_listen(address, "gRPC could not bind it"))
    return int(port)


def make_channel(
    target: str, *, limits: MessageLimits = CHANNEL_LIMITS, credentials: grpc.ChannelCredentials | None = None
) -> grpc.aio.Channel:
    """Return a channel on the running loop.  It connects at the first call; its back-off is 100 to 500 ms."""
    options = _CHANNEL + _KEEPALIVE + _sizes(limits)
    if credentials is None:
        return grpc.aio.insecure_channel(target, options=options)
    return grpc.aio.secure_channel(target, credentials, options=options)


def method_of(
    channel: grpc.aio.Channel, rpc: Rpc[RequestT, ReplyT]
) -> grpc.aio.UnaryUnaryMultiCallable[RequestT, ReplyT]:
    """Return a callable for `rpc`: await it with a request and `timeout`; it raises `grpc.aio.AioRpcError`."""
    return channel.unary_unary(
        rpc.path, request_serializer=rpc.request.SerializeToString, response_deserializer=rpc.reply.FromString
    )


async def connect(channel: grpc.aio.Channel, timeout_s: float) -> bool:
    """Return whether a connection exists within the time; False immediately if it is refused.  Sends nothing.

    A channel that failed before reports that failure until it is connected again, even while it retries.  So such a
    channel gets only `RECONNECT_S`, not the whole time.
    """
    state = channel.get_state(try_to_connect=True)
    failed = (grpc.ChannelConnectivity.TRANSIENT_FAILURE, grpc.ChannelConnectivity.SHUTDOWN)
    try:
        async with asyncio.timeout(max(min(timeout_s, RECONNECT_S) if state in failed else timeout_s, 0)):
            while state is not grpc.ChannelConnectivity.READY:
                await channel.wait_for_state_change(state)
                state = channel.get_state(try_to_connect=True)
                if state in failed:
                    return False
    except TimeoutError:
        return False
    return True
