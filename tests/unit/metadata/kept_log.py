"""The log of a fake node as `History` reads it, without the parts that a node may have dropped."""

from __future__ import annotations

from typing import Any

from metadata.image import ClusterImage
from quorum.core.messages import DescribeQuorumReply, ErrorCode, ReplicaStatus
from quorum.core.types import Batch, ReplicaKey, Voter, VoterSet
from quorumlog.runtime.clock import now_ms
from tests.contract.samples import KEYS, KNOWN, VOTERS
from tests.unit.metadata.fake_node import FakeNode, Plane


class KeptLog:
    """Tests set `log_start` and `snapshots`; `images` has the images of the replay, by end offset."""

    def __init__(self, plane: Plane) -> None:
        self._node: FakeNode = plane.node
        self._plane = plane
        self.log_start = 0
        self.snapshots: list[int] = []
        self.reads = 0
        self.voters: tuple[VoterSet, VoterSet | None] = (VOTERS, None)
        self.observers: tuple[ReplicaKey, ...] = ()
        self.fetched_ms: dict[int, int] = {}  # time of the last fetch, by node id
        self.images: dict[int, ClusterImage] = {0: ClusterImage()}
        self.timestamps: dict[int, int] = {}
        plane.replay.subscribe(self._remember)

    def _remember(self, old: ClusterImage, new: ClusterImage, records: Any) -> None:
        self.images[new.end_offset] = new
        self.timestamps[new.end_offset] = self._plane.replay.timestamp_ms

    @property
    def high_watermark(self) -> int:
        return self._node.high_watermark

    @property
    def node_id(self) -> int:
        return self._node.node_id

    @property
    def cluster_id(self) -> str | None:
        return self._node.cluster_id

    @property
    def epoch(self) -> int:
        return self._node.epoch

    async def applied(self, end_offset: int) -> None:
        await self._plane.replay.wait_for(end_offset)

    async def read_committed(self, start: int, max_bytes: int) -> tuple[Batch, ...]:
        self.reads += 1
        if not self.log_start <= start < self.high_watermark:
            return ()
        found: list[Batch] = []
        for batch in self._node.log:
            if batch.end_offset <= start or batch.end_offset > self.high_watermark:
                continue
            if found and sum(each.size for each in found) + batch.size > max_bytes:
                break
            found.append(batch)
        return tuple(found)

    def voters_below(self, offset: int) -> tuple[VoterSet, VoterSet | None]:
        voters, target = self.voters
        return (voters, target) if offset > 0 else (VoterSet(), None)

    def describe(self) -> DescribeQuorumReply:
        def status(voter: Voter) -> ReplicaStatus:
            at_ms = self.fetched_ms.get(voter.key.node_id)
            return ReplicaStatus(voter, 0, 0, None if at_ms is None else now_ms() - at_ms, None)

        voters = tuple(status(voter) for voter in self.voters[0])
        observers = tuple(status(Voter(key, "")) for key in self.observers)
        end = self.high_watermark
        return DescribeQuorumReply(ErrorCode.NONE, KNOWN, KEYS[0], end, end, False, voters, observers, None, None, None)

    async def state_below(self, offset: int) -> tuple[int, Any] | None:
        ends = [end for end in self.snapshots if end <= offset]
        return (max(ends), self.images[max(ends)]) if ends else None

    def drop_below(self, end_offset: int) -> None:
        """Let the log begin at this end, as after a snapshot without retained history."""
        assert end_offset in self.images, f"{end_offset} is inside a batch"
        self.snapshots = [end_offset]
        self.log_start = end_offset
