#include <stdio.h>

#include "cli/bench.h"

static const char HEX[] = "0123456789abcdef";

static void digits_put(char *at, uint32_t digits, uint64_t v)
{
    for (uint32_t i = digits; i-- > 0;) {
        at[i] = (char)('0' + v % 10);
        v /= 10;
    }
}

static void hex_put(char *at, uint32_t digits, uint32_t v)
{
    for (uint32_t i = digits; i-- > 0;) {
        at[i] = HEX[v & 15];
        v >>= 4;
    }
}

/* Incompressible filling: a storage engine must not look better than it is. */
static void filling_put(struct buf *b, size_t bytes, uint64_t *seed)
{
    static const char alphabet[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";
    for (size_t i = 0; i < bytes; i++) {
        *seed = *seed * 6364136223846793005u + 1442695040888963407u;
        buf_byte(b, alphabet[*seed >> 58]);
    }
}

static void item_put(struct buf *b, const struct bench *bench, struct push_request *p, uint64_t *seed)
{
    size_t from = b->len;
    buf_printf(b, "{\"queue\":\"%s\",\"partition\":\"lane-", bench->queue);
    p->lane_at = (uint32_t)(b->len - from);
    buf_text(b, "00000000\",\"transactionId\":\"");
    p->id_at = (uint32_t)(b->len - from);
    buf_printf(b, "%s-000000000000\",\"payload\":", bench->run_id);
    size_t payload = b->len;
    buf_text(b, "{\"at\":\"");
    p->stamp_at = (uint32_t)(b->len - from);
    buf_text(b, "0000000000000000000\",\"d\":\"");
    filling_put(b, bench->options.size - (b->len - payload) - 2, seed);
    buf_text(b, "\"}");
    must(b->len - payload == bench->options.size);
    buf_text(b, "}");
    p->item_len = (uint32_t)(b->len - from) + 1;
}

void push_request_make(struct push_request *p, const struct bench *b, uint32_t conn, uint32_t batch)
{
    must(batch >= 1 && batch <= BENCH_BATCH_MAX && conn < 65536);
    *p = (struct push_request){.batch = batch, .conn = conn};
    struct buf items = {0};
    uint64_t seed = 88172645463325252u + conn;
    for (uint32_t i = 0; i < batch; i++) {
        item_put(&items, b, p, &seed);
        buf_byte(&items, i + 1 == batch ? ']' : ',');
    }
    buf_byte(&items, '}');
    struct buf all = {0};
    static const char open[] = "{\"items\":[";
    buf_printf(&all,
               "POST /api/v1/push HTTP/1.1\r\nHost: %s:%u\r\nContent-Type: application/json\r\nContent-Length: %zu\r\n"
               "\r\n%s",
               b->options.host, b->options.port, items.len + sizeof open - 1, open);
    p->head_len = (uint32_t)all.len;
    p->body_at = p->head_len - (uint32_t)(sizeof open - 1);
    buf_slice(&all, buf_view(&items));
    buf_free(&items);
    p->text = all.at;
    p->len = all.len;
    for (uint32_t i = 0; i < batch; i++) hex_put(p->text + p->head_len + i * p->item_len + p->id_at + 24, 4, conn);
}

struct slice push_request_body(const struct push_request *p)
{
    return slice_make(p->text + p->body_at, p->len - p->body_at);
}

void push_request_free(struct push_request *p)
{
    free(p->text);
    p->text = NULL;
}

void push_request_lane(struct push_request *p, uint32_t item, uint32_t lane)
{
    must(item < p->batch);
    digits_put(p->text + p->head_len + item * p->item_len + p->lane_at, PUSH_LANE_DIGITS, lane);
}

void push_request_id(struct push_request *p, uint32_t item, uint32_t counter)
{
    must(item < p->batch);
    hex_put(p->text + p->head_len + item * p->item_len + p->id_at + 28, 8, counter);
}

void push_request_stamp(struct push_request *p, uint32_t item, int64_t ns)
{
    must(item < p->batch);
    digits_put(p->text + p->head_len + item * p->item_len + p->stamp_at, PUSH_STAMP_DIGITS, (uint64_t)ns);
}

void push_request_renew(struct push_request *p)
{
    for (uint32_t i = 0; i < p->batch; i++) push_request_id(p, i, p->counter++);
}

uint32_t text_count(const char *at, size_t len, const char *text)
{
    size_t n = strlen(text);
    uint32_t count = 0;
    const char *end = at + len;
    while ((at = memmem(at, (size_t)(end - at), text, n)) != NULL) {
        count++;
        at += n;
    }
    return count;
}

struct slice text_value(const char *at, size_t len, const char *key)
{
    size_t n = strlen(key);
    const char *found = memmem(at, len, key, n);
    if (found == NULL) return (struct slice){0};
    found += n;
    const char *quote = memchr(found, '"', len - (size_t)(found - at));
    return quote == NULL ? (struct slice){0} : slice_make(found, (size_t)(quote - found));
}

const char *text_next(const char *at, const char *end, size_t stride, const char *key, size_t key_len)
{
    if (stride > 0) {
        for (ptrdiff_t shift = -1; shift <= 1; shift++) {
            const char *guess = at + (ptrdiff_t)stride + shift;
            if (guess + key_len < end && memcmp(guess, key, key_len) == 0) return guess;
        }
    }
    return memmem(at + 1, (size_t)(end - at - 1), key, key_len);
}

uint32_t ack_request_make(struct buf *out, const struct bench *b, const char *body, size_t len, bool one_lane)
{
    static const char key[] = "\"transactionId\":\"";
    static const char pad[] = "00000000";
    struct slice lease = text_value(body, len, "\"leaseId\":\"");
    struct slice lane = text_value(body, len, "\"partitionId\":\"");
    if (lease.len == 0 || lane.len == 0) return 0;
    buf_clear(out);
    buf_printf(out, "POST /api/v1/ack/batch HTTP/1.1\r\nHost: %s:%u\r\nContent-Type: application/json\r\nContent-Length: ",
               b->options.host, b->options.port);
    size_t length_at = out->len;
    buf_text(out, pad);
    buf_text(out, "\r\n\r\n");
    size_t body_at = out->len;
    buf_printf(out, "{\"consumerGroup\":\"%s\",\"acknowledgments\":[", b->options.group);
    uint32_t count = 0;
    const char *end = body + len;
    const char *last = NULL;
    for (const char *at = memmem(body, len, key, sizeof key - 1); at != NULL;) {
        struct slice id = text_value(at, (size_t)(end - at), key);
        if (id.at == NULL) return 0;
        if (!one_lane) lane = text_value(at, (size_t)(end - at), "\"partitionId\":\"");
        if (lane.at == NULL) return 0;
        buf_text(out, count == 0 ? "{\"transactionId\":\"" : ",{\"transactionId\":\"");
        buf_slice(out, id);
        buf_text(out, "\",\"partitionId\":\"");
        buf_slice(out, lane);
        buf_text(out, "\",\"leaseId\":\"");
        buf_slice(out, lease);
        buf_text(out, "\",\"status\":\"completed\"}");
        count++;
        const char *next = text_next(at, end, last == NULL ? 0 : (size_t)(at - last), key, sizeof key - 1);
        last = at;
        at = next;
    }
    buf_text(out, "]}");
    digits_put(out->at + length_at, sizeof pad - 1, out->len - body_at);
    return count;
}
