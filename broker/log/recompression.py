"""Changes the codec of produced batches to the codec of their topic (`compression.type`), before a leader appends them.

Only the codec changes, and with it the length and the checksum in the header.  The bytes of the records stay as they
are, and so do all other fields: producer id, epoch and sequence, the transactional flag, offsets and timestamps.  So
producers, consumers and followers treat the batch as if it had been produced in this codec.  As in
`broker.log.produced`, a wrong max timestamp is corrected.

As in Kafka, a batch that has the topic's codec already is not compressed again at another level.  Every produced batch
is opened and checked, even if the topic does not demand the check of records.

Memory: the batches together inflate to at most the caller's bound, and each result has at most `message_size_max` and
`BATCH_SIZE_MAX` bytes.
"""

from __future__ import annotations

from typing import Final

from broker.log.produced import Produced, open_batches
from broker.log.types import Refused
from quorumlog.wire.compression import Recompression, compress
from quorumlog.wire.errors import KafkaCode
from quorumlog.wire.record_batch import CODEC_MASK, HEADER_SIZE, LENGTH_END, Codec, parse_header, seal

BATCH_SIZE_MAX: Final = 100 << 20
"""Bytes of a recompressed batch, header included: as many as a client can send without recompression.  Followers and
clients close a connection whose reply is much larger.  A larger batch would thus end the replication of all partitions
that this broker leads."""


def needs_recompression(produced: Produced, target: Recompression) -> bool:
    return any(header.codec is not target.codec for header in produced.headers)


def recompress(
    produced: Produced, target: Recompression, inflated_max: int, message_size_max: int
) -> Produced | Refused:
    """Return the batches in the codec of `target`, in new memory, or a refusal.  May run in any thread.

    inflated_max: bytes to which all batches with compression together may inflate.
    message_size_max: bytes of a batch, header included.  A batch that exceeds it only in the new codec is refused, too,
        so that followers and consumers never receive a larger one.  At most `BATCH_SIZE_MAX` is accepted.
    """
    size_max = min(message_size_max, BATCH_SIZE_MAX)
    source = memoryview(produced.data)
    data = bytearray()
    headers, max_timestamps = [], []
    for opened in open_batches(produced, inflated_max):
        if isinstance(opened, Refused):
            return opened
        header, position = opened.header, len(data)
        if header.codec is target.codec:
            data += source[opened.position : opened.position + header.size]
        else:
            packed = compress(target.codec, opened.body, target.level)
            size = HEADER_SIZE + len(packed)
            if size > size_max:
                form = "uncompressed" if target.codec is Codec.NONE else f"with {target.codec.name.lower()}"
                text = f"batch of {size} bytes {form}, as compression.type demands; the limit is {size_max}"
                return Refused(KafkaCode.MESSAGE_TOO_LARGE, text)
            changed = header._replace(
                batch_length=size - LENGTH_END,
                attributes=header.attributes & ~CODEC_MASK | target.codec,
                max_timestamp=opened.max_timestamp,
            )
            data += bytes(HEADER_SIZE)
            data += packed
            seal(data, changed, position)
            header = parse_header(data, position)
        headers.append(header)
        max_timestamps.append(opened.max_timestamp)
    return produced._replace(data=data, headers=headers, max_timestamps=max_timestamps)
