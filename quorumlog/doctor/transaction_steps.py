"""Explains in words why a transaction hangs, and names the command that ends it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from quorumlog.words import about

if TYPE_CHECKING:
    from quorumlog.client.transaction_logs import Hanging


def why_hanging(each: Hanging) -> str:
    """Return the reason why nothing will end a transaction."""
    known = each.known
    if known is None:
        return "no coordinator knows its producer"
    if each.overdue:
        return f"the coordinator reports it as {known.state}, and it exceeds its timeout of {known.timeout_ms} ms"
    return f"the coordinator reports its producer as {known.state}, without this partition"


def abort_step(each: Hanging) -> str:
    """Return the command that ends a transaction, or shows why it does not end."""
    known, opened = each.known, each.transaction
    if each.overdue and known is not None:
        if known.is_decided:  # it may be a commit, and only the coordinator can end it
            return about("kctl transactions describe", known.transactional_id)
        return about("kctl transactions abort", known.transactional_id, options=" --yes")
    return (
        f"kctl transactions abort --topic {opened.topic} --partition {opened.partition} "
        f"--start-offset {opened.start_offset} --yes"
    )
