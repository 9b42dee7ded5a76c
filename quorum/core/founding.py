"""How an empty disk founds or joins its cluster.

Theory of operation.  Directory ids are random, and no operator types them, so a voter list contains only ids and
addresses.  One node must find out the directory ids, exactly once.  A *newborn* (a node with an empty log) does not
vote, is not a candidate, and acknowledges nothing.  It introduces itself:

- A founder (a node in the voter list) asks all other founders until it belongs to a cluster.  The founder with the
  lowest id founds the cluster once each of the others has answered that it is newborn and was given the same list.  It
  writes the founding batch (offset 0, epoch 0) with the directory ids of all founders, and sends the batch only after
  it is durable.
- The other founders take the founding batch from any node that has it, if the batch names their key.  They take part
  once it is durable on their disks.  Because the batch names each founding disk, the same voter list cannot found two
  clusters.
- A founder that meets a cluster whose founding batch does not name its disk has a replaced disk.  It joins as an
  observer and reports which voter it could replace.
- An observer asks the bootstrap addresses until a founded node answers, and keeps the cluster's id.

A node that meets an unexpected cluster id, voter list or node refuses to start, and reports both values.
"""

from __future__ import annotations

from quorum.core.contacts import Contacts
from quorum.core.events import Joined, Peer
from quorum.core.messages import ErrorCode, Introduce, IntroduceReply
from quorum.core.roles import Leader, Newborn, PendingRequest, Unattached
from quorum.core.search import LeaderSearch
from quorum.core.state import CoreState, Purpose
from quorum.core.timeouts import Timeouts
from quorum.core.transitions import Transitions
from quorum.core.types import FOUNDING_EPOCH, Batch, ReplicaKey, Voter, Voters, VoterSet


class Founding:
    """The steps of a newborn, and the answers of other nodes to it."""

    def __init__(
        self,
        state: CoreState,
        timeouts: Timeouts,
        contacts: Contacts,
        transitions: Transitions,
        search: LeaderSearch,
    ) -> None:
        self._state = state
        self._timeouts = timeouts
        self._contacts = contacts
        self._transitions = transitions
        self._search = search

    def begin(self, now_ms: int) -> None:
        state = self._state
        founders = state.config.founders
        ids = [node_id for node_id, _ in founders]
        if founders and (len(set(ids)) < len(ids) or state.key.node_id not in ids):
            return state.refuse(f"node {state.key.node_id} must be in its voter list exactly once: {_names(founders)}")
        addresses = [address for node_id, address in founders if node_id != state.key.node_id]
        state.newborn = Newborn({address: PendingRequest(now_ms) for address in addresses})
        return None

    def introduce(self, newborn: Newborn, now_ms: int) -> None:
        state = self._state
        if newborn.write is not None:
            return
        founders = state.config.founders
        request = Introduce(state.sender, founders)
        if not founders:
            peers = self._search.addresses()
            if peers and state.seek.is_due(now_ms):
                state.ask(state.seek, Purpose.INTRODUCE, peers[self._timeouts.draw(len(peers))], request, now_ms)
            elif not peers:
                state.seek.due_ms = None
            return
        for node_id, address in founders:
            pending = newborn.introductions.get(address)
            if pending is not None and pending.is_due(now_ms):
                state.ask(pending, Purpose.INTRODUCE, Peer(node_id, address), request, now_ms)
        self._found(newborn, founders, now_ms)

    def timers(self, newborn: Newborn) -> list[int | None]:
        state = self._state
        if newborn.write is not None:
            return []
        if not state.config.founders:
            return [state.seek.wakes_ms]
        return [pending.wakes_ms for pending in newborn.introductions.values()]

    def introduction(self, newborn: Newborn, address: str) -> PendingRequest:
        """Return the `PendingRequest` to which a request to `address` belongs."""
        return newborn.introductions.get(address, self._state.seek)

    def on_introduce_reply(self, newborn: Newborn, to: Peer, reply: IntroduceReply, now_ms: int) -> None:
        state = self._state
        pending = self.introduction(newborn, to.address)
        pending.call = None
        pending.failures = 0
        pending.due_ms = now_ms + state.config.retry_backoff_max_ms // 2
        newborn.answers.pop(to.address, None)
        if newborn.write is not None:
            return None
        expected, met = state.expected_cluster_id, reply.known.cluster_id
        founders = state.config.founders
        if None not in (expected, met) and expected != met and (founders or not reply.newborn):
            return state.refuse(
                f"this node belongs to cluster {expected}, node {reply.key.node_id} at {to.address} to cluster {met}: "
                "give it the addresses of its own cluster, or another data dir"
            )
        if not reply.newborn:
            return self._take_place(newborn, reply)
        if not founders or reply.error is not ErrorCode.NONE:
            return None
        if reply.key.node_id != to.node_id:
            return state.refuse(f"{to.address} is voter {to.node_id} in the list, but node {reply.key.node_id} answers")
        theirs = tuple(sorted(reply.initial_voters))
        if theirs != founders:
            return state.refuse(
                f"node {reply.key.node_id} at {to.address} was given another voter list: "
                f"its list is {_names(theirs)}, this node's is {_names(founders)}; "
                "start all of them with the same --initial-voters"
            )
        newborn.answers[to.address] = reply
        return None

    def introduce_failed(self, newborn: Newborn, to: Peer, now_ms: int) -> None:
        pending = self.introduction(newborn, to.address)
        pending.call = None
        pending.failures += 1
        pending.due_ms = now_ms + self._timeouts.retry_ms(pending.failures)
        newborn.answers.pop(to.address, None)

    def _found(self, newborn: Newborn, founders: tuple[tuple[int, str], ...], now_ms: int) -> None:
        """Found the cluster, if this node has the lowest id and every other founder is known to be newborn."""
        state = self._state
        if newborn.write is not None or state.refused is not None or state.key.node_id != founders[0][0]:
            return None
        if newborn.answers.keys() != newborn.introductions.keys():
            return None
        expected = {reply.known.cluster_id for reply in newborn.answers.values()} | {state.expected_cluster_id}
        named = sorted(cluster_id for cluster_id in expected if cluster_id is not None)
        if len(named) > 1:
            return state.refuse(f"the voters were given different cluster ids: {', '.join(named)}")
        cluster_id = named[0] if named else state.config.new_cluster_id
        if cluster_id is None:
            return state.refuse("this node founds the cluster, but no cluster id was given for it")
        keys = {node_id: newborn.answers[address].key for node_id, address in founders if address in newborn.answers}
        keys[state.key.node_id] = state.key
        voters = VoterSet(tuple(Voter(keys[node_id], address) for node_id, address in founders))
        record = Voters(cluster_id, 0, voters)
        newborn.founded = True
        self._settle(
            newborn, Batch(0, FOUNDING_EPOCH, 1, now_ms + state.config.wall_offset_ms, control=record), cluster_id, 0
        )
        return None

    def _take_place(self, newborn: Newborn, reply: IntroduceReply) -> None:
        """Join a founded cluster as a voter, an observer, or an observer that could replace a voter."""
        state = self._state
        cluster_id, founding = reply.known.cluster_id, reply.founding
        if cluster_id is None or len(reply.voters) == 0:
            return None  # that node has not joined a cluster yet
        if not state.config.founders or founding is None:
            # Without the founding batch, that node's log no longer begins at 0, so only its current voters are known.
            return self._observe(newborn, reply, cluster_id)
        if not isinstance(founding.control, Voters):
            return None
        record = founding.control
        position = (founding.base_offset, founding.epoch, founding.count)
        if position != (0, FOUNDING_EPOCH, 1) or record.cluster_id != cluster_id:
            return None
        if state.key in record.voters:
            return self._settle(newborn, founding, cluster_id, record.generation)
        return self._observe(newborn, reply, cluster_id)

    def _observe(self, newborn: Newborn, reply: IntroduceReply, cluster_id: str) -> None:
        """Join as an observer.  If a voter with this id has another disk, report that voter as the one to replace."""
        state = self._state
        voter = reply.voters.by_id(state.key.node_id)
        newborn.replaced = voter.key if voter is not None and voter.key != state.key else None
        self._settle(newborn, None, cluster_id, reply.known.generation)

    def _settle(self, newborn: Newborn, founding: Batch | None, cluster_id: str, generation: int) -> None:
        """Make the result of the founding durable; `on_settled` then applies it."""
        state = self._state
        state.cluster_id, state.generation = cluster_id, generation
        state.save_election()
        if founding is not None:
            state.append(founding)
        newborn.write = state.election_write

    def on_settled(self, newborn: Newborn, now_ms: int) -> None:
        state = self._state
        assert state.cluster_id is not None
        state.met, state.newborn = True, None
        state.effects.append(Joined(state.cluster_id, newborn.replaced))
        deadline = self._timeouts.first_deadline(now_ms)
        if newborn.founded:
            deadline = now_ms  # the other founders wait for the founding batch
        place = "voter" if state.is_voter else "observer"
        self._transitions.become(Unattached(deadline), now_ms, f"joined cluster {state.cluster_id} as {place}")

    # Replies

    def on_introduce(self, call: int, request: Introduce, now_ms: int) -> None:
        state = self._state
        own, theirs = state.expected_cluster_id, request.sender.cluster_id
        error = ErrorCode.NONE
        if None not in (own, theirs) and own != theirs:
            error = ErrorCode.INCONSISTENT_CLUSTER_ID
        newborn = state.newborn
        state.answer(
            call,
            IntroduceReply(
                error,
                state.known,
                state.key,
                newborn=newborn is not None and newborn.write is None,
                initial_voters=state.config.founders,
                founding=state.history.founding if state.met else None,
                voters=state.history.current if state.met else VoterSet(),
            ),
        )
        if newborn is not None:
            self.hear_of(newborn, request.sender.key, failed_only=True, now_ms=now_ms)
        elif isinstance(state.role, Leader) and error is ErrorCode.NONE:  # a newborn reports its address
            address = dict(request.initial_voters).get(request.sender.key.node_id, "")
            self._contacts.note_disk(state.role, request.sender.key, address, now_ms)

    def hear_of(self, newborn: Newborn, key: ReplicaKey, *, failed_only: bool, now_ms: int) -> None:
        """Ask a founder now, without waiting for the end of the pause, because it has just shown that it runs.

        failed_only: ask only if the last request failed.  Otherwise two newborns would send each other Introduce
        requests without a pause.
        """
        address = dict(self._state.config.founders).get(key.node_id)
        pending = newborn.introductions.get(address) if address is not None else None
        if pending is not None and (pending.failures > 0 or not failed_only):
            pending.due_ms = now_ms


def _names(founders: tuple[tuple[int, str], ...]) -> str:
    return ",".join(f"{node_id}@{address}" for node_id, address in founders) or "none"
