"""Changes of the cluster by Kafka's tools: voters, brokers, features."""

from __future__ import annotations

from typing import Any
from uuid import UUID

import pytest

from metadata.records import (
    METADATA_VERSION,
    METADATA_VERSION_MAX,
    METADATA_VERSION_MIN,
    TRANSACTION_VERSION,
    Feature,
)
from quorumlog.wire import rpcs
from quorumlog.wire.errors import ApiError, KafkaCode
from quorumlog.wire.kafka.codec import Api
from quorumlog.wire.v1 import controller_pb2 as pb
from tests.unit.broker.kafka.conftest import Served
from tests.unit.broker.kafka.raw import RawClient

DISK = UUID(int=44)
CONTROLLER = {"name": "CONTROLLER", "host": "10.0.0.4", "port": 9093}
OTHER = {"name": "OTHER", "host": "10.0.0.4", "port": 9999}
NEW_VOTER = {
    "cluster_id": "test-cluster",
    "timeout": 5000,
    "voter_id": 4,
    "voter_directory_id": DISK,
    "listeners": [OTHER, CONTROLLER],
}


async def ask(served: Served, api: Api, version: int, values: dict[str, Any]) -> Any:
    async with RawClient(served.port) as client:
        return await client.ask(api, version, values)


def forwarded(served: Served) -> list[Any]:
    """Return the requests that reached the controller, without their headers."""
    found = []
    for _, request in served.controller.requests:
        copy = type(request)()
        copy.CopyFrom(request)
        copy.ClearField("header")
        found.append(copy)
    return found


# -- AddRaftVoter


@pytest.mark.parametrize("version", [0, 1])
async def test_add_raft_voter_forwards_the_directory_id_and_the_controller_address(
    served: Served, version: int
) -> None:
    response = await ask(served, Api.ADD_RAFT_VOTER, version, NEW_VOTER)
    assert (int(response.error_code), response.error_message) == (0, None)
    change = pb.AddVoter(node_id=4, address="10.0.0.4:9093", directory_id=DISK.bytes)
    assert forwarded(served) == [pb.ChangeVotersRequest(add=change)]
    assert served.controller.requests[0][1].header.timeout_ms <= 5000


async def test_the_only_listener_of_a_new_voter_is_its_controller_address(served: Served) -> None:
    listener = {"name": "anything", "host": "::1", "port": 9093}
    response = await ask(served, Api.ADD_RAFT_VOTER, 1, {**NEW_VOTER, "listeners": [listener]})
    assert int(response.error_code) == 0
    assert forwarded(served)[0].add.address == "[::1]:9093"


@pytest.mark.parametrize("listeners", [[], [OTHER, OTHER], [CONTROLLER, CONTROLLER]])
async def test_a_new_voter_without_exactly_one_controller_address_is_refused(
    served: Served, listeners: list[Any]
) -> None:
    response = await ask(served, Api.ADD_RAFT_VOTER, 1, {**NEW_VOTER, "listeners": listeners})
    assert int(response.error_code) == KafkaCode.INVALID_REQUEST
    assert "listeners" in response.error_message
    assert forwarded(served) == []


CHANGES = [
    (Api.ADD_RAFT_VOTER, NEW_VOTER),
    (Api.REMOVE_RAFT_VOTER, NEW_VOTER),
    (
        Api.UPDATE_RAFT_VOTER,
        {
            **NEW_VOTER,
            "current_leader_epoch": 7,
            "k_raft_version_feature": {"min_supported_version": 0, "max_supported_version": 1},
        },
    ),
]


@pytest.mark.parametrize(("api", "values"), CHANGES)
async def test_a_change_of_voters_for_another_cluster_is_refused(
    served: Served, api: Api, values: dict[str, Any]
) -> None:
    response = await ask(served, api, 0, {**values, "cluster_id": "another"})
    assert int(response.error_code) == KafkaCode.INCONSISTENT_CLUSTER_ID
    response = await ask(served, api, 0, {**values, "cluster_id": None})
    assert int(response.error_code) == 0


@pytest.mark.parametrize(("api", "values"), CHANGES)
async def test_a_change_of_voters_without_a_directory_id_is_refused(
    served: Served, api: Api, values: dict[str, Any]
) -> None:
    response = await ask(served, api, 0, {**values, "voter_directory_id": None})
    assert int(response.error_code) == KafkaCode.INVALID_REQUEST
    assert forwarded(served) == []


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (ApiError.DUPLICATE_VOTER, KafkaCode.DUPLICATE_VOTER),
        (ApiError.VOTER_NOT_FOUND, KafkaCode.VOTER_NOT_FOUND),
        (ApiError.NOT_CONTROLLER, KafkaCode.NOT_CONTROLLER),
        (ApiError.CHANGE_PENDING, KafkaCode.REQUEST_TIMED_OUT),
        (ApiError.TARGET_IN_PROGRESS, KafkaCode.REQUEST_TIMED_OUT),
        (ApiError.NOT_CAUGHT_UP, KafkaCode.REQUEST_TIMED_OUT),
        (ApiError.LAST_VOTER, KafkaCode.INVALID_REQUEST),
        (ApiError.NO_MAJORITY, KafkaCode.INVALID_REQUEST),
        (ApiError.WRONG_CLUSTER, KafkaCode.INCONSISTENT_CLUSTER_ID),
    ],
)
@pytest.mark.parametrize(("api", "values"), CHANGES)
async def test_a_refusal_by_the_quorum_keeps_its_message_and_has_a_kafka_error_code(
    served: Served, api: Api, values: dict[str, Any], error: ApiError, code: KafkaCode
) -> None:
    served.controller.voters_changed = pb.ChangeVotersReply(result=pb.Result(error=error, message="why", next="step"))
    response = await ask(served, api, 0, values)
    assert int(response.error_code) == code
    if api is not Api.UPDATE_RAFT_VOTER:
        assert response.error_message == "why; step"


async def test_adding_a_node_that_is_already_a_voter_succeeds(served: Served) -> None:
    served.controller.voters_changed = pb.ChangeVotersReply(result=pb.Result(error="NONE", message="a voter already"))
    response = await ask(served, Api.ADD_RAFT_VOTER, 1, NEW_VOTER)
    assert (int(response.error_code), response.error_message) == (0, None)


# -- RemoveRaftVoter, UpdateRaftVoter


async def test_remove_raft_voter_forwards_the_directory_id(served: Served) -> None:
    await ask(served, Api.REMOVE_RAFT_VOTER, 0, NEW_VOTER)
    removed = pb.RemoveVoter(node_id=4, directory_id=DISK.bytes)
    assert forwarded(served) == [pb.ChangeVotersRequest(remove=removed)]


async def test_update_raft_voter_forwards_the_new_address_and_returns_the_leader(served: Served) -> None:
    response = await ask(served, Api.UPDATE_RAFT_VOTER, 0, CHANGES[2][1])
    leader = response.current_leader
    assert (leader.leader_id, leader.leader_epoch, leader.host, leader.port) == (1, 7, "127.0.0.1", 9093)
    update = pb.UpdateVoter(node_id=4, directory_id=DISK.bytes, address="10.0.0.4:9093")
    assert forwarded(served) == [pb.ChangeVotersRequest(update=update)]


@pytest.mark.parametrize(("epoch", "code"), [(6, KafkaCode.FENCED_LEADER_EPOCH), (8, KafkaCode.UNKNOWN_LEADER_EPOCH)])
async def test_an_update_of_a_voter_with_another_leader_epoch_is_refused(
    served: Served, epoch: int, code: KafkaCode
) -> None:
    response = await ask(served, Api.UPDATE_RAFT_VOTER, 0, {**CHANGES[2][1], "current_leader_epoch": epoch})
    assert int(response.error_code) == code
    assert response.current_leader.leader_epoch == 7
    assert forwarded(served) == []


async def test_an_update_of_a_voter_times_out_while_the_quorum_has_no_leader(served: Served) -> None:
    served.node.state = None
    response = await ask(served, Api.UPDATE_RAFT_VOTER, 0, CHANGES[2][1])
    assert int(response.error_code) == KafkaCode.REQUEST_TIMED_OUT


@pytest.mark.parametrize("levels", [(0, 0), (2, 3)])
async def test_an_update_of_a_voter_that_does_not_support_kraft_version_1_is_refused(
    served: Served, levels: tuple[int, int]
) -> None:
    supported = {"min_supported_version": levels[0], "max_supported_version": levels[1]}
    response = await ask(served, Api.UPDATE_RAFT_VOTER, 0, {**CHANGES[2][1], "k_raft_version_feature": supported})
    assert int(response.error_code) == KafkaCode.INVALID_REQUEST


# -- UnregisterBroker


async def test_a_fenced_broker_is_unregistered(served: Served) -> None:
    served.replicas.register(node_id=2, fenced=True)
    response = await ask(served, Api.UNREGISTER_BROKER, 0, {"broker_id": 2})
    assert (int(response.error_code), response.error_message) == (0, None)
    assert 2 not in served.replicas.image.brokers


async def test_unregistering_an_unfenced_or_unknown_broker_is_refused(served: Served) -> None:
    response = await ask(served, Api.UNREGISTER_BROKER, 0, {"broker_id": 1})
    assert int(response.error_code) == KafkaCode.POLICY_VIOLATION
    assert "unfenced" in response.error_message
    response = await ask(served, Api.UNREGISTER_BROKER, 0, {"broker_id": 9})
    assert int(response.error_code) == KafkaCode.BROKER_ID_NOT_REGISTERED


# -- UpdateFeatures


def update(level: int, name: str = METADATA_VERSION, kind: int = 1) -> dict[str, Any]:
    values = {"feature": name, "max_version_level": level, "upgrade_type": kind}
    return {"timeout": 5000, "feature_updates": [values]}


@pytest.fixture
def old(served: Served) -> Served:
    """A cluster at the lowest level, whose broker supports the highest one."""
    broker = served.replicas.image.brokers[1]
    assert broker.feature_max >= METADATA_VERSION_MIN
    served.replicas.apply(Feature(METADATA_VERSION, METADATA_VERSION_MIN))
    return served


@pytest.mark.parametrize("version", [0, 1, 2])
async def test_a_feature_update_to_the_current_level_succeeds_and_to_an_unsupported_one_is_refused(
    old: Served, version: int
) -> None:
    response = await ask(old, Api.UPDATE_FEATURES, version, update(METADATA_VERSION_MIN))
    assert int(response.error_code) == 0
    response = await ask(old, Api.UPDATE_FEATURES, version, update(METADATA_VERSION_MAX + 1))
    assert int(response.error_code) == KafkaCode.INVALID_UPDATE_VERSION
    assert str(METADATA_VERSION_MAX) in response.error_message
    if version < 2:
        assert [int(each.error_code) for each in response.results] == [KafkaCode.INVALID_UPDATE_VERSION]


@pytest.mark.parametrize(
    ("values", "words"),
    [
        (update(0), "cannot be removed"),
        (update(1, "no.such.feature"), "unknown feature"),
        (update(2, "group.version"), "the level of group.version is always 1"),
        (update(1, "share.version"), "the level of share.version is always 2"),
        (update(0, "share.version", kind=2), "cannot be removed"),
        (update(METADATA_VERSION_MIN, kind=9), "upgrade type 9"),
        (update(METADATA_VERSION_MAX + 1, kind=2), "downgrade"),
        (update(1, TRANSACTION_VERSION), "lower than the current one"),
        (update(3, TRANSACTION_VERSION), "up to 2"),
    ],
)
async def test_an_invalid_feature_update_is_refused(old: Served, values: dict[str, Any], words: str) -> None:
    before = old.replicas.image.features
    response = await ask(old, Api.UPDATE_FEATURES, 2, values)
    assert int(response.error_code) == KafkaCode.INVALID_UPDATE_VERSION
    assert words in response.error_message
    assert old.replicas.image.features == before


async def test_the_transaction_version_can_be_lowered_and_raised_again(old: Served) -> None:
    for level, kind in ((0, 2), (1, 1), (0, 3), (2, 1)):
        response = await ask(old, Api.UPDATE_FEATURES, 2, update(level, TRANSACTION_VERSION, kind))
        assert int(response.error_code) == 0
        assert old.replicas.image.features[TRANSACTION_VERSION] == level


async def test_no_feature_is_changed_if_one_update_of_the_request_is_refused(old: Served) -> None:
    both = update(METADATA_VERSION_MIN)["feature_updates"] + update(1, "no.such.feature")["feature_updates"]
    response = await ask(old, Api.UPDATE_FEATURES, 1, {"timeout": 5000, "feature_updates": both})
    assert [int(each.error_code) for each in response.results] == [0, KafkaCode.INVALID_UPDATE_VERSION]
    asked = [request for rpc, request in old.controller.requests if rpc == rpcs.UPGRADE_FEATURE]
    assert all(request.header.validate_only for request in asked)


async def test_feature_updates_are_applied_only_after_all_were_validated(old: Served) -> None:
    await ask(old, Api.UPDATE_FEATURES, 2, update(METADATA_VERSION_MIN))
    assert [request.header.validate_only for _, request in old.controller.requests] == [True, False]
    old.controller.requests.clear()
    await ask(old, Api.UPDATE_FEATURES, 2, {**update(METADATA_VERSION_MIN), "validate_only": True})
    assert [request.header.validate_only for _, request in old.controller.requests] == [True]


@pytest.mark.parametrize(("name", "level"), [("group.version", 1), ("share.version", 2)])
async def test_an_update_of_a_group_feature_to_its_fixed_level_succeeds_without_the_controller(
    old: Served, name: str, level: int
) -> None:
    response = await ask(old, Api.UPDATE_FEATURES, 2, update(level, name))
    assert int(response.error_code) == 0
    assert old.controller.requests == []


async def test_the_number_of_feature_updates_in_a_request_is_limited(old: Served) -> None:
    many = update(1)["feature_updates"] * 101
    response = await ask(old, Api.UPDATE_FEATURES, 2, {"timeout": 5000, "feature_updates": many})
    assert int(response.error_code) == KafkaCode.INVALID_REQUEST
    assert old.controller.requests == []
