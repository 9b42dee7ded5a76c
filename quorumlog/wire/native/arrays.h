/* Arrays that a Python caller passes as buffers, for example of numpy.
 *
 * C cannot notice a wrong index later, so every array is checked before a call: its type, its alignment, its number of
 * values, and that no output shares memory with another array.  A refusal is an exception, and nothing was changed. */
#ifndef QUORUMLOG_ARRAYS_H
#define QUORUMLOG_ARRAYS_H

#include <Python.h>
#include <stdint.h>
#include <string.h>

#define ARRAYS_MAX 20

struct arrays_type {
    Py_ssize_t size;     /* bytes of a value */
    const char *formats; /* the type codes of module `struct` that have this size on some platform */
    const char *name;
    int is_output;
};

static const struct arrays_type BYTES_IN = {1, "B", "uint8", 0}, BYTES_OUT = {1, "B", "uint8", 1};
static const struct arrays_type INT32_IN = {4, "il", "int32", 0}, INT32_OUT = {4, "il", "int32", 1};
static const struct arrays_type INT64_IN = {8, "lq", "int64", 0}, INT64_OUT = {8, "lq", "int64", 1};

/* The arrays of one call. */
struct arrays {
    Py_buffer views[ARRAYS_MAX];
    int is_output[ARRAYS_MAX];
    int count;
};

/* One array.  data: NULL if it is missing. */
struct array {
    void *data;
    int64_t count; /* number of values */
};

static void arrays_release(struct arrays *arrays)
{
    while (arrays->count)
        PyBuffer_Release(&arrays->views[--arrays->count]);
}

static int arrays_has_type(const Py_buffer *view, const struct arrays_type *type)
{
    const char *format = view->format ? view->format : "B";
    return view->itemsize == type->size && strlen(format) == 1 && strchr(type->formats, *format) &&
           (uintptr_t)view->buf % (size_t)type->size == 0;
}

/* Take a contiguous array with `dimensions` dimensions and at least `needed` values.  Return 0 with an exception. */
static int arrays_take_shaped(struct arrays *arrays, PyObject *object, const char *name,
                              const struct arrays_type *type, int dimensions, int64_t needed, struct array *array)
{
    Py_buffer *view = &arrays->views[arrays->count];

    assert(arrays->count < ARRAYS_MAX);
    if (PyObject_GetBuffer(object, view, PyBUF_ND | PyBUF_FORMAT | (type->is_output ? PyBUF_WRITABLE : 0)) < 0)
        return 0;
    arrays->is_output[arrays->count++] = type->is_output;
    if (view->ndim != dimensions || !arrays_has_type(view, type)) {
        PyErr_Format(PyExc_ValueError, "%s is not an aligned array of %s with %d dimension(s)", name, type->name,
                     dimensions);
        return 0;
    }
    array->data = view->buf;
    array->count = view->len / type->size;
    if (array->count < needed) {
        PyErr_Format(PyExc_ValueError, "%s has %lld values, but %lld are needed", name, (long long)array->count,
                     (long long)needed);
        return 0;
    }
    return 1;
}

static int arrays_take(struct arrays *arrays, PyObject *object, const char *name, const struct arrays_type *type,
                       int64_t needed, struct array *array)
{
    return arrays_take_shaped(arrays, object, name, type, 1, needed, array);
}

/* The same; None is a missing array. */
static int arrays_take_optional(struct arrays *arrays, PyObject *object, const char *name,
                                const struct arrays_type *type, int64_t needed, struct array *array)
{
    array->data = NULL;
    array->count = 0;
    return object == Py_None || arrays_take(arrays, object, name, type, needed, array);
}

/* Return whether a group of arrays is given: 0 for None, 1 for a tuple of `count` items, else -1 with an exception. */
static int arrays_are_given(PyObject *group, const char *name, Py_ssize_t count)
{
    if (group == Py_None)
        return 0;
    if (PyTuple_Check(group) && PyTuple_Size(group) == count)
        return 1;
    PyErr_Format(PyExc_TypeError, "%s is not a tuple of %zd arrays", name, count);
    return -1;
}

static int arrays_share_memory(const Py_buffer *one, const Py_buffer *other)
{
    uintptr_t first = (uintptr_t)one->buf, second = (uintptr_t)other->buf;
    return first < second + (size_t)other->len && second < first + (size_t)one->len;
}

/* Check that no output shares memory with another array.  Return 0 with an exception. */
static int arrays_are_distinct(const struct arrays *arrays)
{
    int one, other;
    for (one = 0; one < arrays->count; one++) {
        for (other = 0; other < one; other++) {
            if ((arrays->is_output[one] || arrays->is_output[other]) &&
                arrays_share_memory(&arrays->views[one], &arrays->views[other])) {
                PyErr_SetString(PyExc_ValueError, "an output shares memory with another array");
                return 0;
            }
        }
    }
    return 1;
}

#endif
