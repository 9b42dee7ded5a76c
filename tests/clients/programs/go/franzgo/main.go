// The program of franz-go; see tests/clients.
package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"programs/common"
)

func main() {
	common.Run("github.com/twmb/franz-go", map[string]func(*common.Action) error{
		"produce": produce, "consume": consume, "member": member, "admin": admin, "transact": transact,
		"share": share,
	})
}

func client(action *common.Action, options ...kgo.Opt) (*kgo.Client, error) {
	return kgo.NewClient(append(options, kgo.SeedBrokers(strings.Split(action.Bootstrap, ",")...))...)
}

func deadline() (context.Context, context.CancelFunc) {
	return context.WithTimeout(context.Background(), common.Timeout)
}

func produce(action *common.Action) error {
	codecs := map[string]kgo.CompressionCodec{
		"none": kgo.NoCompression(), "gzip": kgo.GzipCompression(), "snappy": kgo.SnappyCompression(),
		"lz4": kgo.Lz4Compression(), "zstd": kgo.ZstdCompression(),
	}
	options := []kgo.Opt{
		kgo.ProducerBatchCompression(codecs[action.Compression]),
		kgo.RecordPartitioner(kgo.ManualPartitioner()),
		kgo.ProducerLinger(50 * time.Millisecond),
	}
	if !action.Idempotent {
		options = append(options, kgo.DisableIdempotentWrite())
	}
	producer, err := client(action, options...)
	if err != nil {
		return err
	}
	defer producer.Close()
	ctx, cancel := deadline()
	defer cancel()
	var records []*kgo.Record
	for number := range action.Count {
		one := common.RecordOf(number, action.BaseMs)
		records = append(records, &kgo.Record{
			Topic: action.Topic, Key: []byte(one.Key), Value: []byte(one.Value), Timestamp: time.UnixMilli(one.Timestamp),
			Headers: []kgo.RecordHeader{{Key: "number", Value: []byte(strconv.Itoa(number))}},
		})
	}
	if err := producer.ProduceSync(ctx, records...).FirstErr(); err != nil {
		return err
	}
	var offsets []int64
	for _, one := range records {
		offsets = append(offsets, one.Offset)
	}
	common.Produced(offsets)
	return nil
}

func consume(action *common.Action) error {
	start := kgo.NewOffset().AtStart()
	ctx, cancel := deadline()
	defer cancel()
	if action.From != "beginning" {
		asking, err := client(action)
		if err != nil {
			return err
		}
		defer asking.Close()
		ends, err := kadm.NewClient(asking).ListEndOffsets(ctx, action.Topic)
		if action.From == "timestamp" {
			ends, err = kadm.NewClient(asking).ListOffsetsAfterMilli(ctx, action.Timestamp, action.Topic)
		}
		if err != nil {
			return err
		}
		end, _ := ends.Lookup(action.Topic, 0)
		start = kgo.NewOffset().At(end.Offset)
	}
	consumer, err := client(action, kgo.ConsumePartitions(map[string]map[int32]kgo.Offset{action.Topic: {0: start}}))
	if err != nil {
		return err
	}
	defer consumer.Close()
	common.Report("positioned", nil)
	for left := action.Count; left > 0; {
		fetches := consumer.PollRecords(ctx, left)
		if err := fetches.Err(); err != nil {
			return err
		}
		for _, one := range fetches.Records() {
			headers := map[string]string{}
			for _, header := range one.Headers {
				headers[header.Key] = string(header.Value)
			}
			common.Record(one.Offset, one.Timestamp.UnixMilli(), one.Key, one.Value, headers)
			left--
		}
	}
	return nil
}

func member(action *common.Action) error {
	held := map[int32]bool{}
	var lock sync.Mutex
	change := func(has bool) func(context.Context, *kgo.Client, map[string][]int32) {
		return func(_ context.Context, _ *kgo.Client, changed map[string][]int32) {
			lock.Lock()
			defer lock.Unlock()
			for _, partition := range changed[action.Topic] {
				held[partition] = has
			}
			now := []int32{}
			for partition, isHeld := range held {
				if isHeld {
					now = append(now, partition)
				}
			}
			slices.Sort(now)
			common.Report("assigned", map[string]any{"partitions": now})
		}
	}
	ctx := common.UntilEndOfInput()
	options := []kgo.Opt{
		kgo.ConsumerGroup(action.Group), kgo.ConsumeTopics(action.Topic), kgo.DisableAutoCommit(),
		kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()),
		kgo.SessionTimeout(45 * time.Second), kgo.HeartbeatInterval(500 * time.Millisecond),
		kgo.OnPartitionsAssigned(change(true)), kgo.OnPartitionsRevoked(change(false)), kgo.OnPartitionsLost(change(false)),
	}
	switch action.Strategy {
	case "cooperative":
		options = append(options, kgo.Balancers(kgo.CooperativeStickyBalancer()))
	case "consumer":
		options = append(options, kgo.Balancers(kgo.RangeBalancer()), kgo.ServerSideBalancer())
	default:
		options = append(options, kgo.Balancers(kgo.RangeBalancer()))
	}
	if action.Instance != nil {
		options = append(options, kgo.InstanceID(*action.Instance))
	}
	consumer, err := client(action, options...)
	if err != nil {
		return err
	}
	for {
		polling, stop := context.WithTimeout(ctx, 100*time.Millisecond)
		fetches := consumer.PollFetches(polling)
		stop()
		if ctx.Err() != nil {
			break
		}
		for _, failed := range fetches.Errors() {
			if !errors.Is(failed.Err, context.DeadlineExceeded) {
				return failed.Err
			}
		}
		for _, one := range fetches.Records() {
			common.Report("record", map[string]any{
				"partition": one.Partition, "offset": one.Offset, "value": string(one.Value),
			})
		}
		// Also without new records: a commit during a rebalance may be refused.
		if err := consumer.CommitUncommittedOffsets(ctx); err != nil {
			common.Report("note", map[string]any{"text": err.Error()})
		}
	}
	return closeMember(consumer)
}

func closeMember(consumer *kgo.Client) error {
	consumer.Close()
	common.Report("closed", nil)
	return nil
}

// share releases each record whose value begins with "retry" at its first delivery, and rejects those with "bad".
func share(action *common.Action) error {
	if action.Letters != "" {
		if err := prepareLetters(action); err != nil {
			return err
		}
	}
	ctx := common.UntilEndOfInput()
	consumer, err := client(action, kgo.ShareGroup(action.Group), kgo.ConsumeTopics(action.Topic),
		kgo.ShareAckCallback(func(_ *kgo.Client, results kgo.ShareAckResults) {
			for _, one := range results {
				problem := ""
				if one.Err != nil {
					problem = one.Err.Error()
				}
				common.Report("committed", map[string]any{"partition": one.Partition, "error": problem})
			}
		}))
	if err != nil {
		return err
	}
	for {
		fetches := consumer.PollFetches(ctx)
		if ctx.Err() != nil {
			break
		}
		if err := fetches.Err(); err != nil {
			return err
		}
		for _, one := range fetches.Records() {
			value, deliveries := string(one.Value), one.DeliveryCount()
			common.Report("record", map[string]any{"offset": one.Offset, "value": value, "deliveries": deliveries})
			if action.Mode == "work" {
				consumer.MarkAcks(verdict(value, deliveries), one)
			}
		}
		if action.Mode == "hold" {
			<-ctx.Done()
			break
		}
		if err := flush(consumer); err != nil {
			return err
		}
	}
	return closeMember(consumer)
}

func verdict(value string, deliveries int32) kgo.AckStatus {
	if strings.HasPrefix(value, "retry") && deliveries == 1 {
		return kgo.AckRelease
	}
	if strings.HasPrefix(value, "bad") {
		return kgo.AckReject
	}
	return kgo.AckAccept
}

func flush(consumer *kgo.Client) error {
	ctx, cancel := deadline()
	defer cancel()
	return consumer.FlushAcks(ctx)
}

// prepareLetters gives a share group a dead-letter topic, and lets it begin with the oldest records.
func prepareLetters(action *common.Action) error {
	asking, err := client(action)
	if err != nil {
		return err
	}
	defer asking.Close()
	ctx, cancel := deadline()
	defer cancel()
	yes := "true"
	configs := map[string]*string{"errors.deadletterqueue.group.enable": &yes}
	if _, err := kadm.NewClient(asking).CreateTopic(ctx, 1, -1, configs, action.Letters); err != nil {
		return err
	}
	group := kmsg.NewIncrementalAlterConfigsRequestResource()
	group.ResourceType, group.ResourceName = kmsg.ConfigResourceTypeGroupConfig, action.Group
	for name, value := range map[string]string{
		"share.auto.offset.reset":                   "earliest",
		"errors.deadletterqueue.topic.name":         action.Letters,
		"errors.deadletterqueue.copy.record.enable": "true",
	} {
		config := kmsg.NewIncrementalAlterConfigsRequestResourceConfig()
		config.Name, config.Value, config.Op = name, &value, kmsg.IncrementalAlterConfigOpSet
		group.Configs = append(group.Configs, config)
	}
	request := kmsg.NewPtrIncrementalAlterConfigsRequest()
	request.Resources = append(request.Resources, group)
	response, err := request.RequestWith(ctx, asking)
	if err != nil {
		return err
	}
	return kerr.ErrorForCode(response.Resources[0].ErrorCode)
}

func admin(action *common.Action) error {
	asking, err := client(action)
	if err != nil {
		return err
	}
	defer asking.Close()
	admin := kadm.NewClient(asking)
	ctx, cancel := deadline()
	defer cancel()
	brokers, err := admin.ListBrokers(ctx)
	if err != nil {
		return err
	}
	common.Saw("brokers", len(brokers))
	retention := "60000000"
	create := func() error {
		_, err := admin.CreateTopic(ctx, 3, 1, map[string]*string{"retention.ms": &retention}, action.Topic)
		return err
	}
	if err := create(); err != nil {
		return err
	}
	if err := create(); errors.Is(err, kerr.TopicAlreadyExists) {
		common.Saw("duplicate", kerr.TopicAlreadyExists.Message)
	}
	partitions := func() (int, error) {
		topics, err := admin.ListTopics(ctx, action.Topic)
		return len(topics[action.Topic].Partitions), err
	}
	config := func() (string, error) {
		configs, err := admin.DescribeTopicConfigs(ctx, action.Topic)
		if err != nil {
			return "", err
		}
		found, err := configs.On(action.Topic, nil)
		for _, one := range found.Configs {
			if one.Key == "retention.ms" {
				return one.MaybeValue(), err
			}
		}
		return "", err
	}
	if err := common.SawSettled("partitions", partitions, 3); err != nil {
		return err
	}
	if err := common.SawSettled("config", config, "60000000"); err != nil {
		return err
	}
	altered := "70000000"
	changes := []kadm.AlterConfig{{Op: kadm.SetConfig, Name: "retention.ms", Value: &altered}}
	answers, err := admin.AlterTopicConfigs(ctx, changes, action.Topic)
	if err != nil {
		return err
	}
	if answers[0].Err != nil {
		return answers[0].Err
	}
	if err := common.SawSettled("altered config", config, altered); err != nil {
		return err
	}
	added, err := admin.UpdatePartitions(ctx, 5, action.Topic)
	if err != nil {
		return err
	}
	if err := added.Error(); err != nil {
		return err
	}
	if err := common.SawSettled("more partitions", partitions, 5); err != nil {
		return err
	}
	return adminOfData(ctx, admin, action)
}

func adminOfData(ctx context.Context, admin *kadm.Client, action *common.Action) error {
	starts, err := admin.ListStartOffsets(ctx, action.Data)
	if err != nil {
		return err
	}
	ends, err := admin.ListEndOffsets(ctx, action.Data)
	if err != nil {
		return err
	}
	start, _ := starts.Lookup(action.Data, 0)
	end, _ := ends.Lookup(action.Data, 0)
	common.Saw("offsets", []int64{start.Offset, end.Offset})
	var before kadm.Offsets
	before.Add(kadm.Offset{Topic: action.Data, Partition: 0, At: 4})
	deleted, err := admin.DeleteRecords(ctx, before)
	if err != nil {
		return err
	}
	low, _ := deleted.Lookup(action.Data, 0)
	common.Saw("deleted records", low.LowWatermark)
	listed := func() (bool, error) {
		groups, err := admin.ListGroups(ctx)
		_, found := groups[action.Group]
		return found, err
	}
	found, err := listed()
	if err != nil {
		return err
	}
	common.Saw("group listed", found)
	described, err := admin.DescribeGroups(ctx, action.Group)
	if err != nil {
		return err
	}
	common.Saw("group state", described[action.Group].State)
	committed := func() (int64, error) {
		offsets, err := admin.FetchOffsets(ctx, action.Group)
		one, _ := offsets.Lookup(action.Data, 0)
		return one.At, err
	}
	if err := common.SawSettled("group offset", committed, 7); err != nil {
		return err
	}
	var moved kadm.Offsets
	moved.Add(kadm.Offset{Topic: action.Data, Partition: 0, At: 5, LeaderEpoch: -1})
	if err := admin.CommitAllOffsets(ctx, action.Group, moved); err != nil {
		return err
	}
	if err := common.SawSettled("altered group offset", committed, 5); err != nil {
		return err
	}
	if _, err := admin.DeleteGroup(ctx, action.Group); err != nil {
		return err
	}
	found, err = listed()
	if err != nil {
		return err
	}
	common.Saw("group deleted", !found)
	if _, err := admin.DeleteTopic(ctx, action.Topic); err != nil {
		return err
	}
	common.Saw("topic deleted", true)
	return nil
}

func transact(action *common.Action) error {
	producer, err := client(
		action, kgo.TransactionalID(action.ID), kgo.RecordPartitioner(kgo.ManualPartitioner()),
		kgo.DefaultProduceTopic(action.Topic),
	)
	if err != nil {
		return err
	}
	defer producer.Close()
	ctx, cancel := deadline()
	defer cancel()
	for _, word := range []string{"committed", "aborted"} {
		if err := producer.BeginTransaction(); err != nil {
			return err
		}
		if err := send(ctx, producer, word, action.Count); err != nil {
			return err
		}
		if err := producer.EndTransaction(ctx, kgo.TransactionEndTry(word == "committed")); err != nil {
			return err
		}
	}
	return last(ctx, action)
}

func send(ctx context.Context, producer *kgo.Client, word string, count int) error {
	var records []*kgo.Record
	for number := range count {
		records = append(records, kgo.StringRecord(fmt.Sprintf("%s-%d", word, number)))
	}
	return producer.ProduceSync(ctx, records...).FirstErr()
}

// last reads the committed records as a member of the group, and commits their end in a transaction.
func last(ctx context.Context, action *common.Action) error {
	session, err := kgo.NewGroupTransactSession(
		kgo.SeedBrokers(strings.Split(action.Bootstrap, ",")...), kgo.TransactionalID(action.ID),
		kgo.DefaultProduceTopic(action.Topic), kgo.RecordPartitioner(kgo.ManualPartitioner()),
		kgo.ConsumerGroup(action.Group), kgo.ConsumeTopics(action.Topic), kgo.RequireStableFetchOffsets(),
		kgo.FetchIsolationLevel(kgo.ReadCommitted()), kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()),
	)
	if err != nil {
		return err
	}
	defer session.Close()
	for left := action.Count; left > 0; {
		fetches := session.PollRecords(ctx, left)
		if err := fetches.Err(); err != nil {
			return err
		}
		left -= fetches.NumRecords()
	}
	if err := session.Begin(); err != nil {
		return err
	}
	if err := send(ctx, session.Client(), "last", action.Count); err != nil {
		return err
	}
	committed, err := session.End(ctx, kgo.TryCommit)
	if err != nil {
		return err
	}
	if !committed {
		return errors.New("the transaction was aborted")
	}
	common.Report("done", nil)
	return nil
}
