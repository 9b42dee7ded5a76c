/* Compaction for Python: the type `KeyOffsets`, and `shift_timestamps`. */
#ifndef QUORUMLOG_KEY_OFFSETS_MODULE_H
#define QUORUMLOG_KEY_OFFSETS_MODULE_H

#include <Python.h>

#include "key_offsets.h"

struct key_offsets {
    PyObject head;
    struct keys_table table;
};

static struct keys_table *keys_of(PyObject *self)
{
    return &((struct key_offsets *)self)->table;
}

static PyObject *keys_new(PyTypeObject *type, PyObject *args, PyObject *named)
{
    allocfunc allocate = (allocfunc)PyType_GetSlot(type, Py_tp_alloc);
    PyObject *self;
    long long count_max;
    Py_buffer secret;
    int made;

    if (named && PyDict_Size(named)) {
        PyErr_SetString(PyExc_TypeError, "KeyOffsets takes no named arguments");
        return NULL;
    }
    if (!PyArg_ParseTuple(args, "Ly*:KeyOffsets", &count_max, &secret))
        return NULL;
    if (secret.len != SIPHASH_KEY_SIZE || count_max < 0) {
        PyBuffer_Release(&secret);
        PyErr_SetString(PyExc_ValueError, "the secret has 16 bytes, and the number of keys is not negative");
        return NULL;
    }
    self = allocate(type, 0);
    made = self && keys_create(keys_of(self), count_max, secret.buf);
    PyBuffer_Release(&secret);
    if (made)
        return self;
    Py_XDECREF(self);
    return PyErr_NoMemory();
}

static void keys_dealloc(PyObject *self)
{
    PyTypeObject *type = Py_TYPE(self);
    freefunc release = (freefunc)PyType_GetSlot(type, Py_tp_free);

    free(keys_of(self)->slots);
    release(self);
    Py_DECREF(type);
}

static Py_ssize_t keys_length(PyObject *self)
{
    return (Py_ssize_t)keys_of(self)->count;
}

PyDoc_STRVAR(keys_note_doc, "note(body, count, base_offset, last_delta, first_offset) -> (problem, record)\n\n"
                            "Note the offsets of the keys in a batch.  See offset_map.py.");

static PyObject *keys_note_batch(PyObject *self, PyObject *args)
{
    Py_buffer body;
    int count;
    long long base_offset, last_delta, first_offset;
    struct keys_noted noted;

    if (!PyArg_ParseTuple(args, "y*iLLL:note", &body, &count, &base_offset, &last_delta, &first_offset))
        return NULL;
    noted = keys_note(keys_of(self), body.buf, (size_t)body.len, count, base_offset, last_delta, first_offset);
    PyBuffer_Release(&body);
    if (noted.problem == KEYS_NO_MEMORY)
        return PyErr_NoMemory();
    return Py_BuildValue("(iL)", noted.problem, (long long)noted.record);
}

PyDoc_STRVAR(keys_select_doc,
             "select(body, count, base_offset, last_delta, clean_end, removes_tombstones)\n"
             "    -> (problem, record, kept, newest_delta, has_tombstone, records)\n\n"
             "Find the records of a batch that survive.  records: None if all survive.  See offset_map.py.");

static PyObject *keys_select_batch(PyObject *self, PyObject *args)
{
    Py_buffer body;
    int count, removes_tombstones;
    long long base_offset, last_delta, clean_end;
    struct keys_selected found;
    uint8_t *out;
    PyObject *records = NULL, *result = NULL;

    if (!PyArg_ParseTuple(args, "y*iLLLp:select", &body, &count, &base_offset, &last_delta, &clean_end,
                          &removes_tombstones))
        return NULL;
    if (!(out = PyMem_Malloc(body.len ? (size_t)body.len : 1))) {
        PyBuffer_Release(&body);
        return PyErr_NoMemory();
    }
    found = keys_select(keys_of(self), body.buf, (size_t)body.len, count, base_offset, last_delta, clean_end,
                        removes_tombstones, out);
    PyBuffer_Release(&body);
    if (!found.problem && found.kept < count)
        records = PyBytes_FromStringAndSize((const char *)out, (Py_ssize_t)found.size);
    else
        records = Py_NewRef(Py_None);
    PyMem_Free(out);
    if (records)
        result = Py_BuildValue("(iLLLOO)", found.problem, (long long)found.record, (long long)found.kept,
                               (long long)found.newest_delta, found.has_tombstone ? Py_True : Py_False, records);
    Py_XDECREF(records);
    return result;
}

PyDoc_STRVAR(shift_timestamps_doc, "shift_timestamps(body, count, change) -> bytes\n\n"
                                   "Return the records with `change` added to each timestamp delta.");

static PyObject *shift_timestamps(PyObject *module, PyObject *args)
{
    Py_buffer body;
    int count;
    long long change;
    int64_t size;
    PyObject *shifted = NULL;

    (void)module;
    if (!PyArg_ParseTuple(args, "y*iL:shift_timestamps", &body, &count, &change))
        return NULL;
    size = keys_shift(body.buf, (size_t)body.len, count, change, NULL);
    if (size < 0)
        PyErr_SetString(PyExc_ValueError, "the records are malformed");
    else if ((shifted = PyBytes_FromStringAndSize(NULL, (Py_ssize_t)size)))
        keys_shift(body.buf, (size_t)body.len, count, change, (uint8_t *)PyBytes_AsString(shifted));
    PyBuffer_Release(&body);
    return shifted;
}

static PyMethodDef keys_methods[] = {
    {"note", keys_note_batch, METH_VARARGS, keys_note_doc},
    {"select", keys_select_batch, METH_VARARGS, keys_select_doc},
    {NULL, NULL, 0, NULL},
};

static PyType_Slot keys_slots[] = {
    {Py_tp_new, keys_new},         {Py_tp_dealloc, keys_dealloc}, {Py_mp_length, keys_length},
    {Py_tp_methods, keys_methods}, {Py_tp_doc, "The latest offset of each key: KeyOffsets(keys_max, secret)."},
    {0, NULL},
};

static PyType_Spec keys_spec = {
    .name = "quorumlog.wire._record_scan.KeyOffsets",
    .basicsize = sizeof(struct key_offsets),
    .flags = Py_TPFLAGS_DEFAULT,
    .slots = keys_slots,
};

/* Return 0 with an exception. */
static int keys_add_type(PyObject *module)
{
    PyObject *type = PyType_FromSpec(&keys_spec);
    int added = type && PyModule_AddObjectRef(module, "KeyOffsets", type) == 0;

    Py_XDECREF(type);
    return added;
}

#endif
