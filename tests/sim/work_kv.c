/* KV: registers, counters, claims; writes through the log, reads on any node.
 *
 * Every write of a key that applied has a version, and versions follow the log. So a history is linearizable exactly when the order of the
 * versions respects real time, each value follows from the ones before, and each read, put behind the write whose version it saw, respects
 * real time too. Writes whose answer is unknown may be anywhere after they were sent, or nowhere; what a read saw of them names them. */
#include <stdlib.h>
#include <string.h>

#include "broker/broker_internal.h"
#include "work.h"

enum { KV_CLIENTS = 4, REGISTERS = 3, COUNTERS = 2, CLAIM_KEYS = 400 };

enum kv_what { WHAT_PUT, WHAT_CAS, WHAT_DELETE, WHAT_INCR, WHAT_CLAIM, WHAT_GET };

struct kv_seen {
    uint8_t what, key; /* key: register or counter number */
    enum op_end end;
    bool applied, found;
    uint64_t version, expect;
    int64_t value; /* written, or read, or the counter's new value */
    int64_t invoked_us, answered_us;
    uint32_t claim;
};
static struct kv_seen *history;
static uint32_t history_count, history_cap;

struct kv_client {
    struct client client;
    struct op op;
    struct kv_seen now;
    uint64_t known_version[REGISTERS];
    uint64_t writes;
};
static struct kv_client kv_clients[KV_CLIENTS];

static void key_make(char out[32], uint8_t what, uint32_t key, uint32_t claim)
{
    if (what == WHAT_CLAIM) {
        snprintf(out, 32, "claim/%u", claim);
    } else if (key < REGISTERS) {
        snprintf(out, 32, "register/%u", key);
    } else {
        snprintf(out, 32, "counter/%u", key - REGISTERS);
    }
}

static void outcome_take(struct kv_client *k, const struct kv_outcome *r)
{
    k->now.applied = r->applied;
    k->now.version = r->version;
    k->now.found = r->found;
    if (k->now.what == WHAT_INCR || (k->now.what == WHAT_GET && r->found)) {
        char text[32];
        snprintf(text, sizeof text, "%.*s", (int)r->value.len, r->value.at);
        k->now.value = strtoll(text, NULL, 10);
    }
}

static void kv_read(struct op *o, struct call *c)
{
    struct kv_client *k = o->ctx;
    if (o->kind == CALL_READ) return; /* `look` has taken it */
    must(c->result.kind == COMMAND_KV && c->result.kv.count == 1);
    outcome_take(k, &c->result.kv.items[0]);
}

static void kv_look(struct call *c, struct engine *e, struct engine_now now)
{
    struct op *o = c->read_ctx;
    struct kv_client *k = o->ctx;
    struct buf bytes = {0};
    struct command command;
    struct kv_command kv;
    struct kv_result r;
    char key[32];
    key_make(key, WHAT_GET, k->now.key, 0);
    size_t at = kv_begin(&bytes, work_tenant, 1);
    kv_op_add(&bytes, &(struct kv_op){.kind = KV_GET, .name_space = slice_of("work"), .key = slice_of(key)});
    kv_end(&bytes, at);
    struct slice rest = buf_view(&bytes);
    must(command_next(&rest, &command) && kv_decode(&command, &kv));
    engine_kv_read(e, &kv, now, &c->arena, &r);
    outcome_take(k, &r.items[0]);
    buf_free(&bytes);
}

static void kv_answered(struct op *o)
{
    struct kv_client *k = o->ctx;
    k->now.end = o->end;
    k->now.invoked_us = o->invoked_us;
    k->now.answered_us = o->answered_us;
    if (history_count == history_cap) {
        history_cap = history_cap * 2 + 1024;
        history = realloc(history, history_cap * sizeof history[0]);
        must(history != NULL);
    }
    history[history_count++] = k->now;
    if (o->end == OP_OK && k->now.key < REGISTERS && k->now.what != WHAT_CLAIM)
        k->known_version[k->now.key] = k->now.what == WHAT_GET && !k->now.found ? 0 : k->now.version;
    work_counts.kv++;
    work_counts.reads += k->now.what == WHAT_GET;
    client_think(&k->client, 30000, 1500000);
}

static void kv_command_make(struct kv_client *k, struct buf *out)
{
    char key[32], value[32];
    struct kv_op op = {.kind = KV_PUT, .name_space = slice_of("work")};
    key_make(key, k->now.what, k->now.key, k->now.claim);
    snprintf(value, sizeof value, "%lld", (long long)k->now.value);
    op.key = slice_of(key);
    op.value = slice_of(value);
    if (k->now.what == WHAT_CAS || k->now.what == WHAT_CLAIM) {
        op.flags = KV_EXPECT;
        op.expect = k->now.expect;
    }
    if (k->now.what == WHAT_DELETE) op.kind = KV_DELETE;
    if (k->now.what == WHAT_INCR) op.kind = KV_INCR;
    if (k->now.what == WHAT_DELETE) op.value = slice_of("");
    size_t at = kv_begin(out, work_tenant, 1);
    kv_op_add(out, &op);
    kv_end(out, at);
}

static void kv_step(struct client *c)
{
    struct kv_client *k = outer(c, struct kv_client, client);
    struct op *o = &k->op;
    o->client = c;
    op_clear(o);
    o->ctx = k;
    o->read = kv_read;
    o->answered = kv_answered;
    uint32_t roll = (uint32_t)rng_below(&c->rng, 100);
    k->now = (struct kv_seen){.key = (uint8_t)rng_below(&c->rng, REGISTERS + COUNTERS)};
    bool counter = k->now.key >= REGISTERS;
    if (roll < 45) {
        k->now.what = WHAT_GET;
    } else if (roll < 53) {
        k->now.what = WHAT_CLAIM;
        k->now.claim = (uint32_t)((sim.now_us / 2000000) % CLAIM_KEYS);
        k->now.key = 255;
    } else if (counter) {
        k->now.what = WHAT_INCR;
    } else {
        k->now.what = roll < 70 ? WHAT_PUT : roll < 95 ? WHAT_CAS : WHAT_DELETE;
        k->now.expect = k->known_version[k->now.key];
    }
    /* Values name their writer and its write: no two are the same. */
    k->now.value = k->now.what == WHAT_INCR ? 1 : (int64_t)(++k->writes * 10 + c->number);
    o->kind = k->now.what == WHAT_GET ? CALL_READ : CALL_WRITE;
    if (o->kind == CALL_READ) {
        o->look = kv_look;
    } else {
        o->grows = k->now.what != WHAT_DELETE;
        kv_command_make(k, &o->command);
    }
    op_send(o);
}

void kv_work_start(void)
{
    for (uint32_t i = 0; i < KV_CLIENTS; i++) client_start(&kv_clients[i].client, "kv", i, kv_step);
}

/* ---- the end ------------------------------------------------------------------------------------------------------- */

static int by_version(const void *a, const void *b)
{
    const struct kv_seen *x = *(struct kv_seen *const *)a, *y = *(struct kv_seen *const *)b;
    if (x->version != y->version) return x->version < y->version ? -1 : 1;
    return x < y ? -1 : x > y;
}

static int by_invoked(const void *a, const void *b)
{
    const struct kv_seen *x = *(struct kv_seen *const *)a, *y = *(struct kv_seen *const *)b;
    if (x->invoked_us != y->invoked_us) return x->invoked_us < y->invoked_us ? -1 : 1;
    return x < y ? -1 : x > y;
}

static bool is_write(const struct kv_seen *s)
{
    return s->what != WHAT_GET && s->what != WHAT_CLAIM;
}

/* Known writes of a key, in order of version: real time, and what each expected. */
static void writes_check(struct kv_seen **w, uint32_t count, uint8_t key)
{
    int64_t latest_invoked_us = 0;
    for (uint32_t i = 0; i < count; i++) {
        if (i > 0 && w[i]->version == w[i - 1]->version)
            sim_fail("key %u: two writes got version %llu", key, (unsigned long long)w[i]->version);
        if (w[i]->answered_us < latest_invoked_us)
            sim_fail("key %u: version %llu was answered before a lower version was asked for", key,
                     (unsigned long long)w[i]->version);
        if (w[i]->invoked_us > latest_invoked_us) latest_invoked_us = w[i]->invoked_us;
        if (w[i]->what == WHAT_CAS && i > 0 && w[i]->expect < w[i - 1]->version && w[i]->expect != 0)
            sim_fail("key %u: version %llu replaced %llu, but %llu was written between", key, (unsigned long long)w[i]->version,
                     (unsigned long long)w[i]->expect, (unsigned long long)w[i - 1]->version);
        if (w[i]->what == WHAT_INCR && i > 0 && w[i]->value <= w[i - 1]->value)
            sim_fail("key %u: a counter went from %lld to %lld", key, (long long)w[i - 1]->value, (long long)w[i]->value);
    }
}

/* Of a deletion the version is that of the removed row, so absence is judged by the writes around it. */
static void reads_check(struct kv_seen **all, uint32_t count, uint8_t key, bool deletes)
{
    struct kv_seen **order = malloc((count + 1) * sizeof order[0]);
    must(order != NULL);
    /* For each read: the highest version that was answered before it was asked. Times are few enough for a plain scan. */
    memcpy(order, all, count * sizeof order[0]);
    qsort(order, count, sizeof order[0], by_invoked);
    for (uint32_t i = 0; i < count; i++) {
        const struct kv_seen *r = order[i];
        if (r->what != WHAT_GET || r->end != OP_OK) continue;
        for (uint32_t k = 0; k < count; k++) {
            const struct kv_seen *o = order[k];
            if (o->invoked_us > r->invoked_us) break;
            if (o->end != OP_OK || o->answered_us >= r->invoked_us) continue;
            bool knows = o->what == WHAT_GET ? o->found : o->applied && o->what != WHAT_DELETE;
            if (!knows) continue;
            if (r->found && r->version < o->version)
                sim_fail("key %u: a read (asked at %.6f s) saw version %llu, after %llu had been answered (%.6f s)", key,
                         (double)r->invoked_us / 1e6, (unsigned long long)r->version, (unsigned long long)o->version,
                         (double)o->answered_us / 1e6);
            if (!r->found && !deletes)
                sim_fail("key %u: a read saw nothing, after version %llu had been answered", key,
                         (unsigned long long)o->version);
        }
    }
    free(order);
}

/* What a read saw is what that version wrote, and that write had been sent. */
static void values_check(struct kv_seen **all, uint32_t count, uint8_t key)
{
    for (uint32_t i = 0; i < count; i++) {
        const struct kv_seen *r = all[i];
        if (r->what != WHAT_GET || r->end != OP_OK || !r->found) continue;
        for (uint32_t k = 0; k < count; k++) {
            const struct kv_seen *w = all[k];
            if (w->what == WHAT_GET || w->what == WHAT_DELETE) continue;
            bool same_value = w->what != WHAT_INCR && w->value == r->value;
            bool same_version = w->end == OP_OK && w->applied && w->version == r->version;
            if (same_version && w->value != r->value)
                sim_fail("key %u: version %llu reads as %lld, and was %lld when written", key, (unsigned long long)r->version,
                         (long long)r->value, (long long)w->value);
            if ((same_version || same_value) && w->invoked_us > r->answered_us)
                sim_fail("key %u: version %llu was read before it was written", key, (unsigned long long)r->version);
            if (same_value && (w->end == OP_FAILED || (w->end == OP_OK && !w->applied)))
                sim_fail("key %u: a write that was refused is read: %lld", key, (long long)r->value);
        }
    }
}

static void counter_check(struct kv_seen **all, uint32_t count, uint8_t key)
{
    int64_t done = 0, maybe = 0, last = 0;
    char name[32], value[32];
    for (uint32_t i = 0; i < count; i++) {
        if (all[i]->what != WHAT_INCR) continue;
        done += all[i]->end == OP_OK && all[i]->applied;
        maybe += all[i]->end == OP_UNKNOWN;
    }
    key_make(name, WHAT_INCR, key, 0);
    struct sim_node *n = sim_leader();
    if (work_kv_get(n, name, value, sizeof value, NULL)) last = strtoll(value, NULL, 10);
    if (last < done || last > done + maybe)
        sim_fail("counter %u is %lld after %lld answered and %lld unknown additions", key, (long long)last, (long long)done,
                 (long long)maybe);
}

static void claims_check(void)
{
    static uint32_t winners[CLAIM_KEYS];
    for (uint32_t i = 0; i < history_count; i++) {
        const struct kv_seen *s = &history[i];
        if (s->what != WHAT_CLAIM || s->end != OP_OK || !s->applied) continue;
        if (winners[s->claim]++ > 0) sim_fail("claim %u was won twice", s->claim);
    }
}

void kv_work_check(void)
{
    struct kv_seen **all = malloc((history_count + 1) * sizeof all[0]), **w = malloc((history_count + 1) * sizeof w[0]);
    must(all != NULL && w != NULL);
    for (uint8_t key = 0; key < REGISTERS + COUNTERS; key++) {
        uint32_t count = 0, writes = 0;
        bool deletes = false;
        for (uint32_t i = 0; i < history_count; i++) {
            struct kv_seen *s = &history[i];
            if (s->key != key) continue;
            all[count++] = s;
            deletes |= s->what == WHAT_DELETE;
            if (is_write(s) && s->what != WHAT_DELETE && s->end == OP_OK && s->applied) w[writes++] = s;
        }
        qsort(w, writes, sizeof w[0], by_version);
        writes_check(w, writes, key);
        reads_check(all, count, key, deletes);
        values_check(all, count, key);
        if (key >= REGISTERS) counter_check(all, count, key);
    }
    claims_check();
    free(all);
    free(w);
}
