/* Mutate keys and values of committed offsets, and recognise them under the address and undefined-behaviour sanitizers.
 *
 * usage: offset_format SEED ROUNDS.  Each key or value lies in a block of exactly its size, so that a read beyond it is
 * reported.  Prints how often each outcome occurred.
 */
#include "bodies.h"
#include "offset_format.h"

enum outcome { KEY_OTHER, KEY_PLAIN, VALUE_OTHER, VALUE_PLAIN, OUTCOMES };

static size_t put_name(uint8_t *out)
{
    size_t size = draw(draw(8) ? 12 : 300);

    out[0] = (uint8_t)(size >> 8);
    out[1] = (uint8_t)size;
    memset(out + 2, 'x', size);
    return size + 2;
}

static size_t put_key(uint8_t *out)
{
    size_t size = 2;

    out[0] = 0;
    out[1] = (uint8_t)draw(2);
    size += put_name(out + size);
    size += put_name(out + size);
    memset(out + size, 0, 4);
    return size + 4;
}

/* Version 3 or 4; the fields between are zero. */
static size_t put_value(uint8_t *out)
{
    size_t metadata = draw(4) ? 0 : draw(130), at = 14;
    int version = draw(2) ? 3 : 4;

    memset(out, 0, at);
    out[1] = (uint8_t)version;
    if (version == 3)
        out[at++] = 0;
    out[at++] = (uint8_t)(metadata + (version == 4));
    memset(out + at, 'm', metadata);
    at += metadata;
    memset(out + at, 0, 8);
    at += 8;
    if (version == 3)
        return at;
    memcpy(out + at, OFFSETS_TOPIC_FIELD, 3);
    memset(out + at + 3, 7, 16);
    return at + 19;
}

int main(int count_of_arguments, char **arguments)
{
    static uint8_t made[2 * BODY_SIZE_MAX];
    uint64_t outcomes[OUTCOMES] = {0}, rounds;
    struct offsets_key parts;
    size_t size;
    char *exact;
    int is_key, found;

    for (rounds = begin(count_of_arguments, arguments); rounds; rounds--) {
        is_key = (int)draw(2);
        size = is_key ? put_key(made) : put_value(made);
        if (draw(4))
            size = mutate(made, size);
        exact = exact_copy(made, size);
        found = is_key ? offsets_split(exact, (int64_t)size, &parts) : offsets_is_plain(exact, (int64_t)size);
        if (is_key && found &&
            (parts.group != exact + 4 || parts.place != parts.group + parts.group_size || parts.group_size < 0 ||
             parts.place_size < 6 || 4 + parts.group_size + parts.place_size != (int64_t)size)) {
            fprintf(stderr, "impossible parts of a key of %zu bytes\n", size);
            return 1;
        }
        free(exact);
        outcomes[is_key ? (found ? KEY_PLAIN : KEY_OTHER) : (found ? VALUE_PLAIN : VALUE_OTHER)]++;
    }
    report(outcomes, OUTCOMES);
    return 0;
}
