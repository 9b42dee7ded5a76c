"""The lag of streaming queries: the number of offsets that a source has not read yet, by partition.

The lag is computed without a request to a broker: Spark's progress contains the log ends at the time of the last batch.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from pyspark.sql.streaming.listener import StreamingQueryListener

from pyspark_quorumlog.options import OptionError, Partition
from pyspark_quorumlog.stream_plan import from_json

if TYPE_CHECKING:
    from pyspark.sql.streaming.listener import (
        QueryIdleEvent,
        QueryProgressEvent,
        QueryStartedEvent,
        QueryTerminatedEvent,
        SourceProgress,
    )

Lag = Mapping[Partition, int]


def lag_of(source: SourceProgress) -> Lag | None:
    """Return the lag in the progress of a source, such as `query.lastProgress.sources[0]`.

    None: its offsets have another form, because it is a source of another kind.
    A new partition counts from offset 0 until the first batch that includes it, because the progress does not contain
    the starts of the logs.  So its lag includes records that were deleted before.
    """
    try:
        read, ends = (from_json(json.loads(text or "{}")) for text in (source.endOffset, source.latestOffset))
    except (OptionError, ValueError):
        return None
    return {one: ends[one] - read.get(one, 0) for one in sorted(ends)}


class LagListener(StreamingQueryListener):
    """Reports the lag of each quorumlog or Kafka source after each batch.

    Use it with `spark.streams.addListener(LagListener(report))`.
    report: called with the query's name, or its id if it has none, and the lag.
    """

    def __init__(self, report: Callable[[str, Lag], None]) -> None:
        self._report = report

    def onQueryStarted(self, event: QueryStartedEvent) -> None:
        pass

    def onQueryProgress(self, event: QueryProgressEvent) -> None:
        for source in event.progress.sources:
            if lag := lag_of(source):
                self._report(event.progress.name or str(event.progress.id), lag)

    def onQueryIdle(self, event: QueryIdleEvent) -> None:
        pass

    def onQueryTerminated(self, event: QueryTerminatedEvent) -> None:
        pass
