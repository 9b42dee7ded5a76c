"""Functions for changes of the voters: voter sets, the next step, and the report of the outcome.

The leader works towards a target one voter at a time.  It adds voters before it removes others, so that the cluster
never has less redundancy than at the beginning or at the end.  At most one voter is added beyond the larger of the
first and the last set, so that the majority does not become larger than necessary.  The leader is removed last, so that
leadership moves once.  A disk that replaces another disk of the same node is the exception: it is added after the other
disk is removed.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import NamedTuple

from quorum.core.events import AddVoter, RemoveVoter, UpdateVoter, VoterChangeError, VoterChangeResult, VotersChanged
from quorum.core.roles import Leader
from quorum.core.state import CoreState
from quorum.core.types import ReplicaKey, Voter, VoterSet

VOTERS_MAX = 64
"""Maximum size of a voter set; messages and the store accept no larger one."""


class Verdict(NamedTuple):
    """The outcome of a request that changed nothing: refused, or already satisfied (error NONE)."""

    error: VoterChangeError
    message: str
    next_step: str = ""


def with_voter(voters: VoterSet, voter: Voter) -> VoterSet:
    """Return `voters` with `voter`, which replaces a voter of the same id if there is one."""
    others = [other for other in voters if other.key.node_id != voter.key.node_id]
    return VoterSet(tuple(sorted([*others, voter], key=lambda voter: voter.key.node_id)))


def without_voter(voters: VoterSet, key: ReplicaKey) -> VoterSet:
    return VoterSet(tuple(voter for voter in voters if voter.key != key))


def names(voters: VoterSet | None) -> str:
    """Return the ids of the voters for a message: `1,2,3` or `none`."""
    return ",".join(str(voter.key.node_id) for voter in voters or ()) or "none"


def refuse_without_majority(after: VoterSet, live: Collection[ReplicaKey]) -> Verdict | None:
    """Refuse a voter set without a live majority: such a set could not even commit its own reversal."""
    up = [str(voter.key.node_id) for voter in after if voter.key in live]
    down = [str(voter.key.node_id) for voter in after if voter.key not in live]
    if len(up) >= after.majority:
        return None
    found = f"only voter{'s' if len(up) > 1 else ''} {','.join(up)}" if up else "none"
    return Verdict(
        VoterChangeError.NO_MAJORITY,
        f"voters {names(after)} need {after.majority} of {len(after)} alive to commit anything, but {found} fetched "
        f"lately; unavailable: {','.join(down)}",
        f"start node {down[0]}, or remove it from the voters first",
    )


def next_change(
    current: VoterSet, target: VoterSet, started_size: int, leader: ReplicaKey, live: Collection[ReplicaKey]
) -> AddVoter | RemoveVoter | UpdateVoter | None:
    """Return the next step from `current` to `target`; None when they are equal.

    started_size: the size of the voter set when the target was set.
    """
    leaving = [voter for voter in current if voter.key not in target]
    # A voter that is replaced by another disk of its node is removed first, so that the new disk can be added.
    # Voters that are down come next: without them, the remaining voters survive more failures.
    leaving.sort(
        key=lambda voter: (
            voter.key == leader,
            target.by_id(voter.key.node_id) is None,
            voter.key in live,
            voter.key,
        )
    )
    joining = [voter for voter in target if current.by_id(voter.key.node_id) is None]
    if joining and len(current) <= max(started_size, len(target)) and len(current) < VOTERS_MAX:
        voter = joining[0]
        return AddVoter(voter.key.node_id, voter.address, voter.key.directory_id)
    if leaving:
        key = leaving[0].key
        return RemoveVoter(key.node_id, key.directory_id)
    for voter in target:
        if voter not in current.voters:
            return UpdateVoter(voter.key, voter.address)
    return None


def report_change(state: CoreState, call: int, verdict: Verdict, *, changed: bool = False, offset: int = 0) -> None:
    """Report the end of a requested change to the shell."""
    voters, target = state.history.current, state.history.target
    state.effects.append(VotersChanged(call, VoterChangeResult(*verdict, changed, offset, voters, target)))


def fail_change(state: CoreState, leader: Leader, reason: str) -> None:
    """Report to the requester of a change that this leader lost its role before the change was done."""
    work, leader.change = leader.change, None
    if work is None or work.call is None:
        return
    if work.end is None:
        message, advice = f"no longer leads: {reason}; nothing was changed", "ask the new leader"
        lost = Verdict(VoterChangeError.NOT_LEADER, message, advice)
    elif work.sets_target:
        message = f"no longer leads: {reason}; the next leader continues if the target was committed"
        lost = Verdict(VoterChangeError.OUTCOME_UNKNOWN, message)
    else:
        message = f"no longer leads: {reason}; the change may still be committed"
        lost = Verdict(VoterChangeError.OUTCOME_UNKNOWN, message)
    report_change(state, work.call, lost, offset=work.end or 0)
