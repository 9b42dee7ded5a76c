"""Configs of single groups: their level of metadata.version, their ranges, what they inherit, and their number."""

from __future__ import annotations

import msgspec
import pytest

from metadata import codec
from metadata.control import configs
from metadata.control.configs import Altered, Changes, Described, Resource, alter_configs, describe_configs
from metadata.control.errors import Outcome
from metadata.control.features import upgrade_feature
from metadata.image import GROUP_CONFIGS, ClusterImage, group_config
from metadata.image.iso_duration import duration_ms
from metadata.records import METADATA_VERSION, Config, ConfigScope
from metadata.snapshot import ImageLoader, chunks
from quorumlog.errors import CorruptStoreError
from quorumlog.wire.v1 import metadata_pb2
from tests.unit.metadata.builders import Cluster

WORKERS = Resource(ConfigScope.GROUP, "workers")
CLUSTER = Resource(ConfigScope.CLUSTER, "")
SESSION = "share.session.timeout.ms"
RESET = "share.auto.offset.reset"
LETTERS = "errors.deadletterqueue.topic.name"


@pytest.fixture
def cluster() -> Cluster:
    """A cluster with the highest level of metadata.version that this release supports."""
    cluster = Cluster()
    cluster.start(1)
    upgrade(cluster)
    return cluster


def upgrade(cluster: Cluster) -> None:
    reply = cluster.execute(lambda image: upgrade_feature(image, METADATA_VERSION, None, validate_only=False))
    assert reply.outcome.ok


def alter(cluster: Cluster, *wanted: Changes, validate_only: bool = False) -> list[Altered]:
    reply = cluster.execute(lambda image: alter_configs(image, wanted, validate_only=validate_only))
    return list(reply)


def give(cluster: Cluster, resource: Resource = WORKERS, **values: str) -> None:
    """Set configs; the names have `_` in place of `.`."""
    named = tuple((key.replace("_", "."), value) for key, value in values.items())
    [answer] = alter(cluster, Changes(resource, named))
    assert answer.outcome.ok, answer.outcome.message


def refused(cluster: Cluster, resource: Resource, *values: tuple[str, str | None], replace: bool = False) -> Outcome:
    """Return the refusal of a change, which has changed nothing."""
    before = cluster.image
    [answer] = alter(cluster, Changes(resource, values, replace))
    assert cluster.image is before
    assert not answer.outcome.ok
    return answer.outcome


def look(cluster: Cluster, resource: Resource = WORKERS) -> dict[str, Described]:
    found = describe_configs(cluster.image, resource)
    assert not isinstance(found, Outcome), found
    return {each.key: each for each in found}


def shown(cluster: Cluster, key: str) -> tuple[str, str]:
    described = look(cluster)[key]
    assert described.value == group_config(cluster.image, "workers", key)
    return described.value, described.source


# -- the level of metadata.version


def test_configs_of_groups_are_refused_below_level_2_of_metadata_version() -> None:
    cluster = Cluster()
    cluster.start(1)
    for validate_only in (False, True):
        [answer] = alter(cluster, Changes(WORKERS, ((SESSION, "50000"),)), validate_only=validate_only)
        assert answer.outcome.error == "UNSUPPORTED_VERSION"
        assert answer.outcome.message == "configs of groups need level 2 of metadata.version; the cluster is at 1"
        assert answer.outcome.next_step.startswith("kctl features upgrade")
    assert not cluster.image.group_configs
    assert shown(cluster, SESSION) == ("45000", "default")
    [answer] = alter(cluster, Changes(WORKERS, ((SESSION, None),)))
    assert (answer.outcome.ok, answer.changed) == (True, False)

    upgrade(cluster)
    give(cluster, share_session_timeout_ms="50000")
    assert shown(cluster, SESSION) == ("50000", "group")


def test_the_previous_release_refuses_to_read_the_upgrade_and_the_configs_of_groups(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The previous release knows level 1, and the scopes from 1 to 3."""
    cluster = Cluster()
    cluster.start(1)
    decision = upgrade_feature(cluster.image, METADATA_VERSION, None, validate_only=False)
    config = Config(ConfigScope.GROUP, "workers", SESSION, "50000")
    cluster.apply(decision.records)
    cluster.apply([config])
    first = next(filter(None, chunks(cluster.image)))
    with monkeypatch.context() as former:
        former.setattr(codec, "METADATA_VERSION_MAX", 1)
        former.setattr("metadata.snapshot.METADATA_VERSION_MAX", 1)
        former.setattr(codec, "_SCOPES", {scope.value: scope for scope in ConfigScope if scope.value <= 3})
        with pytest.raises(CorruptStoreError, match=r"this release supports metadata\.version up to level"):
            codec.decode(codec.encode(decision.records))
        with pytest.raises(CorruptStoreError, match="config scope 4"):
            codec.decode(codec.encode([config]))
        with pytest.raises(CorruptStoreError, match=r"level 2 of metadata\.version"):
            ImageLoader("a snapshot").feed(first)
    assert codec.decode(codec.encode([config])) == [config]


# -- values


def test_a_group_has_the_values_of_the_cluster_until_it_gets_its_own_values(cluster: Cluster) -> None:
    assert list(look(cluster)) == sorted(GROUP_CONFIGS)
    assert shown(cluster, "share.delivery.count.limit") == ("5", "default")
    give(cluster, CLUSTER, group_share_delivery_count_limit="7", share_isolation_level="read_committed")
    assert shown(cluster, "share.delivery.count.limit") == ("7", "cluster")
    assert shown(cluster, "share.isolation.level") == ("read_committed", "cluster")
    give(cluster, share_delivery_count_limit="3", share_isolation_level="read_uncommitted")
    assert shown(cluster, "share.delivery.count.limit") == ("3", "group")
    assert shown(cluster, "share.isolation.level") == ("read_uncommitted", "group")
    assert group_config(cluster.image, "others", "share.delivery.count.limit") == "7"
    [answer] = alter(cluster, Changes(WORKERS, (("share.isolation.level", None),)))
    assert answer.changed
    assert shown(cluster, "share.isolation.level") == ("read_committed", "cluster")
    assert shown(cluster, "share.delivery.count.limit") == ("3", "group")
    alter(cluster, Changes(WORKERS, (), replace_all=True))
    assert not cluster.image.group_configs


def test_a_group_config_without_a_counterpart_in_the_cluster_has_its_own_default(cluster: Cluster) -> None:
    assert shown(cluster, "share.renew.acknowledge.enable") == ("true", "default")
    give(cluster, share_renew_acknowledge_enable="false")
    assert shown(cluster, "share.renew.acknowledge.enable") == ("false", "group")
    assert group_config(cluster.image, "others", "share.renew.acknowledge.enable") == "true"
    assert "true or false" in refused(cluster, WORKERS, ("share.renew.acknowledge.enable", "maybe")).message


def test_the_name_of_a_dead_letter_topic_must_begin_with_the_prefix_of_the_cluster(cluster: Cluster) -> None:
    assert shown(cluster, LETTERS) == ("", "default")
    give(cluster, errors_deadletterqueue_topic_name="dlq.mails", errors_deadletterqueue_copy_record_enable="true")
    assert shown(cluster, LETTERS) == ("dlq.mails", "group")
    outcome = refused(cluster, WORKERS, (LETTERS, "mails"))
    assert outcome.error == "INVALID_CONFIG"
    assert outcome.message == (
        "errors.deadletterqueue.topic.name must begin with 'dlq.' (errors.deadletterqueue.topic.name.prefix), "
        "not 'mails'"
    )
    give(cluster, CLUSTER, errors_deadletterqueue_topic_name_prefix="dead-")
    give(cluster, errors_deadletterqueue_copy_record_enable="false")  # the earlier name is not checked again
    refused(cluster, WORKERS, (LETTERS, "dlq.others"))
    give(cluster, errors_deadletterqueue_topic_name="dead-mails")
    give(cluster, CLUSTER, errors_deadletterqueue_topic_name_prefix="")
    give(cluster, errors_deadletterqueue_topic_name="mails")
    give(cluster, errors_deadletterqueue_topic_name="")
    assert shown(cluster, LETTERS) == ("", "group")
    [answer] = alter(cluster, Changes(WORKERS, ((LETTERS, None),)))
    assert answer.changed
    assert shown(cluster, LETTERS) == ("", "default")


@pytest.mark.parametrize("name", ["__share_group_state", "__dlq", ".", "..", "dlq/x", "dlq.ü", "d" * 250, " "])
def test_an_invalid_name_of_a_dead_letter_topic_is_refused(cluster: Cluster, name: str) -> None:
    give(cluster, CLUSTER, errors_deadletterqueue_topic_name_prefix="")
    outcome = refused(cluster, WORKERS, (LETTERS, name))
    assert outcome.error == "INVALID_CONFIG"
    assert "empty, or the name of a topic that does not begin with __" in outcome.message


def test_an_invalid_prefix_of_dead_letter_topics_is_refused(cluster: Cluster) -> None:
    for prefix in ("dlq/", "d" * 250):
        outcome = refused(cluster, CLUSTER, ("errors.deadletterqueue.topic.name.prefix", prefix))
        assert outcome.error == "INVALID_CONFIG"


def test_a_config_that_is_already_set_changes_nothing(cluster: Cluster) -> None:
    give(cluster, share_session_timeout_ms="50000")
    before = cluster.image
    give(cluster, share_session_timeout_ms="50000")
    assert cluster.image is before


@pytest.mark.parametrize(
    ("key", "low", "high"),
    [
        ("consumer.assignment.interval.ms", 0, 15_000),
        ("consumer.heartbeat.interval.ms", 5_000, 15_000),
        ("consumer.session.timeout.ms", 45_000, 60_000),
        ("share.delivery.count.limit", 2, 10),
        ("share.heartbeat.interval.ms", 5_000, 15_000),
        ("share.partition.max.record.locks", 100, 4_000),
        ("share.record.lock.duration.ms", 15_000, 60_000),
        ("share.session.timeout.ms", 45_000, 60_000),
    ],
)
def test_numeric_configs_of_groups_are_limited_to_their_ranges(cluster: Cluster, key: str, low: int, high: int) -> None:
    for value in (low - 1, high + 1):
        outcome = refused(cluster, WORKERS, (key, str(value)))
        assert outcome.error == "INVALID_CONFIG"
        assert f"{key} must be a whole number from {low} to {high}" in outcome.message
    for value in (low, high):
        [answer] = alter(cluster, Changes(WORKERS, ((key, str(value)),)))
        assert answer.outcome.ok
    assert f"from {low} to {high}" in look(cluster)[key].allowed


def test_configs_of_the_cluster_set_the_ranges_and_values_outside_are_adjusted_to_them(cluster: Cluster) -> None:
    give(cluster, share_record_lock_duration_ms="60000", consumer_session_timeout_ms="50000")
    give(
        cluster,
        CLUSTER,
        group_share_max_record_lock_duration_ms="40000",
        group_share_min_record_lock_duration_ms="1000",
    )
    assert group_config(cluster.image, "workers", "share.record.lock.duration.ms") == "40000"
    give(cluster, share_record_lock_duration_ms="1000")
    assert shown(cluster, "share.record.lock.duration.ms") == ("1000", "group")
    give(cluster, CLUSTER, group_consumer_min_session_timeout_ms="55000", group_consumer_max_session_timeout_ms="50000")
    assert group_config(cluster.image, "workers", "consumer.session.timeout.ms") == "55000", "the minimum prevails"
    assert group_config(cluster.image, "others", "consumer.session.timeout.ms") == "55000"


def test_a_session_timeout_must_exceed_the_heartbeat_interval(cluster: Cluster) -> None:
    give(cluster, CLUSTER, group_share_min_session_timeout_ms="6000", group_consumer_min_session_timeout_ms="6000")
    for kind in ("share", "consumer"):
        session, interval = f"{kind}.session.timeout.ms", f"{kind}.heartbeat.interval.ms"
        outcome = refused(cluster, WORKERS, (session, "8000"), (interval, "8000"))
        assert outcome.error == "INVALID_CONFIG"
        assert outcome.message == f"{session} (8000) must be greater than {interval} (8000)"
        [answer] = alter(cluster, Changes(WORKERS, ((session, "8000"), (interval, "7999"))))
        assert answer.outcome.ok
        assert refused(cluster, WORKERS, (session, "7999")).error == "INVALID_CONFIG", "the interval is 7999 already"
    give(cluster, CLUSTER, group_share_heartbeat_interval_ms="9000")
    refused(cluster, WORKERS, ("share.heartbeat.interval.ms", None))


@pytest.mark.parametrize(
    "value", ["earliest", "latest", "by_duration:PT1H30M", "by_duration:P2DT0.5S", "by_duration:pt0s"]
)
def test_share_auto_offset_reset_accepts_an_offset_or_a_duration(cluster: Cluster, value: str) -> None:
    give(cluster, share_auto_offset_reset=value)
    assert shown(cluster, RESET) == (value, "group")


@pytest.mark.parametrize(
    "value",
    ["", "EARLIEST", "none", "by_duration:", "by_duration:-PT1H", "by_duration:PT-1H", "by_duration:1h", "PT1H"],
)
def test_other_values_of_share_auto_offset_reset_are_refused(cluster: Cluster, value: str) -> None:
    outcome = refused(cluster, WORKERS, (RESET, value))
    assert outcome.error == "INVALID_CONFIG"
    assert "by_duration:PT1H" in outcome.message


def test_share_auto_offset_reset_of_the_cluster_accepts_no_duration(cluster: Cluster) -> None:
    """Older releases read this config at every level of metadata.version, and know only two values."""
    assert refused(cluster, CLUSTER, (RESET, "by_duration:PT1H")).error == "INVALID_CONFIG"


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("PT1S", 1_000),
        ("PT0.0019S", 1),
        ("PT1.S", 1_000),
        ("P1D", 86_400_000),
        ("P1DT2H3M4.5S", 93_784_500),
        ("pt2m", 120_000),
        ("PT9223372036854775.807S", 2**63 - 1),
        ("PT9223372036854775.808S", None),
        ("P", None),
        ("PT", None),
        ("P1DT", None),
        ("PT.5S", None),
        ("P1W", None),
        ("P1Y", None),
        ("PT1H ", None),
        ("PT\u0661S", None),
        ("PT" + "0" * 40 + "S", None),
    ],
)
def test_durations_are_parsed_to_milliseconds_or_rejected(text: str, found: int | None) -> None:
    assert duration_ms(text) == found


# -- ids of groups


@pytest.mark.parametrize("name", ["", "  ", "g" * 1_025, "ü" * 513])
def test_configs_of_an_invalid_group_id_are_refused(cluster: Cluster, name: str) -> None:
    resource = Resource(ConfigScope.GROUP, name)
    assert refused(cluster, resource, (SESSION, "50000")).error == "INVALID_REQUEST"
    assert isinstance(describe_configs(cluster.image, resource), Outcome)


def test_configs_of_the_longest_group_id_are_stored_and_loaded(cluster: Cluster) -> None:
    name = "g" * 1_024
    give(cluster, Resource(ConfigScope.GROUP, name), share_session_timeout_ms="50000")
    [record] = codec.decode(codec.encode([Config(ConfigScope.GROUP, name, SESSION, "50000")]))
    assert isinstance(record, Config)
    assert record.resource == name
    loader = ImageLoader("a snapshot")
    for chunk in filter(None, chunks(cluster.image)):
        loader.feed(chunk)
    assert loader.finish() == cluster.image
    message = metadata_pb2.Records(version=1, records=[metadata_pb2.Record(config=metadata_pb2.Config(
        scope=metadata_pb2.Config.SCOPE_TOPIC, resource=name, key="k"))])  # fmt: skip
    with pytest.raises(CorruptStoreError, match="length of config resource"):
        codec.decode(message.SerializeToString())


def test_configs_of_the_cluster_and_of_streams_are_refused_for_a_group(cluster: Cluster) -> None:
    outcome = refused(cluster, WORKERS, ("group.share.session.timeout.ms", "50000"))
    assert outcome.error == "INVALID_CONFIG"
    assert outcome.message.endswith(f"did you mean {SESSION}?")
    assert refused(cluster, WORKERS, ("streams.session.timeout.ms", "50000")).error == "INVALID_CONFIG"
    assert refused(cluster, WORKERS, ("retention.ms", None)).error == "INVALID_CONFIG"


def test_the_number_of_groups_with_configs_is_limited(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(configs, "GROUPS_WITH_CONFIGS_MAX", 3)

    def sets(*names: str) -> list[str]:
        wanted = [Changes(Resource(ConfigScope.GROUP, name), ((SESSION, "50000"),)) for name in names]
        return [each.outcome.error.name for each in alter(cluster, *wanted)]

    assert sets("a", "b") == ["NONE", "NONE"]
    assert sets("a", "c", "d") == ["NONE", "NONE", "POLICY_VIOLATION"]
    assert sets("d") == ["POLICY_VIOLATION"]
    assert sorted(cluster.image.group_configs) == ["a", "b", "c"]
    [answer] = alter(cluster, Changes(Resource(ConfigScope.GROUP, "b"), ((SESSION, None),)))
    assert answer.outcome.ok
    assert sets("d") == ["NONE"]
    outcome = refused(cluster, Resource(ConfigScope.GROUP, "e"), (SESSION, "50000"))
    assert "at most 3 groups" in outcome.message
    assert "unset" in outcome.next_step


def test_the_configs_of_a_group_are_separate_from_those_of_a_broker_with_the_same_name(cluster: Cluster) -> None:
    one = Resource(ConfigScope.GROUP, "1")
    give(cluster, one, share_session_timeout_ms="50000")
    assert not cluster.image.config(ConfigScope.BROKER, "1")
    assert dict(cluster.image.config(ConfigScope.GROUP, "1")) == {SESSION: "50000"}
    without = msgspec.structs.replace(cluster.image, group_configs=ClusterImage().group_configs)
    assert cluster.image.digest() != without.digest(), (
        "images that differ in the configs of a group have different digests"
    )
