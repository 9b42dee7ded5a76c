// The program of kafkajs; see tests/clients.
'use strict';

const {
  CompressionCodecs, CompressionTypes, ConfigResourceTypes, Kafka, logLevel,
} = require('kafkajs');
const Snappy = require('kafkajs-snappy');

CompressionCodecs[CompressionTypes.Snappy] = Snappy;

const TIMEOUT_MS = 30000;
const SETTLE_MS = 5000;
const action = JSON.parse(process.argv[2]);
const kafka = new Kafka({
  clientId: 'program', brokers: action.bootstrap.split(','), logLevel: logLevel.ERROR, connectionTimeout: 5000,
});

function report(event, fields) {
  console.log(JSON.stringify({ event, ...fields }));
}

function saw(aspect, value) {
  report('saw', { aspect, value });
}

function unsupported(reason) {
  report('unsupported', { reason });
  process.exit(0);
}

const sleep = (ms) => new Promise((resolve) => setTimeout(resolve, ms));

// Returns what `look` returns: `wanted` as soon as it does.  Brokers learn of a change one after another.
async function settled(look, wanted) {
  const end = Date.now() + SETTLE_MS;
  for (;;) {
    let found;
    try {
      found = await look();
    } catch (error) {
      if (Date.now() > end) throw error;
    }
    if (found === wanted || Date.now() > end) return found;
    await sleep(100);
  }
}

function endOfInput() {
  return new Promise((resolve) => {
    process.stdin.on('end', resolve);
    process.stdin.resume();
  });
}

async function produce() {
  const compression = {
    none: CompressionTypes.None, gzip: CompressionTypes.GZIP, snappy: CompressionTypes.Snappy,
  }[action.compression];
  if (compression === undefined) {
    unsupported(`kafkajs has no ${action.compression} without a native addon`);
  }
  const producer = kafka.producer({ idempotent: action.idempotent, maxInFlightRequests: 1 });
  await producer.connect();
  const messages = [];
  for (let number = 0; number < action.count; number += 1) {
    messages.push({
      partition: 0,
      key: `key-${number % 7}`,
      value: `value-${number} `.repeat(20),
      timestamp: String(action.base_ms + number),
      headers: { number: String(number) },
    });
  }
  const [answer] = await producer.send({ topic: action.topic, acks: -1, compression, messages });
  const first = Number(answer.baseOffset);
  await producer.disconnect();
  const offsets = messages.map((_, index) => first + index);
  report('produced', { offsets, fields: ['key', 'value', 'timestamp', 'headers'] });
}

// kafkajs reads only as a member of a group, and seeks there.
async function consume() {
  const admin = kafka.admin();
  await admin.connect();
  const ends = await admin.fetchTopicOffsets(action.topic);
  let start = ends[0].low;
  if (action.from === 'end') start = ends[0].high;
  if (action.from === 'timestamp') {
    start = (await admin.fetchTopicOffsetsByTimestamp(action.topic, action.timestamp))[0].offset;
  }
  await admin.disconnect();
  const consumer = kafka.consumer({ groupId: `${action.topic}-${action.from}` });
  await consumer.connect();
  await consumer.subscribe({ topic: action.topic });
  let left = action.count;
  const finished = new Promise((resolve, reject) => {
    setTimeout(() => reject(new Error('not enough records in time')), TIMEOUT_MS).unref();
    consumer.run({
      autoCommit: false,
      eachMessage: async ({ message }) => {
        if (left <= 0 || BigInt(message.offset) < BigInt(start)) return;
        left -= 1;
        const headers = Object.fromEntries(Object.entries(message.headers).map(([name, value]) => [name, String(value)]));
        report('record', {
          offset: Number(message.offset), timestamp: Number(message.timestamp), key: String(message.key),
          value: String(message.value), headers,
        });
        if (left === 0) resolve();
      },
    }).catch(reject);
    consumer.seek({ topic: action.topic, partition: 0, offset: start });
  });
  report('positioned', {});
  await finished;
  await consumer.disconnect();
}

async function member() {
  if (action.strategy === 'consumer') unsupported('kafkajs has only the classic protocol of groups');
  if (action.strategy === 'cooperative') unsupported('kafkajs has no cooperative assignor');
  if (action.strategy === 'static') unsupported('kafkajs has no static members');
  const consumer = kafka.consumer({
    groupId: action.group, sessionTimeout: 45000, heartbeatInterval: 500, rebalanceTimeout: 10000,
  });
  consumer.on(consumer.events.GROUP_JOIN, ({ payload }) => {
    const partitions = payload.memberAssignment[action.topic] || [];
    report('assigned', { partitions: [...partitions].sort() });
  });
  await consumer.connect();
  await consumer.subscribe({ topic: action.topic, fromBeginning: true });
  await consumer.run({
    autoCommitThreshold: 1,
    eachMessage: async ({ partition, message }) => {
      report('record', { partition, offset: Number(message.offset), value: String(message.value) });
    },
  });
  await endOfInput();
  await consumer.disconnect();
  report('closed', {});
}

async function adminOfTopic(admin) {
  const { topic } = action;
  const configEntries = [{ name: 'retention.ms', value: '60000000' }];
  const topics = [{ topic, numPartitions: 3, replicationFactor: 1, configEntries }];
  await admin.createTopics({ topics });
  // kafkajs reports a topic that exists with `false`
  if (!(await admin.createTopics({ topics }))) saw('duplicate', 'TOPIC_ALREADY_EXISTS');
  const partitions = async () => (await admin.fetchTopicMetadata({ topics: [topic] })).topics[0].partitions.length;
  const resource = { type: ConfigResourceTypes.TOPIC, name: topic };
  const retention = async () => {
    const { resources } = await admin.describeConfigs({ resources: [resource] });
    return resources[0].configEntries.find((entry) => entry.configName === 'retention.ms').configValue;
  };
  saw('partitions', await settled(partitions, 3));
  saw('config', await settled(retention, '60000000'));
  const altered = [{ name: 'retention.ms', value: '70000000' }];
  await admin.alterConfigs({ resources: [{ ...resource, configEntries: altered }] });
  saw('altered config', await settled(retention, '70000000'));
  await admin.createPartitions({ topicPartitions: [{ topic, count: 5 }] });
  saw('more partitions', await settled(partitions, 5));
}

async function administer() {
  const { data, group } = action;
  const admin = kafka.admin();
  await admin.connect();
  saw('brokers', (await admin.describeCluster()).brokers.length);
  await adminOfTopic(admin);
  const [ends] = await admin.fetchTopicOffsets(data);
  saw('offsets', [Number(ends.low), Number(ends.high)]);
  await admin.deleteTopicRecords({ topic: data, partitions: [{ partition: 0, offset: '4' }] });
  saw('deleted records', Number((await admin.fetchTopicOffsets(data))[0].low));
  const listed = async () => (await admin.listGroups()).groups.some((each) => each.groupId === group);
  const committed = async () => {
    const [found] = await admin.fetchOffsets({ groupId: group, topics: [data] });
    return Number(found.partitions[0].offset);
  };
  saw('group listed', await listed());
  saw('group state', (await admin.describeGroups([group])).groups[0].state);
  saw('group offset', await committed());
  await admin.setOffsets({ groupId: group, topic: data, partitions: [{ partition: 0, offset: '5' }] });
  saw('altered group offset', await committed());
  await admin.deleteGroups([group]);
  saw('group deleted', !(await listed()));
  await admin.deleteTopics({ topics: [action.topic] });
  saw('topic deleted', true);
  await admin.disconnect();
}

async function transact() {
  const producer = kafka.producer({ transactionalId: action.id, idempotent: true, maxInFlightRequests: 1 });
  await producer.connect();
  for (const word of ['committed', 'aborted', 'last']) {
    const transaction = await producer.transaction();
    const messages = [];
    for (let number = 0; number < action.count; number += 1) messages.push({ partition: 0, value: `${word}-${number}` });
    await transaction.send({ topic: action.topic, messages });
    if (word === 'aborted') {
      await transaction.abort();
      continue;
    }
    if (word === 'last') {
      const partitions = [{ partition: 0, offset: String(action.count) }];
      await transaction.sendOffsets({ consumerGroupId: action.group, topics: [{ topic: action.topic, partitions }] });
    }
    await transaction.commit();
  }
  await producer.disconnect();
  report('done', {});
}

const actions = { produce, consume, member, admin: administer, transact };
report('version', { value: require('kafkajs/package.json').version });
actions[action.action]().then(() => process.exit(0), (error) => {
  console.error(error);
  process.exit(1);
});
