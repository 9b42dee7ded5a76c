"""What a node does whose quorum was rebuilt by hand while it was away (`quorum-node recover`, design §4.11).

Theory of operation.  A node learns from the first reply that it gets that there is a newer generation of its quorum.
Its own log is then of a history that is not continued: what only lost disks had confirmed may be in it, and offsets
mean something else from some point on.  So it begins anew from an empty quorum directory, under a new directory id, and
fetches everything from the rebuilt quorum.  The old directory is never deleted: it is set aside under a name that says
of which generation it is, because it may hold the only copy of records that the rebuilt quorum does not have.

An observer, and that is what brokers are, does all this by itself.  A voter does not: its directory is one that
somebody perhaps still wants to recover from, and its return may mean that the wrong one was taken.  It is refused, and
says what to do.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable

from quorum.ports import OutlivedError
from quorum.store.directory import move_away
from quorumlog.runtime.logging import get_logger

_log = get_logger("quorum")


async def through_generations(
    directory: str, knows_a_way: bool, run: Callable[[OutlivedError | None], Awaitable[None]]
) -> None:
    """`run` the process whose quorum directory this is; again from an empty one each time that it was outlived.

    `run` is given what the directory that was set aside just before was, if one was.

    knows_a_way: the configuration says where the cluster is, also to a node that knows nothing.

    Raises:
        OutlivedError: the disk was a voter's, or nothing would tell the empty node where the cluster is.
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
        _log.warning(
            "the quorum was rebuilt: the quorum directory of before is set aside, this node begins anew",
            generation=before.newer,
            before=before.generation,
            log_end=before.log_end,
            kept=kept,
        )


def _refusal(directory: str, error: OutlivedError) -> OutlivedError:
    name = os.path.abspath(directory)
    why = "and this disk was a voter's" if error.was_voter else "and no --join says where to begin anew"
    refusal = OutlivedError(
        f"{error.message}; {name} ends at offset {error.log_end}, {why}",
        error.generation,
        error.newer,
        error.log_end,
        error.was_voter,
    )
    refusal.next_step = (
        f"keep a copy of {name}: it may hold records that the rebuilt quorum has not; then `quorum-node set-aside "
        f"--data-dir {os.path.dirname(name)}`, start this node as before, or with --join HOST:PORT of the rebuilt "
        f"quorum, and make a voter of it with `kctl add-voter` (docs/recovery.md)"
    )
    return refusal
