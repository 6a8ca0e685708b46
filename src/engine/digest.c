/* The running digest: what every entry did, folded into one number. Nodes that applied the same entries have the same one, or have
 * grown apart. It covers results (offsets, verdicts, versions, claims) and the counters behind them, so that a difference in state shows at
 * the first entry whose outcome it touches, at the cost of a few multiplications a command. (engine_digest hashes all of the state, for tests.) */
#include "engine/engine_internal.h"

static inline uint64_t fold(uint64_t h, uint64_t v)
{
    h = (h ^ v) * UINT64_C(0x9e3779b97f4a7c15);
    return h ^ h >> 29;
}

static uint64_t fold_text(uint64_t h, struct slice s)
{
    return fold(h, hash64(s, 0));
}

static uint64_t fold_id(uint64_t h, struct uuid id)
{
    uint64_t half[2];
    memcpy(half, id.bytes, sizeof half);
    return fold(fold(h, half[0]), half[1]);
}

static uint64_t fold_push(uint64_t h, const struct push_result *r)
{
    for (uint32_t i = 0; i < r->count; i++) {
        h = fold(h, r->items[i].offset << 1 | r->items[i].status);
        h = fold_id(h, r->items[i].id);
    }
    return h;
}

static uint64_t fold_pop(uint64_t h, const struct pop_result *r)
{
    h = fold(h, r->messages);
    for (uint32_t i = 0; i < r->count; i++) {
        const struct claim *c = &r->claims[i];
        h = fold(fold(h, (uint64_t)c->partition << 32 | c->attempt), c->first_offset);
        h = fold(h, c->last_offset);
    }
    return h;
}

static uint64_t fold_ack(uint64_t h, const struct ack_result *r)
{
    for (uint32_t i = 0; i < r->count; i++) {
        const struct ack_outcome *o = &r->items[i];
        h = fold(h, (uint64_t)o->verdict << 2 | (uint64_t)o->lease_released << 1 | (uint64_t)o->dead_lettered);
    }
    return h;
}

static uint64_t fold_kv(uint64_t h, const struct kv_result *r)
{
    h = fold(h, (uint64_t)r->refused << 32 | r->failed);
    for (uint32_t i = 0; i < r->count; i++) {
        const struct kv_outcome *o = &r->items[i];
        h = fold(h, (uint64_t)o->applied << 9 | (uint64_t)o->found << 8 | o->reason);
        h = fold(h, o->version);
    }
    return h;
}

static uint64_t fold_timers(uint64_t h, const struct timers_result *r)
{
    for (uint32_t i = 0; i < r->count; i++) {
        h = fold(h, r->items[i].status);
        if (r->items[i].status == TIMER_SCHEDULED || r->items[i].status == TIMER_RESCHEDULED)
            h = fold(h, (uint64_t)r->items[i].due_us);
    }
    return h;
}

static uint64_t fold_locks(uint64_t h, const struct locks_result *r)
{
    for (uint32_t i = 0; i < r->count; i++) {
        const struct lock_outcome *o = &r->items[i];
        h = fold(h, (uint64_t)o->slot << 2 | (uint64_t)o->done << 1 | (uint64_t)o->already);
        h = fold(h, o->token);
    }
    return h;
}

static uint64_t fold_step(uint64_t h, const struct step_result *r)
{
    h = fold(h, (uint64_t)r->refusal << 32 | r->failed);
    h = fold_ack(h, &r->acks);
    if (r->refusal == STEP_KV_PRECONDITION) return fold_kv(h, &r->kv);
    if (r->refusal != STEP_COMMITTED) return fold(h, r->offset);
    h = fold_push(h, &r->push);
    h = fold_kv(h, &r->kv);
    h = fold_timers(h, &r->timers);
    return fold_pop(h, &r->next);
}

void digest_result(struct engine *e, const struct engine_result *r)
{
    uint64_t h = fold(e->digest, r->kind);
    switch ((enum command_kind)r->kind) {
    case COMMAND_PUSH:
        h = fold_push(h, &r->push);
        break;
    case COMMAND_POP:
        h = fold_pop(h, &r->pop);
        break;
    case COMMAND_ACK:
        h = fold_ack(h, &r->ack);
        break;
    case COMMAND_EXTEND:
        h = fold(fold(h, r->extend.renewed), (uint64_t)r->extend.expires_wall_us);
        break;
    case COMMAND_CONFIGURE:
        if (r->configure.refused != NULL) h = fold_text(h, slice_of(r->configure.refused));
        break;
    case COMMAND_QUEUE_DELETE:
        h = fold(h, r->queue_delete.existed);
        break;
    case COMMAND_KV:
        h = fold_kv(h, &r->kv);
        break;
    case COMMAND_TIMERS:
        h = fold_timers(h, &r->timers);
        break;
    case COMMAND_LOCKS:
        h = fold_locks(h, &r->locks);
        break;
    case COMMAND_STEP:
        h = fold_step(h, &r->step);
        break;
    case COMMAND_TICK:
        h = fold(h, (uint64_t)r->tick.fired << 32 | r->tick.duplicates);
        break;
    case COMMAND_SEEK:
    case COMMAND_GROUP_DELETE:
    case COMMAND_SUBSCRIPTION:
    case COMMAND_LETTERS_DELETE:
        h = fold(fold(h, r->changed.lanes), r->changed.more ? r->changed.next.after : 0);
        break;
    case COMMAND_LETTER_MOVE:
        h = fold(h, r->letter_move.fate);
        break;
    case COMMAND_TRIM:
        h = fold(fold(h, r->trim.lanes), r->trim.messages);
        break;
    case COMMAND_CLAIM_RETURN:
    case COMMAND_INIT:
    case COMMAND_POSITIONS:
    case COMMAND_ORIGINS:
    case COMMAND_DIGEST:
        break;
    }
    e->digest = h;
}

void digest_entry(struct engine *e, uint64_t index)
{
    uint64_t h = fold(e->digest, index);
    h = fold(h, (uint64_t)e->queue_last << 32 | e->group_last);
    h = fold(h, (uint64_t)e->partition_last << 32 | (uint32_t)e->dead_letter_last);
    h = fold(fold(h, e->kv_version), e->timer_last);
    e->digest = h == 0 ? 1 : h;
    e->digests[index % ENGINE_DIGESTS_KEPT] = e->digest;
}

/* The slots of indexes that were jumped over (raft's own entries) may be of older entries: only an entry of commands is ever asked about. */
bool digest_check(const struct engine *e, uint64_t index, uint64_t digest)
{
    if (index > e->applied_index || e->applied_index - index >= ENGINE_DIGESTS_KEPT) return true;
    uint64_t own = e->digests[index % ENGINE_DIGESTS_KEPT];
    return own == 0 || own == digest;
}

uint64_t engine_running_digest(const struct engine *e)
{
    return e->digest;
}
