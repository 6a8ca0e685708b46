#include <stdio.h>

#include "cli/bench_step.h"
#include "cli/json_view.h"

enum {
    CHECK_LANES = 8,
    CHECK_MARKERS = 200, /* of one lane, in one call */
};

static int check_failed(const char *what, uint64_t found, uint64_t wanted)
{
    fprintf(stderr, "queen bench: %s: %llu, expected %llu\n", what, (unsigned long long)found, (unsigned long long)wanted);
    return BENCH_REFUSED;
}

static int outputs_count(struct step_shared *s, uint64_t *out)
{
    struct bench *b = s->bench;
    char path[300];
    snprintf(path, sizeof path, "/api/v1/resources/queues/%s", s->out.queue);
    int rc = bench_call(b, "GET", path, NULL, 200);
    if (rc != BENCH_OK) return rc;
    static const char totals[] = "\"totals\":{\"total\":";
    const char *at = memmem(b->client.body.at, b->client.body.len, totals, sizeof totals - 1);
    *out = at == NULL ? 0 : strtoull(at + sizeof totals - 1, NULL, 10);
    return BENCH_OK;
}

/* The ids of all messages of a lane in order, BENCH_ID_BYTES each, read by a group of its own. */
static int lane_read(struct step_shared *s, const char *queue, uint32_t lane, struct buf *ids)
{
    static const char key[] = "\"transactionId\":\"";
    struct bench *b = s->bench;
    char path[400];
    snprintf(path, sizeof path,
             "/api/v1/pop/queue/%s/partition/lane-%08u?batch=20000&autoAck=true&consumerGroup=bench-check&subscriptionMode=all",
             queue, lane);
    buf_clear(ids);
    for (;;) {
        if (client_call(&b->client, "GET", slice_of(path), slice_of(""), 60000) != CLIENT_ANSWERED) {
            fprintf(stderr, "queen bench: GET %s: %s\n", path, b->client.error);
            return BENCH_UNREACHABLE;
        }
        if (b->client.status == 204) return BENCH_OK;
        if (b->client.status != 200) return check_failed("reading a lane: status", b->client.status, 200);
        const char *at = b->client.body.at;
        const char *end = at + b->client.body.len;
        for (at = memmem(at, (size_t)(end - at), key, sizeof key - 1); at != NULL;) {
            struct slice id = text_value(at, (size_t)(end - at), key);
            if (id.len != BENCH_ID_BYTES) return check_failed("length of a transactionId", id.len, BENCH_ID_BYTES);
            buf_slice(ids, id);
            at = text_next(at, end, 0, key, sizeof key - 1);
        }
    }
}

/* The markers of the first steps of a lane: named by every batch-th input. */
static int markers_check(struct step_shared *s, const struct buf *ids)
{
    struct bench *b = s->bench;
    struct buf body = {0};
    size_t stride = (size_t)b->options.batch * BENCH_ID_BYTES;
    uint32_t asked = 0;
    buf_text(&body, "[{\"op\":\"getMany\",\"ns\":\"bench-once\",\"keys\":[");
    for (size_t at = 0; at + BENCH_ID_BYTES <= ids->len && asked < CHECK_MARKERS; at += stride, asked++) {
        if (asked > 0) buf_byte(&body, ',');
        view_quote(&body, slice_make(ids->at + at, BENCH_ID_BYTES));
    }
    buf_text(&body, "]}]");
    buf_byte(&body, 0);
    int rc = asked == 0 ? BENCH_OK : bench_call(b, "POST", "/api/v1/kv", body.at, 200);
    buf_free(&body);
    if (rc != BENCH_OK || asked == 0) return rc;
    uint32_t found = text_count(b->client.body.at, b->client.body.len, "\"version\":");
    if (found == asked && text_count(b->client.body.at, b->client.body.len, "\"missing\":[]") == 1) return BENCH_OK;
    return check_failed("once markers of a lane", found, asked);
}

static int lane_check(struct step_shared *s, uint32_t lane, uint64_t *outputs)
{
    struct buf in = {0};
    struct buf out = {0};
    int rc = lane_read(s, s->bench->queue, lane, &in);
    if (rc == BENCH_OK) rc = lane_read(s, s->out.queue, lane, &out);
    if (rc == BENCH_OK && (out.len > in.len || (out.len > 0 && memcmp(in.at, out.at, out.len) != 0))) {
        fprintf(stderr, "queen bench: the outputs of lane %u are not its inputs in order\n", lane);
        rc = BENCH_REFUSED;
    }
    if (rc == BENCH_OK && atomic_load(&s->short_steps) == 0) {
        if (out.len % ((size_t)s->bench->options.batch * BENCH_ID_BYTES) != 0) {
            rc = check_failed("outputs of a lane that make no whole step", out.len / BENCH_ID_BYTES, 0);
        } else {
            rc = markers_check(s, &out);
        }
    }
    *outputs += out.len / BENCH_ID_BYTES;
    buf_free(&in);
    buf_free(&out);
    return rc;
}

int step_check(struct step_shared *s)
{
    struct bench *b = s->bench;
    uint64_t found = 0;
    int rc = outputs_count(s, &found);
    if (rc != BENCH_OK) return rc;
    uint64_t wanted = atomic_load(&s->messages);
    if (found != wanted) return check_failed("outputs", found, wanted);
    uint64_t compared = 0;
    uint32_t lanes = b->options.lanes < CHECK_LANES ? b->options.lanes : CHECK_LANES;
    for (uint32_t i = 0; i < lanes && rc == BENCH_OK; i++) {
        rc = lane_check(s, (uint32_t)((uint64_t)b->options.lanes * i / lanes), &compared);
    }
    if (rc == BENCH_OK) {
        report_count(&b->report, "outputs_found", found);
        report_count(&b->report, "outputs_compared", compared);
    }
    return rc;
}
