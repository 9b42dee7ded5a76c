"""Levels of features: metadata.version only rises, and only to levels that every node supports."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from metadata import codec
from metadata.control import features
from metadata.control.features import DescribedFeature, Upgraded, describe_features, upgrade_feature
from metadata.image import ClusterImage
from metadata.records import (
    METADATA_VERSION,
    METADATA_VERSION_MAX,
    METADATA_VERSION_MIN,
    TRANSACTION_VERSION,
    TRANSACTION_VERSIONS,
    Feature,
    Record,
)
from metadata.snapshot import ImageLoader, chunks
from quorumlog.errors import CorruptStoreError
from quorumlog.wire import rpcs
from quorumlog.wire.v1 import controller_pb2 as pb
from tests.unit.metadata.builders import Cluster
from tests.unit.metadata.controller.test_controller import started
from tests.unit.metadata.fake_node import run


@pytest.fixture
def three_levels(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let this release support three levels, as a later release may."""
    monkeypatch.setattr(features, "SUPPORTED", {METADATA_VERSION: range(1, 4)})


def understands(cluster: Cluster, levels: dict[int, tuple[int, int]]) -> ClusterImage:
    """Return the image with brokers that support these levels, by broker id."""
    brokers = cluster.image.brokers
    for broker_id, (lowest, highest) in levels.items():
        changed = msgspec.structs.replace(brokers[broker_id], feature_min=lowest, feature_max=highest)
        brokers = brokers.set(broker_id, changed)
    return msgspec.structs.replace(cluster.image, brokers=brokers)


def upgraded(image: ClusterImage, level: int | None, *, dry: bool = False) -> tuple[Upgraded, tuple[Record, ...]]:
    decision = upgrade_feature(image, METADATA_VERSION, level, validate_only=dry)
    return decision.reply, decision.records


def test_the_lowest_level_is_in_force_without_a_feature_record(three_levels: None) -> None:
    assert describe_features(ClusterImage()) == (DescribedFeature(METADATA_VERSION, 1, 1, 3, ()),)


def test_a_level_is_raised_as_far_as_all_brokers_support_it(three_levels: None) -> None:
    cluster = Cluster()
    cluster.start(1, 2, 3)
    image = understands(cluster, {1: (1, 3), 2: (1, 2), 3: (1, 4)})
    assert describe_features(image) == (DescribedFeature(METADATA_VERSION, 1, 1, 2, (2,)),)
    reply, records = upgraded(image, None)
    assert (reply.outcome.ok, reply.level, reply.changed) == (True, 2, True)
    assert records == (Feature(METADATA_VERSION, 2),)
    image = image.apply(image.end_offset, records)
    assert describe_features(image)[0].level == 2
    again, nothing = upgraded(image, None)
    assert (again.outcome.ok, again.level, again.changed, nothing) == (True, 2, False, ())


def test_a_dry_run_of_an_upgrade_changes_nothing(three_levels: None) -> None:
    reply, records = upgraded(ClusterImage(), 3, dry=True)
    assert (reply.outcome.ok, reply.level, reply.changed, records) == (True, 3, False, ())


def test_the_refusal_of_an_upgrade_names_the_brokers_that_do_not_support_the_level(three_levels: None) -> None:
    cluster = Cluster()
    cluster.start(1, 2, 3)
    image = understands(cluster, {1: (1, 3), 2: (1, 1), 3: (1, 2)})
    reply, records = upgraded(image, 3)
    assert (reply.outcome.error, reply.level, records) == ("UNSUPPORTED_VERSION", 1, ())
    assert "above 1, the highest that all brokers support; brokers of older releases: 2, 3" in reply.outcome.message
    assert "unregister" in reply.outcome.next_step
    reply, records = upgraded(ClusterImage(), 4)
    assert (reply.outcome.error, records) == ("UNSUPPORTED_VERSION", ())
    assert "up to 3, not 4" in reply.outcome.message


def test_a_fenced_broker_that_does_not_support_a_level_prevents_the_upgrade(three_levels: None) -> None:
    cluster = Cluster()
    cluster.start(1, 2)
    cluster.beat(2, want_fence=True)
    assert upgraded(understands(cluster, {1: (1, 3), 2: (1, 1)}), 3)[0].outcome.error == "UNSUPPORTED_VERSION"


@pytest.mark.parametrize("level", [-1, 0, 1])
def test_the_level_of_metadata_version_is_never_lowered(three_levels: None, level: int) -> None:
    image = ClusterImage().apply(0, (Feature(METADATA_VERSION, 2),))
    reply, records = upgraded(image, level)
    assert (reply.outcome.error, reply.level, records) == ("INVALID_REQUEST", 2, ())


def test_an_unknown_feature_is_refused() -> None:
    reply = upgrade_feature(ClusterImage(), "flying\n", 2, validate_only=False).reply
    assert reply.outcome.error == "INVALID_REQUEST"
    assert "'flying\\n'; the features are metadata.version" in reply.outcome.message
    assert reply.outcome.next_step == "kctl features describe"


def test_an_older_release_refuses_to_read_a_higher_level_of_metadata_version() -> None:
    level = METADATA_VERSION_MAX + 1
    with pytest.raises(CorruptStoreError, match=r"this release supports metadata\.version up to level"):
        codec.decode(codec.encode([Feature(METADATA_VERSION, level)]), 17)
    image = ClusterImage().apply(0, (Feature(METADATA_VERSION, level),))
    with pytest.raises(CorruptStoreError, match=f"level {level} of metadata.version; this release understands at most"):
        ImageLoader("a snapshot").feed(next(filter(None, chunks(image))))


def test_features_are_described_and_upgraded_through_the_service() -> None:
    async def test() -> None:
        plane = await started(1, 2)
        plane.node.auto_commit = True
        end = plane.node.log_end_offset
        shown: Any = await plane.call(rpcs.DESCRIBE_FEATURES, pb.DescribeFeaturesRequest())
        feature, transactions = shown.features
        assert (transactions.name, transactions.level, transactions.highest) == (TRANSACTION_VERSION, 2, 2)
        level, highest = METADATA_VERSION_MIN, METADATA_VERSION_MAX
        assert (feature.name, feature.level, feature.lowest) == (METADATA_VERSION, level, level)
        assert feature.highest == highest
        present = pb.UpgradeFeatureRequest(name=METADATA_VERSION, level=level)
        same: Any = await plane.call(rpcs.UPGRADE_FEATURE, present)
        assert (same.result.error, same.level, same.changed, same.offset) == ("NONE", level, False, end)
        beyond = pb.UpgradeFeatureRequest(name=METADATA_VERSION, level=highest + 1)
        far: Any = await plane.call(rpcs.UPGRADE_FEATURE, beyond)
        assert (far.result.error, far.level, plane.node.log_end_offset) == ("UNSUPPORTED_VERSION", level, end)

    run(test())


def test_the_level_of_transaction_version_may_be_lowered_and_does_not_affect_registrations() -> None:
    cluster = Cluster()
    cluster.start(1)
    decision = upgrade_feature(cluster.image, TRANSACTION_VERSION, 0, validate_only=False)
    assert decision.records == (Feature(TRANSACTION_VERSION, 0),)
    cluster.image = cluster.image.apply(cluster.image.end_offset, decision.records)
    assert describe_features(cluster.image)[1] == DescribedFeature(TRANSACTION_VERSION, 0, 0, 2, ())
    cluster.start(2)
    assert 2 in cluster.image.brokers
    highest = upgrade_feature(cluster.image, TRANSACTION_VERSION, None, validate_only=False)
    assert (highest.reply.level, highest.records) == (2, (Feature(TRANSACTION_VERSION, 2),))
    far = upgrade_feature(cluster.image, TRANSACTION_VERSION, 3, validate_only=False)
    assert not far.reply.outcome.ok
    assert far.records == ()


def test_a_level_below_the_lowest_level_of_a_feature_is_refused() -> None:
    refused = upgrade_feature(ClusterImage(), TRANSACTION_VERSION, -1, validate_only=False)
    assert (refused.reply.outcome.error, refused.reply.level, refused.records) == ("INVALID_REQUEST", 2, ())
    assert refused.reply.outcome.message == "level -1 of transaction.version is below the lowest one, 0"
    for level in TRANSACTION_VERSIONS:
        records = upgrade_feature(ClusterImage(), TRANSACTION_VERSION, level, validate_only=False).records
        assert not records or codec.decode(codec.encode(records)) == list(records)


def test_an_upgrade_appends_a_feature_record(three_levels: None) -> None:
    async def test() -> None:
        plane = await started()
        plane.node.auto_commit = True
        end = plane.node.log_end_offset
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(codec, "METADATA_VERSION_MAX", 3)
            done: Any = await plane.call(rpcs.UPGRADE_FEATURE, pb.UpgradeFeatureRequest(name=METADATA_VERSION))
        assert (done.result.error, done.level, done.changed, done.offset) == ("NONE", 3, True, end + 1)
        assert plane.replay.image.features[METADATA_VERSION] == 3

    run(test())
