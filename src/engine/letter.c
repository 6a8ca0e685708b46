/* Dead letters: messages that a group gave up. Each is held in the log (LETTER_HOLDS), also when retention has taken it off its lane.
 *
 * A letter is a record of a slab that stands in four orders (tree.h): by sequence, which ids hold; of its queue; of its lane; and by what
 * it is of, lane and offset. The keys are in the record, big-endian:
 *
 *   | queue 4 | sequence 8 |     | lane 4 | sequence 8 |     | lane 4 | offset 8 | sequence 8 |
 *
 * Adding, removing, finding and counting cost O(log n). */
#include <stdlib.h>

#include "engine/engine_internal.h"
#include "engine/row.h"

enum { LETTER_REAP_A_CALL = 1024 };

struct letter {
    unsigned char of_queue[12], of_lane[12], at_place[20];
    uint32_t group, retries, item, block_bytes;
    uint16_t error_len;
    char *error; /* malloc */
    uint64_t where;
    int64_t created_us, failed_us;
};

static struct letter *letter_at(const struct engine *e, uint32_t at)
{
    return slab_at(&e->letters, at);
}

static void big_endian(unsigned char *to, uint64_t v, size_t bytes)
{
    for (size_t i = 0; i < bytes; i++) to[i] = (unsigned char)(v >> 8 * (bytes - 1 - i));
}

static uint64_t sequence_of(const struct letter *l)
{
    return row_key_number(l->of_queue + 4, 8);
}

static struct slice key_sequence(const void *ctx, uint32_t at)
{
    return slice_make((const char *)letter_at(ctx, at)->of_queue + 4, 8);
}

static struct slice key_queue(const void *ctx, uint32_t at)
{
    return slice_make((const char *)letter_at(ctx, at)->of_queue, sizeof(((struct letter *)0)->of_queue));
}

static struct slice key_lane(const void *ctx, uint32_t at)
{
    return slice_make((const char *)letter_at(ctx, at)->of_lane, sizeof(((struct letter *)0)->of_lane));
}

static struct slice key_place(const void *ctx, uint32_t at)
{
    return slice_make((const char *)letter_at(ctx, at)->at_place, sizeof(((struct letter *)0)->at_place));
}

/* ---- life ----------------------------------------------------------------------------------------------------------- */

void letters_init(struct engine *e)
{
    slab_init(&e->letters, sizeof(struct letter));
    tree_init(&e->letters_all, key_sequence, e);
    tree_init(&e->letters_of_queue, key_queue, e);
    tree_init(&e->letters_of_lane, key_lane, e);
    tree_init(&e->letters_at_place, key_place, e);
}

void letters_free(struct engine *e)
{
    struct tree_place p = tree_seek(&e->letters_all, slice_of(""));
    for (uint32_t at; (at = tree_next(&p)) != 0;) free(letter_at(e, at)->error);
    tree_free(&e->letters_all);
    tree_free(&e->letters_of_queue);
    tree_free(&e->letters_of_lane);
    tree_free(&e->letters_at_place);
    slab_free(&e->letters);
    buf_free(&e->gone_letters);
}

void dead_letter_add(struct engine *e, const struct dead_letter *d)
{
    uint32_t at = slab_add(&e->letters);
    struct letter *l = letter_at(e, at);
    bool fresh = d->sequence == 0;
    uint64_t sequence = fresh ? ++e->dead_letter_last : d->sequence;
    big_endian(l->of_queue, d->queue, 4);
    big_endian(l->of_queue + 4, sequence, 8);
    big_endian(l->of_lane, d->partition, 4);
    big_endian(l->of_lane + 4, sequence, 8);
    big_endian(l->at_place, d->partition, 4);
    big_endian(l->at_place + 4, d->offset, 8);
    big_endian(l->at_place + 12, sequence, 8);
    l->group = d->group;
    l->retries = d->retries;
    l->item = d->item;
    l->block_bytes = d->block_bytes;
    l->where = d->where;
    l->created_us = d->created_us;
    l->failed_us = d->failed_us;
    l->error_len = (uint16_t)d->error.len;
    if (d->error.len > 0) {
        must(d->error.len <= UINT16_MAX);
        l->error = malloc(d->error.len);
        must(l->error != NULL);
        memcpy(l->error, d->error.at, d->error.len);
    }
    tree_insert(&e->letters_all, at);
    tree_insert(&e->letters_of_queue, at);
    tree_insert(&e->letters_of_lane, at);
    tree_insert(&e->letters_at_place, at);
    if (fresh) segment_hold(e, d->where, LETTER_HOLDS);
    struct queue *q = table_at(&e->queues, d->queue);
    struct group *g = group_at(e, d->group);
    q->dead_letters++;
    if (g != NULL) g->dead_letters++;
}

void dead_letter_read(const struct engine *e, uint32_t at, struct dead_letter *out)
{
    const struct letter *l = letter_at(e, at);
    *out = (struct dead_letter){.sequence = sequence_of(l),
                                .queue = (uint32_t)row_key_number(l->of_queue, 4),
                                .partition = (uint32_t)row_key_number(l->of_lane, 4),
                                .group = l->group,
                                .retries = l->retries,
                                .item = l->item,
                                .block_bytes = l->block_bytes,
                                .offset = row_key_number(l->at_place + 4, 8),
                                .where = l->where,
                                .created_us = l->created_us,
                                .failed_us = l->failed_us,
                                .error = slice_make(l->error, l->error_len)};
}

static void letter_drop(struct engine *e, uint32_t at)
{
    tree_remove(&e->letters_all, at);
    tree_remove(&e->letters_of_queue, at);
    tree_remove(&e->letters_of_lane, at);
    tree_remove(&e->letters_at_place, at);
    free(letter_at(e, at)->error);
    slab_remove(&e->letters, at);
}

void dead_letter_forget(struct engine *e, uint32_t at)
{
    struct dead_letter d;
    dead_letter_read(e, at, &d);
    struct queue *q = queue_at(e, d.queue);
    struct group *g = group_at(e, d.group);
    uint64_t key[2] = {d.queue, d.sequence};
    moved_letter_gone(e, d.sequence);
    buf_put(&e->gone_letters, key, sizeof key);
    segment_release(e, d.where, LETTER_HOLDS);
    letter_drop(e, at);
    q->dead_letters--;
    queue_touch(e, q);
    must(g != NULL && g->dead_letters > 0);
    g->dead_letters--;
    group_retired_check(e, g);
}

/* ---- finding -------------------------------------------------------------------------------------------------------- */

uint32_t dead_letter_at(const struct engine *e, uint64_t sequence)
{
    unsigned char key[8];
    big_endian(key, sequence, 8);
    struct tree_place p = tree_seek(&e->letters_all, slice_make((const char *)key, sizeof key));
    uint32_t at = tree_next(&p);
    return at != 0 && sequence_of(letter_at(e, at)) == sequence ? at : 0;
}

/* The letter beside the place of `sequence`: of the queue, or of all when it is 0. */
static uint32_t letter_beside(const struct engine *e, uint32_t queue, uint64_t sequence, uint32_t (*step)(struct tree_place *p))
{
    unsigned char key[12];
    big_endian(key, queue, 4);
    big_endian(key + 4, sequence, 8);
    bool all = queue == 0;
    struct tree_place p = tree_seek(all ? &e->letters_all : &e->letters_of_queue,
                                    all ? slice_make((const char *)key + 4, 8) : slice_make((const char *)key, sizeof key));
    uint32_t at = step(&p);
    return at != 0 && (all || row_key_number(letter_at(e, at)->of_queue, 4) == queue) ? at : 0;
}

uint32_t dead_letter_after(const struct engine *e, uint32_t queue, uint64_t after)
{
    return letter_beside(e, queue, after + 1, tree_next);
}

uint32_t dead_letter_before(const struct engine *e, uint32_t queue, uint64_t before)
{
    return letter_beside(e, queue, before, tree_previous);
}

uint32_t dead_letter_of_lane_before(const struct engine *e, uint32_t partition, uint64_t before)
{
    unsigned char key[12];
    big_endian(key, partition, 4);
    big_endian(key + 4, before, 8);
    struct tree_place p = tree_seek(&e->letters_of_lane, slice_make((const char *)key, sizeof key));
    uint32_t at = tree_previous(&p);
    return at != 0 && row_key_number(letter_at(e, at)->of_lane, 4) == partition ? at : 0;
}

uint32_t dead_letter_of_message(const struct engine *e, uint32_t partition, uint64_t offset)
{
    unsigned char key[20];
    big_endian(key, partition, 4);
    big_endian(key + 4, offset, 8);
    big_endian(key + 12, UINT64_MAX, 8);
    struct tree_place p = tree_seek(&e->letters_at_place, slice_make((const char *)key, sizeof key));
    uint32_t at = tree_previous(&p);
    return at != 0 && memcmp(letter_at(e, at)->at_place, key, 12) == 0 ? at : 0;
}

uint64_t dead_letters_of_lane(const struct engine *e, uint32_t partition)
{
    unsigned char key[4], behind[4];
    struct slice to, from = slice_make((const char *)key, sizeof key);
    big_endian(key, partition, 4);
    bool bounded = tree_prefix_end(from, (char *)behind, &to);
    return (bounded ? tree_rank(&e->letters_of_lane, to) : e->letters_of_lane.count) - tree_rank(&e->letters_of_lane, from);
}

uint32_t letter_find(const struct engine *e, struct uuid tenant, struct uuid id)
{
    uint32_t at = dead_letter_at(e, thing_number(id));
    if (at == 0) return 0;
    const struct letter *l = letter_at(e, at);
    const struct queue *q = queue_at(e, (uint32_t)row_key_number(l->of_queue, 4));
    if (q == NULL || !uuid_equal(q->tenant, tenant)) return 0;
    return uuid_equal(id, thing_id(e->seed, ID_DEAD_LETTER, sequence_of(l), l->failed_us)) ? at : 0;
}

void dead_letter_place(struct engine *e, uint32_t at, uint64_t where)
{
    letter_at(e, at)->where = where;
}

/* ---- of deleted queues ---------------------------------------------------------------------------------------------- */

bool dead_letters_reap(struct engine *e, uint32_t queue)
{
    uint32_t at;
    for (int i = 0; (at = dead_letter_after(e, queue, 0)) != 0; i++) {
        if (i == LETTER_REAP_A_CALL) return true;
        segments_hold(e, e->reaped, letter_at(e, at)->where, LETTER_HOLDS);
        letter_drop(e, at);
    }
    return false;
}
