/* Read and write zigzag varints of up to 64 bits.  Reading follows Kafka's clients.  Standard C only. */
#ifndef QUORUMLOG_VARINT_H
#define QUORUMLOG_VARINT_H

#include <stddef.h>
#include <stdint.h>

#define VARINT_SIZE_MAX 10

/* Return the position after the varint at `at`, or NULL if it does not end before `end` or after ten bytes.  Bits above
 * the 64th are dropped. */
static inline const uint8_t *varint_read_long(const uint8_t *at, const uint8_t *end, int64_t *value)
{
    uint64_t raw = 0, byte;
    unsigned shift;

    for (shift = 0; shift < 7 * VARINT_SIZE_MAX; shift += 7) {
        if (at == end)
            return NULL;
        byte = *at++;
        raw |= (byte & 0x7F) << shift;
        if (byte < 0x80) {
            *value = (int64_t)((raw >> 1) ^ (UINT64_C(0) - (raw & 1)));
            return at;
        }
    }
    return NULL;
}

/* The same as varint_read_long, with a fast path: nearly all varints have one or two bytes. */
static inline const uint8_t *varint_read(const uint8_t *at, const uint8_t *end, int64_t *value)
{
    uint32_t raw;

    if (at != end && at[0] < 0x80) {
        raw = *at++;
    } else if (end - at >= 2 && at[1] < 0x80) {
        raw = (at[0] & 0x7Fu) | (uint32_t)at[1] << 7;
        at += 2;
    } else {
        return varint_read_long(at, end, value);
    }
    *value = (int32_t)((raw >> 1) ^ (0u - (raw & 1)));
    return at;
}

static inline uint64_t varint_zigzag(int64_t value)
{
    return ((uint64_t)value << 1) ^ (value < 0 ? ~UINT64_C(0) : 0);
}

static inline size_t varint_size(int64_t value)
{
    uint64_t raw = varint_zigzag(value);
    size_t size = 1;
    while (raw > 127) {
        raw >>= 7;
        size++;
    }
    return size;
}

/* Write at most VARINT_SIZE_MAX bytes, exactly varint_size(value); return the position after them. */
static inline uint8_t *varint_put(uint8_t *at, int64_t value)
{
    uint64_t raw = varint_zigzag(value);
    while (raw > 127) {
        *at++ = (uint8_t)(raw | 128);
        raw >>= 7;
    }
    *at++ = (uint8_t)raw;
    return at;
}

#endif
