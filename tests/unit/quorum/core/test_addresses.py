"""Voters that moved while the quorum had no leader: they and other nodes report their new addresses."""

from __future__ import annotations

from quorum.core.events import ReplyReceived, RequestFailed
from quorum.core.messages import DescribeQuorum, DescribeQuorumReply, ErrorCode, ReplicaStatus, Vote
from quorum.core.types import Voter
from tests.unit.quorum.core.helpers import KNOWN, Bench, key, sender


def reported(*voters: tuple[int, str]) -> DescribeQuorumReply:
    """Return the reply of node 3, which knows these addresses."""
    rows = tuple([ReplicaStatus(Voter(key(node_id), address), 0, 0, None, None) for node_id, address in voters])
    return DescribeQuorumReply(ErrorCode.NONE, KNOWN, key(3), 0, 0, False, rows, (), None, None, None)


def search(bench: Bench, reply: DescribeQuorumReply) -> None:
    """Answer the search of node 1 for a leader."""
    while not (asks := bench.take(DescribeQuorum)):
        bench.until(bench.now_ms + 50)
    bench.do(ReplyReceived(asks[-1].call, reply))


def asked_for_votes(bench: Bench, node_id: int) -> set[str]:
    """Return the addresses at which node 1 asks this voter for votes."""
    found = set()
    for _ in range(40):
        for ask in bench.take(Vote):
            if ask.to.node_id == node_id:
                found.add(ask.to.address)
            bench.do(RequestFailed(ask.call, "down"))
        bench.until(bench.now_ms + 50)
    return found


def address_in_reply(bench: Bench, node_id: int) -> str:
    """Return the address of a voter in the reply of node 1 to DescribeQuorum."""
    reply = bench.ask(DescribeQuorum(sender(3)))
    assert isinstance(reply, DescribeQuorumReply)
    return next(each.replica.address for each in reply.voters if each.replica.key == key(node_id))


def test_votes_are_requested_at_the_address_that_a_voter_reports_and_at_the_one_in_the_log() -> None:
    bench = Bench()
    bench.ask(DescribeQuorum(sender(2), "moved:1"))
    assert asked_for_votes(bench, 2) == {"n2:1", "moved:1"}


def test_votes_are_also_requested_at_the_address_that_another_node_reports_for_a_voter() -> None:
    """The voter itself may never ask this node, for example because it does not know that this node is a voter."""
    bench = Bench()
    search(bench, reported((1, "n1:1"), (2, "moved:1"), (3, "n3:1")))
    assert asked_for_votes(bench, 2) == {"n2:1", "moved:1"}
    assert asked_for_votes(bench, 3) == {"n3:1"}


def test_the_address_that_a_voter_reports_itself_overrides_one_that_another_node_reports() -> None:
    bench = Bench()
    search(bench, reported((2, "old:1")))
    bench.ask(DescribeQuorum(sender(2), "moved:1"))
    search(bench, reported((2, "old:1")))
    assert asked_for_votes(bench, 2) == {"n2:1", "moved:1"}


def test_a_newer_report_of_a_voters_address_replaces_an_older_one() -> None:
    bench = Bench()
    search(bench, reported((2, "old:1")))
    search(bench, reported((2, "moved:1")))
    assert asked_for_votes(bench, 2) == {"n2:1", "moved:1"}


def test_a_report_of_the_address_in_the_log_does_not_replace_a_reported_address() -> None:
    bench = Bench()
    search(bench, reported((2, "moved:1")))
    search(bench, reported((2, "n2:1")))
    assert asked_for_votes(bench, 2) == {"n2:1", "moved:1"}


def test_an_address_that_is_reported_for_another_disk_of_a_voter_is_ignored() -> None:
    bench = Bench()
    row = ReplicaStatus(Voter(key(2, disk=22), "moved:1"), 0, 0, None, None)
    search(bench, DescribeQuorumReply(ErrorCode.NONE, KNOWN, key(3), 0, 0, False, (row,), (), None, None, None))
    assert asked_for_votes(bench, 2) == {"n2:1"}


def test_a_node_reports_new_addresses_of_voters_only_while_it_has_no_leader() -> None:
    bench = Bench()
    assert address_in_reply(bench, 2) == "n2:1"
    bench.ask(DescribeQuorum(sender(2), "moved:1"))
    assert address_in_reply(bench, 2) == "moved:1"
    bench.follow(3)
    assert address_in_reply(bench, 2) == "n2:1", "the leader will record the new address"
