"""kctl state-changes, against a log and a table of replies."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from quorumlog.errors import ClusterError
from quorumlog.kctl import state_changes
from quorumlog.kctl.context import Context
from quorumlog.kctl.main import run
from quorumlog.wire import rpcs
from quorumlog.wire.rpcs import AnyRpc
from quorumlog.wire.v1 import controller_pb2, metadata_pb2, node_pb2, quorum_pb2
from tests.unit.quorumlog.kctl.test_commands import OK, TOPIC_ID, FakeClient, quorum_reply

AT = 1_795_255_292_908
NEW_ID = bytes(range(1, 17))
Record = metadata_pb2.Record


def topic_record(name: str = "t") -> Any:
    return Record(topic=metadata_pb2.Topic(topic_id=TOPIC_ID, name=name))


def partition_record(index: int = 0) -> Any:
    replicas = [metadata_pb2.Replica(broker_id=each) for each in (11, 12)]
    return Record(
        partition=metadata_pb2.Partition(topic_id=TOPIC_ID, index=index, replicas=replicas, isr=[11, 12], leader=11)
    )


def change_record(cause: int, index: int = 0, topic_id: bytes = TOPIC_ID) -> Any:
    return Record(
        partition_change=metadata_pb2.PartitionChange(
            topic_id=topic_id, index=index, leader=12, isr=metadata_pb2.IntList(values=[12]),
            reason=metadata_pb2.REASON_BROKER_FENCED, cause_offset=cause, previous_offset=2,
        )
    )  # fmt: skip


def fenced_record(broker_id: int = 11) -> Any:
    return Record(broker_change=metadata_pb2.BrokerChange(broker_id=broker_id, broker_epoch=1, fenced=True))


class Log(FakeClient):
    """Nodes that all have the same log.  applied: the answers about applied batches, by the address of a broker."""

    def __init__(self) -> None:
        super().__init__()
        self.batches: list[Any] = []
        self.start = 0
        self.named: dict[bytes, str] = {}
        self.brokers = [11, 12]
        self.epochs: dict[int, int] = {}
        self.applied: dict[str, list[Any]] = {}
        self.at_end: list[Any] = []
        description = quorum_reply()
        for node_id in (11, 12):
            replica = quorum_pb2.Voter(key=quorum_pb2.ReplicaKey(node_id=node_id), address=f"broker{node_id}:1")
            description.observers.append(quorum_pb2.ReplicaStatus(replica=replica))
        self.replies[rpcs.DESCRIBE_QUORUM] = description

    @property
    def end(self) -> int:
        return int(self.batches[-1].base_offset + self.batches[-1].count) if self.batches else self.start

    def append(self, *records: Any, control: str = "", epoch: int = 1) -> None:
        batch = node_pb2.MetadataBatch(
            base_offset=self.end, count=len(records) or 1, epoch=epoch, timestamp_ms=AT + self.end, control=control
        )
        if records:
            batch.records.records.extend(records)
        self.batches.append(batch)

    async def ask_any(self, rpc: AnyRpc, request: Any, timeout_s: float) -> Any:
        self.calls.append((rpc, request))
        if rpc == rpcs.DESCRIBE_METADATA:
            if request.at_offset > self.end:
                raise ClusterError("OFFSET_OUT_OF_RANGE", f"{self.start} to {self.end}")
            return node_pb2.DescribeMetadataReply(
                result=OK,
                topics=[controller_pb2.TopicDescription(name=name, topic_id=each) for each, name in self.named.items()],
                brokers=[
                    controller_pb2.BrokerDescription(broker_id=each, broker_epoch=self.epochs.get(each, 0))
                    for each in self.brokers
                ],
            )
        assert rpc == rpcs.READ_METADATA, rpc
        return self._read(request)

    def _read(self, request: Any) -> Any:
        offset = self.end if request.from_offset == -1 else request.from_offset
        if offset < self.start or offset > self.end:
            raise ClusterError("OFFSET_OUT_OF_RANGE", f"{self.start} to {self.end}")
        if offset == self.end and request.wait_ms:
            self._come()
        found = [batch for batch in self.batches if batch.base_offset + batch.count > offset][:2]
        return node_pb2.ReadMetadataReply(
            result=OK, log_start=self.start, high_watermark=self.end, batches=found,
            next_offset=found[-1].base_offset + found[-1].count if found else offset,
        )  # fmt: skip

    def _come(self) -> None:
        """Perform the next event while the command waits at the log end; after the last event, press Ctrl-C."""
        if not self.at_end:
            raise KeyboardInterrupt
        event = self.at_end.pop(0)
        if isinstance(event, BaseException):
            raise event
        if callable(event):
            event()
        else:
            self.append(*event)

    async def ask_node(self, address: str, rpc: AnyRpc, request: Any, timeout_s: float) -> Any:
        self.calls.append((rpc, request))
        if rpc == rpcs.READ_METADATA:
            return self._read(request)
        assert rpc == rpcs.LIST_APPLIED_BATCHES, rpc
        script = self.applied[address]
        answer = script.pop(0) if len(script) > 1 else script[0]
        if isinstance(answer, BaseException):
            raise answer
        return answer


def applied(*batches: tuple[int, int, int], kept_from: int = 0, is_broker: bool = True) -> Any:
    """Return a reply with these batches: end offset, ms after AT when received, ms after AT when applied or -1."""
    return node_pb2.ListAppliedBatchesReply(
        result=OK, is_broker=is_broker, kept_from=kept_from,
        batches=[
            node_pb2.AppliedBatch(end_offset=end, received_ms=AT + got, completed_ms=AT + done if done >= 0 else 0)
            for end, got, done in batches
        ],
    )  # fmt: skip


@pytest.fixture
def log(monkeypatch: pytest.MonkeyPatch) -> Log:
    """Offset 0: a leader; 1 to 2: topic t; 3 to 4: broker 11 is fenced; 5: a record that is not shown."""
    made = Log()
    made.append(control="LeaderChange: 1 leads epoch 1, with the votes of 1")
    made.append(topic_record(), partition_record())
    made.append(fenced_record(), change_record(3))
    made.append(Record(no_op=metadata_pb2.NoOp()))
    silent = ClusterError("UNAVAILABLE", "no answer from broker11:1", retriable=True)
    made.applied = {"broker11:1": [silent], "broker12:1": [applied((3, 10, 13), (5, 20, 30), (6, 40, 41))]}
    monkeypatch.setattr(Context, "client", lambda _: made)
    monkeypatch.setattr(state_changes, "AGAIN_S", 0.001)
    monkeypatch.setattr(state_changes, "LOOK_S", 0.001)
    return made


def test_each_change_is_shown_with_the_times_of_every_broker(log: Log, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["state-changes", "-o", "json"]) == 0
    documents = json.loads(capsys.readouterr().out)
    assert [(each["offset"], each["kind"], each["reason"]) for each in documents] == [
        (0, "leader_change", None), (1, "topic", None), (2, "partition", "created"), (3, "broker_change", None),
        (4, "partition_change", "broker_fenced"),
    ]  # fmt: skip
    assert documents[0]["brokers"] == []
    change = documents[-1]
    assert (change["topic"], change["partition"], change["cause_offset"], change["controller_epoch"]) == ("t", 0, 3, 1)
    assert change["at"] == "2026-11-21T10:01:32.911Z"
    silent, live = change["brokers"]
    assert silent == {
        "id": 11, "received_at": None, "completed_at": None, "took_ms": None, "at_start": False,
        "problem": "no answer from broker11:1",
    }  # fmt: skip
    assert live == {
        "id": 12, "received_at": "2026-11-21T10:01:32.928Z", "completed_at": "2026-11-21T10:01:32.938Z", "took_ms": 10,
        "at_start": False, "problem": None,
    }  # fmt: skip


def test_text_shows_durations_and_an_unavailable_broker_once(log: Log, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["state-changes"]) == 0
    assert capsys.readouterr().out.splitlines() == [
        "2026-11-21T10:01:32.908Z  controller epoch 1",
        "       0  leader change: 1 leads epoch 1, with the votes of 1",
        "2026-11-21T10:01:32.909Z  controller epoch 1",
        "       1  topic t is created, id AAECAwQFBgcICQoLDA0ODw",
        "       2  t-0 is created: leader 11, replicas 11,12, in sync 11,12",
        "          broker 12: received after 9 ms, applied after 12 ms (took 3 ms)",
        "          broker 11: no answer from broker11:1 (reported once)",
        "2026-11-21T10:01:32.911Z  controller epoch 1",
        "       3  broker 11 is fenced",
        "       4  t-0: leader 12; in sync 12 (broker fenced, offset 3)",
        "          broker 12: received after 17 ms, applied after 27 ms (took 10 ms)",
    ]


@pytest.mark.parametrize(
    ("answer", "problem"),
    [
        (applied((3, 1, 2)), "not received yet"),
        (applied((5, 1, -1)), "received, but not applied yet"),
        (applied(kept_from=5), "has no times: the change came before its start, or too many batches ago"),
        (applied(is_broker=False), "the node with this id is not a broker"),
    ],
)
def test_state_changes_reports_why_a_broker_has_no_times_for_a_change(
    log: Log, answer: Any, problem: str, capsys: pytest.CaptureFixture[str]
) -> None:
    log.applied["broker12:1"] = [answer]
    assert run(["state-changes", "--last", "1", "-o", "json"]) == 0
    (document,) = json.loads(capsys.readouterr().out)
    assert document["brokers"][1]["problem"] == problem
    assert document["brokers"][1]["completed_at"] is None


def test_changes_that_a_broker_read_at_its_start_are_marked(log: Log, capsys: pytest.CaptureFixture[str]) -> None:
    log.epochs[12] = 3
    log.applied["broker12:1"] = [applied((3, 70_000, 70_001), (5, 70_010, 70_011))]
    assert run(["state-changes", "--from", "1"]) == 0
    out = capsys.readouterr().out
    assert "broker 12: at its start, 1 min 10 s later" in out
    assert "broker 12: received after 1 min 10 s, applied after 1 min 10 s (took 1 ms)" in out
    assert run(["state-changes", "--from", "1", "-o", "json"]) == 0
    documents = json.loads(capsys.readouterr().out)
    assert [each["brokers"][1]["at_start"] for each in documents] == [True, True, False, False]


def test_a_broker_that_does_not_fetch_has_no_known_address(log: Log, capsys: pytest.CaptureFixture[str]) -> None:
    log.brokers.append(13)
    assert run(["state-changes", "--last", "1"]) == 0
    assert (
        "broker 13: its control address is unknown: it does not fetch from the quorum's leader"
        in capsys.readouterr().out
    )


@pytest.mark.parametrize(
    ("arguments", "offsets"),
    [
        (["--last", "2"], [3, 4]),
        (["--last", "3"], [2, 3, 4]),
        (["--last", "0"], []),
        (["--from", "2"], [2, 3, 4]),
        (["--from", "6"], []),
        (["--topic", "t"], [1, 2, 4]),
        (["--topic", "t", "--last", "2"], [2, 4]),
        (["--topic", "no"], []),
    ],
)
def test_from_last_and_topic_options_select_the_shown_changes(
    log: Log, arguments: list[str], offsets: list[int], capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.setattr(state_changes, "SPAN_MIN", 1)
    if arguments[:2] == ["--from", "2"]:
        log.named[TOPIC_ID] = "t"
    assert run(["state-changes", *arguments, "-o", "json"]) == 0
    assert [each["offset"] for each in json.loads(capsys.readouterr().out)] == offsets
    assert run(["state-changes", *arguments]) == 0
    err = capsys.readouterr().err
    assert ("no such changes" in err) == (not offsets)
    assert ("topic 'no' does not exist" in err) == ("no" in arguments)


def test_an_offset_after_the_log_end_is_out_of_range(log: Log, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["state-changes", "--from", "7", "-o", "json"]) == 3
    assert json.loads(capsys.readouterr().err)["error"] == "OFFSET_OUT_OF_RANGE"


@pytest.mark.parametrize(
    "arguments", [["--from", "1", "--last", "1"], ["--from", "-1"], ["--last", "x"], ["--last", "10001"], ["t-0"]]
)
def test_wrong_usage_is_refused_before_any_request(log: Log, arguments: list[str]) -> None:
    assert run(["state-changes", *arguments]) == 2
    assert log.calls == []


# Following


def lines_of(text: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in text.splitlines()]


def test_following_shows_each_change_once_its_brokers_have_applied_it(
    log: Log, capsys: pytest.CaptureFixture[str]
) -> None:
    log.named[TOPIC_ID] = "t"
    log.applied["broker12:1"] = [applied(), applied((8, 50, -1)), applied((8, 50, 60))]
    log.at_end = [[fenced_record(12), change_record(6)]]
    assert run(["state-changes", "--follow", "-o", "json"]) == 130
    captured = capsys.readouterr()
    documents = lines_of(captured.out)
    assert [(each["offset"], each["topic"]) for each in documents] == [(6, None), (7, "t")]
    assert [each["brokers"][1]["took_ms"] for each in documents] == [10, 10]
    assert documents[0]["brokers"][0]["problem"] == "no answer from broker11:1"
    assert captured.err.splitlines()[0] == "following from offset 6; press Ctrl-C to stop"


def test_a_slow_broker_does_not_delay_the_output(log: Log, capsys: pytest.CaptureFixture[str]) -> None:
    log.applied["broker12:1"] = [applied((7, 50, -1))]
    log.at_end = [[fenced_record(12)], [fenced_record(11)]]
    assert run(["state-changes", "--follow", "--patience", "0.01"]) == 130
    out = capsys.readouterr().out
    assert "broker 12: received, but not applied yet" in out
    assert "broker 12: not received yet" in out


def test_a_broker_that_hangs_for_a_moment_is_asked_again(log: Log, capsys: pytest.CaptureFixture[str]) -> None:
    late = ClusterError("TIMED_OUT", "broker12:1 did not answer in time", retriable=True)
    log.applied["broker12:1"] = [late, applied((7, 50, 60))]
    log.at_end = [[fenced_record(12)]]
    assert run(["state-changes", "--follow", "--patience", "60", "-o", "json"]) == 130
    assert lines_of(capsys.readouterr().out)[0]["brokers"][1]["took_ms"] == 10
    log.applied["broker12:1"] = [late]
    log.at_end = [[fenced_record(12)]]
    assert run(["state-changes", "--follow", "--patience", "0"]) == 130
    assert "broker 12: broker12:1 did not answer in time (reported once)" in capsys.readouterr().out


def test_following_continues_after_failures_and_reports_gaps(log: Log, capsys: pytest.CaptureFixture[str]) -> None:
    def drop() -> None:
        log.start = 20
        log.batches = []
        log.append(fenced_record(12))
        log.applied["broker12:1"] = [applied((21, 50, 51), (22, 52, 53))]
        raise ClusterError("OFFSET_OUT_OF_RANGE", "gone")

    log.at_end = [ClusterError("UNAVAILABLE", "nobody answers", retriable=True), drop, [fenced_record(11)]]
    log.applied["broker12:1"] = [applied(kept_from=30)]
    assert run(["state-changes", "--follow", "--timeout", "5", "-o", "json"]) == 130
    captured = capsys.readouterr()
    assert "waiting: nobody answers" in captured.err
    assert "the changes from offset 6 to 19 are omitted: no node that answers retains them" in captured.err
    assert [each["offset"] for each in lines_of(captured.out)] == [20, 21]


def test_a_given_timeout_ends_following(log: Log, monkeypatch: pytest.MonkeyPatch) -> None:
    """Other following commands do the same.  Otherwise a script with --timeout would hang."""

    limits_s = list[float]()

    async def nothing_happens(_context: Context, reader: state_changes._Reader, *_: object) -> None:
        limits_s.append(reader.history._limit_s())
        await asyncio.sleep(60)
        raise AssertionError("the command still follows")

    monkeypatch.setattr(state_changes, "_follow", nothing_happens)
    assert run(["state-changes", "--follow", "--timeout", "0.5"]) == 0
    assert limits_s == [0.5], "each request has the whole time, so that the last one does not fail before the end"


def test_following_adapts_to_changed_brokers_and_renewed_topics(log: Log, capsys: pytest.CaptureFixture[str]) -> None:
    renewed = metadata_pb2.RenewTopic(topic_id=TOPIC_ID, new_topic_id=NEW_ID)
    registered = metadata_pb2.RegisterBroker(broker_id=13, fenced=True)
    log.named[TOPIC_ID] = "t"
    log.at_end = [
        [Record(renew_topic=renewed), change_record(-1, topic_id=NEW_ID)],
        [Record(register_broker=registered)],
        [Record(unregister_broker=metadata_pb2.UnregisterBroker(broker_id=11))],
    ]
    log.applied["broker12:1"] = [applied(kept_from=100)]
    assert run(["state-changes", "--follow", "-o", "json"]) == 130
    documents = lines_of(capsys.readouterr().out)
    assert [(each["kind"], each["topic"]) for each in documents] == [
        ("renew_topic", "t"), ("partition_change", "t"), ("register_broker", None), ("unregister_broker", None),
    ]  # fmt: skip
    assert [[one["id"] for one in each["brokers"]] for each in documents] == [
        [11, 12], [11, 12], [11, 12, 13], [12, 13],
    ]  # fmt: skip


def test_many_changes_and_brokers_are_summarized_in_text(log: Log, capsys: pytest.CaptureFixture[str]) -> None:
    log.named[TOPIC_ID] = "t"
    log.brokers = list(range(1, 10))
    description = log.replies[rpcs.DESCRIBE_QUORUM]
    for broker_id in log.brokers:
        replica = quorum_pb2.Voter(key=quorum_pb2.ReplicaKey(node_id=broker_id), address=f"b{broker_id}:1")
        description.observers.append(quorum_pb2.ReplicaStatus(replica=replica))
        log.applied[f"b{broker_id}:1"] = [applied((107, 50, 60 + broker_id))]
    log.append(fenced_record(), *[change_record(6, index) for index in range(100)])
    assert run(["state-changes", "--from", "6"]) == 0
    shown = capsys.readouterr().out.splitlines()
    assert len(shown) == 1 + 20 + 2
    assert shown[-2] == "          … and 81 more up to offset 106 (-o json shows all)"
    assert shown[-1].startswith("          9 brokers; the last is 9: received after 44 ms, applied after 63 ms")
