/* STEP: a transaction. First every part is judged, in the order acks, positions' queues, pushes, KV, against the state as it is;
 * nothing has been changed by then, so a refusal leaves nothing behind. Then every part is carried out, and last the next batch
 * is claimed. */
#include "base/planted.h"
#include "engine/engine_internal.h"

struct step {
    struct engine *e;
    struct arena *arena;
    struct step_result *r;
    struct step_command parts;
    struct push_command push;
    struct positions_command positions;
    struct ack_plan *acks;
    struct kv_plan *kv;
};

static bool refuse(struct step *s, enum step_refusal why, uint32_t failed)
{
    s->r->refusal = (uint8_t)why;
    s->r->failed = failed;
    return false;
}

static bool acks_judge(struct step *s)
{
    struct slice rest = s->parts.acks;
    struct command c;
    struct ack_command ack;
    uint32_t before = 0, failed;
    if (s->parts.ack_commands == 0) return true;
    s->acks = ack_plan_new(s->e, s->parts.ack_items, s->arena);
    s->r->acks.count = s->parts.ack_items;
    s->r->acks.items = arena_zero(s->arena, (s->parts.ack_items + 1) * sizeof s->r->acks.items[0]);
    while (command_next(&rest, &c)) {
        must(ack_open(&c, &ack)); /* step_decode has checked it */
        if (!ack_plan_add(s->acks, &ack, s->r->acks.items + before, &failed)) {
            return refuse(s, STEP_REJECTED_ACK, before + failed);
        }
        before += ack.item_count;
    }
    return true;
}

static bool positions_judge(struct step *s)
{
    if (!s->parts.has_positions) return true;
    must(positions_decode(&s->parts.positions, &s->positions));
    int64_t missing = positions_missing(s->e, &s->positions);
    return missing < 0 || refuse(s, STEP_QUEUE_NOT_FOUND, (uint32_t)missing);
}

static bool push_judge(struct step *s)
{
    uint32_t item;
    if (!s->parts.has_push) return true;
    must(push_decode(&s->parts.push, &s->push));
    return !push_duplicate(s->e, &s->push, &item, &s->r->offset) || refuse(s, STEP_DUPLICATE, item);
}

static bool kv_judge(struct step *s)
{
    struct kv_command kv;
    if (!s->parts.has_kv) return true;
    must(kv_decode(&s->parts.kv, &kv));
    s->kv = kv_plan_new(s->e, &kv, s->arena, &s->r->kv);
    return kv_plan_judge(s->kv) || refuse(s, STEP_KV_PRECONDITION, s->r->kv.failed);
}

static void commit(struct step *s, const struct command *c, uint64_t where)
{
    struct engine *e = s->e;
    if (s->acks != NULL) ack_plan_commit(s->acks);
    if (s->parts.has_push) {
        const struct command *push = &s->parts.push;
        push_do(e, push, &s->push, where + (uint64_t)(push->all.at - c->all.at), s->arena, &s->r->push);
    }
    if (s->parts.has_positions) positions_do(e, &s->positions);
    if (s->kv != NULL && !(PLANTED("torn-transaction") && e->wall_us % 8 == 0)) kv_plan_commit(s->kv);
    if (s->parts.has_timers) {
        struct timers_command timers;
        must(timers_decode(&s->parts.timers, &timers));
        timers_do(e, &timers, where + (uint64_t)(timers.ops.at - c->all.at), s->arena, &s->r->timers);
    }
    if (s->parts.has_pop) {
        struct pop_command pop;
        must(pop_decode(&s->parts.pop, &pop));
        pop_do(e, &pop, s->arena, &s->r->next);
    }
}

bool step_apply(struct engine *e, const struct command *c, uint64_t where, struct arena *arena, struct engine_result *r)
{
    struct step s = {.e = e, .arena = arena, .r = &r->step};
    if (!step_decode(c, &s.parts)) return false;
    r->step.refusal = STEP_COMMITTED;
    if (acks_judge(&s) && positions_judge(&s) && push_judge(&s) && kv_judge(&s)) commit(&s, c, where);
    if (s.parts.has_kv) kv_sweep(e, 16, e->wall_us);
    return true;
}
