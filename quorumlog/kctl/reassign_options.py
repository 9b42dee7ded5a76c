"""The options that the commands of `kctl reassign` share, and the plan that one of them names."""

from __future__ import annotations

import re

import click

from quorumlog.errors import ClusterError
from quorumlog.kctl import inputs
from quorumlog.kctl.numbers import IntRange, whole
from quorumlog.kctl.reassign_plan import FORM, ID_MAX, PLAN_SIZE_MAX, Move, parse
from quorumlog.wire.errors import ApiError

NO_THROTTLE = -1
_DIGITS = re.compile(r"[0-9]{1,19}")


def broker_ids(_context: click.Context, _parameter: click.Parameter, text: str | None) -> tuple[int, ...] | None:
    if text is None:
        return None
    try:
        ids = tuple(whole(each) for each in text.split(","))
    except ValueError:
        raise click.BadParameter(f"{text!r} is not like 1,2,3 (broker ids)") from None
    if len(set(ids)) != len(ids):
        raise click.BadParameter(f"{text!r} names a broker twice")
    if any(not 0 <= each <= ID_MAX for each in ids):
        raise click.BadParameter(f"{text!r} has a broker id out of range 0..{ID_MAX}")
    return ids


def _bytes(_context: click.Context, _parameter: click.Parameter, text: str | None) -> int | None:
    """Return the bytes in `50000000`, `50M` or `50MiB`, and NO_THROTTLE for `none` or -1."""
    if text is None:
        return None
    if text.lower() in ("none", "-1"):
        return NO_THROTTLE
    units = {"": 1, "k": 1000, "m": 1000**2, "g": 1000**3, "kib": 1 << 10, "mib": 1 << 20, "gib": 1 << 30}
    digits = text.rstrip("kKmMgGiIbB")
    factor = units.get(text[len(digits) :].lower())
    if factor is None or not _DIGITS.fullmatch(digits) or not 0 < int(digits) * factor < 2**63:
        raise click.BadParameter(f"{text!r} is not like 50000000, 50M or 50MiB (bytes a second), or none")
    return int(digits) * factor


async def load(path: str | None, *, may_be_empty: bool = False) -> list[Move] | None:
    """Return the plan in a file; None without a file.

    may_be_empty: accept a plan without partitions.

    Raises:
        ClusterError: INVALID_PLAN.
    """
    if path is None:
        return None
    try:
        data = await inputs.read(path, "the plan", PLAN_SIZE_MAX)
        text = inputs.text_of(data)
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else f"it is not text: {error}"
        next_step = f"name a file that holds {FORM}, or - for standard input"
        raise ClusterError(ApiError.INVALID_PLAN, f"the plan {path!a} cannot be read: {why}", next_step) from None
    name = "standard input" if path == inputs.STANDARD_INPUT else ascii(path)
    if len(data) > PLAN_SIZE_MAX:
        raise ClusterError(ApiError.INVALID_PLAN, f"{name} is larger than {PLAN_SIZE_MAX} bytes", "split it")
    return parse(text, name, may_be_empty=may_be_empty)


plan_option = click.option("--plan", "path", metavar="FILE.json", help="A plan; - reads standard input.")
topic_option = click.option("--topic", "topics", multiple=True, metavar="T", help="All partitions of a topic.")
brokers_option = click.option(
    "--brokers", callback=broker_ids, metavar="1,2,3", help="Brokers for the topic's replicas."
)
factor_option = click.option(
    "--replication-factor", type=IntRange(1, 32_767), help="Copies of each partition (default: as many as now)."
)
throttle_option = click.option(
    "--throttle",
    callback=_bytes,
    metavar="BYTES",
    help="Maximum bytes per second that a broker copies, until the last reassignment ends; none removes the limit.",
)
