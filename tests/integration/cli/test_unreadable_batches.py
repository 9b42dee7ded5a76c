"""`kctl consume` at a batch that an older release, or a topic without validation, accepted."""

from __future__ import annotations

import json
import shlex
import subprocess
from collections.abc import Callable

import pytest

from quorumlog.wire.record_batch import Codec
from tests.unit.broker.kafka.raw import RawClient
from tests.unit.quorumlog.wire.framing import BadBody, bad_bodies, body_of, record, sealed

from .conftest import Server

Kctl = Callable[..., subprocess.CompletedProcess[str]]

GOOD = sealed(body_of(record(0), record(1)), 2)
SHAPES = ("offset deltas 5 and 9", "offset deltas 1 and 0", "record cut off")
BAD = [bad for bad in bad_bodies() if bad.name in SHAPES]


async def fill(standalone: Server, kctl: Kctl, topic: str, bad: bytes) -> None:
    """Two records at 0, a batch that claims the offsets 2 and 3, two records at 4."""
    configs = ("--config", "compression.validation.enable=false", "--config", "retention.ms=-1")
    made = kctl("topics", "create", topic, "--replication-factor", "1", *configs)
    assert made.returncode == 0, made.stderr
    async with RawClient(int(standalone.fields["kafka"].rpartition(":")[2])) as client:
        for offset, batch in enumerate((GOOD, bad, GOOD)):
            answer = await client.produce(topic, 0, batch)
            assert (int(answer.error_code), answer.base_offset) == (0, 2 * offset)


def offsets(done: subprocess.CompletedProcess[str]) -> list[int]:
    return [json.loads(line)["offset"] for line in done.stdout.splitlines()]


@pytest.mark.parametrize("bad", BAD, ids=lambda bad: bad.name)
async def test_consume_ends_at_an_unreadable_batch_with_a_next_step(
    standalone: Server, kctl: Kctl, bad: BadBody
) -> None:
    topic = f"unreadable-{BAD.index(bad)}"
    await fill(standalone, kctl, topic, sealed(bad.body, 2, Codec.GZIP))
    done = kctl("consume", topic, "--from", "beginning", "--exit-at-end", "-o", "json")
    assert done.returncode == 1, done.stderr
    assert offsets(done) == [0, 1]
    error = json.loads(done.stderr)
    assert error["error"] == "CORRUPT_MESSAGE"
    assert f"{topic}-0: the batch of offsets 2 to 3 cannot be read" in error["message"]
    on = kctl(*shlex.split(error["next"])[1:], "--exit-at-end", "-o", "json")
    assert (on.returncode, offsets(on)) == (0, [4, 5]), on.stderr


async def test_consume_that_needs_only_earlier_records_succeeds(standalone: Server, kctl: Kctl) -> None:
    await fill(standalone, kctl, "enough", sealed(b"", 2, Codec.LZ4))
    done = kctl("consume", "enough", "--from", "beginning", "--max-messages", "2", "-o", "json")
    assert (done.returncode, offsets(done)) == (0, [0, 1])
    done = kctl("consume", "enough", "--from", "3", "--exit-at-end")
    assert (done.returncode, done.stdout) == (1, "")
