"""The command-line tools of Apache Kafka: what each must do, and how its output is checked."""

from __future__ import annotations

import asyncio
import re
import tempfile
import time
from collections.abc import Callable, Collection
from dataclasses import dataclass
from pathlib import Path

from confluent_kafka import KafkaException

from tests.clients import brokers, directories, transactions, voters
from tests.clients.calls import REASSIGN_COMMAND, SLOW_RATE, Call, has
from tests.clients.catalog import JARS
from tests.clients.outcomes import Outcome, RowFailed, Skipped, Word, expect, shortened
from tests.clients.peers import Peer
from tests.clients.records import COUNT, Harness, record

GROUP_COMMAND = "consumer.group.ConsumerGroupCommand"
SHARE_COMMAND = "consumer.group.ShareGroupCommand"


@dataclass(frozen=True)
class Tool:
    """needs: the API keys without which the row is not served."""

    name: str
    check: Callable[[Call], None]
    needs: tuple[int, ...] = ()
    row: str = "tool"


def perform_tool(tool: Tool, peer: Peer, harness: Harness, served: Collection[int]) -> Outcome:
    """Run the check of one tool; a failure of any kind is an outcome."""
    began = time.monotonic()
    word, detail = Word.PASSED, ""
    if missing := [key for key in tool.needs if key not in served]:
        detail = f"the brokers do not advertise API key {', '.join(map(str, missing))}"
        return Outcome(tool.name, tool.row, Word.NOT_SERVED, detail, JARS.version)
    with tempfile.TemporaryDirectory(prefix="clients-tool-") as folder:
        try:
            tool.check(Call(peer, harness, Path(folder)))
        except Skipped as reason:
            word, detail = Word.SKIPPED, str(reason)
        except (RowFailed, KafkaException, OSError) as error:
            word, detail = Word.FAILED, str(error)
    return Outcome(tool.name, tool.row, word, shortened(detail, 600), JARS.version, time.monotonic() - began)


def _topics(call: Call) -> None:
    topic = call.new_name()
    create = ("--create", "--topic", topic, "--partitions", "2", "--replication-factor", "3")
    has(call.tool("TopicCommand", *create, "--config", "retention.ms=60000000"), f"Created topic {topic}")
    has(call.tool("TopicCommand", *create, status=1), "TopicExistsException")
    described = call.until(
        lambda: call.tool("TopicCommand", "--describe", "--topic", topic), "PartitionCount: 2.*retention.ms=60000000"
    )
    has(described, "Partition: 0.*Leader: [0-9]+.*Replicas: .*Isr: .*Elr:")
    call.tool("TopicCommand", "--alter", "--topic", topic, "--partitions", "4")
    call.until(lambda: call.tool("TopicCommand", "--describe", "--topic", topic), "PartitionCount: 4")
    has(call.tool("TopicCommand", "--list"), f"(?m)^{topic}$")
    call.tool("TopicCommand", "--delete", "--topic", topic)
    has(call.tool("TopicCommand", "--describe", "--topic", topic, status=1), "does not exist")


def _configs(call: Call) -> None:
    topic = ("--entity-type", "topics", "--entity-name", call.topic())
    broker = ("--entity-type", "brokers", "--entity-name", str(call.peer.brokers[0]))
    has(call.tool("ConfigCommand", "--alter", *topic, "--add-config", "retention.ms=70000000"), "Completed updating")
    described = call.until(lambda: call.tool("ConfigCommand", "--describe", *topic), "retention.ms=70000000")
    has(described, r"synonyms=\{DYNAMIC_TOPIC_CONFIG:retention.ms=70000000")
    has(call.tool("ConfigCommand", "--alter", *topic, "--delete-config", "retention.ms"), "Completed updating")
    has(call.tool("ConfigCommand", "--describe", *topic, "--all"), "retention.ms=604800000", "cleanup.policy=delete")
    has(call.tool("ConfigCommand", "--describe", *broker, "--all"), "log.dirs|log.retention|min.insync.replicas")


def _configs_of_brokers(call: Call) -> None:
    """Change configs of one broker and of all; refuse one that a broker reads only at its start."""
    entities = ("--entity-type", "brokers")
    one, every = (*entities, "--entity-name", str(call.peer.brokers[0])), (*entities, "--entity-default")
    _set_and_delete(call, one, "leader.replication.throttled.rate", "5000000", "DYNAMIC_BROKER_CONFIG")
    _set_and_delete(call, every, "unclean.leader.election.enable", "false", "DYNAMIC_DEFAULT_BROKER_CONFIG")
    for key, value in (("log.dirs", "/nowhere"), ("leader.replication.throttled.rate", "abc")):
        refused = call.tool("ConfigCommand", "--alter", *one, "--add-config", f"{key}={value}", status=1)
        has(refused, rf"InvalidRequestException: .*{key}")


def _set_and_delete(call: Call, entity: tuple[str, ...], key: str, value: str, source: str) -> None:
    def describe() -> str:
        return call.tool("ConfigCommand", "--describe", *entity)

    has(call.tool("ConfigCommand", "--alter", *entity, "--add-config", f"{key}={value}"), "Completed updating")
    call.until(describe, rf"{key}={value} sensitive=false synonyms=\{{{source}:{key}={value}")
    has(call.tool("ConfigCommand", "--alter", *entity, "--delete-config", key), "Completed updating")
    call.until(describe, rf"\A(?!(.|\n)*{key}=)")


def _configs_of_groups(call: Call) -> None:
    """A group has configs of its own before it exists."""
    name = call.new_name("tool-group")
    group = ("--entity-type", "groups", "--entity-name", name)
    session, reset = "consumer.session.timeout.ms=50000", "share.auto.offset.reset=by_duration:PT1H"
    has(call.tool("ConfigCommand", "--alter", *group, "--add-config", f"{session},{reset}"), "Completed updating")
    described = call.until(lambda: call.tool("ConfigCommand", "--describe", *group), session)
    has(described, reset, rf"synonyms=\{{DYNAMIC_GROUP_CONFIG:{session}, .*DEFAULT_CONFIG:group.{session[:-5]}45000")
    has(call.tool("ConfigCommand", "--describe", "--entity-type", "groups"), name)
    has(
        call.tool("ConfigCommand", "--alter", *group, "--add-config", "share.session.timeout.ms=1", status=1), "must be"
    )
    keys = "consumer.session.timeout.ms,share.auto.offset.reset"
    has(call.tool("ConfigCommand", "--alter", *group, "--delete-config", keys), "Completed updating")
    call.until(lambda: call.tool("ConfigCommand", "--describe", *group, "--all"), "consumer.session.timeout.ms=45000")


def _consumer_groups(call: Call) -> None:
    topic, group = call.topic(filled=True), call.new_name("tool-group")
    call.harness.commit(group, topic, 7)
    named = ("--group", group)
    call.until(lambda: call.tool(GROUP_COMMAND, "--list"), f"(?m)^{group}$")
    has(call.tool(GROUP_COMMAND, "--list", "--state"), f"{group} +Empty")
    line = rf"{group} +{topic} +0 +7 +{COUNT} +{COUNT - 7} "
    has(call.tool(GROUP_COMMAND, "--describe", *named), "has no active members", line)
    has(call.tool(GROUP_COMMAND, "--describe", *named, "--state"), f"{group} .*Empty +0")
    has(call.tool(GROUP_COMMAND, "--describe", *named, "--members", "--verbose"), "has no active members")
    reset = ("--reset-offsets", *named, "--topic", topic, "--to-earliest")
    has(call.tool(GROUP_COMMAND, *reset, "--dry-run"), f"{topic} +0 +0")
    expect("offset after the dry run", call.harness.committed(group, topic, 1), [7])
    has(call.tool(GROUP_COMMAND, *reset, "--execute"), f"{topic} +0 +0")
    expect("offset after the reset", call.harness.committed(group, topic, 1), [0])
    has(call.tool(GROUP_COMMAND, "--delete-offsets", *named, "--topic", topic), f"{topic} +0 +Successful")
    call.harness.commit(group, topic, 7)
    has(call.tool(GROUP_COMMAND, "--delete", *named), "was successful")


def _share_groups(call: Call) -> None:
    """A share group begins at the offsets that are set before its first member joins, and is deleted."""
    topic, group = call.topic(filled=True), call.new_name("tool-share")
    named = ("--group", group)
    reset = ("--reset-offsets", *named, "--topic", topic, "--to-earliest")
    has(call.tool(SHARE_COMMAND, *reset, "--dry-run"), f"{group} +{topic} +0 +0")
    has(call.tool(SHARE_COMMAND, "--describe", *named), f"GroupIdNotFoundException: .*{group}")
    has(call.tool(SHARE_COMMAND, *reset, "--execute"), f"{group} +{topic} +0 +0")
    has(call.tool(SHARE_COMMAND, "--describe", *named), f"{group} +{topic} +0 +0 +{COUNT}")
    to_end = ("--reset-offsets", *named, "--all-topics", "--to-latest", "--execute")
    has(call.tool(SHARE_COMMAND, *to_end), f"{group} +{topic} +0 +{COUNT}")
    has(call.tool(SHARE_COMMAND, "--describe", *named), f"{group} +{topic} +0 +{COUNT} +0")
    has(call.tool(SHARE_COMMAND, "--list", "--state"), f"{group} +Empty")
    has(call.tool(SHARE_COMMAND, "--describe", *named, "--members"), "has no active members")
    has(call.tool(SHARE_COMMAND, "--describe", *named, "--state"), f"{group} .*Empty +0")
    has(call.tool(SHARE_COMMAND, "--delete-offsets", *named, "--topic", topic), f"{topic} +Successful")
    has(call.tool(SHARE_COMMAND, "--delete-offsets", *named, "--topic", topic), f"{topic} +Error: .*offset")
    has(call.tool(SHARE_COMMAND, "--delete", *named), "was successful")
    has(call.tool(SHARE_COMMAND, "--delete", *named), "GroupIdNotFoundException")


def _reassignment(call: Call) -> None:
    command, topic = REASSIGN_COMMAND, call.topic(filled=True)
    brokers = call.peer.brokers
    topics = call.file("topics.json", {"version": 1, "topics": [{"topic": topic}]})
    wanted = ",".join(map(str, brokers))
    generated = call.tool(command, "--generate", "--topics-to-move-json-file", topics, "--broker-list", wanted)
    has(generated, "Proposed partition reassignment configuration", f'"topic":"{topic}"')
    move = {"topic": topic, "partition": 0, "replicas": [brokers[1], brokers[2]]}
    plan = ("--reassignment-json-file", call.file("plan.json", {"version": 1, "partitions": [move]}))
    has(call.tool(command, "--execute", *plan, "--throttle", "1000000"), "Successfully started", "throttle")
    done = call.until(lambda: call.tool(command, "--verify", *plan), f"{topic}-0 is completed")
    has(done, "Clearing broker-level throttles", "Clearing topic-level throttles")
    has(call.tool(command, "--list"), "No partition reassignments found|Current partition reassignments")
    has(call.tool(command, "--cancel", *plan), "None of the specified partition reassignments are active")


def _reassignment_cancelled(call: Call) -> None:
    """Cancel a reassignment that a throttle delays."""
    leader, follower, newcomer = call.peer.brokers
    topic = call.large_topic_on(leader, follower)
    move = {"topic": topic, "partition": 0, "replicas": [leader, newcomer]}
    plan = ("--reassignment-json-file", call.file("plan.json", {"version": 1, "partitions": [move]}))
    started = call.tool(REASSIGN_COMMAND, "--execute", *plan, "--throttle", str(SLOW_RATE))
    has(started, f"throttle limit was set to {SLOW_RATE} B/s", f"Successfully started .* {topic}-0")
    listed = rf"{topic}-0: replicas: {leader},{newcomer},{follower}\. adding: {newcomer}\. removing: {follower}\."
    has(call.tool(REASSIGN_COMMAND, "--list"), listed)
    has(call.tool(REASSIGN_COMMAND, "--verify", *plan), f"{topic}-0 is still in progress")
    has(call.tool(REASSIGN_COMMAND, "--execute", *plan, status=1), "there is an existing partition assignment")
    has(call.tool(REASSIGN_COMMAND, "--cancel", *plan), f"Successfully cancelled .* {topic}-0", "Clearing topic-level")
    has(call.tool(REASSIGN_COMMAND, "--list"), "No partition reassignments found")
    remained = f"replica set is {leader},{follower} rather than {leader},{newcomer}"
    has(call.tool(REASSIGN_COMMAND, "--verify", *plan), remained)
    call.check_large_values(topic)


def _election(call: Call) -> None:
    """Move a partition's leadership away by a new order of replicas, then elect the preferred leader."""
    topic, brokers = call.topic(), call.peer.brokers
    command = REASSIGN_COMMAND
    described = call.tool("TopicCommand", "--describe", "--topic", topic)
    found = re.search(r"Leader: ([0-9]+)", described)
    assert found, described
    others = [broker for broker in brokers if broker != int(found[1])]
    move = {"topic": topic, "partition": 0, "replicas": [*others, int(found[1])]}
    plan = ("--reassignment-json-file", call.file("plan.json", {"version": 1, "partitions": [move]}))
    call.tool(command, "--execute", *plan)
    call.until(lambda: call.tool(command, "--verify", *plan, "--preserve-throttles"), f"{topic}-0 is completed")
    one = ("--election-type", "preferred", "--topic", topic, "--partition", "0")
    has(call.tool("LeaderElectionCommand", *one), f"Successfully completed leader election.*{topic}-0")
    call.until(lambda: call.tool("TopicCommand", "--describe", "--topic", topic), f"Leader: {others[0]}\\b")
    has(call.tool("LeaderElectionCommand", *one), "Valid replica already elected")


def _delete_records(call: Call) -> None:
    topic = call.topic(filled=True)
    wanted = {"version": 1, "partitions": [{"topic": topic, "partition": 0, "offset": 3}]}
    output = call.tool("DeleteRecordsCommand", "--offset-json-file", call.file("offsets.json", wanted))
    has(output, rf"partition: {topic}-0\s+low_watermark: 3")
    expect("first offset", call.harness.read(topic, 1)[0]["offset"], 3)


def _get_offsets(call: Call) -> None:
    topic = call.topic(filled=True)
    for when, offset in {"earliest": 0, "latest": COUNT, "max-timestamp": COUNT - 1}.items():
        has(call.tool("GetOffsetShell", "--topic", topic, "--time", when), f"(?m)^{topic}:0:{offset}$")


def _features(call: Call) -> None:
    has(call.tool("FeatureCommand", "describe"), r"Feature: metadata.version\s+SupportedMinVersion: .*Epoch: [0-9]+")


def _features_changed(call: Call) -> None:
    """Try changes without making them, some of which are refused; then lower a level, and restore it."""
    before = _levels(call)
    upgrade, downgrade = ("upgrade", "--dry-run", "--feature"), ("downgrade", "--dry-run", "--feature")
    has(call.tool("FeatureCommand", *upgrade, "transaction.version=2"), r"transaction\.version can be upgraded to 2")
    has(
        call.tool("FeatureCommand", *downgrade, "transaction.version=0"), r"transaction\.version can be downgraded to 0"
    )
    refused = r"1 out of 1 operation\(s\) failed"
    for arguments in ((*upgrade, "transaction.version=99"), (*upgrade, "nonsense.version=1")):
        has(call.tool("FeatureCommand", *arguments, status=1), "Can not upgrade", refused)
    expect("levels after the dry runs", _levels(call), before)
    call.tool("FeatureCommand", "downgrade", "--feature", "transaction.version=0")
    call.until(lambda: str("transaction.version" in _levels(call)), "False")
    call.tool("FeatureCommand", "upgrade", "--feature", "transaction.version=2")
    call.until(lambda: str(_levels(call) == before), "True")


def _levels(call: Call) -> dict[str, str]:
    """Return the levels in force."""
    found = re.findall(r"Feature: (\S+).*FinalizedVersionLevel: (.*?)\s+Epoch", call.tool("FeatureCommand", "describe"))
    return {name: level for name, level in found if level != "0"}


def _cluster(call: Call) -> None:
    has(call.tool("ClusterTool", "cluster-id"), r"Cluster ID: \S{22}\s*$")
    endpoints = call.tool("ClusterTool", "list-endpoints")
    has(endpoints, *(rf"(?m)^{broker} +127.0.0.1 +[0-9]+ .*unfenced +broker" for broker in call.peer.brokers))


def _api_versions(call: Call) -> None:
    output = call.tool("BrokerApiVersionsCommand")
    has(output, *(rf"\(id: {broker} rack: null" for broker in call.peer.brokers), r"Fetch\(1\): 4 to 1[0-9] \[usable")


def _perf(call: Call) -> None:
    topic = call.topic()
    sizes = ("--num-records", "2000", "--record-size", "100", "--throughput", "-1")
    has(call.tool("ProducerPerformance", "--topic", topic, *sizes), "2000 records sent, .* avg latency")
    output = call.tool("ConsumerPerformance", "--topic", topic, "--num-records", "2000")
    fields = output.strip().splitlines()[-1].split(", ")
    expect("records consumed", int(float(fields[4])), 2000)


def _verifiable(call: Call) -> None:
    topic = call.topic()
    produced = call.tool("VerifiableProducer", "--topic", topic, "--max-messages", "5")
    has(produced, '"sent":5,"acked":5')
    names = ("--group-id", call.new_name("tool-group"), "--reset-policy", "earliest")
    consumed = call.tool("VerifiableConsumer", "--topic", topic, "--max-messages", "5", *names)
    has(consumed, '"partitions_assigned"', '"minOffset":0,"maxOffset":4', '"offset":5}.*"success":true')


def _latency(call: Call) -> None:
    options = ("--num-records", "20", "--producer-acks", "all", "--record-size", "100")
    has(call.tool("EndToEndLatency", "--topic", call.topic(), *options), "Avg latency: [0-9.]+ ms", "99th = [0-9]+")


def _console(call: Call) -> None:
    call.check_records(call.topic(filled=True))


def _console_share_consumer(call: Call) -> None:
    """Read as a member of a share group that begins with the oldest records; the next member gets later ones only."""
    topic, group = call.topic(filled=True), call.new_name("tool-share")
    entity = ("--entity-type", "groups", "--entity-name", group)
    call.tool("ConfigCommand", "--alter", *entity, "--add-config", "share.auto.offset.reset=earliest")
    values = [str(record(number)["value"]) for number in range(COUNT)]
    expect("values", _shared(call, topic, group, COUNT), values)
    call.harness.produce_values(topic, 1, ["later"])
    expect("values", _shared(call, topic, group, 1), ["later"])


def _shared(call: Call, topic: str, group: str, count: int) -> list[str]:
    limits = ("--max-messages", str(count), "--timeout-ms", "30000")
    output = call.tool("consumer.ConsoleShareConsumer", "--topic", topic, "--group", group, *limits)
    has(output, f"Processed a total of {count} messages")
    return [line for line in output.splitlines() if line and not line.startswith("Processed a total")]


def _console_producer(call: Call) -> None:
    """Write records with keys, one of them without a value."""
    topic = call.topic()
    options = ("parse.key=true", "key.separator=:", "null.marker=NULL")
    properties = [word for option in options for word in ("--reader-property", option)]
    lines = "".join(f"key-{number}:value {number}\n" for number in range(COUNT)) + "key-0:NULL\n"
    call.tool("ConsoleProducer", "--topic", topic, *properties, lines=lines)
    found = [(each["offset"], each["key"], each["value"]) for each in call.harness.read(topic, COUNT + 1)]
    wanted = [(number, f"key-{number}", f"value {number}") for number in range(COUNT)]
    expect("records", found, [*wanted, (COUNT, "key-0", None)])


def _recompressed(call: Call) -> None:
    """Write without compression to a topic with compression.type=lz4, and let the Java consumer read the batches."""
    topic = call.new_name()
    create = ("--create", "--topic", topic, "--partitions", "1", "--replication-factor", "3")
    call.tool("TopicCommand", *create, "--config", "compression.type=lz4")
    call.harness.produce(topic, range(COUNT))
    codecs = {header.codec.name.lower() for header in asyncio.run(call.harness.headers(topic))}
    expect("codecs", codecs, {"lz4"})
    call.check_records(topic)


def _groups(call: Call) -> None:
    topic, group = call.topic(filled=True), call.new_name("tool-group")
    call.harness.commit(group, topic, 7)
    has(call.tool("GroupsCommand", "--list"), f"{group} +Classic")


TOOLS = (
    Tool("kafka-topics", _topics),
    Tool("kafka-configs", _configs),
    Tool("kafka-configs of brokers", _configs_of_brokers),
    Tool("kafka-configs of groups", _configs_of_groups),
    Tool("kafka-consumer-groups", _consumer_groups),
    Tool("kafka-share-groups", _share_groups, (77, 90, 91, 92)),
    Tool("kafka-groups", _groups),
    Tool("kafka-reassign-partitions", _reassignment),
    Tool("kafka-reassign-partitions, cancelled", _reassignment_cancelled),
    Tool("kafka-reassign-partitions to another data directory", directories.move),
    Tool("kafka-reassign-partitions to a data directory of another broker", directories.place),
    Tool("kafka-reassign-partitions to a data directory, refused", directories.refuse),
    Tool("kafka-reassign-partitions to a data directory, cancelled", directories.cancel),
    Tool("kafka-metadata-quorum", voters.describe),
    Tool("kafka-metadata-quorum add-controller, remove-controller", voters.add_and_remove, (80, 81)),
    Tool("kafka-metadata-quorum remove-controller of the leader", voters.remove_leader, (80, 81)),
    Tool("kafka-leader-election", _election),
    Tool("kafka-log-dirs", directories.show),
    Tool("kafka-delete-records", _delete_records),
    Tool("kafka-get-offsets", _get_offsets),
    Tool("kafka-features", _features),
    Tool("kafka-features upgrade, downgrade", _features_changed, (57,)),
    Tool("kafka-cluster", _cluster),
    Tool("kafka-cluster unregister", brokers.unregister, (64,)),
    Tool("kafka-cluster unregister, refused", brokers.refuse, (64,)),
    Tool("kafka-broker-api-versions", _api_versions),
    Tool("kafka-console-producer", _console_producer),
    Tool("kafka-console-consumer", _console),
    Tool("kafka-console-consumer of recompressed lz4 batches", _recompressed),
    Tool("kafka-console-share-consumer", _console_share_consumer, (76, 78, 79)),
    Tool("kafka-producer-perf-test, kafka-consumer-perf-test", _perf),
    Tool("kafka-verifiable-producer, kafka-verifiable-consumer", _verifiable),
    Tool("kafka-e2e-latency", _latency),
    Tool("kafka-transactions", transactions.terminate, (61, 65, 66)),
    Tool("kafka-transactions abort", transactions.abort, (27, 61)),
    Tool("kafka-transactions find-hanging, abort", transactions.end_hanging, (27, 61)),
)
