"""The broker's log: segments of record batches on a `Disk`, one `PartitionLog` for each hosted partition.

The interface (all offsets are ints, end offsets exclusive; `now_ms` is the loop's clock, `wall_ms` the wall clock):

    LogKey(topic_id: UUID, index: int, created: int)         # identifies one replica permanently; `created`: offset of
                                                             # its Partition record
    LogConfig(segment_size_max, segment_age_max_ms, retention_ms, retention_size, message_size_max,
              write_caching, producer_expiration_ms, …)      # one topic's settings, frozen; all have defaults

    class LogManager:
        LogManager(disks: Sequence[Disk], checkpoint_bytes)
        async open() -> None                    # loads and recovers; a damaged replica is put in `failures`
        async close() -> None                   # flushes, writes the clean-shutdown marker
        logs: Mapping[LogKey, PartitionLog]     # all hosted logs, including those that are still empty
        failures: Mapping[LogKey, CorruptStoreError]         # replicas that are offline, and why
        failed_disks: Mapping[UUID, DiskError]  # directories that are offline
        clean_start: bool                       # every directory is new, or was stopped cleanly before this start
        clean_stop: bool                        # `close` has stopped every directory cleanly
        events: LogEvents                       # reports failed directories, damaged logs and moved logs
        disk_failed(directory_id, error)        # when a log's method raised DiskError
        take_offline(key, error)                # when a log's method raised CorruptStoreError
        create(key, topic: str, directory_id: UUID, config: LogConfig) -> PartitionLog   # in memory; cheap
        get(key) -> PartitionLog | None
        async flush_all(logs: Iterable[PartitionLog]) -> None   # one barrier for each directory; makes everything
                                                # appended so far durable.  Raises DiskError.  The caller sets the
                                                # deadline.
        async set_aside(keys: Iterable[LogKey], wall_ms) -> None       # removes logs; their folders become strays
        async delete_strays(now_ms, kept_ms, unreported) -> int   # deletes strays that an earlier call saw `kept_ms`
                                                # ago, except those that show a move of an `unreported` log
        doubles: Mapping[LogKey, Mapping[UUID, PartitionLog]]   # in several directories; not in `logs`
        settle(key, directory_id)               # uses the double in this directory; without one, `failures` has `key`
        async set_doubles_aside(wall_ms) -> None # the doubles that were not chosen, or never settled
        async maintain(now_ms: () -> int, wall_ms) -> None # retention, expiry, recovery points: call every minute or so
        moves: LogMoves                         # moves logs to other directories: `request`, `futures`, `run`
        async lower_truncation_floor(log, offset, is_wanted) -> None   # before truncating committed records
        async checkpoint(logs) -> None          # writes start offsets and recovery points now
        async reset_to(log, offset, epoch, is_wanted) -> bool  # drops all, continues at `offset`, after a record of
                                                # `epoch`, if `is_wanted` returns True at that moment

    class PartitionLog:
        key, topic, directory_id, config (assignable)
        start_offset, end_offset, flushed_offset, high_watermark, size
                                                # flushed == end with write_caching, once the folder's fact is durable
        durability.on_flushed: Callable[[], None] | None   # called after a flush; assignable
        epochs: EpochCache                      # .latest, .end_of(epoch) -> (epoch, end offset), .epoch_of(offset)
        producers: ProducerState
        append_as_leader(batches: bytes | bytearray | memoryview | Produced, leader_epoch: int, now_ms: int)
            -> Appended | Refused               # `Produced`: batches that `check_produced` has checked already
        append_as_follower(batches, leader_epoch: int, now_ms: int) -> Appended | Refused
        begin_epoch(leader_epoch: int) -> None  # a new leader, before its first append; memory only
        read(offset, max_bytes, up_to_offset) -> bytes | memoryview  # whole batches, at least one; b"" if there is none
        truncate_to(offset) -> None             # synchronous; offset >= truncation_floor.  Removes whole batches.
                                                # `LogManager.prepare_truncation` comes first
        truncation_floor: int                   # see lower_truncation_floor; never above the high watermark
        advance_high_watermark(offset) -> None  # never backwards; retention and recovery points stay below it
        advance_start_offset(offset) -> None    # DeleteRecords, or a leader that has moved its start
        async offset_for_timestamp(timestamp_ms, up_to_offset) -> TimestampOffset | None   # (timestamp, offset, epoch)
        async max_timestamp_offset(up_to_offset) -> TimestampOffset | None

    Appended(first_offset, end_offset, duplicate: bool)      # duplicate: nothing was appended; the offsets are those of
                                                             # the original batch, which may not be committed yet
    Refused(code: int, reason: str, record_errors)           # a Kafka error code; nothing was appended

Every `PartitionLog` method that reads or writes may raise `CorruptStoreError` (this replica must go offline: file,
offset, cause) or `DiskError` (the whole directory is offline).  Clients get KAFKA_STORAGE_ERROR for both.
Appending never waits: appended records are readable immediately, and may be acknowledged once `flushed_offset` has
passed them.
"""

from broker.log.manager import LogManager
from broker.log.partition_log import PartitionLog
from broker.log.types import Appended, LogConfig, LogKey, Refused, TimestampOffset

__all__ = ["Appended", "LogConfig", "LogKey", "LogManager", "PartitionLog", "Refused", "TimestampOffset"]
