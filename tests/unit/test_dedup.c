/* The dedup index against a plain list of all occurrences: random additions and questions with tables of some hundred ids, so that there are
 * many generations; cuts that are stored late, restarts from what is stored, in the middle of sealing too. Then its memory and its filter.
 *
 * QUEEN_SIM_SEEDS  how many streams (default 40); QUEEN_SIM_SEED  the first seed: a failing one replays exactly. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/buf.h"
#include "engine/dedup_inner.h"

static uint64_t rng_state;

static uint32_t rng(uint32_t below)
{
    rng_state ^= rng_state << 13;
    rng_state ^= rng_state >> 7;
    rng_state ^= rng_state << 17;
    return (uint32_t)((rng_state >> 20) % below);
}

/* ---- a store: rows in key order, and cuts that wait to be stored ---------------------------------------------------- */

struct row {
    struct buf key, value;
};

struct rows {
    struct row *at;
    size_t count, cap;
};

struct op {
    int kind; /* 0 put, 1 delete, 2 delete range */
    struct buf key, value;
};

struct cut {
    struct op *ops;
    size_t count, cap;
    uint64_t index;
    int64_t ms;
};

enum { CUTS_WAITING = 2 };

static size_t row_place(const struct rows *s, struct slice key)
{
    size_t low = 0, high = s->count;
    while (low < high) {
        size_t middle = (low + high) / 2;
        if (slice_compare(buf_view(&s->at[middle].key), key) < 0) {
            low = middle + 1;
        } else {
            high = middle;
        }
    }
    return low;
}

static void rows_drop(struct rows *s, size_t from, size_t to)
{
    for (size_t i = from; i < to; i++) {
        buf_free(&s->at[i].key);
        buf_free(&s->at[i].value);
    }
    memmove(&s->at[from], &s->at[to], (s->count - to) * sizeof s->at[0]);
    s->count -= to - from;
}

static void rows_put(struct rows *s, struct slice key, struct slice value)
{
    size_t at = row_place(s, key);
    if (at == s->count || !slice_equal(buf_view(&s->at[at].key), key)) {
        if (s->count == s->cap) {
            s->cap = s->cap == 0 ? 256 : s->cap * 2;
            s->at = realloc(s->at, s->cap * sizeof s->at[0]);
        }
        memmove(&s->at[at + 1], &s->at[at], (s->count++ - at) * sizeof s->at[0]);
        s->at[at] = (struct row){0};
        buf_slice(&s->at[at].key, key);
    }
    buf_clear(&s->at[at].value);
    buf_slice(&s->at[at].value, value);
}

static void rows_scan(void *ctx, struct slice from, struct slice to, bool (*row)(void *, struct slice, struct slice),
                      void *row_ctx)
{
    struct rows *s = ctx;
    for (size_t at = row_place(s, from); at < s->count && slice_compare(buf_view(&s->at[at].key), to) < 0; at++) {
        if (!row(row_ctx, buf_view(&s->at[at].key), buf_view(&s->at[at].value))) return;
    }
}

static void op_add(struct cut *c, int kind, struct slice key, struct slice value)
{
    if (c->count == c->cap) {
        c->cap = c->cap == 0 ? 64 : c->cap * 2;
        c->ops = realloc(c->ops, c->cap * sizeof c->ops[0]);
    }
    struct op *op = &c->ops[c->count++];
    *op = (struct op){.kind = kind};
    buf_slice(&op->key, key);
    buf_slice(&op->value, value);
}

static void op_put(void *ctx, struct slice key, struct slice value)
{
    op_add(ctx, 0, key, value);
}

static void op_delete(void *ctx, struct slice key)
{
    op_add(ctx, 1, key, slice_of(""));
}

static void op_delete_range(void *ctx, struct slice from, struct slice to)
{
    op_add(ctx, 2, from, to);
}

static void cut_free(struct cut *c)
{
    for (size_t i = 0; i < c->count; i++) {
        buf_free(&c->ops[i].key);
        buf_free(&c->ops[i].value);
    }
    free(c->ops);
    *c = (struct cut){0};
}

/* Of kinds that are written once a deleted row may stay, as long as it likes. */
static void range_delete(struct rows *s, struct slice from, struct slice to)
{
    size_t first = row_place(s, from), end = row_place(s, to);
    unsigned char kind = (unsigned char)from.at[0];
    if ((kind == ROW_DEDUP_FILTER || kind == ROW_DEDUP_RECORDS) && end > first && rng(2) == 0) {
        first += rng((uint32_t)(end - first + 1));
        end -= rng((uint32_t)(end - first + 1));
    }
    rows_drop(s, first, end);
}

static void cut_store(struct rows *s, struct cut *c)
{
    for (size_t i = 0; i < c->count; i++) {
        struct slice key = buf_view(&c->ops[i].key), value = buf_view(&c->ops[i].value);
        size_t at = row_place(s, key);
        if (c->ops[i].kind == 0) {
            rows_put(s, key, value);
        } else if (c->ops[i].kind == 1) {
            if (at < s->count && slice_equal(buf_view(&s->at[at].key), key)) rows_drop(s, at, at + 1);
        } else {
            range_delete(s, key, value);
        }
    }
    cut_free(c);
}

/* ---- a node: the index, its store, the log of additions ------------------------------------------------------------- */

struct addition {
    uint32_t id;
    uint64_t offset;
    int64_t ms;
    uint8_t class; /* as asked for; as kept once the model has it */
    bool own_id;
};

struct node {
    struct dedup *d;
    struct rows rows;
    struct cut waiting[CUTS_WAITING];
    int waiting_count;
    uint64_t budget, filter_limit,
        stored_index;  /* filter_limit 0: the budget's; stored_index: additions up to here are stored */
    int64_t stored_ms; /* of the last entry that is stored */
    uint64_t reads;
    uint64_t restarts, torn, generations_seen, parts_seen, blind;
};

static struct dedup_key key_of(uint32_t id)
{
    return dedup_key(7, 1, slice_make(&id, sizeof id));
}

static void counting_scan(void *ctx, struct slice from, struct slice to, bool (*row)(void *, struct slice, struct slice),
                          void *row_ctx)
{
    struct node *n = ctx;
    n->reads++;
    rows_scan(&n->rows, from, to, row, row_ctx);
}

static void node_open(struct node *n, int64_t now_ms)
{
    struct engine_cold cold = {.ctx = n, .scan = counting_scan};
    n->d = dedup_new(&cold, n->budget);
    if (n->filter_limit != 0) n->d->filter_share = n->d->filter_limit = n->filter_limit;
    for (size_t i = 0; i < n->rows.count && (unsigned char)n->rows.at[i].key.at[0] < 0x80; i++) {
        assert_null(dedup_load(n->d, buf_view(&n->rows.at[i].key), buf_view(&n->rows.at[i].value), now_ms));
    }
    assert_null(dedup_loaded(n->d));
}

static void node_store(struct node *n)
{
    if (n->waiting_count == 0) return;
    uint64_t index = n->waiting[0].index;
    int64_t ms = n->waiting[0].ms;
    cut_store(&n->rows, &n->waiting[0]);
    memmove(&n->waiting[0], &n->waiting[1], sizeof n->waiting[0] * (size_t)(--n->waiting_count));
    n->stored_index = index;
    n->stored_ms = ms;
    dedup_cut_stored(n->d, index);
}

static void node_cut(struct node *n, uint64_t index, int64_t now_ms)
{
    if (n->waiting_count == CUTS_WAITING) node_store(n);
    struct cut *c = &n->waiting[n->waiting_count++];
    *c = (struct cut){.index = index, .ms = now_ms};
    struct engine_rows rows = {.ctx = c, .put = op_put, .delete = op_delete, .delete_range = op_delete_range};
    dedup_cut(n->d, &rows, index, now_ms);
}

static void node_add(struct node *n, const struct addition *a)
{
    dedup_add(n->d, key_of(a->id), a->offset, a->ms, a->class, a->own_id);
}

/* Down and up again: what was not stored comes from the log. */
static void node_restart(struct node *n, const struct addition *log, uint64_t count)
{
    n->restarts++;
    n->torn += n->d->seal.active && n->d->seal.shard > 0;
    dedup_free(n->d);
    while (n->waiting_count > 0) cut_free(&n->waiting[--n->waiting_count]);
    node_open(n, n->stored_ms);
    for (uint64_t i = n->stored_index; i < count; i++) node_add(n, &log[i]);
}

static void node_close(struct node *n)
{
    dedup_free(n->d);
    while (n->waiting_count > 0) cut_free(&n->waiting[--n->waiting_count]);
    rows_drop(&n->rows, 0, n->rows.count);
    free(n->rows.at);
}

/* ---- the model ------------------------------------------------------------------------------------------------------ */

enum { IDS = 3000, ADDITIONS = 6000 };

struct model {
    struct addition log[ADDITIONS], kept[ADDITIONS]; /* kept: with the class that counts */
    uint32_t next[ADDITIONS], last[IDS], first[IDS]; /* of an id: 1 + index */
    uint64_t count;
};

static bool kept_at(const struct addition *a, int64_t now_ms)
{
    return now_ms == INT64_MIN || a->ms + dedup_keep_ms(a->class) >= now_ms;
}

static void model_add(struct model *m, struct addition a)
{
    uint32_t at = (uint32_t)m->count++;
    m->log[at] = a;
    m->next[at] = 0;
    if (m->last[a.id] == 0) {
        m->first[a.id] = at + 1;
    } else {
        const struct addition *before = &m->kept[m->last[a.id] - 1];
        if (kept_at(before, a.ms) && before->class > a.class) a.class = before->class;
        m->next[m->last[a.id] - 1] = at + 1;
    }
    m->last[a.id] = at + 1;
    m->kept[at] = a;
}

static const struct addition *model_find(const struct model *m, uint32_t id, uint64_t from, uint64_t to, int64_t since_ms,
                                         int64_t now_ms)
{
    for (uint32_t at = m->first[id]; at != 0; at = m->next[at - 1]) {
        const struct addition *a = &m->kept[at - 1];
        if (a->offset >= from && a->offset < to && a->ms >= since_ms && kept_at(a, now_ms)) return a;
    }
    return NULL;
}

struct tally {
    uint64_t count, sum;
};

static void tally_record(void *ctx, const struct dedup_record *r)
{
    struct tally *t = ctx;
    t->count++;
    t->sum += hash64(slice_make(r, sizeof *r), 0);
}

static struct tally model_tally(const struct model *m, int64_t now_ms)
{
    struct tally t = {0};
    for (uint64_t i = 0; i < m->count; i++) {
        const struct addition *a = &m->kept[i];
        uint64_t offset = a->offset | (a->own_id ? DEDUP_OWN_ID : 0);
        struct dedup_record r = dedup_record_make(key_of(a->id), offset, dedup_time_word(a->class, a->ms));
        if (kept_at(a, now_ms)) tally_record(&t, &r);
    }
    return t;
}

/* ---- streams -------------------------------------------------------------------------------------------------------- */

static void hit_check(bool found, const struct dedup_hit *hit, const struct addition *wanted)
{
    assert_int_equal(found, wanted != NULL);
    if (!found) return;
    assert_int_equal(hit->offset, wanted->offset);
    assert_int_equal(hit->created_ms, wanted->ms);
    assert_int_equal(hit->own_id, wanted->own_id);
}

static void random_question(struct node *n, const struct model *m, uint32_t id, int64_t now_ms)
{
    static const int64_t windows_ms[] = {0, 60000, 900000, 3600000, INT64_C(86400000)};
    struct dedup_hit hit;
    uint64_t tail = m->count + 1, from = rng(2) == 0 ? 0 : rng((uint32_t)tail),
             to = rng(3) == 0 ? rng((uint32_t)tail + 1) : tail;
    int64_t window_ms = windows_ms[rng(5)], since_ms = window_ms == 0 ? INT64_MAX : now_ms - window_ms;
    if (rng(2) == 0) dedup_prefetch(n->d, key_of(id), since_ms, (uint8_t)rng(4));
    if (rng(2) == 0) {
        const struct addition *wanted = model_find(m, id, 0, to, since_ms, now_ms);
        if (wanted == NULL) wanted = model_find(m, id, tail, to, INT64_MIN, INT64_MIN);
        hit_check(dedup_seen(n->d, key_of(id), tail, to, since_ms, now_ms, &hit), &hit, wanted);
    } else {
        if (rng(2) == 0 || since_ms == INT64_MAX) since_ms = INT64_MIN;
        hit_check(dedup_find(n->d, key_of(id), from, to, since_ms, now_ms, &hit), &hit,
                  model_find(m, id, from, to, since_ms, now_ms));
    }
}

static uint32_t random_id(uint32_t style)
{
    if (style == 1 && rng(3) != 0) return 0; /* one id all the time */
    return rng(style == 2 ? 40 : IDS);
}

static void node_check_all(struct node *n, const struct model *m, int64_t now_ms)
{
    struct tally is = {0}, wanted = model_tally(m, now_ms);
    dedup_each(n->d, now_ms, tally_record, &is);
    assert_int_equal(is.count, wanted.count);
    assert_int_equal(is.sum, wanted.sum);
    assert_true(dedup_ids(n->d) >= wanted.count);
}

static void random_turn(struct node *n, struct model *m, int64_t now_ms, uint32_t restarts)
{
    for (uint32_t i = rng(4); i > 0; i--) {
        for (uint32_t k = rng(300); k > 0 && dedup_housekeep(n->d, now_ms); k--) continue;
        if (rng(2) == 0) node_cut(n, m->count, now_ms);
        if (rng(2) == 0) node_store(n);
    }
    if (n->filter_limit != 0 && rng(8) == 0) dedup_spare(n->d, rng(2) * rng(4000));
    if (n->d->generation_count > n->generations_seen) n->generations_seen = n->d->generation_count;
    for (uint32_t i = 0; i < n->d->generation_count; i++) {
        n->blind += n->d->generations[i].filter.blocks == NULL;
        if (n->d->generations[i].parts > n->parts_seen) n->parts_seen = n->d->generations[i].parts;
    }
    if (rng(restarts) == 0) node_restart(n, m->log, m->count);
}

static uint64_t stream_seed; /* of the stream under way */

static int seed_say(void **state)
{
    (void)state;
    print_message("the last stream was QUEEN_SIM_SEED=%lu QUEEN_SIM_SEEDS=1\n", stream_seed);
    return 0;
}

static void stream_run(struct node *n, uint64_t seed)
{
    struct model *m = calloc(1, sizeof *m);
    rng_state = seed * UINT64_C(0x9e3779b97f4a7c15) + 1;
    uint32_t style = rng(3), restarts = 3 + rng(60), pace = 1 + rng(3), classes = 1 + rng(4);
    int64_t now_ms = INT64_C(1900000000000);
    n->budget = 34 * 8 * (uint64_t)(64 + rng(rng(2) == 0 ? 200 : 1500));
    if (rng(3) == 0) n->filter_limit = 64 + rng(3000);
    node_open(n, now_ms);
    while (m->count < ADDITIONS - 100) {
        static const uint32_t steps_ms[] = {50, 2000, 60000, 900000};
        now_ms += rng(steps_ms[rng(30) == 0 ? 3 : rng(pace)]);
        for (uint32_t i = rng(40); i > 0; i--) {
            struct addition a = {.id = random_id(style), .offset = m->count + 1, .ms = now_ms, .own_id = rng(9) == 0};
            a.class = (uint8_t)rng(classes);
            node_add(n, &a);
            model_add(m, a);
        }
        for (int i = 0; i < 20; i++) random_question(n, m, random_id(style), now_ms);
        random_turn(n, m, now_ms, restarts);
        if (rng(40) == 0) node_check_all(n, m, now_ms);
    }
    node_check_all(n, m, now_ms);
    free(m);
}

static void answers_are_those_of_a_list_of_all(void **state)
{
    (void)state;
    const char *count = getenv("QUEEN_SIM_SEEDS"), *first = getenv("QUEEN_SIM_SEED");
    uint64_t seeds = count == NULL ? 40 : strtoull(count, NULL, 10), seed = first == NULL ? 1 : strtoull(first, NULL, 10);
    uint64_t generations = 0, parts = 0, torn = 0, blind = 0;
    for (uint64_t i = 0; i < seeds; i++, seed++) {
        struct node n = {0};
        stream_seed = seed;
        stream_run(&n, seed);
        generations = n.generations_seen > generations ? n.generations_seen : generations;
        parts = n.parts_seen > parts ? n.parts_seen : parts;
        torn += n.torn;
        blind += n.blind;
        node_close(&n);
    }
    print_message("up to %lu generations of up to %lu parts, %lu restarts while sealing, %lu without a filter\n", generations,
                  parts, torn, blind);
    if (seeds >= 40) assert_true(generations >= 8 && parts > 1 && torn > 0 && blind > 0);
}

/* Ids of an hour and of a quarter of one, all different, as fast as they may come: memory is within the budget at any time. */
static void memory_is_within_the_budget(void **state)
{
    (void)state;
    enum { COUNT = 1500000, TURN = 2000 };
    struct node n = {.budget = 6 << 20};
    int64_t now_ms = INT64_C(1900000000000);
    uint64_t most = 0;
    node_open(&n, now_ms);
    for (uint32_t id = 0; id < COUNT; id++) {
        struct addition a = {.id = id, .offset = id, .ms = now_ms, .class = id % 5 == 0 ? 0 : 2};
        node_add(&n, &a);
        if (id % TURN != 0) continue;
        now_ms += 6400;
        for (int k = 0; k < 6; k++) dedup_housekeep(n.d, now_ms);
        node_cut(&n, id + 1, now_ms);
        most = dedup_memory(n.d) > most ? dedup_memory(n.d) : most;
    }
    print_message("%lu ids kept in at most %lu bytes, %u generations, %lu bytes of filters\n", dedup_ids(n.d), most,
                  n.d->generation_count, n.d->filter_bytes);
    assert_true(most <= n.budget);
    assert_true(dedup_ids(n.d) > 900000 && dedup_ids(n.d) < 1200000); /* what is past goes, from the store too */
    struct tally t = {0};
    dedup_each(n.d, now_ms, tally_record, &t);
    assert_true(t.count > 900000 && t.count < 1000000);
    uint64_t bytes = 0;
    for (size_t i = 0; i < n.rows.count; i++) bytes += n.rows.at[i].key.len + n.rows.at[i].value.len;
    assert_true(bytes < dedup_ids(n.d) * 32);
    node_close(&n);
}

static void a_filter_is_wrong_for_one_in_two_thousand(void **state)
{
    (void)state;
    enum { KEYS = 100000, ASKED = 1000000 };
    static const struct {
        uint32_t bits, most_of_a_million;
    } rows[] = {{18, 700}, {14, 3000}, {10, 16000}, {7, 50000}, {6, 80000}};
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        struct dedup_filter f = {0};
        uint32_t wrong = 0;
        dedup_filter_make(&f, KEYS * rows[i].bits / 512, KEYS);
        for (uint32_t id = 0; id < KEYS; id++) dedup_filter_add(&f, key_of(id));
        for (uint32_t id = 0; id < KEYS; id++) assert_true(dedup_filter_may_have(&f, key_of(id)));
        for (uint32_t id = 0; id < ASKED; id++) wrong += dedup_filter_may_have(&f, key_of(KEYS + id));
        print_message("%u bits an id: %u of a million\n", rows[i].bits, wrong);
        assert_true(wrong <= rows[i].most_of_a_million && wrong > 0);
        dedup_filter_drop(&f);
        assert_true(dedup_filter_may_have(&f, key_of(KEYS)));
    }
}

/* A start reads the journal and the filters: no row of records. */
static void a_start_reads_no_records(void **state)
{
    (void)state;
    struct node n = {.budget = 1 << 20};
    int64_t now_ms = INT64_C(1900000000000);
    node_open(&n, now_ms);
    for (uint32_t id = 0; id < 100000; id++) {
        struct addition a = {.id = id, .offset = id, .ms = now_ms, .class = 2};
        node_add(&n, &a);
        if (id % 1000 != 999) continue;
        for (int k = 0; k < 100; k++) dedup_housekeep(n.d, now_ms);
        node_cut(&n, id + 1, now_ms);
    }
    while (n.waiting_count > 0) node_store(&n);
    n.reads = 0;
    node_restart(&n, NULL, n.stored_index);
    assert_int_equal(n.reads, 0);
    assert_int_equal(dedup_ids(n.d), 100000);
    uint64_t young = n.d->streams[2]->young.ids;
    assert_true(young > 0 && young < 10000);
    for (uint32_t id = 0; id < 100000; id++) {
        struct dedup_hit hit;
        assert_true(dedup_find(n.d, key_of(id), 0, UINT64_MAX, INT64_MIN, now_ms, &hit));
        assert_int_equal(hit.offset, id);
    }
    node_close(&n);
}

/* A filter that had to leave is read back when there is room; meanwhile and after it every answer is right. */
static void a_filter_comes_back(void **state)
{
    (void)state;
    enum { COUNT = 40000 };
    struct node n = {.budget = 1 << 18, .filter_limit = 4096};
    int64_t now_ms = INT64_C(1900000000000);
    struct dedup_hit hit;
    uint32_t without = 0;
    node_open(&n, now_ms);
    for (uint32_t id = 0; id < COUNT; id++) {
        struct addition a = {.id = id, .offset = id, .ms = now_ms, .class = 2};
        node_add(&n, &a);
        if (id % 500 != 499) continue;
        while (dedup_housekeep(n.d, now_ms)) continue;
        node_cut(&n, id + 1, now_ms);
        node_store(&n);
    }
    for (uint32_t i = 0; i < n.d->generation_count; i++) without += n.d->generations[i].filter.blocks == NULL;
    assert_true(without > 5 && n.d->filter_bytes <= 4096);
    dedup_spare(n.d, 1 << 20);
    dedup_housekeep(n.d, now_ms);
    dedup_spare(n.d, 0); /* it was on its way */
    dedup_housekeep(n.d, now_ms);
    assert_true(n.d->filter_bytes <= 4096);
    dedup_spare(n.d, 1 << 20);
    while (dedup_housekeep(n.d, now_ms))
        assert_true(dedup_find(n.d, key_of(rng(COUNT)), 0, UINT64_MAX, INT64_MIN, now_ms, &hit));
    for (uint32_t i = 0; i < n.d->generation_count; i++) assert_non_null(n.d->generations[i].filter.blocks);
    for (uint32_t id = 0; id < COUNT; id++) assert_true(dedup_find(n.d, key_of(id), 0, UINT64_MAX, INT64_MIN, now_ms, &hit));
    n.reads = 0;
    for (uint32_t id = COUNT; id < 2 * COUNT; id++) dedup_find(n.d, key_of(id), 0, UINT64_MAX, INT64_MIN, now_ms, &hit);
    assert_true(n.reads < (uint64_t)COUNT * without / 4); /* one a generation and id before */
    node_close(&n);
}

/* A table that a burst made large gets small when the time of its ids is over, also if few come after it. */
static void memory_of_a_burst_goes_with_its_time(void **state)
{
    (void)state;
    enum { COUNT = 100000 };
    struct node n = {.budget = 64 << 20};
    int64_t now_ms = INT64_C(1900000000000);
    struct dedup_hit hit;
    node_open(&n, now_ms);
    uint64_t empty = dedup_memory(n.d);
    for (uint32_t id = 0; id < COUNT; id++) {
        struct addition a = {.id = id, .offset = id, .ms = now_ms + id / 1000, .class = 0};
        node_add(&n, &a);
    }
    node_cut(&n, 1, now_ms);
    node_store(&n);
    while (dedup_housekeep(n.d, now_ms)) continue;
    assert_true(dedup_memory(n.d) > empty + COUNT * sizeof(struct dedup_record));
    now_ms += dedup_keep_ms(0) - 1;
    while (dedup_housekeep(n.d, now_ms)) continue;
    assert_int_equal(dedup_ids(n.d), COUNT);
    struct addition late = {.id = COUNT, .offset = COUNT, .ms = now_ms, .class = 0};
    node_add(&n, &late);
    now_ms += dedup_keep_ms(0) / 2;
    while (dedup_housekeep(n.d, now_ms)) continue;
    node_cut(&n, 2, now_ms);
    assert_int_equal(dedup_ids(n.d), 1);
    assert_true(dedup_memory(n.d) < empty + (1 << 20));
    assert_true(dedup_find(n.d, key_of(COUNT), 0, UINT64_MAX, INT64_MIN, now_ms, &hit));
    node_close(&n);
}

/* The seal that the last entries began ends when none follow: its rows are for cuts that no entry asks for. */
static void a_seal_ends_without_entries(void **state)
{
    (void)state;
    struct node n = {.budget = 1 << 20};
    int64_t now_ms = INT64_C(1900000000000);
    struct dedup_hit hit;
    uint32_t count = 0;
    uint64_t revision = 1;
    node_open(&n, now_ms);
    for (; !n.d->seal.active; revision++) {
        for (int i = 0; i < 1000; i++, count++) {
            struct addition a = {.id = count, .offset = count, .ms = now_ms, .class = 2};
            node_add(&n, &a);
        }
        node_cut(&n, revision, now_ms);
        node_store(&n);
        assert_false(dedup_awaits_cut(n.d, revision));
    }
    revision--;
    for (;;) {
        while (dedup_housekeep(n.d, now_ms)) continue;
        if (!dedup_awaits_cut(n.d, revision)) break;
        assert_true(n.d->seal.active);
        node_cut(&n, revision, now_ms); /* this one takes nothing */
        assert_true(dedup_awaits_cut(n.d, revision));
        node_cut(&n, ++revision, now_ms);
        while (n.waiting_count > 0) node_store(&n);
    }
    assert_false(n.d->seal.active);
    assert_int_equal(n.d->generation_count, 1);
    assert_int_equal(dedup_table_memory(&n.d->dead), sizeof(struct dedup_table));
    for (uint32_t id = 0; id < count; id += 97)
        assert_true(dedup_find(n.d, key_of(id), 0, UINT64_MAX, INT64_MIN, now_ms, &hit));
    node_close(&n);
}

/* What was read of a generation is read again when ids were added to it. */
static void a_part_more_is_seen_at_once(void **state)
{
    (void)state;
    struct node n = {.budget = 34 * 8 * 200};
    int64_t now_ms = INT64_C(1900000000000);
    struct dedup_hit hit;
    uint8_t parts = 0;
    node_open(&n, now_ms);
    for (uint32_t id = 0; id < 20000; id++) {
        struct addition a = {.id = id, .offset = id, .ms = now_ms, .class = 2};
        node_add(&n, &a);
        if (id % 100 != 99) continue;
        while (dedup_housekeep(n.d, now_ms)) continue;
        node_cut(&n, id + 1, now_ms);
        node_store(&n);
        if (n.d->generation_count > 0) parts = n.d->generations[n.d->generation_count - 1].parts;
        for (uint32_t i = id < 2000 ? 0 : id - 2000; i <= id; i++) {
            if (key_of(i).low >> 56 < 2) assert_true(dedup_find(n.d, key_of(i), 0, UINT64_MAX, INT64_MIN, now_ms, &hit));
        }
    }
    assert_true(parts > 1);
    node_close(&n);
}

/* An id that comes all the time lies in rows of its own, which are searched, not walked. */
static void a_constant_id_costs_a_binary_search(void **state)
{
    (void)state;
    struct node n = {.budget = 32 << 20};
    int64_t now_ms = INT64_C(1900000000000);
    struct dedup_hit hit;
    node_open(&n, now_ms);
    for (uint32_t i = 0; i < 400000; i++) {
        struct addition a = {.id = 1, .offset = i, .ms = now_ms + i / 1000, .class = 1};
        node_add(&n, &a);
        if (i % 5000 != 0) continue;
        for (int k = 0; k < 100; k++) dedup_housekeep(n.d, now_ms);
        node_cut(&n, i + 1, now_ms);
        assert_true(n.d->seal.rows.cap < 8 << 20);
    }
    while (n.waiting_count > 0) node_store(&n);
    assert_true(n.d->generation_count > 0);
    n.reads = 0;
    assert_true(dedup_find(n.d, key_of(1), 12345, UINT64_MAX, INT64_MIN, now_ms, &hit));
    assert_int_equal(hit.offset, 12345);
    assert_true(dedup_find(n.d, key_of(1), 0, UINT64_MAX, now_ms + 77, now_ms, &hit));
    assert_int_equal(hit.offset, 77000);
    assert_true(n.reads > 2 && n.reads < 60);
    node_close(&n);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_teardown(answers_are_those_of_a_list_of_all, seed_say),
        cmocka_unit_test(memory_is_within_the_budget),
        cmocka_unit_test(a_filter_is_wrong_for_one_in_two_thousand),
        cmocka_unit_test(a_start_reads_no_records),
        cmocka_unit_test(a_filter_comes_back),
        cmocka_unit_test(memory_of_a_burst_goes_with_its_time),
        cmocka_unit_test(a_seal_ends_without_entries),
        cmocka_unit_test(a_part_more_is_seen_at_once),
        cmocka_unit_test(a_constant_id_costs_a_binary_search),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
