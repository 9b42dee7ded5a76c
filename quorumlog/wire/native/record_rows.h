/* Write rows of Arrow columns as the records of a batch (format v2).  Standard C only: the extension module and the
 * fuzz harness both include this file.
 *
 * A record is measured first, and written only if it fits.  The offsets of a column are compared with its data when a
 * record is measured, so a wrong offset ends the call.  No array may change during a call. */
#ifndef QUORUMLOG_RECORD_ROWS_H
#define QUORUMLOG_RECORD_ROWS_H

#include "copy.h"
#include "varint.h"

/* A column of nullable byte strings; the column is missing if `offsets` is NULL. */
struct rows_bytes {
    const int32_t *offsets; /* one more than values */
    const uint8_t *data;
    const uint8_t *valid; /* a bitmap; NULL: no value is null */
    int64_t count;        /* number of values */
    int64_t size;         /* bytes of `data` */
};

/* A column of lists of headers; the column is missing if `ends` is NULL. */
struct rows_headers {
    const int32_t *ends;  /* ends[i] and ends[i + 1]: the range of the headers of row i */
    const uint8_t *valid; /* a bitmap; NULL: no list is null */
    struct rows_bytes key, value; /* equally many; no key is null */
};

struct rows {
    const int64_t *timestamps; /* ms */
    int64_t count;
    struct rows_bytes key, value;
    struct rows_headers headers;
};

struct rows_value {
    const uint8_t *data;
    int64_t size; /* -1: null */
    int64_t room; /* bytes from `data` to the end of its column */
};

/* A record before it is written.  size: the bytes after its length. */
struct rows_record {
    int64_t timestamp_delta, delta;
    struct rows_value key, value;
    int64_t header, header_end;
    int64_t size;
};

static inline int rows_is_valid(const uint8_t *bits, int64_t index)
{
    return !bits || (bits[index >> 3] >> (index & 7) & 1);
}

/* Find a value of a column.  Return 0 if an offset is outside the data. */
static inline int rows_find(const struct rows_bytes *column, int64_t index, struct rows_value *value)
{
    int64_t start, size;

    value->data = NULL;
    value->size = -1;
    value->room = 0;
    if (!column->offsets || !rows_is_valid(column->valid, index))
        return 1;
    start = column->offsets[index];
    size = column->offsets[index + 1] - start;
    if (start < 0 || size < 0 || size > column->size - start)
        return 0;
    value->data = column->data + start;
    value->size = size;
    value->room = column->size - start;
    return 1;
}

static inline int64_t rows_value_size(const struct rows_value *value)
{
    return (int64_t)varint_size(value->size) + (value->size > 0 ? value->size : 0);
}

static inline uint8_t *rows_put_value(uint8_t *at, const uint8_t *out_end, const struct rows_value *value)
{
    at = varint_put(at, value->size);
    if (value->size > 0) {
        copy_bytes(at, value->data, value->size, copy_room(out_end - at, value->room));
        at += value->size;
    }
    return at;
}

/* Find the range of a row's headers and add their size.  Return 0 if an offset is outside its column. */
static inline int rows_measure_headers(const struct rows_headers *headers, int64_t row, struct rows_record *record)
{
    struct rows_value key, value;
    int64_t header;

    record->header = record->header_end = 0;
    if (headers->ends && rows_is_valid(headers->valid, row)) {
        record->header = headers->ends[row];
        record->header_end = headers->ends[row + 1];
        if (record->header < 0 || record->header > record->header_end || record->header_end > headers->key.count)
            return 0;
    }
    record->size += (int64_t)varint_size(record->header_end - record->header);
    for (header = record->header; header < record->header_end; header++) {
        if (!rows_find(&headers->key, header, &key) || !rows_find(&headers->value, header, &value))
            return 0;
        record->size += rows_value_size(&key) + rows_value_size(&value);
    }
    return 1;
}

static inline int rows_measure(const struct rows *rows, int64_t row, int64_t base_timestamp, int64_t delta,
                               struct rows_record *record)
{
    record->timestamp_delta = (int64_t)((uint64_t)rows->timestamps[row] - (uint64_t)base_timestamp);
    record->delta = delta;
    if (!rows_find(&rows->key, row, &record->key) || !rows_find(&rows->value, row, &record->value))
        return 0;
    record->size = 1 + (int64_t)(varint_size(record->timestamp_delta) + varint_size(delta)) +
                   rows_value_size(&record->key) + rows_value_size(&record->value);
    return rows_measure_headers(&rows->headers, row, record);
}

/* Write a measured record, which fits.  Bytes after it, up to out_end, may change. */
static inline uint8_t *rows_put(uint8_t *at, const uint8_t *out_end, const struct rows *rows,
                                const struct rows_record *record)
{
    struct rows_value key, value;
    int64_t header;

    at = varint_put(at, record->size);
    *at++ = 0; /* attributes: none are defined */
    at = varint_put(at, record->timestamp_delta);
    at = varint_put(at, record->delta);
    at = rows_put_value(at, out_end, &record->key);
    at = rows_put_value(at, out_end, &record->value);
    at = varint_put(at, record->header_end - record->header);
    for (header = record->header; header < record->header_end; header++) {
        rows_find(&rows->headers.key, header, &key);
        rows_find(&rows->headers.value, header, &value);
        at = rows_put_value(at, out_end, &key);
        at = rows_put_value(at, out_end, &value);
    }
    return at;
}

enum rows_problem {
    ROWS_OK = 0,
    ROWS_TOO_SMALL, /* the first record does not fit */
    ROWS_OUTSIDE,   /* an index or an offset is outside its array */
};

/* The end of a call.  next: the index after the last written row.  position: the end of the records; after
 * ROWS_TOO_SMALL, the size of the first record. */
struct rows_result {
    int problem;
    int64_t next, position;
};

/* Write records from order[first] to order[end - 1] until `out` is full.  The first timestamp is the batch's base.  Bytes
 * after the last record may change. */
static inline struct rows_result rows_encode(const struct rows *rows, const int64_t *order, int64_t first,
                                             int64_t end, uint8_t *out, int64_t position, int64_t out_size)
{
    struct rows_result result = {ROWS_OK, first, position};
    struct rows_record record;
    int64_t base_timestamp = 0, row, size;

    for (; result.next < end; result.next++) {
        row = order[result.next];
        if (row < 0 || row >= rows->count) {
            result.problem = ROWS_OUTSIDE;
            break;
        }
        if (result.next == first)
            base_timestamp = rows->timestamps[row];
        if (!rows_measure(rows, row, base_timestamp, result.next - first, &record)) {
            result.problem = ROWS_OUTSIDE;
            break;
        }
        size = record.size + (int64_t)varint_size(record.size);
        if (size > out_size - result.position) {
            if (result.next == first) {
                result.problem = ROWS_TOO_SMALL;
                result.position = size;
            }
            break;
        }
        result.position = rows_put(out + result.position, out + out_size, rows, &record) - out;
    }
    return result;
}

#endif
