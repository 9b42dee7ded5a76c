"""A finding: one problem of a cluster, as a value."""

from __future__ import annotations

from typing import NamedTuple

CRITICAL, PROBLEM, ADVICE = "critical", "problem", "advice"
SEVERITIES = (CRITICAL, PROBLEM, ADVICE)


class Finding(NamedTuple):
    """One problem with its cause.  A broker that is down gives one finding, not one for each of its partitions.

    severity: critical (something does not work), problem (it works, but tolerates fewer failures), advice (a choice
    that costs something).
    finding: the name of the problem, for scripts.
    nodes, partitions: the nodes and partitions that are concerned.
    commands: the commands in `next` that repair the problem, in order, each a complete shell command.  Empty if no
    command helps, for example because a process must be started or a disk replaced.  If `next` names another step
    first, the commands are the alternative to that step: for example, they replace a broker that is lost permanently.
    A script must not run such commands before that step has had its time; docs/diagnosis.md lists these findings.
    last_resort: the commands in `next` that give up records, in order.  They are only for the case that the other steps
    in `next` are impossible, so a script must not run them.
    """

    severity: str
    finding: str
    what: str
    cause: str
    next: str
    nodes: tuple[int, ...] = ()
    partitions: tuple[str, ...] = ()
    commands: tuple[str, ...] = ()
    last_resort: tuple[str, ...] = ()
