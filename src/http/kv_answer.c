#include "http/kv_answer.h"

#include "http/answer.h"
#include "http/edge.h"
#include "http/kv_rates.h"
#include "http/render.h"

void kv_answer_refusal(struct request *r, const struct ops_refusal *why)
{
    answer_error(r, why->status, NULL, ""); /* clears what there was */
    buf_clear(&r->out);
    buf_text(&r->out, "{\"error\":\"");
    buf_text(&r->out, why->error);
    if (why->reason != NULL) {
        buf_text(&r->out, "\",\"reason\":\"");
        buf_text(&r->out, why->reason);
    }
    buf_text(&r->out, "\",\"detail\":");
    render_text(&r->out, slice_of(why->detail));
    buf_byte(&r->out, '}');
}

void ops_answer_failure(struct request *r, uint32_t status, const char *error, const char *reason, const char *detail)
{
    struct ops_refusal why = {.status = status, .error = error, .reason = reason};
    must(strlen(detail) < sizeof why.detail);
    memcpy(why.detail, detail, strlen(detail) + 1);
    kv_answer_refusal(r, &why);
    if (status == 503) r->retry_after_s = 1;
}

bool ops_answer_outcome(struct request *r, const struct ops_family *f)
{
    switch (r->call.outcome) {
    case CALL_OK:
        return true;
    case CALL_OVERLOADED:
        ops_answer_failure(r, 429, "overloaded", NULL, "the broker has more work than it admits: try again later");
        r->retry_after_s = r->call.retry_after_s == 0 ? 1 : r->call.retry_after_s;
        return false;
    case CALL_STORAGE_FULL:
        ops_answer_failure(r, 507, "storage_full", NULL, "the disk is above its high-water mark");
        return false;
    case CALL_TIMEOUT:
        ops_answer_failure(r, 503, f->unavailable, f->timeout, "the deadline passed: a write may still happen");
        return false;
    case CALL_NO_LEADER:
        ops_answer_failure(r, 503, f->unavailable, f->no_leader, "the broker is starting or stopping");
        return false;
    case CALL_UNKNOWN:
        ops_answer_failure(r, 503, f->unavailable, f->retry, "the outcome is not known: a write may have happened");
        return false;
    case CALL_CANCELLED: /* only after the client left, and then nobody asks; said anyway so that no request stays unanswered */
        ops_answer_failure(r, 503, f->unavailable, f->retry, "the request was given up");
        return false;
    case CALL_EMPTY: /* of pops */
    case CALL_DAMAGED:
        break;
    }
    ops_answer_failure(r, 500, f->error, NULL, "the broker failed: see its log");
    return false;
}

bool kv_answer_outcome(struct request *r)
{
    static const struct ops_family kv = {.unavailable = "kv_unavailable",
                                         .timeout = "kv_timeout",
                                         .no_leader = "kv_no_leader",
                                         .retry = "kv_retry",
                                         .error = "kv_error"};
    return ops_answer_outcome(r, &kv);
}

bool kv_answer_rate(struct request *r, bool writes)
{
    uint32_t wait_s = kv_rates_take(r->http->kv_rates, r->tenant, writes ? KV_RATE_WRITE : KV_RATE_READ, r->run_us);
    if (wait_s == 0) return true;
    if (!writes) counter_add(&edge_metrics_of(r->edge)->kv_reads_limited, 1);
    ops_answer_failure(r, 429, "rate_limited", NULL, writes ? "too many write calls" : "too many read calls");
    r->retry_after_s = wait_s;
    return false;
}
