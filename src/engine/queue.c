/* Queues and groups: how they come, change and go. */
#include <stdlib.h>

#include "engine/foresee_inner.h"

enum { NAME_CHUNK_BYTES = 1 << 16, REAP_A_CALL = 128 };

/* ---- names -------------------------------------------------------------------------------------------------------- */

static size_t name_room(size_t len)
{
    return (len + 7) / 8 * 8 + (len == 0 ? 8 : 0);
}

char *name_add(struct name_pool *p, struct slice s)
{
    size_t room = name_room(s.len), class = room / 8;
    must(s.len <= NAMES_BYTES_MAX);
    char *at = p->free_lists[class];
    if (at != NULL) {
        memcpy(&p->free_lists[class], at, sizeof(char *));
    } else {
        if (p->chunk_count == 0 || NAME_CHUNK_BYTES - p->used < room) {
            if (p->chunk_count == p->chunk_cap) {
                p->chunk_cap = p->chunk_cap == 0 ? 16 : p->chunk_cap * 2;
                p->chunks = realloc(p->chunks, p->chunk_cap * sizeof p->chunks[0]);
                must(p->chunks != NULL);
            }
            p->chunks[p->chunk_count] = malloc(NAME_CHUNK_BYTES);
            must(p->chunks[p->chunk_count] != NULL);
            p->chunk_count++;
            p->used = 0;
        }
        at = p->chunks[p->chunk_count - 1] + p->used;
        p->used += room;
    }
    if (s.len > 0) memcpy(at, s.at, s.len);
    return at;
}

void name_remove(struct name_pool *p, char *at, size_t len)
{
    size_t class = name_room(len) / 8;
    memcpy(at, &p->free_lists[class], sizeof(char *));
    p->free_lists[class] = at;
}

void name_pool_free(struct name_pool *p)
{
    for (uint32_t i = 0; i < p->chunk_count; i++) free(p->chunks[i]);
    free(p->chunks);
    *p = (struct name_pool){0};
}

/* ---- queues ------------------------------------------------------------------------------------------------------- */

static uint64_t queue_hash(struct uuid tenant, struct slice name)
{
    uint64_t seed;
    memcpy(&seed, tenant.bytes + 8, 8);
    return hash64(name, seed);
}

void options_default(struct queue_options *o)
{
    *o = (struct queue_options){0};
    o->numbers[OPTION_LEASE_TIME] = 300;
    o->numbers[OPTION_RETRY_LIMIT] = 3;
    o->numbers[OPTION_RETRY_DELAY] = 1000;
    o->numbers[OPTION_TTL] = 3600;
    o->numbers[OPTION_DEAD_LETTER_QUEUE] = 1;
    o->numbers[OPTION_DLQ_AFTER_MAX_RETRIES] = 1;
    o->numbers[OPTION_DEDUP_WINDOW_SECONDS] = 3600;
    o->numbers[OPTION_RETENTION_SINK_HOLD_MAX_SECONDS] = 604800;
}

/* An owned copy of a text option. */
void options_set_text(struct slice *to, struct slice from)
{
    char *copy = NULL;
    if (from.len > 0) {
        copy = malloc(from.len);
        must(copy != NULL);
        memcpy(copy, from.at, from.len);
    }
    free((char *)(uintptr_t)to->at);
    *to = slice_make(copy, from.len);
}

/* `billing.mail.x`: namespace billing, task mail. Without a dot the whole name is the namespace. */
static void options_label(struct queue_options *o, struct slice name)
{
    const char *dot = memchr(name.at, '.', name.len);
    if (dot == NULL) {
        options_set_text(&o->name_space, name);
        return;
    }
    struct slice rest = slice_make(dot + 1, (size_t)(name.at + name.len - dot - 1));
    const char *second = memchr(rest.at, '.', rest.len);
    if (second != NULL) rest.len = (size_t)(second - rest.at);
    options_set_text(&o->name_space, slice_make(name.at, (size_t)(dot - name.at)));
    options_set_text(&o->task, rest);
}

static void options_free(struct queue_options *o)
{
    options_set_text(&o->sink_hold, slice_of(""));
    options_set_text(&o->name_space, slice_of(""));
    options_set_text(&o->task, slice_of(""));
}

struct queue *queue_at(const struct engine *e, uint32_t number)
{
    struct queue *q = table_at(&e->queues, number);
    return q == NULL || q->number == 0 || q->deleted ? NULL : q;
}

struct queue *queue_find(const struct engine *e, struct uuid tenant, struct slice name)
{
    uint64_t hash = queue_hash(tenant, name);
    uint32_t at = 0, number;
    while ((number = idmap_next(&e->queue_names, hash, &at)) != 0) {
        struct queue *q = table_at(&e->queues, number);
        if (uuid_equal(q->tenant, tenant) && slice_equal(q->name, name)) return q;
    }
    return NULL;
}

void queue_touch(struct engine *e, struct queue *q)
{
    if (q->dirty) return;
    q->dirty = true;
    numbers_add(&e->dirty_queues, q->number);
}

struct queue *queue_add(struct engine *e, uint32_t number, struct uuid tenant, struct slice name, int64_t created_us)
{
    struct queue *q = table_add(&e->queues, number);
    q->number = number;
    q->tenant = tenant;
    q->name = slice_make(name_add(&e->names, name), name.len);
    q->created_us = created_us;
    options_default(&q->options);
    return q;
}

void queue_loaded(struct engine *e, struct queue *q)
{
    if (q->deleted) {
        numbers_add(&e->reaping, q->number);
    } else {
        idmap_add(&e->queue_names, queue_hash(q->tenant, q->name), q->number);
    }
}

static struct queue *queue_new(struct engine *e, struct uuid tenant, struct slice name)
{
    struct queue *q = queue_add(e, ++e->queue_last, tenant, name, e->wall_us);
    idmap_add(&e->queue_names, queue_hash(tenant, name), q->number);
    queue_touch(e, q);
    return q;
}

struct queue *queue_obtain(struct engine *e, struct uuid tenant, struct slice name)
{
    struct queue *q = queue_find(e, tenant, name);
    if (q != NULL) return q;
    q = queue_new(e, tenant, name);
    q->options.numbers[OPTION_LEASE_TIME] = 60;
    q->options.numbers[OPTION_RETENTION_SINK_HOLD_MAX_SECONDS] = 0;
    options_label(&q->options, name);
    return q;
}

int64_t queue_dedup_window_ms(const struct queue *q)
{
    return (int64_t)q->options.numbers[OPTION_DEDUP_WINDOW_SECONDS] * 1000;
}

int64_t queue_dedup_keep_ms(const struct queue *q)
{
    int64_t keep_ms = queue_dedup_window_ms(q);
    int64_t completed_ms = (int64_t)q->options.numbers[OPTION_COMPLETED_RETENTION_SECONDS] * 1000;
    return completed_ms > keep_ms ? completed_ms : keep_ms;
}

/* ---- configure ---------------------------------------------------------------------------------------------------- */

static bool sink_hold_ok(struct slice s)
{
    if (s.len > 64) return false;
    for (size_t i = 0; i < s.len; i++) {
        char c = s.at[i];
        bool ok =
            (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '.' || c == '_' || c == '-';
        if (!ok) return false;
    }
    return true;
}

static const char *configure_refusal(const struct configure_command *c)
{
    int32_t hold = c->options.numbers[OPTION_RETENTION_SINK_HOLD_MAX_SECONDS];
    if (c->given >> OPTION_RETENTION_SINK_HOLD_MAX_SECONDS & 1 && (hold < 60 || hold > 31536000)) {
        return "retentionSinkHoldMaxSeconds must be from 60 to 31536000";
    }
    if (c->given >> OPTION_RETENTION_SINK_HOLD & 1 && !sink_hold_ok(c->options.sink_hold)) {
        return "retentionSinkHold may hold letters, digits, '.', '_' and '-', at most 64";
    }
    return NULL;
}

static int32_t option_clamped(int option, int32_t v)
{
    if (option == OPTION_DEDUP_WINDOW_SECONDS && v < 0) return 0;
    if (option == OPTION_MIN_POP_WAIT_TIME) return v < 0 ? 0 : v > DEADLINE_MS_MAX ? DEADLINE_MS_MAX : v;
    return v;
}

static void options_apply(struct queue_options *o, const struct configure_command *c)
{
    struct queue_options defaults;
    options_default(&defaults);
    uint32_t reset = c->replace ? ~c->given : c->reset;
    for (int i = 0; i < OPTION_NUMBERS; i++) {
        if (reset >> i & 1) o->numbers[i] = defaults.numbers[i];
        if (c->given >> i & 1) o->numbers[i] = option_clamped(i, c->options.numbers[i]);
    }
    if (o->numbers[OPTION_RETENTION_SINK_HOLD_MAX_SECONDS] == 0) {
        o->numbers[OPTION_RETENTION_SINK_HOLD_MAX_SECONDS] = defaults.numbers[OPTION_RETENTION_SINK_HOLD_MAX_SECONDS];
    }
    struct slice *texts[] = {&o->sink_hold, &o->name_space, &o->task};
    const struct slice *given[] = {&c->options.sink_hold, &c->options.name_space, &c->options.task};
    for (int i = 0; i < 3; i++) {
        int option = OPTION_NUMBERS + i;
        if (reset >> option & 1) options_set_text(texts[i], slice_of(""));
        if (c->given >> option & 1) options_set_text(texts[i], *given[i]);
    }
}

static int64_t option_wait_us(const struct queue *q, enum queue_option option)
{
    int32_t seconds = q->options.numbers[option];
    return seconds > 0 ? (int64_t)seconds * 1000000 : 0;
}

static int64_t shortened(int64_t from_us, int64_t to_us)
{
    return from_us > to_us ? from_us - to_us : 0;
}

void queue_configure(struct engine *e, const struct configure_command *c, struct arena *arena, struct engine_result *r)
{
    r->configure.refused = configure_refusal(c);
    if (r->configure.refused != NULL) return;
    struct queue *q = queue_find(e, c->tenant, c->queue);
    if (q == NULL) q = queue_new(e, c->tenant, c->queue);
    int64_t waits_us[2] = {option_wait_us(q, OPTION_DELAYED_PROCESSING), option_wait_us(q, OPTION_WINDOW_BUFFER)};
    options_apply(&q->options, c);
    queue_touch(e, q);
    int64_t shorter_us = shortened(waits_us[0], option_wait_us(q, OPTION_DELAYED_PROCESSING)) +
                         shortened(waits_us[1], option_wait_us(q, OPTION_WINDOW_BUFFER));
    for (uint32_t n = q->groups; shorter_us > 0 && n != 0; n = group_at(e, n)->next) {
        group_delays_shorten(e, group_at(e, n), shorter_us);
    }
    r->configure.queue_id = thing_id(e->seed, ID_QUEUE, q->number, q->created_us);
    r->configure.options = q->options;
    r->configure.options.sink_hold = arena_copy(arena, q->options.sink_hold);
    r->configure.options.name_space = arena_copy(arena, q->options.name_space);
    r->configure.options.task = arena_copy(arena, q->options.task);
}

/* ---- groups ------------------------------------------------------------------------------------------------------- */

static uint64_t group_hash(uint32_t queue, struct slice name)
{
    return hash64(name, ~(uint64_t)queue);
}

struct group *group_at(const struct engine *e, uint32_t number)
{
    struct group *g = table_at(&e->groups, number);
    return g == NULL || g->number == 0 ? NULL : g;
}

struct group *group_find(const struct engine *e, const struct queue *q, struct slice name)
{
    uint64_t hash = group_hash(q->number, name);
    uint32_t at = 0, number;
    while ((number = idmap_next(&e->group_names, hash, &at)) != 0) {
        struct group *g = table_at(&e->groups, number);
        if (g->queue == q->number && slice_equal(g->name, name)) return g;
    }
    return NULL;
}

struct group *group_add(struct engine *e, struct queue *q, uint32_t number, struct slice name)
{
    struct group *g = table_add(&e->groups, number);
    g->number = number;
    g->queue = q->number;
    g->name = slice_make(name_add(&e->names, name), name.len);
    g->next = q->groups;
    q->groups = number;
    idmap_add(&e->group_names, group_hash(q->number, name), number);
    return g;
}

void group_touch(struct engine *e, struct group *g)
{
    if (g->dirty) return;
    g->dirty = true;
    numbers_add(&e->dirty_groups, g->number);
}

bool group_is_queue_mode(const struct group *g)
{
    return slice_is(g->name, QUEUE_MODE_GROUP);
}

/* A deleted group. Its record keeps number and name, for dead letters name it, but stands in no list and is found by no name; its cursors
 * count for nothing (cursor_live) and are given back bit by bit (group_reap). Who uses the name again makes another group. */
void group_retire(struct engine *e, struct queue *q, struct group *g)
{
    uint32_t *link = &q->groups;
    while (*link != g->number) link = &group_at(e, *link)->next;
    *link = g->next;
    idmap_remove(&e->group_names, group_hash(q->number, g->name), g->number);
    g->registered = g->conflates = false;
    g->retired = true;
    g->scan = 0;
    g->next = q->retired;
    q->retired = g->number;
    group_touch(e, g);
    numbers_add(&e->retiring, g->number);
}

/* ---- deleting ----------------------------------------------------------------------------------------------------- */

/* The queue is gone for every look-up from here on; its memory is given back bit by bit (queue_reap), its rows and its live bytes at
 * the end in one cut: a crash in between begins again. */
bool queue_delete(struct engine *e, struct uuid tenant, struct slice name)
{
    struct queue *q = queue_find(e, tenant, name);
    if (q == NULL) return false;
    idmap_remove(&e->queue_names, queue_hash(tenant, name), q->number);
    q->deleted = true;
    queue_touch(e, q);
    numbers_add(&e->reaping, q->number);
    return true;
}

static void group_drop(struct engine *e, struct group *g)
{
    must(g->cursor_count == 0 && g->leases.count == 0 && g->delays.count == 0);
    if (!g->retired) idmap_remove(&e->group_names, group_hash(g->queue, g->name), g->number);
    name_remove(&e->names, (char *)(uintptr_t)g->name.at, g->name.len);
    heap_free(&g->leases);
    heap_free(&g->delays);
    table_remove(&e->groups, g->number);
}

static void group_forget(struct engine *e, struct queue *q, struct group *g)
{
    uint32_t *link = &q->retired, key[2] = {q->number, g->number};
    while (*link != g->number) link = &group_at(e, *link)->next;
    *link = g->next;
    buf_put(&e->gone_groups, key, sizeof key);
    group_drop(e, g);
}

/* True: there is more to do for this one. */
static bool cursors_reap(struct engine *e, struct queue *q, struct group *g)
{
    struct lane_walk w;
    lane_walk_begin_many(&w, e, g->scan == 0 ? q->partition_first : lane_at(e, g->scan)->next, REAP_A_CALL);
    for (int i = 0; i < REAP_A_CALL && g->cursor_count > 0; i++) {
        g->scan = w.next;
        struct partition *p = lane_walk_next(&w);
        must(p != NULL);
        uint32_t at = cursor_find(e, p, g->number);
        if (at == 0) continue;
        cursor_forget(e, p, at);
        run_trim(e, p);
    }
    lane_walk_end(&w);
    e->moved.count++; /* rows changed without an entry */
    return g->cursor_count > 0;
}

/* Nothing here is seen by anybody, so each node does it when it has time. A crash begins again. */
bool group_reap(struct engine *e)
{
    if (e->retiring.count == 0) return false;
    e->reaped_steps++;
    struct group *g = group_at(e, e->retiring.at[0]);
    struct queue *q = g == NULL ? NULL : queue_at(e, g->queue);
    if (q != NULL && cursors_reap(e, q, g)) return true;
    if (q != NULL && g->dead_letters == 0) group_forget(e, q, g);
    e->retiring.count--;
    memmove(e->retiring.at, e->retiring.at + 1, e->retiring.count * sizeof e->retiring.at[0]);
    return e->retiring.count > 0;
}

void group_retired_check(struct engine *e, struct group *g)
{
    if (g->retired && g->cursor_count == 0 && g->dead_letters == 0) numbers_add(&e->retiring, g->number);
}

static void queue_finish(struct engine *e, struct queue *q)
{
    for (uint32_t *list = &q->groups; list != NULL; list = list == &q->groups ? &q->retired : NULL) {
        while (*list != 0) {
            struct group *g = group_at(e, *list);
            *list = g->next;
            group_drop(e, g);
        }
    }
    for (int i = 0; i < HOME_COUNT; i++) segments_subtract(&e->segments[i], &e->reaped[i]);
    e->segments_dirty = true;
    options_free(&q->options);
    name_remove(&e->names, (char *)(uintptr_t)q->name.at, q->name.len);
    numbers_add(&e->gone_queues, q->number);
    e->moved.count++; /* its rows go without an entry */
    table_remove(&e->queues, q->number);
}

bool queue_reap(struct engine *e)
{
    if (e->reaping.count == 0) return false;
    struct queue *q = table_at(&e->queues, e->reaping.at[0]);
    if (lanes_reap(e, q) || dead_letters_reap(e, q->number)) return true;
    queue_finish(e, q);
    e->reaped_steps++;
    e->reaping.count--;
    memmove(e->reaping.at, e->reaping.at + 1, e->reaping.count * sizeof e->reaping.at[0]);
    return e->reaping.count > 0;
}

void engine_housekeep_foreseen(struct engine *e, const struct engine_foreseen *f)
{
    struct foresight s = foresight_of(e, f);
    const struct group *g = e->retiring.count == 0 ? NULL : group_at(e, e->retiring.at[0]);
    const struct queue *q = g == NULL ? NULL : queue_at(e, g->queue);
    if (e->reaping.count > 0) lanes_reap_foresee(&s, table_at(&e->queues, e->reaping.at[0]));
    if (q == NULL || g->cursor_count == 0) return;
    uint32_t first = g->scan == 0 ? q->partition_first : lane_at(e, g->scan)->next, last = first, number = first;
    bool away = false;
    for (int i = 0; i < REAP_A_CALL && number != 0; i++) {
        const struct lane *l = lane_at(e, number);
        away |= l->p == NULL;
        last = number;
        number = l->next;
    }
    if (away) foresee_lanes(&s, q->number, first, last + 1);
}
