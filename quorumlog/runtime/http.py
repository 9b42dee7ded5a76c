"""A small HTTP/1.1 server for `/metrics`, `/livez` and `/readyz`, on the running loop.

h11 implements the protocol: it is a small parser without threads or a loop of its own, used by uvicorn and httpx, and
imports in 20 ms.  The streams are asyncio's, so the server also runs under the simulator.  Everything is bounded:
connections, the size of a request head, and the time of each request.  A request with a body is refused, and its
connection is closed.

A liveness probe must succeed regardless of other clients.  So a new connection is never rejected: at the limit it
replaces the connection that has waited longest for its next request.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from urllib.parse import parse_qs, urlsplit

import h11

from quorumlog.runtime.addresses import Address, cannot_listen, listen_refused
from quorumlog.runtime.logging import get_logger

logger = get_logger("http")

CONNECTIONS_MAX = 64
"""Maximum number of connections.  A further connection replaces the connection that has been idle for the longest time.
If no connection is idle, it replaces the connection that has been reading its answer for the longest time."""
HEAD_MAX_BYTES = 16 * 1024
QUERY_FIELDS_MAX = 16
REQUEST_TIMEOUT_S = 10.0
"""Time limit for the rest of a request head after its first byte, and for sending an answer."""
IDLE_TIMEOUT_S = 60.0
"""Time limit for the first byte of a request, from the start of the connection or the end of the previous answer."""
LINGER_S = 1.0
_READ_BYTES = 4 * 1024


@dataclass(frozen=True, slots=True)
class Response:
    """A route's answer."""

    status: int
    body: bytes
    content_type: str = "text/plain; charset=utf-8"
    headers: tuple[tuple[str, str], ...] = ()


INSTEAD = "another --http HOST:PORT, or off"
"""The alternative to an address that cannot be bound."""

Route = Callable[[Mapping[str, list[str]]], Response]
"""Called with the query's parameters on the loop; only reads state."""


class HttpServer:
    """Serves GET and HEAD of fixed paths.  `async with` starts and stops it; `address` is the bound address."""

    def __init__(self, listen: Address, routes: Mapping[str, Route]) -> None:
        self._listen = listen
        self._routes = dict(routes)
        self._server: asyncio.Server | None = None
        self._connections: dict[_Connection, asyncio.Task[None]] = {}
        self.address = listen

    async def __aenter__(self) -> HttpServer:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def start(self) -> None:
        """Listen.

        Raises:
            ConfigError: the address cannot be bound, for example because it is in use.
        """
        try:
            self._server = await asyncio.start_server(self._accept, self._listen.host, self._listen.port)
        except OSError as error:
            problem = cannot_listen(f"{self._listen} (http.listen)", error)
            raise listen_refused(problem, instead=INSTEAD) from error
        if sockets := self._server.sockets:
            self.address = Address(self._listen.host, sockets[0].getsockname()[1])

    async def close(self) -> None:
        """Stop listening and drop every connection."""
        if self._server is not None:
            self._server.close()
        tasks = list(self._connections.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        connection = _Connection(reader, writer, self._routes)
        while len(self._connections) >= CONNECTIONS_MAX:
            self._evict()
        self._connections[connection] = task
        try:
            await connection.serve()
        except (OSError, TimeoutError, h11.LocalProtocolError):
            logger.debug("http connection dropped")
            writer.transport.abort()  # close() would wait for a client that does not read
        except asyncio.CancelledError:  # by `_evict` or `close`; asyncio would log it as an error
            writer.transport.abort()
        finally:
            self._connections.pop(connection, None)
            writer.close()

    def _evict(self) -> None:
        """Close the connection that has waited longest for a request, or else for its client to read the answer."""
        victim = min(self._connections, key=lambda each: (each.is_answering, each.since))
        self._connections.pop(victim).cancel()


@dataclass(slots=True, eq=False)
class _Connection:
    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter
    routes: Mapping[str, Route]
    http: h11.Connection = field(
        default_factory=lambda: h11.Connection(h11.SERVER, max_incomplete_event_size=HEAD_MAX_BYTES)
    )
    is_answering: bool = False
    since: float = field(default_factory=lambda: asyncio.get_running_loop().time())
    """The loop's time when the wait for a request, or for sending its answer, began."""

    async def serve(self) -> None:
        while True:
            try:
                event = await self._next_request()
            except h11.RemoteProtocolError as error:
                if self.http.our_state in (h11.IDLE, h11.SEND_RESPONSE):
                    await self._send(Response(error.error_status_hint, b"this request is not supported\n"), False)
                    await self._linger()
                return
            if not isinstance(event, h11.Request):
                return
            self._turn(is_answering=True)
            has_body = any(
                name == b"transfer-encoding" or (name == b"content-length" and int(value) > 0)
                for name, value in event.headers
            )
            await self._send(self._respond(event, has_body), event.method == b"HEAD", close=has_body)
            if has_body:
                await self._linger()
            if has_body or self.http.our_state is h11.MUST_CLOSE:
                return
            async with asyncio.timeout(REQUEST_TIMEOUT_S):
                while self.http.their_state is h11.SEND_BODY:
                    await self._next_event()
            if self.http.our_state is not h11.DONE or self.http.their_state is not h11.DONE:
                return
            self.http.start_next_cycle()
            self._turn(is_answering=False)

    def _turn(self, *, is_answering: bool) -> None:
        self.is_answering = is_answering
        self.since = asyncio.get_running_loop().time()

    async def _next_request(self) -> object:
        """Return the next event; the first byte of a request may take longer than the rest.

        Raises: TimeoutError, h11.RemoteProtocolError.
        """
        event: object = self.http.next_event()
        if event is h11.NEED_DATA and not self.http.trailing_data[0]:
            async with asyncio.timeout(IDLE_TIMEOUT_S):
                self.http.receive_data(await self.reader.read(_READ_BYTES))
            event = self.http.next_event()
        if event is h11.NEED_DATA:
            async with asyncio.timeout(REQUEST_TIMEOUT_S):
                event = await self._next_event()
        return event

    async def _linger(self) -> None:
        """Read a little longer: closing with unread input resets the connection, and the peer may lose the answer."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(LINGER_S):
                self.writer.write_eof()
                while await self.reader.read(_READ_BYTES):
                    pass

    async def _next_event(self) -> object:
        while (event := self.http.next_event()) is h11.NEED_DATA:
            self.http.receive_data(await self.reader.read(_READ_BYTES))
        return event

    def _respond(self, request: h11.Request, has_body: bool) -> Response:
        if request.method not in (b"GET", b"HEAD"):
            return Response(405, b"only GET and HEAD\n", headers=(("Allow", "GET, HEAD"),))
        if has_body:
            return Response(413, b"a request body is not accepted\n")
        try:
            target = urlsplit(request.target.decode("latin-1"))
            query = parse_qs(target.query, keep_blank_values=True, max_num_fields=QUERY_FIELDS_MAX)
        except ValueError:
            return Response(400, b"not a path and query\n")
        route = self.routes.get(target.path)
        if route is None:
            return Response(404, f"not found; the paths are {' '.join(sorted(self.routes))}\n".encode())
        try:
            return route(query)
        except Exception:
            logger.exception("http route failed", path=target.path)
            return Response(500, b"failed; the log of this process has the reason\n")

    async def _send(self, response: Response, head_only: bool, close: bool = False) -> None:
        headers = [
            ("Content-Type", response.content_type),
            ("Content-Length", str(len(response.body))),
            ("Cache-Control", "no-store"),
            *response.headers,
        ]
        if close:
            headers.append(("Connection", "close"))
        data = self.http.send(h11.Response(status_code=response.status, headers=headers)) or b""
        if not head_only:
            data += self.http.send(h11.Data(data=response.body)) or b""
        data += self.http.send(h11.EndOfMessage()) or b""
        self.writer.write(data)
        async with asyncio.timeout(REQUEST_TIMEOUT_S):
            await self.writer.drain()


@dataclass(frozen=True, slots=True)
class Check:
    """The state of one condition of readiness, and the reason."""

    ok: bool
    detail: str = ""


def health_routes(
    checks: Mapping[str, Callable[[], Check]], render_metrics: Callable[[], tuple[bytes, str]]
) -> dict[str, Route]:
    """Return the routes that every process serves.

    `/livez` (also `/healthz`) only shows that the loop runs, because a restart does not help a node without a quorum.
    `/readyz` is 200 if every check holds, else 503; with `?verbose` it lists all checks, else those that fail.
    """

    def live(_query: Mapping[str, list[str]]) -> Response:
        return Response(200, b"ok\n")

    def ready(query: Mapping[str, list[str]]) -> Response:
        results = {name: check() for name, check in checks.items()}
        is_ready = all(result.ok for result in results.values())
        shown = results if "verbose" in query else {name: r for name, r in results.items() if not r.ok}
        lines = [
            f"[{'+' if result.ok else '-'}] {name}{': ' if result.detail else ''}{result.detail}"
            for name, result in shown.items()
        ]
        lines.append("ok" if is_ready else "not ready")
        return Response(200 if is_ready else 503, ("\n".join(lines) + "\n").encode())

    def metrics(_query: Mapping[str, list[str]]) -> Response:
        body, content_type = render_metrics()
        return Response(200, body, content_type)

    return {"/livez": live, "/healthz": live, "/readyz": ready, "/metrics": metrics}


async def get(address: Address, path: str, timeout_s: float) -> tuple[int, bytes]:
    """Request `path` from one of our servers; return the status, and at most about 16 MiB of the body.

    For `kctl dev` and health checks.

    Raises:
        OSError: no connection could be made, or it broke.  A TimeoutError is an OSError.
    """
    client = h11.Connection(h11.CLIENT, max_incomplete_event_size=HEAD_MAX_BYTES)
    async with asyncio.timeout(timeout_s):
        reader, writer = await asyncio.open_connection(address.host, address.port)
        with contextlib.closing(writer):
            request = h11.Request(method="GET", target=path, headers=[("Host", str(address)), ("Connection", "close")])
            writer.write((client.send(request) or b"") + (client.send(h11.EndOfMessage()) or b""))
            status, body = 0, b""
            try:
                while not isinstance(event := client.next_event(), h11.EndOfMessage | h11.ConnectionClosed):
                    if event is h11.NEED_DATA:
                        client.receive_data(await reader.read(_READ_BYTES))
                    elif isinstance(event, h11.Response):
                        status = event.status_code
                    elif isinstance(event, h11.Data) and len(body) < (1 << 24):
                        body += event.data
            except h11.RemoteProtocolError as error:
                raise ConnectionError(f"{address} does not speak HTTP") from error
            return status, body
