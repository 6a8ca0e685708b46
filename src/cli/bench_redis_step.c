/* The step as one Lua script in Redis, driven by the same load core: XREADGROUP takes a batch of one stream's entries, then
 * the script (--script) acks them, adds as many outputs to another stream, sets a key and a marker.
 *
 * Every connection has lanes of its own (index, index + conns, ...), so no two meet in one stream: a stream of Redis does not
 * keep the order when they do. Streams are filled before, with `appendfsync no`; then it is `always`. `latency` is the whole
 * step, `second` the script alone. Afterwards the lengths of the output streams must add up. */
#include <stdio.h>

#include "cli/bench.h"
#include "cli/bench_resp.h"

enum {
    FILL_ENTRIES = 100, /* XADDs of one pipeline */
    CALLS_MAX = 10000,  /* of one pipeline around the load */
    SCRIPT_BYTES_MAX = 65536,
    ENTRY_ID_MAX = 48,
};

struct rstep_shared {
    struct bench *bench;
    char sha[RESP_SHA_BYTES];
    uint64_t groups; /* filling: batches of entries, one to a lane in turn */
    _Atomic uint64_t next;
    _Atomic uint64_t added;
    _Atomic bool stopping;
    _Atomic uint32_t committing;
    _Atomic uint64_t steps, messages;
    uint64_t enough;
};

struct rstep_conn {
    struct buf pop;
    size_t pop_lane_at;
    struct buf script;
    char *payload;
    char value[64];
    uint64_t seed;
    uint32_t lane, messages, counter, empty;
};

static void lane_name(char out[16], const char *kind, uint32_t lane)
{
    snprintf(out, 16, "%s-%08u", kind, lane % 100000000u);
}

static uint64_t seed_next(uint64_t *seed)
{
    *seed = *seed * 6364136223846793005u + 1442695040888963407u;
    return *seed >> 33;
}

static void rstep_open(struct load_conn *c)
{
    struct rstep_shared *s = c->group->shared;
    const struct bench_options *o = &s->bench->options;
    struct rstep_conn *w = calloc(1, sizeof *w);
    must(w != NULL);
    w->payload = malloc(o->size);
    must(w->payload != NULL);
    w->seed = 0x9e3779b97f4a7c15u * (c->index + 1);
    for (uint32_t i = 0; i < o->size; i++) w->payload[i] = (char)('!' + seed_next(&w->seed) % 90);
    for (size_t i = 0; i < sizeof w->value; i++) w->value[i] = (char)('a' + seed_next(&w->seed) % 26);
    char count[16];
    snprintf(count, sizeof count, "%u", o->batch);
    buf_text(&w->pop, "*9\r\n");
    const char *const words[7] = {"XREADGROUP", "GROUP", "g", "c", "COUNT", count, "STREAMS"};
    for (size_t i = 0; i < 7; i++) resp_text(&w->pop, words[i]);
    w->pop_lane_at = resp_place(&w->pop, "in-00000000");
    resp_text(&w->pop, ">");
    w->lane = c->index % o->lanes;
    c->work = w;
}

static void rstep_close(struct load_conn *c)
{
    struct rstep_conn *w = c->work;
    if (w == NULL) return;
    buf_free(&w->pop);
    buf_free(&w->script);
    free(w->payload);
    free(w);
}

static void lane_advance(struct load_conn *c)
{
    struct rstep_shared *s = c->group->shared;
    struct rstep_conn *w = c->work;
    const struct bench_options *o = &s->bench->options;
    w->lane = w->lane + o->conns < o->lanes ? w->lane + o->conns : c->index % o->lanes;
}

static bool rstep_begin(struct load_conn *c)
{
    struct rstep_shared *s = c->group->shared;
    struct rstep_conn *w = c->work;
    if (w->messages > 0) atomic_fetch_sub(&s->committing, 1);
    w->messages = 0;
    if (atomic_load_explicit(&s->stopping, memory_order_relaxed)) return false;
    char name[16];
    lane_name(name, "in", w->lane);
    memcpy(w->pop.at + w->pop_lane_at, name, 11);
    c->out = w->pop.at;
    c->out_len = w->pop.len;
    c->replies_due = 1;
    return true;
}

/* The bulk string or array head at *at; moves on over it. at == NULL: it is neither. An array gives its count in *count. */
static struct slice resp_next(const char **at, const char *end, long *count)
{
    const char *line = memchr(*at, '\n', (size_t)(end - *at));
    if (line == NULL || (**at != '$' && **at != '*')) return (struct slice){0};
    long n = strtol(*at + 1, NULL, 10);
    *count = n;
    const char *from = line + 1;
    if (**at == '*') {
        *at = from;
        return slice_make(from, 0);
    }
    if (n < 0 || end - from < n + 2) return (struct slice){0};
    *at = from + n + 2;
    return slice_make(from, (size_t)n);
}

/* Puts the ids of the entries of an XREADGROUP answer, and the transaction ids as outputs. Returns their number, -1: not
 * understood. The answer: [[stream, [[entry id, [name, id, name, data]], ...]]]. */
static long entries_put(struct rstep_conn *w, const struct rstep_shared *s, const struct load_answer *a, struct buf *outputs)
{
    const char *at = a->body;
    const char *end = at + a->body_len;
    long count = 0, n = 0;
    if (resp_next(&at, end, &n).at == NULL) return -1;
    if (n <= 0) return 0;
    resp_next(&at, end, &n);
    resp_next(&at, end, &n);
    if (resp_next(&at, end, &count).at == NULL || count > s->bench->options.batch) return -1;
    for (long i = 0; i < count; i++) {
        struct slice part[6] = {{0}};
        resp_next(&at, end, &n);
        part[0] = resp_next(&at, end, &n);
        for (int k = 1; k < 6; k++) part[k] = resp_next(&at, end, &n);
        if (part[0].at == NULL || part[0].len > ENTRY_ID_MAX || part[5].at == NULL || part[3].len != BENCH_ID_BYTES) return -1;
        resp_argument(&w->script, part[0].at, part[0].len);
        resp_argument(outputs, part[3].at, part[3].len);
        resp_argument(outputs, w->payload, s->bench->options.size);
    }
    return count;
}

/* The script's request. Its head names the number of arguments, so the entries are read into `outputs` first. */
static long script_make(struct rstep_conn *w, const struct rstep_shared *s, const struct load_answer *a, struct buf *outputs,
                        struct buf *head)
{
    char text[64];
    buf_clear(&w->script);
    buf_clear(outputs);
    buf_clear(head);
    long n = entries_put(w, s, a, outputs);
    if (n <= 0) return n;
    buf_printf(head, "*%ld\r\n", 3 + 4 + 3 + n + 1 + 2 * n);
    resp_text(head, "EVALSHA");
    resp_text(head, s->sha);
    resp_text(head, "4");
    lane_name(text, "in", w->lane);
    resp_text(head, text);
    lane_name(text, "to", w->lane);
    resp_text(head, text);
    snprintf(text, sizeof text, "k-%08u", (uint32_t)(seed_next(&w->seed) % s->bench->options.keys));
    resp_text(head, text);
    snprintf(text, sizeof text, "once-%08u-%08u", w->lane, w->counter++); /* a lane is one connection's */
    resp_text(head, text);
    resp_text(head, "g");
    resp_text(head, "3600");
    snprintf(text, sizeof text, "%ld", n);
    resp_text(head, text);
    buf_slice(head, buf_view(&w->script));
    resp_argument(head, w->value, sizeof w->value);
    buf_slice(head, buf_view(outputs));
    return n;
}

static enum load_verdict rstep_popped(struct load_conn *c, const struct load_answer *a, int64_t now_ns)
{
    static __thread struct buf outputs, head;
    struct rstep_shared *s = c->group->shared;
    struct rstep_conn *w = c->work;
    if (atomic_load(&s->stopping)) return LOAD_DONE;
    long n = script_make(w, s, a, &outputs, &head);
    if (n < 0) {
        load_complain(c, "entries that are not understood", a);
        return LOAD_DONE;
    }
    if (n == 0) { /* the lane is drained */
        lane_advance(c);
        c->wake_ns = now_ns + 1000000;
        c->start_ns = c->wake_ns;
        if (++w->empty <= s->bench->options.lanes) return LOAD_DONE;
        rstep_begin(c);
        return LOAD_PAUSE;
    }
    w->empty = 0;
    w->messages = (uint32_t)n;
    buf_clear(&w->script);
    buf_slice(&w->script, buf_view(&head));
    atomic_fetch_add(&s->committing, 1);
    c->out = w->script.at;
    c->out_len = w->script.len;
    c->replies_due = 1;
    return LOAD_AGAIN;
}

static enum load_verdict rstep_reply(struct load_conn *c, const struct load_answer *a, int64_t now_ns)
{
    struct rstep_shared *s = c->group->shared;
    struct rstep_conn *w = c->work;
    struct load_counts *n = load_counts(c);
    enum load_verdict verdict = LOAD_DONE;
    if (!load_expect(c, a, 200, now_ns, &verdict)) return verdict;
    if (w->messages == 0) return rstep_popped(c, a, now_ns);
    uint32_t messages = w->messages;
    w->messages = 0;
    atomic_fetch_sub(&s->committing, 1);
    n->checked++;
    if (a->body[0] != ':' || strtoul(a->body + 1, NULL, 10) != messages) {
        load_complain(c, "a step was not done whole", a);
        return LOAD_DONE;
    }
    atomic_fetch_add_explicit(&s->steps, 1, memory_order_relaxed);
    atomic_fetch_add_explicit(&s->messages, messages, memory_order_relaxed);
    lane_advance(c);
    if (load_measures(c, now_ns)) {
        n->operations++;
        n->messages += messages;
        hist_add(&n->latency, now_ns - c->start_ns);
        hist_add(&n->second, now_ns - c->sent_ns);
    }
    return LOAD_DONE;
}

static const struct load_work rstep_work = {
    .resp = true,
    .open = rstep_open,
    .begin = rstep_begin,
    .reply = rstep_reply,
    .close = rstep_close,
};

/* ---- filling ---- */

static bool fill_begin(struct load_conn *c)
{
    struct rstep_shared *s = c->group->shared;
    struct rstep_conn *w = c->work;
    const struct bench_options *o = &s->bench->options;
    uint32_t groups = o->batch < FILL_ENTRIES ? FILL_ENTRIES / o->batch : 1;
    uint64_t group = atomic_fetch_add(&s->next, groups);
    if (group >= s->groups) return false;
    char id[BENCH_ID_BYTES + 1];
    char name[16];
    buf_clear(&w->script);
    for (uint32_t i = 0; i < groups * o->batch; i++) {
        lane_name(name, "in", (uint32_t)((group + i / o->batch) % o->lanes));
        snprintf(id, sizeof id, "%s-%04x%08x", s->bench->run_id, c->index & 0xffffu, w->counter++);
        buf_text(&w->script, "*7\r\n");
        resp_text(&w->script, "XADD");
        resp_text(&w->script, name);
        resp_text(&w->script, "*");
        resp_text(&w->script, "id");
        resp_text(&w->script, id);
        resp_text(&w->script, "data");
        resp_argument(&w->script, w->payload, o->size);
    }
    w->messages = groups * o->batch;
    c->out = w->script.at;
    c->out_len = w->script.len;
    c->replies_due = w->messages;
    return true;
}

static enum load_verdict fill_reply(struct load_conn *c, const struct load_answer *a, int64_t now_ns)
{
    struct rstep_shared *s = c->group->shared;
    struct rstep_conn *w = c->work;
    enum load_verdict verdict = LOAD_DONE;
    if (load_expect(c, a, 200, now_ns, &verdict)) atomic_fetch_add(&s->added, w->messages);
    return verdict;
}

static const struct load_work fill_work = {
    .resp = true,
    .open = rstep_open,
    .begin = fill_begin,
    .reply = fill_reply,
    .close = rstep_close,
};

/* `count` calls that differ by lane, in pipelines. Adds up the integers answered. */
static bool lanes_call(const struct load *l, uint32_t lanes, void (*put)(struct buf *b, uint32_t lane), uint64_t *sum)
{
    struct buf ask = {0};
    struct buf replies = {0};
    bool right = true;
    for (uint32_t lane = 0; lane < lanes && right;) {
        uint32_t calls = 0;
        buf_clear(&ask);
        buf_clear(&replies);
        for (; calls < CALLS_MAX / 10 && lane < lanes; calls++, lane++) put(&ask, lane);
        right = resp_ask(l, buf_view(&ask), calls, &replies);
        const char *at = replies.at;
        const char *end = at + replies.len;
        for (; right && at < end; at = (const char *)memchr(at, '\n', (size_t)(end - at)) + 1) {
            if (*at == ':') *sum += strtoull(at + 1, NULL, 10);
        }
    }
    buf_free(&ask);
    buf_free(&replies);
    return right;
}

static void group_put(struct buf *b, uint32_t lane)
{
    char name[16];
    lane_name(name, "in", lane);
    buf_text(b, "*6\r\n");
    resp_text(b, "XGROUP");
    resp_text(b, "CREATE");
    resp_text(b, name);
    resp_text(b, "g");
    resp_text(b, "0");
    resp_text(b, "MKSTREAM");
}

static void length_put(struct buf *b, uint32_t lane)
{
    char name[16];
    lane_name(name, "to", lane);
    buf_text(b, "*2\r\n");
    resp_text(b, "XLEN");
    resp_text(b, name);
}

static bool sync_set(const struct load *l, const char *when)
{
    struct buf ask = {0};
    struct buf reply = {0};
    buf_text(&ask, "*4\r\n");
    resp_text(&ask, "CONFIG");
    resp_text(&ask, "SET");
    resp_text(&ask, "appendfsync");
    resp_text(&ask, when);
    bool set = resp_ask(l, buf_view(&ask), 1, &reply);
    buf_free(&ask);
    buf_free(&reply);
    return set;
}

static int rstep_fill(struct rstep_shared *s)
{
    struct bench *b = s->bench;
    const struct bench_options *o = &b->options;
    uint64_t each = o->batch < FILL_ENTRIES ? FILL_ENTRIES / o->batch * o->batch : o->batch;
    uint64_t count = o->count > 0 ? o->count : (uint64_t)(12000 * (o->duration_s + o->warmup_s)) * o->batch;
    uint64_t none = 0;
    count = (count + each - 1) / each * each;
    s->groups = count / o->batch;
    s->enough = count - count / 20;
    struct load l;
    bench_aim(b, &l);
    if (!sync_set(&l, "no") || !lanes_call(&l, o->lanes, group_put, &none)) return BENCH_UNREACHABLE;
    load_add(&l, &fill_work, s, 8, 0);
    if (!load_start(&l)) return BENCH_UNREACHABLE;
    bool all = bench_await(&l, &s->added, count);
    load_stop(&l);
    report_count(&b->report, "filled", atomic_load(&s->added));
    if (!sync_set(&l, "always")) return BENCH_UNREACHABLE;
    if (all && l.total.errors + l.total.broken == 0) return BENCH_OK;
    fprintf(stderr, "queen bench: the streams could not be filled\n");
    return BENCH_REFUSED;
}

/* ---- the run ---- */

static bool script_read(const char *path, struct buf *out)
{
    FILE *f = fopen(path, "re");
    size_t n = f == NULL ? 0 : fread(buf_reserve(out, SCRIPT_BYTES_MAX), 1, SCRIPT_BYTES_MAX, f);
    if (f != NULL) fclose(f);
    out->len = n;
    if (n > 0 && n < SCRIPT_BYTES_MAX) return true;
    fprintf(stderr, "queen bench: %s cannot be read as a script\n", path);
    return false;
}

static bool rstep_drained(void *arg)
{
    struct rstep_shared *s = arg;
    return atomic_load_explicit(&s->messages, memory_order_relaxed) >= s->enough;
}

static void rstep_settle(struct load *l, void *arg)
{
    struct rstep_shared *s = arg;
    atomic_store(&s->stopping, true);
    for (int ms = 0; ms < 10000 && atomic_load(&s->committing) > 0 && !atomic_load(&l->stop); ms++) bench_sleep(0.001);
}

static int rstep_measure(struct rstep_shared *s)
{
    struct bench *b = s->bench;
    struct load l;
    bench_aim(b, &l);
    b->settle = rstep_settle;
    b->settle_arg = s;
    load_add(&l, &rstep_work, s, b->options.conns, 0);
    int rc = bench_run(b, &l, rstep_drained, s);
    if (rc != BENCH_OK) return rc;
    double seconds = (double)(b->to.at_ns - b->from.at_ns) / 1e9;
    double steps = (double)l.total.operations;
    double cpu_us = 1e6 * (b->to.user_s + b->to.system_s - b->from.user_s - b->from.system_s);
    report_number(&b->report, "steps_per_s", steps / seconds, 0);
    report_count(&b->report, "steps", l.total.operations);
    if (steps > 0) report_number(&b->report, "broker_us_per_step", cpu_us / steps, 2);
    report_second(&b->report, &l.total.second);
    uint64_t found = 0;
    if (!lanes_call(&l, b->options.lanes, length_put, &found)) return BENCH_UNREACHABLE;
    report_count(&b->report, "outputs_found", found);
    uint64_t wanted = atomic_load(&s->messages);
    if (found == wanted) return BENCH_OK;
    fprintf(stderr, "queen bench: outputs: %llu, expected %llu\n", (unsigned long long)found, (unsigned long long)wanted);
    return BENCH_REFUSED;
}

int bench_redis_step(struct bench *b)
{
    static struct rstep_shared s;
    struct buf script = {0};
    struct load l;
    s.bench = b;
    bench_aim(b, &l);
    int rc = script_read(b->options.script, &script) ? BENCH_OK : BENCH_USAGE;
    if (rc == BENCH_OK && !resp_script_load(&l, buf_view(&script), s.sha)) rc = BENCH_UNREACHABLE;
    buf_free(&script);
    if (rc == BENCH_OK) rc = rstep_fill(&s);
    if (rc == BENCH_OK) rc = rstep_measure(&s);
    return rc;
}
