// The program of sarama; see tests/clients.
package main

import (
	"errors"
	"fmt"
	"io"
	"log"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/IBM/sarama"

	"programs/common"
)

func main() {
	sarama.Logger = log.New(io.Discard, "", 0)
	common.Run("github.com/IBM/sarama", map[string]func(*common.Action) error{
		"produce": produce, "consume": consume, "member": member, "admin": admin, "transact": transact,
	})
}

func brokers(action *common.Action) []string {
	return strings.Split(action.Bootstrap, ",")
}

func config() *sarama.Config {
	config := sarama.NewConfig()
	config.Version = sarama.V4_0_0_0
	config.Producer.Return.Successes = true
	config.Producer.RequiredAcks = sarama.WaitForAll
	config.Producer.Partitioner = sarama.NewManualPartitioner
	return config
}

func produce(action *common.Action) error {
	config := config()
	config.Producer.Compression = map[string]sarama.CompressionCodec{
		"none": sarama.CompressionNone, "gzip": sarama.CompressionGZIP, "snappy": sarama.CompressionSnappy,
		"lz4": sarama.CompressionLZ4, "zstd": sarama.CompressionZSTD,
	}[action.Compression]
	if action.Idempotent {
		config.Producer.Idempotent = true
		config.Net.MaxOpenRequests = 1
	}
	producer, err := sarama.NewSyncProducer(brokers(action), config)
	if err != nil {
		return err
	}
	defer producer.Close()
	var messages []*sarama.ProducerMessage
	for number := range action.Count {
		one := common.RecordOf(number, action.BaseMs)
		messages = append(messages, &sarama.ProducerMessage{
			Topic: action.Topic, Key: sarama.StringEncoder(one.Key), Value: sarama.StringEncoder(one.Value),
			Timestamp: time.UnixMilli(one.Timestamp),
			Headers:   []sarama.RecordHeader{{Key: []byte("number"), Value: []byte(strconv.Itoa(number))}},
		})
	}
	if err := producer.SendMessages(messages); err != nil {
		return err
	}
	var offsets []int64
	for _, one := range messages {
		offsets = append(offsets, one.Offset)
	}
	common.Produced(offsets)
	return nil
}

func consume(action *common.Action) error {
	client, err := sarama.NewClient(brokers(action), config())
	if err != nil {
		return err
	}
	defer client.Close()
	times := map[string]int64{
		"beginning": sarama.OffsetOldest, "end": sarama.OffsetNewest, "timestamp": action.Timestamp,
	}
	start, err := client.GetOffset(action.Topic, 0, times[action.From])
	if err != nil {
		return err
	}
	consumer, err := sarama.NewConsumerFromClient(client)
	if err != nil {
		return err
	}
	partition, err := consumer.ConsumePartition(action.Topic, 0, start)
	if err != nil {
		return err
	}
	common.Report("positioned", nil)
	deadline := time.After(common.Timeout)
	for range action.Count {
		select {
		case one := <-partition.Messages():
			headers := map[string]string{}
			for _, header := range one.Headers {
				headers[string(header.Key)] = string(header.Value)
			}
			common.Record(one.Offset, one.Timestamp.UnixMilli(), one.Key, one.Value, headers)
		case <-deadline:
			return errors.New("not enough records in time")
		}
	}
	return partition.Close()
}

// handler reports the partitions and the records of a member.
type handler struct {
	topic string
	lock  sync.Mutex
	held  []int32
}

func (h *handler) Setup(session sarama.ConsumerGroupSession) error {
	go h.watch(session)
	return nil
}

// watch reports the partitions of a session whenever they change: a cooperative rebalance does not end the session.
func (h *handler) watch(session sarama.ConsumerGroupSession) {
	h.lock.Lock()
	defer h.lock.Unlock()
	for session.Context().Err() == nil {
		now := append([]int32{}, session.Claims()[h.topic]...)
		slices.Sort(now)
		if h.held == nil || !slices.Equal(now, h.held) {
			h.held = now
			common.Report("assigned", map[string]any{"partitions": now})
		}
		time.Sleep(50 * time.Millisecond)
	}
}

func (h *handler) Cleanup(session sarama.ConsumerGroupSession) error {
	return nil
}

func (h *handler) ConsumeClaim(session sarama.ConsumerGroupSession, claim sarama.ConsumerGroupClaim) error {
	for one := range claim.Messages() {
		common.Report("record", map[string]any{
			"partition": one.Partition, "offset": one.Offset, "value": string(one.Value),
		})
		session.MarkMessage(one, "")
		session.Commit()
	}
	return nil
}

func member(action *common.Action) error {
	if action.Strategy == "consumer" {
		common.Unsupported("sarama has only the classic protocol of groups")
	}
	config := config()
	config.Consumer.Offsets.Initial = sarama.OffsetOldest
	config.Consumer.Offsets.AutoCommit.Enable = false
	config.Consumer.Group.Session.Timeout = 45 * time.Second
	config.Consumer.Group.Heartbeat.Interval = 500 * time.Millisecond
	strategy := sarama.NewBalanceStrategyRange()
	if action.Strategy == "cooperative" {
		strategy = sarama.NewBalanceStrategyCooperativeSticky()
	}
	config.Consumer.Group.Rebalance.GroupStrategies = []sarama.BalanceStrategy{strategy}
	if action.Instance != nil {
		config.Consumer.Group.InstanceId = *action.Instance
	}
	group, err := sarama.NewConsumerGroup(brokers(action), action.Group, config)
	if err != nil {
		return err
	}
	ctx := common.UntilEndOfInput()
	handler := &handler{topic: action.Topic}
	for ctx.Err() == nil {
		if err := group.Consume(ctx, []string{action.Topic}, handler); err != nil && ctx.Err() == nil {
			fmt.Fprintln(os.Stderr, err)
			return err
		}
	}
	if err := group.Close(); err != nil {
		return err
	}
	common.Report("closed", nil)
	return nil
}

func admin(action *common.Action) error {
	admin, err := sarama.NewClusterAdmin(brokers(action), config())
	if err != nil {
		return err
	}
	defer admin.Close()
	nodes, _, err := admin.DescribeCluster()
	if err != nil {
		return err
	}
	common.Saw("brokers", len(nodes))
	retention := "60000000"
	detail := &sarama.TopicDetail{
		NumPartitions: 3, ReplicationFactor: 1, ConfigEntries: map[string]*string{"retention.ms": &retention},
	}
	if err := admin.CreateTopic(action.Topic, detail, false); err != nil {
		return err
	}
	if err := admin.CreateTopic(action.Topic, detail, false); errors.Is(err, sarama.ErrTopicAlreadyExists) {
		common.Saw("duplicate", "TOPIC_ALREADY_EXISTS")
	}
	partitions := func() (int, error) {
		topics, err := admin.DescribeTopics([]string{action.Topic})
		if err != nil {
			return 0, err
		}
		return len(topics[0].Partitions), nil
	}
	entry := func() (string, error) {
		resource := sarama.ConfigResource{Type: sarama.TopicResource, Name: action.Topic}
		entries, err := admin.DescribeConfig(resource)
		for _, one := range entries {
			if one.Name == "retention.ms" {
				return one.Value, err
			}
		}
		return "", err
	}
	if err := common.SawSettled("partitions", partitions, 3); err != nil {
		return err
	}
	if err := common.SawSettled("config", entry, retention); err != nil {
		return err
	}
	altered := "70000000"
	changes := map[string]sarama.IncrementalAlterConfigsEntry{
		"retention.ms": {Operation: sarama.IncrementalAlterConfigsOperationSet, Value: &altered},
	}
	if err := admin.IncrementalAlterConfig(sarama.TopicResource, action.Topic, changes, false); err != nil {
		return err
	}
	if err := common.SawSettled("altered config", entry, altered); err != nil {
		return err
	}
	if err := admin.CreatePartitions(action.Topic, 5, nil, false); err != nil {
		return err
	}
	if err := common.SawSettled("more partitions", partitions, 5); err != nil {
		return err
	}
	return adminOfData(admin, action)
}

func adminOfData(admin sarama.ClusterAdmin, action *common.Action) error {
	var offsets []int64
	for _, time := range []int64{sarama.OffsetOldest, sarama.OffsetNewest} {
		found, err := admin.ListOffsets(map[string]map[int32]int64{action.Data: {0: time}}, nil)
		if err != nil {
			return err
		}
		offsets = append(offsets, found[action.Data][0].Offset)
	}
	common.Saw("offsets", offsets)
	if err := admin.DeleteRecords(action.Data, map[int32]int64{0: 4}); err != nil {
		return err
	}
	found, err := admin.ListOffsets(map[string]map[int32]int64{action.Data: {0: sarama.OffsetOldest}}, nil)
	if err != nil {
		return err
	}
	common.Saw("deleted records", found[action.Data][0].Offset)
	groups, err := admin.ListConsumerGroups()
	if err != nil {
		return err
	}
	_, isListed := groups[action.Group]
	common.Saw("group listed", isListed)
	described, err := admin.DescribeConsumerGroups([]string{action.Group})
	if err != nil {
		return err
	}
	common.Saw("group state", described[0].State)
	committed := func() (int64, error) {
		answer, err := admin.ListConsumerGroupOffsets(action.Group, map[string][]int32{action.Data: {0}})
		if err != nil {
			return 0, err
		}
		return answer.GetBlock(action.Data, 0).Offset, nil
	}
	if err := common.SawSettled("group offset", committed, 7); err != nil {
		return err
	}
	moved := map[string]map[int32]sarama.OffsetAndMetadata{action.Data: {0: {Offset: 5, LeaderEpoch: -1}}}
	if _, err := admin.AlterConsumerGroupOffsets(action.Group, moved, nil); err != nil {
		return err
	}
	if err := common.SawSettled("altered group offset", committed, 5); err != nil {
		return err
	}
	if err := admin.DeleteConsumerGroup(action.Group); err != nil {
		return err
	}
	if groups, err = admin.ListConsumerGroups(); err != nil {
		return err
	}
	_, isListed = groups[action.Group]
	common.Saw("group deleted", !isListed)
	if err := admin.DeleteTopic(action.Topic); err != nil {
		return err
	}
	common.Saw("topic deleted", true)
	return nil
}

func transact(action *common.Action) error {
	config := config()
	config.Producer.Idempotent = true
	config.Producer.Transaction.ID = action.ID
	config.Net.MaxOpenRequests = 1
	producer, err := sarama.NewSyncProducer(brokers(action), config)
	if err != nil {
		return err
	}
	defer producer.Close()
	for _, word := range []string{"committed", "aborted", "last"} {
		if err := producer.BeginTxn(); err != nil {
			return err
		}
		var messages []*sarama.ProducerMessage
		for number := range action.Count {
			value := sarama.StringEncoder(fmt.Sprintf("%s-%d", word, number))
			messages = append(messages, &sarama.ProducerMessage{Topic: action.Topic, Value: value})
		}
		if err := producer.SendMessages(messages); err != nil {
			return err
		}
		if word == "aborted" {
			if err := producer.AbortTxn(); err != nil {
				return err
			}
			continue
		}
		if word == "last" {
			position := &sarama.PartitionOffsetMetadata{Offset: int64(action.Count)}
			offsets := map[string][]*sarama.PartitionOffsetMetadata{action.Topic: {position}}
			if err := producer.AddOffsetsToTxn(offsets, action.Group); err != nil {
				return err
			}
		}
		if err := producer.CommitTxn(); err != nil {
			return err
		}
	}
	common.Report("done", nil)
	return nil
}
