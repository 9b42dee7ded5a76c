"""The `Node` service of every process: it answers from the node's own knowledge, and forwards nothing.

It changes only one thing: `PurgeStrays` deletes replicas that belong to no partition from the node's own disks.  The
service also keeps in memory why other nodes ended (`ReportEnd`), since a node that has ended answers no request.

The service reads the log and the snapshots on the node's own disk, so its answers contain only committed metadata, and
the offset of that metadata.  Large requests run one after the other and let the loop run other tasks
(`History`); the number of waiting requests is limited.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, NamedTuple, Protocol

from google.protobuf.message import Message

from metadata.control.errors import OK, Outcome
from metadata.control.explain import cause_offset, explain, now_text, reason_word
from metadata.controller import voters as voter_words
from metadata.controller.convert import result
from metadata.controller.describe import PARTITIONS_IN_REPLY_MAX, describe_metadata
from metadata.controller.history import CHAIN_MAX, READ_BYTES, History, Log, NotRetainedError
from metadata.controller.replay import MetadataReplay
from metadata.controller.reported_ends import ReportedEnds
from quorum.core.messages import DescribeQuorumReply
from quorum.core.types import Batch, LeaderChange, TargetVoters, Voters, VoterSet
from quorum.ports import LeadershipLostError, UnreachableError
from quorumlog.errors import CorruptStoreError, RemoteProtocolError
from quorumlog.runtime.space import Space
from quorumlog.wire import rpcs
from quorumlog.wire.errors import ApiError
from quorumlog.wire.rpcs import AnyRpc, ReplyT, RequestT, Rpc, header_of
from quorumlog.wire.v1 import node_pb2 as pb

IN_PROGRESS_MAX = 64
WAIT_MAX_MS = 20_000


class Node(Log, Protocol):
    """The part of `quorum.node.QuorumNode` that this module uses."""

    @property
    def node_id(self) -> int: ...

    @property
    def cluster_id(self) -> str | None: ...

    @property
    def epoch(self) -> int: ...

    async def applied(self, end_offset: int) -> None:
        """Wait until everything below `end_offset` is applied on this node.

        Raises:
            LeadershipLostError: this node stopped first.
        """
        ...

    def voters_below(self, offset: int) -> tuple[VoterSet, VoterSet | None]: ...

    def describe(self) -> DescribeQuorumReply: ...


class BrokerView(Protocol):
    """The broker of this process, as `NodeService` sees it."""

    async def describe_replicas(self, topics: Sequence[str]) -> list[pb.ReplicaDescription]:
        """Describe the replicas of the named topics, or of all topics."""
        ...

    def applied_batches(self, from_offset: int) -> tuple[int, list[pb.AppliedBatch]]:
        """Return (end of the batches whose times were dropped, batches that end above `from_offset`)."""
        ...

    def progress(self) -> tuple[int, int]:
        """Return (end of the applied metadata, number of partition changes that are not applied yet)."""
        ...

    def failed_directories(self) -> dict[str, str]:
        """Return the data directories that this process no longer uses: path → reason."""
        ...

    def compaction(self) -> pb.Compaction:
        """Return the state of the compaction of the broker's logs."""
        ...

    def dead_letters(self) -> pb.DeadLetters:
        """Return the dead letters of share groups that the broker cannot write."""
        ...

    def strays(self) -> list[pb.Stray]:
        """Return the replicas that were set aside."""
        ...

    async def purge_strays(self) -> str:
        """Delete all replicas that were set aside; return the error, or an empty string."""
        ...


class NodeState(NamedTuple):
    """State that only the process knows.

    leading_ms: how long this node has led; None if it does not lead.  fsync_p99_us: 99th percentile in microseconds.
    checks: name → (ok, detail).  wall_ms: wall time in milliseconds since 1970.
    """

    role: str
    controller_active: bool
    leading_ms: int | None
    fsync_p99_us: int | None
    checks: dict[str, tuple[bool, str]]
    wall_ms: int
    spaces: Sequence[Space] = ()


Handle = Callable[["NodeService", RequestT], Awaitable[ReplyT | Outcome]]


class NodeService:
    """state: called for each DescribeNode request.  broker: set by the process if it has a broker."""

    def __init__(self, node: Node, replay: MetadataReplay, state: Callable[[], NodeState]) -> None:
        self._node = node
        self._replay = replay
        self._state = state
        self._history = History(node)
        self._in_progress = 0
        self._ends = ReportedEnds(node, lambda: replay.image)
        self.broker: BrokerView | None = None

    async def handle(self, rpc: AnyRpc, request: Message) -> Message:
        """Answer a request of the service.

        Raises:
            RemoteProtocolError: not an RPC of this service, or another RPC's request.
            UnreachableError: this node is stopping.
        """
        handle = METHODS.get(rpc)
        if handle is None or not isinstance(request, rpc.request):
            raise RemoteProtocolError(f"{type(request).__name__} for the method {rpc.name!a}")
        header = header_of(request)
        cluster_id = self._node.cluster_id
        if header.cluster_id and cluster_id is not None and header.cluster_id != cluster_id:
            text = f"this is cluster {cluster_id}; the request is for {header.cluster_id[:60]!a}"
            return _refused(rpc, Outcome(ApiError.INCONSISTENT_CLUSTER_ID, text))
        if self._in_progress >= IN_PROGRESS_MAX:
            text = f"{IN_PROGRESS_MAX} requests are in progress on this node"
            return _refused(rpc, Outcome(ApiError.OVERLOADED, text, "retry later"))
        self._in_progress += 1
        try:
            answer: Message | Outcome = await handle(self, request)
        except NotRetainedError:
            answer = self._gone()
        except CorruptStoreError as error:
            answer = Outcome(
                ApiError.INVALID_REQUEST, f"the history of this node cannot be read: {error.message}", error.next_step
            )
        finally:
            self._in_progress -= 1
        return _refused(rpc, answer) if isinstance(answer, Outcome) else answer

    def _gone(self) -> Outcome:
        text = f"history on node {self._node.node_id} begins at offset {self._history.begins}"
        return Outcome(ApiError.OFFSET_OUT_OF_RANGE, text, "request a later offset, or ask another node")

    def _beyond(self, offset: int, end: int) -> Outcome:
        text = f"offset {offset}: history on node {self._node.node_id} contains offsets {self._history.begins} to {end}"
        return Outcome(ApiError.OFFSET_OUT_OF_RANGE, text, "request one of these, or ask another node")

    # By method

    async def _describe_node(self, request: pb.DescribeNodeRequest) -> pb.DescribeNodeReply | Outcome:
        state = self._state()
        applied, pending = (None, 0) if self.broker is None else self.broker.progress()
        failed = {} if self.broker is None else self.broker.failed_directories()
        return pb.DescribeNodeReply(
            result=result(OK),
            node_id=self._node.node_id,
            role=state.role,
            epoch=self._node.epoch,
            controller_active=state.controller_active,
            leading_ms=state.leading_ms,
            applied_offset=self._replay.image.end_offset,
            high_watermark=self._node.high_watermark,
            checks=[pb.CheckResult(name=name, ok=ok, detail=detail) for name, (ok, detail) in state.checks.items()],
            fsync_p99_us=state.fsync_p99_us,
            is_broker=self.broker is not None,
            directories_offline=sorted(failed),
            broker_applied_offset=applied,
            pending_changes=pending,
            wall_ms=state.wall_ms,
            directories=[pb.Directory(**space._asdict(), problem=failed.get(space.path, "")) for space in state.spaces],
            ends=self._ends.listed(),
            compaction=None if self.broker is None else self.broker.compaction(),
            dead_letters=None if self.broker is None else self.broker.dead_letters(),
        )

    async def _read_metadata(self, request: pb.ReadMetadataRequest) -> pb.ReadMetadataReply | Outcome:
        offset = self._node.high_watermark if request.from_offset == -1 else request.from_offset
        if not 0 <= offset <= self._node.high_watermark:
            return self._beyond(offset, self._node.high_watermark)
        if offset < self._node.log_start:
            return self._gone()
        if offset == self._node.high_watermark and request.wait_ms:
            try:
                async with asyncio.timeout(min(request.wait_ms, WAIT_MAX_MS) / 1000):
                    await self._node.applied(offset + 1)
            except TimeoutError:
                pass  # nothing arrived: an empty answer
            except LeadershipLostError as stopping:
                raise UnreachableError(str(stopping)) from stopping
        limit = min(request.max_bytes or READ_BYTES, READ_BYTES)
        batches = await self._node.read_committed(offset, max(limit, 1))
        if not batches and offset < self._node.high_watermark:
            return self._gone()
        return pb.ReadMetadataReply(
            result=result(OK),
            log_start=self._node.log_start,
            high_watermark=self._node.high_watermark,
            batches=[batch_message(batch) for batch in batches],
            next_offset=batches[-1].end_offset if batches else offset,
        )

    async def _describe_metadata(self, request: pb.DescribeMetadataRequest) -> pb.DescribeMetadataReply | Outcome:
        image, timestamp_ms = self._replay.image, self._replay.timestamp_ms
        if request.at_offset != -1 and request.at_offset != image.end_offset:
            if not 0 <= request.at_offset <= image.end_offset:
                return self._beyond(request.at_offset, image.end_offset)
            image, timestamp_ms = await self._history.image_at(request.at_offset)
        # Read before the next await, during which the beginning of the log may be deleted.
        voters, target = self._node.voters_below(image.end_offset)
        reply = await describe_metadata(
            image, self._node.cluster_id or "", request.topics, partitions=not request.without_partitions
        )
        if reply.result.error != ApiError.NONE:
            return reply
        reply.history_begins = self._history.begins
        reply.timestamp_ms = timestamp_ms
        reply.voters.extend(voter_words.addresses(voters))
        reply.target_voters.extend(voter_words.addresses(target or VoterSet()))
        return reply

    async def _explain(self, request: pb.ExplainPartitionRequest) -> pb.ExplainPartitionReply | Outcome:
        image = self._replay.image
        name, index = request.partition.topic, request.partition.index
        topic = image.topic(name)
        partition = None if topic is None else topic.partition(index)
        if topic is None or partition is None:
            what = f"topic {name[:60]!a} does not exist" if topic is None else f"{name} has no partition {index}"
            return Outcome(ApiError.UNKNOWN_TOPIC_OR_PARTITION, what, "kctl topics list")
        if request.max_changes < 0:
            return Outcome(ApiError.INVALID_REQUEST, f"max_changes {request.max_changes} is negative")
        chain = await self._history.chain(image, topic.topic_id, index, request.max_changes or CHAIN_MAX)
        return pb.ExplainPartitionReply(
            result=result(OK),
            offset=image.end_offset,
            now=now_text(image, topic, partition),
            chain=[
                pb.ExplainedChange(
                    offset=entry.offset,
                    timestamp_ms=batch.timestamp_ms,
                    epoch=batch.epoch,
                    reason=reason_word(entry.record),
                    cause_offset=cause_offset(entry.record),
                    text=text,
                )
                for entry, batch, text in zip(chain.entries, chain.batches, explain(chain.entries), strict=True)
            ],
            history_begins=self._history.begins,
            complete=chain.complete,
        )

    async def _applied_batches(self, request: pb.ListAppliedBatchesRequest) -> pb.ListAppliedBatchesReply | Outcome:
        if self.broker is None:
            return pb.ListAppliedBatchesReply(result=result(OK), is_broker=False)
        kept_from, batches = self.broker.applied_batches(request.from_offset)
        return pb.ListAppliedBatchesReply(result=result(OK), is_broker=True, kept_from=kept_from, batches=batches)

    async def _describe_replicas(self, request: pb.DescribeReplicasRequest) -> pb.DescribeReplicasReply | Outcome:
        if self.broker is None:
            return pb.DescribeReplicasReply(result=result(OK), is_broker=False)
        replicas = await self.broker.describe_replicas(request.topics)
        if len(replicas) > PARTITIONS_IN_REPLY_MAX:
            text = f"{len(replicas)} replicas; one answer can describe at most {PARTITIONS_IN_REPLY_MAX}"
            return Outcome(ApiError.POLICY_VIOLATION, text, "request single topics by name")
        return pb.DescribeReplicasReply(result=result(OK), is_broker=True, replicas=replicas)

    async def _purge_strays(self, request: pb.PurgeStraysRequest) -> pb.PurgeStraysReply | Outcome:
        if self.broker is None:
            return pb.PurgeStraysReply(result=result(OK), is_broker=False)
        strays = self.broker.strays()
        problem = "" if request.dry_run else await self.broker.purge_strays()
        if problem:
            return Outcome(ApiError.STORAGE_ERROR, problem, "check the disk of that broker")
        return pb.PurgeStraysReply(result=result(OK), is_broker=True, strays=strays)

    async def _report_end(self, request: pb.ReportEndRequest) -> pb.ReportEndReply | Outcome:
        return pb.ReportEndReply(result=result(self._ends.report(request)))


def batch_message(batch: Batch) -> pb.MetadataBatch:
    """Convert a batch of the log: its records, or the text of a control record."""
    message = pb.MetadataBatch(
        base_offset=batch.base_offset, count=batch.count, epoch=batch.epoch, timestamp_ms=batch.timestamp_ms
    )
    if batch.control is None:
        message.records.ParseFromString(batch.payload)
    else:
        message.control = _control_text(batch)
    return message


def _control_text(batch: Batch) -> str:
    match batch.control:
        case LeaderChange(leader=leader, granting_voters=granting):
            votes = ", ".join(str(key.node_id) for key in granting)
            return f"LeaderChange: {leader.node_id} leads epoch {batch.epoch}, with the votes of {votes or 'itself'}"
        case Voters(generation=generation, voters=voters):
            listed = ", ".join(f"{voter.key.node_id}@{voter.address}" for voter in voters)
            return f"Voters: {listed}; generation {generation}"
        case TargetVoters(target=None):
            return "TargetVoters: none"
        case TargetVoters(target=target):
            assert target is not None, "matched above"
            return "TargetVoters: " + ", ".join(f"{voter.key.node_id}@{voter.address}" for voter in target)
        case None:
            raise AssertionError("a data batch has no control text")


def _refused(rpc: AnyRpc, outcome: Outcome) -> Message:
    reply: Message = rpc.reply_of(result(outcome))
    return reply


def _method(rpc: Rpc[RequestT, ReplyT], handle: Handle[RequestT, ReplyT]) -> tuple[AnyRpc, Handle[Any, Any]]:
    """Return an entry of `METHODS` whose types fit together."""
    return rpc, handle


METHODS: dict[AnyRpc, Handle[Any, Any]] = dict(
    (
        _method(rpcs.DESCRIBE_NODE, NodeService._describe_node),
        _method(rpcs.READ_METADATA, NodeService._read_metadata),
        _method(rpcs.DESCRIBE_METADATA, NodeService._describe_metadata),
        _method(rpcs.EXPLAIN_PARTITION, NodeService._explain),
        _method(rpcs.LIST_APPLIED_BATCHES, NodeService._applied_batches),
        _method(rpcs.DESCRIBE_REPLICAS, NodeService._describe_replicas),
        _method(rpcs.REPORT_END, NodeService._report_end),
        _method(rpcs.PURGE_STRAYS, NodeService._purge_strays),
    )
)
"""Every RPC of the service."""
