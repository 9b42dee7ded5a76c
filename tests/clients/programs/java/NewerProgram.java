import java.time.Duration;
import java.util.Collection;
import java.util.List;
import java.util.Map;
import java.util.Objects;
import java.util.Properties;
import java.util.concurrent.Callable;
import java.util.concurrent.Future;
import java.util.concurrent.TimeUnit;
import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.clients.admin.AlterConfigOp;
import org.apache.kafka.clients.admin.ConfigEntry;
import org.apache.kafka.clients.admin.NewPartitions;
import org.apache.kafka.clients.admin.NewTopic;
import org.apache.kafka.clients.admin.OffsetSpec;
import org.apache.kafka.clients.admin.RecordsToDelete;
import org.apache.kafka.clients.consumer.AcknowledgeType;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.ConsumerRecords;
import org.apache.kafka.clients.consumer.KafkaShareConsumer;
import org.apache.kafka.clients.consumer.OffsetAndMetadata;
import org.apache.kafka.common.KafkaException;
import org.apache.kafka.common.TopicIdPartition;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.config.ConfigResource;
import org.apache.kafka.common.errors.TopicExistsException;
import org.apache.kafka.common.serialization.StringDeserializer;

/** The clients of Java that the newest release has: the administrator and the consumer of share groups. */
public final class NewerProgram {
    private static final long SETTLE_MS = 5_000;

    private final JavaProgram program;

    private NewerProgram(JavaProgram program) {
        this.program = program;
    }

    public static void main(String[] arguments) throws Exception {
        JavaProgram program = JavaProgram.start(arguments[0]);
        switch (program.text("action")) {
            case "admin" -> new NewerProgram(program).admin();
            case "share" -> new NewerProgram(program).share();
            default -> program.run();
        }
    }

    private String text(String name) {
        return program.text(name);
    }

    private static <T> T wait(Future<T> future) throws Exception {
        return JavaProgram.wait(future);
    }

    private static void saw(String aspect, Object value) {
        JavaProgram.report("saw", Map.of("aspect", aspect, "value", value));
    }

    /** Returns what {@code look} returns: {@code wanted} as soon as it does. */
    private static <T> T settled(Callable<T> look, T wanted) throws Exception {
        long deadline = System.nanoTime() + TimeUnit.MILLISECONDS.toNanos(SETTLE_MS);
        T found = look.call();
        while (!Objects.equals(found, wanted) && System.nanoTime() < deadline) {
            Thread.sleep(JavaProgram.POLL.toMillis());
            found = look.call();
        }
        return found;
    }

    /** Gives a share group a dead-letter topic, and lets it begin with the oldest records. */
    private void prepareLetters(String topic) throws Exception {
        ConfigResource group = new ConfigResource(ConfigResource.Type.GROUP, text("group"));
        Map<String, String> wanted = Map.of(
                "share.auto.offset.reset", "earliest",
                "errors.deadletterqueue.topic.name", topic,
                "errors.deadletterqueue.copy.record.enable", "true");
        List<AlterConfigOp> changes = wanted.entrySet().stream()
                .map(each -> new ConfigEntry(each.getKey(), each.getValue()))
                .map(each -> new AlterConfigOp(each, AlterConfigOp.OpType.SET))
                .toList();
        try (Admin admin = Admin.create(program.settings())) {
            NewTopic letters = new NewTopic(topic, java.util.Optional.of(1), java.util.Optional.empty())
                    .configs(Map.of("errors.deadletterqueue.group.enable", "true"));
            wait(admin.createTopics(List.of(letters)).all());
            wait(admin.incrementalAlterConfigs(Map.of(group, changes)).all());
        }
    }

    /** Releases each record whose value begins with "retry" at its first delivery, and rejects those with "bad". */
    private void share() throws Exception {
        boolean holds = text("mode").equals("hold");
        if (program.action.has("letters")) {
            prepareLetters(text("letters"));
        }
        Thread input = JavaProgram.input();
        Properties settings = program.settings("group.id", text("group"), "share.acknowledgement.mode", "explicit");
        try (KafkaShareConsumer<String, String> consumer =
                new KafkaShareConsumer<>(settings, new StringDeserializer(), new StringDeserializer())) {
            consumer.subscribe(List.of(text("topic")));
            while (input.isAlive()) {
                ConsumerRecords<String, String> records = consumer.poll(JavaProgram.POLL);
                for (ConsumerRecord<String, String> record : records) {
                    int deliveries = record.deliveryCount().get();
                    JavaProgram.report("record", Map.of(
                            "offset", record.offset(), "value", record.value(), "deliveries", deliveries));
                    if (!holds) {
                        boolean again = record.value().startsWith("retry") && deliveries == 1;
                        boolean bad = record.value().startsWith("bad");
                        consumer.acknowledge(record, again ? AcknowledgeType.RELEASE
                                : bad ? AcknowledgeType.REJECT : AcknowledgeType.ACCEPT);
                    }
                }
                if (holds && !records.isEmpty()) {
                    input.join();
                } else if (!records.isEmpty()) {
                    Map<TopicIdPartition, java.util.Optional<KafkaException>> outcome =
                            consumer.commitSync(Duration.ofSeconds(JavaProgram.TIMEOUT_S));
                    for (var each : outcome.entrySet()) {
                        JavaProgram.report("committed", Map.of(
                                "partition", each.getKey().partition(),
                                "error", each.getValue().map(Object::toString).orElse("")));
                    }
                }
            }
        }
        JavaProgram.report("closed", Map.of());
    }

    private void admin() throws Exception {
        String topic = text("topic");
        String group = text("group");
        TopicPartition data = new TopicPartition(text("data"), 0);
        ConfigResource resource = new ConfigResource(ConfigResource.Type.TOPIC, topic);
        try (Admin admin = Admin.create(program.settings())) {
            Callable<Integer> partitions = () ->
                    wait(admin.describeTopics(List.of(topic)).allTopicNames()).get(topic).partitions().size();
            Callable<String> retention = () ->
                    wait(admin.describeConfigs(List.of(resource)).all()).get(resource).get("retention.ms").value();
            Callable<Long> committed = () ->
                    wait(admin.listConsumerGroupOffsets(group).partitionsToOffsetAndMetadata()).get(data).offset();
            Callable<Boolean> listed = () ->
                    wait(admin.listGroups().all()).stream().anyMatch(each -> each.groupId().equals(group));
            saw("brokers", wait(admin.describeCluster().nodes()).size());
            NewTopic fresh = new NewTopic(topic, 3, (short) 1).configs(Map.of("retention.ms", "60000000"));
            wait(admin.createTopics(List.of(fresh)).all());
            try {
                wait(admin.createTopics(List.of(fresh)).all());
            } catch (TopicExistsException error) {
                saw("duplicate", "TOPIC_ALREADY_EXISTS");
            }
            saw("partitions", settled(partitions, 3));
            saw("config", settled(retention, "60000000"));
            Collection<AlterConfigOp> changes = List.of(
                    new AlterConfigOp(new ConfigEntry("retention.ms", "70000000"), AlterConfigOp.OpType.SET));
            wait(admin.incrementalAlterConfigs(Map.of(resource, changes)).all());
            saw("altered config", settled(retention, "70000000"));
            wait(admin.createPartitions(Map.of(topic, NewPartitions.increaseTo(5))).all());
            saw("more partitions", settled(partitions, 5));
            saw("offsets", List.of(
                    wait(admin.listOffsets(Map.of(data, OffsetSpec.earliest())).partitionResult(data)).offset(),
                    wait(admin.listOffsets(Map.of(data, OffsetSpec.latest())).partitionResult(data)).offset()));
            saw("deleted records", wait(
                    admin.deleteRecords(Map.of(data, RecordsToDelete.beforeOffset(4))).lowWatermarks().get(data))
                    .lowWatermark());
            saw("group listed", listed.call());
            saw("group state", wait(admin.describeConsumerGroups(List.of(group)).all()).get(group).groupState()
                    .toString());
            saw("group offset", committed.call());
            wait(admin.alterConsumerGroupOffsets(group, Map.of(data, new OffsetAndMetadata(5))).all());
            saw("altered group offset", committed.call());
            wait(admin.deleteConsumerGroups(List.of(group)).all());
            saw("group deleted", !listed.call());
            wait(admin.deleteTopics(List.of(topic)).all());
            saw("topic deleted", true);
        }
    }
}
