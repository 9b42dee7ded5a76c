"""Effects, requests and replies as one line of text each, for DEBUG logs and the scenarios in `tests/scenarios`."""

from __future__ import annotations

from typing import assert_never

from quorum.core.events import (
    AdvanceHighWatermark,
    Anomaly,
    ControlApplied,
    Effect,
    Joined,
    LoadSnapshot,
    NodeRefused,
    ProposalAppended,
    ProposalRefused,
    ReadConfirmed,
    ReadLog,
    ReadRefused,
    ReadSnapshot,
    ReceiveSnapshot,
    ResetConnections,
    RoleChanged,
    SendReply,
    SendRequest,
    StoreSnapshotPart,
    Transferred,
    VoterChangeError,
    VotersChanged,
    Write,
)
from quorum.core.messages import (
    BeginQuorumEpoch,
    BeginQuorumEpochReply,
    DescribeQuorum,
    DescribeQuorumReply,
    EndQuorumEpoch,
    EndQuorumEpochReply,
    ErrorCode,
    Fetch,
    FetchReply,
    FetchSnapshot,
    FetchSnapshotReply,
    Introduce,
    IntroduceReply,
    Knowledge,
    Reply,
    Request,
    Vote,
    VoteReply,
)
from quorum.core.types import Batch, ControlRecord, LeaderChange, LogEnd, QuorumState, TargetVoters, Voters


def describe_request(request: Request) -> str:
    match request:
        case Vote():
            kind = "pre-vote" if request.pre_vote else "vote"
            return f"{kind} epoch={request.epoch} end={_end(request.log_end)}"
        case BeginQuorumEpoch():
            return f"begin epoch={request.epoch}"
        case EndQuorumEpoch():
            successors = ",".join(str(key.node_id) for key in request.successors)
            return f"end epoch={request.epoch} successors={successors or 'none'}"
        case Fetch():
            at = f"at={request.last_fetched_epoch}:{request.offset}"
            return f"fetch epoch={request.epoch} {at} hw={request.high_watermark}"
        case FetchSnapshot():
            return f"fetch-snapshot epoch={request.epoch} {_end(request.snapshot)} from={request.position}"
        case Introduce():
            founders = ",".join(str(node_id) for node_id, _ in request.initial_voters)
            return f"introduce founders={founders or 'none'}"
        case DescribeQuorum():
            return "describe-quorum"
        case _:
            assert_never(request)


def describe_reply(reply: Reply) -> str:
    error = "" if reply.error is ErrorCode.NONE else f" {reply.error.value}"
    known = _known(reply.known)
    match reply:
        case VoteReply():
            verdict = "granted" if reply.granted else "refused"
            return f"vote-reply {verdict}{error} {known}"
        case BeginQuorumEpochReply():
            return f"begin-reply{error} {known}"
        case EndQuorumEpochReply():
            return f"end-reply{error} {known}"
        case FetchReply():
            content = "".join(f" {_batch(batch)}" for batch in reply.batches)
            if reply.diverging is not None:
                content += f" diverging={_end(reply.diverging)}"
            if reply.snapshot is not None:
                content += f" snapshot={_end(reply.snapshot)}"
            return f"fetch-reply{error} {known} hw={reply.high_watermark}{content}"
        case FetchSnapshotReply():
            part = f"{reply.position}+{len(reply.data)} of {reply.size}"
            return f"fetch-snapshot-reply{error} {known} {_end(reply.snapshot)} {part}"
        case IntroduceReply():
            kind = "newborn" if reply.newborn else ("founded" if reply.founding is not None else "unfounded")
            return f"introduce-reply {kind}{error} cluster={reply.known.cluster_id or 'none'}"
        case DescribeQuorumReply():
            paused = " paused" if reply.paused else ""
            return f"describe-quorum-reply{error} {known} hw={reply.high_watermark}{paused}"
        case _:
            assert_never(reply)


def describe(effect: Effect) -> str:
    match effect:
        case SendRequest():
            to = effect.to.node_id if effect.to.node_id is not None else effect.to.address
            return f"ask {to}: {describe_request(effect.request)}{_after(effect.after)}"
        case SendReply():
            return f"answer: {describe_reply(effect.reply)}{_after(effect.after)}"
        case Write():
            cut = f" truncate={effect.truncate_to}" if effect.truncate_to is not None else ""
            batches = "".join(f" {_batch(batch)}" for batch in effect.batches)
            base = f" start={_end(effect.base.end)}" if effect.base is not None else ""
            return f"write {effect.id}: {_state(effect.state)}{cut}{base}{batches}"
        case ReadLog():
            return f"read {effect.start}..{effect.end}"
        case ProposalAppended():
            return f"appended {effect.base_offset}..{effect.end_offset}"
        case ProposalRefused():
            return f"not appended: {effect.reason}"
        case AdvanceHighWatermark():
            return f"high watermark {effect.offset}"
        case RoleChanged():
            return f"{effect.role.value} in epoch {effect.epoch}: {effect.reason}"
        case ControlApplied():
            return f"in force: {_control(effect.record)}"
        case Joined():
            replaced = f", in place of {effect.replaced}" if effect.replaced is not None else ""
            return f"joined {effect.cluster_id}{replaced}"
        case NodeRefused():
            return f"refused: {effect.message}"
        case VotersChanged():
            return f"change {effect.call}: {_result(effect)}"
        case Transferred():
            verdict = "done" if effect.error is VoterChangeError.NONE else effect.error.value
            return f"transfer {effect.call}: {verdict}: {effect.message}"
        case ReadConfirmed():
            return f"read {effect.call}: current at {effect.offset}"
        case ReadRefused():
            return f"read {effect.call}: refused: {effect.reason}"
        case ReadSnapshot():
            return f"read snapshot {_end(effect.snapshot)} from {effect.position}"
        case ReceiveSnapshot():
            return f"receive snapshot {_end(effect.snapshot)}"
        case StoreSnapshotPart():
            return f"store {len(effect.data)} bytes of snapshot {_end(effect.snapshot)} at {effect.position}"
        case LoadSnapshot():
            return f"load snapshot {_end(effect.snapshot)}"
        case ResetConnections():
            return "reset connections"
        case Anomaly():
            return f"anomaly: {effect.message}"
        case _:
            assert_never(effect)


def _result(effect: VotersChanged) -> str:
    result = effect.result
    verdict = "unchanged" if result.error is VoterChangeError.NONE else result.error.value
    if result.changed:
        verdict = f"done at {result.offset}"
    advice = f" -> {result.next_step}" if result.next_step else ""
    return f"{verdict}: {result.message}{advice}"


def _end(end: LogEnd) -> str:
    return f"{end.epoch}:{end.offset}"


def _known(known: Knowledge) -> str:
    return f"epoch={known.epoch} leader={known.leader_id if known.leader_id is not None else 'none'}"


def _after(write: int | None) -> str:
    return f" (after write {write})" if write is not None else ""


def _state(state: QuorumState) -> str:
    election = state.election
    leader = election.leader_id if election.leader_id is not None else "none"
    voted = election.voted_for.node_id if election.voted_for is not None else "none"
    return f"epoch={election.epoch} leader={leader} voted={voted}"


def _batch(batch: Batch) -> str:
    content = batch.payload.decode("utf-8", "backslashreplace")
    if batch.control is not None:
        content = _control(batch.control)
    return f"[{batch.base_offset}e{batch.epoch} {content}]"


def _control(record: ControlRecord) -> str:
    match record:
        case LeaderChange():
            return f"leader {record.leader.node_id}"
        case Voters():
            return "voters " + ",".join(str(voter.key.node_id) for voter in record.voters)
        case TargetVoters():
            target = record.target
            return "target " + (",".join(str(voter.key.node_id) for voter in target) if target is not None else "none")
        case _:
            assert_never(record)
