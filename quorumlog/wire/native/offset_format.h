/* Recognise the keys and values of plain committed offsets, records of `__consumer_offsets`.  Standard C only: the
 * extension module and the fuzz harness both include this file.
 *
 * The formats are those of broker/core/coordinator/records.py, which explains their fields. */
#ifndef QUORUMLOG_OFFSET_FORMAT_H
#define QUORUMLOG_OFFSET_FORMAT_H

#include <stdint.h>
#include <string.h>

#define OFFSETS_KEY_HEAD 4  /* version and length of the group */
#define OFFSETS_PLACE_MIN 6 /* length of the topic, and partition */
#define OFFSETS_VALUE_3 24  /* the size without metadata */
#define OFFSETS_VALUE_4 42  /* the same with the id of the topic */
#define OFFSETS_METADATA_MAX 125
#define OFFSETS_TOPIC_FIELD "\1\0\x10" /* one tagged field, its number, and its size: the id of the topic */

/* The parts of a key.  place: the topic with its length, and the partition. */
struct offsets_key {
    const char *group, *place;
    int64_t group_size, place_size;
};

static inline int64_t offsets_int16(const char *at)
{
    const unsigned char *bytes = (const unsigned char *)at;
    return (int16_t)(bytes[0] << 8 | bytes[1]);
}

static inline int offsets_is_ascii(const char *at, int64_t size)
{
    unsigned char seen = 0;
    while (size > 0)
        seen |= (unsigned char)at[--size];
    return seen < 0x80;
}

/* Split the key of an offset with ASCII names.  Return 0 for any other key: Python checks UTF-8 and reports damage. */
static inline int offsets_split(const char *key, int64_t size, struct offsets_key *parts)
{
    if (size < OFFSETS_KEY_HEAD + OFFSETS_PLACE_MIN || key[0] != 0 || (key[1] != 0 && key[1] != 1))
        return 0;
    parts->group = key + OFFSETS_KEY_HEAD;
    parts->group_size = offsets_int16(key + 2);
    if (parts->group_size < 0 || parts->group_size > size - OFFSETS_KEY_HEAD - OFFSETS_PLACE_MIN)
        return 0;
    parts->place = parts->group + parts->group_size;
    parts->place_size = size - OFFSETS_KEY_HEAD - parts->group_size;
    if (offsets_int16(parts->place) != parts->place_size - OFFSETS_PLACE_MIN)
        return 0;
    return offsets_is_ascii(parts->group, parts->group_size) &&
           offsets_is_ascii(parts->place + 2, parts->place_size - OFFSETS_PLACE_MIN);
}

/* Return whether a value has version 3, or version 4 with the id of the topic, and at most 125 bytes of ASCII metadata.
 * The compact length of up to 125 bytes is a single byte below 0x80. */
static inline int offsets_is_plain(const char *value, int64_t size)
{
    int64_t metadata;

    if (size < OFFSETS_VALUE_3 || value[0] != 0)
        return 0;
    if (value[1] == 3) {
        metadata = size - OFFSETS_VALUE_3;
        return metadata <= OFFSETS_METADATA_MAX && offsets_int16(value + 14) == metadata &&
               offsets_is_ascii(value + 16, metadata);
    }
    metadata = size - OFFSETS_VALUE_4;
    return value[1] == 4 && metadata >= 0 && metadata <= OFFSETS_METADATA_MAX && value[14] == metadata + 1 &&
           offsets_is_ascii(value + 15, metadata) && memcmp(value + 23 + metadata, OFFSETS_TOPIC_FIELD, 3) == 0;
}

#endif
