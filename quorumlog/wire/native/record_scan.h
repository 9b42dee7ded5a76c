/* Check the framing of the records in one record batch (format v2).  Standard C only: the extension module and the
 * fuzz harness both include this file.
 *
 * The check takes time in proportion to the size of the batch, never recurses and never allocates.  Every read is
 * preceded by a comparison with the end of the record or of the batch.  A count or length that the batch claims only
 * bounds a loop whose every step consumes at least one byte.
 */
#ifndef QUORUMLOG_RECORD_SCAN_H
#define QUORUMLOG_RECORD_SCAN_H

#include <stddef.h>
#include <stdint.h>

/* quorumlog/wire/record_framing.py names the same numbers. */
enum scan_problem {
    SCAN_OK = 0,
    SCAN_NUMBER_CUT_OFF,   /* a varint runs past the end of its record or of the batch */
    SCAN_NUMBER_TOO_LARGE, /* a varint that does not fit into its 32 or 64 bits */
    SCAN_RECORD_LENGTH,    /* shorter than the shortest record, or past the end of the batch */
    SCAN_OFFSET_DELTA,     /* not the position of the record in the batch */
    SCAN_TIMESTAMP_RANGE,  /* below -1, or not a 64-bit number */
    SCAN_TIMESTAMP_AHEAD,  /* above the newest that the topic accepts */
    SCAN_KEY_LENGTH,       /* below -1, or past the end of the record */
    SCAN_VALUE_LENGTH,
    SCAN_HEADER_COUNT, /* negative, or more than fit into the record */
    SCAN_HEADER_KEY,   /* null, or past the end of the record */
    SCAN_HEADER_VALUE, /* below -1, or past the end of the record */
    SCAN_RECORD_REST,  /* the record has bytes after its last header */
    SCAN_BATCH_REST,   /* the batch has bytes after its last record */
    SCAN_BATCH_SHORT,  /* the batch ends before the records that its header counts */
    SCAN_TIMESTAMP_BEHIND, /* below the oldest that the topic accepts */
};

/* Attributes, timestamp delta, offset delta, key length, value length, header count: one byte each. */
#define SCAN_RECORD_CONTENT_MIN 6
/* Key length and value length. */
#define SCAN_HEADER_MIN 2

struct scan_result {
    int problem;
    int32_t record;         /* index of the record with the problem; without a problem, the number of records */
    int64_t position;       /* position of the problem in the body; without a problem, the end of the body */
    int64_t max_timestamp;  /* the newest of the records that were checked; -1 when none has a timestamp */
    int32_t first_null_key; /* index of the first checked record without a key; -1: every record has one */
};

/* Read a varint of at most 32 bits, byte by byte, and advance *at.  Return 0 or a problem. */
static inline int scan_long_raw32(const uint8_t **at, const uint8_t *end, uint32_t *raw)
{
    const uint8_t *p = *at;
    uint32_t value = 0, byte;
    unsigned shift;

    for (shift = 0;; shift += 7) {
        if (p == end)
            return SCAN_NUMBER_CUT_OFF;
        byte = *p++;
        if (shift == 28 && byte > 0x0F)
            return SCAN_NUMBER_TOO_LARGE;
        value |= (byte & 0x7F) << shift;
        if (byte < 0x80)
            break;
    }
    *at = p;
    *raw = value;
    return SCAN_OK;
}

/* Read a zigzag varint of at most 32 bits and advance *at.  Return 0 or a problem.  Nearly all have one or two bytes. */
static inline int scan_varint32(const uint8_t **at, const uint8_t *end, int32_t *value)
{
    const uint8_t *p = *at;
    uint32_t raw;
    int failed;

    if (p != end && p[0] < 0x80) {
        raw = p[0];
        *at = p + 1;
    } else if (end - p >= 2 && p[1] < 0x80) {
        raw = (p[0] & 0x7Fu) | (uint32_t)p[1] << 7;
        *at = p + 2;
    } else if ((failed = scan_long_raw32(at, end, &raw))) {
        return failed;
    }
    *value = (int32_t)((raw >> 1) ^ (0u - (raw & 1)));
    return SCAN_OK;
}

/* Read a zigzag varint of at most 64 bits and advance *at.  Return 0 or a problem. */
static inline int scan_varint64(const uint8_t **at, const uint8_t *end, int64_t *value)
{
    const uint8_t *p = *at;
    uint64_t raw = 0, byte;
    unsigned shift;

    for (shift = 0;; shift += 7) {
        if (p == end)
            return SCAN_NUMBER_CUT_OFF;
        byte = *p++;
        if (shift == 63 && byte > 0x01)
            return SCAN_NUMBER_TOO_LARGE;
        raw |= (byte & 0x7F) << shift;
        if (byte < 0x80)
            break;
    }
    *at = p;
    *value = (int64_t)((raw >> 1) ^ (UINT64_C(0) - (raw & 1)));
    return SCAN_OK;
}

/* Skip a length and the bytes that it counts.  `shortest`: -1 where null is allowed, else 0.  Return 0, a varint's
 * problem or `problem`. */
static inline int scan_bytes(const uint8_t **at, const uint8_t *end, int32_t shortest, int problem, int32_t *length)
{
    int failed = scan_varint32(at, end, length);
    if (failed)
        return failed;
    if (*length < shortest || *length > end - *at)
        return problem;
    if (*length > 0)
        *at += *length;
    return SCAN_OK;
}

static inline int scan_headers(const uint8_t **at, const uint8_t *end)
{
    int32_t count, length;
    int failed = scan_varint32(at, end, &count);
    if (failed)
        return failed;
    if (count < 0 || count > (end - *at) / SCAN_HEADER_MIN)
        return SCAN_HEADER_COUNT;
    for (; count > 0; count--) {
        if ((failed = scan_bytes(at, end, 0, SCAN_HEADER_KEY, &length)))
            return failed;
        if ((failed = scan_bytes(at, end, -1, SCAN_HEADER_VALUE, &length)))
            return failed;
    }
    return SCAN_OK;
}

/* Check the timestamp and keep the newest.  A record without a timestamp (-1) is not too old. */
static inline int scan_timestamp(int64_t base, int64_t delta, int64_t oldest, int64_t newest, int64_t *max)
{
    int64_t timestamp;
    if (delta > 0 ? base > INT64_MAX - delta : base < INT64_MIN - delta)
        return SCAN_TIMESTAMP_RANGE;
    timestamp = base + delta;
    if (timestamp < -1)
        return SCAN_TIMESTAMP_RANGE;
    if (timestamp > newest)
        return SCAN_TIMESTAMP_AHEAD;
    if (timestamp < oldest && timestamp != -1)
        return SCAN_TIMESTAMP_BEHIND;
    if (timestamp > *max)
        *max = timestamp;
    return SCAN_OK;
}

/* Check one record after its length: from *at to `end`, which it must fill. */
static inline int scan_record(const uint8_t **at, const uint8_t *end, int32_t index, int64_t base_timestamp,
                              int64_t oldest_timestamp, int64_t newest_timestamp, struct scan_result *result)
{
    int64_t timestamp_delta;
    int32_t offset_delta, length;
    int failed;

    (*at)++; /* attributes: none are defined, and Kafka accepts any */
    if ((failed = scan_varint64(at, end, &timestamp_delta)))
        return failed;
    if ((failed = scan_timestamp(base_timestamp, timestamp_delta, oldest_timestamp, newest_timestamp,
                                 &result->max_timestamp)))
        return failed;
    if ((failed = scan_varint32(at, end, &offset_delta)))
        return failed;
    if (offset_delta != index)
        return SCAN_OFFSET_DELTA;
    if ((failed = scan_bytes(at, end, -1, SCAN_KEY_LENGTH, &length)))
        return failed;
    if (length < 0 && result->first_null_key < 0)
        result->first_null_key = index;
    if ((failed = scan_bytes(at, end, -1, SCAN_VALUE_LENGTH, &length)))
        return failed;
    if ((failed = scan_headers(at, end)))
        return failed;
    return *at == end ? SCAN_OK : SCAN_RECORD_REST;
}

/* Check that `body` is exactly `count` records with the offset deltas 0 to count - 1. */
static inline struct scan_result scan_records(const uint8_t *body, size_t size, int32_t count, int64_t base_timestamp,
                                              int64_t oldest_timestamp, int64_t newest_timestamp)
{
    struct scan_result result = {SCAN_OK, 0, 0, -1, -1};
    const uint8_t *at = body, *end = body + size;
    int32_t index, length;

    for (index = 0; index < count && !result.problem; index++) {
        result.record = index;
        if (at == end) {
            result.problem = SCAN_BATCH_SHORT;
        } else if (!(result.problem = scan_varint32(&at, end, &length))) {
            if (length < SCAN_RECORD_CONTENT_MIN || length > end - at)
                result.problem = SCAN_RECORD_LENGTH;
            else
                result.problem = scan_record(&at, at + length, index, base_timestamp, oldest_timestamp,
                                             newest_timestamp, &result);
        }
    }
    if (!result.problem) {
        result.record = index;
        if (at != end)
            result.problem = SCAN_BATCH_REST;
    }
    result.position = at - body;
    return result;
}

#endif
