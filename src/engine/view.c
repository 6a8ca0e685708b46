/* Reads: what listings and figures show. Nothing here changes state. */
#include <stdlib.h>

#include "engine/engine_internal.h"

/* ---- queues ----------------------------------------------------------------------------------------------------------- */

static void queue_show(const struct engine *e, const struct queue *q, struct queue_view *out)
{
    *out = (struct queue_view){.number = q->number,
                               .tenant = q->tenant,
                               .name = q->name,
                               .created_us = q->created_us,
                               .options = &q->options,
                               .partition_count = q->partition_count,
                               .retained_messages = q->messages,
                               .retained_bytes = q->bytes,
                               .dead_letters = q->dead_letters,
                               .pushed_total = q->pushed_total};
    out->id = thing_id(e->seed, ID_QUEUE, q->number, q->created_us);
}

bool engine_queue_next(struct engine *e, struct uuid tenant, uint32_t after, struct queue_view *out)
{
    for (uint32_t n = after + 1; n <= e->queue_last; n++) {
        const struct queue *q = queue_at(e, n);
        if (q == NULL || !uuid_equal(q->tenant, tenant)) continue;
        queue_show(e, q, out);
        return true;
    }
    return false;
}

bool engine_queue_get(struct engine *e, struct uuid tenant, struct slice name, struct queue_view *out)
{
    const struct queue *q = queue_find(e, tenant, name);
    if (q == NULL) return false;
    queue_show(e, q, out);
    return true;
}

bool engine_group_next(struct engine *e, uint32_t queue, uint32_t after, struct group_view *out)
{
    const struct queue *q = queue_at(e, queue);
    uint32_t best = 0;
    for (uint32_t n = q == NULL ? 0 : q->groups; n != 0; n = group_at(e, n)->next) {
        if (n > after && (best == 0 || n < best)) best = n;
    }
    return engine_group_get(e, best, out);
}

bool engine_group_get(struct engine *e, uint32_t number, struct group_view *out)
{
    const struct group *g = number == 0 ? NULL : group_at(e, number);
    if (g == NULL || g->retired) return false;
    *out = (struct group_view){
        .number = number, .name = g->name, .registered = g->registered, .conflates = g->conflates, .cursors = g->cursor_count};
    return true;
}

/* ---- lanes ------------------------------------------------------------------------------------------------------------ */

/* What the group counts as done: a cursor that has not started yet stands where its subscription begins. */
static int64_t committed_of(const struct engine *e, const struct partition *p, const struct cursor *c)
{
    struct cursor copy = *c;
    cursor_seed(e, group_at(e, c->group), p, &copy);
    return copy.committed;
}

static uint64_t backlog_of(const struct partition *p, int64_t committed)
{
    int64_t from = committed + 1 > (int64_t)p->start ? committed + 1 : (int64_t)p->start;
    return from < (int64_t)p->tail ? p->tail - (uint64_t)from : 0;
}

static uint64_t leased_of(const struct engine *e, const struct cursor *c, struct engine_now now)
{
    if (c->lease == 0) return 0;
    const struct lease *l = lease_at(e, c->lease);
    return l->expiry_us > now.log_us && (int64_t)l->last > c->committed ? l->last - (uint64_t)(c->committed + 1) + 1 : 0;
}

/* The slowest named group's cursor, else queue mode's, else -1. */
static void lane_count(const struct engine *e, const struct partition *p, uint64_t dead_letters, struct engine_now now,
                       struct lane_counts *out)
{
    int64_t named = INT64_MAX, queue_mode = -1;
    uint64_t leased = 0;
    for (uint32_t at = cursor_live(e, p->cursors); at != 0; at = cursor_live(e, cursor_at(e, at)->next)) {
        const struct cursor *c = cursor_at(e, at);
        int64_t committed = committed_of(e, p, c);
        leased += leased_of(e, c, now);
        if (group_is_queue_mode(group_at(e, c->group))) {
            queue_mode = committed;
        } else if (committed < named) {
            named = committed;
        }
    }
    uint64_t backlog = backlog_of(p, named == INT64_MAX ? queue_mode : named);
    out->total = p->tail - p->start;
    out->pending = backlog;
    out->processing = leased < backlog ? leased : backlog;
    out->dead_letters = dead_letters;
    out->completed = out->total > backlog + dead_letters ? out->total - backlog - dead_letters : 0;
}

static void partition_show(struct engine *e, const struct queue *q, const struct partition *p, struct engine_now now,
                           struct partition_view *out)
{
    *out = (struct partition_view){.number = p->number,
                                   .name = partition_name(p),
                                   .created_us = p->created_us,
                                   .last_created_us = p->last_created_us,
                                   .last_lease_us = (int64_t)p->last_lease_s * 1000000,
                                   .start_offset = p->start,
                                   .tail_offset = p->tail,
                                   .retained_bytes = p->bytes};
    out->id = thing_id(e->seed, ID_PARTITION, p->number, p->created_us);
    struct run r;
    if (run_find(e, p, p->start, &r)) out->oldest_created_us = r.created_us;
    lane_count(e, p, q->dead_letters == 0 ? 0 : dead_letters_of_lane(e, p->number), now, &out->counts);
}

bool engine_partition_get(struct engine *e, uint32_t number, struct engine_now now, struct partition_view *out)
{
    const struct partition *p = partition_at(e, number);
    if (p == NULL) return false;
    partition_show(e, queue_at(e, p->queue), p, now, out);
    return true;
}

static const struct partition *lane_behind(const struct engine *e, uint32_t queue, uint32_t after)
{
    const struct queue *q = queue_at(e, queue);
    const struct lane *l = after == 0 ? NULL : lane_at(e, after);
    uint32_t n = l != NULL && l->queue == queue ? l->next : q != NULL ? q->partition_first : 0;
    return q == NULL || n == 0 ? NULL : lane_open_ahead(e, n);
}

bool engine_partition_next(struct engine *e, uint32_t queue, uint32_t after, struct engine_now now, struct partition_view *out)
{
    const struct partition *p = lane_behind(e, queue, after);
    if (p == NULL) return false;
    partition_show(e, queue_at(e, queue), p, now, out);
    return true;
}

bool engine_partition_names(const struct engine *e, uint32_t partition, struct uuid *tenant, struct slice *queue,
                            struct slice *name)
{
    const struct partition *p = partition_at(e, partition);
    if (p == NULL) return false;
    const struct queue *q = queue_at(e, p->queue);
    *tenant = q->tenant;
    *queue = q->name;
    *name = partition_name(p);
    return true;
}

static void group_depth(const struct engine *e, const struct partition *p, uint32_t group, struct engine_now now,
                        uint64_t *pending, uint64_t *processing)
{
    uint32_t at = cursor_find(e, p, group);
    *pending = backlog_of(p, at == 0 ? -1 : committed_of(e, p, cursor_at(e, at)));
    *processing = at == 0 ? 0 : leased_of(e, cursor_at(e, at), now);
    if (*processing > *pending) *processing = *pending;
}

void engine_lane_depth(struct engine *e, uint32_t partition, uint32_t group, struct engine_now now, uint64_t *pending,
                       uint64_t *processing)
{
    const struct partition *p = partition_at(e, partition);
    *pending = *processing = 0;
    if (p == NULL) return;
    if (group != 0) {
        group_depth(e, p, group, now, pending, processing);
        return;
    }
    bool named = false;
    uint32_t queue_mode = 0;
    for (uint32_t n = queue_at(e, p->queue)->groups; n != 0; n = group_at(e, n)->next) {
        const struct group *g = group_at(e, n);
        uint64_t lane_pending, lane_processing;
        if (group_is_queue_mode(g)) {
            queue_mode = n;
            continue;
        }
        if (!g->registered && cursor_find(e, p, n) == 0) continue;
        group_depth(e, p, n, now, &lane_pending, &lane_processing);
        if (!named || lane_pending > *pending) {
            *pending = lane_pending;
            *processing = lane_processing;
        }
        named = true;
    }
    if (!named) group_depth(e, p, queue_mode, now, pending, processing);
}

/* ---- dead letters ----------------------------------------------------------------------------------------------------- */

static void dead_letter_show(const struct engine *e, const struct dead_letter *d, struct dead_letter_view *out)
{
    const struct partition *p = partition_at(e, d->partition);
    *out = (struct dead_letter_view){.queue = queue_at(e, p->queue)->name,
                                     .partition = partition_name(p),
                                     .group = group_at(e, d->group)->name,
                                     .error = d->error,
                                     .partition_number = d->partition,
                                     .retries = d->retries,
                                     .offset = d->offset,
                                     .created_us = d->created_us,
                                     .failed_us = d->failed_us};
    out->id = thing_id(e->seed, ID_DEAD_LETTER, d->sequence, d->failed_us);
    out->message = message_id(e->seed, d->partition, d->offset, d->created_us);
    out->piece = (struct delivery_piece){.where = d->where,
                                         .block_bytes = d->block_bytes,
                                         .item0 = d->item,
                                         .count = 1,
                                         .first_offset = d->offset,
                                         .created_us = d->created_us};
}

bool engine_dead_letter_look(struct engine *e, struct uuid tenant, struct slice queue, struct slice group, uint64_t *before,
                             uint32_t *looks, struct dead_letter_view *out)
{
    const struct queue *one = queue.len == 0 ? NULL : queue_find(e, tenant, queue);
    if (queue.len > 0 && one == NULL) return false;
    for (uint32_t at; *looks > 0 && (at = dead_letter_before(e, one == NULL ? 0 : one->number, *before)) != 0;) {
        struct dead_letter d;
        dead_letter_read(e, at, &d);
        *before = d.sequence;
        --*looks;
        const struct queue *q = queue_at(e, d.queue);
        if (q == NULL || !uuid_equal(q->tenant, tenant)) continue;
        if (group.len > 0 && !slice_equal(group, group_at(e, d.group)->name)) continue;
        if (out != NULL) dead_letter_show(e, &d, out);
        return true;
    }
    return false;
}

bool engine_dead_letter_next(struct engine *e, struct uuid tenant, struct slice queue, struct slice group, uint64_t *before,
                             struct dead_letter_view *out)
{
    uint32_t looks;
    do {
        looks = UINT32_MAX;
        if (engine_dead_letter_look(e, tenant, queue, group, before, &looks, out)) return true;
    } while (looks == 0);
    return false;
}

static uint64_t letters_of_group(const struct engine *e, uint32_t first, struct slice group)
{
    uint64_t count = 0;
    for (uint32_t n = first; n != 0; n = group_at(e, n)->next) {
        if (slice_equal(group_at(e, n)->name, group)) count += group_at(e, n)->dead_letters;
    }
    return count;
}

static uint64_t letters_of_queue(const struct engine *e, const struct queue *q, struct slice group)
{
    if (group.len == 0) return q->dead_letters;
    return letters_of_group(e, q->groups, group) + letters_of_group(e, q->retired, group);
}

uint64_t engine_dead_letter_count(struct engine *e, struct uuid tenant, struct slice queue, struct slice group)
{
    const struct queue *one = queue.len == 0 ? NULL : queue_find(e, tenant, queue);
    uint64_t count = 0;
    if (queue.len > 0) return one == NULL ? 0 : letters_of_queue(e, one, group);
    for (uint32_t n = 1; n <= e->queue_last; n++) {
        const struct queue *q = queue_at(e, n);
        if (q != NULL && uuid_equal(q->tenant, tenant)) count += letters_of_queue(e, q, group);
    }
    return count;
}

bool engine_dead_letter_get(struct engine *e, struct uuid tenant, struct uuid id, uint64_t *sequence,
                            struct dead_letter_view *out)
{
    struct dead_letter d;
    uint32_t at = letter_find(e, tenant, id);
    if (at == 0) return false;
    dead_letter_read(e, at, &d);
    *sequence = d.sequence;
    dead_letter_show(e, &d, out);
    return true;
}

/* ---- groups and messages -------------------------------------------------------------------------------------------- */

static void cursor_show(struct engine *e, const struct partition *p, uint32_t at, struct engine_now now,
                        struct cursor_view *out)
{
    const struct cursor *c = cursor_at(e, at);
    *out = (struct cursor_view){.partition = p->number, .group = c->group, .attempt = c->attempt, .retries = c->retries};
    out->committed = committed_of(e, p, c);
    out->offset_lag = backlog_of(p, out->committed);
    struct run r;
    if (out->offset_lag > 0 && run_find(e, p, p->tail - out->offset_lag, &r)) out->oldest_us = r.created_us;
    const struct lease *l = c->lease == 0 ? NULL : lease_at(e, c->lease);
    if (l == NULL || l->expiry_us <= now.log_us) return;
    out->leased = true;
    out->lease = l->id;
    out->lease_expires_us = now.wall_us + (l->expiry_us - now.log_us);
}

bool engine_cursor_get(struct engine *e, uint32_t partition, uint32_t group, struct engine_now now, struct cursor_view *out)
{
    const struct partition *p = partition_at(e, partition);
    uint32_t at = p == NULL ? 0 : cursor_find(e, p, group);
    if (at == 0 || !cursor_is_live(e, at)) return false;
    cursor_show(e, p, at, now, out);
    return true;
}

bool engine_group_subscription(struct engine *e, uint32_t group, uint8_t *mode, int64_t *from_us, bool *registered)
{
    const struct group *g = group_at(e, group);
    if (g == NULL) return false;
    *mode = g->mode;
    *from_us = g->from_us;
    *registered = g->registered;
    return true;
}

bool engine_message_at(struct engine *e, uint32_t partition, uint64_t offset, struct delivery_piece *out)
{
    const struct partition *p = partition_at(e, partition);
    struct run r;
    if (p == NULL || !run_find(e, p, offset, &r)) return false;
    *out = (struct delivery_piece){.where = r.where,
                                   .block_bytes = r.block_bytes,
                                   .item0 = r.item0 + (uint32_t)(offset - r.first),
                                   .count = 1,
                                   .first_offset = offset,
                                   .created_us = r.created_us};
    return true;
}

bool engine_message_find(struct engine *e, struct uuid tenant, uint32_t partition, struct slice transaction, uint64_t from,
                         uint64_t *offset)
{
    const struct partition *p = partition_at(e, partition);
    struct dedup_hit hit;
    struct uuid id;
    int64_t created_ms;
    struct run r;
    if (p == NULL || !uuid_equal(queue_at(e, p->queue)->tenant, tenant)) return false;
    if (from < p->start) from = p->start;
    struct dedup_key k = dedup_key(e->seed, partition, transaction);
    if (dedup_find(e->dedup, k, from, p->tail, INT64_MIN, e->last_head.wall_us / 1000, &hit)) {
        *offset = hit.offset;
        return true;
    }
    if (!uuid_parse(transaction, &id) || !message_id_parse(e->seed, id, partition, offset, &created_ms)) return false;
    return *offset >= from && run_find(e, p, *offset, &r) && r.bytes & RUN_BYTES_AUTO && r.created_us / 1000 == created_ms;
}

/* ---- lanes one by one ------------------------------------------------------------------------------------------------- */

static void lane_show(const struct partition *p, struct lane_view *out)
{
    *out = (struct lane_view){.number = p->number,
                              .queue = p->queue,
                              .name = partition_name(p),
                              .start_offset = p->start,
                              .tail_offset = p->tail,
                              .retained_bytes = p->bytes,
                              .created_us = p->created_us,
                              .last_created_us = p->last_created_us};
}

bool engine_lane_next(struct engine *e, uint32_t queue, uint32_t after, struct lane_view *out)
{
    const struct partition *p = lane_behind(e, queue, after);
    if (p == NULL) return false;
    lane_show(p, out);
    return true;
}

bool engine_lane_get(struct engine *e, struct uuid tenant, uint32_t partition, struct lane_view *out)
{
    const struct partition *p = partition_at(e, partition);
    if (p == NULL || !uuid_equal(queue_at(e, p->queue)->tenant, tenant)) return false;
    lane_show(p, out);
    return true;
}

bool engine_lane_find(struct engine *e, struct uuid tenant, struct slice queue, struct slice partition, struct lane_view *out)
{
    const struct queue *q = queue_find(e, tenant, queue);
    const struct partition *p = q == NULL ? NULL : partition_find(e, q, partition);
    if (p == NULL) return false;
    lane_show(p, out);
    return true;
}

struct uuid engine_lane_id(const struct engine *e, const struct lane_view *lane)
{
    return thing_id(e->seed, ID_PARTITION, lane->number, lane->created_us);
}

void engine_lane_counts(struct engine *e, uint32_t partition, struct engine_now now, struct lane_counts *out)
{
    const struct partition *p = partition_at(e, partition);
    *out = (struct lane_counts){0};
    if (p != NULL) lane_count(e, p, 0, now, out);
}

void engine_lane_standing(struct engine *e, uint32_t partition, struct engine_now now, struct lane_counts *counts,
                          int64_t *oldest_us, uint32_t *leases)
{
    const struct partition *p = partition_at(e, partition);
    struct run r;
    *counts = (struct lane_counts){0};
    *oldest_us = 0;
    *leases = 0;
    if (p == NULL) return;
    lane_count(e, p, 0, now, counts);
    if (counts->pending > 0 && run_find(e, p, p->tail - counts->pending, &r)) *oldest_us = r.created_us;
    for (uint32_t at = cursor_live(e, p->cursors); at != 0; at = cursor_live(e, cursor_at(e, at)->next)) {
        const struct cursor *c = cursor_at(e, at);
        *leases += c->lease != 0 && lease_at(e, c->lease)->expiry_us > now.log_us;
    }
}

void engine_lane_cursors(struct engine *e, uint32_t partition, struct engine_now now,
                         void (*each)(void *ctx, const struct cursor_view *c), void *ctx)
{
    const struct partition *p = partition_at(e, partition);
    for (uint32_t at = p == NULL ? 0 : cursor_live(e, p->cursors); at != 0; at = cursor_live(e, cursor_at(e, at)->next)) {
        struct cursor_view v;
        cursor_show(e, p, at, now, &v);
        each(ctx, &v);
    }
}

uint64_t engine_lane_offset_at(struct engine *e, uint32_t partition, int64_t us)
{
    const struct partition *p = partition_at(e, partition);
    return p == NULL ? 0 : run_offset_at(e, p, us);
}

int64_t engine_group_start(struct engine *e, uint32_t group, uint32_t partition)
{
    const struct partition *p = partition_at(e, partition);
    const struct group *g = group_at(e, group);
    struct cursor fresh = {.committed = -1};
    if (p != NULL && g != NULL) cursor_seed(e, g, p, &fresh);
    return fresh.committed;
}

bool engine_message_batch(struct engine *e, uint32_t partition, uint64_t offset, uint64_t *first)
{
    const struct partition *p = partition_at(e, partition);
    struct run r;
    if (p == NULL || !run_find(e, p, offset, &r)) return false;
    *first = r.first;
    return true;
}

bool engine_dead_letter_in(struct engine *e, uint32_t partition, uint64_t *before, struct dead_letter_view *out)
{
    uint32_t at = partition_queue(e, partition) == NULL ? 0 : dead_letter_of_lane_before(e, partition, *before);
    struct dead_letter d;
    if (at == 0) return false;
    dead_letter_read(e, at, &d);
    *before = d.sequence;
    dead_letter_show(e, &d, out);
    return true;
}

bool engine_dead_letter_at(struct engine *e, uint32_t partition, uint64_t offset, struct dead_letter_view *out)
{
    uint32_t at = partition_queue(e, partition) == NULL ? 0 : dead_letter_of_message(e, partition, offset);
    struct dead_letter d;
    if (at == 0) return false;
    dead_letter_read(e, at, &d);
    dead_letter_show(e, &d, out);
    return true;
}

void engine_dead_letters_mark(struct engine *e, struct lane_place *places, uint32_t count)
{
    for (uint32_t i = 0; i < count; i++) {
        places[i].dead |= dead_letter_of_message(e, places[i].partition, places[i].offset) != 0;
    }
}

static uint64_t tenant_count(const struct tree *t, struct uuid tenant)
{
    char behind[sizeof tenant.bytes];
    struct slice from = slice_make(tenant.bytes, sizeof tenant.bytes), to;
    uint64_t end = tree_prefix_end(from, behind, &to) ? tree_rank(t, to) : t->count;
    return end - tree_rank(t, from);
}

void engine_tenant_rows(const struct engine *e, struct uuid tenant, struct tenant_rows *out)
{
    enum { NOT_THE_TENANTS = sizeof tenant.bytes + 1 }; /* of a path: the tenant itself, and the zero byte */
    out->kv_rows = tenant_count(&e->kv_order, tenant) + kv_space_away(e, slice_make(tenant.bytes, sizeof tenant.bytes));
    out->kv_bytes = out->kv_rows == e->kv_order.count + e->kv_away ? e->kv_bytes - out->kv_rows * NOT_THE_TENANTS : 0;
    out->timers = timers_of_tenant(e, tenant);
}

uint64_t engine_tables_bytes(const struct engine *e)
{
    return lane_bytes(e) + (uint64_t)e->lanes.used * sizeof(struct lane) + idmap_bytes(&e->partition_names) +
           (uint64_t)e->leases.used * sizeof(struct lease) + (uint64_t)e->kv_order.count * sizeof(struct kv_row) + e->kv_bytes -
           e->kv_absent_bytes - e->kv_away_bytes + idmap_bytes(&e->kv_paths) + (uint64_t)e->timers.used * sizeof(struct timer) +
           idmap_bytes(&e->timer_paths) + e->timer_bytes + (uint64_t)e->names.chunk_count * 65536;
}

void engine_stats(const struct engine *e, struct engine_stats *out)
{
    *out = (struct engine_stats){.queues = e->queues.used,
                                 .partitions = e->lanes.used,
                                 .groups = e->groups.used,
                                 .leases = e->leases.used,
                                 .dedup_ids = dedup_ids(e->dedup),
                                 .dead_letters = e->letters_all.count,
                                 .runs_in_memory = e->run_count,
                                 .lanes_in_memory = e->lanes_in_memory,
                                 .lane_bytes = lane_bytes(e),
                                 .kv_rows = e->kv_order.count + e->kv_away,
                                 .kv_rows_in_memory = e->kv_order.count,
                                 .kv_bytes = e->kv_bytes,
                                 .kv_value_bytes = e->kv_value_bytes,
                                 .kv_row_bytes = e->kv_row_bytes,
                                 .unstored_bytes = engine_unstored_bytes(e),
                                 .timers = e->timers.used,
                                 .timers_in_memory = e->timer_order.count,
                                 .timer_bytes = e->timer_bytes,
                                 .lock_rows = e->lock_rows};
    const struct heap_node *first = heap_min(&e->timers_due);
    if (first != NULL) out->timer_first_us = first->key;
    for (uint32_t n = 1; n <= e->queue_last; n++) {
        const struct queue *q = queue_at(e, n);
        if (q == NULL) continue;
        out->retained_messages += q->messages;
        out->retained_bytes += q->bytes;
        for (uint32_t g = q->groups; g != 0; g = group_at(e, g)->next) out->cursors += group_at(e, g)->cursor_count;
        for (uint32_t g = q->retired; g != 0; g = group_at(e, g)->next) out->cursors += group_at(e, g)->cursor_count;
    }
    out->dedup_bytes = dedup_memory(e->dedup);
    for (uint64_t i = 0; i < e->segments[HOME_LOG].count; i++) out->log_live_bytes += e->segments[HOME_LOG].bytes[i];
    for (uint64_t i = 0; i < e->segments[HOME_ARCHIVE].count; i++)
        out->archive_live_bytes += e->segments[HOME_ARCHIVE].bytes[i];
    out->memory_bytes = out->dedup_bytes + engine_tables_bytes(e);
}
