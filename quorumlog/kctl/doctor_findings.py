"""What is wrong with a cluster, from what `doctor_look` has seen of it: each finding with its cause and the next step.

Pure: a look in, findings out.  One cause is one finding where that can be told: a broker that is down is named with
what it costs, not once for each of its partitions.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from quorumlog.kctl.doctor_look import HANGS
from quorumlog.kctl.words import Key, listed

CRITICAL, PROBLEM, ADVICE = "critical", "problem", "advice"
SEVERITIES = (CRITICAL, PROBLEM, ADVICE)


class Finding(NamedTuple):
    """severity: critical (something does not work), problem (it works, with less to spare), advice (by design).

    finding: a word for scripts.  nodes, partitions: whom it is about.
    """

    severity: str
    finding: str
    what: str
    cause: str
    next: str
    nodes: tuple[int, ...] = ()
    partitions: tuple[str, ...] = ()


def wake(silent: Iterable[tuple[int, str | None]], noun: str = "node", needed: int | None = None) -> str:
    """What to do about nodes that do not answer, by why they do not: start node 1; restart node 2, which hangs.

    needed: how many of them are enough (default: all must come back).
    """
    hanging: list[str] = []
    down: list[str] = []
    for node_id, silence in silent:
        (hanging if silence is not None and silence.endswith(HANGS) else down).append(f"{noun} {node_id}")
    verb = "hangs" if len(hanging) == 1 else "hang"
    all_needed = needed is None or needed >= len(down) + len(hanging)
    if not all_needed and needed != 1:
        told = f" ({listed(hanging)} {verb})" if hanging else ""
        return f"{'start or restart' if hanging else 'start'} {needed} of: {', '.join(down + hanging)}{told}"
    word = "and" if all_needed else "or"
    steps = [f"start {listed(down, word)}"] if down else []
    if hanging:
        steps.append(f"restart {listed(hanging, word)}, which {verb}")
    return ("; " if all_needed else ", or ").join(steps)


def texts(partitions: Iterable[Key]) -> tuple[str, ...]:
    return tuple(f"{topic}-{index}" for topic, index in sorted(partitions))
