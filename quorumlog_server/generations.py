"""Restarts a node whose quorum was rebuilt by hand (`quorum-node recover`).

Theory of operation.  Each reply from a node of the rebuilt quorum reports the newer generation.  The old node's own log
then belongs to a history that does not continue.  It may hold records that only lost disks had confirmed.  From some
offset on, it differs from the log of the rebuilt quorum.  So the node starts again with an empty quorum directory and a
new directory id, and fetches everything from the rebuilt quorum.  The old directory is never deleted, because it may
hold the only copy of records that the rebuilt quorum does not have.  It is renamed, with its generation in the name.

Observers, which include brokers, do this automatically if their configuration names nodes of the cluster.  A voter does
not: an operator may still want to recover from its directory, and the wrong directory may have been recovered.  A node
that does not do this ends with an error that names the next step.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable

from quorum.core.voters import VoterHistory
from quorum.ports import OutlivedError
from quorum.store.directory import move_away
from quorumlog.runtime.logging import get_logger

logger = get_logger("quorum")


async def through_generations(
    directory: str, knows_a_way: bool, run: Callable[[OutlivedError | None], Awaitable[None]]
) -> None:
    """Run a node with this quorum directory, and again with an empty one after each rebuild of the quorum.

    run: runs the node.  Its argument describes the directory that was just set aside; None at first.
    knows_a_way: whether the configuration names nodes of the cluster, so that an empty node finds it.

    Raises:
        OutlivedError: the disk was a voter's, or an empty node would not find the cluster.
    """
    before: OutlivedError | None = None
    while True:
        try:
            return await run(before)
        except OutlivedError as error:
            if error.was_voter or not knows_a_way:
                raise _refusal(directory, error) from None
            before = error
        kept = await asyncio.get_running_loop().run_in_executor(
            None, move_away, directory, f"generation-{before.generation}"
        )
        logger.warning(
            "the quorum was rebuilt: the old quorum directory is set aside, and this node starts with an empty one",
            generation=before.newer,
            before=before.generation,
            log_end=before.log_end,
            kept=kept,
        )


def log_lost_metadata(before: OutlivedError, history: VoterHistory) -> None:
    """Log which records the rebuilt quorum lacks, although the directory that was set aside has them.

    history: the voters in the log of the rebuilt quorum.
    """
    # After several rebuilds, the histories differ from the first rebuild on.
    begins = history.rebuilt_at(before.generation + 1)
    if begins is None:
        logger.warning(
            "it is unknown whether metadata records are lost: this node has loaded a snapshot from after the rebuild",
            log_end=before.log_end,
            generation=before.generation,
            next="if topics or partitions are missing, inspect the directory that was set aside: kctl metadata dump",
        )
    elif before.log_end <= begins:
        logger.info(
            "the rebuilt quorum has all metadata records of this node", log_end=before.log_end, rebuilt_at=begins
        )
    else:
        logger.error(
            "metadata records are lost: only the directory that was set aside has them",
            from_offset=begins,
            to_offset=before.log_end,
            generation=before.generation,
        )


def _refusal(directory: str, error: OutlivedError) -> OutlivedError:
    name = os.path.abspath(directory)
    why = "and this disk was a voter's" if error.was_voter else "and no --join names a node of the rebuilt quorum"
    refusal = OutlivedError(
        f"{error.message}; {name} ends at offset {error.log_end}, {why}",
        error.generation,
        error.newer,
        error.log_end,
        error.was_voter,
    )
    refusal.next_step = (
        f"keep a copy of {name}: it may hold records that the rebuilt quorum does not have; then `quorum-node "
        f"set-aside --data-dir {os.path.dirname(name)}`, start this node as before, or with --join HOST:PORT of the "
        f"rebuilt quorum, and make it a voter with `kctl add-voter` (docs/recovery.md)"
    )
    return refusal
