"""The preferred controllers: the voters that should lead if possible (the PreferredControllers record)."""

from __future__ import annotations

from collections.abc import Collection, Sequence

import msgspec

from metadata.control.decision import Decision
from metadata.control.errors import OK, Outcome
from metadata.image import ClusterImage
from metadata.records import PreferredControllers
from quorumlog.wire.errors import ApiError

PREFERRED_MAX = 15


class Preferred(msgspec.Struct, frozen=True):
    """The outcome, and the preferred voters after the decision."""

    outcome: Outcome
    node_ids: tuple[int, ...]
    changed: bool


def set_preferred(
    image: ClusterImage, node_ids: Sequence[int], voter_ids: Collection[int], *, validate_only: bool
) -> Decision[Preferred]:
    """Prefer these voters, the most preferred first; an empty list removes the preference."""
    wanted, present = tuple(node_ids), image.preferred_controllers
    strangers = [node_id for node_id in wanted if node_id not in voter_ids]
    problem: Outcome | None = None
    if len(set(wanted)) != len(wanted):
        problem = Outcome(ApiError.INVALID_REQUEST, f"a node is named twice: {_names(wanted)}")
    elif len(wanted) > PREFERRED_MAX:
        problem = Outcome(
            ApiError.INVALID_REQUEST, f"{len(wanted)} nodes are named; at most {PREFERRED_MAX} may be preferred"
        )
    elif strangers:
        text = f"not a voter: {_names(strangers)}; the voters are {_names(sorted(voter_ids))}"
        problem = Outcome(ApiError.VOTER_NOT_FOUND, text, "kctl quorum status")
    if problem is not None:
        return Decision(Preferred(problem, present, False))
    if wanted == present:
        return Decision(Preferred(OK, present, False))
    records = () if validate_only else (PreferredControllers(wanted),)
    return Decision(Preferred(OK, wanted, not validate_only), records)


def least_burdened(image: ClusterImage, voter_ids: Collection[int]) -> tuple[int, ...]:
    """Return the voter whose broker leads the fewest partitions, or nothing if there are no voters.

    A voter without a broker leads none.  A broker that is fenced or shutting down leads few partitions only for that
    reason, so its voter comes last.
    """

    def burden(node_id: int) -> tuple[bool, int, int]:
        broker = image.brokers.get(node_id)
        return broker is not None and not broker.active, image.leader_count(node_id), node_id

    return tuple(sorted(voter_ids, key=burden)[:1])


def _names(node_ids: Sequence[int]) -> str:
    return ", ".join(map(str, node_ids)) or "none"
