import java.io.IOException;
import java.io.InputStream;
import java.time.Duration;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import java.util.Random;
import java.util.Set;
import java.util.TreeSet;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.Future;
import java.util.concurrent.TimeUnit;
import org.apache.kafka.clients.consumer.CommitFailedException;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.ConsumerRecords;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.consumer.OffsetAndMetadata;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.clients.producer.RecordMetadata;
import org.apache.kafka.common.KafkaException;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.errors.RebalanceInProgressException;
import org.apache.kafka.common.errors.TimeoutException;
import org.apache.kafka.common.header.Header;
import org.apache.kafka.common.header.internals.RecordHeader;
import org.apache.kafka.common.serialization.StringDeserializer;
import org.apache.kafka.common.serialization.StringSerializer;
import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import com.fasterxml.jackson.databind.node.ObjectNode;

/** Producers and consumers of Java, with what releases since 2.8 have in common. */
public final class JavaProgram {
    private static final ObjectMapper JSON = new ObjectMapper();
    static final long TIMEOUT_S = 30;
    static final Duration POLL = Duration.ofMillis(100);

    final JsonNode action;

    JavaProgram(JsonNode action) {
        this.action = action;
    }

    public static void main(String[] arguments) throws Exception {
        start(arguments[0]).run();
    }

    /** Reports the release of the clients; returns the program for an action in JSON. */
    static JavaProgram start(String action) throws IOException {
        Properties release = new Properties();
        try (InputStream stream = KafkaProducer.class.getResourceAsStream("/kafka/kafka-version.properties")) {
            release.load(stream);
        }
        report("version", Map.of("value", release.getProperty("version")));
        return new JavaProgram(JSON.readTree(action));
    }

    void run() throws Exception {
        switch (text("action")) {
            case "produce" -> produce();
            case "consume" -> consume();
            case "member" -> member();
            case "transact" -> transact();
            case "transactions" -> transactions();
            default -> throw new IllegalArgumentException(text("action"));
        }
    }

    static synchronized void report(String event, Map<String, ?> fields) {
        ObjectNode node = JSON.createObjectNode().put("event", event);
        fields.forEach((name, value) -> node.set(name, JSON.valueToTree(value)));
        System.out.println(node);
    }

    static <T> T wait(Future<T> future) throws Exception {
        try {
            return future.get(TIMEOUT_S, TimeUnit.SECONDS);
        } catch (ExecutionException error) {
            throw error.getCause() instanceof Exception cause ? cause : error;
        }
    }

    String text(String name) {
        return action.get(name).asText();
    }

    Properties settings(String... pairs) {
        Properties settings = new Properties();
        settings.put("bootstrap.servers", text("bootstrap"));
        for (int i = 0; i < pairs.length; i += 2) {
            settings.put(pairs[i], pairs[i + 1]);
        }
        return settings;
    }

    private KafkaProducer<String, String> producer(String... pairs) {
        return new KafkaProducer<>(settings(pairs), new StringSerializer(), new StringSerializer());
    }

    private KafkaConsumer<String, String> consumer(String... pairs) {
        return new KafkaConsumer<>(settings(pairs), new StringDeserializer(), new StringDeserializer());
    }

    private void produce() throws Exception {
        List<Future<RecordMetadata>> sent = new ArrayList<>();
        try (KafkaProducer<String, String> producer = producer(
                "compression.type", text("compression"), "enable.idempotence", text("idempotent"), "linger.ms", "50")) {
            for (int number = 0; number < action.get("count").asInt(); number++) {
                List<Header> headers = List.of(new RecordHeader("number", String.valueOf(number).getBytes()));
                String value = ("value-" + number + " ").repeat(20);
                long timestamp = action.get("base_ms").asLong() + number;
                sent.add(producer.send(
                        new ProducerRecord<>(text("topic"), 0, timestamp, "key-" + number % 7, value, headers)));
            }
        }
        List<Long> offsets = new ArrayList<>();
        for (Future<RecordMetadata> one : sent) {
            offsets.add(wait(one).offset());
        }
        report("produced", Map.of("offsets", offsets, "fields", List.of("key", "value", "timestamp", "headers")));
    }

    private void consume() {
        TopicPartition where = new TopicPartition(text("topic"), 0);
        try (KafkaConsumer<String, String> consumer = consumer("enable.auto.commit", "false")) {
            consumer.assign(List.of(where));
            switch (text("from")) {
                case "beginning" -> consumer.seekToBeginning(List.of(where));
                case "end" -> consumer.seekToEnd(List.of(where));
                default -> {
                    long timestamp = action.get("timestamp").asLong();
                    consumer.seek(where, consumer.offsetsForTimes(Map.of(where, timestamp)).get(where).offset());
                }
            }
            consumer.position(where);
            report("positioned", Map.of());
            int left = action.get("count").asInt();
            long deadline = System.nanoTime() + TimeUnit.SECONDS.toNanos(TIMEOUT_S);
            while (left > 0 && System.nanoTime() < deadline) {
                for (ConsumerRecord<String, String> record : consumer.poll(POLL)) {
                    if (left-- > 0) {
                        Header header = record.headers().lastHeader("number");
                        report("record", Map.of(
                                "offset", record.offset(), "timestamp", record.timestamp(), "key", record.key(),
                                "value", record.value(), "headers", Map.of("number", new String(header.value()))));
                    }
                }
            }
        }
    }

    /** Returns a thread that ends with the standard input. */
    static Thread input() {
        Thread input = new Thread(() -> {
            try {
                System.in.readAllBytes();
            } catch (IOException error) {
                error.printStackTrace();
            }
        });
        input.setDaemon(true);
        input.start();
        return input;
    }

    private void member() {
        String strategy = text("strategy");
        Properties settings = settings(
                "group.id", text("group"), "auto.offset.reset", "earliest", "enable.auto.commit", "false");
        if (strategy.equals("consumer")) {
            settings.put("group.protocol", "consumer");
        } else {
            settings.put("session.timeout.ms", "45000");
            settings.put("heartbeat.interval.ms", "500");
            String assignor = strategy.equals("cooperative") ? "CooperativeSticky" : "Range";
            String name = "org.apache.kafka.clients.consumer." + assignor + "Assignor";
            settings.put("partition.assignment.strategy", name);
        }
        if (!action.get("instance").isNull()) {
            settings.put("group.instance.id", text("instance"));
        }
        Thread input = input();
        Set<Integer> known = Set.of();
        try (KafkaConsumer<String, String> consumer =
                new KafkaConsumer<>(settings, new StringDeserializer(), new StringDeserializer())) {
            consumer.subscribe(List.of(text("topic")));
            while (input.isAlive()) {
                ConsumerRecords<String, String> records = consumer.poll(POLL);
                for (ConsumerRecord<String, String> record : records) {
                    report("record", Map.of(
                            "partition", record.partition(), "offset", record.offset(), "value", record.value()));
                }
                if (!records.isEmpty()) {
                    try {
                        consumer.commitSync();
                    } catch (CommitFailedException | RebalanceInProgressException error) {
                        report("note", Map.of("text", "commit: " + error));
                    }
                }
                Set<Integer> now = new TreeSet<>();
                consumer.assignment().forEach(each -> now.add(each.partition()));
                if (!now.equals(known)) {
                    known = now;
                    report("assigned", Map.of("partitions", now));
                }
            }
        }
        report("closed", Map.of());
    }

    private void transact() {
        int count = action.get("count").asInt();
        try (KafkaProducer<String, String> producer = producer("transactional.id", text("id"))) {
            producer.initTransactions();
            for (String word : List.of("committed", "aborted", "last")) {
                producer.beginTransaction();
                for (int number = 0; number < count; number++) {
                    producer.send(new ProducerRecord<>(text("topic"), 0, null, word + "-" + number));
                }
                if (word.equals("aborted")) {
                    producer.flush();  // so that the log has records to abort
                    producer.abortTransaction();
                    continue;
                }
                if (word.equals("last")) {
                    try (KafkaConsumer<String, String> consumer = consumer("group.id", text("group"))) {
                        TopicPartition where = new TopicPartition(text("topic"), 0);
                        producer.sendOffsetsToTransaction(
                                Map.of(where, new OffsetAndMetadata(count)), consumer.groupMetadata());
                    }
                }
                producer.commitTransaction();
            }
        }
        report("done", Map.of());
    }

    /** Begins transactions until its input ends; `tests/transactions/workers.py` has the same in Python. */
    private void transactions() throws Exception {
        Thread input = input();
        Random choices = new Random(action.get("seed").asLong());
        int number = action.get("first").asInt();
        while (input.isAlive()) {
            try (KafkaProducer<String, String> producer = producer(
                    "transactional.id", text("id"), "transaction.timeout.ms", "20000", "max.block.ms", "30000")) {
                repeated(producer::initTransactions);
                while (input.isAlive()) {
                    number++;
                    int size = 1 + choices.nextInt(12);
                    boolean aborts = choices.nextInt(5) == 0;
                    report("begun", Map.of("number", number, "size", size, "aborts", aborts));
                    String fate = transaction(producer, number, size, aborts, choices);
                    report("ended", Map.of("number", number, "fate", fate));
                    Thread.sleep(choices.nextInt(100));
                }
            } catch (KafkaException error) {
                report("restarted", Map.of("why", error.toString()));
            }
        }
    }

    private String transaction(
            KafkaProducer<String, String> producer, int number, int size, boolean aborts, Random choices) {
        try {
            producer.beginTransaction();
            for (int index = 0; index < size; index++) {
                String value = text("id") + ":" + number + ":" + size + ":" + index;
                int partition = choices.nextInt(action.get("partitions").asInt());
                producer.send(new ProducerRecord<>(text("topic"), partition, null, value));
            }
            if (!aborts) {
                repeated(producer::commitTransaction);
                return "committed";
            }
            producer.flush();  // so that the logs have records to abort
        } catch (KafkaException error) {
            report("failed", Map.of("why", error.toString()));
        }
        repeated(producer::abortTransaction);  // fails after a fatal error
        return "aborted";
    }

    private static void repeated(Runnable call) {
        long deadline = System.nanoTime() + TimeUnit.SECONDS.toNanos(8 * TIMEOUT_S);
        while (true) {
            try {
                call.run();
                return;
            } catch (TimeoutException error) {
                if (System.nanoTime() > deadline) {
                    throw new IllegalStateException("no outcome within " + 8 * TIMEOUT_S + " s", error);
                }
            }
        }
    }
}
