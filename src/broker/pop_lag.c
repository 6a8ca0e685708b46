/* How old messages are when they are delivered, by queue, in the last minute or two.
 *
 *   pop_deliver -> pop_lag_count: sums of the minute under way, per queue
 *   a new minute -> the sums become those of the minute before; queues without deliveries since are forgotten
 *   broker_pop_lag: both minutes together, so that what is told covers at least a minute
 *
 * Node-local. Cost: a lookup a claim; a walk over the queues of the last two minutes, once a minute. */
#include <stdlib.h>

#include "broker/broker_internal.h"

enum { MINUTE_US = 60000000, QUEUES_MAX = 10000 }; /* of more queues popped within two minutes, the later ones are not told */

struct lag_sum {
    uint64_t messages, us_total, us_max;
};

struct queue_lag {
    struct hash_node node; /* by the queue's number */
    struct queue_lag *next;
    struct lag_sum now, before;
};

static struct queue_lag *lag_of(struct hash_node *n)
{
    return owner_of(n, struct queue_lag, node);
}

static void minute_turn(struct pop_lags *l, int64_t mono_us)
{
    int64_t minute = mono_us / MINUTE_US;
    if (minute == l->minute) return;
    bool next = minute == l->minute + 1;
    l->minute = minute;
    for (struct queue_lag **at = &l->first; *at != NULL;) {
        struct queue_lag *q = *at;
        q->before = next ? q->now : (struct lag_sum){0};
        q->now = (struct lag_sum){0};
        if (q->before.messages > 0) {
            at = &q->next;
            continue;
        }
        *at = q->next;
        hash_table_remove(&l->queues, &q->node);
        free(q);
    }
}

static struct queue_lag *lag_get(struct pop_lags *l, uint32_t queue)
{
    struct hash_node *n = hash_table_find(&l->queues, queue);
    if (n != NULL) return lag_of(n);
    if (l->queues.count == QUEUES_MAX) return NULL;
    struct queue_lag *q = calloc(1, sizeof *q);
    must(q != NULL);
    q->next = l->first;
    l->first = q;
    hash_table_put(&l->queues, &q->node, queue);
    return q;
}

void pop_lag_count(struct broker *b, const struct call *c)
{
    struct pop_lags *l = &b->pop_lags;
    minute_turn(l, b->mono_us);
    for (uint32_t i = 0; i < c->result.pop.count; i++) {
        const struct claim *claim = &c->result.pop.claims[i];
        struct lane_view lane;
        if (!engine_lane_get(b->engine, c->pop.tenant, claim->partition, &lane))
            continue; /* its queue was deleted in the same entry */
        struct queue_lag *q = lag_get(l, lane.queue);
        if (q == NULL) continue;
        for (uint32_t k = 0; k < claim->piece_count; k++) {
            const struct delivery_piece *p = &claim->pieces[k];
            uint64_t us = c->wall_us > p->created_us ? (uint64_t)(c->wall_us - p->created_us) : 0;
            q->now.messages += p->count;
            q->now.us_total += us * p->count;
            if (us > q->now.us_max) q->now.us_max = us;
        }
    }
}

bool broker_pop_lag(struct broker *b, uint32_t queue, struct pop_lag *out)
{
    minute_turn(&b->pop_lags, b->mono_us);
    struct hash_node *n = hash_table_find(&b->pop_lags.queues, queue);
    if (n == NULL) return false;
    const struct queue_lag *q = lag_of(n);
    uint64_t messages = q->now.messages + q->before.messages;
    if (messages == 0) return false;
    out->average_us = (q->now.us_total + q->before.us_total) / messages;
    out->max_us = q->now.us_max > q->before.us_max ? q->now.us_max : q->before.us_max;
    return true;
}

void pop_lag_free(struct broker *b)
{
    for (struct queue_lag *q = b->pop_lags.first; q != NULL;) {
        struct queue_lag *next = q->next;
        free(q);
        q = next;
    }
    hash_table_free(&b->pop_lags.queues);
}
