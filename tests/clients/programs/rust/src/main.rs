//! The program of the crate rdkafka; see tests/clients.

use std::collections::{BTreeSet, HashMap};
use std::io::Read;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::Arc;
use std::time::{Duration, Instant};

use rdkafka::admin::{AdminClient, AdminOptions, NewPartitions, NewTopic, ResourceSpecifier, TopicReplication};
use rdkafka::client::DefaultClientContext;
use rdkafka::config::{ClientConfig, RDKafkaLogLevel};
use rdkafka::consumer::{BaseConsumer, CommitMode, Consumer};
use rdkafka::error::KafkaResult;
use rdkafka::message::{Header, Headers, Message, OwnedHeaders};
use rdkafka::producer::{FutureProducer, FutureRecord, Producer};
use rdkafka::types::RDKafkaErrorCode;
use rdkafka::{Offset, TopicPartitionList};
use serde_json::{json, Value};

const TIMEOUT: Duration = Duration::from_secs(30);
const POLL: Duration = Duration::from_millis(100);
const SETTLE: Duration = Duration::from_secs(5);

type Failure = Box<dyn std::error::Error>;

struct Action(Value);

impl Action {
    fn text(&self, name: &str) -> &str {
        self.0[name].as_str().unwrap_or_default()
    }

    fn number(&self, name: &str) -> i64 {
        self.0[name].as_i64().unwrap_or_default()
    }

    fn config(&self) -> ClientConfig {
        let mut config = ClientConfig::new();
        config.set("bootstrap.servers", self.text("bootstrap"));
        config.set_log_level(RDKafkaLogLevel::Error);
        config
    }
}

fn report(event: Value) {
    println!("{event}");
}

fn saw(aspect: &str, value: Value) {
    report(json!({"event": "saw", "aspect": aspect, "value": value}));
}

#[tokio::main]
async fn main() -> Result<(), Failure> {
    let argument = std::env::args().nth(1).ok_or("an action is expected")?;
    let action = Action(serde_json::from_str(&argument)?);
    let library = rdkafka::util::get_rdkafka_version().1;
    report(json!({"event": "version", "value": format!("0.39.0 (librdkafka {library})")}));
    match action.text("action") {
        "produce" => produce(&action).await,
        "consume" => consume(&action),
        "member" => member(&action),
        "admin" => admin(&action).await,
        "transact" => transact(&action).await,
        other => Err(format!("unknown action {other}").into()),
    }
}

async fn produce(action: &Action) -> Result<(), Failure> {
    let idempotent = action.0["idempotent"].to_string();
    let producer: FutureProducer = action
        .config()
        .set("compression.type", action.text("compression"))
        .set("enable.idempotence", idempotent)
        .set("linger.ms", "50")
        .create()?;
    let mut sent = Vec::new();
    for number in 0..action.number("count") {
        let key = format!("key-{}", number % 7);
        let value = format!("value-{number} ").repeat(20);
        let text = number.to_string();
        let headers = OwnedHeaders::new().insert(Header { key: "number", value: Some(&text) });
        let record = FutureRecord::to(action.text("topic"))
            .partition(0)
            .key(&key)
            .payload(&value)
            .timestamp(action.number("base_ms") + number)
            .headers(headers);
        sent.push(producer.send_result(record).map_err(|(error, _)| error)?);
    }
    let mut offsets = Vec::new();
    for one in sent {
        offsets.push(one.await?.map_err(|(error, _)| error)?.offset);
    }
    report(json!({"event": "produced", "offsets": offsets, "fields": ["key", "value", "timestamp", "headers"]}));
    Ok(())
}

fn text(bytes: Option<&[u8]>) -> String {
    String::from_utf8_lossy(bytes.unwrap_or_default()).into_owned()
}

fn consume(action: &Action) -> Result<(), Failure> {
    let consumer: BaseConsumer =
        action.config().set("group.id", "unused").set("enable.auto.commit", "false").create()?;
    let topic = action.text("topic");
    let start = match action.text("from") {
        "beginning" => Offset::Beginning,
        "end" => Offset::Offset(consumer.fetch_watermarks(topic, 0, TIMEOUT)?.1),
        _ => {
            let mut asked = TopicPartitionList::new();
            asked.add_partition_offset(topic, 0, Offset::Offset(action.number("timestamp")))?;
            consumer.offsets_for_times(asked, TIMEOUT)?.elements()[0].offset()
        }
    };
    let mut wanted = TopicPartitionList::new();
    wanted.add_partition_offset(topic, 0, start)?;
    consumer.assign(&wanted)?;
    report(json!({"event": "positioned"}));
    let deadline = Instant::now() + TIMEOUT;
    let mut left = action.number("count");
    while left > 0 && Instant::now() < deadline {
        let Some(message) = consumer.poll(POLL) else { continue };
        let message = message?;
        let headers: HashMap<String, String> = message
            .headers()
            .map(|all| all.iter().map(|one| (one.key.to_owned(), text(one.value))).collect())
            .unwrap_or_default();
        report(json!({
            "event": "record", "offset": message.offset(), "timestamp": message.timestamp().to_millis(),
            "key": text(message.key()), "value": text(message.payload()), "headers": headers,
        }));
        left -= 1;
    }
    Ok(())
}

fn end_of_input() -> Arc<AtomicBool> {
    let ended = Arc::new(AtomicBool::new(false));
    let set = Arc::clone(&ended);
    std::thread::spawn(move || {
        let _ = std::io::stdin().read_to_end(&mut Vec::new());
        set.store(true, Ordering::SeqCst);
    });
    ended
}

fn member(action: &Action) -> Result<(), Failure> {
    let mut config = action.config();
    config
        .set("group.id", action.text("group"))
        .set("auto.offset.reset", "earliest")
        .set("enable.auto.commit", "false");
    let strategy = action.text("strategy");
    if strategy == "consumer" {
        config.set("group.protocol", "consumer");
    } else {
        let assignor = if strategy == "cooperative" { "cooperative-sticky" } else { "range" };
        config
            .set("session.timeout.ms", "45000")
            .set("heartbeat.interval.ms", "500")
            .set("partition.assignment.strategy", assignor);
    }
    if let Some(instance) = action.0["instance"].as_str() {
        config.set("group.instance.id", instance);
    }
    let consumer: BaseConsumer = config.create()?;
    consumer.subscribe(&[action.text("topic")])?;
    let ended = end_of_input();
    let mut known = BTreeSet::new();
    while !ended.load(Ordering::SeqCst) {
        if let Some(message) = consumer.poll(POLL) {
            let message = match message {
                Err(error) if error.rdkafka_error_code() == Some(RDKafkaErrorCode::UnknownTopicOrPartition) => continue,
                other => other?,  // not every broker has learnt of the topic
            };
            report(json!({
                "event": "record", "partition": message.partition(), "offset": message.offset(),
                "value": text(message.payload()),
            }));
            if let Err(error) = consumer.commit_message(&message, CommitMode::Sync) {
                report(json!({"event": "note", "text": format!("commit: {error}")}));
            }
        }
        let now: BTreeSet<i32> = consumer.assignment()?.elements().iter().map(|one| one.partition()).collect();
        if now != known {
            report(json!({"event": "assigned", "partitions": now}));
            known = now;
        }
    }
    drop(consumer);
    report(json!({"event": "closed"}));
    Ok(())
}

type Administrator = AdminClient<DefaultClientContext>;

/// Returns what `look` returns: `wanted` as soon as it does.  Brokers learn of a change one after another.
fn settled(mut look: impl FnMut() -> KafkaResult<usize>, wanted: usize) -> KafkaResult<usize> {
    let deadline = Instant::now() + SETTLE;
    loop {
        let found = look();
        if found == Ok(wanted) || Instant::now() > deadline {
            return found;
        }
        std::thread::sleep(POLL);
    }
}

async fn retention(admin: &Administrator, topic: &str, wanted: &str) -> Result<String, Failure> {
    let deadline = Instant::now() + SETTLE;
    loop {
        let resource = ResourceSpecifier::Topic(topic);
        let found = match admin.describe_configs([&resource], &AdminOptions::new()).await?.remove(0) {
            Ok(config) => config.get("retention.ms").and_then(|entry| entry.value.clone()).unwrap_or_default(),
            Err(error) => error.to_string(),
        };
        if found == wanted || Instant::now() > deadline {
            return Ok(found);
        }
        tokio::time::sleep(POLL).await;
    }
}

async fn admin(action: &Action) -> Result<(), Failure> {
    let admin: Administrator = action.config().create()?;
    let consumer: BaseConsumer = action.config().set("group.id", action.text("group")).create()?;
    let options = AdminOptions::new().operation_timeout(Some(TIMEOUT));
    let (topic, data, group) = (action.text("topic"), action.text("data"), action.text("group"));
    saw("brokers", json!(consumer.fetch_metadata(None, TIMEOUT)?.brokers().len()));
    let new = NewTopic::new(topic, 3, TopicReplication::Fixed(1)).set("retention.ms", "60000000");
    admin.create_topics([&new], &options).await?.remove(0).map_err(|(_, code)| code)?;
    if let Err((_, RDKafkaErrorCode::TopicAlreadyExists)) = admin.create_topics([&new], &options).await?.remove(0) {
        saw("duplicate", json!("TOPIC_ALREADY_EXISTS"));
    }
    let partitions =
        || consumer.fetch_metadata(Some(topic), TIMEOUT).map(|found| found.topics()[0].partitions().len());
    saw("partitions", json!(settled(partitions, 3)?));
    saw("config", json!(retention(&admin, topic, "60000000").await?));
    let more = NewPartitions::new(topic, 5);
    admin.create_partitions([&more], &options).await?.remove(0).map_err(|(_, code)| code)?;
    saw("more partitions", json!(settled(partitions, 5)?));
    let (low, high) = consumer.fetch_watermarks(data, 0, TIMEOUT)?;
    saw("offsets", json!([low, high]));
    let mut before = TopicPartitionList::new();
    before.add_partition_offset(data, 0, Offset::Offset(4))?;
    let deleted = admin.delete_records(&before, &options).await?;
    saw("deleted records", json!(deleted.elements()[0].offset().to_raw()));
    let listed = || consumer.fetch_group_list(Some(group), TIMEOUT).map(|found| found.groups().len());
    let found = consumer.fetch_group_list(Some(group), TIMEOUT)?;
    saw("group listed", json!(!found.groups().is_empty()));
    saw("group state", json!(found.groups().first().map(|one| one.state().to_owned())));
    let mut asked = TopicPartitionList::new();
    asked.add_partition(data, 0);
    saw("group offset", json!(consumer.committed_offsets(asked, TIMEOUT)?.elements()[0].offset().to_raw()));
    admin.delete_groups(&[group], &options).await?.remove(0).map_err(|(_, code)| code)?;
    let _ = settled(listed, 0);
    admin.delete_topics(&[topic], &options).await?.remove(0).map_err(|(_, code)| code)?;
    saw("topic deleted", json!(true));
    Ok(())
}

async fn transact(action: &Action) -> Result<(), Failure> {
    let producer: FutureProducer = action.config().set("transactional.id", action.text("id")).create()?;
    let (topic, count) = (action.text("topic"), action.number("count"));
    producer.init_transactions(TIMEOUT)?;
    for word in ["committed", "aborted", "last"] {
        producer.begin_transaction()?;
        let mut sent = Vec::new();
        for number in 0..count {
            let value = format!("{word}-{number}");
            let record = FutureRecord::<(), _>::to(topic).partition(0).payload(&value);
            sent.push(producer.send_result(record).map_err(|(error, _)| error)?);
        }
        for one in sent {
            one.await?.map_err(|(error, _)| error)?;
        }
        if word == "aborted" {
            producer.abort_transaction(TIMEOUT)?;
            continue;
        }
        if word == "last" {
            let consumer: BaseConsumer = action.config().set("group.id", action.text("group")).create()?;
            let mut position = TopicPartitionList::new();
            position.add_partition_offset(topic, 0, Offset::Offset(count))?;
            let metadata = consumer.group_metadata().ok_or("the consumer has no group")?;
            producer.send_offsets_to_transaction(&position, &metadata, TIMEOUT)?;
        }
        producer.commit_transaction(TIMEOUT)?;
    }
    report(json!({"event": "done"}));
    Ok(())
}
