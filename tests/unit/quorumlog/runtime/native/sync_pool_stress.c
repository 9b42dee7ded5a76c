/* usage: sync_pool_stress FOLDER
 *
 * Give drawn batches to pools of drawn sizes, and close some pools while batches are under way.  Prints the number of
 * pools, of batches that were completed, and of those that were dropped.  Run it with sanitizers. */
#include "sync_pool.h"

#include <poll.h>
#include <stdio.h>

#define POOLS 60
#define BATCHES 40
#define JOBS_MAX 5

static void fail(const char *text)
{
    fprintf(stderr, "%s\n", text);
    exit(1);
}

static struct sync_batch *drawn(const char *folder, int number)
{
    size_t count = 1 + (size_t)rand() % JOBS_MAX;
    struct sync_batch *batch = sync_batch_new(number, count);

    if (!batch)
        fail("no memory");
    for (size_t index = 0; index < count; index++) {
        char path[4096];

        batch->jobs[index].operation = rand() % 2 ? SYNC_DATA : SYNC_ALL;
        snprintf(path, sizeof path, "%s/%d", folder, rand() % 20);
        batch->jobs[index].fd = number % 7 ? open(path, O_RDWR | O_CREAT, 0600) : -1;
        if (number % 7 && batch->jobs[index].fd < 0)
            fail("cannot open a file");
    }
    return batch;
}

static int take(struct sync_pool *pool, char *seen)
{
    struct sync_batch *batch = sync_pool_take(pool), *next;
    int count = 0;

    for (; batch; batch = next) {
        next = batch->next;
        if (seen[batch->number]++)
            fail("a batch was completed twice");
        if (!batch->error != !!(batch->number % 7))
            fail("a batch has the result of another");
        free(batch);
        count++;
    }
    return count;
}

int main(int argc, char **argv)
{
    int completed = 0, dropped = 0;

    if (argc != 2)
        fail("usage: sync_pool_stress FOLDER");
    srand(1);
    for (int round = 0; round < POOLS; round++) {
        struct sync_pool *pool = sync_pool_open(1 + (size_t)rand() % 8);
        char seen[BATCHES] = {0};
        int left = 0, closes_early = round % 3 == 0;

        if (!pool)
            fail("cannot open a pool");
        for (int number = 0; number < BATCHES; number++) {
            sync_pool_submit(pool, drawn(argv[1], number));
            left++;
            if (rand() % 3 == 0) {
                int taken = take(pool, seen);

                left -= taken;
                completed += taken;
            }
        }
        while (left && !closes_early) {
            struct pollfd readable = {.fd = pool->read_end, .events = POLLIN};
            int taken;

            if (poll(&readable, 1, 60000) != 1)
                fail("the pipe stays empty, although batches are under way");
            taken = take(pool, seen);
            left -= taken;
            completed += taken;
        }
        dropped += left;
        sync_pool_close(pool);
    }
    printf("%d %d %d\n", POOLS, completed, dropped);
    return 0;
}
