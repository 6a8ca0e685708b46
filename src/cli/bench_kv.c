/* KV puts or gets: one key a call on the path routes (PUT, GET /api/v1/kv/NS/KEY), or --batch ops in one POST /api/v1/kv.
 *
 * Keys are taken at random out of --keys; the ops of one call have different keys, as the broker demands. For --get all keys
 * are written first. `messages` are ops. Afterwards every 97th key must be there. */
#include <stdio.h>

#include "cli/bench.h"

enum {
    KEY_DIGITS = 8,
    FILL_OPS = 200, /* of one call */
    LOOK_EVERY = 97,
};

struct kv_conn {
    struct buf request;
    size_t key_at, key_step; /* digits of the first op's key; distance to the next */
    size_t value_at;         /* eight digits inside the first op's value, 0: reads */
    uint64_t seed;
    uint32_t counter;
    uint32_t answers;
};

static void digits_put(char *at, uint32_t v)
{
    for (int i = KEY_DIGITS - 1; i >= 0; i--, v /= 10) at[i] = (char)('0' + v % 10);
}

/* A JSON string of `size` bytes with its quotes; eight digits come first. */
static void value_put(struct buf *b, uint32_t size, uint64_t *seed)
{
    buf_text(b, "\"00000000");
    for (uint32_t i = 10; i < size; i++) {
        *seed = *seed * 6364136223846793005u + 1442695040888963407u;
        buf_byte(b, (char)('a' + (*seed >> 33) % 26));
    }
    buf_byte(b, '"');
}

static void life_put(struct buf *b, const struct bench_options *o)
{
    if (o->ttl_s == 0) {
        buf_text(b, ",\"forever\":true");
    } else {
        buf_printf(b, ",\"ttlSeconds\":%u", o->ttl_s);
    }
}

/* One op of a call: {"op":...}. */
static void op_put(struct buf *b, const struct bench_options *o, bool get, uint64_t *seed)
{
    buf_printf(b, "{\"op\":\"%s\",\"ns\":\"bench-kv\",\"key\":\"k-00000000\"", get ? "get" : "put");
    if (!get) {
        buf_text(b, ",\"value\":");
        value_put(b, o->size, seed);
        life_put(b, o);
    }
    buf_byte(b, '}');
}

static size_t digits_find(const struct buf *b, size_t from, const char *before)
{
    const char *at = memmem(b->at + from, b->len - from, before, strlen(before));
    return at == NULL ? 0 : (size_t)(at - b->at) + strlen(before);
}

static void request_one(struct kv_conn *k, const struct bench_options *o)
{
    struct buf body = {0};
    if (!o->get) {
        buf_text(&body, "{\"value\":");
        value_put(&body, o->size, &k->seed);
        life_put(&body, o);
        buf_byte(&body, '}');
    }
    buf_printf(&k->request, "%s /api/v1/kv/bench-kv/k-00000000 HTTP/1.1\r\nHost: %s:%u\r\n", o->get ? "GET" : "PUT", o->host,
               o->port);
    if (!o->get) buf_printf(&k->request, "Content-Type: application/json\r\nContent-Length: %zu\r\n", body.len);
    buf_text(&k->request, "\r\n");
    buf_slice(&k->request, buf_view(&body));
    buf_free(&body);
    k->key_at = digits_find(&k->request, 0, "/k-");
}

static void request_many(struct kv_conn *k, const struct bench_options *o)
{
    struct buf body = {0};
    size_t first = 0;
    for (uint32_t i = 0; i < o->batch; i++) {
        buf_byte(&body, i == 0 ? '[' : ',');
        op_put(&body, o, o->get, &k->seed);
        if (i == 0) first = body.len;
    }
    buf_byte(&body, ']');
    buf_printf(&k->request,
               "POST /api/v1/kv HTTP/1.1\r\nHost: %s:%u\r\nContent-Type: application/json\r\nContent-Length: %zu\r\n\r\n",
               o->host, o->port, body.len);
    buf_slice(&k->request, buf_view(&body));
    buf_free(&body);
    k->key_at = digits_find(&k->request, 0, "\"key\":\"k-");
    k->key_step = first;
}

static void kv_open(struct load_conn *c)
{
    const struct bench *b = c->group->shared;
    struct kv_conn *k = calloc(1, sizeof *k);
    must(k != NULL);
    k->seed = 0x9e3779b97f4a7c15u * (c->index + 1);
    if (b->options.batch == 1) {
        request_one(k, &b->options);
    } else {
        request_many(k, &b->options);
    }
    must(k->key_at > 0);
    if (!b->options.get) k->value_at = digits_find(&k->request, k->key_at, "\"value\":\"");
    c->work = k;
}

static void kv_close(struct load_conn *c)
{
    struct kv_conn *k = c->work;
    if (k == NULL) return;
    buf_free(&k->request);
    free(k);
}

static bool kv_begin(struct load_conn *c)
{
    const struct bench *b = c->group->shared;
    const struct bench_options *o = &b->options;
    struct kv_conn *k = c->work;
    k->seed = k->seed * 6364136223846793005u + 1442695040888963407u;
    /* Keys of one call: evenly spread from a random one, so they differ. */
    uint32_t first = (uint32_t)((k->seed >> 33) % o->keys);
    uint32_t stride = o->keys / o->batch;
    uint32_t counter = k->counter++ % 100000000u;
    for (uint32_t i = 0; i < o->batch; i++) {
        size_t shift = i * k->key_step;
        digits_put(k->request.at + k->key_at + shift, (uint32_t)(((uint64_t)first + (uint64_t)stride * i) % o->keys));
        if (k->value_at > 0) digits_put(k->request.at + k->value_at + shift, counter);
    }
    c->out = k->request.at;
    c->out_len = k->request.len;
    return true;
}

static enum load_verdict kv_reply(struct load_conn *c, const struct load_answer *a, int64_t now_ns)
{
    const struct bench *b = c->group->shared;
    const struct bench_options *o = &b->options;
    struct kv_conn *k = c->work;
    struct load_counts *n = load_counts(c);
    enum load_verdict verdict = LOAD_DONE;
    if (!load_expect(c, a, 200, now_ns, &verdict)) return verdict;
    if (k->answers++ % BENCH_CHECK_EVERY == 0) {
        n->checked++;
        if (text_count(a->body, a->body_len, o->get ? "\"found\":true" : "\"applied\":true") != o->batch) {
            load_complain(c, "an op did not do its work", a);
            return LOAD_DONE;
        }
    }
    if (load_measures(c, now_ns)) {
        n->operations++;
        n->messages += o->batch;
        hist_add(&n->latency, now_ns - c->start_ns);
    }
    return LOAD_DONE;
}

static const struct load_work kv_work = {
    .open = kv_open,
    .begin = kv_begin,
    .reply = kv_reply,
    .close = kv_close,
};

/* Calls each with FILL_OPS ops on consecutive keys (every `stride`-th), of which all must answer with `right`. */
static int keys_each(struct bench *b, bool get, uint32_t stride, const char *right)
{
    const struct bench_options *o = &b->options;
    struct buf body = {0};
    uint64_t seed = 88172645463325252u;
    int rc = BENCH_OK;
    for (uint32_t key = 0; key < o->keys && rc == BENCH_OK;) {
        uint32_t ops = 0;
        buf_clear(&body);
        for (; ops < FILL_OPS && key < o->keys; ops++, key += stride) {
            buf_byte(&body, ops == 0 ? '[' : ',');
            size_t from = body.len;
            op_put(&body, o, get, &seed);
            digits_put(body.at + digits_find(&body, from, "\"k-"), key);
        }
        buf_byte(&body, ']');
        buf_byte(&body, 0);
        rc = bench_call(b, "POST", "/api/v1/kv", body.at, 200);
        if (rc == BENCH_OK && text_count(b->client.body.at, b->client.body.len, right) != ops) {
            fprintf(stderr, "queen bench: not all of %u keys answered %s\n", ops, right);
            rc = BENCH_REFUSED;
        }
    }
    buf_free(&body);
    return rc;
}

int bench_kv(struct bench *b)
{
    struct bench_options *o = &b->options;
    if (o->keys < o->batch) o->keys = o->batch;
    int rc = keys_each(b, false, 1, "\"applied\":true");
    if (rc != BENCH_OK) return rc;
    struct load l;
    bench_aim(b, &l);
    load_add(&l, &kv_work, b, o->conns, o->rate);
    rc = bench_run(b, &l, NULL, NULL);
    if (rc != BENCH_OK) return rc;
    double seconds = (double)(b->to.at_ns - b->from.at_ns) / 1e9;
    report_number(&b->report, "ops_per_s", (double)l.total.messages / seconds, 0);
    return keys_each(b, true, LOOK_EVERY, "\"found\":true");
}
