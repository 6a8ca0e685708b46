/* Parked callers: long polls that wait for a lane.
 *
 *   queue_wait (tenant, queue) -> group_wait (group) -> parked: callers of any lane, oldest first
 *                                                    -> lane_wait (partition) -> parked: callers pinned to it
 *
 * A caller is granted a pop (it goes into the next entry) only for a lane that is claimable and not already promised to a pop on its
 * way: lanes_in_flight counts the promised ones. It is woken by
 *   - a push in the entry being gathered that arms a lane, an ack that frees one, a step that does either, or a tick whose timers
 *     push: the pop is placed right behind it (hand-off in one commit). What a step's own next will take is left to it,
 *   - the engine's `ready` after an entry: exactly as many callers as lanes,
 *   - time: one timer at the earliest lease end or delay of the groups and pinned lanes that have parked callers,
 *   - another pop that came back and left lanes.
 *
 * A granted pop that comes back empty parks again in its old place. That alone is no reason to grant again (a forecast may be too
 * hopeful): only a new event or time is, so nothing can go round in circles.
 *
 * Groups the engine does not know yet (pinned callers of a new group, callers of a deleted queue) wait under their names; a push to
 * their lane serves them. Callers of a group that was deleted while its queue stays are as newcomers of an unknown group: the oldest one
 * makes it known again.
 *
 * Cost: a call is its own list node; nothing walks over all parked callers, but once when their queue or group is deleted or the broker
 * stops. */
#include <stdlib.h>

#include "base/hash.h"
#include "broker/broker_internal.h"

enum { FUTILE_US = 10000, FUTILE_STEPS_MAX = 7, GRANTS_A_TURN_MAX = BATCH_COMMANDS_MAX, LANE_LOOKS_MAX = 256 };

/* ---- finding and making ------------------------------------------------------------------------------------------ */

static uint64_t queue_hash(struct uuid tenant, struct slice queue)
{
    return hash64(queue, hash64(slice_make(tenant.bytes, sizeof tenant.bytes), 0));
}

static struct queue_wait *queue_find(const struct parked *p, uint64_t hash, struct uuid tenant, struct slice queue)
{
    struct hash_node *n = hash_table_find(&p->queues, hash);
    for (; n != NULL; n = hash_table_again(n)) {
        struct queue_wait *q = owner_of(n, struct queue_wait, node);
        if (uuid_equal(q->tenant, tenant) && slice_equal(q->name, queue)) return q;
    }
    return NULL;
}

/* A zeroed record with a copy of a name behind it. */
static void *record_new(size_t bytes, struct slice name, struct slice *copy)
{
    char *r = calloc(1, bytes + name.len);
    must(r != NULL);
    if (name.len > 0) memcpy(r + bytes, name.at, name.len);
    *copy = slice_make(r + bytes, name.len);
    return r;
}

static struct queue_wait *queue_get(struct parked *p, struct uuid tenant, struct slice queue)
{
    uint64_t hash = queue_hash(tenant, queue);
    struct queue_wait *q = queue_find(p, hash, tenant, queue);
    if (q != NULL) return q;
    struct slice name;
    q = record_new(sizeof *q, queue, &name);
    q->tenant = tenant;
    q->name = name;
    hash_table_put(&p->queues, &q->node, hash);
    return q;
}

static struct group_wait *group_find(const struct parked *p, const struct queue_wait *q, uint64_t hash, struct slice group)
{
    struct hash_node *n = hash_table_find(&p->groups_by_name, hash);
    for (; n != NULL; n = hash_table_again(n)) {
        struct group_wait *w = owner_of(n, struct group_wait, by_name);
        if (w->queue == q && slice_equal(w->name, group)) return w;
    }
    return NULL;
}

static struct group_wait *group_get(struct broker *b, const struct pop_command *pop)
{
    struct parked *p = &b->parked;
    struct queue_wait *q = queue_get(p, pop->tenant, pop->queue);
    uint64_t hash = hash64(pop->group, q->node.hash);
    struct group_wait *w = group_find(p, q, hash, pop->group);
    if (w != NULL) return w;
    struct slice name;
    w = record_new(sizeof *w, pop->group, &name);
    w->name = name;
    w->queue = q;
    w->id = ++p->group_ids;
    w->queue_next = q->groups;
    if (q->groups != NULL) q->groups->queue_previous = w;
    q->groups = w;
    hash_table_put(&p->groups_by_name, &w->by_name, hash);
    return w;
}

static uint64_t lane_hash(const struct group_wait *w, struct slice partition)
{
    return hash64(partition, w->id);
}

static struct lane_wait *lane_find(const struct parked *p, const struct group_wait *w, struct slice partition)
{
    struct hash_node *n = hash_table_find(&p->lanes, lane_hash(w, partition));
    for (; n != NULL; n = hash_table_again(n)) {
        struct lane_wait *l = owner_of(n, struct lane_wait, node);
        if (l->group == w && slice_equal(l->name, partition)) return l;
    }
    return NULL;
}

static void lane_link(struct group_wait *w, struct lane_wait *l)
{
    l->next = NULL;
    l->previous = w->lanes_last;
    if (w->lanes_last != NULL) {
        w->lanes_last->next = l;
    } else {
        w->lanes_first = l;
    }
    w->lanes_last = l;
    w->lane_count++;
}

static void lane_unlink(struct group_wait *w, struct lane_wait *l)
{
    if (l->previous != NULL) {
        l->previous->next = l->next;
    } else {
        w->lanes_first = l->next;
    }
    if (l->next != NULL) {
        l->next->previous = l->previous;
    } else {
        w->lanes_last = l->previous;
    }
    w->lane_count--;
}

static struct lane_wait *lane_get(struct parked *p, struct group_wait *w, struct slice partition)
{
    struct lane_wait *l = lane_find(p, w, partition);
    if (l != NULL) return l;
    struct slice name;
    l = record_new(sizeof *l, partition, &name);
    l->group = w;
    l->name = name;
    hash_table_put(&p->lanes, &l->node, lane_hash(w, partition));
    lane_link(w, l);
    return l;
}

/* Gone when nothing holds it any more. */
static void lane_release(struct parked *p, struct lane_wait *l)
{
    if (l == NULL || l->dirty || l->refs > 0 || l->pops_in_flight > 0 || l->parked.count > 0) return;
    heap_remove(&p->lanes_due, &l->due);
    lane_unlink(l->group, l);
    hash_table_remove(&p->lanes, &l->node);
    free(l);
}

static void group_number_set(struct parked *p, struct group_wait *w, uint32_t number)
{
    if (w->number == number) return;
    if (w->number != 0) hash_table_remove(&p->groups_by_number, &w->by_number);
    w->number = number;
    if (number != 0) hash_table_put(&p->groups_by_number, &w->by_number, number);
}

static void group_release(struct parked *p, struct group_wait *w)
{
    if (w->dirty || w->refs > 0 || w->pops_in_flight > 0 || w->parked_count > 0 || w->lane_count > 0) return;
    struct queue_wait *q = w->queue;
    group_number_set(p, w, 0);
    heap_remove(&p->groups_due, &w->due);
    hash_table_remove(&p->groups_by_name, &w->by_name);
    if (w->queue_previous != NULL) {
        w->queue_previous->queue_next = w->queue_next;
    } else {
        q->groups = w->queue_next;
    }
    if (w->queue_next != NULL) w->queue_next->queue_previous = w->queue_previous;
    free(w);
    if (q->groups != NULL) return;
    hash_table_remove(&p->queues, &q->node);
    free(q);
}

static void group_resolve(struct broker *b, struct group_wait *w)
{
    if (w->number != 0) return;
    group_number_set(&b->parked, w, engine_group_find(b->engine, w->queue->tenant, w->queue->name, w->name));
}

static void group_mark(struct parked *p, struct group_wait *w, uint8_t reasons)
{
    w->reasons |= reasons;
    if (w->dirty) return;
    w->dirty = true;
    w->dirty_next = p->dirty_groups;
    p->dirty_groups = w;
}

static void lane_mark(struct parked *p, struct lane_wait *l)
{
    if (l->dirty) return;
    l->dirty = true;
    l->dirty_next = p->dirty_lanes;
    p->dirty_lanes = l;
}

/* ---- one caller --------------------------------------------------------------------------------------------------- */

static uint32_t pop_lanes(const struct pop_command *p)
{
    if (p->scope == POP_PARTITION) return 1;
    return p->batch < p->partitions ? p->batch : p->partitions;
}

static void pop_choose(struct broker *b, struct call *c)
{
    if (c->choose_batch) c->pop.batch = 0;
    if (c->choose_partitions) c->pop.partitions = 0;
    if (c->choose_batch || c->choose_partitions) {
        engine_autopilot(b->engine, &c->pop, c->choose_batch, c->choose_partitions, b->now);
    }
    /* A conflating group is not steered: then it is as if nothing had been asked for. */
    if (c->pop.batch == 0 || c->pop.partitions == 0) {
        if (c->choose_batch) c->pop.batch = POP_BATCH_DEFAULT;
        if (c->choose_partitions) c->pop.partitions = 1;
        c->choose_batch = c->choose_partitions = false;
    }
    must(c->pop.batch > 0 && c->pop.partitions > 0 && c->pop.partitions <= POP_PARTITIONS_MAX);
}

/* Into the next entry, with `lanes` promised. */
static void pop_grant(struct broker *b, struct call *c, uint32_t lanes)
{
    c->lanes = lanes;
    c->group->lanes_in_flight += lanes;
    c->group->pops_in_flight++;
    if (c->lane != NULL) c->lane->pops_in_flight++;
    inbox_queue(b, c);
}

static void pop_return(struct broker *b, struct call *c)
{
    struct group_wait *w = c->group;
    must(w->pops_in_flight > 0 && w->lanes_in_flight >= c->lanes);
    w->pops_in_flight--;
    w->lanes_in_flight -= c->lanes;
    if (c->lane != NULL) {
        must(c->lane->pops_in_flight > 0);
        c->lane->pops_in_flight--;
        lane_mark(&b->parked, c->lane); /* released or looked at in the turn */
    }
}

/* The group's record if it has one; a discovery pop names none. */
static struct group_wait *group_seek(const struct parked *p, const struct pop_command *pop)
{
    if (p->queues.count == 0 || pop->scope == POP_DISCOVERY) return NULL;
    struct queue_wait *q = queue_find(p, queue_hash(pop->tenant, pop->queue), pop->tenant, pop->queue);
    return q == NULL ? NULL : group_find(p, q, hash64(pop->group, q->node.hash), pop->group);
}

static void lanes_mark(struct parked *p, struct group_wait *w)
{
    for (struct lane_wait *l = w->lanes_first; l != NULL; l = l->next) lane_mark(p, l);
}

/* The pop made its group known on a queue: how the group begins there counts now, also for callers pinned to lanes. */
static void registered_mark(struct broker *b, const struct call *c)
{
    struct parked *p = &b->parked;
    if (c->group != NULL) {
        lanes_mark(p, c->group);
        return;
    }
    /* A discovery pop, which queue is not known: rare, so all waiting groups are looked at. */
    for (uint32_t i = 0; i < p->groups_by_name.bucket_count; i++) {
        for (struct hash_node *n = p->groups_by_name.buckets[i]; n != NULL; n = n->next) {
            struct group_wait *w = owner_of(n, struct group_wait, by_name);
            if (!slice_equal(w->name, c->pop.group) || !uuid_equal(w->queue->tenant, c->pop.tenant)) continue;
            lanes_mark(p, w);
            group_mark(p, w, WAKE_DUE);
        }
    }
}

/* Lanes that others took: who is pinned to them waits for the end of a lease now. */
static void claims_mark(struct parked *p, struct group_wait *w, const struct engine_result *r)
{
    for (uint32_t i = 0; i < r->pop.count && w->lane_count > 0; i++) {
        struct lane_wait *l = lane_find(p, w, r->pop.claims[i].partition_name);
        if (l != NULL) lane_mark(p, l);
    }
}

void parked_pop_settle(struct broker *b, struct call *c)
{
    struct group_wait *w = c->group;
    if (c->registers) registered_mark(b, c);
    c->registers = false;
    if (w == NULL) return;
    pop_return(b, c);
    if (c->result.pop.count > 0) {
        w->futile = 0;
        claims_mark(&b->parked, w, &c->result);
    } else if (c->lanes > 0) {
        w->futile++;
    }
    c->lanes = 0;
    group_resolve(b, w);
    group_mark(&b->parked, w, WAKE_RETURNED);
}

void parked_pop_drop(struct broker *b, struct call *c)
{
    struct group_wait *w = c->group;
    if (w == NULL) return;
    pop_return(b, c);
    c->lanes = 0;
    c->group = NULL;
    c->lane = NULL;
    group_mark(&b->parked, w, WAKE_READY);
}

/* A caller whose group does not exist waits as one who subscribed now: what is pushed while it waits is for it. */
static void pop_from_now(struct pop_command *p, int64_t wall_us)
{
    if (p->mode != SUBSCRIBE_NEW || slice_is(p->group, QUEUE_MODE_GROUP)) return;
    p->mode = SUBSCRIBE_FROM;
    p->from_us = wall_us;
}

static void group_touch(struct flight *f, struct group_wait *w, struct lane_wait *l)
{
    const struct touched *last = f->touched_count > 0 ? &f->touched[f->touched_count - 1] : NULL;
    if (last != NULL && last->group == w && last->lane == l) return;
    if (f->touched_count == f->touched_cap) {
        f->touched_cap = f->touched_cap == 0 ? 16 : f->touched_cap * 2;
        f->touched = realloc(f->touched, f->touched_cap * sizeof f->touched[0]);
        must(f->touched != NULL);
    }
    f->touched[f->touched_count++] = (struct touched){.group = w, .lane = l};
    w->refs++;
    if (l != NULL) l->refs++;
}

/* The engine says `ready` only of groups that it knows. Others look when the entries on their way, which may hold pushes, applied. */
static void flights_touch(struct broker *b, struct group_wait *w, struct lane_wait *l)
{
    if (w->number != 0 && l == NULL) return;
    for (struct flight *f = b->flight_first; f != NULL; f = f->next) group_touch(f, w, l);
}

void parked_park(struct broker *b, struct call *c)
{
    struct parked *p = &b->parked;
    struct group_wait *w = c->group;
    must(w != NULL && c->list == NULL && c->lanes == 0);
    if (p->count + b->watching.count >= parked_max(b)) {
        c->retry_after_s = admission_retry_after(b);
        group_mark(p, w, 0);
        call_finish(b, c, CALL_OVERLOADED);
        return;
    }
    group_resolve(b, w);
    if (w->number == 0) pop_from_now(&c->pop, b->now.wall_us);
    c->state = CALL_STATE_PARKED;
    call_list_put_ordered(c->lane != NULL ? &c->lane->parked : &w->parked, c);
    if (c->lane != NULL) {
        lane_mark(p, c->lane);
    } else {
        w->parked_lanes += pop_lanes(&c->pop);
    }
    w->parked_count++;
    p->count++;
    flights_touch(b, w, c->lane);
    group_mark(p, w, 0);
}

/* Out of the list; the group stays at least until its next look. */
static void parked_take(struct broker *b, struct call *c)
{
    struct group_wait *w = c->group;
    must(c->state == CALL_STATE_PARKED && w->parked_count > 0 && b->parked.count > 0);
    call_list_remove(c);
    if (c->lane == NULL) {
        must(w->parked_lanes >= pop_lanes(&c->pop));
        w->parked_lanes -= pop_lanes(&c->pop);
    }
    w->parked_count--;
    b->parked.count--;
}

void parked_unpark(struct broker *b, struct call *c)
{
    parked_take(b, c);
    if (c->lane != NULL) lane_mark(&b->parked, c->lane);
    group_mark(&b->parked, c->group, 0);
    c->group = NULL;
    c->lane = NULL;
}

/* Is there a lane for this newcomer that nobody else was promised? */
static bool pop_has_lane(struct broker *b, const struct call *c)
{
    const struct group_wait *w = c->group;
    if (c->lane != NULL) return c->lane->pops_in_flight == 0; /* who is parked there was looked at: there is nothing for it */
    if (w->number == 0) return true;
    if (w->parked.count > 0) return false;
    uint32_t limit = w->lanes_in_flight + pop_lanes(&c->pop);
    return engine_group_ready(b->engine, w->number, b->now, limit) > w->lanes_in_flight;
}

static void pop_finds_nothing(struct broker *b, struct call *c)
{
    if (!confirm_pop(b, c)) call_finish_empty(b, c);
}

void parked_pop_arrive(struct broker *b, struct call *c)
{
    pop_choose(b, c);
    if (c->pop.scope == POP_DISCOVERY) {
        enum pop_forecast discovered = engine_pop_forecast(b->engine, &c->pop, b->now);
        if (discovered == POP_NOTHING) {
            pop_finds_nothing(b, c);
        } else {
            c->registers = true; /* maybe on one queue and claims from another */
            inbox_queue(b, c);
        }
        return;
    }
    struct group_wait *w = group_get(b, &c->pop);
    group_resolve(b, w);
    c->group = w;
    if (c->pop.scope == POP_PARTITION) {
        c->lane = lane_get(&b->parked, w, c->pop.partition);
        pop_from_now(&c->pop, b->now.wall_us);
    }
    enum pop_forecast f = engine_pop_forecast(b->engine, &c->pop, b->now);
    c->registers = f == POP_REGISTERS;
    if (f == POP_REGISTERS) {
        pop_grant(b, c, 0);
    } else if (f == POP_CLAIMABLE && (!c->wait || pop_has_lane(b, c))) {
        pop_grant(b, c, pop_lanes(&c->pop));
    } else if (c->wait) {
        parked_park(b, c);
        if (f == POP_CLAIMABLE && c->state == CALL_STATE_PARKED) group_mark(&b->parked, w, WAKE_READY);
    } else {
        struct lane_wait *l = c->lane;
        c->group = NULL;
        c->lane = NULL;
        lane_release(&b->parked, l);
        group_release(&b->parked, w);
        pop_finds_nothing(b, c);
    }
}

/* ---- hand-off ----------------------------------------------------------------------------------------------------- */

static bool lane_is_armed(const struct parked *p, uint64_t key)
{
    return hash_table_find(&p->armed, key) != NULL;
}

static void lane_arm(struct parked *p, struct flight *f, uint64_t key)
{
    struct armed_lane *a = calloc(1, sizeof *a);
    must(a != NULL);
    hash_table_put(&p->armed, &a->node, key);
    a->next = f->armed;
    f->armed = a;
}

/* Is this a lane that the step's own next comes to before anybody behind the step? A guess: if it does not take the lane, the
 * engine's `ready` tells. */
static bool own_next_takes(struct handoff *h, const struct group_wait *w, struct slice partition)
{
    const struct pop_command *own = h->own;
    if (own == NULL || h->own_lanes == 0) return false;
    if (own->scope == POP_PARTITION && !slice_equal(own->partition, partition)) return false;
    if (!slice_equal(own->group, w->name) || !slice_equal(own->queue, w->queue->name)) return false;
    h->own_lanes--;
    return true;
}

/* The oldest caller for a lane that becomes claimable in this entry goes right behind what makes it so. */
static bool lane_handoff(struct broker *b, struct handoff *h, struct group_wait *w, struct lane_wait *l, struct slice partition)
{
    struct flight *f = h->f;
    struct call *c = l != NULL ? l->parked.first : NULL;
    if (c == NULL) c = w->parked.first;
    uint64_t key = lane_hash(w, partition);
    if (c == NULL || lane_is_armed(&b->parked, key)) return true;
    if (own_next_takes(h, w, partition)) {
        lane_arm(&b->parked, f, key);
        return true;
    }
    /* Behind a step that is refused, a caller of any lane would create the queue. It is looked at when the entry applied. */
    if (h->may_fail && w->number == 0 && c->lane == NULL) return true;
    parked_take(b, c);
    pop_choose(b, c);
    if (!h->place(b, f, c)) {
        c->state = CALL_STATE_IDLE;
        parked_park(b, c);
        return false;
    }
    c->lanes = 0; /* its lane is not one of those claimable now */
    c->registers = w->number == 0;
    w->pops_in_flight++;
    if (c->lane != NULL) c->lane->pops_in_flight++;
    lane_arm(&b->parked, f, key);
    return true;
}

void parked_push(struct broker *b, struct handoff *h, struct uuid tenant, struct slice queue, struct slice partition)
{
    struct parked *p = &b->parked;
    struct queue_wait *q = queue_find(p, queue_hash(tenant, queue), tenant, queue);
    if (q == NULL) return;
    for (struct group_wait *w = q->groups; w != NULL; w = w->queue_next) {
        if (w->parked_count == 0) continue;
        struct lane_wait *l = w->lane_count == 0 ? NULL : lane_find(p, w, partition);
        group_touch(h->f, w, l);
        bool arms = w->number == 0 || engine_push_arms(b->engine, w->number, partition, b->now);
        if (arms && !lane_handoff(b, h, w, l, partition)) return;
    }
}

struct freed_lanes {
    struct broker *b;
    struct handoff *h;
};

static void ack_lane_free(void *ctx, uint32_t group_number, struct slice partition)
{
    struct freed_lanes *freed = ctx;
    struct parked *p = &freed->b->parked;
    struct hash_node *n = hash_table_find(&p->groups_by_number, group_number);
    struct group_wait *w = n == NULL ? NULL : owner_of(n, struct group_wait, by_number);
    if (w == NULL || w->parked_count == 0) return;
    struct lane_wait *l = w->lane_count == 0 ? NULL : lane_find(p, w, partition);
    lane_handoff(freed->b, freed->h, w, l, partition);
}

void parked_ack(struct broker *b, struct handoff *h, const struct ack_command *ack)
{
    struct freed_lanes freed = {.b = b, .h = h};
    engine_ack_frees(b->engine, ack, b->now, ack_lane_free, &freed);
}

/* ---- a step's next ------------------------------------------------------------------------------------------------ */

/* It is granted nothing: it takes what it finds in its place in the log. Others are told when that concerns them. */
void parked_next_propose(struct broker *b, struct call *c, struct handoff *h)
{
    struct group_wait *w = group_seek(&b->parked, &c->pop);
    c->registers = w != NULL && engine_pop_forecast(b->engine, &c->pop, b->now) == POP_REGISTERS;
    h->own = &c->pop;
    h->own_lanes = pop_lanes(&c->pop);
}

void parked_next_settle(struct broker *b, struct call *c)
{
    struct parked *p = &b->parked;
    struct group_wait *w = group_seek(p, &c->pop);
    if (w != NULL) {
        bool known = w->number != 0;
        group_resolve(b, w);
        if (c->registers) lanes_mark(p, w);
        claims_mark(p, w, &c->result);
        bool news = c->registers || (!known && w->number != 0);
        group_mark(p, w, news ? WAKE_DUE : 0); /* also when only leases were taken: to look when they end */
    }
    c->registers = false;
}

void parked_next_drop(struct broker *b, struct call *c)
{
    struct group_wait *w = c->registers ? group_seek(&b->parked, &c->pop) : NULL;
    c->registers = false;
    if (w == NULL) return;
    group_touch(c->flight, w, NULL);
    for (struct lane_wait *l = w->lanes_first; l != NULL; l = l->next) group_touch(c->flight, w, l);
}

void parked_next_from_now(struct call *c)
{
    if (c->pop.scope == POP_PARTITION) pop_from_now(&c->pop, c->wall_us);
}

void parked_next_wait(struct broker *b, struct call *c)
{
    parked_next_from_now(c);
    parked_pop_arrive(b, c);
}

void parked_flight_applied(struct broker *b, struct flight *f)
{
    struct parked *p = &b->parked;
    for (uint32_t i = 0; i < f->touched_count; i++) {
        struct group_wait *w = f->touched[i].group;
        struct lane_wait *l = f->touched[i].lane;
        w->refs--;
        group_mark(p, w, w->number == 0 ? WAKE_DUE : 0);
        if (l == NULL) continue;
        l->refs--;
        lane_mark(p, l);
    }
    f->touched_count = 0;
    while (f->armed != NULL) {
        struct armed_lane *a = f->armed;
        f->armed = a->next;
        hash_table_remove(&p->armed, &a->node);
        free(a);
    }
}

/* ---- waking ------------------------------------------------------------------------------------------------------- */

void parked_lane_ready(struct broker *b, uint32_t group_number, struct slice partition)
{
    struct parked *p = &b->parked;
    struct hash_node *n = hash_table_find(&p->groups_by_number, group_number);
    if (n == NULL) return;
    struct group_wait *w = owner_of(n, struct group_wait, by_number);
    w->futile = 0;
    group_mark(p, w, WAKE_READY);
    if (w->lane_count == 0) return;
    struct lane_wait *l = lane_find(p, w, partition);
    if (l != NULL) lane_mark(p, l);
}

/* Deleting took the group's number; its callers go on waiting under the queue's name. */
void parked_queue_deleted(struct broker *b, struct uuid tenant, struct slice queue, int64_t wall_us)
{
    struct queue_wait *q = queue_find(&b->parked, queue_hash(tenant, queue), tenant, queue);
    if (q == NULL) return;
    for (struct group_wait *w = q->groups; w != NULL; w = w->queue_next) {
        group_number_set(&b->parked, w, 0);
        for (struct call *c = w->parked.first; c != NULL; c = c->next) pop_from_now(&c->pop, wall_us);
        group_mark(&b->parked, w, 0);
        lanes_mark(&b->parked, w);
    }
}

static void lane_calls_from_now(struct group_wait *w, int64_t wall_us)
{
    for (struct lane_wait *l = w->lanes_first; l != NULL; l = l->next) {
        for (struct call *c = l->parked.first; c != NULL; c = c->next) pop_from_now(&c->pop, wall_us);
    }
}

/* Its number says what the engine still knows of it: none when nothing of it is left. */
void parked_group_deleted(struct broker *b, struct uuid tenant, struct slice queue, struct slice group, int64_t wall_us)
{
    struct parked *p = &b->parked;
    struct queue_wait *q = queue_find(p, queue_hash(tenant, queue), tenant, queue);
    struct group_wait *w = q == NULL ? NULL : group_find(p, q, hash64(group, q->node.hash), group);
    if (w == NULL) return;
    group_number_set(p, w, engine_group_find(b->engine, tenant, queue, group));
    if (w->number == 0) {
        for (struct call *c = w->parked.first; c != NULL; c = c->next) pop_from_now(&c->pop, wall_us);
        lane_calls_from_now(w, wall_us);
    }
    group_mark(p, w, WAKE_DUE);
    lanes_mark(p, w);
}

/* Something other than messages and time may have made lanes claimable for a group; it may be new to the engine. */
void parked_group_changed(struct broker *b, struct uuid tenant, struct slice group)
{
    struct parked *p = &b->parked;
    for (uint32_t i = 0; i < p->groups_by_name.bucket_count; i++) {
        for (struct hash_node *n = p->groups_by_name.buckets[i]; n != NULL; n = n->next) {
            struct group_wait *w = owner_of(n, struct group_wait, by_name);
            if (!slice_equal(w->name, group) || !uuid_equal(w->queue->tenant, tenant)) continue;
            lanes_mark(p, w);
            group_mark(p, w, WAKE_DUE);
        }
    }
}

void parked_queue_changed(struct broker *b, struct uuid tenant, struct slice queue)
{
    struct queue_wait *q = queue_find(&b->parked, queue_hash(tenant, queue), tenant, queue);
    if (q == NULL) return;
    for (struct group_wait *w = q->groups; w != NULL; w = w->queue_next) {
        group_mark(&b->parked, w, WAKE_DUE);
        lanes_mark(&b->parked, w);
    }
}

/* When to look again because of time alone; -1 = never. Claimable now although nothing was granted: soon, and ever later. */
static int64_t look_in_us(int64_t due_us, uint32_t pops_in_flight, uint32_t futile)
{
    if (due_us != 0) return due_us;
    if (pops_in_flight > 0) return -1; /* looked at again when they are back */
    return FUTILE_US << (futile < FUTILE_STEPS_MAX ? futile : FUTILE_STEPS_MAX);
}

/* Callers of one lane that have to be looked at: the oldest alone, or, when each one's own start counts, many. */
static uint32_t lane_looks(struct broker *b, const struct lane_wait *l)
{
    if (l->parked.count < 2 || engine_pop_is_seeded(b->engine, &l->parked.first->pop)) return 1;
    return LANE_LOOKS_MAX;
}

static void lane_due_set(struct broker *b, struct lane_wait *l, uint32_t looks)
{
    int64_t due_us = -1;
    for (struct call *c = l->parked.first; c != NULL && looks > 0; c = c->next, looks--) {
        int64_t us = engine_pop_due_us(b->engine, &c->pop, b->now);
        if (us >= 0 && (due_us < 0 || us < due_us)) due_us = us;
    }
    int64_t in_us = look_in_us(due_us, l->pops_in_flight, l->group->futile);
    if (in_us < 0) {
        heap_remove(&b->parked.lanes_due, &l->due);
    } else {
        heap_put(&b->parked.lanes_due, &l->due, b->mono_us + in_us, l->parked.first->arrival);
    }
}

static void lane_grant(struct broker *b, struct lane_wait *l, uint32_t looks)
{
    if (l->pops_in_flight > 0) return;
    for (struct call *c = l->parked.first; c != NULL && looks > 0; c = c->next, looks--) {
        enum pop_forecast f = engine_pop_forecast(b->engine, &c->pop, b->now);
        if (f == POP_NOTHING) continue;
        parked_take(b, c);
        c->registers = f == POP_REGISTERS;
        pop_grant(b, c, f == POP_CLAIMABLE ? 1 : 0);
        return;
    }
}

static void lane_serve(struct broker *b, struct lane_wait *l)
{
    uint32_t looks = lane_looks(b, l);
    lane_grant(b, l, looks);
    lane_due_set(b, l, looks);
    lane_release(&b->parked, l);
}

/* The engine does not know the group: one caller makes it known, if a message is there for it. */
static void group_grant_first(struct broker *b, struct group_wait *w)
{
    struct call *c = w->parked.first;
    struct queue_view v;
    if (w->pops_in_flight > 0 || !engine_queue_get(b->engine, w->queue->tenant, w->queue->name, &v)) return;
    if (engine_pop_forecast(b->engine, &c->pop, b->now) == POP_NOTHING) return;
    parked_take(b, c);
    c->registers = true;
    pop_grant(b, c, pop_lanes(&c->pop));
}

static void group_grant(struct broker *b, struct group_wait *w)
{
    if (w->parked.first == NULL) return;
    if (w->number == 0) {
        group_grant_first(b, w);
        return;
    }
    uint64_t wanted = w->parked_lanes < GRANTS_A_TURN_MAX ? w->parked_lanes : GRANTS_A_TURN_MAX;
    uint32_t limit = w->lanes_in_flight + (uint32_t)wanted;
    uint32_t ready = engine_group_ready(b->engine, w->number, b->now, limit);
    while (ready > w->lanes_in_flight && w->parked.first != NULL) {
        struct call *c = w->parked.first;
        parked_take(b, c);
        pop_grant(b, c, pop_lanes(&c->pop));
    }
}

static void group_due_set(struct broker *b, struct group_wait *w)
{
    int64_t due_us = -1;
    if (w->parked.count > 0 && w->number != 0) due_us = engine_group_due_us(b->engine, w->number, b->now);
    int64_t in_us = look_in_us(due_us, w->pops_in_flight, w->futile);
    if (in_us < 0) {
        heap_remove(&b->parked.groups_due, &w->due);
    } else {
        heap_put(&b->parked.groups_due, &w->due, b->mono_us + in_us, w->id);
    }
}

static void group_serve(struct broker *b, struct group_wait *w)
{
    uint8_t reasons = w->reasons;
    w->reasons = 0;
    if (w->parked_count > 0) {
        group_resolve(b, w);
        bool vain = reasons == WAKE_RETURNED && w->futile > 0;
        if (reasons != 0 && !vain) group_grant(b, w);
    }
    group_due_set(b, w);
}

static void due_arm(struct broker *b)
{
    struct parked *p = &b->parked;
    struct heap_node *g = heap_min(&p->groups_due), *l = heap_min(&p->lanes_due);
    struct heap_node *n = g == NULL || (l != NULL && l->key < g->key) ? l : g;
    if (n == NULL) {
        loop_timer_cancel(b->loop, &p->timer);
    } else if (!heap_holds(&p->timer.node) || p->timer.node.key != n->key) {
        loop_timer_set(b->loop, &p->timer, n->key);
    }
}

void parked_due_fire(struct loop_timer *t)
{
    struct broker *b = owner_of(t, struct broker, parked.timer);
    struct parked *p = &b->parked;
    struct heap_node *n;
    inbox_clock(b);
    while ((n = heap_min(&p->groups_due)) != NULL && n->key <= b->mono_us) {
        heap_remove(&p->groups_due, n);
        group_mark(p, owner_of(n, struct group_wait, due), WAKE_DUE);
    }
    while ((n = heap_min(&p->lanes_due)) != NULL && n->key <= b->mono_us) {
        struct lane_wait *l = owner_of(n, struct lane_wait, due);
        heap_remove(&p->lanes_due, n);
        lane_mark(p, l);
        group_mark(p, l->group, 0);
    }
    /* the turn that follows serves them and sets the timer again */
}

void parked_turn(struct broker *b)
{
    struct parked *p = &b->parked;
    struct lane_wait *l = p->dirty_lanes;
    p->dirty_lanes = NULL;
    while (l != NULL) {
        struct lane_wait *next = l->dirty_next;
        l->dirty = false;
        lane_serve(b, l);
        l = next;
    }
    struct group_wait *w = p->dirty_groups;
    p->dirty_groups = NULL;
    while (w != NULL) {
        struct group_wait *next = w->dirty_next;
        w->dirty = false;
        group_serve(b, w);
        group_release(p, w);
        w = next;
    }
    due_arm(b);
}

void parked_free(struct broker *b)
{
    struct parked *p = &b->parked;
    must(p->count == 0);
    while (p->dirty_lanes != NULL) {
        struct lane_wait *l = p->dirty_lanes;
        p->dirty_lanes = l->dirty_next;
        l->dirty = false;
        lane_release(p, l);
    }
    while (p->dirty_groups != NULL) {
        struct group_wait *w = p->dirty_groups;
        p->dirty_groups = w->dirty_next;
        w->dirty = false;
        group_release(p, w);
    }
    must(p->queues.count == 0 && p->lanes.count == 0 && p->armed.count == 0);
    hash_table_free(&p->queues);
    hash_table_free(&p->groups_by_name);
    hash_table_free(&p->groups_by_number);
    hash_table_free(&p->lanes);
    hash_table_free(&p->armed);
    heap_free(&p->groups_due);
    heap_free(&p->lanes_due);
}
