/* Encode and decode the records of one batch (format v2) as Python objects.
 *
 * Decoding reads untrusted bytes with the functions of record_scan.h, which compare with the end before every read.
 * Encoding measures all records first, so that it allocates once and every write is within the measured size.  No
 * Python code runs in between, so no object can change. */
#ifndef QUORUMLOG_RECORD_CODEC_H
#define QUORUMLOG_RECORD_CODEC_H

#include <Python.h>
#include <string.h>

#include "murmur2.h"
#include "record_scan.h"
#include "varint.h"

static PyStructSequence_Field record_fields[] = {
    {"topic", "name of the topic"},
    {"partition", "index of the partition"},
    {"offset", "position in the partition"},
    {"timestamp_ms", "milliseconds since 1970; -1: none"},
    {"append_time", "whether the timestamp is the leader's, not the producer's"},
    {"key", "bytes or None"},
    {"value", "bytes or None"},
    {"headers", "pairs of a name and bytes or None"},
    {NULL, NULL},
};

/* The places of two fields in record_fields. */
enum { RECORD_KEY = 5, RECORD_VALUE = 6 };

static PyStructSequence_Desc record_description = {
    .name = "quorumlog.wire._record_scan.Record",
    .doc = "A record that was read.",
    .fields = record_fields,
    .n_in_sequence = 8,
};

/* --- encoding --------------------------------------------------------------------------------------------------- */

static inline uint8_t *codec_put(uint8_t *at, const char *data, Py_ssize_t size)
{
    at = varint_put(at, size);
    if (size > 0) {
        memcpy(at, data, (size_t)size);
        at += size;
    }
    return at;
}

/* Read bytes or None; size -1 is None.  Return 0 and set an exception for any other type. */
static int codec_bytes(PyObject *object, const char **data, Py_ssize_t *size)
{
    if (object == Py_None) {
        *data = NULL;
        *size = -1;
        return 1;
    }
    if (!PyBytes_Check(object)) {
        PyErr_SetString(PyExc_TypeError, "keys, values and values of headers are bytes or None");
        return 0;
    }
    return PyBytes_AsStringAndSize(object, (char **)data, size) == 0;
}

static inline size_t codec_bytes_size(Py_ssize_t size)
{
    return varint_size(size) + (size > 0 ? (size_t)size : 0);
}

struct codec_record {
    int64_t timestamp;
    const char *key, *value;
    Py_ssize_t key_size, value_size;
    PyObject *headers; /* borrowed */
    Py_ssize_t header_count;
};

static int codec_header(PyObject *headers, Py_ssize_t index, const char **name, Py_ssize_t *name_size,
                        const char **value, Py_ssize_t *value_size)
{
    PyObject *pair = PyTuple_GetItem(headers, index);
    PyObject *text;
    if (!pair)
        return 0;
    if (!PyTuple_Check(pair) || PyTuple_Size(pair) != 2 || !PyUnicode_Check(text = PyTuple_GetItem(pair, 0))) {
        PyErr_SetString(PyExc_TypeError, "a header is a pair of a str and bytes or None");
        return 0;
    }
    *name = PyUnicode_AsUTF8AndSize(text, name_size);
    return *name && codec_bytes(PyTuple_GetItem(pair, 1), value, value_size);
}

/* Return the size of the record after its length, or -1 with an exception. */
static Py_ssize_t codec_measure(PyObject *item, int64_t base, Py_ssize_t delta, struct codec_record *record)
{
    Py_ssize_t size, index, name_size, value_size;
    const char *name, *value;

    if (!PyTuple_Check(item) || PyTuple_Size(item) != 4 || !PyTuple_Check(PyTuple_GetItem(item, 3))) {
        PyErr_SetString(PyExc_TypeError, "a record is a tuple (timestamp, key, value, headers), headers a tuple");
        return -1;
    }
    if (!PyLong_Check(PyTuple_GetItem(item, 0))) { /* an __index__ could change the list meanwhile */
        PyErr_SetString(PyExc_TypeError, "a timestamp is an int");
        return -1;
    }
    record->timestamp = PyLong_AsLongLong(PyTuple_GetItem(item, 0));
    if (record->timestamp == -1 && PyErr_Occurred())
        return -1;
    if (record->timestamp < -1 || base < -1) {
        PyErr_SetString(PyExc_ValueError, "a timestamp is not below -1");
        return -1;
    }
    if (!codec_bytes(PyTuple_GetItem(item, 1), &record->key, &record->key_size) ||
        !codec_bytes(PyTuple_GetItem(item, 2), &record->value, &record->value_size))
        return -1;
    record->headers = PyTuple_GetItem(item, 3);
    record->header_count = PyTuple_Size(record->headers);
    size = 1 + varint_size(record->timestamp - base) + varint_size(delta) +
           codec_bytes_size(record->key_size) + codec_bytes_size(record->value_size) +
           varint_size(record->header_count);
    for (index = 0; index < record->header_count; index++) {
        if (!codec_header(record->headers, index, &name, &name_size, &value, &value_size))
            return -1;
        size += codec_bytes_size(name_size) + codec_bytes_size(value_size);
    }
    if (size > INT32_MAX) {
        PyErr_SetString(PyExc_ValueError, "a record has at most 2 GiB");
        return -1;
    }
    return size;
}

static uint8_t *codec_put_record(uint8_t *at, const struct codec_record *record, int64_t base, Py_ssize_t delta,
                                 Py_ssize_t size)
{
    Py_ssize_t index, name_size, value_size;
    const char *name, *value;

    at = varint_put(at, size);
    *at++ = 0; /* attributes: none are defined */
    at = varint_put(at, record->timestamp - base);
    at = varint_put(at, delta);
    at = codec_put(at, record->key, record->key_size);
    at = codec_put(at, record->value, record->value_size);
    at = varint_put(at, record->header_count);
    for (index = 0; index < record->header_count; index++) {
        if (!codec_header(record->headers, index, &name, &name_size, &value, &value_size))
            return NULL;
        at = codec_put(at, name, name_size);
        at = codec_put(at, value, value_size);
    }
    return at;
}

PyDoc_STRVAR(encode_doc, "encode(records, base_timestamp, reserve) -> (bytearray, max_timestamp)\n\n"
                         "Encode a list of (timestamp, key, value, headers) after `reserve` zero bytes.");

static PyObject *encode(PyObject *module, PyObject *args)
{
    PyObject *records, *out;
    long long base;
    Py_ssize_t reserve, count, index, size, total;
    int64_t max_timestamp = -1;
    struct codec_record record;
    uint8_t *at;

    (void)module;
    if (!PyArg_ParseTuple(args, "O!Ln:encode", &PyList_Type, &records, &base, &reserve))
        return NULL;
    count = PyList_Size(records);
    total = reserve;
    for (index = 0; index < count; index++) {
        size = codec_measure(PyList_GetItem(records, index), base, index, &record);
        if (size < 0)
            return NULL;
        total += varint_size(size) + size;
        if (record.timestamp > max_timestamp)
            max_timestamp = record.timestamp;
    }
    if (!(out = PyByteArray_FromStringAndSize(NULL, total)))
        return NULL;
    at = (uint8_t *)PyByteArray_AsString(out);
    memset(at, 0, (size_t)reserve);
    at += reserve;
    for (index = 0; index < count; index++) {
        size = codec_measure(PyList_GetItem(records, index), base, index, &record);
        if (size < 0 || !(at = codec_put_record(at, &record, base, index, size))) {
            Py_DECREF(out);
            return NULL;
        }
    }
    return Py_BuildValue("(NL)", out, (long long)max_timestamp);
}

/* --- decoding --------------------------------------------------------------------------------------------------- */

struct codec_batch {
    PyObject *type, *topic, *partition, *append_time, *no_headers;
    int64_t base_offset, base_timestamp, fixed_timestamp;
    int is_append_time;
    int32_t last_delta;
    int64_t first_offset, end_offset;
};

/* Read a length and the bytes after it, as a new object.  Return a problem, 0, or -1 if Python failed. */
static int codec_take(const uint8_t **at, const uint8_t *end, int problem, PyObject **object)
{
    int32_t length;
    int failed = scan_bytes(at, end, -1, problem, &length);
    if (failed)
        return failed;
    if (length < 0) {
        Py_INCREF(Py_None);
        *object = Py_None;
    } else {
        *object = PyBytes_FromStringAndSize((const char *)*at - length, length);
    }
    return *object ? SCAN_OK : -1;
}

/* Read one header into a new pair.  Return a problem, 0, or -1 if Python failed. */
static int codec_take_header(const uint8_t **at, const uint8_t *end, PyObject **pair)
{
    int32_t length;
    int failed = scan_bytes(at, end, 0, SCAN_HEADER_KEY, &length);
    PyObject *name, *value = NULL;

    if (failed)
        return failed;
    if (!(name = PyUnicode_DecodeUTF8((const char *)*at - length, length, "replace")))
        return -1;
    if (!(failed = codec_take(at, end, SCAN_HEADER_VALUE, &value)) && !(*pair = PyTuple_Pack(2, name, value)))
        failed = -1;
    Py_DECREF(name);
    Py_XDECREF(value);
    return failed;
}

/* Read all headers into a new tuple.  Return a problem, 0, or -1 if Python failed. */
static int codec_take_headers(const uint8_t **at, const uint8_t *end, PyObject *no_headers, PyObject **headers)
{
    int32_t count, index;
    int failed = scan_varint32(at, end, &count);
    PyObject *made, *pair = NULL;

    if (failed)
        return failed;
    if (count < 0 || count > (end - *at) / SCAN_HEADER_MIN)
        return SCAN_HEADER_COUNT;
    if (count == 0) {
        Py_INCREF(no_headers);
        *headers = no_headers;
        return SCAN_OK;
    }
    if (!(made = PyTuple_New(count)))
        return -1;
    for (index = 0; index < count; index++) {
        if ((failed = codec_take_header(at, end, &pair))) {
            Py_DECREF(made);
            return failed;
        }
        PyTuple_SetItem(made, index, pair);
    }
    *headers = made;
    return SCAN_OK;
}

/* Read one record after its length, and append it to `out` if its offset is wanted.  Return a problem, 0, or -1 if
 * Python failed. */
static int codec_take_record(const uint8_t **at, const uint8_t *end, const struct codec_batch *batch,
                             int32_t *previous, PyObject *out)
{
    int64_t timestamp_delta, offset;
    int32_t delta, length;
    int failed;
    PyObject *record, *key = NULL, *value = NULL, *headers = NULL;

    (*at)++; /* attributes */
    if ((failed = scan_varint64(at, end, &timestamp_delta)) || (failed = scan_varint32(at, end, &delta)))
        return failed;
    if (delta <= *previous || delta > batch->last_delta)
        return SCAN_OFFSET_DELTA;
    *previous = delta;
    offset = (int64_t)((uint64_t)batch->base_offset + (uint64_t)delta); /* may overflow in a malformed batch */
    if (offset < batch->first_offset || offset >= batch->end_offset) {
        if ((failed = scan_bytes(at, end, -1, SCAN_KEY_LENGTH, &length)) ||
            (failed = scan_bytes(at, end, -1, SCAN_VALUE_LENGTH, &length)) || (failed = scan_headers(at, end)))
            return failed;
        return *at == end ? SCAN_OK : SCAN_RECORD_REST;
    }
    failed = codec_take(at, end, SCAN_KEY_LENGTH, &key);
    if (!failed)
        failed = codec_take(at, end, SCAN_VALUE_LENGTH, &value);
    if (!failed)
        failed = codec_take_headers(at, end, batch->no_headers, &headers);
    if (!failed && *at != end)
        failed = SCAN_RECORD_REST;
    if (failed || !(record = PyStructSequence_New((PyTypeObject *)batch->type))) {
        Py_XDECREF(key);
        Py_XDECREF(value);
        Py_XDECREF(headers);
        return failed ? failed : -1;
    }
    Py_INCREF(batch->topic);
    Py_INCREF(batch->partition);
    Py_INCREF(batch->append_time);
    PyStructSequence_SetItem(record, 0, batch->topic);
    PyStructSequence_SetItem(record, 1, batch->partition);
    PyStructSequence_SetItem(record, 2, PyLong_FromLongLong(offset));
    PyStructSequence_SetItem(
        record, 3,
        PyLong_FromLongLong(batch->is_append_time
                                ? batch->fixed_timestamp
                                : (int64_t)((uint64_t)batch->base_timestamp + (uint64_t)timestamp_delta)));
    PyStructSequence_SetItem(record, 4, batch->append_time);
    PyStructSequence_SetItem(record, RECORD_KEY, key);
    PyStructSequence_SetItem(record, RECORD_VALUE, value);
    PyStructSequence_SetItem(record, 7, headers);
    failed = PyErr_Occurred() ? -1 : PyList_Append(out, record);
    Py_DECREF(record);
    return failed;
}

PyDoc_STRVAR(decode_doc, "decode(body, count, topic, partition, base_offset, last_delta, base_timestamp,\n"
                         "       append_timestamp, first_offset, end_offset) -> (records, problem, record, position)\n\n"
                         "Decode the records with first_offset <= offset < end_offset.  append_timestamp: the\n"
                         "timestamp of all records, or None.  After a problem, records contains nothing usable.");

static PyObject *decode(PyObject *module, PyObject *args)
{
    PyObject **state = PyModule_GetState(module);
    Py_buffer body;
    PyObject *out, *append_timestamp;
    struct codec_batch batch;
    int count, last_delta, index, problem = SCAN_OK;
    int32_t length, previous = -1;
    long long base_offset, base_timestamp, first_offset, end_offset;
    const uint8_t *at, *end;

    if (!PyArg_ParseTuple(args, "y*iUOLiLOLL:decode", &body, &count, &batch.topic, &batch.partition, &base_offset,
                          &last_delta, &base_timestamp, &append_timestamp, &first_offset, &end_offset))
        return NULL;
    batch.type = state[0];
    batch.no_headers = state[1];
    batch.base_offset = base_offset;
    batch.base_timestamp = base_timestamp;
    batch.last_delta = last_delta;
    batch.first_offset = first_offset;
    batch.end_offset = end_offset;
    batch.is_append_time = append_timestamp != Py_None;
    batch.append_time = batch.is_append_time ? Py_True : Py_False;
    batch.fixed_timestamp = batch.is_append_time ? PyLong_AsLongLong(append_timestamp) : 0;
    out = PyErr_Occurred() ? NULL : PyList_New(0);
    if (!out) {
        PyBuffer_Release(&body);
        return NULL;
    }
    at = body.buf;
    end = at + body.len;
    for (index = 0; index < count && !problem; index++) {
        if (at == end)
            problem = SCAN_BATCH_SHORT;
        else if (!(problem = scan_varint32(&at, end, &length))) {
            if (length < SCAN_RECORD_CONTENT_MIN || length > end - at)
                problem = SCAN_RECORD_LENGTH;
            else
                problem = codec_take_record(&at, at + length, &batch, &previous, out);
        }
    }
    if (!problem && at != end)
        problem = SCAN_BATCH_REST;
    if (problem < 0) {
        Py_DECREF(out);
        PyBuffer_Release(&body);
        return NULL;
    }
    previous = (int32_t)(at - (const uint8_t *)body.buf);
    PyBuffer_Release(&body);
    return Py_BuildValue("(Niii)", out, problem, problem ? index - 1 : index, (int)previous);
}

/* --- partitions ------------------------------------------------------------------------------------------------- */

PyDoc_STRVAR(murmur2_doc, "murmur2(data) -> int\n\nReturn Kafka's hash of a key, unsigned.");

static PyObject *murmur2(PyObject *module, PyObject *data)
{
    Py_buffer key;
    uint32_t hash;

    (void)module;
    if (PyObject_GetBuffer(data, &key, PyBUF_SIMPLE) < 0)
        return NULL;
    hash = murmur2_hash(key.buf, (size_t)key.len);
    PyBuffer_Release(&key);
    return PyLong_FromUnsignedLong(hash);
}

#endif
