/* Life, apply, and what does not belong to one command. */
#include "engine/engine.h"

#include <stdlib.h>

#include "engine/engine_internal.h"

void numbers_add(struct numbers *n, uint32_t v)
{
    if (n->count == n->cap) {
        n->cap = n->cap == 0 ? 64 : n->cap * 2;
        n->at = realloc(n->at, n->cap * sizeof n->at[0]);
        must(n->at != NULL);
    }
    n->at[n->count++] = v;
}

/* ---- live bytes by segment ------------------------------------------------------------------------------------------ */

void segments_add(struct segments *s, uint64_t segment, uint64_t bytes)
{
    if (s->count == 0) s->base = segment;
    if (segment < s->base) {
        uint64_t more = s->base - segment;
        s->bytes = realloc(s->bytes, (s->count + more) * sizeof s->bytes[0]);
        must(s->bytes != NULL);
        memmove(s->bytes + more, s->bytes, s->count * sizeof s->bytes[0]);
        memset(s->bytes, 0, more * sizeof s->bytes[0]);
        s->base = segment;
        s->count += more;
    }
    uint64_t need = segment - s->base + 1;
    if (need > s->count) {
        s->bytes = realloc(s->bytes, need * sizeof s->bytes[0]);
        must(s->bytes != NULL);
        memset(s->bytes + s->count, 0, (need - s->count) * sizeof s->bytes[0]);
        s->count = need;
    }
    s->bytes[segment - s->base] += bytes;
}

void segments_shorten(struct segments *s)
{
    uint64_t empty = 0;
    while (empty < s->count && s->bytes[empty] == 0) empty++;
    s->base += empty;
    s->count -= empty;
    if (empty > 0 && s->count > 0) memmove(s->bytes, s->bytes + empty, s->count * sizeof s->bytes[0]);
}

void segments_subtract(struct segments *s, struct segments *less)
{
    for (uint64_t i = 0; i < less->count; i++) {
        if (less->bytes[i] == 0) continue;
        uint64_t at = less->base + i - s->base;
        must(less->base + i >= s->base && at < s->count && s->bytes[at] >= less->bytes[i]);
        s->bytes[at] -= less->bytes[i];
    }
    segments_shorten(s);
    free(less->bytes);
    *less = (struct segments){0};
}

void segments_hold(struct engine *e, struct segments homes[HOME_COUNT], uint64_t where, uint64_t bytes)
{
    int home = where & PLACE_ARCHIVE ? HOME_ARCHIVE : HOME_LOG;
    segments_add(&homes[home], (where & ~PLACE_ARCHIVE) >> e->options.segment_shift, bytes);
}

void segment_hold(struct engine *e, uint64_t where, uint64_t bytes)
{
    segments_hold(e, e->segments, where, bytes);
    e->segments_dirty = true;
}

void segment_release(struct engine *e, uint64_t where, uint64_t bytes)
{
    struct segments *s = &e->segments[where & PLACE_ARCHIVE ? HOME_ARCHIVE : HOME_LOG];
    uint64_t segment = (where & ~PLACE_ARCHIVE) >> e->options.segment_shift;
    must(segment >= s->base && segment - s->base < s->count && s->bytes[segment - s->base] >= bytes);
    s->bytes[segment - s->base] -= bytes;
    e->segments_dirty = true;
}

uint64_t engine_segment_live(const struct engine *e, uint64_t where)
{
    const struct segments *s = &e->segments[where & PLACE_ARCHIVE ? HOME_ARCHIVE : HOME_LOG];
    uint64_t segment = (where & ~PLACE_ARCHIVE) >> e->options.segment_shift;
    if (segment < s->base || segment - s->base >= s->count) return 0;
    return s->bytes[segment - s->base];
}

/* ---- life ----------------------------------------------------------------------------------------------------------- */

struct engine *engine_new(const struct engine_options *o)
{
    struct engine *e = calloc(1, sizeof *e);
    must(e != NULL);
    e->options = *o;
    table_init(&e->queues, sizeof(struct queue));
    table_init(&e->lanes, sizeof(struct lane));
    table_init(&e->groups, sizeof(struct group));
    slab_init(&e->cursors, sizeof(struct cursor));
    slab_init(&e->leases, sizeof(struct lease));
    slab_init(&e->delays, sizeof(struct delay));
    slab_init(&e->histories, sizeof(struct history));
    letters_init(e);
    e->dedup = dedup_new(&e->options.cold, o->budget.dedup);
    kv_init(e);
    timers_init(e);
    moved_init(e);
    return e;
}

static void tables_free(struct engine *e)
{
    for (uint32_t n = 1; n <= e->group_last; n++) {
        struct group *g = group_at(e, n);
        if (g == NULL) continue;
        heap_free(&g->leases);
        heap_free(&g->delays);
    }
    for (uint32_t n = 1; n <= e->queue_last; n++) {
        struct queue *q = table_at(&e->queues, n);
        if (q == NULL || q->number == 0) continue;
        options_set_text(&q->options.sink_hold, slice_of(""));
        options_set_text(&q->options.name_space, slice_of(""));
        options_set_text(&q->options.task, slice_of(""));
    }
    table_free(&e->queues);
    lanes_free(e);
    table_free(&e->groups);
    slab_free(&e->cursors);
    slab_free(&e->leases);
    slab_free(&e->delays);
    slab_free(&e->histories);
}

void engine_free(struct engine *e)
{
    if (e == NULL) return;
    letters_free(e);
    kv_free(e);
    timers_free(e);
    run_cache_drop(e);
    tables_free(e);
    buf_free(&e->gone_cursors);
    buf_free(&e->gone_groups);
    buf_free(&e->gone_runs);
    idmap_free(&e->queue_names);
    idmap_free(&e->group_names);
    idmap_free(&e->lease_ids);
    name_pool_free(&e->names);
    dedup_free(e->dedup);
    struct numbers *lists[] = {&e->dirty_queues, &e->dirty_groups, &e->dirty_partitions, &e->dirty_cursors,
                               &e->gone_queues,  &e->reaping,      &e->retiring,         &e->loaded_ready};
    for (size_t i = 0; i < sizeof lists / sizeof lists[0]; i++) free(lists[i]->at);
    free(e->cut_parts);
    for (int i = 0; i < HOME_COUNT; i++) {
        free(e->segments[i].bytes);
        free(e->reaped[i].bytes);
    }
    moved_free(e);
    free(e);
}

uint64_t engine_applied_index(const struct engine *e)
{
    return e->applied_index;
}

struct entry_head engine_last_head(const struct engine *e)
{
    return e->last_head;
}

uint64_t engine_id_seed(const struct engine *e)
{
    return e->seed;
}

/* Filters of ids may take what lanes and KV values do not need of theirs. */
static void budgets_lend(struct engine *e)
{
    uint64_t others = e->options.budget.lanes + e->options.budget.kv_values, used = engine_tables_bytes(e);
    dedup_spare(e->dedup, others > used ? others - used : 0);
}

bool engine_housekeep(struct engine *e)
{
    enum { SWEEP_A_CALL = 256 };
    uint32_t dirty = e->dirty_kv.count;
    bool more = kv_sweep(e, SWEEP_A_CALL, e->last_head.wall_us);
    e->reaped_steps += e->dirty_kv.count != dirty;
    more = lanes_leave_all(e) || more;
    more = kv_leave_all(e) || more;
    more = kv_values_bound(e, 16 * KV_LOOKS) || more;
    more = timers_leave(e) || more;
    budgets_lend(e);
    more |= dedup_housekeep(e->dedup, e->last_head.wall_us / 1000);
    if (dedup_awaits_cut(e->dedup, engine_revision(e))) e->moved.count++; /* rows for the store without an entry */
    more |= queue_reap(e);
    return group_reap(e) || more;
}

void engine_idle(struct engine *e)
{
    e->leaving = e->lanes_in_memory;
    e->kv_leaving = e->kv_rows.used == 0 ? 0 : e->kv_rows.chunk_high << SLAB_CHUNK_BITS;
}

void engine_visits_over(struct engine *e)
{
    lanes_visited(e);
    timers_leave(e);
}

/* ---- apply ---------------------------------------------------------------------------------------------------------- */

static bool configure_apply(struct engine *e, const struct command *c, struct arena *arena, struct engine_result *r)
{
    struct configure_command configure;
    if (!configure_decode(c, &configure)) return false;
    queue_configure(e, &configure, arena, r);
    return true;
}

static bool queue_delete_apply(struct engine *e, const struct command *c, struct engine_result *r)
{
    struct queue_delete_command d;
    if (!queue_delete_decode(c, &d)) return false;
    r->queue_delete.existed = queue_delete(e, d.tenant, d.queue);
    return true;
}

static bool init_apply(struct engine *e, const struct command *c)
{
    uint64_t seed;
    if (!init_decode(c, &seed)) return false;
    if (e->seed == 0) e->seed = seed;
    return true;
}

static bool command_apply(struct engine *e, const struct command *c, uint64_t where, struct arena *arena,
                          struct engine_result *r)
{
    switch ((enum command_kind)c->kind) {
    case COMMAND_PUSH:
        return push_apply(e, c, where, arena, r);
    case COMMAND_POP:
        return pop_apply(e, c, arena, r);
    case COMMAND_ACK:
        return ack_apply(e, c, arena, r);
    case COMMAND_EXTEND:
        return extend_apply(e, c, r);
    case COMMAND_CONFIGURE:
        return configure_apply(e, c, arena, r);
    case COMMAND_QUEUE_DELETE:
        return queue_delete_apply(e, c, r);
    case COMMAND_CLAIM_RETURN:
        return claim_return_apply(e, c);
    case COMMAND_INIT:
        return init_apply(e, c);
    case COMMAND_KV:
        return kv_apply(e, c, arena, r);
    case COMMAND_TIMERS:
        return timers_apply(e, c, where, arena, r);
    case COMMAND_LOCKS:
        return locks_apply(e, c, arena, r);
    case COMMAND_STEP:
        return step_apply(e, c, where, arena, r);
    case COMMAND_TICK:
        return tick_apply(e, r);
    case COMMAND_SEEK:
        return seek_apply(e, c, r);
    case COMMAND_GROUP_DELETE:
        return group_delete_apply(e, c, arena, r);
    case COMMAND_SUBSCRIPTION:
        return subscription_apply(e, c, r);
    case COMMAND_LETTERS_DELETE:
        return letters_delete_apply(e, c, r);
    case COMMAND_LETTER_MOVE:
        return letter_move_apply(e, c, where, arena, r);
    case COMMAND_TRIM:
        return trim_apply(e, c, r);
    case COMMAND_ORIGINS: /* for those who answer */
    case COMMAND_DIGEST:  /* looked at before */
        return true;
    case COMMAND_POSITIONS:
        break; /* a part of a step only */
    }
    return false;
}

const char *engine_apply(struct engine *e, uint64_t index, uint64_t where, struct slice entry, const struct engine_sink *sink)
{
    struct entry_head head;
    struct command c;
    struct arena scrap;
    if (!entry_head_read(entry, &head)) return "an entry without a head";
    struct slice rest = slice_make(entry.at + ENTRY_HEAD_BYTES, entry.len - ENTRY_HEAD_BYTES);
    arena_init(&scrap);
    lanes_visited(e);
    e->applying = true;
    e->leaving = e->kv_leaving = 0;
    e->sink = sink;
    e->log_us = head.log_us;
    const char *refused = NULL;
    for (uint32_t i = 0; i < head.count && refused == NULL; i++) {
        if (!command_next(&rest, &c)) {
            refused = "a command that is cut short";
            break;
        }
        uint64_t other_index, other;
        if (c.kind == COMMAND_DIGEST && digest_decode(&c, &other_index, &other) && !digest_check(e, other_index, other)) {
            refused = "the state here is not the leader's: the digests differ";
            break;
        }
        struct arena *arena = sink != NULL && sink->arena != NULL ? sink->arena(sink->ctx, i) : NULL;
        struct engine_result r = {.kind = c.kind};
        e->wall_us = head.wall_us + i;
        if (!command_apply(e, &c, where + (uint64_t)(c.all.at - entry.at), arena == NULL ? &scrap : arena, &r)) {
            refused = "a malformed command";
            break;
        }
        digest_result(e, &r);
        if (sink != NULL && sink->result != NULL) {
            sink->result(sink->ctx, i, &r);
        }
        if (arena == NULL) arena_reset(&scrap);
    }
    arena_free(&scrap);
    kv_values_bound(e, KV_LOOKS);
    e->sink = NULL;
    e->applying = false;
    e->applied_index = index;
    e->last_head = head;
    digest_entry(e, index);
    return refused;
}
