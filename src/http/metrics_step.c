#include "http/metrics_step.h"

static void kv_count(struct edge_metrics *m, const struct kv_input *in, enum op_result result)
{
    must(in->op.kind < METRICS_KV_OPS);
    counter_add(&m->kv_ops[in->op.kind][result], 1);
}

static bool kv_reads(uint8_t kind)
{
    return kind == KV_GET || kind == KV_GET_MANY || kind == KV_GET_PREFIX;
}

static void kv_bytes_count(struct edge_metrics *m, const struct kv_input *in, const struct kv_outcome *o)
{
    uint64_t bytes = o->has_value ? o->value.len : 0;
    for (uint32_t i = 0; i < o->row_count; i++) bytes += o->rows[i].value.len;
    counter_add(&m->kv_bytes_out, bytes);
    if (o->applied && in->op.kind == KV_PUT) counter_add(&m->kv_bytes_in, in->op.value.len);
}

void metrics_kv(struct edge_metrics *m, const struct kv_inputs *in, const struct kv_result *result)
{
    for (uint32_t i = 0; i < in->count; i++) {
        const struct kv_input *op = &in->items[i];
        if (result == NULL) {
            kv_count(m, op, OP_ERROR);
        } else if (result->refused) {
            kv_count(m, op, OP_REJECTED);
        } else {
            const struct kv_outcome *o = &result->items[i];
            kv_count(m, op, o->applied || kv_reads(op->op.kind) ? OP_APPLIED : OP_REJECTED);
            kv_bytes_count(m, op, o);
        }
    }
}

void metrics_locks(struct edge_metrics *m, const struct lock_inputs *in, const struct locks_result *result)
{
    for (uint32_t i = 0; i < in->count; i++) {
        uint8_t kind = in->items[i].op.kind;
        must(kind < METRICS_LOCK_OPS);
        enum op_result what = OP_ERROR;
        if (result != NULL) what = kind == LOCK_GET || result->items[i].done ? OP_APPLIED : OP_REJECTED;
        counter_add(&m->lock_ops[kind][what], 1);
    }
}

void metrics_timers(struct edge_metrics *m, const struct timers_result *result)
{
    for (uint32_t i = 0; i < result->count; i++) {
        must(result->items[i].status < METRICS_TIMER_STATUSES);
        counter_add(&m->timer_ops[result->items[i].status], 1);
    }
}

void metrics_schedule_refused(struct edge_metrics *m, uint32_t status, bool rate)
{
    enum schedule_refusal why = SCHEDULE_UNAVAILABLE;
    if (rate) why = SCHEDULE_RATE_LIMITED;
    if (status == 400) why = SCHEDULE_SHAPE;
    if (status == 403) why = SCHEDULE_HORIZON;
    if (status == 413) why = SCHEDULE_TOO_LARGE;
    counter_add(&m->schedules_refused[why], 1);
}

void metrics_step(struct edge_metrics *m, const struct kv_inputs *kv, const struct step_result *result)
{
    static const struct kv_result refused = {.refused = true};
    if (result == NULL) {
        counter_add(&m->transactions[TRANSACTION_ERROR], 1);
        metrics_kv(m, kv, NULL);
        return;
    }
    must(result->refusal < TRANSACTION_MALFORMED);
    counter_add(&m->transactions[result->refusal], 1);
    if (result->refusal != STEP_COMMITTED) {
        metrics_kv(m, kv, &refused);
        return;
    }
    metrics_kv(m, kv, &result->kv);
    metrics_timers(m, &result->timers);
}
