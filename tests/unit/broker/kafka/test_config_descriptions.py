"""DescribeConfigs of many resources, and its hand-written encoder."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from broker.kafka.config_descriptions import describe_configs
from metadata.image import TOPIC_CONFIGS
from metadata.records import Config, ConfigScope
from quorumlog.runtime import turns
from quorumlog.wire.kafka import codec
from quorumlog.wire.kafka.codec import Api
from tests.other_tasks import counting
from tests.unit.broker.kafka.fake import FakeReplicas

TOPIC, BROKER, GROUP = 2, 4, 32
VERSIONS = (1, 2, 3, 4)


def cluster_with(topics: Mapping[str, Mapping[str, str]], **cluster: str) -> FakeReplicas:
    """Return a broker whose image has these topics with their own configs, and these configs of the cluster."""
    replicas = FakeReplicas()
    for name, configs in topics.items():
        replicas.create(name, 1)
        topic = replicas.image.topic(name)
        assert topic is not None
        replicas.apply(*[Config(ConfigScope.TOPIC, topic.topic_id.hex, key, value) for key, value in configs.items()])
    replicas.apply(*[Config(ConfigScope.CLUSTER, "", key.replace("_", "."), value) for key, value in cluster.items()])
    return replicas


async def answer(replicas: FakeReplicas, version: int, resources: list[dict[str, Any]], **options: bool) -> Any:
    values = {"resources": resources, **options}
    request = codec.make(codec.request_schema(Api.DESCRIBE_CONFIGS, version), values)
    body = await describe_configs(request, version, replicas.image, 1, ())
    return codec.decode(codec.response_schema(Api.DESCRIBE_CONFIGS, version), memoryview(body), 0)


def asked(kind: int, name: str, *keys: str) -> dict[str, Any]:
    return {"resource_type": kind, "resource_name": name, "configuration_keys": keys or None}


@pytest.mark.parametrize("version", VERSIONS)
async def test_each_resource_is_described_with_its_own_values(version: int) -> None:
    topics: dict[str, dict[str, str]] = {
        "a": {},
        "b": {"retention.ms": "7"},
        "c": {},
        "d": {"retention.ms": "8", "segment.ms": "9"},
    }
    replicas = cluster_with(topics, segment_ms="60000")
    keys = ("retention.ms", "segment.ms")
    resources = [*(asked(TOPIC, name, *keys) for name in topics), asked(BROKER, "", *keys)]
    response = await answer(replicas, version, resources)
    found = {
        each.resource_name: [(one.name, one.value, int(one.config_source)) for one in each.configs]
        for each in response.results
    }
    default, of_cluster = ("retention.ms", "604800000", 5), ("segment.ms", "60000", 3)
    assert found == {
        "a": [default, of_cluster],
        "b": [("retention.ms", "7", 1), of_cluster],
        "c": [default, of_cluster],
        "d": [("retention.ms", "8", 1), ("segment.ms", "9", 1)],
        "": [default, of_cluster],
    }


@pytest.mark.parametrize("version", VERSIONS)
async def test_refused_resources_keep_their_position_in_the_response(version: int) -> None:
    replicas = cluster_with({"a": {}, "b": {}})
    resources = [asked(TOPIC, "a"), asked(TOPIC, "missing"), asked(8, "1"), asked(GROUP, "g"), asked(TOPIC, "b")]
    response = await answer(replicas, version, resources)
    codes = [(each.resource_type, each.resource_name, int(each.error_code)) for each in response.results]
    assert codes == [(TOPIC, "a", 0), (TOPIC, "missing", 3), (8, "1", 42), (GROUP, "g", 0), (TOPIC, "b", 0)]
    assert "'missing'" in response.results[1].error_message
    assert [len(each.configs) > 0 for each in response.results] == [True, False, False, True, True]
    assert response.results[0].configs == response.results[4].configs
    assert len(response.results[0].configs) == len(TOPIC_CONFIGS)


@pytest.mark.parametrize("version", VERSIONS)
async def test_each_config_has_its_synonyms_if_they_are_requested(version: int) -> None:
    replicas = cluster_with({"a": {"segment.ms": "9"}, "b": {}}, segment_ms="60000")
    resources = [asked(TOPIC, name, "segment.ms", "retention.ms") for name in ("a", "b")]
    response = await answer(replicas, version, resources, include_synonyms=True)
    found = [
        [(one.name, [(each.value, int(each.source)) for each in one.synonyms]) for one in result.configs]
        for result in response.results
    ]
    of_cluster, default, retention = ("60000", 3), ("604800000", 5), ("retention.ms", [("604800000", 5)])
    assert [sorted(each) for each in found] == [
        [retention, ("segment.ms", [("9", 1), of_cluster, default])],
        [retention, ("segment.ms", [of_cluster, default])],
    ]


@pytest.mark.parametrize("version", [3, 4])
async def test_documentation_is_sent_only_if_it_is_requested(version: int) -> None:
    replicas = cluster_with({"a": {}})
    for wanted in (True, False):
        response = await answer(replicas, version, [asked(TOPIC, "a")], include_documentation=wanted)
        texts = [each.documentation for each in response.results[0].configs]
        assert all(text.startswith("must be ") if wanted else text is None for text in texts), texts
        assert {int(each.config_type) for each in response.results[0].configs} == {1, 2, 5, 6, 7}


async def test_other_tasks_run_while_many_resources_are_described(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(turns, "YIELD_MS", 0)
    names = [f"t{number}" for number in range(50)]
    replicas = cluster_with({name: {} for name in names})
    with counting() as passed:
        response = await answer(replicas, 4, [asked(TOPIC, name) for name in names])
    assert [each.resource_name for each in response.results] == names
    assert passed() >= len(names)
