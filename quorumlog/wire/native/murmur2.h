/* Kafka's hash of a record's key: MurmurHash2 with Kafka's seed.  Standard C only. */
#ifndef QUORUMLOG_MURMUR2_H
#define QUORUMLOG_MURMUR2_H

#include <stddef.h>
#include <stdint.h>

static inline uint32_t murmur2_hash(const uint8_t *key, size_t size)
{
    const uint32_t m = 0x5BD1E995;
    const uint8_t *at = key, *end = key + (size & ~(size_t)3);
    uint32_t hash = UINT32_C(0x9747B28C) ^ (uint32_t)size, word, rest = 0;
    size_t left = size & 3, index;

    for (; at < end; at += 4) {
        word = at[0] | (uint32_t)at[1] << 8 | (uint32_t)at[2] << 16 | (uint32_t)at[3] << 24;
        word *= m;
        word = (word ^ word >> 24) * m;
        hash = hash * m ^ word;
    }
    if (left) {
        for (index = 0; index < left; index++)
            rest |= (uint32_t)at[index] << (8 * index);
        hash = (hash ^ rest) * m;
    }
    hash = (hash ^ hash >> 13) * m;
    return hash ^ hash >> 15;
}

#endif
