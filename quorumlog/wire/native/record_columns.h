/* Read the records of many batches (format v2) into the arrays of Arrow columns.  Standard C only: the extension module
 * and the fuzz harness both include this file.
 *
 * The position of a field depends on all fields before it, so one loop walks the records and appends each field to its
 * column.  A batch's checksum only proves that the bytes are as they were sent.  Therefore each length is compared with
 * the end of its record before it is used, a malformed record ends the call, and sums of untrusted numbers are unsigned.
 * The arrays of a column have room for every record and for every byte of the spans, which the caller has checked;
 * `columns_take_headers` checks the room for headers. */
#ifndef QUORUMLOG_RECORD_COLUMNS_H
#define QUORUMLOG_RECORD_COLUMNS_H

#include "copy.h"
#include "varint.h"

/* The value of `append_time` in a batch whose records have timestamps of their own. */
#define COLUMNS_NO_APPEND_TIME INT64_MIN

/* The records of one batch: the bytes from `start` to `end`. */
struct columns_span {
    int64_t start, end;
    int64_t base_offset, base_timestamp, append_time, count, last_delta;
};

#define COLUMNS_SPAN_FIELDS 7

/* A column of nullable byte strings that is being filled; the column is not wanted if `offsets` is NULL. */
struct columns_bytes {
    int32_t *offsets; /* offsets[i + 1]: the end of value i in `data` */
    uint8_t *data;
    uint8_t *valid; /* one byte for each value */
    int64_t room, data_room; /* numbers of values and of bytes that fit */
    int32_t size;   /* bytes of `data` that are filled */
};

struct columns {
    int64_t first_offset, end_offset; /* the wanted records */
    int64_t *offsets, *timestamps;    /* timestamps in microseconds */
    int32_t *timestamp_types;
    struct columns_bytes key, value;
    int32_t *header_ends; /* header_ends[i + 1]: the number of headers of the records up to i */
    struct columns_bytes header_key, header_value;
    int64_t rows, headers; /* numbers of rows and headers that are filled */
};

enum columns_problem {
    COLUMNS_OK = 0,
    COLUMNS_MALFORMED,
    COLUMNS_NO_ROOM, /* more headers than fit into the caller's arrays */
};

/* The end of a call.  After COLUMNS_MALFORMED, `span` and `position` are the place of the malformed record. */
struct columns_result {
    int problem;
    int64_t span, position;
};

/* Read the length of a record.  Return the position after it, or NULL if the record is empty or exceeds the batch. */
static inline const uint8_t *columns_record(const uint8_t *at, const uint8_t *batch_end, const uint8_t **end)
{
    int64_t size;
    if (!(at = varint_read(at, batch_end, &size)) || size < 1 || size > batch_end - at)
        return NULL;
    *end = at + size;
    return at;
}

/* Read the length of a nullable byte string, -1 for null.  Return the position of its bytes, or NULL. */
static inline const uint8_t *columns_length(const uint8_t *at, const uint8_t *end, int64_t *length)
{
    if (!(at = varint_read(at, end, length)) || *length < -1 || *length > end - at)
        return NULL;
    return at;
}

static inline const uint8_t *columns_skip(const uint8_t *at, const uint8_t *end)
{
    int64_t length;
    if (!(at = columns_length(at, end, &length)))
        return NULL;
    return length > 0 ? at + length : at;
}

/* Append a nullable byte string as value `index`. */
static inline const uint8_t *columns_take(const uint8_t *at, const uint8_t *end, struct columns_bytes *column,
                                          int64_t index)
{
    int64_t length;
    if (!(at = columns_length(at, end, &length)))
        return NULL;
    column->valid[index] = length >= 0;
    if (length > 0) {
        copy_bytes(column->data + column->size, at, length, copy_room(column->data_room - column->size, end - at));
        column->size += (int32_t)length;
        at += length;
    }
    column->offsets[index + 1] = column->size;
    return at;
}

static inline const uint8_t *columns_take_if_wanted(const uint8_t *at, const uint8_t *end,
                                                    struct columns_bytes *column, int64_t index)
{
    return column->offsets ? columns_take(at, end, column, index) : columns_skip(at, end);
}

/* Read the number of headers.  A header has more than one byte, so the number bounds the loop over them. */
static inline const uint8_t *columns_header_count(const uint8_t *at, const uint8_t *end, int64_t *count)
{
    if (!(at = varint_read(at, end, count)) || *count < 0 || *count > end - at)
        return NULL;
    return at;
}

/* Append the headers of the next row, which must fill the record. */
static inline int columns_take_headers(const uint8_t *at, const uint8_t *end, struct columns *columns)
{
    int64_t count;

    if (!(at = columns_header_count(at, end, &count)))
        return COLUMNS_MALFORMED;
    for (; count > 0; count--) {
        if (columns->headers == columns->header_key.room)
            return COLUMNS_NO_ROOM;
        if (!(at = columns_take(at, end, &columns->header_key, columns->headers)) ||
            !columns->header_key.valid[columns->headers] ||
            !(at = columns_take(at, end, &columns->header_value, columns->headers)))
            return COLUMNS_MALFORMED;
        columns->headers++;
    }
    columns->header_ends[columns->rows + 1] = (int32_t)columns->headers;
    return at == end ? COLUMNS_OK : COLUMNS_MALFORMED;
}

/* Return a time in microseconds, or the nearest one that an int64 can hold. A producer may have sent nanoseconds. */
static inline int64_t columns_microseconds(int64_t time_ms)
{
    if (time_ms > INT64_MAX / 1000)
        return INT64_MAX;
    return time_ms < INT64_MIN / 1000 ? INT64_MIN : time_ms * 1000;
}

static inline void columns_put_time(struct columns *columns, const struct columns_span *span, int64_t delta)
{
    int is_append_time = span->append_time != COLUMNS_NO_APPEND_TIME;
    uint64_t time_ms =
        is_append_time ? (uint64_t)span->append_time : (uint64_t)span->base_timestamp + (uint64_t)delta;
    columns->timestamps[columns->rows] = columns_microseconds((int64_t)time_ms);
    columns->timestamp_types[columns->rows] = is_append_time;
}

/* Append one record, from its attributes at `at` to `end`, if its offset is wanted.  *previous: the delta before it. */
static inline int columns_take_record(const uint8_t *at, const uint8_t *end, const struct columns_span *span,
                                      int64_t *previous, struct columns *columns)
{
    int64_t timestamp_delta, delta, offset;
    int failed;

    if (!(at = varint_read(at + 1, end, &timestamp_delta)) || !(at = varint_read(at, end, &delta)) ||
        delta <= *previous || delta > span->last_delta)
        return COLUMNS_MALFORMED;
    *previous = delta;
    offset = (int64_t)((uint64_t)span->base_offset + (uint64_t)delta);
    if (offset < columns->first_offset || offset >= columns->end_offset)
        return COLUMNS_OK;
    if (!(at = columns_take_if_wanted(at, end, &columns->key, columns->rows)) ||
        !(at = columns_take_if_wanted(at, end, &columns->value, columns->rows)))
        return COLUMNS_MALFORMED;
    if (columns->header_ends && (failed = columns_take_headers(at, end, columns)))
        return failed;
    columns->offsets[columns->rows] = offset;
    columns_put_time(columns, span, timestamp_delta);
    columns->rows++;
    return COLUMNS_OK;
}

/* Begin with empty columns. */
static inline void columns_begin(struct columns *columns)
{
    columns->rows = columns->headers = 0;
    if (columns->key.offsets)
        columns->key.offsets[0] = 0;
    if (columns->value.offsets)
        columns->value.offsets[0] = 0;
    if (columns->header_ends)
        columns->header_ends[0] = columns->header_key.offsets[0] = columns->header_value.offsets[0] = 0;
}

/* Append the wanted records of all spans.  The bytes of a record after the wanted columns are not checked. */
static inline struct columns_result columns_decode(const uint8_t *data, const struct columns_span *spans,
                                                   int64_t span_count, struct columns *columns)
{
    struct columns_result result = {COLUMNS_OK, 0, 0};
    const uint8_t *at, *content, *end, *batch_end;
    int64_t left, previous;

    columns_begin(columns);
    for (; result.span < span_count; result.span++) {
        at = data + spans[result.span].start;
        batch_end = data + spans[result.span].end;
        previous = -1;
        for (left = spans[result.span].count; left > 0; left--, at = end) {
            if (!(content = columns_record(at, batch_end, &end)))
                result.problem = COLUMNS_MALFORMED;
            else
                result.problem = columns_take_record(content, end, &spans[result.span], &previous, columns);
            if (result.problem)
                break;
        }
        if (!result.problem && at != batch_end)
            result.problem = COLUMNS_MALFORMED;
        result.position = at - data;
        if (result.problem)
            break;
    }
    return result;
}

/* Add the number of headers of one record, from its attributes at `at` to `end`. */
static inline int columns_count_record(const uint8_t *at, const uint8_t *end, int64_t *total)
{
    int64_t ignored, count;

    if (!(at = varint_read(at + 1, end, &ignored)) || !(at = varint_read(at, end, &ignored)) ||
        !(at = columns_skip(at, end)) || !(at = columns_skip(at, end)) ||
        !(at = columns_header_count(at, end, &count)))
        return COLUMNS_MALFORMED;
    *total += count;
    return COLUMNS_OK;
}

/* Count the headers of all records, including records that are not wanted. */
static inline struct columns_result columns_count_headers(const uint8_t *data, const struct columns_span *spans,
                                                          int64_t span_count, int64_t *total)
{
    struct columns_result result = {COLUMNS_OK, 0, 0};
    const uint8_t *at, *content, *end, *batch_end;
    int64_t left;

    *total = 0;
    for (; result.span < span_count; result.span++) {
        at = data + spans[result.span].start;
        batch_end = data + spans[result.span].end;
        for (left = spans[result.span].count; left > 0; left--, at = end) {
            if (!(content = columns_record(at, batch_end, &end)) || columns_count_record(content, end, total)) {
                result.problem = COLUMNS_MALFORMED;
                result.position = at - data;
                return result;
            }
        }
    }
    return result;
}

#endif
