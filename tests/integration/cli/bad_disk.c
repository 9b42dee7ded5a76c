/* For LD_PRELOAD: a disk with a metadata log that reads nothing, or that is slow.
 *
 * Files in the folder BAD_DISK switch this on while the process runs.  "hangs": reads of the database never return;
 * writes succeed.  "slow": each sync takes 0.2 s longer. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/types.h>
#include <time.h>
#include <unistd.h>

static int is_switched_on(const char *name)
{
    const char *folder = getenv("BAD_DISK");
    char path[4096];

    if (!folder)
        return 0;
    snprintf(path, sizeof path, "%s/%s", folder, name);
    return !access(path, F_OK);
}

static int is_database(int fd)
{
    static const char name[] = "/quorum.db";
    const size_t size = sizeof name - 1;
    char link[64], path[4096];
    ssize_t length;

    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    length = readlink(link, path, sizeof path);
    return length >= (ssize_t)size && !memcmp(path + length - size, name, size);
}

static void before_read(int fd)
{
    if (is_switched_on("hangs") && is_database(fd))
        for (;;)
            pause();
}

static void before_sync(void)
{
    const struct timespec delay = {.tv_nsec = 200000000};

    if (is_switched_on("slow"))
        nanosleep(&delay, NULL);
}

/* SQLite was compiled to use one of these. */

ssize_t pread64(int fd, void *buffer, size_t count, off64_t offset)
{
    static ssize_t (*next)(int, void *, size_t, off64_t);

    if (!next)
        *(void **)&next = dlsym(RTLD_NEXT, "pread64");
    before_read(fd);
    return next(fd, buffer, count, offset);
}

ssize_t pread(int fd, void *buffer, size_t count, off_t offset)
{
    static ssize_t (*next)(int, void *, size_t, off_t);

    if (!next)
        *(void **)&next = dlsym(RTLD_NEXT, "pread");
    before_read(fd);
    return next(fd, buffer, count, offset);
}

ssize_t read(int fd, void *buffer, size_t count)
{
    static ssize_t (*next)(int, void *, size_t);

    if (!next)
        *(void **)&next = dlsym(RTLD_NEXT, "read");
    before_read(fd);
    return next(fd, buffer, count);
}

int fdatasync(int fd)
{
    static int (*next)(int);

    if (!next)
        *(void **)&next = dlsym(RTLD_NEXT, "fdatasync");
    before_sync();
    return next(fd);
}

int fsync(int fd)
{
    static int (*next)(int);

    if (!next)
        *(void **)&next = dlsym(RTLD_NEXT, "fsync");
    before_sync();
    return next(fd);
}
