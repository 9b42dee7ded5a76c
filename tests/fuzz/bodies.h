/* Bodies of record batches for the fuzz harnesses: good ones, and mutations of them. */
#ifndef FUZZ_BODIES_H
#define FUZZ_BODIES_H

#include <stdint.h>
#include <string.h>

#include "harness.h"

#define BODY_SIZE_MAX 4096

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
static inline size_t put_bytes(uint8_t *out, int nullable)
{
    int32_t length = nullable && !draw(4) ? -1 : (int32_t)draw(draw(8) ? 12 : 90);
    size_t size = put_varint(out, length);
    if (length > 0) {
        memset(out + size, 'x', (size_t)length);
        size += (size_t)length;
    }
    return size;
}

static inline size_t put_record(uint8_t *out, int32_t delta)
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

#endif
