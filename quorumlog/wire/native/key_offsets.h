/* The records of a batch as compaction sees them: the latest offset of each key, and the records that survive.
 *
 * Standard C only: the extension module and the fuzz harness both include this file.  Every read is preceded by a
 * comparison with the end of the record or of the batch.  Every step of a loop over records consumes at least one byte.
 */
#ifndef QUORUMLOG_KEY_OFFSETS_H
#define QUORUMLOG_KEY_OFFSETS_H

#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "siphash.h"
#include "varint.h"

/* broker/log/cleaning/offset_map.py names the same numbers. */
enum keys_problem {
    KEYS_OK = 0,
    KEYS_RECORD_LENGTH, /* zero, or past the end of the batch */
    KEYS_CUT_OFF,       /* a number, key or value past the end of its record */
    KEYS_OFFSET_DELTA,  /* not above the delta of the previous record, or above the last delta of the batch */
    KEYS_BATCH_REST,    /* the batch has bytes after its last record */
    KEYS_FULL,          /* the map has no room for the key of this record; `record` is its offset delta */
    KEYS_NO_MEMORY,
};

/* One record.  content: the position after the length.  rest: the position after the timestamp delta.  key_size:
 * negative if the record has no key. */
struct keys_record {
    const uint8_t *start, *content, *rest, *key, *end;
    int64_t timestamp_delta, offset_delta, key_size;
    int is_tombstone;
};

/* A position among the records of a batch.  end: the end of the batch.  previous, last: offset deltas. */
struct keys_cursor {
    const uint8_t *at, *end;
    int64_t previous, last;
};

static inline struct keys_cursor keys_begin(const uint8_t *body, size_t size, int64_t last_delta)
{
    return (struct keys_cursor){body, body + size, -1, last_delta};
}

static inline int keys_next(struct keys_cursor *cursor, struct keys_record *record)
{
    const uint8_t *at, *end;
    int64_t length, value_size;

    record->start = cursor->at;
    if (!(at = varint_read(cursor->at, cursor->end, &length)))
        return KEYS_CUT_OFF;
    if (length <= 0 || length > cursor->end - at)
        return KEYS_RECORD_LENGTH;
    record->content = at;
    record->end = end = at + length;
    if (!(record->rest = varint_read(at + 1, end, &record->timestamp_delta)))
        return KEYS_CUT_OFF;
    if (!(at = varint_read(record->rest, end, &record->offset_delta)))
        return KEYS_CUT_OFF;
    if (record->offset_delta <= cursor->previous || record->offset_delta > cursor->last)
        return KEYS_OFFSET_DELTA;
    if (!(at = varint_read(at, end, &record->key_size)) || record->key_size > end - at)
        return KEYS_CUT_OFF;
    record->key = at;
    if (record->key_size > 0)
        at += record->key_size;
    if (!(at = varint_read(at, end, &value_size)) || value_size > end - at)
        return KEYS_CUT_OFF;
    record->is_tombstone = value_size < 0;
    cursor->previous = record->offset_delta;
    cursor->at = end;
    return KEYS_OK;
}

static inline int keys_finish(const struct keys_cursor *cursor)
{
    return cursor->at == cursor->end ? KEYS_OK : KEYS_BATCH_REST;
}

/* Offsets are not negative.  In a damaged batch a sum may wrap around; then the result is wrong, but defined. */
static inline int64_t keys_sum(int64_t left, int64_t right)
{
    return (int64_t)((uint64_t)left + (uint64_t)right);
}

static inline int64_t keys_difference(int64_t left, int64_t right)
{
    return (int64_t)((uint64_t)left - (uint64_t)right);
}

/* --- the map ------------------------------------------------------------------------------------------------------ */

#define KEYS_SLOTS_MIN 64

/* end: the latest offset of the key plus one; 0: the slot is empty. */
struct keys_slot {
    uint64_t hash[2];
    int64_t end;
};

/* A hash table with linear probing.  Its number of slots is a power of two, and at most three quarters are used.  While
 * it grows, the old and the new table together take 72 bytes for each slot of the old one: about 96 bytes for each
 * key. */
struct keys_table {
    struct keys_slot *slots;
    size_t mask; /* number of slots less one */
    int64_t count, count_max;
    uint8_t secret[SIPHASH_KEY_SIZE];
};

/* Return 0 if there is no memory. */
static int keys_create(struct keys_table *table, int64_t count_max, const uint8_t *secret)
{
    table->slots = calloc(KEYS_SLOTS_MIN, sizeof *table->slots);
    table->mask = KEYS_SLOTS_MIN - 1;
    table->count = 0;
    table->count_max = count_max;
    memcpy(table->secret, secret, sizeof table->secret);
    return table->slots != NULL;
}

/* Return the slot of a hash, or the empty slot where the hash belongs. */
static inline struct keys_slot *keys_find(struct keys_slot *slots, size_t mask, const uint64_t *hash)
{
    size_t place = (size_t)hash[0] & mask;

    while (slots[place].end && (slots[place].hash[0] != hash[0] || slots[place].hash[1] != hash[1]))
        place = (place + 1) & mask;
    return &slots[place];
}

/* Return 0 if there is no memory; the table is then unchanged. */
static int keys_grow(struct keys_table *table)
{
    size_t place, mask = 2 * table->mask + 1;
    struct keys_slot *slots = calloc(mask + 1, sizeof *slots);

    if (!slots)
        return 0;
    for (place = 0; place <= table->mask; place++)
        if (table->slots[place].end)
            *keys_find(slots, mask, table->slots[place].hash) = table->slots[place];
    free(table->slots);
    table->slots = slots;
    table->mask = mask;
    return 1;
}

static int keys_put(struct keys_table *table, const struct keys_record *record, int64_t offset)
{
    struct keys_slot *slot;
    uint64_t hash[2];

    siphash128(table->secret, record->key, (size_t)record->key_size, hash);
    slot = keys_find(table->slots, table->mask, hash);
    if (!slot->end) {
        if (table->count >= table->count_max)
            return KEYS_FULL;
        if ((size_t)table->count >= table->mask / 4 * 3) {
            if (!keys_grow(table))
                return KEYS_NO_MEMORY;
            slot = keys_find(table->slots, table->mask, hash);
        }
        table->count++;
        memcpy(slot->hash, hash, sizeof hash);
    }
    slot->end = keys_sum(offset, 1);
    return KEYS_OK;
}

/* Return the latest offset of the record's key; -1 if the map does not have it. */
static inline int64_t keys_latest(const struct keys_table *table, const struct keys_record *record)
{
    uint64_t hash[2];

    siphash128(table->secret, record->key, (size_t)record->key_size, hash);
    return keys_difference(keys_find(table->slots, table->mask, hash)->end, 1);
}

/* --- batches ------------------------------------------------------------------------------------------------------ */

/* record: index of the record with the problem; for KEYS_FULL, the offset delta of the record. */
struct keys_noted {
    int problem;
    int64_t record;
};

/* Note the keys of all records from `first_offset` on.  Offsets must ascend from one call to the next. */
static struct keys_noted keys_note(struct keys_table *table, const uint8_t *body, size_t size, int32_t count,
                                   int64_t base_offset, int64_t last_delta, int64_t first_offset)
{
    struct keys_cursor cursor = keys_begin(body, size, last_delta);
    struct keys_noted noted = {KEYS_OK, 0};
    struct keys_record record;
    int64_t first_delta = keys_difference(first_offset, base_offset);

    for (; noted.record < count; noted.record++) {
        if ((noted.problem = keys_next(&cursor, &record)))
            return noted;
        if (record.key_size < 0 || record.offset_delta < first_delta)
            continue;
        if ((noted.problem = keys_put(table, &record, keys_sum(base_offset, record.offset_delta)))) {
            noted.record = record.offset_delta;
            return noted;
        }
    }
    noted.problem = keys_finish(&cursor);
    return noted;
}

/* record: index of the record with the problem.  kept: number of records.  size: bytes of the kept records in `out`, if
 * at least one record was removed.  newest_delta: the greatest timestamp delta of the kept records. */
struct keys_selected {
    int problem;
    int64_t record, kept, newest_delta;
    int has_tombstone;
    size_t size;
};

/* Find the records that survive, and copy them to `out`, which has room for `size` bytes.
 *
 * A record at or above `clean_end` survives.  A record below survives if it has a key, the map has no later offset of
 * that key, and it is not a tombstone that is to be removed.  has_tombstone: a tombstone below `clean_end` survives. */
static struct keys_selected keys_select(const struct keys_table *table, const uint8_t *body, size_t size, int32_t count,
                                        int64_t base_offset, int64_t last_delta, int64_t clean_end,
                                        int removes_tombstones, uint8_t *out)
{
    struct keys_cursor cursor = keys_begin(body, size, last_delta);
    struct keys_selected found = {KEYS_OK, 0, 0, INT64_MIN, 0, 0};
    struct keys_record record;
    int64_t clean_delta = keys_difference(clean_end, base_offset);
    const uint8_t *run = body; /* the first kept record that is not copied yet */
    size_t length;

    for (; found.record < count; found.record++) {
        if ((found.problem = keys_next(&cursor, &record)))
            return found;
        if (record.offset_delta < clean_delta) {
            if (record.key_size < 0 ||
                keys_latest(table, &record) > keys_sum(base_offset, record.offset_delta) ||
                (record.is_tombstone && removes_tombstones)) {
                if ((length = (size_t)(record.start - run)))
                    memcpy(out + found.size, run, length);
                found.size += length;
                run = record.end;
                continue;
            }
            found.has_tombstone |= record.is_tombstone;
        }
        found.kept++;
        if (record.timestamp_delta > found.newest_delta)
            found.newest_delta = record.timestamp_delta;
    }
    if ((found.problem = keys_finish(&cursor)))
        return found;
    if (found.kept < count && (length = (size_t)(cursor.end - run))) {
        memcpy(out + found.size, run, length);
        found.size += length;
    }
    return found;
}

/* Return the size of the records with `change` added to each timestamp delta; -1 if they are malformed.  out: the place
 * to which they are written; NULL: they are only measured. */
static int64_t keys_shift(const uint8_t *body, size_t size, int32_t count, int64_t change, uint8_t *out)
{
    struct keys_cursor cursor = keys_begin(body, size, INT32_MAX);
    struct keys_record record;
    int64_t total = 0, delta;
    size_t rest, length;

    for (; count > 0; count--) {
        if (keys_next(&cursor, &record))
            return -1;
        delta = keys_sum(record.timestamp_delta, change);
        rest = (size_t)(record.end - record.rest);
        length = 1 + varint_size(delta) + rest;
        if (out) {
            out = varint_put(out, (int64_t)length);
            *out++ = *record.content; /* attributes */
            out = varint_put(out, delta);
            memcpy(out, record.rest, rest);
            out += rest;
        }
        total += (int64_t)(varint_size((int64_t)length) + length);
    }
    return keys_finish(&cursor) ? -1 : total;
}

#endif
