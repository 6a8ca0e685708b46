/* Nodes with real directories, logs and stores on one loop, a replica that says what the test wants, and a network that is a queue of
 * frames. Time goes on by itself, and faster when the test says so. */
#ifndef QUEEN_TESTS_SNAPSHOT_RIG_H
#define QUEEN_TESTS_SNAPSHOT_RIG_H

#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/files.h"
#include "broker/snapshot_inner.h"
#include "log/log.h"

enum { MIB = 1 << 20, NODES = 4, ENTRIES_MAX = 2000, LIMIT_MS = 20000 };

/* ---- time */

static _Atomic int64_t clock_ahead_us;

int64_t clock_mono_us(void)
{
    struct timespec t;
    clock_gettime(CLOCK_BOOTTIME, &t);
    return (int64_t)t.tv_sec * 1000000 + t.tv_nsec / 1000 + atomic_load(&clock_ahead_us);
}

int64_t clock_wall_us(void)
{
    return clock_mono_us();
}

uint64_t clock_boot_id(void)
{
    return 1;
}

/* ---- nodes */

struct rig;

struct replica {
    enum replica_role role;
    uint64_t leader, term, last_index, pin;
    uint64_t entry_term; /* of the entry that is asked for; 0: it is not kept */
    bool pinned;
    uint32_t pins;
    struct log *log;
    const uint64_t *pos;
    const char *configuration;
};

struct node {
    struct rig *rig;
    uint64_t id;
    char *dir, *log_dir, *store_dir;
    struct replica replica;
    struct log *log;
    struct store *store;
    struct store_mark opened; /* the store's mark when it was opened */
    struct snapshots *snapshots;
    uint64_t first, last; /* entries the log told at open, and since */
    uint64_t pos[ENTRIES_MAX];
    uint32_t len[ENTRIES_MAX];
    bool kept[ENTRIES_MAX]; /* its body is in the log */
    uint64_t fetched;       /* index, once it was called */
    bool repairs;           /* has neither replica nor store */
    uint64_t told_by, told_term, told_last;
    uint32_t reaches; /* so often the source's state does not reach what is wanted yet */
    uint64_t written;
    bool failed;
};

struct frame {
    struct frame *next;
    uint64_t from, to;
    size_t len;
    char bytes[];
};

struct rig {
    char top[64];
    struct loop *loop;
    struct loop_hook hook;
    struct loop_timer late;
    bool timed_out;
    bool (*condition)(struct rig *r);
    struct node nodes[NODES];
    struct frame *first, **end;
    uint64_t random;
    uint32_t drop_percent;
    bool cut[NODES]; /* nothing to or from it */
    bool fast;       /* time jumps whenever nothing else happens */
    void (*tamper)(struct rig *r, struct frame *f);
    uint64_t frames, range_bytes, sames, damaged;
};

static struct rig *rig_now;

static uint32_t draw(struct rig *r, uint32_t below)
{
    r->random = r->random * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(r->random >> 33) % below;
}

/* ---- the replica's part */

void replica_pin(struct replica *r, uint64_t index)
{
    assert_true(index > 0);
    r->pin = index;
    r->pinned = true;
    r->pins++;
}

void replica_unpin(struct replica *r)
{
    r->pinned = false;
}

void replica_configuration_file(const struct replica *r, struct buf *out)
{
    buf_text(out, r->configuration);
}

uint64_t replica_leader(const struct replica *r)
{
    return r->leader;
}

uint64_t replica_term(const struct replica *r)
{
    return r->term;
}

enum replica_role replica_role(const struct replica *r)
{
    return r->role;
}

uint64_t replica_last_index(const struct replica *r)
{
    return r->last_index;
}

uint64_t replica_entry_pos(const struct replica *r, uint64_t index)
{
    return r->pos[index];
}

uint64_t replica_entry_term(const struct replica *r, uint64_t index)
{
    return index > r->last_index ? 0 : r->entry_term;
}

struct log *replica_log(struct replica *r)
{
    return r->log;
}

/* ---- network */

static bool net_put(void *ctx, uint64_t peer, const struct slice *parts, uint32_t count)
{
    struct node *n = ctx;
    struct rig *r = n->rig;
    size_t len = 0;
    for (uint32_t i = 0; i < count; i++) len += parts[i].len;
    struct frame *f = malloc(sizeof *f + len);
    assert_non_null(f);
    f->next = NULL;
    f->from = n->id;
    f->to = peer;
    f->len = 0;
    for (uint32_t i = 0; i < count; i++) {
        memcpy(f->bytes + f->len, parts[i].at, parts[i].len);
        f->len += parts[i].len;
    }
    *r->end = f;
    r->end = &f->next;
    return true;
}

static void frame_deliver(struct rig *r, struct frame *f)
{
    bool lost = r->cut[f->from] || r->cut[f->to] || r->nodes[f->to].snapshots == NULL;
    r->frames++;
    if (lost || (r->drop_percent > 0 && draw(r, 100) < r->drop_percent)) return;
    if (r->tamper != NULL) r->tamper(r, f);
    if (f->bytes[0] == FRAME_BYTES) r->range_bytes += f->len - 33;
    if (f->bytes[0] == FRAME_SAME) r->sames++;
    snapshots_receive(r->nodes[f->to].snapshots, f->from, slice_make(f->bytes, f->len));
}

static bool rig_turn(struct loop_hook *h)
{
    struct rig *r = (struct rig *)(void *)((char *)h - offsetof(struct rig, hook));
    struct frame *f = r->first;
    bool some = f != NULL;
    r->first = NULL;
    r->end = &r->first;
    while (f != NULL) {
        struct frame *next = f->next;
        frame_deliver(r, f);
        free(f);
        f = next;
    }
    if (r->condition != NULL && r->condition(r)) {
        r->condition = NULL;
        loop_stop(r->loop);
        return false;
    }
    if (!some && r->fast) {
        usleep(100);
        atomic_fetch_add(&clock_ahead_us, 50000);
        return true;
    }
    return some;
}

static void rig_late(struct loop_timer *t)
{
    struct rig *r = (struct rig *)(void *)((char *)t - offsetof(struct rig, late));
    r->timed_out = true;
    loop_stop(r->loop);
}

/* False: it did not come true in time (of the rig's clock). */
static bool run_for(struct rig *r, bool (*condition)(struct rig *r), int64_t ms)
{
    r->condition = condition;
    r->timed_out = false;
    loop_timer_set(r->loop, &r->late, clock_mono_us() + ms * 1000);
    loop_run(r->loop);
    loop_timer_cancel(r->loop, &r->late);
    r->condition = NULL;
    return !r->timed_out;
}

static void run_until(struct rig *r, bool (*condition)(struct rig *r))
{
    if (!run_for(r, condition, r->fast ? 100 * LIMIT_MS : LIMIT_MS)) fail_msg("it did not come true in time");
}

/* ---- a node's log and store */

static void on_record(void *ctx, const struct log_record *rec)
{
    struct node *n = ctx;
    assert_true(rec->index < ENTRIES_MAX);
    if (n->first == 0) n->first = rec->index;
    n->last = rec->index;
    n->pos[rec->index] = rec->pos;
    n->len[rec->index] = rec->len;
}

static void on_synced(void *ctx)
{
    (void)ctx;
}

static void on_failed(void *ctx, const char *what)
{
    fprintf(stderr, "failed: %s\n", what);
    ((struct node *)ctx)->failed = true;
}

static char byte_of(uint64_t node_seed, uint64_t index, size_t i)
{
    uint64_t x = (node_seed * 1000003 + index * 7919 + i / 8) * 0x9e3779b97f4a7c15u;
    return (char)((x ^ x >> 29) >> (i % 8 * 8));
}

static uint64_t term_of(uint64_t index)
{
    return 2 + index / 50;
}

static void log_put(struct node *n, uint64_t index, uint64_t term, size_t len, uint64_t seed)
{
    char *at = log_reserve(n->log, len);
    for (size_t i = 0; i < len; i++) at[i] = byte_of(seed, index, i);
    n->pos[index] = log_append(n->log, index, term, 1, len);
    n->len[index] = (uint32_t)len;
    n->last = n->replica.last_index = index;
    if (n->first == 0) n->first = index;
}

static void log_settle(struct node *n)
{
    log_flush(n->log);
    while (log_unsynced_bytes(n->log) != 0) {
        assert_false(n->failed);
        usleep(100);
    }
}

/* Entries first..last of sizes from nothing to most of a segment, as a leader would write them. */
static void entries_put(struct node *n, uint64_t first, uint64_t last, uint64_t seed)
{
    for (uint64_t i = first; i <= last; i++) {
        size_t len = i % 37 == 0 ? 700 << 10 : i % 11 == 0 ? 0 : (size_t)(i * 7919 % 100000);
        log_put(n, i, term_of(i), len, seed);
    }
    log_settle(n);
}

static void rows_written(void *ctx, struct store_mark mark)
{
    ((struct node *)ctx)->written = mark.index;
}

/* The state at `index`: row k of every entry up to it. Rows from..index are in this batch. */
static void rows_put(struct node *n, uint64_t from, uint64_t index, uint64_t scan_index, uint64_t seed, bool flush)
{
    struct store_batch *b = store_batch_new(n->store);
    for (uint64_t i = from; i <= index; i++) {
        char key[24], value[300];
        int len = snprintf(key, sizeof key, "k%012llu", (unsigned long long)i);
        for (size_t k = 0; k < sizeof value; k++) value[k] = byte_of(seed + 5, i, k);
        store_batch_put(b, slice_make(key, (size_t)len), slice_make(value, sizeof value));
    }
    struct store_mark mark = {.index = index, .term = term_of(index), .scan_pos = n->pos[scan_index]};
    store_submit(n->store, b, mark, flush, n, rows_written, NULL);
}

static void parts_open(struct node *n, uint64_t segment_bytes)
{
    struct buf error = {0};
    struct store_options so = {
        .dir = n->store_dir, .loop = n->rig->loop, .write_buffer_bytes = 1 << 20, .ctx = n, .failed = on_failed};
    if (store_open(&n->store, &so, &n->opened, &error) != STORE_OK) fail_msg("%.*s", (int)error.len, error.at);
    n->first = n->last = 0;
    struct log_options lo = {.dir = n->log_dir,
                             .segment_bytes = segment_bytes,
                             .cache_bytes_max = 2 * MIB,
                             .cache_age_us = 1000000,
                             .first_index = n->opened.index == 0 ? 1 : n->opened.index,
                             .first_pos = n->opened.scan_pos,
                             .ctx = n,
                             .record = on_record,
                             .synced = on_synced,
                             .failed = on_failed};
    if (log_open(&n->log, &lo, &error) != LOG_OK) fail_msg("%.*s", (int)error.len, error.at);
    n->replica.log = n->log;
    n->replica.last_index = n->last;
    buf_free(&error);
}

static void parts_close(struct node *n)
{
    store_close(n->store);
    log_close(n->log);
    n->store = NULL;
    n->log = NULL;
}

static void on_fetched(void *ctx, uint64_t index)
{
    struct node *n = ctx;
    assert_int_equal(n->fetched, 0);
    n->fetched = index;
}

static bool on_reach(void *ctx, uint64_t index)
{
    struct node *n = ctx;
    assert_true(index > 0);
    return n->reaches == 0 || --n->reaches == 0;
}

static void on_last(void *ctx, uint64_t peer, uint64_t term, uint64_t index)
{
    struct node *n = ctx;
    n->told_by = peer;
    n->told_term = term;
    n->told_last = index;
}

static void mover_new(struct node *n)
{
    struct snapshots_options o = {.dir = n->dir,
                                  .loop = n->rig->loop,
                                  .cluster = {{7}},
                                  .node = n->id,
                                  .replica = n->repairs ? NULL : &n->replica,
                                  .store = n->repairs ? NULL : n->store,
                                  .ctx = n,
                                  .send = net_put,
                                  .fetched = on_fetched,
                                  .reach = on_reach,
                                  .last = on_last};
    n->snapshots = snapshots_new(&o);
}

static void node_open(struct rig *r, uint64_t id, uint64_t leader, uint64_t segment_bytes)
{
    struct node *n = &r->nodes[id];
    memset(n, 0, sizeof *n);
    n->rig = r;
    n->id = id;
    assert_true(asprintf(&n->dir, "%s/n%llu", r->top, (unsigned long long)id) > 0);
    assert_true(asprintf(&n->log_dir, "%s/log", n->dir) > 0);
    assert_true(asprintf(&n->store_dir, "%s/store", n->dir) > 0);
    assert_int_equal(files_make_dir(n->dir), 0);
    n->replica = (struct replica){.role = id == leader ? REPLICA_LEADER : REPLICA_FOLLOWER,
                                  .leader = leader,
                                  .term = 100,
                                  .pos = n->pos,
                                  .configuration = id == leader ? "the leader's configuration" : "another configuration"};
    parts_open(n, segment_bytes);
    mover_new(n);
}

static void node_close(struct node *n)
{
    if (n->store != NULL) parts_close(n);
    snapshots_free(n->snapshots);
    n->snapshots = NULL;
}

/* ---- life */

static int rig_setup(void **state)
{
    struct rig *r = calloc(1, sizeof *r);
    assert_non_null(r);
    const char *base = getenv("TMPDIR");
    snprintf(r->top, sizeof r->top, "%.40s/snapshot.XXXXXX", base == NULL ? "/tmp" : base);
    assert_non_null(mkdtemp(r->top));
    r->loop = loop_new();
    assert_non_null(r->loop);
    r->end = &r->first;
    r->hook.run = rig_turn;
    r->late.fire = rig_late;
    r->random = 4711;
    loop_hook_add(r->loop, &r->hook);
    *state = rig_now = r;
    return 0;
}

static int rig_teardown(void **state)
{
    struct rig *r = *state;
    for (int i = 0; i < NODES; i++) {
        node_close(&r->nodes[i]);
        free(r->nodes[i].dir);
        free(r->nodes[i].log_dir);
        free(r->nodes[i].store_dir);
    }
    for (struct frame *f = r->first; f != NULL;) {
        struct frame *next = f->next;
        free(f);
        f = next;
    }
    loop_free(r->loop);
    assert_int_equal(files_remove_tree(r->top), 0);
    free(r);
    return 0;
}

static bool there(const struct node *n, const char *name)
{
    char path[300];
    snprintf(path, sizeof path, "%s/%s", n->dir, name);
    return access(path, F_OK) == 0;
}

static void text_is(const struct node *n, const char *name, const char *text)
{
    char path[300];
    struct buf b = {0};
    snprintf(path, sizeof path, "%s/%s", n->dir, name);
    assert_int_equal(files_read(path, 0, 10000, &b), 0);
    assert_true(slice_is(buf_view(&b), text));
    buf_free(&b);
}

static void text_put(const struct node *n, const char *name, const char *text)
{
    char path[300];
    snprintf(path, sizeof path, "%s/%s", n->dir, name);
    assert_int_equal(files_replace(path, slice_of(text)), 0);
}

/* ---- what must hold afterwards */

struct rows_seen {
    uint64_t count, seed;
};

static bool row_check(void *ctx, struct slice key, struct slice value)
{
    struct rows_seen *s = ctx;
    char text[24] = {0};
    assert_true(key.len == 13 && value.len == 300);
    memcpy(text, key.at, key.len);
    uint64_t i = strtoull(text + 1, NULL, 10);
    assert_int_equal(i, s->count + 1);
    for (size_t k = 0; k < value.len; k++) assert_int_equal(value.at[k], byte_of(s->seed + 5, i, k));
    s->count++;
    return true;
}

static void body_check(struct node *n, const struct node *of, uint64_t index, uint64_t seed)
{
    char *room = malloc((1 << 20) + 1);
    assert_non_null(room);
    assert_int_equal(log_read(n->log, of->pos[index], of->len[index], room), LOG_OK);
    for (size_t i = 0; i < of->len[index]; i++)
        if (room[i] != byte_of(seed, index, i)) fail_msg("entry %llu has wrong bytes", (unsigned long long)index);
    free(room);
}

/* Which bodies up to `index` are there. */
static uint64_t kept_note(struct node *n, uint64_t index)
{
    uint64_t count = 0;
    for (uint64_t i = 1; i <= index; i++) {
        n->kept[i] = n->len[i] > 0 && log_covers(n->log, n->pos[i], n->pos[i] + n->len[i]);
        count += n->kept[i];
    }
    return count;
}

/* Stops the node, puts what it fetched in place, opens it: the state at I of the source, with the bodies the source had; and it goes on
 * behind I, over another start. */
static void swapped_check(struct node *n, const struct node *source, uint64_t index, uint64_t seed)
{
    struct buf error = {0};
    text_put(n, "identity", "who I am");
    text_put(n, "meta-0", "my vote");
    node_close(n);
    assert_true(incoming_finish(n->dir, &error));
    assert_int_equal(error.len, 0);
    assert_false(there(n, "incoming"));
    assert_false(there(n, "outgoing-store"));
    assert_false(there(n, "outgoing-log"));
    text_is(n, "identity", "who I am");
    text_is(n, "meta-0", "my vote");
    text_is(n, "configuration", "the leader's configuration");
    for (int round = 0; round < 2; round++) {
        parts_open(n, MIB);
        assert_int_equal(n->opened.index, index);
        assert_int_equal(n->opened.term, term_of(index));
        struct rows_seen rows = {.seed = seed};
        assert_int_equal(store_scan(n->store, (struct slice){0}, (struct slice){0}, row_check, &rows, NULL), STORE_OK);
        /* the store's own rows are not told */
        assert_int_equal(rows.count, index);
        assert_int_equal(n->first, index);
        assert_int_equal(n->last, index + 5 * (uint64_t)round);
        assert_int_equal(n->pos[index], source->pos[index]);
        for (uint64_t i = 1; i <= index; i++)
            if (source->kept[i]) body_check(n, source, i, seed);
        for (uint64_t i = index + 1; i <= n->last; i++) body_check(n, n, i, 99);
        for (uint64_t i = n->last + 1, end = n->last + 5; i <= end; i++) log_put(n, i, 200, 50000, 99);
        log_settle(n);
        parts_close(n);
    }
}

#endif
