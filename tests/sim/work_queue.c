/* Producers and consumers of queues, and what became of every message.
 *
 * A message's transaction id is its text everywhere: "m<number>" of producers, "r<step>-<i>" results of steps, "t<number>" of timers. Its
 * payload is the text as JSON, maybe with padding.
 *
 *   pushed     all answers to one message name one id and one offset; at most one says it was queued
 *   delivered  an offset of a lane always holds the same message, a message is at one offset; leases of a group do not overlap in real
 *              time; what was acked is not delivered again, by order of the log
 *   the end    on every node each lane holds what was answered, where it was answered, once; in the order pushed; nothing that was surely
 *              not done; each message was delivered to each group, or is a dead letter of it */
#include <stdlib.h>
#include <string.h>

#include "base/hash.h"
#include "broker/broker_internal.h"
#include "work.h"

enum {
    BURST_MAX = 60,
    PRODUCERS = 3,
    CONSUMERS = 4,
    ITEMS_MAX = 5,
    OFFSETS_MAX = 1 << 16,
    RESENDS_MAX = 12,
    DRAIN_QUIET_US = 30000000
};

struct slice lane_queue(uint32_t lane)
{
    return slice_of(lane < LANE_OUT ? "in" : lane < LANE_ALARM ? "out" : "alarm");
}

struct slice lane_name(uint32_t lane)
{
    static const char *const names[LANES] = {"a", "b", "c", "x", "y", "p", "q"};
    return slice_of(names[lane]);
}

static uint32_t lane_of(struct slice queue, struct slice partition)
{
    for (uint32_t i = 0; i < LANES; i++) {
        if (slice_equal(lane_queue(i), queue) && slice_equal(lane_name(i), partition)) return i;
    }
    sim_fail("a lane that nobody made: %.*s/%.*s", (int)queue.len, queue.at, (int)partition.len, partition.at);
}

struct slice group_name(uint32_t group)
{
    return slice_of(group == GROUP_ONE ? "one" : "steps");
}

uint32_t message_number(const char *text)
{
    return (uint32_t)strtoul(text + 1, NULL, 10);
}

/* ---- what was pushed ----------------------------------------------------------------------------------------------- */

struct message {
    uint32_t lane, producer;
    bool acked, queued_seen, possible; /* possible: some attempt may have happened */
    uint64_t offset;
    struct uuid id;
    int64_t invoked_us, answered_us;
    uint32_t previous; /* the producer's message before in this lane, 0 = none */
};
static struct message *messages; /* by number, from 1 */
static uint32_t message_count, message_cap;

static uint32_t message_new(uint32_t lane, uint32_t producer)
{
    if (message_count + 2 > message_cap) {
        message_cap = message_cap * 2 + 1024;
        messages = realloc(messages, message_cap * sizeof messages[0]);
        must(messages != NULL);
    }
    messages[++message_count] = (struct message){.lane = lane, .producer = producer};
    return message_count;
}

/* ---- where messages are: lane and offset -> text, and back ------------------------------------------------------------ */

struct place {
    char text[24];
    uint8_t delivered[GROUPS];
    int64_t acked_stamp_us[GROUPS], acked_us[GROUPS]; /* by the log; when the answer came. 0 = not yet */
    uint64_t hash;
};
static struct place *places[LANES];
static uint32_t place_cap[LANES];

struct text_place {
    uint64_t hash;
    uint32_t lane;
    uint64_t offset;
};
static struct text_place *texts;
static uint32_t text_count, text_cap;

static struct place *place_at(uint32_t lane, uint64_t offset)
{
    must(offset < OFFSETS_MAX);
    if (offset >= place_cap[lane]) {
        uint32_t cap = (uint32_t)offset * 2 + 256;
        places[lane] = realloc(places[lane], cap * sizeof places[lane][0]);
        must(places[lane] != NULL);
        memset(places[lane] + place_cap[lane], 0, (cap - place_cap[lane]) * sizeof places[lane][0]);
        place_cap[lane] = cap;
    }
    return &places[lane][offset];
}

static struct text_place *text_find(uint64_t hash)
{
    for (uint32_t i = (uint32_t)hash & (text_cap - 1); text_cap > 0; i = (i + 1) & (text_cap - 1)) {
        if (texts[i].hash == 0 || texts[i].hash == hash) return &texts[i];
    }
    return NULL;
}

static void text_put(uint64_t hash, uint32_t lane, uint64_t offset)
{
    if ((text_count + 1) * 2 > text_cap) {
        struct text_place *old = texts;
        uint32_t old_cap = text_cap;
        text_cap = text_cap == 0 ? 4096 : text_cap * 2;
        texts = calloc(text_cap, sizeof texts[0]);
        must(texts != NULL);
        for (uint32_t i = 0; i < old_cap; i++) {
            if (old[i].hash != 0) *text_find(old[i].hash) = old[i];
        }
        free(old);
    }
    *text_find(hash) = (struct text_place){.hash = hash, .lane = lane, .offset = offset};
    text_count++;
}

/* This message is at this place: does it fit everything said before? */
static struct place *place_says(uint32_t lane, uint64_t offset, const char *text)
{
    struct place *p = place_at(lane, offset);
    uint64_t hash = hash64(slice_of(text), 3) | 1;
    if (p->text[0] != '\0' && strcmp(p->text, text) != 0)
        sim_fail("offset %llu of lane %u holds %s, and held %s before", (unsigned long long)offset, lane, text, p->text);
    if (p->text[0] != '\0') return p;
    snprintf(p->text, sizeof p->text, "%s", text);
    p->hash = hash;
    struct text_place *t = text_cap == 0 ? NULL : text_find(hash);
    if (t != NULL && t->hash == hash && (t->lane != lane || t->offset != offset))
        sim_fail("message %s is in lane %u at %llu and in lane %u at %llu", text, t->lane, (unsigned long long)t->offset, lane,
                 (unsigned long long)offset);
    if (t == NULL || t->hash == 0) text_put(hash, lane, offset);
    return p;
}

/* ---- producers ----------------------------------------------------------------------------------------------------- */

struct producer {
    struct client client;
    struct op op;
    uint32_t number, lane, count, first; /* messages first .. first + count - 1 */
    uint32_t sends;
    uint32_t last[LANES_IN + 1]; /* its last message in each lane */
    uint32_t padding;
    struct push_outcome outcomes[ITEMS_MAX];
    uint32_t outcome_count;
};
static struct producer producers[PRODUCERS];

static void push_encode(struct buf *out, uint32_t lane, uint32_t first, uint32_t count, uint32_t padding);

static void payload_make(struct buf *b, const char *text, uint32_t padding)
{
    buf_printf(b, "\"%s", text);
    memset(buf_reserve(b, padding), '.', padding);
    b->len += padding;
    buf_byte(b, '"');
}

static void push_read(struct op *o, struct call *c)
{
    struct producer *p = o->ctx;
    must(c->result.kind == COMMAND_PUSH && c->result.push.count == p->count);
    p->outcome_count = c->result.push.count;
    memcpy(p->outcomes, c->result.push.items, p->count * sizeof p->outcomes[0]);
}

static void push_learn(uint32_t number, const struct push_outcome *r, const struct op *o)
{
    struct message *m = &messages[number];
    char text[24];
    if (o->end != OP_FAILED) m->possible = true;
    if (o->end != OP_OK) return;
    snprintf(text, sizeof text, "m%u", number);
    if (m->acked && (m->offset != r->offset || !uuid_equal(m->id, r->id)))
        sim_fail("push of %s: offset %llu, and before it was %llu, or another id", text, (unsigned long long)r->offset,
                 (unsigned long long)m->offset);
    if (r->status == PUSH_QUEUED && m->queued_seen) sim_fail("push of %s was queued twice", text);
    m->queued_seen |= r->status == PUSH_QUEUED;
    place_says(m->lane, r->offset, text);
    if (!m->acked) m->answered_us = o->answered_us;
    m->acked = true;
    m->offset = r->offset;
    m->id = r->id;
    work_counts.pushed++;
}

static void push_send(struct producer *p);
static void producer_step(struct client *c);

static void producer_resend(struct client *c)
{
    push_send(outer(c, struct producer, client));
}

static void push_answered(struct op *o)
{
    struct producer *p = o->ctx;
    struct client *c = &p->client;
    for (uint32_t i = 0; i < p->count; i++) push_learn(p->first + i, &p->outcomes[i], o);
    bool again = o->end != OP_OK && p->sends < RESENDS_MAX && !rng_chance(&c->rng, 50) && !work_stopping;
    bool once_more = o->end == OP_OK && rng_chance(&c->rng, 30); /* a client that sends again for no reason */
    if (again || once_more) {
        c->step = producer_resend;
        client_think(c, 1000, 1000000);
        return;
    }
    c->step = producer_step;
    client_think(c, 100000, 2500000);
}

static void push_encode(struct buf *out, uint32_t lane, uint32_t first, uint32_t count, uint32_t padding)
{
    struct push_writer w;
    push_begin(&w, out, work_tenant);
    push_group_begin(&w, lane_queue(lane), lane_name(lane), count);
    for (uint32_t i = 0; i < count; i++) {
        char text[24];
        struct buf payload = {0};
        snprintf(text, sizeof text, "m%u", first + i);
        payload_make(&payload, text, padding);
        push_item_add(
            &w, &(struct push_item){.flags = ITEM_TRANSACTION, .transaction = slice_of(text), .payload = buf_view(&payload)});
        buf_free(&payload);
    }
    push_group_end(&w);
    push_end(&w);
}

static void push_send(struct producer *p)
{
    struct op *o = &p->op;
    o->client = &p->client;
    op_clear(o);
    o->kind = CALL_WRITE;
    o->grows = true;
    o->ctx = p;
    o->read = push_read;
    o->answered = push_answered;
    push_encode(&o->command, p->lane, p->first, p->count, p->padding);
    p->sends++;
    op_send(o);
}

static void producer_step(struct client *c)
{
    struct producer *p = outer(c, struct producer, client);
    p->lane = (uint32_t)rng_below(&c->rng, LANES_IN + 1);
    p->count = 1 + (uint32_t)rng_below(&c->rng, ITEMS_MAX);
    p->padding = (uint32_t)rng_below(&c->rng, 60);
    if (rng_chance(&c->rng, 20)) p->padding = (uint32_t)rng_span(&c->rng, 2000, 30000);
    if (rng_chance(&c->rng, 1)) p->padding = 150000;
    p->sends = 0;
    for (uint32_t i = 0; i < p->count; i++) {
        uint32_t m = message_new(p->lane, p->number);
        if (i == 0) p->first = m;
        messages[m].invoked_us = sim.now_us;
        messages[m].previous = p->last[p->lane];
        p->last[p->lane] = m;
    }
    push_send(p);
}

/* ---- bursts: many calls at one node at once, so that several entries are on their way together ----------------------- */

struct burst {
    struct client client;
    struct op ops[BURST_MAX];
    struct burst_message {
        struct burst *burst;
        uint32_t message;
        struct push_outcome outcome;
    } messages[BURST_MAX];
    uint32_t count, left;
};
static struct burst burst;

static void burst_read(struct op *o, struct call *c)
{
    struct burst_message *m = o->ctx;
    must(c->result.kind == COMMAND_PUSH && c->result.push.count == 1);
    m->outcome = c->result.push.items[0];
}

static void burst_answered(struct op *o)
{
    struct burst_message *m = o->ctx;
    push_learn(m->message, &m->outcome, o);
    if (--m->burst->left == 0) client_think(&m->burst->client, 1000000, 9000000);
}

static void burst_step(struct client *c)
{
    struct burst *b = outer(c, struct burst, client);
    b->count = b->left = (uint32_t)rng_span(&c->rng, 20, BURST_MAX);
    c->node = work_node_pick(&c->rng);
    uint32_t node = c->node;
    for (uint32_t i = 0; i < b->count; i++) {
        struct op *o = &b->ops[i];
        b->messages[i] = (struct burst_message){.burst = b, .message = message_new(LANE_OUT + 1, PRODUCERS)};
        messages[b->messages[i].message].invoked_us = sim.now_us;
        o->client = c;
        op_clear(o);
        o->kind = CALL_WRITE;
        o->grows = true;
        o->ctx = &b->messages[i];
        o->read = burst_read;
        o->answered = burst_answered;
        push_encode(&o->command, LANE_OUT + 1, b->messages[i].message, 1, 4);
        c->node = node;
        op_send(o);
    }
}

/* ---- claims -------------------------------------------------------------------------------------------------------- */

struct claim_seen {
    uint32_t lane, group, node;
    uint64_t first, last;
    int64_t stamp_us, invoked_us, answered_us, end_us; /* end: the lease holds at least until then, on the true clock */
    int64_t released_us;                               /* something was sent that may end it; INT64_MAX: nothing */
};
static struct claim_seen *claims;
static uint32_t claim_count, claim_cap;

static void claims_compare(const struct claim_seen *a, const struct claim_seen *b)
{
    if (a->lane != b->lane || a->group != b->group || a->stamp_us == b->stamp_us) return;
    const struct claim_seen *early = a->stamp_us < b->stamp_us ? a : b, *late = early == a ? b : a;
    if (early->released_us <= late->answered_us || late->answered_us >= early->end_us) return;
    sim_fail(
        "lane %u, group %u: claimed (offset %llu) for a client, while another one's lease (offset %llu, claimed %.3f s) holds "
        "for %.3f s more",
        a->lane, a->group, (unsigned long long)late->first, (unsigned long long)early->first, (double)early->invoked_us / 1e6,
        (double)(early->end_us - late->answered_us) / 1e6);
}

static uint32_t claim_put(const struct claim_seen *c)
{
    if (claim_count == claim_cap) {
        claim_cap = claim_cap * 2 + 1024;
        claims = realloc(claims, claim_cap * sizeof claims[0]);
        must(claims != NULL);
    }
    claims[claim_count] = *c;
    for (uint32_t i = claim_count; i-- > 0;) {
        if (claims[i].answered_us < sim.now_us - 120000000) break;
        claims_compare(&claims[i], c);
    }
    return claim_count++;
}

static void claim_message(struct delivered *d, struct op *o, uint32_t lane, uint32_t group, uint64_t offset,
                          const struct push_item *item)
{
    must(d->count < DELIVERED_MAX);
    struct delivered_message *m = &d->at[d->count++];
    *m = (struct delivered_message){.lane = lane, .offset = offset};
    if ((item->flags & ITEM_TRANSACTION) == 0 || item->transaction.len >= sizeof m->text)
        sim_fail("lane %u, offset %llu: a message without a transaction id", lane, (unsigned long long)offset);
    snprintf(m->text, sizeof m->text, "%.*s", (int)item->transaction.len, item->transaction.at);
    size_t len = strlen(m->text);
    if (item->payload.len < len + 2 || memcmp(item->payload.at + 1, m->text, len) != 0)
        sim_fail("lane %u, offset %llu: the payload of %s is another one's", lane, (unsigned long long)offset, m->text);
    struct place *p = place_says(lane, offset, m->text);
    p->delivered[group] = 1;
    bool later = p->acked_stamp_us[group] != 0 && o->stamp_us > p->acked_stamp_us[group];
    if (later || (p->acked_us[group] != 0 && o->invoked_us > p->acked_us[group]))
        sim_fail("%s (lane %u, offset %llu) is delivered to group %u again, after it was acked", m->text, lane,
                 (unsigned long long)offset, group);
}

void delivered_read(struct delivered *d, struct op *o, struct call *c, uint32_t group)
{
    d->count = d->claim_count = 0;
    d->lease = c->pop.lease_id;
    d->lease_us = c->pop.lease_us;
    if (c->outcome != CALL_OK || c->result.kind != COMMAND_POP) return;
    uint32_t piece = 0;
    for (uint32_t i = 0; i < c->result.pop.count; i++) {
        const struct claim *k = &c->result.pop.claims[i];
        uint32_t lane = lane_of(c->pop.queue, k->partition_name);
        must(d->claim_count < 4);
        d->claims[d->claim_count++] =
            (struct delivered_claim){.partition = k->partition, .lane = lane, .first = d->count, .count = k->message_count};
        uint64_t expected = k->first_offset;
        for (uint32_t j = 0; j < k->piece_count; j++, piece++) {
            for (uint32_t m = 0; m < k->pieces[j].count; m++) {
                struct push_item item;
                uint64_t offset = k->pieces[j].first_offset + m;
                if (offset != expected++)
                    sim_fail("lane %u: a delivery with a gap before offset %llu", lane, (unsigned long long)offset);
                push_group_item(&c->pieces[piece].group, k->pieces[j].item0 + m, &item);
                claim_message(d, o, lane, group, offset, &item);
                work_counts.delivered++;
            }
        }
        if (expected != k->last_offset + 1) sim_fail("lane %u: a delivery ends early", lane);
    }
}

void delivered_answered(const struct delivered *d, struct op *o)
{
    for (uint32_t i = 0; i < d->claim_count; i++) {
        const struct delivered_claim *k = &d->claims[i];
        struct claim_seen c = {.lane = k->lane,
                               .group = slice_equal(o->pop.group, group_name(GROUP_ONE)) ? GROUP_ONE : GROUP_STEPS,
                               .node = o->node,
                               .first = d->at[k->first].offset,
                               .last = d->at[k->first].offset + k->count - 1,
                               .stamp_us = o->stamp_us,
                               .invoked_us = o->invoked_us,
                               .answered_us = o->answered_us,
                               .end_us = o->invoked_us + d->lease_us - d->lease_us / 30,
                               .released_us = INT64_MAX};
        ((struct delivered *)(uintptr_t)d)->ids[i] = claim_put(&c);
    }
}

void delivered_release(const struct delivered *d)
{
    for (uint32_t i = 0; i < d->claim_count; i++) {
        struct claim_seen *c = &claims[d->ids[i]];
        if (c->released_us > sim.now_us) c->released_us = sim.now_us;
    }
}

void delivered_extended(const struct delivered *d, int64_t invoked_us, int64_t lease_us)
{
    for (uint32_t i = 0; i < d->claim_count; i++) {
        struct claim_seen *c = &claims[d->ids[i]];
        int64_t end_us = invoked_us + lease_us - lease_us / 30;
        if (end_us > c->end_us) c->end_us = end_us;
    }
}

void delivered_acked(const struct delivered *d, uint32_t group, uint32_t i, int64_t stamp_us)
{
    struct place *p = place_at(d->at[i].lane, d->at[i].offset);
    if (p->acked_stamp_us[group] == 0 || stamp_us < p->acked_stamp_us[group]) p->acked_stamp_us[group] = stamp_us;
    if (p->acked_us[group] == 0) p->acked_us[group] = sim.now_us;
    work_counts.acked++;
}

void delivered_ack_encode(const struct delivered *d, uint32_t group, uint32_t completed, uint8_t rest, struct buf *out)
{
    size_t at = out->len;
    ack_begin(out, work_tenant, group_name(group), d->count);
    for (uint32_t i = 0; i < d->claim_count; i++) {
        for (uint32_t k = 0; k < d->claims[i].count; k++) {
            uint32_t m = d->claims[i].first + k;
            struct ack_item item = {.partition = d->claims[i].partition,
                                    .status = m < completed ? ACK_COMPLETED : rest,
                                    .fenced = 1,
                                    .lease = d->lease,
                                    .transaction = slice_of(d->at[m].text)};
            ack_item_add(out, &item);
        }
    }
    ack_end(out, at);
}

/* ---- consumers ----------------------------------------------------------------------------------------------------- */

struct consumer {
    struct client client;
    struct op op;
    struct delivered got;
    uint32_t group, sends, completed;
    uint8_t rest;
    bool drains;
    int64_t quiet_since_us;
    uint8_t verdicts[DELIVERED_MAX];
    int64_t extend_us;
    bool extended;
};
static struct consumer consumers[CONSUMERS], drainers[GROUPS * 3];
static uint32_t drainer_count;

static void consumer_step(struct client *c);

static void consumer_rests(struct consumer *k)
{
    k->client.step = consumer_step;
    if (k->drains) {
        client_think(&k->client, 1000, 50000);
    } else {
        client_think(&k->client, 100000, 2000000);
    }
}

static void ack_read(struct op *o, struct call *c)
{
    struct consumer *k = o->ctx;
    must(c->result.kind == COMMAND_ACK && c->result.ack.count == k->got.count);
    for (uint32_t i = 0; i < k->got.count; i++) k->verdicts[i] = c->result.ack.items[i].verdict;
}

static void ack_send(struct client *c);

static void ack_answered(struct op *o)
{
    struct consumer *k = o->ctx;
    if (o->end == OP_OK) {
        for (uint32_t i = 0; i < k->completed; i++) {
            if (k->verdicts[i] == ACK_OK) delivered_acked(&k->got, k->group, i, o->stamp_us);
        }
    } else if (k->sends < 4 && rng_chance(&k->client.rng, 700) && !work_stopping) {
        k->client.step = ack_send;
        client_think(&k->client, 1000, 500000);
        return;
    }
    consumer_rests(k);
}

static void ack_send(struct client *c)
{
    struct consumer *k = outer(c, struct consumer, client);
    struct op *o = &k->op;
    op_clear(o);
    o->kind = CALL_WRITE;
    o->ctx = k;
    o->read = ack_read;
    o->answered = ack_answered;
    delivered_ack_encode(&k->got, k->group, k->completed, k->rest, &o->command);
    delivered_release(&k->got);
    k->sends++;
    op_send(o);
}

static void extend_read(struct op *o, struct call *c)
{
    struct consumer *k = o->ctx;
    k->extended = c->result.extend.renewed > 0;
}

static void extend_answered(struct op *o)
{
    struct consumer *k = o->ctx;
    if (o->end == OP_OK && k->extended) delivered_extended(&k->got, o->invoked_us, k->extend_us);
    k->client.step = ack_send;
    client_think(&k->client, 100000, 6000000);
}

static void extend_send(struct client *c)
{
    struct consumer *k = outer(c, struct consumer, client);
    struct op *o = &k->op;
    op_clear(o);
    o->kind = CALL_WRITE;
    o->ctx = k;
    o->read = extend_read;
    o->answered = extend_answered;
    k->extend_us = rng_span(&c->rng, 4, 15) * 1000000;
    k->extended = false;
    /* A shorter lease than it had may be the outcome. */
    delivered_release(&k->got);
    extend_encode(&o->command,
                  &(struct extend_command){.tenant = work_tenant, .lease = k->got.lease, .seconds = k->extend_us / 1000000});
    op_send(o);
}

static void pop_read(struct op *o, struct call *c)
{
    struct consumer *k = o->ctx;
    delivered_read(&k->got, o, c, k->group);
}

static void pop_answered(struct op *o)
{
    struct consumer *k = o->ctx;
    struct rng *r = &k->client.rng;
    if (o->end != OP_OK || k->got.count == 0) {
        consumer_rests(k);
        return;
    }
    k->quiet_since_us = sim.now_us;
    delivered_answered(&k->got, o);
    k->sends = 0;
    k->completed = k->got.count;
    k->rest = ACK_FAILED;
    k->client.step = ack_send;
    if (k->drains) {
        client_think(&k->client, 100, 2000);
        return;
    }
    uint32_t roll = (uint32_t)rng_below(r, 100);
    if (roll < 8) { /* a client that dies with its batch */
        consumer_rests(k);
        return;
    }
    if (roll < 20) k->completed = (uint32_t)rng_below(r, k->got.count + 1);
    if (roll < 12) k->rest = ACK_RETRY;
    if (roll >= 19 && roll < 20) k->rest = ACK_DLQ;
    if (roll < 28 && roll >= 20) k->client.step = extend_send;
    /* Some are slower than their lease. */
    if (rng_chance(r, 60)) {
        client_think(&k->client, 4000000, 20000000);
    } else {
        client_think(&k->client, 10000, 1500000);
    }
}

static void consumer_step(struct client *c)
{
    struct consumer *k = outer(c, struct consumer, client);
    struct op *o = &k->op;
    o->client = c;
    op_clear(o);
    o->kind = CALL_POP;
    o->ctx = k;
    o->read = pop_read;
    o->answered = pop_answered;
    o->wait = k->drains || rng_chance(&c->rng, 600);
    if (o->wait) o->deadline_us = rng_span(&c->rng, 1000000, k->drains ? 3000000 : 15000000);
    uint32_t queue = k->group == GROUP_STEPS ? LANE_IN
                                             : (uint32_t)(rng_chance(&c->rng, 500)   ? LANE_IN
                                                          : rng_chance(&c->rng, 500) ? LANE_OUT
                                                                                     : LANE_ALARM);
    if (k->drains) queue = (uint32_t[]){LANE_IN, LANE_OUT, LANE_ALARM}[k->client.number % 3];
    uint32_t lanes = queue == LANE_IN ? LANES_IN : LANES_OUT;
    bool pinned = !k->drains && rng_chance(&c->rng, 250);
    struct uuid lease;
    uint64_t bits[2] = {rng_u64(&c->rng), rng_u64(&c->rng)};
    memcpy(lease.bytes, bits, sizeof lease.bytes);
    o->pop = (struct pop_command){.tenant = work_tenant,
                                  .lease_id = lease,
                                  .scope = pinned ? POP_PARTITION : POP_QUEUE,
                                  .mode = SUBSCRIBE_ALL,
                                  .batch = 1 + (uint32_t)rng_below(&c->rng, k->drains ? 12 : 6),
                                  .partitions = 1 + (uint32_t)rng_below(&c->rng, 2),
                                  .lease_us = rng_span(&c->rng, 2, 12) * 1000000,
                                  .group = group_name(k->group),
                                  .queue = lane_queue(queue),
                                  .partition = pinned ? lane_name(queue + (uint32_t)rng_below(&c->rng, lanes)) : slice_of(""),
                                  .name_space = slice_of(""),
                                  .task = slice_of("")};
    k->got.count = k->got.claim_count = 0;
    op_send(o);
}

/* ---- start, drain -------------------------------------------------------------------------------------------------- */

/* Sets the queues' options, again and again until it is answered; then the others begin. */
static struct client setup;
static struct op setup_op;
static uint32_t setup_queue;

static void setup_step(struct client *c);

static void setup_answered(struct op *o)
{
    if (o->end == OP_OK) setup_queue++;
    if (setup_queue < 3) client_think(o->client, 10000, 300000);
}

static void setup_step(struct client *c)
{
    static const char *const names[] = {"in", "out", "alarm"};
    struct configure_command k = {.tenant = work_tenant, .queue = slice_of(names[setup_queue])};
    k.given = 1U << OPTION_DEAD_LETTER_QUEUE | 1U << OPTION_DLQ_AFTER_MAX_RETRIES | 1U << OPTION_RETRY_LIMIT;
    k.options.numbers[OPTION_DEAD_LETTER_QUEUE] = 1;
    k.options.numbers[OPTION_DLQ_AFTER_MAX_RETRIES] = 1;
    k.options.numbers[OPTION_RETRY_LIMIT] = 4;
    setup_op.client = c;
    op_clear(&setup_op);
    setup_op.kind = CALL_WRITE;
    setup_op.answered = setup_answered;
    configure_encode(&setup_op.command, &k);
    op_send(&setup_op);
}

void queue_work_start(void)
{
    client_start(&setup, "setup", 0, setup_step);
    for (uint32_t i = 0; i < PRODUCERS; i++) {
        producers[i].number = i;
        client_start(&producers[i].client, "producer", i, producer_step);
    }
    client_start(&burst.client, "burst", 0, burst_step);
    for (uint32_t i = 0; i < CONSUMERS; i++) {
        consumers[i].group = i == 3 ? GROUP_STEPS : GROUP_ONE;
        client_start(&consumers[i].client, "consumer", i, consumer_step);
    }
}

void queue_work_drain_start(void)
{
    static const uint32_t queues[] = {0, 1, 2, 0};
    drainer_count = 4;
    for (uint32_t i = 0; i < drainer_count; i++) {
        struct consumer *k = &drainers[i];
        k->group = i == 3 ? GROUP_STEPS : GROUP_ONE;
        k->drains = k->client.final = true;
        client_start(&k->client, "drain", queues[i], consumer_step);
        k->quiet_since_us = sim.now_us + 6000000;
    }
}

bool queue_work_drained(void)
{
    for (uint32_t i = 0; i < drainer_count; i++) {
        if (sim.now_us - drainers[i].quiet_since_us < DRAIN_QUIET_US) return false;
    }
    return true;
}

/* ---- the end ------------------------------------------------------------------------------------------------------- */

struct final {
    uint32_t node;
    uint64_t tails[LANES];
};

struct final_message {
    char text[24];
    int64_t created_us;
    bool dead[GROUPS];
};
static struct final_message *finals[LANES];
static uint64_t final_tails[LANES];

static void final_message_read(struct final *f, uint32_t lane, uint64_t offset, int64_t created_us,
                               const struct push_item *item)
{
    char text[24];
    snprintf(text, sizeof text, "%.*s", (int)item->transaction.len, item->transaction.at);
    size_t len = strlen(text);
    if (item->payload.len < len + 2 || memcmp(item->payload.at + 1, text, len) != 0)
        sim_fail("n%u: lane %u, offset %llu: the payload of %s is another one's", f->node, lane, (unsigned long long)offset,
                 text);
    place_says(lane, offset, text);
    struct final_message *m = &finals[lane][offset];
    if (m->text[0] != '\0' && strcmp(m->text, text) != 0)
        sim_fail("n%u: lane %u, offset %llu holds %s, another node has %s", f->node, lane, (unsigned long long)offset, text,
                 m->text);
    snprintf(m->text, sizeof m->text, "%s", text);
    m->created_us = created_us;
}

static void final_piece_read(struct broker *b, struct final *f, uint32_t lane, const struct delivery_piece *d)
{
    struct push_group group;
    struct buf block = {0};
    if (place_read(&b->places, d->where, d->block_bytes, buf_reserve(&block, d->block_bytes)) != LOG_OK ||
        !push_group_of(slice_make(block.at, d->block_bytes), &group))
        sim_fail("n%u: lane %u: the bytes of offset %llu cannot be read", f->node, lane, (unsigned long long)d->first_offset);
    if (!push_group_crc_ok(group.block))
        sim_fail("n%u: lane %u: the bytes of offset %llu are not whole", f->node, lane, (unsigned long long)d->first_offset);
    for (uint32_t k = 0; k < d->count; k++) {
        struct push_item item;
        push_group_item(&group, d->item0 + k, &item);
        final_message_read(f, lane, d->first_offset + k, d->created_us, &item);
    }
    buf_free(&block);
}

static void final_lane_read(struct broker *b, struct final *f, uint32_t lane)
{
    struct arena arena;
    uint64_t offset = 0;
    arena_init(&arena);
    for (;;) {
        struct fetch_view v;
        arena_reset(&arena);
        enum fetch_status s =
            engine_fetch(b->engine, work_tenant, lane_queue(lane), lane_name(lane), offset, 1 << 20, 1000, &arena, &v);
        if (s != FETCH_OK) break;
        if (v.start != 0) sim_fail("n%u: lane %u begins at %llu", f->node, lane, (unsigned long long)v.start);
        f->tails[lane] = v.tail;
        if (final_tails[lane] < v.tail) {
            finals[lane] = realloc(finals[lane], v.tail * sizeof finals[lane][0]);
            must(finals[lane] != NULL);
            memset(finals[lane] + final_tails[lane], 0, (v.tail - final_tails[lane]) * sizeof finals[lane][0]);
            final_tails[lane] = v.tail;
        }
        if (v.message_count == 0) break;
        for (uint32_t i = 0; i < v.piece_count; i++) {
            if (v.pieces[i].first_offset != offset)
                sim_fail("n%u: lane %u has a hole at %llu", f->node, lane, (unsigned long long)offset);
            final_piece_read(b, f, lane, &v.pieces[i]);
            offset += v.pieces[i].count;
        }
    }
    arena_free(&arena);
}

static void final_letters_read(struct broker *b)
{
    struct dead_letter_view v;
    uint64_t before = UINT64_MAX;
    while (engine_dead_letter_next(b->engine, work_tenant, slice_of(""), slice_of(""), &before, &v)) {
        uint32_t lane = lane_of(v.queue, v.partition);
        if (v.offset >= final_tails[lane]) sim_fail("a dead letter of a message that is not there");
        finals[lane][v.offset].dead[slice_equal(v.group, group_name(GROUP_ONE)) ? GROUP_ONE : GROUP_STEPS] = true;
        work_counts.dead++;
    }
}

static void final_read(struct broker *b, void *ctx)
{
    struct final *f = ctx;
    for (uint32_t lane = 0; lane < LANES; lane++) final_lane_read(b, f, lane);
    final_letters_read(b);
}

static void producers_check(void)
{
    for (uint32_t n = 1; n <= message_count; n++) {
        const struct message *m = &messages[n];
        char text[24];
        snprintf(text, sizeof text, "m%u", n);
        struct text_place *t = text_cap == 0 ? NULL : text_find(hash64(slice_of(text), 3) | 1);
        bool there =
            t != NULL && t->hash != 0 && t->offset < final_tails[t->lane] && strcmp(finals[t->lane][t->offset].text, text) == 0;
        if (m->acked && (!there || t->lane != m->lane || t->offset != m->offset))
            sim_fail("%s was answered as stored in lane %u at offset %llu, and is not there", text, m->lane,
                     (unsigned long long)m->offset);
        if (there && !m->possible) sim_fail("%s is stored, although every attempt was refused", text);
        const struct message *before = &messages[m->previous];
        if (m->previous != 0 && before->acked && m->acked && before->answered_us < m->invoked_us && before->offset >= m->offset)
            sim_fail("lane %u: m%u was pushed after m%u and is stored before it", m->lane, n, m->previous);
    }
}

static void consumption_check(void)
{
    for (uint32_t lane = 0; lane < LANES; lane++) {
        for (uint64_t offset = 0; offset < final_tails[lane]; offset++) {
            const struct final_message *m = &finals[lane][offset];
            for (uint32_t g = 0; g < GROUPS; g++) {
                if (g == GROUP_STEPS && lane >= LANE_OUT) continue;
                if (m->dead[g] || place_at(lane, offset)->delivered[g]) continue;
                sim_fail("%s (lane %u, offset %llu) was never delivered to group %u", m->text, lane, (unsigned long long)offset,
                         g);
            }
        }
    }
}

void queue_work_check(void)
{
    struct final first = {0};
    bool any = false;
    for (uint32_t i = 1; i <= SIM_NODES_MAX; i++) {
        struct sim_node *n = &sim.nodes[i];
        if (!n->up || n->broker == NULL) continue;
        struct final f = {.node = i};
        work_on_node(n, final_read, &f);
        for (uint32_t lane = 0; any && lane < LANES; lane++) {
            if (f.tails[lane] != first.tails[lane]) sim_fail("n%u: lane %u ends elsewhere than on n%u", i, lane, first.node);
        }
        first = f;
        any = true;
    }
    producers_check();
    consumption_check();
}

bool queue_final_has(uint32_t lane, const char *text, int64_t *created_us)
{
    struct text_place *t = text_cap == 0 ? NULL : text_find(hash64(slice_of(text), 3) | 1);
    if (t == NULL || t->hash == 0 || t->lane != lane || t->offset >= final_tails[lane]) return false;
    if (strcmp(finals[lane][t->offset].text, text) != 0) return false;
    if (created_us != NULL) *created_us = finals[lane][t->offset].created_us;
    return true;
}
