"""The HTTP endpoint: its responses, and misbehaving clients."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import suppress
from functools import partial

import pytest

from quorumlog.errors import ConfigError
from quorumlog.runtime import http
from quorumlog.runtime.addresses import Address
from quorumlog.runtime.http import Check, HttpServer, Response, get, health_routes

LOCAL = Address("127.0.0.1", 0)
Stream = tuple[asyncio.StreamReader, asyncio.StreamWriter]
GET_LIVEZ = b"GET /livez HTTP/1.1\r\nHost: x\r\n\r\n"


def broken(_query: Mapping[str, list[str]]) -> Response:
    raise ZeroDivisionError


@pytest.fixture
def checks() -> dict[str, Check]:
    return {"cluster": Check(True, "c1"), "leader": Check(False, "knows none")}


@pytest.fixture
async def server(checks: dict[str, Check]) -> AsyncIterator[HttpServer]:
    def metrics() -> tuple[bytes, str]:
        return b"x 1\n", "text/plain"

    routes = health_routes({name: partial(checks.__getitem__, name) for name in checks}, metrics)
    async with HttpServer(LOCAL, {**routes, "/broken": broken}) as running:
        yield running


async def talk(server: HttpServer, data: bytes, *, half_close: bool = False) -> bytes:
    """Send bytes, and return everything that the server sends until it closes."""
    async with asyncio.timeout(10):
        reader, writer = await asyncio.open_connection(*server.address)
        writer.write(data)
        if half_close:
            writer.write_eof()
        try:
            answer = await reader.read()
        except ConnectionResetError:  # closed with our bytes unread
            answer = b""
        writer.close()
        return answer


async def test_a_request_may_declare_an_empty_body_but_no_other(server: HttpServer) -> None:
    request = GET_LIVEZ.replace(b"\r\n\r\n", b"\r\nContent-Length: 0\r\n\r\n")
    answer = await talk(server, 2 * request, half_close=True)
    assert answer.count(b"HTTP/1.1 200 ") == 2
    answer = await talk(server, request.replace(b"Length: 0", b"Length: 1") + b"x", half_close=True)
    assert answer.startswith(b"HTTP/1.1 413 ")


async def test_health_endpoints_report_the_checks(server: HttpServer, checks: dict[str, Check]) -> None:
    assert await get(server.address, "/livez", 5) == (200, b"ok\n")
    assert await get(server.address, "/healthz", 5) == (200, b"ok\n")
    assert await get(server.address, "/readyz", 5) == (503, b"[-] leader: knows none\nnot ready\n")
    assert await get(server.address, "/readyz?verbose", 5) == (
        503,
        b"[+] cluster: c1\n[-] leader: knows none\nnot ready\n",
    )
    checks["leader"] = Check(True, "1")
    assert await get(server.address, "/readyz", 5) == (200, b"ok\n")
    assert await get(server.address, "/metrics", 5) == (200, b"x 1\n")


async def test_unknown_paths_and_failing_handlers_are_answered_with_an_error(server: HttpServer) -> None:
    assert (await get(server.address, "/nowhere", 5))[0] == 404
    assert (await get(server.address, "/broken", 5))[0] == 500
    assert (await get(server.address, "/livez", 5))[0] == 200


async def test_one_connection_serves_several_requests(server: HttpServer) -> None:
    request = b"GET /livez HTTP/1.1\r\nHost: x\r\n\r\n"
    last = b"HEAD /livez HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"
    answer = await talk(server, request + request + last)
    assert answer.count(b"HTTP/1.1 200") == 3
    assert answer.count(b"ok\n") == 2  # HEAD has no body


@pytest.mark.parametrize(
    ("data", "status"),
    [
        (b"POST /livez HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n", b" 405 "),
        (b"GET /livez HTTP/1.1\r\nHost: x\r\nContent-Length: 9999999999\r\n\r\n", b" 413 "),
        (b"GET /livez HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n", b" 413 "),
        (b"GET /livez HTTP/1.1\r\nHost: x\r\nBig: " + b"x" * 40_000 + b"\r\n\r\n", b" 431 "),
        (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03 hello\r\n\r\n", b" 400 "),
        (b"GET /livez HTTP/1.1\r\n\r\n", b" 400 "),  # no Host
        (b"GET http://[/livez HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n", b" 400 "),
        (b"GET /livez?" + b"a=b&" * 99 + b" HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n", b" 400 "),
        (b"GET http://evil/livez%00 HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n", b" 404 "),
    ],
)
async def test_a_bad_request_gets_an_error_response_and_its_connection_is_closed(
    server: HttpServer, data: bytes, status: bytes
) -> None:
    answer = await talk(server, data)
    assert status in answer.split(b"\r\n")[0]
    assert (await get(server.address, "/livez", 5))[0] == 200


async def test_an_incomplete_request_is_dropped(server: HttpServer) -> None:
    assert b"200" not in await talk(server, b"GET /livez HT", half_close=True)
    assert await talk(server, b"", half_close=True) == b""


@pytest.mark.parametrize("sent", [b"", b"GET /livez HT", GET_LIVEZ], ids=["silent", "half a request", "idle"])
async def test_a_probe_is_answered_despite_too_many_open_connections(server: HttpServer, sent: bytes) -> None:
    streams = [await asyncio.open_connection(*server.address) for _ in range(2 * http.CONNECTIONS_MAX)]
    for reader, writer in streams:
        writer.write(sent)
        if sent == GET_LIVEZ:
            with suppress(ConnectionError, asyncio.IncompleteReadError):  # closed for a later connection
                await reader.readuntil(b"ok\n")
    assert await get(server.address, "/livez", 10) == (200, b"ok\n")
    for _, writer in streams:
        writer.close()


async def test_the_longest_idle_connection_is_closed_for_a_new_one(
    server: HttpServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(http, "CONNECTIONS_MAX", 2)
    first, second = [await asyncio.open_connection(*server.address) for _ in range(2)]
    for reader, writer in (second, first):
        writer.write(GET_LIVEZ)
        await reader.readuntil(b"ok\n")
    assert await get(server.address, "/livez", 10) == (200, b"ok\n")
    assert await second[0].read() == b"", "the second connection was idle for longest, although it connected last"
    first[1].write(GET_LIVEZ)
    assert await first[0].readuntil(b"ok\n")
    first[1].close()
    second[1].close()


async def test_idle_connections_are_closed_before_those_of_clients_that_do_not_read(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(http, "CONNECTIONS_MAX", 2)
    size = 64 << 20
    routes = {"/large": lambda _query: Response(200, bytes(size)), "/small": lambda _query: Response(200, b"ok\n")}

    async def ask(server: HttpServer, path: bytes, until: bytes) -> Stream:
        reader, writer = await asyncio.open_connection(*server.address)
        writer.write(b"GET " + path + b" HTTP/1.1\r\nHost: x\r\n\r\n")
        await reader.readuntil(until)
        return reader, writer

    async with HttpServer(LOCAL, routes) as server:
        slow = await ask(server, b"/large", b"\r\n\r\n")
        idle = await ask(server, b"/small", b"ok\n")
        assert await get(server.address, "/small", 10) == (200, b"ok\n")
        assert await idle[0].read() == b""
        assert len(await slow[0].readexactly(size)) == size, "only the idle connection was closed"
        stuck = [await ask(server, b"/large", b"\r\n\r\n") for _ in range(2)]
        assert await get(server.address, "/small", 10) == (200, b"ok\n")
        with pytest.raises((asyncio.IncompleteReadError, ConnectionError)):
            await stuck[0][0].readexactly(size)
        for _, writer in (slow, idle, *stuck):
            writer.close()


async def test_a_request_that_arrives_too_slowly_is_dropped(
    server: HttpServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(http, "REQUEST_TIMEOUT_S", 0.05)
    assert await talk(server, b"GET /livez HT") == b""


async def test_a_client_that_sends_nothing_is_dropped(server: HttpServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http, "IDLE_TIMEOUT_S", 0.05)
    assert await talk(server, b"") == b""


async def test_a_port_in_use_is_a_config_error(server: HttpServer) -> None:
    with pytest.raises(ConfigError, match=str(server.address.port)):
        await HttpServer(server.address, {}).start()


async def test_close_ends_open_connections() -> None:
    server = HttpServer(LOCAL, {})
    await server.start()
    reader, writer = await asyncio.open_connection(*server.address)
    writer.write(b"GET /x HTTP/1.1\r\nHost: x\r\n\r\n")
    await reader.readuntil(b"\r\n")
    await server.close()
    await reader.read()
    assert reader.at_eof()
    writer.close()


async def test_get_fails_if_the_server_does_not_speak_http() -> None:
    async def greet(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"220 mail\r\n\r\n")
        writer.close()

    other = await asyncio.start_server(greet, "127.0.0.1", 0)
    address = Address("127.0.0.1", other.sockets[0].getsockname()[1])
    with pytest.raises(OSError, match="HTTP"):
        await get(address, "/livez", 5)
    other.close()
