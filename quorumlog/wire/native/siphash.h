/* SipHash-2-4 with 128 bits (Aumasson and Bernstein, 2012): a hash that nobody can predict without its key.
 * Standard C only. */
#ifndef QUORUMLOG_SIPHASH_H
#define QUORUMLOG_SIPHASH_H

#include <stddef.h>
#include <stdint.h>

#define SIPHASH_KEY_SIZE 16

static inline uint64_t siphash_read(const uint8_t *at, size_t size) /* at most eight bytes, little endian */
{
    uint64_t word = 0;

    while (size--)
        word = word << 8 | at[size];
    return word;
}

static inline uint64_t siphash_turn(uint64_t word, unsigned bits)
{
    return word << bits | word >> (64 - bits);
}

static inline void siphash_rounds(uint64_t *v, int rounds)
{
    for (; rounds; rounds--) {
        v[0] += v[1];
        v[1] = siphash_turn(v[1], 13) ^ v[0];
        v[0] = siphash_turn(v[0], 32);
        v[2] += v[3];
        v[3] = siphash_turn(v[3], 16) ^ v[2];
        v[0] += v[3];
        v[3] = siphash_turn(v[3], 21) ^ v[0];
        v[2] += v[1];
        v[1] = siphash_turn(v[1], 17) ^ v[2];
        v[2] = siphash_turn(v[2], 32);
    }
}

static inline void siphash_word(uint64_t *v, uint64_t word)
{
    v[3] ^= word;
    siphash_rounds(v, 2);
    v[0] ^= word;
}

/* Write the hash of `size` bytes to `hash`.  key: SIPHASH_KEY_SIZE bytes. */
static inline void siphash128(const uint8_t *key, const uint8_t *data, size_t size, uint64_t hash[2])
{
    uint64_t first = siphash_read(key, 8), second = siphash_read(key + 8, 8);
    uint64_t v[4] = {first ^ UINT64_C(0x736f6d6570736575), second ^ UINT64_C(0x646f72616e646f6d) ^ 0xEE,
                     first ^ UINT64_C(0x6c7967656e657261), second ^ UINT64_C(0x7465646279746573)};
    size_t left = size;

    for (; left >= 8; left -= 8, data += 8)
        siphash_word(v, siphash_read(data, 8));
    siphash_word(v, (uint64_t)size << 56 | siphash_read(data, left));
    v[2] ^= 0xEE;
    siphash_rounds(v, 4);
    hash[0] = v[0] ^ v[1] ^ v[2] ^ v[3];
    v[1] ^= 0xDD;
    siphash_rounds(v, 4);
    hash[1] = v[0] ^ v[1] ^ v[2] ^ v[3];
}

#endif
