"""The Controller service: changes of voters, and transfers of leadership."""

from __future__ import annotations

from uuid import UUID

import pytest

from quorum.core.events import (
    AddVoter,
    CancelTarget,
    RemoveVoter,
    SetTarget,
    UpdateVoter,
    VoterChangeError,
    VoterChangeResult,
)
from quorum.core.types import ReplicaKey, VoterSet
from quorumlog.wire import rpcs
from quorumlog.wire.v1 import controller_pb2 as pb
from tests.unit.metadata.controller.test_controller import started
from tests.unit.metadata.fake_node import Plane, run

DISK = UUID(int=44)


def test_changes_of_voters_are_passed_to_the_quorum() -> None:
    voters = [pb.VoterAddress(node_id=1, address="a:1"), pb.VoterAddress(node_id=2, address="b:2")]
    asked = [
        (
            pb.ChangeVotersRequest(add=pb.AddVoter(node_id=4, address="d:4", replace=True)),
            AddVoter(4, "d:4", None, True),
        ),
        (
            pb.ChangeVotersRequest(add=pb.AddVoter(node_id=4, address="d:4", directory_id=DISK.bytes)),
            AddVoter(4, "d:4", DISK),
        ),
        (pb.ChangeVotersRequest(remove=pb.RemoveVoter(node_id=2)), RemoveVoter(2)),
        (
            pb.ChangeVotersRequest(remove=pb.RemoveVoter(node_id=2, directory_id=DISK.bytes)),
            RemoveVoter(2, DISK),
        ),
        (
            pb.ChangeVotersRequest(update=pb.UpdateVoter(node_id=2, directory_id=DISK.bytes, address="d:5")),
            UpdateVoter(ReplicaKey(2, DISK), "d:5"),
        ),
        (pb.ChangeVotersRequest(set_target=pb.SetTargetVoters(voters=voters)), SetTarget(((1, "a:1"), (2, "b:2")))),
        (pb.ChangeVotersRequest(cancel_target=pb.CancelTargetVoters()), CancelTarget()),
    ]

    async def test() -> None:
        plane = await started(1)
        for request, change in asked:
            request.header.validate_only = True
            reply = await plane.call(rpcs.CHANGE_VOTERS, request)
            assert (reply.result.error, reply.changed, reply.offset) == ("NONE", True, 7)
            assert plane.node.asked[-1] == (change, True)

    run(test())


@pytest.mark.parametrize("error", [error for error in VoterChangeError if error is not VoterChangeError.NONE])
def test_every_refusal_of_the_quorum_has_an_error_name(error: VoterChangeError) -> None:
    async def test() -> None:
        plane = await started(1)
        plane.node.changed = VoterChangeResult(error, "why", "what to do", False, 0, VoterSet(), None)
        reply = await plane.call(rpcs.CHANGE_VOTERS, pb.ChangeVotersRequest(remove=pb.RemoveVoter(node_id=2)))
        assert reply.result.error not in ("", "NONE")
        assert (reply.result.message, reply.result.next, reply.changed) == ("why", "what to do", False)

    run(test())


@pytest.mark.parametrize(
    "request_",
    [
        pb.ChangeVotersRequest(),
        pb.ChangeVotersRequest(add=pb.AddVoter(node_id=-1, address="a:1")),
        pb.ChangeVotersRequest(add=pb.AddVoter(node_id=1, address="")),
        pb.ChangeVotersRequest(add=pb.AddVoter(node_id=1, address="a:1", directory_id=b"short")),
        pb.ChangeVotersRequest(remove=pb.RemoveVoter(node_id=1, directory_id=b"")),
        pb.ChangeVotersRequest(update=pb.UpdateVoter(node_id=1, address="a:1")),
        pb.ChangeVotersRequest(add=pb.AddVoter(node_id=1, address="a:70000")),
        pb.ChangeVotersRequest(set_target=pb.SetTargetVoters()),
        pb.ChangeVotersRequest(set_target=pb.SetTargetVoters(voters=[pb.VoterAddress(node_id=1, address="a:1")] * 2)),
        pb.ChangeVotersRequest(set_target=pb.SetTargetVoters(voters=[pb.VoterAddress(node_id=1, address="a:1")] * 99)),
    ],
)
def test_invalid_changes_of_voters_are_refused(request_: pb.ChangeVotersRequest) -> None:
    async def test() -> None:
        plane = await started(1)
        reply = await plane.call(rpcs.CHANGE_VOTERS, request_)
        assert reply.result.error == "INVALID_REQUEST"
        assert plane.node.asked == []

    run(test())


def test_a_transfer_of_leadership_to_the_current_leader_succeeds_without_a_change() -> None:
    async def test() -> None:
        plane = await started(1)
        assert (await plane.call(rpcs.TRANSFER_LEADER, pb.TransferLeaderRequest(to=1))).result.error == "NONE"
        assert plane.node.asked == []
        assert (await plane.call(rpcs.TRANSFER_LEADER, pb.TransferLeaderRequest(to=2))).result.error == "NONE"
        assert plane.node.asked == [(2, False)]

    run(test())


def test_a_leader_that_is_not_active_hands_over() -> None:
    """A leader that cannot apply its log, for example because its disk cannot read it, never becomes active."""

    async def test() -> None:
        plane = Plane()
        plane.node.win(commit=False)
        assert not plane.controller.active
        assert (await plane.call(rpcs.TRANSFER_LEADER, pb.TransferLeaderRequest(to=2))).result.error == "NONE"
        assert plane.node.asked == [(2, False)]
        removal = pb.ChangeVotersRequest(remove=pb.RemoveVoter(node_id=2))
        waited = await plane.call(rpcs.CHANGE_VOTERS, removal, timeout_ms=100)
        assert waited.result.error == "NOT_CONTROLLER", "any other request waits until it is active"
        assert plane.node.asked == [(2, False)]

    run(test())
