/* Reads, and those that wait for appends.
 *
 *   read_run -> answered
 *            -> READING: bytes that it wants are on disk (piece.c), then again
 *            -> WAITING: watch, watch, ... of the call, each in the list of its lane
 *   an entry applies: the engine names lanes (sink: numbers kept) -> watch_applied: names -> their calls are marked
 *   turn's end: each marked call leaves its lanes and runs again, once
 *
 * A lane is known by the hash of its names, so it need not exist; two lanes of one hash cost a run in vain. The engine is asked for
 * names of lanes only while anybody watches.
 *
 * Cost: an append O(1) and O(its watchers); a run O(lanes it names). */
#include <stdlib.h>

#include "base/hash.h"
#include "broker/broker_internal.h"

struct lane_watch {
    struct hash_node node;
    struct watch *first;
};

struct watch {
    struct watch *next, *previous; /* of the lane */
    struct watch *call_next;
    struct lane_watch *lane;
    struct call *call;
};

static uint64_t watch_hash(struct uuid tenant, struct slice queue, struct slice partition)
{
    uint64_t hash = hash64(slice_make(tenant.bytes, sizeof tenant.bytes), 0);
    return hash64(partition, hash64(queue, hash));
}

static struct lane_watch *lane_of(struct hash_node *n)
{
    return owner_of(n, struct lane_watch, node);
}

static struct lane_watch *lane_get(struct watching *w, uint64_t hash)
{
    struct hash_node *n = hash_table_find(&w->lanes, hash);
    if (n != NULL) return lane_of(n);
    struct lane_watch *l = calloc(1, sizeof *l);
    must(l != NULL);
    hash_table_put(&w->lanes, &l->node, hash);
    return l;
}

static void watch_drop(struct watching *w, struct watch *at)
{
    struct lane_watch *l = at->lane;
    if (at->previous != NULL) {
        at->previous->next = at->next;
    } else {
        l->first = at->next;
    }
    if (at->next != NULL) at->next->previous = at->previous;
    free(at);
    w->watches--;
    if (l->first != NULL) return;
    hash_table_remove(&w->lanes, &l->node);
    free(l);
}

static void watches_drop(struct broker *b, struct call *c)
{
    while (c->watches != NULL) {
        struct watch *next = c->watches->call_next;
        watch_drop(&b->watching, c->watches);
        c->watches = next;
    }
    c->watch_count = 0;
}

/* As much memory as that of the connections there may be. */
static uint32_t watches_max(const struct broker *b)
{
    uint64_t most = (uint64_t)b->config.memory.connections_max * (MEMORY_CONNECTION_BYTES / 128);
    return most < WATCHES_MAX ? (uint32_t)most : WATCHES_MAX;
}

void broker_watch(struct broker *b, struct call *c, struct uuid tenant, struct slice queue, struct slice partition)
{
    struct watching *w = &b->watching;
    must(w->reading == c && c->watch_count < FETCH_ENTRIES_MAX);
    if (c->late) return;
    if (w->watches >= watches_max(b)) {
        w->full = true;
        return;
    }
    struct watch *at = malloc(sizeof *at);
    must(at != NULL);
    struct lane_watch *l = lane_get(w, watch_hash(tenant, queue, partition));
    *at = (struct watch){.next = l->first, .call_next = c->watches, .lane = l, .call = c};
    if (l->first != NULL) l->first->previous = at;
    l->first = at;
    c->watches = at;
    c->watch_count++;
    w->watches++;
}

/* ---- running ------------------------------------------------------------------------------------------------------ */

static void read_refuse(struct broker *b, struct call *c)
{
    watches_drop(b, c);
    cold_found_drop(c);
    c->retry_after_s = admission_retry_after(b);
    atomic_fetch_add_explicit(&b->admission->refused, 1, memory_order_relaxed);
    call_finish(b, c, CALL_OVERLOADED);
}

static void read_wait(struct broker *b, struct call *c)
{
    struct watching *w = &b->watching;
    if (w->full || w->count + b->parked.count >= parked_max(b)) {
        read_refuse(b, c);
        return;
    }
    c->state = CALL_STATE_WAITING;
    w->count++;
}

void read_run(struct broker *b, struct call *c)
{
    struct watching *w = &b->watching;
    must(c->list == NULL && c->watches == NULL && w->reading == NULL);
    if (c->counts && !c->always && c->held == 0 && room_is_full(b)) {
        read_refuse(b, c);
        return;
    }
    if (b->stopping || (!b->serving && !b->cluster.on)) c->late = true;
    if (warm_read(b, c)) return;
    c->waits = false;
    buf_clear(&c->answer);
    c->status = 0;
    w->full = false;
    w->reading = c;
    pieces_run_begin(b);
    c->read(c, b->engine, b->now);
    w->reading = NULL;
    if (pieces_run_end(b, c)) {
        watches_drop(b, c);
        return;
    }
    if (c->waits && !c->late) {
        read_wait(b, c);
        return;
    }
    watches_drop(b, c);
    room_hold(c, c->answer.len + c->arena.total);
    call_finish(b, c, c->waits ? CALL_TIMEOUT : CALL_OK);
}

void read_run_late(struct broker *b, struct call *c)
{
    c->late = true;
    read_run(b, c);
}

void watch_leave(struct broker *b, struct call *c)
{
    must(c->state == CALL_STATE_WAITING && b->watching.count > 0);
    if (c->list != NULL) call_list_remove(c);
    watches_drop(b, c);
    b->watching.count--;
}

void watch_turn(struct broker *b)
{
    struct call *c;
    while ((c = b->watching.marked.first) != NULL) {
        watch_leave(b, c);
        read_run(b, c);
    }
}

/* ---- appends ------------------------------------------------------------------------------------------------------ */

void watch_appended(struct broker *b, uint32_t partition_number)
{
    struct watching *w = &b->watching;
    if (w->appended_count > 0 && w->appended[w->appended_count - 1] == partition_number) return;
    if (w->appended_count == APPENDS_KEPT_MAX) {
        w->appended_all = true;
        return;
    }
    if (w->appended_count == w->appended_cap) {
        w->appended_cap = w->appended_cap == 0 ? 64 : w->appended_cap * 2;
        w->appended = realloc(w->appended, w->appended_cap * sizeof w->appended[0]);
        must(w->appended != NULL);
    }
    w->appended[w->appended_count++] = partition_number;
}

static void lane_mark(struct watching *w, const struct lane_watch *l)
{
    for (struct watch *at = l->first; at != NULL; at = at->next) {
        if (at->call->list == NULL) call_list_append(&w->marked, at->call);
    }
}

static void lanes_mark(struct watching *w)
{
    for (uint32_t i = 0; i < w->lanes.bucket_count; i++) {
        for (struct hash_node *n = w->lanes.buckets[i]; n != NULL; n = n->next) lane_mark(w, lane_of(n));
    }
}

void watch_applied(struct broker *b)
{
    struct watching *w = &b->watching;
    struct uuid tenant;
    struct slice queue, partition;
    for (uint32_t i = 0; i < w->appended_count; i++) {
        if (!engine_partition_names(b->engine, w->appended[i], &tenant, &queue, &partition)) continue;
        struct hash_node *n = hash_table_find(&w->lanes, watch_hash(tenant, queue, partition));
        if (n != NULL) lane_mark(w, lane_of(n));
    }
    if (w->appended_all) lanes_mark(w);
    w->appended_count = 0;
    w->appended_all = false;
}

void watch_free(struct broker *b)
{
    struct watching *w = &b->watching;
    must(w->count == 0 && w->watches == 0 && w->lanes.count == 0);
    hash_table_free(&w->lanes);
    free(w->appended);
}
