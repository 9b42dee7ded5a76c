"""Administration with the real kctl on a real broker, beside unmodified Kafka clients."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from typing import Any

import pytest
from confluent_kafka import Consumer, ElectionType, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewPartitions,
    ResourceType,
)
from kafka import KafkaAdminClient
from kafka.admin import NewPartitions as PythonNewPartitions

from .conftest import Server

Kctl = Callable[..., subprocess.CompletedProcess[str]]


def document(done: subprocess.CompletedProcess[str]) -> Any:
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def error(done: subprocess.CompletedProcess[str], code: int) -> dict[str, Any]:
    assert done.returncode == code, (done.returncode, done.stdout, done.stderr)
    found: dict[str, Any] = json.loads(done.stderr.strip().splitlines()[-1])
    return found


def written(producer: Producer, topic: str, count: int) -> dict[int, int]:
    """Write `count` records by key; return the number of records in each partition."""
    found: dict[int, int] = {}

    def told(failure: Any, message: Any) -> None:
        assert failure is None, failure
        found[message.partition()] = found.get(message.partition(), 0) + 1

    for number in range(count):
        producer.produce(topic, key=f"k{number}", value=f"v{number}", on_delivery=told)
    assert producer.flush(60) == 0
    return found


def test_a_librdkafka_producer_follows_added_and_removed_partitions(standalone: Server, kctl: Kctl) -> None:
    assert kctl("topics", "create", "counts", "--partitions", "2", "--replication-factor", "1").returncode == 0
    settings = {"bootstrap.servers": standalone.fields["kafka"], "topic.metadata.refresh.interval.ms": 200}
    producer = Producer({**settings, "acks": "all"})
    assert sorted(written(producer, "counts", 40)) == [0, 1]

    more = document(kctl("topics", "add-partitions", "counts", "--to", "4", "--wait", "-o", "json"))
    assert (more["changed"], more["partitions"], more["name"]) == (True, 4, "counts")
    again = document(kctl("topics", "add-partitions", "counts", "--to", "4", "-o", "json"))
    assert (again["changed"], again["offset"] >= more["offset"]) == (False, True)
    counted = len(producer.list_topics("counts", timeout=30).topics["counts"].partitions)
    assert counted == 4
    for number in range(4):
        producer.produce("counts", value="direct", partition=number)
    assert producer.flush(60) == 0

    refused = error(kctl("topics", "remove-partitions", "counts", "--to", "1", "-o", "json"), 5)
    assert refused["error"] == "CONFIRMATION_NEEDED"
    would = document(kctl("topics", "remove-partitions", "counts", "--to", "1", "--dry-run", "-o", "json"))
    assert (would["changed"], would["removed"]) == (False, 3)
    assert would["records"] > 2
    done = kctl("topics", "remove-partitions", "counts", "--to", "1", "--yes", "--wait", "-o", "json")
    fewer = document(done)
    assert (fewer["changed"], fewer["partitions"], fewer["records"]) == (True, 1, would["records"])
    assert fewer["topic_id"] != more["topic_id"]
    assert f"counts-1 to counts-3 will be deleted permanently, with {fewer['records']} records" in done.stderr

    # The same producer, which knew four partitions, accepts the smaller count and sends every key to the remaining one.
    assert len(producer.list_topics("counts", timeout=30).topics["counts"].partitions) == 1
    assert written(producer, "counts", 40) == {0: 40}
    kept = document(kctl("topics", "describe", "counts", "-o", "json"))[0]
    assert [each["partition"] for each in kept["partitions"]] == [0]

    consumer = Consumer({**settings, "group.id": "none", "enable.auto.commit": False})
    consumer.assign([TopicPartition("counts", 0, 0)])
    values: list[str] = []
    while len(values) < 40 or values[-1] != "v39":
        message = consumer.poll(30)
        assert message is not None
        assert message.error() is None, message.error()
        value = message.value()
        assert value is not None
        values.append(value.decode())
    consumer.close()
    assert values[-40:] == [f"v{number}" for number in range(40)]
    assert "direct" in values


@pytest.mark.parametrize(
    ("arguments", "code", "word"),
    [
        (("topics", "add-partitions", "nobody", "--to", "2"), 3, "UNKNOWN_TOPIC_OR_PARTITION"),
        (("topics", "add-partitions", "refusals", "--to", "1"), 2, "INVALID_PARTITIONS"),
        (("topics", "add-partitions", "refusals", "--to", "0"), 2, "USAGE"),
        (("topics", "add-partitions", "refusals", "--to", "x"), 2, "USAGE"),
        (("topics", "add-partitions", "refusals"), 2, "USAGE"),
        (("topics", "add-partitions", "refusals", "--to", "3", "--assignment", "2"), 3, "BROKER_ID_NOT_REGISTERED"),
        (("topics", "add-partitions", "refusals", "--to", "3", "--assignment", "1:2"), 2, "INVALID_REPLICA_ASSIGNMENT"),
        (("topics", "remove-partitions", "nobody", "--to", "1", "--yes"), 3, "UNKNOWN_TOPIC_OR_PARTITION"),
        (("topics", "remove-partitions", "refusals", "--to", "3", "--yes"), 2, "INVALID_PARTITIONS"),
        (("topics", "remove-partitions", "refusals", "--to", "-1"), 2, "USAGE"),
        (("configs", "set", "retention.ms=1"), 2, "USAGE"),
        (("configs", "set", "retention.ms=1", "--topic", "refusals", "--cluster"), 2, "USAGE"),
        (("configs", "set", "retention.ms=x", "--topic", "refusals"), 2, "INVALID_CONFIG"),
        (("configs", "set", "retention_ms=1", "--topic", "refusals"), 2, "INVALID_CONFIG"),
        (("configs", "set", "retention.ms", "--topic", "refusals"), 2, "USAGE"),
        (("configs", "get", "--topic", "nobody"), 3, "UNKNOWN_TOPIC_OR_PARTITION"),
        (("configs", "get", "nothing", "--cluster"), 3, "CONFIG_NOT_FOUND"),
        (("configs", "get", "--broker", "99"), 3, "BROKER_ID_NOT_REGISTERED"),
        (("configs", "unset", "nothing", "--cluster"), 2, "INVALID_CONFIG"),
        (("elect-leaders",), 2, "USAGE"),
        (("elect-leaders", "--preferred", "--unclean"), 2, "USAGE"),
        (("elect-leaders", "--preferred", "--partition", "1"), 2, "USAGE"),
        (("elect-leaders", "--preferred", "--topic", "nobody"), 3, "UNKNOWN_TOPIC_OR_PARTITION"),
        (("elect-leaders", "--preferred", "--topic", "refusals", "--partition", "7"), 3, "UNKNOWN_TOPIC_OR_PARTITION"),
        (("brokers", "unregister", "99"), 3, "BROKER_ID_NOT_REGISTERED"),
        (("brokers", "unregister", "1"), 5, "BROKER_IN_USE"),
        (("brokers", "unregister", "-1"), 2, "USAGE"),
    ],
)
def test_a_refused_command_has_its_error_code_and_exit_status(
    standalone: Server, kctl: Kctl, arguments: tuple[str, ...], code: int, word: str
) -> None:
    kctl("topics", "create", "refusals", "--partitions", "2", "--replication-factor", "1")
    assert error(kctl(*arguments, "-o", "json"), code)["error"] == word


def test_configs_are_set_shown_and_reset(standalone: Server, kctl: Kctl) -> None:
    assert kctl("topics", "create", "configs", "--partitions", "1", "--replication-factor", "1").returncode == 0
    done = document(
        kctl("configs", "set", "retention.ms=5000", "segment.ms=60000", "--topic", "configs", "--wait", "-o", "json")
    )
    assert (done["changed"], done["topic"], done["configs"][0]) == (
        True, "configs", {"name": "retention.ms", "value": "5000"}
    )  # fmt: skip
    assert not document(kctl("configs", "set", "retention.ms=5000", "--topic", "configs", "-o", "json"))["changed"]
    found = {each["name"]: each for each in document(kctl("configs", "get", "--topic", "configs", "-o", "json"))}
    assert found["retention.ms"] == {
        "name": "retention.ms",
        "value": "5000",
        "source": "topic",
        "offset": done["offset"],
        "unconfirmed": False,
    }
    assert found["retention.bytes"]["source"] == "default"
    would = document(kctl("configs", "unset", "retention.ms", "--topic", "configs", "--dry-run", "-o", "json"))
    assert not would["changed"]
    assert document(kctl("configs", "unset", "retention.ms", "--topic", "configs", "-o", "json"))["changed"]
    [one] = document(kctl("configs", "get", "retention.ms", "--topic", "configs", "-o", "json"))
    assert one["source"] == "default"
    assert document(kctl("configs", "set", "cordoned=true", "--broker", "1", "-o", "json"))["changed"]
    refused = kctl("topics", "create", "nowhere", "--partitions", "1", "--replication-factor", "1", "-o", "json")
    assert error(refused, 5)["error"] == "INVALID_REPLICATION_FACTOR"
    [broker] = document(kctl("brokers", "list", "-o", "json"))
    assert broker["cordoned"] is True
    assert document(kctl("configs", "unset", "cordoned", "--broker", "1", "-o", "json"))["changed"]
    table = kctl("configs", "get", "--cluster")
    assert "auto.leader.rebalance.enable" in table.stdout
    assert "true or false" in table.stdout


def test_an_election_that_is_not_needed_succeeds_without_a_change(standalone: Server, kctl: Kctl) -> None:
    assert kctl("topics", "create", "led", "--partitions", "2", "--replication-factor", "1", "--wait").returncode == 0
    found = document(kctl("elect-leaders", "--preferred", "--topic", "led", "-o", "json"))
    assert found["changed"] is False
    assert [(each["partition"], each["leader"], each["error"]) for each in found["partitions"]] == [
        (0, 1, "ELECTION_NOT_NEEDED"), (1, 1, "ELECTION_NOT_NEEDED")
    ]  # fmt: skip
    everything = kctl("elect-leaders", "--unclean")
    assert (everything.returncode, everything.stdout) == (0, "no partition needs an election\n")


def test_admin_clients_of_kafka_add_partitions_alter_configs_and_elect_leaders(standalone: Server, kctl: Kctl) -> None:
    assert (
        kctl("topics", "create", "kadmin", "--partitions", "1", "--replication-factor", "1", "--wait").returncode == 0
    )
    admin = AdminClient({"bootstrap.servers": standalone.fields["kafka"]})
    for future in admin.create_partitions([NewPartitions("kadmin", 3)]).values():
        assert future.result(30) is None
    assert len(admin.list_topics("kadmin", timeout=30).topics["kadmin"].partitions) == 3
    [same] = admin.create_partitions([NewPartitions("kadmin", 3)]).values()
    with pytest.raises(KafkaException) as refused:
        same.result(30)
    assert refused.value.args[0].name() == "INVALID_PARTITIONS"

    entry = ConfigEntry("retention.ms", "77000", incremental_operation=AlterConfigOpType.SET)
    resource = ConfigResource(ResourceType.TOPIC, "kadmin", incremental_configs=[entry])
    [altered] = admin.incremental_alter_configs([resource]).values()
    assert altered.result(30) is None
    [described] = admin.describe_configs([ConfigResource(ResourceType.TOPIC, "kadmin")]).values()
    assert described.result(30)["retention.ms"].value == "77000"
    elected = admin.elect_leaders(ElectionType.PREFERRED, [TopicPartition("kadmin", 0)]).result(30)
    [error] = elected.values()
    assert error.name() == "ELECTION_NOT_NEEDED"

    python = KafkaAdminClient(bootstrap_servers=standalone.fields["kafka"])
    python.create_partitions({"kadmin": PythonNewPartitions(total_count=4)})
    python.close()
    found = document(kctl("topics", "describe", "kadmin", "-o", "json"))[0]
    assert len(found["partitions"]) == 4
