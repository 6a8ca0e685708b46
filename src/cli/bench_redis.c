/* The first two rows of the table against Redis streams, with the same load core: a stream a lane, one request of `batch`
 * entries in flight on each connection.
 *
 * --dedup off: XADD, pipelined. --dedup on: one script a request that sets a key per id (NX, an hour) and adds the entry
 * when the key was new, which is what a user has to write today. The server is started by bench/peers_redis.sh. */
#include <errno.h>
#include <stdio.h>
#include <sys/socket.h>
#include <unistd.h>

#include "cli/bench.h"

static const char DEDUP_SCRIPT[] = "local stored = 0 "
                                   "for i = 1, #ARGV, 2 do "
                                   "if redis.call('SET', KEYS[1] .. ':' .. ARGV[i], 1, 'NX', 'EX', 3600) then "
                                   "redis.call('XADD', KEYS[1], '*', 'id', ARGV[i], 'data', ARGV[i + 1]) "
                                   "stored = stored + 1 "
                                   "end end "
                                   "return stored";

struct redis_shared {
    struct bench *bench;
    char script[41]; /* its SHA-1 */
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

static void argument_put(struct buf *b, const char *at, size_t len)
{
    buf_printf(b, "$%zu\r\n", len);
    buf_put(b, at, len);
    buf_text(b, "\r\n");
}

static void text_put(struct buf *b, const char *text)
{
    argument_put(b, text, strlen(text));
}

/* Puts an argument and returns where its bytes begin. */
static size_t place_put(struct buf *b, const char *text)
{
    text_put(b, text);
    return b->len - 2 - strlen(text);
}

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
        text_put(&r->text, "EVALSHA");
        text_put(&r->text, s->script);
        text_put(&r->text, "1");
        r->lane_at = place_put(&r->text, "lane-00000000");
    }
    for (uint32_t i = 0; i < o->batch; i++) {
        size_t from = r->text.len;
        size_t lane = 0;
        if (!o->dedup) {
            buf_text(&r->text, "*7\r\n");
            text_put(&r->text, "XADD");
            lane = place_put(&r->text, "lane-00000000");
            text_put(&r->text, "*");
            text_put(&r->text, "id");
        }
        size_t at = place_put(&r->text, id);
        if (!o->dedup) text_put(&r->text, "data");
        for (uint32_t k = 0; k < o->size; k++) {
            seed = seed * 6364136223846793005u + 1442695040888963407u;
            payload[k] = (char)('!' + (seed >> 33) % 90);
        }
        argument_put(&r->text, payload, o->size);
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

/* SCRIPT LOAD: its answer is "$40\r\n", then the name of the script. */
static int script_load(const struct load *l, char sha[41])
{
    struct buf ask = {0};
    char answer[64];
    buf_text(&ask, "*3\r\n");
    text_put(&ask, "SCRIPT");
    text_put(&ask, "LOAD");
    text_put(&ask, DEDUP_SCRIPT);
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    bool reached = fd >= 0 && connect(fd, (const struct sockaddr *)&l->to, sizeof l->to) == 0 &&
                   send(fd, ask.at, ask.len, MSG_NOSIGNAL) == (ssize_t)ask.len;
    bool loaded = reached && recv(fd, answer, 47, MSG_WAITALL) == 47 && memcmp(answer, "$40\r\n", 5) == 0;
    if (!loaded)
        fprintf(stderr, "queen bench: Redis on port %u does not take the script: %s\n", ntohs(l->to.sin_port),
                reached ? "unexpected answer" : strerror(errno));
    if (fd >= 0) close(fd);
    buf_free(&ask);
    if (!loaded) return BENCH_UNREACHABLE;
    memcpy(sha, answer + 5, 40);
    sha[40] = 0;
    return BENCH_OK;
}

int bench_redis(struct bench *b)
{
    struct redis_shared shared = {.bench = b};
    struct load l;
    bench_aim(b, &l);
    if (b->options.dedup) {
        int rc = script_load(&l, shared.script);
        if (rc != BENCH_OK) return rc;
    }
    load_add(&l, &redis_work, &shared, b->options.conns, b->options.rate / b->options.batch);
    return bench_run(b, &l, NULL, NULL);
}
