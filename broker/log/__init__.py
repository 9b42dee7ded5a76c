"""The broker's log: segments of record batches on a `Disk`, one `PartitionLog` for each hosted partition.

The interface consists of these names; their modules describe them:

    LogManager      all logs: start, stop, creation, flush, retention, strays            manager.py
    PartitionLog    one log: appends, reads, truncations, watermark and start            partition_log.py
    LogMoves        moves of logs to other data directories (`LogManager.moves`)         moves.py
    LogEvents       failed directories, damaged and moved logs (`LogManager.events`)     events.py
    LogCleaner      compaction of all logs                                               cleaner.py
    LogKey, LogConfig, Appended, Refused, TimestampOffset                                types.py

Offsets are ints, and end offsets are exclusive.  `now_ms` is a time of the loop's clock, `wall_ms` of the wall clock.

Appending never waits: appended records are readable immediately, and may be acknowledged once
`PartitionLog.flushed_offset` has passed them.

Every `PartitionLog` method that reads or writes may raise `CorruptStoreError` or `DiskError`.  After the first, the
caller takes the replica offline (`LogManager.take_offline`), after the second the whole directory
(`LogManager.disk_failed`).  Clients get KAFKA_STORAGE_ERROR for both.
"""

from broker.log.manager import LogManager
from broker.log.partition_log import PartitionLog
from broker.log.types import Appended, LogConfig, LogKey, Refused, TimestampOffset

__all__ = ["Appended", "LogConfig", "LogKey", "LogManager", "PartitionLog", "Refused", "TimestampOffset"]
