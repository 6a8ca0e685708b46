#include <stdio.h>

#include "cli/bench_step.h"

struct step_conn {
    struct push_request outputs; /* the items are taken from it; ids, lanes and stamps are patched in place */
    struct buf request;
    char value[64]; /* of the KV put, quotes included */
    uint64_t seed;
    uint32_t messages; /* of the transaction under way; 0: a pop is */
    uint32_t answers;
    struct buf ack; /* of a consumer */
};

static uint64_t seed_next(uint64_t *seed)
{
    *seed = *seed * 6364136223846793005u + 1442695040888963407u;
    return *seed >> 33;
}

struct step_conn *step_conn_make(const struct step_shared *s, uint32_t index)
{
    struct step_conn *w = calloc(1, sizeof *w);
    must(w != NULL);
    w->seed = 0x9e3779b97f4a7c15u * (index + 1);
    push_request_make(&w->outputs, &s->out, index, s->bench->options.batch);
    w->value[0] = w->value[sizeof w->value - 1] = '"';
    for (size_t i = 1; i + 1 < sizeof w->value; i++) w->value[i] = (char)('a' + seed_next(&w->seed) % 26);
    return w;
}

void step_conn_free(struct step_conn *w)
{
    if (w == NULL) return;
    push_request_free(&w->outputs);
    buf_free(&w->request);
    buf_free(&w->ack);
    free(w);
}

static void step_open(struct load_conn *c)
{
    c->work = step_conn_make(c->group->shared, c->index);
}

static void step_close(struct load_conn *c)
{
    step_conn_free(c->work);
}

/* ---- the transaction ---- */

/* Where a pop's answer says what a step needs. */
struct claim {
    struct slice lease, lane, partition;
    const char *messages, *end;
};

static bool claim_read(struct claim *k, const char *body, size_t len)
{
    k->lease = text_value(body, len, "\"leaseId\":\"");
    k->lane = text_value(body, len, "\"partitionId\":\"");
    k->partition = text_value(body, len, "\"partition\":\"");
    k->messages = memmem(body, len, "\"messages\":[", 12);
    k->end = body + len;
    return k->lease.len > 0 && k->lane.len > 0 && k->lane.len < 24 && k->partition.len == STEP_PARTITION_BYTES &&
           k->messages != NULL;
}

/* Appends an ack of one message and puts its id, lane and time stamp into the output of the same number. */
static bool message_take(struct step_conn *w, const struct step_shared *s, const struct claim *k, const char *at, uint32_t i,
                         struct slice ack)
{
    struct slice id = text_value(at, (size_t)(k->end - at), "\"transactionId\":\"");
    if (id.len != BENCH_ID_BYTES) return false;
    buf_slice(&w->request, ack);
    buf_slice(&w->request, id);
    buf_text(&w->request, "\"},");
    char *item = w->outputs.text + w->outputs.head_len + (size_t)i * w->outputs.item_len;
    memcpy(item + w->outputs.id_at, id.at, id.len);
    memcpy(item + w->outputs.lane_at, k->partition.at + STEP_PARTITION_BYTES - PUSH_LANE_DIGITS, PUSH_LANE_DIGITS);
    if (!s->paced) return true;
    struct slice stamp = text_value(at, (size_t)(k->end - at), "\"at\":\"");
    if (stamp.len != PUSH_STAMP_DIGITS) return false;
    memcpy(item + w->outputs.stamp_at, stamp.at, stamp.len);
    return true;
}

/* Appends the acks. Returns their number, 0: not understood. *first: the first message's id. */
static uint32_t acks_put(struct step_conn *w, const struct step_shared *s, const struct claim *k, struct slice *first)
{
    static const char key[] = "\"transactionId\":\"";
    char text[256];
    int n =
        snprintf(text, sizeof text, "{\"type\":\"ack\",\"partitionId\":\"%.*s\",\"consumerGroup\":\"%s\",\"transactionId\":\"",
                 (int)k->lane.len, k->lane.at, s->bench->options.group);
    must(n > 0 && (size_t)n < sizeof text);
    uint32_t count = 0;
    const char *last = NULL;
    const char *at = memmem(k->messages, (size_t)(k->end - k->messages), key, sizeof key - 1);
    if (at == NULL) return 0;
    *first = text_value(at, (size_t)(k->end - at), key);
    while (at != NULL) {
        if (count == w->outputs.batch || !message_take(w, s, k, at, count, slice_make(text, (size_t)n))) return 0;
        count++;
        const char *next = text_next(at, k->end, last == NULL ? 0 : (size_t)(at - last), key, sizeof key - 1);
        last = at;
        at = next;
    }
    return count;
}

static void kv_put(struct step_conn *w, const struct step_shared *s, struct slice first)
{
    struct buf *b = &w->request;
    char key[16];
    uint64_t v = seed_next(&w->seed) % s->bench->options.keys;
    for (int i = 7; i >= 0; i--, v /= 10) key[i] = (char)('0' + v % 10);
    buf_text(b, "\"kv\":[{\"op\":\"put\",\"ns\":\"bench\",\"key\":\"k-");
    buf_put(b, key, 8);
    buf_text(b, "\",\"forever\":true,\"value\":");
    buf_put(b, w->value, sizeof w->value);
    buf_text(b, "},{\"op\":\"putIfAbsent\",\"ns\":\"bench-once\",\"key\":\"");
    buf_slice(b, first);
    buf_text(b, "\",\"value\":1,\"ttlSeconds\":3600,\"required\":true}]");
}

uint32_t step_request_make(struct step_conn *w, const struct step_shared *s, const char *body, size_t len,
                           struct slice *request)
{
    static const char pad[] = "00000000";
    const struct bench_options *o = &s->bench->options;
    struct buf *b = &w->request;
    struct claim k;
    struct slice first = {0};
    if (!claim_read(&k, body, len)) return 0;
    buf_clear(b);
    buf_text(b, "POST /api/v1/transaction HTTP/1.1\r\nHost: ");
    buf_text(b, o->host);
    buf_text(b, "\r\nContent-Type: application/json\r\nContent-Length: ");
    size_t length_at = b->len;
    buf_text(b, pad);
    buf_text(b, "\r\n\r\n");
    size_t body_at = b->len;
    buf_text(b, "{\"requiredLeases\":[\"");
    buf_slice(b, k.lease);
    buf_text(b, "\"],\"operations\":[");
    uint32_t count = acks_put(w, s, &k, &first);
    if (count == 0) return 0;
    buf_text(b, "{\"type\":\"push\",\"items\":[");
    buf_put(b, w->outputs.text + w->outputs.head_len, (size_t)count * w->outputs.item_len - 1);
    buf_text(b, "]}],");
    kv_put(w, s, first);
    buf_slice(b, buf_view(&s->next));
    buf_byte(b, '}');
    size_t length = b->len - body_at;
    for (size_t i = sizeof pad - 1; i-- > 0; length /= 10) b->at[length_at + i] = (char)('0' + length % 10);
    *request = buf_view(b);
    return count;
}

/* ---- a worker ---- */

static bool step_begin(struct load_conn *c)
{
    struct step_shared *s = c->group->shared;
    struct step_conn *w = c->work;
    if (w->messages > 0) atomic_fetch_sub(&s->committing, 1); /* its connection broke */
    w->messages = 0;
    if (atomic_load_explicit(&s->stopping, memory_order_relaxed)) return false;
    c->out = s->pop.at;
    c->out_len = s->pop.len;
    return true;
}

/* Goes on with the batch in a pop's answer, whether it came alone or as `next`. */
static enum load_verdict batch_go(struct load_conn *c, const struct load_answer *a, const char *at, size_t len)
{
    struct step_shared *s = c->group->shared;
    struct step_conn *w = c->work;
    struct slice request;
    if (atomic_load(&s->stopping)) return LOAD_DONE; /* its lease is left */
    uint32_t count = step_request_make(w, s, at, len, &request);
    if (count == 0) {
        load_complain(c, "a pop that is not understood", a);
        return LOAD_DONE;
    }
    w->messages = count;
    atomic_fetch_add(&s->committing, 1);
    c->out = request.at;
    c->out_len = request.len;
    return LOAD_AGAIN;
}

static enum load_verdict step_popped(struct load_conn *c, const struct load_answer *a, int64_t now_ns)
{
    struct step_shared *s = c->group->shared;
    enum load_verdict verdict = LOAD_DONE;
    if (a->status == 204) {
        if (s->paced) return LOAD_DONE;
        c->wake_ns = now_ns + 1000000; /* every lane that holds something is leased */
        c->start_ns = c->wake_ns;
        return LOAD_PAUSE;
    }
    if (!load_expect(c, a, 200, now_ns, &verdict)) return verdict;
    return batch_go(c, a, a->body, a->body_len);
}

/* One answer in some is read whole. */
static bool commit_whole(const struct load_answer *a, uint32_t messages)
{
    return text_count(a->body, a->body_len, "\"type\":\"ack\"") == messages &&
           text_count(a->body, a->body_len, "\"type\":\"push\"") == messages &&
           text_count(a->body, a->body_len, "\"duplicate\":true") == 0 &&
           text_count(a->body, a->body_len, "\"applied\":true") == 2;
}

static enum load_verdict step_committed(struct load_conn *c, const struct load_answer *a, int64_t now_ns)
{
    struct step_shared *s = c->group->shared;
    struct step_conn *w = c->work;
    struct load_counts *n = load_counts(c);
    enum load_verdict verdict = LOAD_DONE;
    if (!load_expect(c, a, 200, now_ns, &verdict)) return verdict;
    uint32_t messages = w->messages;
    w->messages = 0;
    atomic_fetch_sub(&s->committing, 1);
    const char *results = memmem(a->body, a->body_len, "\"results\":", 10);
    size_t head = results == NULL ? a->body_len : (size_t)(results - a->body);
    bool whole = memmem(a->body, head, "\"success\":true", 14) != NULL;
    if (whole && w->answers++ % BENCH_CHECK_EVERY == 0) {
        n->checked++;
        whole = commit_whole(a, messages);
    }
    if (!whole) {
        load_complain(c, "a step was not committed whole", a);
        return LOAD_DONE;
    }
    atomic_fetch_add_explicit(&s->steps, 1, memory_order_relaxed);
    atomic_fetch_add_explicit(&s->messages, messages, memory_order_relaxed);
    if (messages != w->outputs.batch) atomic_fetch_add_explicit(&s->short_steps, 1, memory_order_relaxed);
    if (load_measures(c, now_ns)) {
        n->operations++;
        n->messages += messages;
        if (!s->paced) hist_add(&n->latency, now_ns - c->start_ns);
        if (s->next.len == 0) hist_add(&n->second, now_ns - c->sent_ns);
    }
    if (s->next.len == 0) return LOAD_DONE;
    const char *next = memmem(a->body + head, a->body_len - head, "\"next\":{", 8);
    if (next == NULL) {
        load_complain(c, "a commit without its next", a);
        return LOAD_DONE;
    }
    size_t len = a->body_len - (size_t)(next - a->body);
    size_t fields = len < STEP_NEXT_FIELDS_BYTES ? len : STEP_NEXT_FIELDS_BYTES;
    if (memmem(next, fields, "\"messages\":[]", 13) != NULL) return LOAD_DONE; /* the next pop waits */
    c->start_ns = now_ns;
    return batch_go(c, a, next, len);
}

static enum load_verdict step_reply(struct load_conn *c, const struct load_answer *a, int64_t now_ns)
{
    struct step_conn *w = c->work;
    return w->messages == 0 ? step_popped(c, a, now_ns) : step_committed(c, a, now_ns);
}

const struct load_work step_work = {
    .open = step_open,
    .begin = step_begin,
    .reply = step_reply,
    .close = step_close,
};

/* ---- a consumer of the outputs ---- */

static void consume_open(struct load_conn *c)
{
    c->work = calloc(1, sizeof(struct step_conn));
    must(c->work != NULL);
}

static bool consume_begin(struct load_conn *c)
{
    struct step_shared *s = c->group->shared;
    struct step_conn *w = c->work;
    w->messages = 0;
    c->out = s->consume.at;
    c->out_len = s->consume.len;
    return true;
}

static enum load_verdict consume_popped(struct load_conn *c, const struct load_answer *a, int64_t now_ns)
{
    static const char key[] = "\"at\":\"";
    struct step_shared *s = c->group->shared;
    struct step_conn *w = c->work;
    enum load_verdict verdict = LOAD_DONE;
    if (a->status == 204) return LOAD_DONE;
    if (!load_expect(c, a, 200, now_ns, &verdict)) return verdict;
    uint32_t count = ack_request_make(&w->ack, &s->out, a->body, a->body_len, true);
    bool measured = load_measures(c, now_ns);
    const char *end = a->body + a->body_len;
    uint32_t stamps = 0;
    for (const char *at = a->body; (at = memmem(at, (size_t)(end - at), key, sizeof key - 1)) != NULL; at++, stamps++) {
        int64_t due_ns = strtoll(at + sizeof key - 1, NULL, 10);
        if (measured) hist_add(&load_counts(c)->latency, now_ns - due_ns);
    }
    if (count == 0 || stamps != count) {
        load_complain(c, "outputs that are not understood", a);
        return LOAD_DONE;
    }
    w->messages = count;
    c->out = w->ack.at;
    c->out_len = w->ack.len;
    return LOAD_AGAIN;
}

static enum load_verdict consume_reply(struct load_conn *c, const struct load_answer *a, int64_t now_ns)
{
    struct step_shared *s = c->group->shared;
    struct step_conn *w = c->work;
    enum load_verdict verdict = LOAD_DONE;
    if (w->messages == 0) return consume_popped(c, a, now_ns);
    if (!load_expect(c, a, 200, now_ns, &verdict)) return verdict;
    if (text_count(a->body, a->body_len, "\"success\":true") != w->messages) {
        load_complain(c, "an ack was not honoured whole", a);
        return LOAD_DONE;
    }
    atomic_fetch_add(&s->consumed, w->messages);
    return LOAD_DONE;
}

const struct load_work step_consume_work = {
    .open = consume_open,
    .begin = consume_begin,
    .reply = consume_reply,
    .close = step_close,
};
