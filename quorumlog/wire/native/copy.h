/* Copy byte strings, most of which are short.  Standard C only. */
#ifndef QUORUMLOG_COPY_H
#define QUORUMLOG_COPY_H

#include <stdint.h>
#include <string.h>

#define COPY_SHORT 16

/* Copy `size` bytes.  room: the number of bytes, at least `size`, that may be read and written; the bytes after `size`
 * have any value afterwards.  A copy of a fixed size takes two instructions, but a call of memcpy takes some
 * nanoseconds. */
static inline void copy_bytes(uint8_t *to, const uint8_t *from, int64_t size, int64_t room)
{
    if (size <= COPY_SHORT && room >= COPY_SHORT)
        memcpy(to, from, COPY_SHORT);
    else
        memcpy(to, from, (size_t)size);
}

static inline int64_t copy_room(int64_t to, int64_t from)
{
    return to < from ? to : from;
}

#endif
