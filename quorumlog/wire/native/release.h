/* Let other threads run during a long computation that uses no Python object. */
#ifndef QUORUMLOG_RELEASE_H
#define QUORUMLOG_RELEASE_H

#include <Python.h>

/* From this size on, the lock is released.  Below, waiting for the lock again would cost more than the computation. */
#define RELEASE_SIZE_MIN (2 << 20)

/* Release the interpreter's lock for a computation over `size` bytes; `release_end` takes it again. */
static inline PyThreadState *release_begin(int64_t size)
{
    return size < RELEASE_SIZE_MIN ? NULL : PyEval_SaveThread();
}

static inline void release_end(PyThreadState *thread)
{
    if (thread)
        PyEval_RestoreThread(thread);
}

#endif
