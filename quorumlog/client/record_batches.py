"""The records that a consumer hands out together: `quorumlog.client.RecordBatch`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from quorumlog.client.messages import TopicPartition
from quorumlog.wire._record_scan import Record


class RecordBatch(Sequence[Record]):
    """Records of one partition, in their order."""

    __slots__ = ("_records", "high_watermark", "topic_partition")

    def __init__(self, topic_partition: TopicPartition, records: list[Record], high_watermark: int) -> None:
        self.topic_partition = topic_partition
        self.high_watermark = high_watermark
        """The high watermark of the partition, from the last answer to a fetch before the records were handed out."""
        self._records = records

    @property
    def topic(self) -> str:
        return self.topic_partition.topic

    @property
    def partition(self) -> int:
        return self.topic_partition.partition

    def __getitem__(self, index: Any) -> Any:
        return self._records[index]

    def __len__(self) -> int:
        return len(self._records)

    def __iter__(self) -> Any:
        return iter(self._records)
