"""A deposed leader that is not paused yet gives no stale answer."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from google.protobuf.message import Message

from quorum.core.messages import Request, Vote
from quorumlog.wire import rpcs
from quorumlog.wire.rpcs import AnyRpc
from quorumlog.wire.v1 import controller_pb2 as pb
from simulation.cluster.nodes import Host, World
from simulation.smoke import quiet

ASKED: dict[str, Callable[[int], Any]] = {
    "a read": lambda leader: pb.DescribePreferredControllersRequest(),
    "a read of topics": lambda leader: pb.DescribeTopicsRequest(),
    "a no-op": lambda leader: pb.SetPreferredControllersRequest(),
    "a refusal": lambda leader: pb.SetPreferredControllersRequest(node_ids=[99]),
    "a dry run": lambda leader: pb.SetPreferredControllersRequest(
        header=pb.RequestHeader(validate_only=True), node_ids=[1]
    ),
    "a change of the voters that is already satisfied": lambda leader: pb.ChangeVotersRequest(
        cancel_target=pb.CancelTargetVoters()
    ),
    "a change of the voters that is refused": lambda leader: pb.ChangeVotersRequest(remove=pb.RemoveVoter(node_id=99)),
    "a transfer to itself": lambda leader: pb.TransferLeaderRequest(to=leader),
    "a transfer to a stranger": lambda leader: pb.TransferLeaderRequest(to=99),
    "a dry run of a transfer": lambda leader: pb.TransferLeaderRequest(
        header=pb.RequestHeader(validate_only=True), to=leader
    ),
}


def rpc_of(request: Message) -> AnyRpc:
    (rpc,) = (rpc for rpc in rpcs.RPCS if rpc.request is type(request))
    return rpc


async def depose(world: World) -> tuple[Host, Host]:
    """Return a leader that does not know that it has lost its epoch, and its successor.

    Its replies are lost, but the fetches of the others arrive, so it is not paused when they elect another leader. From
    the first vote on it receives no messages.
    """
    world.start_all()
    await world.until(lambda: world.active() is not None, "a controller is active")
    old = world.active()
    assert old is not None
    others = [host for host in world.voters if host is not old]
    for other in others:
        world.network.cut(old.name, other.name)

    def on_request(_: str, request: Request) -> None:
        if isinstance(request, Vote):
            world.network.watch_request = lambda *_: None
            for other in others:
                world.network.cut(other.name, old.name)

    world.network.watch_request = on_request

    def successors() -> list[Host]:
        return [host for host in others if host.plane is not None and host.plane.controller.active]

    await world.until(lambda: bool(successors()), "another controller is active")
    return old, successors()[0]


def heal(world: World, old: Host) -> None:
    for other in world.voters:
        world.network.heal(old.name, other.name)
        world.network.heal(other.name, old.name)


@pytest.mark.parametrize("asked", ASKED)
def test_a_deposed_leader_that_is_not_paused_gives_no_stale_answer(asked: str) -> None:
    async def test(world: World) -> None:
        old, new = await depose(world)
        assert old.plane is not None
        assert new.plane is not None
        set_there = pb.SetPreferredControllersRequest(node_ids=[new.config.node_id])
        done: Any = await new.plane.service.call(rpcs.SET_PREFERRED_CONTROLLERS, set_there, 5000)
        assert done.result.error == "NONE"
        assert old.plane.controller.active, "the old leader does not know its successor"
        assert not old.plane.node.core.paused, "the others have fetched from it recently"
        request = ASKED[asked](old.config.node_id)
        reply: Any = await old.plane.service.call(rpc_of(request), request, 10_000)
        assert (reply.result.error, reply.result.retriable) == ("NOT_CONTROLLER", True), reply
        heal(world, old)
        await world.until(
            lambda: old.plane is not None and old.plane.node.leader_id == new.config.node_id, "it learns the new leader"
        )
        read: Any = await old.plane.service.call(
            rpcs.DESCRIBE_PREFERRED_CONTROLLERS, pb.DescribePreferredControllersRequest(), 10_000
        )
        assert list(read.node_ids) == [new.config.node_id], "the deposed node forwards the read"

    quiet()
    world = World(3, voters=3, brokers=0)
    world.run(test(world))
