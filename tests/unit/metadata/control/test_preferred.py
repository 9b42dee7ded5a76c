"""Preferred controllers: the decision and its refusals."""

from __future__ import annotations

from typing import Any

import pytest

from metadata.control.preferred import PREFERRED_MAX, least_burdened, set_preferred
from metadata.image import ClusterImage
from metadata.records import PreferredControllers
from quorumlog.wire import rpcs
from quorumlog.wire.errors import ApiError
from quorumlog.wire.v1 import controller_pb2 as pb
from tests.unit.metadata.builders import Cluster
from tests.unit.metadata.controller.test_controller import new_topic, started
from tests.unit.metadata.fake_node import run

EMPTY = ClusterImage()
VOTERS = (1, 2, 3)


def test_preferred_controllers_are_stored_in_a_record() -> None:
    decision = set_preferred(EMPTY, [3, 1], VOTERS, validate_only=False)
    assert decision.records == (PreferredControllers((3, 1)),)
    assert (decision.reply.changed, decision.reply.node_ids) == (True, (3, 1))
    image = EMPTY.apply(0, decision.records)
    assert image.preferred_controllers == (3, 1)
    again = set_preferred(image, [3, 1], VOTERS, validate_only=False)
    assert (again.records, again.reply.changed, again.reply.outcome.ok) == ((), False, True)
    cleared = set_preferred(image, [], VOTERS, validate_only=False)
    assert cleared.records == (PreferredControllers(()),)


def test_a_dry_run_of_preferred_controllers_changes_nothing() -> None:
    decision = set_preferred(EMPTY, [2], VOTERS, validate_only=True)
    assert (decision.records, decision.reply.changed, decision.reply.node_ids) == ((), False, (2,))


@pytest.mark.parametrize(
    ("node_ids", "word"),
    [
        ([1, 1], ApiError.INVALID_REQUEST),
        ([9], ApiError.VOTER_NOT_FOUND),
        ([1, -4], ApiError.VOTER_NOT_FOUND),
        (list(range(PREFERRED_MAX + 1)), ApiError.INVALID_REQUEST),
    ],
)
def test_invalid_preferred_controllers_are_refused(node_ids: list[int], word: ApiError) -> None:
    decision = set_preferred(EMPTY, node_ids, VOTERS, validate_only=False)
    assert (decision.reply.outcome.error, decision.records, decision.reply.changed) == (word, (), False)
    assert decision.reply.outcome.message


def test_auto_chooses_the_least_loaded_voter() -> None:
    assert least_burdened(EMPTY, (3, 2)) == (2,)
    assert least_burdened(EMPTY, ()) == ()


def test_auto_skips_a_voter_whose_broker_is_down() -> None:
    """Its broker has no leaderships only because it is down."""
    cluster = Cluster()
    cluster.start(1, 2)
    cluster.create("t", (2, 1))
    assert least_burdened(cluster.image, (1, 2)) == (1,)
    cluster.beat(1, want_fence=True)
    assert least_burdened(cluster.image, (1, 2)) == (2,)
    assert least_burdened(cluster.image, (1, 2, 3)) == (3,), "voter 3 has no broker"


# At the service


def test_preferred_controllers_are_set_chosen_shown_and_cleared() -> None:
    async def test() -> None:
        plane = await started(1, 2)
        plane.node.auto_commit = True
        await plane.call(rpcs.CREATE_TOPICS, new_topic("t", 4, 2))
        ask = pb.SetPreferredControllersRequest
        dry = ask(node_ids=[2])
        dry.header.validate_only = True
        end = plane.node.log_end_offset
        tried: Any = await plane.call(rpcs.SET_PREFERRED_CONTROLLERS, dry)
        assert (list(tried.node_ids), tried.changed, plane.node.log_end_offset) == ([2], False, end)
        done: Any = await plane.call(rpcs.SET_PREFERRED_CONTROLLERS, ask(node_ids=[2, 1]))
        assert (list(done.node_ids), done.changed, done.offset) == ([2, 1], True, end + 1)
        shown: Any = await plane.call(rpcs.DESCRIBE_PREFERRED_CONTROLLERS, pb.DescribePreferredControllersRequest())
        assert (list(shown.node_ids), shown.offset) == ([2, 1], end + 1)
        again: Any = await plane.call(rpcs.SET_PREFERRED_CONTROLLERS, ask(node_ids=[2, 1]))
        assert (again.result.error, again.changed, plane.node.log_end_offset) == ("NONE", False, end + 1)
        chosen: Any = await plane.call(rpcs.SET_PREFERRED_CONTROLLERS, ask(auto=True))
        assert list(chosen.node_ids) == [3], "voters 1 and 2 have brokers, which lead two partitions each"
        cleared: Any = await plane.call(rpcs.SET_PREFERRED_CONTROLLERS, ask())
        assert (list(cleared.node_ids), cleared.changed) == ([], True)
        refused: Any = await plane.call(rpcs.SET_PREFERRED_CONTROLLERS, ask(node_ids=[9]))
        assert (refused.result.error, "the voters are 1, 2, 3" in refused.result.message) == ("VOTER_NOT_FOUND", True)

    run(test())
