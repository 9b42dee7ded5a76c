/* Apply records of `__consumer_offsets` to the committed offsets of groups.
 *
 * A coordinator that takes over replays up to millions of records before it serves, and nearly all of them commit an
 * offset in one of two plain formats (offset_format.h).  This file applies these records.  It passes every other record
 * to a Python callback, in the order of the log, so that a later record of a key always wins. */
#ifndef QUORUMLOG_COMMITTED_OFFSETS_H
#define QUORUMLOG_COMMITTED_OFFSETS_H

#include <Python.h>
#include <string.h>

#include "offset_format.h"
#include "record_codec.h"

/* The group of the previous record, kept because the next record usually has the same one.  Each pointer is NULL or an
 * owned reference.  offsets: NULL if the group has none. */
struct offsets_group {
    PyObject *name, *offsets;
};

static void offsets_release(struct offsets_group *group)
{
    Py_CLEAR(group->name);
    Py_CLEAR(group->offsets);
}

/* Find the offsets of a group.  Return 0 with an exception. */
static int offsets_find(PyObject *groups, const struct offsets_key *key, struct offsets_group *group)
{
    if (group->name && PyBytes_Size(group->name) == key->group_size &&
        memcmp(PyBytes_AsString(group->name), key->group, (size_t)key->group_size) == 0)
        return 1;
    offsets_release(group);
    if (!(group->name = PyBytes_FromStringAndSize(key->group, key->group_size)))
        return 0;
    group->offsets = PyDict_GetItemWithError(groups, group->name);
    if (!group->offsets)
        return !PyErr_Occurred();
    Py_INCREF(group->offsets);
    if (PyDict_Check(group->offsets))
        return 1;
    PyErr_SetString(PyExc_TypeError, "the offsets of a group are a dict");
    return 0;
}

/* Delete the offset of a place.  Return 0 with an exception. */
static int offsets_delete(PyObject *groups, PyObject *place, struct offsets_group *group)
{
    int found = group->offsets ? PyDict_Contains(group->offsets, place) : 0;

    if (found <= 0)
        return found == 0;
    if (PyDict_DelItem(group->offsets, place) < 0)
        return 0;
    if (PyDict_Size(group->offsets) == 0) {
        if (PyDict_DelItem(groups, group->name) < 0)
            return 0;
        Py_CLEAR(group->offsets);
    }
    return 1;
}

/* Set the offset of a place.  Return 0 with an exception. */
static int offsets_set(PyObject *groups, PyObject *place, PyObject *value, struct offsets_group *group)
{
    if (!group->offsets) {
        if (!(group->offsets = PyDict_New()) || PyDict_SetItem(groups, group->name, group->offsets) < 0)
            return 0;
    }
    return PyDict_SetItem(group->offsets, place, value) == 0;
}

/* Apply one record, and add the change of the number of offsets to *added.  Return 1; 0 if it is left to Python; or -1
 * with an exception. */
static int offsets_apply(PyObject *groups, PyObject *record, struct offsets_group *group, Py_ssize_t *added)
{
    PyObject *key = PyStructSequence_GetItem(record, RECORD_KEY), *place;
    PyObject *value = PyStructSequence_GetItem(record, RECORD_VALUE);
    struct offsets_key parts;
    Py_ssize_t before;
    int done;

    if (!PyBytes_Check(key) || !offsets_split(PyBytes_AsString(key), PyBytes_Size(key), &parts))
        return 0;
    if (value != Py_None &&
        (!PyBytes_Check(value) || !offsets_is_plain(PyBytes_AsString(value), PyBytes_Size(value))))
        return 0;
    if (!offsets_find(groups, &parts, group))
        return -1;
    if (!(place = PyBytes_FromStringAndSize(parts.place, parts.place_size)))
        return -1;
    before = group->offsets ? PyDict_Size(group->offsets) : 0;
    done = value == Py_None ? offsets_delete(groups, place, group) : offsets_set(groups, place, value, group);
    Py_DECREF(place);
    *added += (group->offsets ? PyDict_Size(group->offsets) : 0) - before;
    return done ? 1 : -1;
}

PyDoc_STRVAR(apply_offsets_doc, "apply_offsets(records, groups, other) -> added\n\n"
                                "Apply a list of Record to `groups`: dicts of offsets by place, in a dict by group.\n"
                                "`other` gets each record that is not a plain offset, in the order of the list.\n"
                                "Return the number of offsets that the plain records added, less those they deleted.");

static PyObject *apply_offsets(PyObject *module, PyObject *args)
{
    PyObject **state = PyModule_GetState(module);
    PyObject *records, *groups, *other, *record, *result;
    struct offsets_group group = {NULL, NULL};
    Py_ssize_t index, added = 0;
    int done = 1;

    if (!PyArg_ParseTuple(args, "O!O!O:apply_offsets", &PyList_Type, &records, &PyDict_Type, &groups, &other))
        return NULL;
    for (index = 0; done >= 0 && index < PyList_Size(records); index++) {
        record = PyList_GetItem(records, index);
        if (!PyObject_TypeCheck(record, (PyTypeObject *)state[0])) {
            PyErr_SetString(PyExc_TypeError, "records are of the type Record");
            done = -1;
            break;
        }
        Py_INCREF(record); /* `other` may change the list */
        done = offsets_apply(groups, record, &group, &added);
        if (done == 0) {
            offsets_release(&group); /* `other` may change the groups */
            result = PyObject_CallFunctionObjArgs(other, record, NULL);
            done = result ? 1 : -1;
            Py_XDECREF(result);
        }
        Py_DECREF(record);
    }
    offsets_release(&group);
    return done < 0 ? NULL : PyLong_FromSsize_t(added);
}

#endif
