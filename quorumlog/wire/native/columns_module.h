/* The Python functions of record_columns.h, record_rows.h and row_groups.h. */
#ifndef QUORUMLOG_COLUMNS_MODULE_H
#define QUORUMLOG_COLUMNS_MODULE_H

#include "arrays.h"
#include "record_columns.h"
#include "record_rows.h"
#include "release.h"
#include "row_groups.h"

/* --- records to columns ----------------------------------------------------------------------------------------- */

struct taken_spans {
    const uint8_t *data;
    const struct columns_span *spans;
    int64_t span_count;
    int64_t size, records; /* sums of all spans */
};

/* Check that the spans are within the data, and add them up.  Return 0 with an exception. */
static int columns_add_spans(int64_t data_size, struct taken_spans *taken)
{
    const struct columns_span *span = taken->spans, *end = span + taken->span_count;

    for (taken->size = taken->records = 0; span < end; span++) {
        if (span->start < 0 || span->start > span->end || span->end > data_size || span->count < 0) {
            PyErr_SetString(PyExc_ValueError, "a span is not within the data");
            return 0;
        }
        if (span->end - span->start > INT32_MAX - taken->size || span->count > INT32_MAX - taken->records) {
            PyErr_SetString(PyExc_ValueError, "the spans have more bytes or records than Arrow's offsets can count");
            return 0;
        }
        taken->size += span->end - span->start;
        taken->records += span->count;
    }
    return 1;
}

static int columns_take_spans(struct arrays *arrays, PyObject *data, PyObject *spans, struct taken_spans *taken)
{
    struct array bytes, fields;

    if (!arrays_take(arrays, data, "data", &BYTES_IN, 0, &bytes) ||
        !arrays_take_shaped(arrays, spans, "spans", &INT64_IN, 2, 0, &fields))
        return 0;
    if (arrays->views[arrays->count - 1].shape[1] != COLUMNS_SPAN_FIELDS) {
        PyErr_Format(PyExc_ValueError, "a span has %d fields", COLUMNS_SPAN_FIELDS);
        return 0;
    }
    taken->data = bytes.data;
    taken->spans = fields.data;
    taken->span_count = fields.count / COLUMNS_SPAN_FIELDS;
    return columns_add_spans(bytes.count, taken);
}

/* Take (offsets, data, valid) with room for `values` and for `size` bytes; None is a column that is not wanted. */
static int columns_take_output(struct arrays *arrays, PyObject *group, const char *name, int64_t values, int64_t size,
                               struct columns_bytes *column)
{
    struct array offsets, data, valid;
    int given = arrays_are_given(group, name, 3);

    memset(column, 0, sizeof *column);
    if (given <= 0)
        return given == 0;
    if (!arrays_take(arrays, PyTuple_GetItem(group, 0), name, &INT32_OUT, values + 1, &offsets) ||
        !arrays_take(arrays, PyTuple_GetItem(group, 1), name, &BYTES_OUT, size, &data) ||
        !arrays_take(arrays, PyTuple_GetItem(group, 2), name, &BYTES_OUT, values, &valid))
        return 0;
    column->offsets = offsets.data;
    column->data = data.data;
    column->data_room = data.count;
    column->valid = valid.data;
    column->room = offsets.count - 1 < valid.count ? offsets.count - 1 : valid.count;
    return 1;
}

/* Take (ends, keys, values); None is a column that is not wanted. */
static int columns_take_header_output(struct arrays *arrays, PyObject *group, const struct taken_spans *spans,
                                      struct columns *columns)
{
    struct array ends;
    int given = arrays_are_given(group, "headers", 3);

    columns->header_ends = NULL;
    if (given <= 0)
        return given == 0;
    if (!arrays_take(arrays, PyTuple_GetItem(group, 0), "headers", &INT32_OUT, spans->records + 1, &ends) ||
        !columns_take_output(arrays, PyTuple_GetItem(group, 1), "keys of headers", 0, spans->size,
                             &columns->header_key) ||
        !columns_take_output(arrays, PyTuple_GetItem(group, 2), "values of headers", 0, spans->size,
                             &columns->header_value))
        return 0;
    if (!columns->header_key.offsets || !columns->header_value.offsets ||
        columns->header_key.room != columns->header_value.room) {
        PyErr_SetString(PyExc_ValueError, "headers have not as many keys as values");
        return 0;
    }
    columns->header_ends = ends.data;
    return 1;
}

static PyObject *columns_place(const struct columns_result *result)
{
    if (result->problem == COLUMNS_OK)
        Py_RETURN_NONE;
    return Py_BuildValue("(LL)", (long long)result->span, (long long)result->position);
}

PyDoc_STRVAR(count_headers_doc, "count_headers(data, spans) -> (count, malformed)\n\n"
                                "Count the headers of the spans' records.  See decode_columns.");

static PyObject *count_headers(PyObject *module, PyObject *args)
{
    struct arrays arrays = {.count = 0};
    struct taken_spans taken;
    struct columns_result result;
    PyObject *data, *spans;
    PyThreadState *thread;
    int64_t total;

    (void)module;
    if (!PyArg_ParseTuple(args, "OO:count_headers", &data, &spans))
        return NULL;
    if (!columns_take_spans(&arrays, data, spans, &taken)) {
        arrays_release(&arrays);
        return NULL;
    }
    thread = release_begin(taken.size);
    result = columns_count_headers(taken.data, taken.spans, taken.span_count, &total);
    release_end(thread);
    arrays_release(&arrays);
    return Py_BuildValue("(LN)", (long long)total, columns_place(&result));
}

PyDoc_STRVAR(decode_columns_doc,
             "decode_columns(data, spans, first_offset, end_offset, (offsets, timestamps, timestamp_types), key, value,\n"
             "               headers) -> (rows, malformed)\n\n"
             "Write the records with first_offset <= offset < end_offset to the given arrays; timestamps are in us.\n"
             "A span is the start and the end of a batch's records in the data, base offset, base timestamp (ms),\n"
             "append time (ms; -2**63: none), number of records, last offset delta.  key, value: None or (offsets,\n"
             "data, valid).  headers: None or (offsets, key, value).  malformed: None, or (index of the span,\n"
             "position in the data).");

static int columns_take_arguments(struct arrays *arrays, PyObject *args, struct taken_spans *spans,
                                  struct columns *columns)
{
    PyObject *data, *span_fields, *offsets, *timestamps, *types, *key, *value, *headers;
    struct array offset, timestamp, type;
    long long first_offset, end_offset;

    if (!PyArg_ParseTuple(args, "OOLL(OOO)OOO:decode_columns", &data, &span_fields, &first_offset, &end_offset,
                          &offsets, &timestamps, &types, &key, &value, &headers))
        return 0;
    columns->first_offset = first_offset;
    columns->end_offset = end_offset;
    if (!columns_take_spans(arrays, data, span_fields, spans) ||
        !arrays_take(arrays, offsets, "offsets", &INT64_OUT, spans->records, &offset) ||
        !arrays_take(arrays, timestamps, "timestamps", &INT64_OUT, spans->records, &timestamp) ||
        !arrays_take(arrays, types, "timestamp types", &INT32_OUT, spans->records, &type) ||
        !columns_take_output(arrays, key, "key", spans->records, spans->size, &columns->key) ||
        !columns_take_output(arrays, value, "value", spans->records, spans->size, &columns->value) ||
        !columns_take_header_output(arrays, headers, spans, columns))
        return 0;
    columns->offsets = offset.data;
    columns->timestamps = timestamp.data;
    columns->timestamp_types = type.data;
    return arrays_are_distinct(arrays);
}

static PyObject *decode_columns(PyObject *module, PyObject *args)
{
    struct arrays arrays = {.count = 0};
    struct columns columns;
    struct taken_spans taken;
    struct columns_result result;
    PyThreadState *thread;

    (void)module;
    if (!columns_take_arguments(&arrays, args, &taken, &columns)) {
        arrays_release(&arrays);
        return NULL;
    }
    thread = release_begin(taken.size);
    result = columns_decode(taken.data, taken.spans, taken.span_count, &columns);
    release_end(thread);
    arrays_release(&arrays);
    if (result.problem == COLUMNS_NO_ROOM) {
        PyErr_SetString(PyExc_ValueError, "the records have more headers than fit into the arrays");
        return NULL;
    }
    return Py_BuildValue("(LN)", (long long)columns.rows, columns_place(&result));
}

/* --- columns to records ----------------------------------------------------------------------------------------- */

/* Take a bitmap of `count` values; None means that none is null. */
static int rows_take_bitmap(struct arrays *arrays, PyObject *object, const char *name, int64_t count,
                            const uint8_t **bits)
{
    struct array bitmap;
    if (!arrays_take_optional(arrays, object, name, &BYTES_IN, (count + 7) / 8, &bitmap))
        return 0;
    *bits = bitmap.data;
    return 1;
}

/* Take (offsets, data, valid) of at least `count` values; None is a missing column. */
static int rows_take_bytes(struct arrays *arrays, PyObject *group, const char *name, int64_t count,
                           struct rows_bytes *column)
{
    struct array offsets, data;
    int given = arrays_are_given(group, name, 3);

    memset(column, 0, sizeof *column);
    if (given <= 0)
        return given == 0;
    if (!arrays_take(arrays, PyTuple_GetItem(group, 0), name, &INT32_IN, count + 1, &offsets) ||
        !arrays_take(arrays, PyTuple_GetItem(group, 1), name, &BYTES_IN, 0, &data) ||
        !rows_take_bitmap(arrays, PyTuple_GetItem(group, 2), name, offsets.count - 1, &column->valid))
        return 0;
    column->offsets = offsets.data;
    column->count = offsets.count - 1;
    column->data = data.data;
    column->size = data.count;
    return 1;
}

/* Take (offsets, valid, key, value) of at least `count` lists; None is a missing column. */
static int rows_take_headers(struct arrays *arrays, PyObject *group, int64_t count, struct rows_headers *headers)
{
    struct array ends;
    int given = arrays_are_given(group, "headers", 4);

    memset(headers, 0, sizeof *headers);
    if (given <= 0)
        return given == 0;
    if (!arrays_take(arrays, PyTuple_GetItem(group, 0), "headers", &INT32_IN, count + 1, &ends) ||
        !rows_take_bitmap(arrays, PyTuple_GetItem(group, 1), "headers", count, &headers->valid) ||
        !rows_take_bytes(arrays, PyTuple_GetItem(group, 2), "keys of headers", 0, &headers->key) ||
        !rows_take_bytes(arrays, PyTuple_GetItem(group, 3), "values of headers", 0, &headers->value))
        return 0;
    if (!headers->key.offsets || headers->key.valid || headers->key.count != headers->value.count) {
        PyErr_SetString(PyExc_ValueError, "headers have a null key, or not as many keys as values");
        return 0;
    }
    headers->ends = ends.data;
    return 1;
}

struct taken_rows {
    struct rows rows;
    const int64_t *order;
    uint8_t *out;
    long long first, end, position;
    int64_t out_size;
};

static int rows_take_arguments(struct arrays *arrays, PyObject *args, struct taken_rows *taken)
{
    PyObject *order, *timestamps, *key, *value, *headers, *out;
    struct array rows, timestamp, output;

    if (!PyArg_ParseTuple(args, "OLLOOOOOL:encode_columns", &order, &taken->first, &taken->end, &timestamps, &key,
                          &value, &headers, &out, &taken->position) ||
        !arrays_take(arrays, order, "order", &INT64_IN, taken->end, &rows) ||
        !arrays_take(arrays, timestamps, "timestamps", &INT64_IN, 0, &timestamp) ||
        !rows_take_bytes(arrays, key, "key", timestamp.count, &taken->rows.key) ||
        !rows_take_bytes(arrays, value, "value", timestamp.count, &taken->rows.value) ||
        !rows_take_headers(arrays, headers, timestamp.count, &taken->rows.headers) ||
        !arrays_take(arrays, out, "output", &BYTES_OUT, 0, &output))
        return 0;
    if (taken->first < 0 || taken->first >= taken->end || taken->position < 0) {
        PyErr_SetString(PyExc_ValueError, "the range of rows is empty, or the position is negative");
        return 0;
    }
    taken->rows.timestamps = timestamp.data;
    taken->rows.count = timestamp.count;
    taken->order = rows.data;
    taken->out = output.data;
    taken->out_size = output.count;
    return arrays_are_distinct(arrays);
}

PyDoc_STRVAR(encode_columns_doc,
             "encode_columns(order, first, end, timestamps, key, value, headers, out, position) -> (next, position)\n\n"
             "Write the rows order[first:end] as records from `position` until `out` is full.  The first timestamp (ms)\n"
             "is the batch's base.  key, value: None or (offsets, data, bitmap or None).  headers: None or\n"
             "(offsets, bitmap or None, key, value).  Returns the index after the last written row and the end of its\n"
             "record; or, if no record fits, `first` and the size of its record.");

static PyObject *encode_columns(PyObject *module, PyObject *args)
{
    struct arrays arrays = {.count = 0};
    struct taken_rows taken;
    struct rows_result result;
    PyThreadState *thread;

    (void)module;
    if (!rows_take_arguments(&arrays, args, &taken)) {
        arrays_release(&arrays);
        return NULL;
    }
    thread = release_begin(taken.out_size - taken.position);
    result = rows_encode(&taken.rows, taken.order, taken.first, taken.end, taken.out, taken.position, taken.out_size);
    release_end(thread);
    arrays_release(&arrays);
    if (result.problem == ROWS_OUTSIDE) {
        PyErr_SetString(PyExc_ValueError, "a row or an offset is outside its array");
        return NULL;
    }
    return Py_BuildValue("(LL)", (long long)result.next, (long long)result.position);
}

/* --- rows to groups --------------------------------------------------------------------------------------------- */

struct taken_groups {
    struct groups_topics topics;
    struct groups_rows rows;
    int32_t *groups;
    int64_t *group_sizes;
};

static int groups_take_topics(struct arrays *arrays, PyObject *group, struct groups_topics *topics)
{
    struct array first_group, partition_count, sticky;

    if (!arrays_take(arrays, PyTuple_GetItem(group, 0), "first groups", &INT64_IN, 0, &first_group) ||
        !arrays_take(arrays, PyTuple_GetItem(group, 1), "partition counts", &INT64_IN, first_group.count,
                     &partition_count) ||
        !arrays_take(arrays, PyTuple_GetItem(group, 2), "sticky partitions", &INT64_IN, first_group.count, &sticky))
        return 0;
    topics->count = first_group.count;
    topics->first_group = first_group.data;
    topics->partition_count = partition_count.data;
    topics->sticky = sticky.data;
    return 1;
}

static int groups_take_partitions(struct arrays *arrays, PyObject *group, struct groups_rows *rows)
{
    struct array partitions;
    int given = arrays_are_given(group, "partition", 2);

    rows->partitions = NULL;
    rows->partition_valid = NULL;
    if (given <= 0)
        return given == 0;
    if (!arrays_take(arrays, PyTuple_GetItem(group, 0), "partition", &INT32_IN, rows->count, &partitions) ||
        !rows_take_bitmap(arrays, PyTuple_GetItem(group, 1), "partition", rows->count, &rows->partition_valid))
        return 0;
    rows->partitions = partitions.data;
    return 1;
}

static int groups_take_arguments(struct arrays *arrays, PyObject *args, struct taken_groups *taken)
{
    PyObject *topics, *row_topics, *partitions, *key, *groups, *group_sizes;
    struct array group, group_size, topic;

    if (!PyArg_ParseTuple(args, "O!OOOOO:assign_groups", &PyTuple_Type, &topics, &row_topics, &partitions, &key,
                          &groups, &group_sizes) ||
        arrays_are_given(topics, "topics", 3) < 0 ||
        !arrays_take(arrays, groups, "groups", &INT32_OUT, 0, &group) ||
        !arrays_take(arrays, group_sizes, "group sizes", &INT64_OUT, 0, &group_size) ||
        !groups_take_topics(arrays, topics, &taken->topics) ||
        !arrays_take_optional(arrays, row_topics, "topics of rows", &INT32_IN, group.count, &topic))
        return 0;
    taken->groups = group.data;
    taken->group_sizes = group_size.data;
    taken->rows.count = group.count;
    taken->rows.topics = topic.data;
    if (!groups_take_partitions(arrays, partitions, &taken->rows) ||
        !rows_take_bytes(arrays, key, "key", group.count, &taken->rows.key) || !arrays_are_distinct(arrays))
        return 0;
    if (group_size.count > INT32_MAX || !groups_topics_fit(&taken->topics, group_size.count) ||
        !groups_rows_fit(&taken->rows, taken->topics.count)) {
        PyErr_SetString(PyExc_ValueError, "a topic, a partition or an offset is outside its array");
        return 0;
    }
    return 1;
}

PyDoc_STRVAR(assign_groups_doc,
             "assign_groups((first_groups, partition_counts, sticky), topics, partitions, key, groups, group_sizes)\n"
             "    -> row\n\n"
             "Write the group of each row, and add the rows of each group to its size.  first_groups: by topic, the\n"
             "group of its partition 0.  sticky: by topic, the partition of rows without key and partition.  topics:\n"
             "the topic of each row; None: 0 for all rows.  partitions: None or (values, bitmap or None).  Returns -1,\n"
             "or the first row that names a partition that its topic does not have.");

static PyObject *assign_groups(PyObject *module, PyObject *args)
{
    struct arrays arrays = {.count = 0};
    struct taken_groups taken;
    PyThreadState *thread;
    int64_t misplaced;

    (void)module;
    if (!groups_take_arguments(&arrays, args, &taken)) {
        arrays_release(&arrays);
        return NULL;
    }
    thread = release_begin(taken.rows.count * (int64_t)sizeof *taken.groups + taken.rows.key.size);
    misplaced = groups_assign(&taken.rows, &taken.topics, taken.groups, taken.group_sizes);
    release_end(thread);
    arrays_release(&arrays);
    return PyLong_FromLongLong(misplaced);
}

PyDoc_STRVAR(order_by_group_doc, "order_by_group(groups, group_starts, order)\n\n"
                                 "Write the rows by group, and within a group in their own order.  group_starts: the\n"
                                 "first place of each group; it is advanced to the end of the group.");

static PyObject *order_by_group(PyObject *module, PyObject *args)
{
    struct arrays arrays = {.count = 0};
    PyObject *groups, *group_starts, *order;
    struct array group, start, place;
    PyThreadState *thread;
    int is_ordered;

    (void)module;
    if (!PyArg_ParseTuple(args, "OOO:order_by_group", &groups, &group_starts, &order))
        return NULL;
    if (!arrays_take(&arrays, groups, "groups", &INT32_IN, 0, &group) ||
        !arrays_take(&arrays, group_starts, "group starts", &INT64_OUT, 0, &start) ||
        !arrays_take(&arrays, order, "order", &INT64_OUT, group.count, &place) || !arrays_are_distinct(&arrays)) {
        arrays_release(&arrays);
        return NULL;
    }
    thread = release_begin(group.count * (int64_t)sizeof(int64_t));
    is_ordered = groups_order(group.data, group.count, start.data, start.count, place.data);
    release_end(thread);
    arrays_release(&arrays);
    if (!is_ordered) {
        PyErr_SetString(PyExc_ValueError, "a group or its start is outside its array");
        return NULL;
    }
    Py_RETURN_NONE;
}

#endif
