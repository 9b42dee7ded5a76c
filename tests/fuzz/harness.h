/* The arguments, random numbers and results of the fuzz harnesses. */
#ifndef FUZZ_HARNESS_H
#define FUZZ_HARNESS_H

#include <inttypes.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static uint64_t state;

static uint32_t draw(uint32_t below) /* xorshift64* */
{
    state ^= state >> 12;
    state ^= state << 25;
    state ^= state >> 27;
    return (uint32_t)((state * UINT64_C(2685821657736338717)) >> 32) % below;
}

/* Take the arguments SEED ROUNDS, and return the number of rounds. */
static uint64_t begin(int count_of_arguments, char **arguments)
{
    if (count_of_arguments != 3)
        exit(2);
    state = strtoull(arguments[1], NULL, 10) * 2 + 1;
    return strtoull(arguments[2], NULL, 10);
}

/* Return a copy in a block of exactly this size, so that an access beyond it is reported. */
static inline void *exact_copy(const void *data, size_t size)
{
    void *copy = malloc(size ? size : 1);

    if (!copy)
        exit(3);
    memcpy(copy, data, size);
    return copy;
}

/* Print how often each outcome occurred. */
static void report(const uint64_t *occurred, int outcomes)
{
    int outcome;

    for (outcome = 0; outcome < outcomes; outcome++)
        printf("%d %" PRIu64 "\n", outcome, occurred[outcome]);
}

#endif
