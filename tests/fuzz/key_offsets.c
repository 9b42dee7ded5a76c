/* Mutate good bodies of record batches, note their keys, select the records that survive and shift their timestamps,
 * under the address and undefined-behaviour sanitizers.
 *
 * usage: key_offsets SEED ROUNDS.  Every body lies in a block of exactly its size, so that an access beyond it is
 * reported.  Prints how often each outcome occurred.
 */
#include "bodies.h"
#include "key_offsets.h"

/* tests/fuzz/key_offsets.py names the same numbers; the first ones are those of `enum keys_problem`. */
enum outcome { ALL_SURVIVE = KEYS_NO_MEMORY, SOME_SURVIVE, NONE_SURVIVE, SHIFTED, NOT_SHIFTED, OUTCOMES };

#define KEYS_MAX 40
#define BATCHES_A_MAP 16

static uint64_t outcomes[OUTCOMES];

static void expect(int holds, const char *what)
{
    if (holds)
        return;
    fprintf(stderr, "impossible result: %s\n", what);
    exit(1);
}

/* The results of another implementation, for data of 0, 1, 2… */
static void check_siphash(void)
{
    static const struct {
        size_t size;
        uint64_t hash[2];
    } known[] = {
        {0, {UINT64_C(0xe6a825ba047f81a3), UINT64_C(0x930255c71472f66d)}},
        {1, {UINT64_C(0x44af996bd8c187da), UINT64_C(0x45fc229b11597634)}},
        {15, {UINT64_C(0x11a8b03399e99354), UINT64_C(0xd9c3cf970fec087e)}},
    };
    uint8_t counted[SIPHASH_KEY_SIZE];
    uint64_t hash[2];

    for (size_t index = 0; index < sizeof counted; index++)
        counted[index] = (uint8_t)index;
    for (size_t index = 0; index < sizeof known / sizeof *known; index++) {
        siphash128(counted, counted, known[index].size, hash);
        expect(hash[0] == known[index].hash[0] && hash[1] == known[index].hash[1], "a hash");
    }
}

/* Mostly the usual one. */
static int64_t draw_number(int64_t usual)
{
    static const int64_t telling[] = {-1, 0, 1, INT32_MAX, INT64_MAX, INT64_MIN, INT64_MAX - 100};
    return draw(12) ? usual : telling[draw(sizeof telling / sizeof *telling)];
}

static void shift(const uint8_t *records, size_t size, int32_t count)
{
    int64_t change = draw_number((int64_t)draw(1000) - 500), needed = keys_shift(records, size, count, change, NULL);
    uint8_t *out;

    outcomes[needed < 0 ? NOT_SHIFTED : SHIFTED]++;
    if (needed < 0)
        return;
    out = exact_copy(records, 0);
    out = realloc(out, needed ? (size_t)needed : 1);
    if (!out)
        exit(3);
    expect(keys_shift(records, size, count, change, out) == needed, "the size of shifted records");
    free(out);
}

static void select_records(const struct keys_table *table, const uint8_t *body, size_t size, int32_t count,
                           int64_t base_offset, int64_t last_delta)
{
    uint8_t *out = malloc(size ? size : 1);
    struct keys_selected found;

    if (!out)
        exit(3);
    found = keys_select(table, body, size, count, base_offset, last_delta, draw_number(keys_sum(base_offset, draw(8))),
                        (int)draw(2), out);
    expect(found.problem >= 0 && found.problem <= KEYS_BATCH_REST, "a problem of a selection");
    if (!found.problem) {
        expect(found.kept <= found.record && found.size <= size, "a selection");
        outcomes[found.kept == found.record ? ALL_SURVIVE : found.kept ? SOME_SURVIVE : NONE_SURVIVE]++;
        if (found.kept < found.record)
            shift(out, found.size, (int32_t)found.kept);
    }
    free(out);
}

int main(int count_of_arguments, char **arguments)
{
    static uint8_t body[2 * BODY_SIZE_MAX];
    uint64_t rounds = begin(count_of_arguments, arguments);
    struct keys_table table = {0};
    struct keys_noted noted;
    int64_t base_offset = 0, last_delta;
    uint8_t *exact;
    int32_t records, count;
    size_t size;

    check_siphash();
    for (; rounds; rounds--) {
        if (!table.slots || !draw(BATCHES_A_MAP)) {
            free(table.slots);
            if (!keys_create(&table, draw(KEYS_MAX) ? (int64_t)draw(KEYS_MAX) : 1000, body))
                exit(3);
            base_offset = draw_number(100);
        }
        size = 0;
        count = records = (int32_t)draw(6);
        for (int32_t delta = 0; delta < records && size < BODY_SIZE_MAX / 2; delta++)
            size += put_record(body + size, delta);
        if (draw(3))
            size = mutate(body, size);
        if (!draw(8))
            count = draw(2) ? INT32_MAX : (int32_t)draw(UINT32_MAX);
        last_delta = draw_number(records - 1);
        exact = exact_copy(body, size);
        noted = keys_note(&table, exact, size, count, base_offset, last_delta, draw_number(base_offset));
        expect(noted.problem >= 0 && noted.problem <= KEYS_FULL, "a problem of a batch");
        expect(table.count <= table.count_max && (size_t)table.count <= table.mask, "the number of keys");
        outcomes[noted.problem]++;
        select_records(&table, exact, size, count, base_offset, last_delta);
        shift(exact, size, count);
        free(exact);
        base_offset = keys_sum(base_offset, 6);
    }
    free(table.slots);
    report(outcomes, OUTCOMES);
    return 0;
}
