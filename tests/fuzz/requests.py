"""`python -m tests.fuzz.requests [--seconds S] [--seed N] [--api TEXT]`: damaged requests of every API, to a listener.

Each request is a valid one, with odd values in its fields, whose bytes are then damaged: flipped, removed, repeated,
replaced by lengths that are too large.  The listener must answer it or close the connection, within a deadline, and
stay usable.  A handler that fails, or an invariant that breaks, ends the run with 1 and prints the request.  The same
seed makes the same requests.  The tests run a short round of it.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import time
from collections import Counter
from collections.abc import Iterator
from random import Random
from typing import Any

from structlog.testing import capture_logs

from quorumlog.wire.kafka import codec
from quorumlog.wire.kafka.codec import Api
from tests.unit.broker.kafka.raw import RawClient
from tests.unit.broker.kafka.test_every_request_is_answered import EVERY, listening, many_odd_fields, one_odd_field

ANSWER_WAIT_S = 60.0
"""A listener that has neither answered nor closed the connection by then hangs."""
REQUESTS_PER_SCHEMA = 20
LENGTHS = (b"\xff\xff\xff\xff\x07", b"\x7f\xff\xff\xff", b"\xff\xff", b"\x80\x80\x80\x80\x08", b"\0", b"\x01", b"\xff")
"""Numbers that decoders read as the size of a text or of an array."""


class RequestFailed(Exception):
    """The listener did not survive a request."""


def damaged(body: bytes, random: Random) -> bytes:
    """Return the bytes with one to four changes."""
    out = bytearray(body)
    for _ in range(random.randint(1, 4)):
        at = random.randrange(len(out) + 1)
        match random.randrange(5):
            case 0 if out:
                out[at % len(out)] ^= 1 << random.randrange(8)
            case 1:
                del out[at : at + random.randint(1, 8)]
            case 2:
                out[at:at] = out[at : at + random.randint(1, 16)]
            case 3:
                length = random.choice(LENGTHS)
                out[at : at + random.choice((0, len(length)))] = length
            case _:
                del out[at:]
    return bytes(out)


def requests(random: Random, wanted: str) -> Iterator[tuple[Api, int, bytes]]:
    """Yield damaged requests endlessly, of each served API and version in turn."""
    chosen = [(which, version) for which, version in EVERY if wanted.upper() in which.name]
    while True:
        for which, version in chosen:
            schema = codec.request_schema(which, version)
            valid = [*one_odd_field(schema), *many_odd_fields(schema, random)]
            for _, values in random.sample(valid, min(REQUESTS_PER_SCHEMA, len(valid))):
                body = codec.encode(codec.request(which, version, values))
                yield which, version, damaged(body, random)


async def outcome(client: RawClient, which: Api, version: int, body: bytes) -> str:
    """Send a request, then one that must be answered; return the outcome of the first.  Raises: RequestFailed.

    A Produce with acks=0 has no answer.
    """
    sent = client.send_body(which, version, body)
    try:
        after = client.send(Api.API_VERSIONS, 0, {})
        async with asyncio.timeout(ANSWER_WAIT_S):
            first = await read_frame(client)
            if which is Api.PRODUCE and number_of(first) == after:
                return "without an answer"
            second = await read_frame(client)
    except (ConnectionError, asyncio.IncompleteReadError):
        return "closed"
    except TimeoutError:
        raise RequestFailed("no answer, and the connection stays open") from None
    received, position = codec.parse_response_header(which, version, first)
    if (received, number_of(second)) != (sent, after):
        raise RequestFailed(f"the answers are for requests {received} and {number_of(second)}, not {sent} and {after}")
    codec.decode(codec.response_schema(which, version), first, position)
    return "answered"


async def read_frame(client: RawClient) -> memoryview:
    size = int.from_bytes(await client.reader.readexactly(4), "big")
    return memoryview(await client.reader.readexactly(size))


def number_of(frame: memoryview) -> int:
    """Return the correlation id of a response."""
    return int.from_bytes(frame[:4], "big", signed=True)


async def run(seconds: float, seed: int, wanted: str = "") -> Counter[str]:
    """Send requests until the time is up; return how often each outcome was seen.  Raises: RequestFailed."""
    broken: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: broken.append(context))
    found: Counter[str] = Counter()
    ends_at = time.monotonic() + seconds
    with capture_logs() as logs:
        async with listening() as port:
            client = await RawClient(port).__aenter__()
            for which, version, body in requests(Random(seed), wanted):
                if time.monotonic() >= ends_at:
                    break
                try:
                    result = await outcome(client, which, version, body)
                    errors = [*broken, *(line for line in logs if line["log_level"] in ("error", "critical"))]
                    if errors:
                        raise RequestFailed(str(errors[0]))
                except Exception as error:
                    what = f"{which.name} {version}, body {body.hex()}"
                    raise RequestFailed(f"seed {seed}: {what}: {error!r}") from error
                logs.clear()
                found[result] += 1
                if result == "closed":
                    client.writer.close()
                    client = await RawClient(port).__aenter__()
            client.writer.close()
    return found


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz.requests", description=__doc__)
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--api", default="", metavar="TEXT", help="only APIs with this in their name")
    options = parser.parse_args()
    try:
        found = asyncio.run(run(options.seconds, options.seed, options.api))
    except RequestFailed as error:
        print(error, file=sys.stderr)
        return 1
    print(", ".join(f"{count} {name}" for name, count in sorted(found.items())))
    return 0


if __name__ == "__main__":
    sys.exit(main())
