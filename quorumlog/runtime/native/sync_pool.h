/* Threads that make files durable.  They run no Python code, so they never wait for the interpreter's lock.
 *
 * A batch is a set of descriptors that are synced and closed, by as many threads as are free.  A pipe becomes readable
 * when a batch is complete.
 *
 * The pool is shared by its owner and its threads, and the last one frees it: a thread whose disk hangs cannot be
 * ended, and must not prevent the owner from closing the pool. */
#ifndef QUORUMLOG_SYNC_POOL_H
#define QUORUMLOG_SYNC_POOL_H

#ifndef _GNU_SOURCE
#define _GNU_SOURCE /* syncfs */
#endif

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <unistd.h>

/* SYNC_DATA: the data of a file, and the metadata that is needed to read it.  SYNC_ALL: a file or folder with all its
 * metadata.  SYNC_SYSTEM: the whole file system of the descriptor. */
enum sync_operation { SYNC_DATA, SYNC_ALL, SYNC_SYSTEM };

struct sync_batch;

struct sync_job {
    enum sync_operation operation;
    int fd; /* owned */
    struct sync_batch *batch;
    struct sync_job *next;
};

/* error: errno of the first job that failed, or 0.  left: the number of jobs that are not done. */
struct sync_batch {
    long long number;
    int error;
    size_t left;
    struct sync_batch *next;
    struct sync_job jobs[];
};

struct sync_pool {
    pthread_mutex_t lock; /* of everything below */
    pthread_cond_t is_wanted;
    struct sync_job *first, *last; /* jobs that no thread has begun */
    size_t waiting;                /* their number */
    struct sync_batch *complete;
    size_t threads, threads_max, idle;
    int is_closed;
    int read_end, write_end;
};

static inline int sync_one(const struct sync_job *job)
{
    int outcome;

    do { /* a stop of the process or a debugger may interrupt it, although the threads take no signals */
        switch (job->operation) {
#ifdef __linux__
        case SYNC_DATA:
            outcome = fdatasync(job->fd);
            break;
        case SYNC_SYSTEM:
            outcome = syncfs(job->fd);
            break;
#endif
        default:
            outcome = fsync(job->fd);
        }
    } while (outcome && errno == EINTR);
    return outcome ? errno : 0;
}

static inline void sync_pool_free(struct sync_pool *pool)
{
    struct sync_batch *batch, *next;

    for (batch = pool->complete; batch; batch = next) {
        next = batch->next;
        free(batch);
    }
    close(pool->write_end);
    pthread_cond_destroy(&pool->is_wanted);
    pthread_mutex_destroy(&pool->lock);
    free(pool);
}

/* Note the outcome of one job.  The caller holds the lock. */
static inline void sync_pool_done(struct sync_pool *pool, struct sync_batch *batch, int error)
{
    struct sync_batch *before = pool->complete;

    if (!batch->error)
        batch->error = error;
    if (--batch->left)
        return;
    batch->next = before;
    pool->complete = batch;
    if (!before && !pool->is_closed) /* otherwise there is a byte in the pipe, or nobody reads it */
        while (write(pool->write_end, "", 1) < 0 && errno == EINTR)
            ;
}

static inline void *sync_pool_work(void *argument)
{
    struct sync_pool *pool = argument;
    int is_last, error;

    pthread_mutex_lock(&pool->lock);
    for (;;) {
        struct sync_job *job;

        while (!pool->first && !pool->is_closed) {
            pool->idle++;
            pthread_cond_wait(&pool->is_wanted, &pool->lock);
            pool->idle--;
        }
        if (pool->is_closed)
            break;
        job = pool->first;
        pool->first = job->next;
        pool->waiting--;
        pthread_mutex_unlock(&pool->lock);
        error = sync_one(job);
        close(job->fd);
        pthread_mutex_lock(&pool->lock);
        sync_pool_done(pool, job->batch, error);
    }
    is_last = --pool->threads == 0;
    pthread_mutex_unlock(&pool->lock);
    if (is_last)
        sync_pool_free(pool);
    return NULL;
}

/* Start one more thread, without signals.  Return 0 or an errno.  The caller holds the lock, or owns the pool alone. */
static inline int sync_pool_grow(struct sync_pool *pool)
{
    sigset_t all, before;
    pthread_attr_t detached;
    pthread_t thread;
    int error;

    if ((error = pthread_attr_init(&detached)))
        return error;
    pthread_attr_setdetachstate(&detached, PTHREAD_CREATE_DETACHED);
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    error = pthread_create(&thread, &detached, sync_pool_work, pool);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    pthread_attr_destroy(&detached);
    if (!error)
        pool->threads++;
    return error;
}

/* Return a pool with one thread, which grows up to `threads_max`; or NULL and set errno. */
static inline struct sync_pool *sync_pool_open(size_t threads_max)
{
    struct sync_pool *pool = calloc(1, sizeof *pool);
    int ends[2], error;

    if (!pool)
        return NULL;
    if (pipe(ends)) {
        free(pool);
        return NULL;
    }
    for (int end = 0; end < 2; end++) {
        fcntl(ends[end], F_SETFD, FD_CLOEXEC);
        fcntl(ends[end], F_SETFL, O_NONBLOCK);
    }
    pool->read_end = ends[0];
    pool->write_end = ends[1];
    pool->threads_max = threads_max;
    pthread_mutex_init(&pool->lock, NULL);
    pthread_cond_init(&pool->is_wanted, NULL);
    pthread_mutex_lock(&pool->lock);
    error = sync_pool_grow(pool);
    pthread_mutex_unlock(&pool->lock);
    if (error) {
        close(pool->read_end);
        sync_pool_free(pool);
        errno = error;
        return NULL;
    }
    return pool;
}

/* Return a batch of `count` jobs, which the caller fills in; or NULL if there is no memory. */
static inline struct sync_batch *sync_batch_new(long long number, size_t count)
{
    struct sync_batch *batch = calloc(1, sizeof *batch + count * sizeof *batch->jobs);

    if (batch) {
        batch->number = number;
        batch->left = count;
    }
    return batch;
}

/* Begin a batch of at least one job.  The pool owns it, and its descriptors, until `sync_pool_take` returns it. */
static inline void sync_pool_submit(struct sync_pool *pool, struct sync_batch *batch)
{
    size_t count = batch->left, free_threads;

    pthread_mutex_lock(&pool->lock);
    for (size_t index = 0; index < count; index++) {
        struct sync_job *job = &batch->jobs[index];

        job->batch = batch;
        if (pool->first)
            pool->last->next = job;
        else
            pool->first = job;
        pool->last = job;
    }
    pool->waiting += count;
    free_threads = pool->idle;
    while (pool->waiting > free_threads && pool->threads < pool->threads_max && !sync_pool_grow(pool))
        free_threads++; /* if no thread can be started, the others do its work */
    for (size_t index = 0; index < count; index++)
        pthread_cond_signal(&pool->is_wanted);
    pthread_mutex_unlock(&pool->lock);
}

/* Return the list of the complete batches, the newest first.  The caller frees them. */
static inline struct sync_batch *sync_pool_take(struct sync_pool *pool)
{
    struct sync_batch *complete;
    char bytes[16];

    pthread_mutex_lock(&pool->lock);
    while (read(pool->read_end, bytes, sizeof bytes) > 0)
        ;
    complete = pool->complete;
    pool->complete = NULL;
    pthread_mutex_unlock(&pool->lock);
    return complete;
}

/* Drop the jobs that no thread has begun, and leave the pool to its threads. */
static inline void sync_pool_close(struct sync_pool *pool)
{
    struct sync_job *job;

    pthread_mutex_lock(&pool->lock);
    pool->is_closed = 1;
    while ((job = pool->first)) {
        pool->first = job->next;
        close(job->fd);
        sync_pool_done(pool, job->batch, ECANCELED);
    }
    close(pool->read_end);
    pthread_cond_broadcast(&pool->is_wanted);
    pthread_mutex_unlock(&pool->lock);
}

#endif
