/* Mutate good bodies of record batches and check them, under the address and undefined-behaviour sanitizers.
 *
 * usage: record_scan SEED ROUNDS.  Each body lies in a block of exactly its size, so that a read beyond it is reported.
 * Prints how often each verdict was given.
 */
#include "bodies.h"
#include "record_scan.h"

#define VERDICTS (SCAN_TIMESTAMP_BEHIND + 1)

/* Mostly the usual one. */
static int64_t draw_timestamp(int64_t usual)
{
    static const int64_t telling[] = {-1, 0, 1000, INT64_MAX, INT64_MIN, INT64_MAX - 100};
    return draw(12) ? usual : telling[draw(sizeof telling / sizeof *telling)];
}

int main(int count_of_arguments, char **arguments)
{
    static uint8_t body[2 * BODY_SIZE_MAX];
    uint64_t verdicts[VERDICTS] = {0}, rounds;
    struct scan_result result;
    size_t size;
    uint8_t *exact;
    int32_t records, count;

    for (rounds = begin(count_of_arguments, arguments); rounds; rounds--) {
        size = 0;
        count = records = (int32_t)draw(6);
        for (int32_t delta = 0; delta < records && size < BODY_SIZE_MAX / 2; delta++)
            size += put_record(body + size, delta);
        size = mutate(body, size);
        if (!draw(8))
            count = draw(2) ? INT32_MAX : (int32_t)draw(UINT32_MAX);
        exact = exact_copy(body, size);
        result = scan_records(exact + (size ? 0 : 1), size, count, draw_timestamp(1000),
                              draw_timestamp(INT64_MIN), draw_timestamp(INT64_MAX));
        free(exact);
        if (result.problem < 0 || result.problem >= VERDICTS || result.position < 0 ||
            (uint64_t)result.position > size || result.record < 0 || result.first_null_key > result.record) {
            fprintf(stderr, "impossible result: problem %d, record %d\n", result.problem, (int)result.record);
            return 1;
        }
        verdicts[result.problem]++;
    }
    report(verdicts, VERDICTS);
    return 0;
}
