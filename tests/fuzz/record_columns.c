/* Mutate good bodies of record batches, read them into columns, write the columns as records and assign the rows to
 * groups, under the address and undefined-behaviour sanitizers.
 *
 * usage: record_columns SEED ROUNDS.  Every array lies in a block of exactly its size, so that an access beyond it is
 * reported.  Prints how often each outcome occurred.
 */
#include "bodies.h"
#include "record_columns.h"
#include "record_rows.h"
#include "row_groups.h"

#define SPANS_MAX 3
#define BLOCKS_MAX 64

/* tests/fuzz/record_columns.py names the same numbers. */
enum outcome { READ, MALFORMED, NO_ROOM, WRITTEN, OUT_FULL, TOO_SMALL, OUTSIDE, ASSIGNED, UNKNOWN_PARTITION, OUTCOMES };

static uint64_t outcomes[OUTCOMES];
static void *blocks[BLOCKS_MAX];
static int block_count;

static void *block(int64_t size)
{
    char *made = malloc(size ? (size_t)size : 1);
    if (!made || block_count == BLOCKS_MAX)
        exit(3);
    memset(made, 0x5A, size ? (size_t)size : 1);
    blocks[block_count++] = made;
    return size ? made : made + 1;
}

static void expect(int holds, const char *what)
{
    if (holds)
        return;
    fprintf(stderr, "impossible result: %s\n", what);
    exit(1);
}

/* Mostly the usual one. */
static int64_t draw_number(int64_t usual)
{
    static const int64_t telling[] = {-1, 0, 1, INT32_MAX, INT64_MAX, INT64_MIN, INT64_MAX - 100};
    return draw(10) ? usual : telling[draw(sizeof telling / sizeof *telling)];
}

/* --- reading ---------------------------------------------------------------------------------------------------- */

static int64_t draw_spans(uint8_t **data, struct columns_span *spans, int64_t *span_count)
{
    static uint8_t bodies[SPANS_MAX * 2 * BODY_SIZE_MAX];
    int64_t size = 0, records = 0;
    int32_t count, delta;
    size_t body;

    *span_count = draw(SPANS_MAX) + 1;
    for (int64_t index = 0; index < *span_count; index++) {
        count = (int32_t)draw(6);
        body = 0;
        for (delta = 0; delta < count && body < BODY_SIZE_MAX / 2; delta++)
            body += put_record(bodies + size + body, delta);
        if (draw(3))
            body = mutate(bodies + size, body);
        if (!draw(12))
            count = (int32_t)draw(40);
        spans[index] = (struct columns_span){size, size + (int64_t)body, draw_number(0), draw_number(1000),
                                             draw(3) ? COLUMNS_NO_APPEND_TIME : draw_number(5), count,
                                             draw_number(count - 1)};
        size += (int64_t)body;
        records += count;
    }
    *data = block(size);
    memcpy(*data, bodies, (size_t)size);
    return records;
}

static struct columns_bytes new_column(int64_t values, int64_t size)
{
    return (struct columns_bytes){block((values + 1) * 4), block(size), block(values), values, size, 0};
}

static void check_column(const struct columns_bytes *column, int64_t values)
{
    if (!column->offsets)
        return;
    expect(column->offsets[0] == 0 && column->size >= 0 && column->size <= column->data_room, "size of a column");
    for (int64_t index = 0; index < values; index++)
        expect(column->offsets[index] <= column->offsets[index + 1] && column->valid[index] <= 1, "offsets");
}

static struct columns read_columns(const uint8_t *data, const struct columns_span *spans, int64_t span_count,
                                   int64_t records)
{
    int64_t size = spans[span_count - 1].end, headers;
    struct columns_result counted = columns_count_headers(data, spans, span_count, &headers), result;
    struct columns columns = {.first_offset = draw_number(0), .end_offset = draw_number(INT64_MAX)};

    columns.offsets = block(records * 8);
    columns.timestamps = block(records * 8);
    columns.timestamp_types = block(records * 4);
    if (draw(4))
        columns.key = new_column(records, size);
    if (draw(4))
        columns.value = new_column(records, size);
    if (draw(4)) {
        headers = counted.problem ? draw(3) : headers - (headers && !draw(8));
        if (headers > 2 * BODY_SIZE_MAX)
            headers = 2 * BODY_SIZE_MAX;
        columns.header_ends = block((records + 1) * 4);
        columns.header_key = new_column(headers, size);
        columns.header_value = new_column(headers, size);
    }
    result = columns_decode(data, spans, span_count, &columns);
    outcomes[result.problem == COLUMNS_OK ? READ : result.problem == COLUMNS_MALFORMED ? MALFORMED : NO_ROOM]++;
    expect(columns.rows >= 0 && columns.rows <= records && result.position >= 0 && result.position <= size &&
               result.span >= 0 && result.span <= span_count && (result.problem != 0) == (result.span < span_count),
           "place of a malformed record");
    check_column(&columns.key, columns.rows);
    check_column(&columns.value, columns.rows);
    check_column(&columns.header_key, columns.headers);
    check_column(&columns.header_value, columns.headers);
    return columns;
}

/* --- writing ---------------------------------------------------------------------------------------------------- */

/* A copy in blocks of exactly the filled size; now and then with one wrong offset. */
static struct rows_bytes given_column(const struct columns_bytes *column, int64_t values, int *is_wrong)
{
    struct rows_bytes given = {.count = values, .size = column->size};
    int32_t *offsets;
    uint8_t *data, *bits;

    if (!column->offsets)
        return (struct rows_bytes){0};
    memcpy(offsets = block((values + 1) * 4), column->offsets, (size_t)(values + 1) * 4);
    memcpy(data = block(column->size), column->data, (size_t)column->size);
    memset(bits = block((values + 7) / 8), 0, (size_t)(values + 7) / 8);
    for (int64_t index = 0; index < values; index++)
        bits[index >> 3] |= (uint8_t)(column->valid[index] << (index & 7));
    if (!draw(16)) {
        offsets[draw((uint32_t)values + 1)] = (int32_t)draw_number(column->size + 1);
        *is_wrong = 1;
    }
    given.offsets = offsets;
    given.data = data;
    given.valid = draw(8) ? bits : NULL;
    return given;
}

/* The order of the rows; now and then with a row that does not exist. */
static int64_t *draw_order(int64_t rows, int *is_wrong)
{
    int64_t *order = block(rows * 8);
    for (int64_t index = 0; index < rows; index++)
        order[index] = draw((uint32_t)rows);
    if (rows && !draw(16)) {
        order[draw((uint32_t)rows)] = draw_number(rows);
        *is_wrong = 1;
    }
    return order;
}

static struct rows given_rows(const struct columns *columns, int *is_wrong)
{
    struct rows rows = {.count = columns->rows};
    int64_t *timestamps = block(rows.count * 8);
    int32_t *ends;

    memcpy(timestamps, columns->timestamps, (size_t)rows.count * 8);
    rows.timestamps = timestamps;
    rows.key = given_column(&columns->key, rows.count, is_wrong);
    rows.value = given_column(&columns->value, rows.count, is_wrong);
    if (!columns->header_ends)
        return rows;
    memcpy(ends = block((rows.count + 1) * 4), columns->header_ends, (size_t)(rows.count + 1) * 4);
    if (!draw(16)) {
        ends[draw((uint32_t)rows.count + 1)] = (int32_t)draw_number(columns->headers + 1);
        *is_wrong = 1;
    }
    rows.headers.ends = ends;
    rows.headers.key = given_column(&columns->header_key, columns->headers, is_wrong);
    rows.headers.key.valid = NULL;
    rows.headers.value = given_column(&columns->header_value, columns->headers, is_wrong);
    return rows;
}

/* Written records can be read again. */
static void check_written(const uint8_t *out, int64_t start, int64_t end, int64_t count)
{
    struct columns_span span = {start, end, 0, 0, COLUMNS_NO_APPEND_TIME, count, count - 1};
    struct columns columns = {.end_offset = INT64_MAX};
    int64_t headers;

    expect(!columns_count_headers(out, &span, 1, &headers).problem, "headers were written that cannot be read");
    columns.offsets = block(count * 8);
    columns.timestamps = block(count * 8);
    columns.timestamp_types = block(count * 4);
    columns.header_ends = block((count + 1) * 4);
    columns.header_key = new_column(headers, end - start);
    columns.header_value = new_column(headers, end - start);
    expect(!columns_decode(out, &span, 1, &columns).problem && columns.rows == count, "records cannot be read again");
}

static void write_rows(const struct columns *columns)
{
    int is_wrong = 0;
    struct rows rows = given_rows(columns, &is_wrong);
    int64_t *order = draw_order(rows.count, &is_wrong);
    int64_t first = draw((uint32_t)rows.count + 1), position = draw(20);
    int64_t out_size = position + (draw(3) ? 1 << 15 : draw(400));
    uint8_t *out;
    struct rows_result result;

    if (!draw(16))
        out_size = draw(10); /* not even room for the position */
    out = block(out_size);
    result = rows_encode(&rows, order, first, rows.count, out, position, out_size);
    expect(result.next >= first && result.next <= rows.count, "rows that do not exist are written");
    if (result.problem == ROWS_OUTSIDE) {
        expect(is_wrong, "a good offset is refused");
        outcomes[OUTSIDE]++;
    } else if (result.problem == ROWS_TOO_SMALL) {
        expect(result.next == first && result.position > out_size - position, "a record that fits is refused");
        outcomes[TOO_SMALL]++;
    } else if (result.next > first) {
        expect(result.position > position && result.position <= out_size, "records exceed the output");
        check_written(out, position, result.position, result.next - first);
        outcomes[result.next == rows.count ? WRITTEN : OUT_FULL]++;
    }
}

/* --- grouping --------------------------------------------------------------------------------------------------- */

static void group_rows(const struct columns *columns)
{
    int is_wrong = 0;
    int64_t first[2] = {0, draw(5) + 1}, counts[2], sticky[2], group_count, misplaced;
    struct groups_topics topics = {first, counts, sticky, 2};
    struct groups_rows rows = {.count = columns->rows};
    int32_t *row_topics = block(rows.count * 4), *partitions = block(rows.count * 4), *groups;
    int64_t *sizes, *next, *order;
    uint8_t *bits = block((rows.count + 7) / 8);

    counts[0] = draw_number(first[1]);
    counts[1] = draw_number(draw(5) + 1);
    sticky[0] = draw_number(0);
    sticky[1] = draw_number(0);
    group_count = counts[1] > 0 && counts[1] < 100 ? first[1] + counts[1] : 10;
    for (int64_t row = 0; row < rows.count; row++) {
        row_topics[row] = (int32_t)(draw(100) ? draw(2) : draw_number(2));
        partitions[row] = (int32_t)(draw(20) ? 0 : draw_number(3));
    }
    memset(bits, (int)draw(256), (size_t)(rows.count + 7) / 8);
    rows.topics = draw(4) ? row_topics : NULL;
    rows.partitions = draw(2) ? partitions : NULL;
    rows.partition_valid = draw(2) ? bits : NULL;
    rows.key = given_column(&columns->key, rows.count, &is_wrong);
    if (!groups_topics_fit(&topics, group_count) || !groups_rows_fit(&rows, topics.count)) {
        outcomes[OUTSIDE]++;
        return;
    }
    groups = block(rows.count * 4);
    memset(sizes = block(group_count * 8), 0, (size_t)group_count * 8);
    misplaced = groups_assign(&rows, &topics, groups, sizes);
    outcomes[misplaced < 0 ? ASSIGNED : UNKNOWN_PARTITION]++;
    if (misplaced >= 0)
        return;
    next = block(group_count * 8);
    order = block(rows.count * 8);
    for (int64_t group = 0, start = 0; group < group_count; start += sizes[group++])
        next[group] = start;
    expect(groups_order(groups, rows.count, next, group_count, order), "groups cannot be ordered");
    for (int64_t at = 1; at < rows.count; at++)
        expect(groups[order[at - 1]] < groups[order[at]] ||
                   (groups[order[at - 1]] == groups[order[at]] && order[at - 1] < order[at]),
               "rows are not in the order of their groups");
    next[draw((uint32_t)group_count)] = draw_number(0); /* any starts: only accesses are checked */
    groups_order(groups, rows.count, next, group_count, order);
}

int main(int count_of_arguments, char **arguments)
{
    struct columns_span spans[SPANS_MAX];
    struct columns columns;
    int64_t span_count, records;
    uint64_t rounds;
    uint8_t *data;

    for (rounds = begin(count_of_arguments, arguments); rounds; rounds--) {
        records = draw_spans(&data, spans, &span_count);
        columns = read_columns(data, spans, span_count, records);
        if (columns.rows)
            write_rows(&columns);
        group_rows(&columns);
        while (block_count)
            free(blocks[--block_count]);
    }
    report(outcomes, OUTCOMES);
    return 0;
}
