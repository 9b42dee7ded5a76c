/* quorumlog.wire._record_scan: the headers of this folder for Python (stable ABI of 3.11 and later). */
#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include "columns_module.h"
#include "committed_offsets.h"
#include "key_offsets_module.h"
#include "record_codec.h"
#include "record_scan.h"
#include "release.h"

PyDoc_STRVAR(scan_doc, "scan(body, count, base_timestamp, oldest_timestamp, newest_timestamp)\n"
                       "    -> (problem, record, position, max_timestamp, first_null_key)\n\n"
                       "Check that the contiguous buffer `body` is exactly `count` records.  See record_framing.py.");

static PyObject *scan(PyObject *module, PyObject *args)
{
    Py_buffer body;
    int count;
    long long base_timestamp, oldest_timestamp, newest_timestamp;
    struct scan_result result;
    PyThreadState *thread;

    (void)module;
    if (!PyArg_ParseTuple(args, "y*iLLL:scan", &body, &count, &base_timestamp, &oldest_timestamp,
                          &newest_timestamp))
        return NULL;
    thread = release_begin(body.len);
    result = scan_records(body.buf, (size_t)body.len, count, base_timestamp, oldest_timestamp, newest_timestamp);
    release_end(thread);
    PyBuffer_Release(&body);
    return Py_BuildValue("(iiLLi)", result.problem, (int)result.record, (long long)result.position,
                         (long long)result.max_timestamp, (int)result.first_null_key);
}

static PyMethodDef methods[] = {
    {"scan", scan, METH_VARARGS, scan_doc},
    {"encode", encode, METH_VARARGS, encode_doc},
    {"decode", decode, METH_VARARGS, decode_doc},
    {"apply_offsets", apply_offsets, METH_VARARGS, apply_offsets_doc},
    {"murmur2", murmur2, METH_O, murmur2_doc},
    {"count_headers", count_headers, METH_VARARGS, count_headers_doc},
    {"decode_columns", decode_columns, METH_VARARGS, decode_columns_doc},
    {"encode_columns", encode_columns, METH_VARARGS, encode_columns_doc},
    {"assign_groups", assign_groups, METH_VARARGS, assign_groups_doc},
    {"order_by_group", order_by_group, METH_VARARGS, order_by_group_doc},
    {"shift_timestamps", shift_timestamps, METH_VARARGS, shift_timestamps_doc},
    {NULL, NULL, 0, NULL},
};

/* The state of the module: the type of records, and the empty tuple that all records without headers share. */
static int prepare(PyObject *module)
{
    PyObject **state = PyModule_GetState(module);

    state[0] = (PyObject *)PyStructSequence_NewType(&record_description);
    state[1] = PyTuple_New(0);
    if (!state[0] || !state[1] || !keys_add_type(module))
        return -1;
    return PyModule_AddObjectRef(module, "Record", state[0]);
}

static int visit(PyObject *module, visitproc visit, void *arg)
{
    PyObject **state = PyModule_GetState(module);

    if (state) {
        Py_VISIT(state[0]);
        Py_VISIT(state[1]);
    }
    return 0;
}

static int clear(PyObject *module)
{
    PyObject **state = PyModule_GetState(module);

    if (state) {
        Py_CLEAR(state[0]);
        Py_CLEAR(state[1]);
    }
    return 0;
}

static PyModuleDef_Slot slots[] = {
    {Py_mod_exec, prepare},
    {0, NULL},
};

static struct PyModuleDef definition = {
    .m_base = PyModuleDef_HEAD_INIT,
    .m_name = "_record_scan",
    .m_size = 2 * sizeof(PyObject *),
    .m_methods = methods,
    .m_slots = slots,
    .m_traverse = visit,
    .m_clear = clear,
};

PyMODINIT_FUNC PyInit__record_scan(void)
{
    return PyModuleDef_Init(&definition);
}
