/* quorumlog.wire._record_scan: record_scan.h and record_codec.h for Python (stable ABI of 3.11 and later). */
#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include "record_codec.h"
#include "record_scan.h"

/* Above this size the scan lets other threads run meanwhile.  Below it, waiting for the interpreter's lock again would
 * cost more than the scan. */
#define RELEASE_SIZE_MIN (2 << 20)

PyDoc_STRVAR(scan_doc, "scan(body, count, base_timestamp, oldest_timestamp, newest_timestamp)\n"
                       "    -> (problem, record, position, max_timestamp, first_null_key)\n\n"
                       "Check that the contiguous buffer `body` is exactly `count` records.  See record_framing.py.");

static PyObject *scan(PyObject *module, PyObject *args)
{
    Py_buffer body;
    int count;
    long long base_timestamp, oldest_timestamp, newest_timestamp;
    struct scan_result result;

    (void)module;
    if (!PyArg_ParseTuple(args, "y*iLLL:scan", &body, &count, &base_timestamp, &oldest_timestamp,
                          &newest_timestamp))
        return NULL;
    if (body.len < RELEASE_SIZE_MIN) {
        result = scan_records(body.buf, (size_t)body.len, count, base_timestamp, oldest_timestamp,
                              newest_timestamp);
    } else {
        Py_BEGIN_ALLOW_THREADS
        result = scan_records(body.buf, (size_t)body.len, count, base_timestamp, oldest_timestamp,
                              newest_timestamp);
        Py_END_ALLOW_THREADS
    }
    PyBuffer_Release(&body);
    return Py_BuildValue("(iiLLi)", result.problem, (int)result.record, (long long)result.position,
                         (long long)result.max_timestamp, (int)result.first_null_key);
}

static PyMethodDef methods[] = {
    {"scan", scan, METH_VARARGS, scan_doc},
    {"encode", encode, METH_VARARGS, encode_doc},
    {"decode", decode, METH_VARARGS, decode_doc},
    {"murmur2", murmur2, METH_O, murmur2_doc},
    {NULL, NULL, 0, NULL},
};

/* The state of the module: the type of records, and the empty tuple that all records without headers share. */
static int prepare(PyObject *module)
{
    PyObject **state = PyModule_GetState(module);

    state[0] = (PyObject *)PyStructSequence_NewType(&record_description);
    state[1] = PyTuple_New(0);
    if (!state[0] || !state[1])
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
