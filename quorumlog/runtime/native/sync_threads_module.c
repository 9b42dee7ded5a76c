/* quorumlog.runtime._sync_threads: `sync_pool.h` for Python (stable ABI of 3.11 and later). */
#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include "sync_pool.h"

struct sync_threads {
    PyObject_HEAD
    struct sync_pool *pool; /* NULL once it is closed */
};

static PyObject *new(PyTypeObject *type, PyObject *args, PyObject *keywords)
{
    static char *names[] = {"threads_max", NULL};
    allocfunc allocate = (allocfunc)PyType_GetSlot(type, Py_tp_alloc);
    struct sync_threads *self;
    int threads_max;

    if (!PyArg_ParseTupleAndKeywords(args, keywords, "i:SyncThreads", names, &threads_max))
        return NULL;
    if (threads_max < 1)
        return PyErr_Format(PyExc_ValueError, "threads_max must be at least 1, not %d", threads_max);
    if (!(self = (struct sync_threads *)allocate(type, 0)))
        return NULL;
    if ((self->pool = sync_pool_open((size_t)threads_max)))
        return (PyObject *)self;
    PyErr_SetFromErrno(PyExc_OSError);
    Py_DECREF(self);
    return NULL;
}

static struct sync_pool *opened(struct sync_threads *self)
{
    if (!self->pool)
        PyErr_SetString(PyExc_ValueError, "the threads are closed");
    return self->pool;
}

PyDoc_STRVAR(fileno_doc, "fileno() -> descriptor\n\nReadable while complete batches wait for `take`.");

static PyObject *number(PyObject *self, PyObject *unused)
{
    struct sync_pool *pool = opened((struct sync_threads *)self);

    (void)unused;
    return pool ? PyLong_FromLong(pool->read_end) : NULL;
}

PyDoc_STRVAR(submit_doc, "submit(number, jobs)\n\n"
                         "Begin the batch `number`.  jobs: a list of (operation, descriptor); not empty.  The threads\n"
                         "close the descriptors, unless this call raises.");

static PyObject *submit(PyObject *self, PyObject *args)
{
    struct sync_pool *pool = opened((struct sync_threads *)self);
    struct sync_batch *batch;
    PyObject *jobs;
    Py_ssize_t count;
    long long number_of_batch;

    if (!pool || !PyArg_ParseTuple(args, "LO!:submit", &number_of_batch, &PyList_Type, &jobs))
        return NULL;
    if (!(count = PyList_Size(jobs))) {
        PyErr_SetString(PyExc_ValueError, "a batch has at least one job");
        return NULL;
    }
    if (!(batch = sync_batch_new(number_of_batch, (size_t)count)))
        return PyErr_NoMemory();
    for (Py_ssize_t index = 0; index < count; index++) {
        int operation, fd;

        if (!PyArg_ParseTuple(PyList_GetItem(jobs, index), "ii", &operation, &fd)) {
            free(batch);
            return NULL;
        }
        batch->jobs[index].operation = (enum sync_operation)operation;
        batch->jobs[index].fd = fd;
    }
    sync_pool_submit(pool, batch);
    Py_RETURN_NONE;
}

PyDoc_STRVAR(take_doc, "take() -> [(number, errno), ...]\n\n"
                       "Return the batches that are complete, with the error of the first failed job, or 0.");

static PyObject *take(PyObject *self, PyObject *unused)
{
    struct sync_pool *pool = opened((struct sync_threads *)self);
    PyObject *taken = pool ? PyList_New(0) : NULL;
    struct sync_batch *batch, *next;

    (void)unused;
    if (!taken)
        return NULL;
    for (batch = sync_pool_take(pool); batch; batch = next) {
        PyObject *pair = taken ? Py_BuildValue("(Li)", batch->number, batch->error) : NULL;

        if (taken && (!pair || PyList_Append(taken, pair)))
            Py_CLEAR(taken);
        Py_XDECREF(pair);
        next = batch->next;
        free(batch);
    }
    return taken;
}

PyDoc_STRVAR(close_doc, "close()\n\n"
                        "Drop the jobs that no thread has begun, and close their descriptors.  A thread that hangs\n"
                        "stays until its system call returns.");

static PyObject *close_threads(PyObject *self, PyObject *unused)
{
    struct sync_pool *pool = ((struct sync_threads *)self)->pool;

    (void)unused;
    ((struct sync_threads *)self)->pool = NULL;
    if (pool)
        sync_pool_close(pool);
    Py_RETURN_NONE;
}

static void deallocate(PyObject *self)
{
    PyTypeObject *type = Py_TYPE(self);
    freefunc release = (freefunc)PyType_GetSlot(type, Py_tp_free);
    struct sync_pool *pool = ((struct sync_threads *)self)->pool;

    if (pool)
        sync_pool_close(pool);
    release(self);
    Py_DECREF(type);
}

static PyMethodDef methods[] = {
    {"fileno", number, METH_NOARGS, fileno_doc},
    {"submit", submit, METH_VARARGS, submit_doc},
    {"take", take, METH_NOARGS, take_doc},
    {"close", close_threads, METH_NOARGS, close_doc},
    {NULL, NULL, 0, NULL},
};

static PyType_Slot type_slots[] = {
    {Py_tp_new, (void *)new},
    {Py_tp_dealloc, (void *)deallocate},
    {Py_tp_methods, methods},
    {0, NULL},
};

static PyType_Spec type_spec = {
    .name = "quorumlog.runtime._sync_threads.SyncThreads",
    .basicsize = sizeof(struct sync_threads),
    .flags = Py_TPFLAGS_DEFAULT,
    .slots = type_slots,
};

static int prepare(PyObject *module)
{
    PyObject *type = PyType_FromModuleAndSpec(module, &type_spec, NULL);
    int failed = !type || PyModule_AddObjectRef(module, "SyncThreads", type);

    Py_XDECREF(type);
#ifdef __linux__
    failed = failed || PyModule_AddIntConstant(module, "HAS_SYNC_SYSTEM", 1);
#else
    failed = failed || PyModule_AddIntConstant(module, "HAS_SYNC_SYSTEM", 0);
#endif
    failed = failed || PyModule_AddIntConstant(module, "SYNC_DATA", SYNC_DATA);
    failed = failed || PyModule_AddIntConstant(module, "SYNC_ALL", SYNC_ALL);
    failed = failed || PyModule_AddIntConstant(module, "SYNC_SYSTEM", SYNC_SYSTEM);
    return failed ? -1 : 0;
}

static PyModuleDef_Slot slots[] = {
    {Py_mod_exec, (void *)prepare},
    {0, NULL},
};

static struct PyModuleDef definition = {
    .m_base = PyModuleDef_HEAD_INIT,
    .m_name = "_sync_threads",
    .m_slots = slots,
};

PyMODINIT_FUNC PyInit__sync_threads(void)
{
    return PyModuleDef_Init(&definition);
}
