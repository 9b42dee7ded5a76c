/* Mutate good bodies of record batches and check them, under the address and undefined-behaviour sanitizers.
 *
 * usage: record_scan SEED ROUNDS.  Each body lies in a block of exactly its size, so that a read beyond it is reported.
 * Prints how often each verdict was given.
 */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "record_scan.h"

#define BODY_SIZE_MAX 4096
#define VERDICTS (SCAN_TIMESTAMP_BEHIND + 1)

static uint64_t state;

static uint32_t draw(uint32_t below) /* xorshift64* */
{
    state ^= state >> 12;
    state ^= state << 25;
    state ^= state >> 27;
    return (uint32_t)((state * UINT64_C(2685821657736338717)) >> 32) % below;
}

static size_t put_varint(uint8_t *out, int64_t value)
{
    uint64_t raw = ((uint64_t)value << 1) ^ (uint64_t)(value < 0 ? -1 : 0);
    size_t size = 0;
    for (; raw > 127; raw >>= 7)
        out[size++] = (uint8_t)(raw | 128);
    out[size++] = (uint8_t)raw;
    return size;
}

/* A length, null now and then where that is allowed, and as many bytes. */
static size_t put_bytes(uint8_t *out, int nullable)
{
    int32_t length = nullable && !draw(4) ? -1 : (int32_t)draw(draw(8) ? 12 : 90);
    size_t size = put_varint(out, length);
    if (length > 0) {
        memset(out + size, 'x', (size_t)length);
        size += (size_t)length;
    }
    return size;
}

static size_t put_record(uint8_t *out, int32_t delta)
{
    uint8_t content[1024];
    size_t size = 0, prefix;
    uint32_t headers = draw(4) ? 0 : draw(3);

    content[size++] = 0;
    size += put_varint(content + size, draw(8) ? draw(300) : ((int64_t)draw(UINT32_MAX) << 20));
    size += put_varint(content + size, delta);
    size += put_bytes(content + size, 1);
    size += put_bytes(content + size, 1);
    size += put_varint(content + size, headers);
    for (; headers; headers--) {
        size += put_bytes(content + size, 0);
        size += put_bytes(content + size, 1);
    }
    prefix = put_varint(out, (int64_t)size);
    memcpy(out + prefix, content, size);
    return prefix + size;
}

/* Change some bytes, cut the end off, or add bytes.  Return the new size. */
static size_t mutate(uint8_t *body, size_t size)
{
    static const uint8_t telling[] = {0x00, 0x01, 0x02, 0x7F, 0x80, 0x81, 0xFE, 0xFF};
    uint32_t changes = draw(5), run;
    size_t at;

    for (; changes && size; changes--) {
        at = draw((uint32_t)size);
        switch (draw(6)) {
        case 0:
            body[at] ^= (uint8_t)(1u << draw(8));
            break;
        case 1:
            body[at] = telling[draw(sizeof telling)];
            break;
        case 2:
            for (run = draw(12); run && at < size; run--)
                body[at++] = (uint8_t)(0x80 | draw(128));
            break;
        case 3:
            size = at;
            break;
        case 4:
            for (run = draw(8); run; run--)
                body[size++] = telling[draw(sizeof telling)];
            break;
        default:
            memmove(body + at, body + at + 1, size - at - 1);
            size--;
        }
    }
    return size;
}

/* Mostly the usual one. */
static int64_t draw_timestamp(int64_t usual)
{
    static const int64_t telling[] = {-1, 0, 1000, INT64_MAX, INT64_MIN, INT64_MAX - 100};
    return draw(12) ? usual : telling[draw(sizeof telling / sizeof *telling)];
}

int main(int count_of_arguments, char **arguments)
{
    static uint8_t body[2 * BODY_SIZE_MAX];
    uint64_t verdicts[VERDICTS] = {0}, rounds;
    struct scan_result result;
    size_t size;
    uint8_t *exact;
    int32_t records, count;
    int verdict;

    if (count_of_arguments != 3)
        return 2;
    state = strtoull(arguments[1], NULL, 10) * 2 + 1;
    for (rounds = strtoull(arguments[2], NULL, 10); rounds; rounds--) {
        size = 0;
        count = records = (int32_t)draw(6);
        for (int32_t delta = 0; delta < records && size < BODY_SIZE_MAX / 2; delta++)
            size += put_record(body + size, delta);
        size = mutate(body, size);
        if (!draw(8))
            count = draw(2) ? INT32_MAX : (int32_t)draw(UINT32_MAX);
        exact = malloc(size ? size : 1);
        if (!exact)
            return 3;
        memcpy(exact, body, size);
        result = scan_records(exact + (size ? 0 : 1), size, count, draw_timestamp(1000),
                              draw_timestamp(INT64_MIN), draw_timestamp(INT64_MAX));
        free(exact);
        if (result.problem < 0 || result.problem >= VERDICTS || result.position < 0 ||
            (uint64_t)result.position > size || result.record < 0 || result.first_null_key > result.record) {
            fprintf(stderr, "impossible result: problem %d, record %d\n", result.problem, (int)result.record);
            return 1;
        }
        verdicts[result.problem]++;
    }
    for (verdict = 0; verdict < VERDICTS; verdict++)
        printf("%d %" PRIu64 "\n", verdict, verdicts[verdict]);
    return 0;
}
