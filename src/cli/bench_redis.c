/* The first two rows of the table against Redis streams, with the same load core: a stream a lane, one request of `batch`
 * entries in flight on each connection.
 *
 * --dedup off: XADD, pipelined. --dedup on: one script a request that sets a key per id (NX, an hour) and adds the entry
 * when the key was new, which is what a user has to write today. The server is started by bench/peers_redis.sh. */
#include <stdio.h>

#include "cli/bench.h"
#include "cli/bench_resp.h"

static const char DEDUP_SCRIPT[] = "local stored = 0 "
                                   "for i = 1, #ARGV, 2 do "
                                   "if redis.call('SET', KEYS[1] .. ':' .. ARGV[i], 1, 'NX', 'EX', 3600) then "
                                   "redis.call('XADD', KEYS[1], '*', 'id', ARGV[i], 'data', ARGV[i + 1]) "
                                   "stored = stored + 1 "
                                   "end end "
                                   "return stored";

struct redis_shared {
    struct bench *bench;
    char script[RESP_SHA_BYTES];
};

/* A prepared request; lane and ids are patched in place. */
struct redis_conn {
    struct buf text;
    size_t lane_at, lane_step; /* step 0: one lane name for the whole request */
    size_t id_at, id_step;
    uint32_t lane_next;
    uint32_t counter;
    uint32_t answers;
};

static void redis_open(struct load_conn *c)
{
    struct redis_shared *s = c->group->shared;
    const struct bench_options *o = &s->bench->options;
    struct redis_conn *r = calloc(1, sizeof *r);
    char *payload = malloc(o->size);
    must(r != NULL && payload != NULL);
    char id[BENCH_ID_BYTES + 1];
    snprintf(id, sizeof id, "%s-%04x00000000", s->bench->run_id, c->index & 0xffffu);
    uint64_t seed = 88172645463325252u + c->index;
    size_t first_end = 0;
    if (o->dedup) {
        buf_printf(&r->text, "*%u\r\n", 4 + 2 * o->batch);
        resp_text(&r->text, "EVALSHA");
        resp_text(&r->text, s->script);
        resp_text(&r->text, "1");
        r->lane_at = resp_place(&r->text, "lane-00000000");
    }
    for (uint32_t i = 0; i < o->batch; i++) {
        size_t from = r->text.len;
        size_t lane = 0;
        if (!o->dedup) {
            buf_text(&r->text, "*7\r\n");
            resp_text(&r->text, "XADD");
            lane = resp_place(&r->text, "lane-00000000");
            resp_text(&r->text, "*");
            resp_text(&r->text, "id");
        }
        size_t at = resp_place(&r->text, id);
        if (!o->dedup) resp_text(&r->text, "data");
        for (uint32_t k = 0; k < o->size; k++) {
            seed = seed * 6364136223846793005u + 1442695040888963407u;
            payload[k] = (char)('!' + (seed >> 33) % 90);
        }
        resp_argument(&r->text, payload, o->size);
        if (i > 0) continue;
        first_end = r->text.len;
        r->id_at = at;
        r->id_step = first_end - from;
        if (!o->dedup) r->lane_at = lane, r->lane_step = r->id_step;
    }
    free(payload);
    r->lane_next = c->index % o->lanes;
    c->work = r;
}

static void redis_close(struct load_conn *c)
{
    struct redis_conn *r = c->work;
    if (r == NULL) return;
    buf_free(&r->text);
    free(r);
}

static bool redis_begin(struct load_conn *c)
{
    static const char hex[] = "0123456789abcdef";
    struct redis_shared *s = c->group->shared;
    const struct bench_options *o = &s->bench->options;
    struct redis_conn *r = c->work;
    uint32_t lane = r->lane_next;
    r->lane_next = lane + o->conns < o->lanes ? lane + o->conns : c->index % o->lanes;
    char lane_text[16];
    snprintf(lane_text, sizeof lane_text, "%08u", lane % 100000000u);
    for (uint32_t i = 0; i < o->batch; i++) {
        if (i == 0 || r->lane_step > 0) memcpy(r->text.at + r->lane_at + i * r->lane_step + 5, lane_text, 8);
        uint32_t v = r->counter++;
        char *id = r->text.at + r->id_at + i * r->id_step + 28;
        for (int k = 7; k >= 0; k--, v >>= 4) id[k] = hex[v & 15];
    }
    c->out = r->text.at;
    c->out_len = r->text.len;
    c->replies_due = o->dedup ? 1 : o->batch;
    return true;
}

static enum load_verdict redis_reply(struct load_conn *c, const struct load_answer *a, int64_t now_ns)
{
    struct redis_shared *s = c->group->shared;
    const struct bench_options *o = &s->bench->options;
    struct redis_conn *r = c->work;
    enum load_verdict verdict = LOAD_DONE;
    if (!load_expect(c, a, 200, now_ns, &verdict)) return verdict;
    struct load_counts *n = load_counts(c);
    if (r->answers++ % BENCH_CHECK_EVERY == 0) {
        n->checked++;
        uint32_t stored =
            o->dedup && a->body_len > 1 ? (uint32_t)strtoul(a->body + 1, NULL, 10) : text_count(a->body, a->body_len, "$");
        if (stored != o->batch) {
            load_complain(c, "a request was not stored whole", a);
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

static const struct load_work redis_work = {
    .resp = true,
    .open = redis_open,
    .begin = redis_begin,
    .reply = redis_reply,
    .close = redis_close,
};

int bench_redis(struct bench *b)
{
    struct redis_shared shared = {.bench = b};
    struct load l;
    bench_aim(b, &l);
    if (b->options.dedup && !resp_script_load(&l, slice_of(DEDUP_SCRIPT), shared.script)) return BENCH_UNREACHABLE;
    load_add(&l, &redis_work, &shared, b->options.conns, b->options.rate / b->options.batch);
    return bench_run(b, &l, NULL, NULL);
}
