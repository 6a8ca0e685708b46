/* Queues of their own that operators and retention are busy with: seeks of groups in pieces, groups and queues deleted, ranges of messages
 * that retention takes, pops that acknowledge themselves, leases left to end, ids sent again.
 *
 * What a client may expect there is little; so it is checked that every message delivered is one that was pushed to that lane, whole, and
 * that deliveries have no gaps. The rest is in what holds for all entries: every node comes to the same state. */
#include <stdio.h>
#include <stdlib.h>

#include "broker/broker_internal.h"
#include "work.h"

enum { ADMINS = 3, ASIDE_QUEUES = 2, ASIDE_LANES = 5, ASIDE_GROUPS = 3, ITEMS_MAX = 4, OFTEN = 1000 };

struct admin {
    struct client client;
    struct op op;
    uint32_t number, queue, lane, next; /* next: of this one's messages */
    /* a seek or a deletion in pieces */
    bool more;
    struct piece piece;
    struct seek_command seek;
};
static struct admin admins[ADMINS];
static uint32_t pushed[ADMINS];

static const char *const queues[ASIDE_QUEUES] = {"aside-0", "aside-1"};
static const char *const lanes[ASIDE_LANES] = {"0", "1", "2", "3", "4"};
static const char *const groups[ASIDE_GROUPS] = {"a", "b", QUEUE_MODE_GROUP};

static struct slice any_of(struct rng *r, const char *const *of, uint32_t count)
{
    return slice_of(of[rng_below(r, count)]);
}

static void answered(struct op *o)
{
    struct admin *a = o->ctx;
    if (o->end != OP_OK) a->more = false;
    client_think(o->client, 50000, 900000);
}

/* ---- push ----------------------------------------------------------------------------------------------------------- */

static void push_send(struct admin *a)
{
    struct rng *r = &a->client.rng;
    struct push_writer w;
    uint32_t count = 1 + (uint32_t)rng_below(r, ITEMS_MAX), first = a->next;
    uint32_t queue = (uint32_t)rng_below(r, ASIDE_QUEUES), lane = (uint32_t)rng_below(r, ASIDE_LANES);
    bool again = a->next > 20 && rng_chance(r, 200); /* ids of before: found, or stored anew when they are forgotten */
    if (again) first = a->next - (uint32_t)rng_span(r, ITEMS_MAX, 20);
    if (!again) a->next = pushed[a->number] = a->next + count;
    push_begin(&w, &a->op.command, work_tenant);
    push_group_begin(&w, slice_of(queues[queue]), slice_of(lanes[lane]), count);
    for (uint32_t i = 0; i < count; i++) {
        char text[32], payload[600];
        snprintf(text, sizeof text, "%u-%u", a->number, first + i);
        snprintf(payload, sizeof payload, "\"%s %0*u\"", text, 1 + (int)rng_below(r, 500), 0);
        push_item_add(
            &w, &(struct push_item){.flags = ITEM_TRANSACTION, .transaction = slice_of(text), .payload = slice_of(payload)});
    }
    push_group_end(&w);
    push_end(&w);
    a->op.grows = true;
    op_send(&a->op);
}

/* ---- pop ------------------------------------------------------------------------------------------------------------ */

static void message_check(const struct push_item *item, uint64_t offset)
{
    char text[32] = "";
    unsigned by, number;
    if (item->transaction.len < sizeof text) memcpy(text, item->transaction.at, item->transaction.len);
    if (sscanf(text, "%u-%u", &by, &number) != 2 || by >= ADMINS || number >= pushed[by])
        sim_fail("aside, offset %llu: %s was never pushed", (unsigned long long)offset, text);
    size_t len = strlen(text);
    if (item->payload.len < len + 2 || memcmp(item->payload.at + 1, text, len) != 0 || item->payload.at[len + 1] != ' ')
        sim_fail("aside, offset %llu: the payload of %s is another one's", (unsigned long long)offset, text);
}

static void pop_read(struct op *o, struct call *c)
{
    (void)o;
    uint32_t piece = 0;
    if (c->outcome != CALL_OK || c->result.kind != COMMAND_POP) return;
    for (uint32_t i = 0; i < c->result.pop.count; i++) {
        const struct claim *k = &c->result.pop.claims[i];
        uint64_t expected = k->first_offset;
        for (uint32_t j = 0; j < k->piece_count; j++, piece++) {
            for (uint32_t m = 0; m < k->pieces[j].count; m++) {
                struct push_item item;
                if (k->pieces[j].first_offset + m != expected++)
                    sim_fail("aside: a delivery with a gap before offset %llu", (unsigned long long)expected);
                push_group_item(&c->pieces[piece].group, k->pieces[j].item0 + m, &item);
                message_check(&item, expected - 1);
                work_counts.delivered++;
            }
        }
        if (expected != k->last_offset + 1) sim_fail("aside: a delivery ends early");
    }
}

static void pop_send(struct admin *a)
{
    struct rng *r = &a->client.rng;
    struct uuid lease;
    uint64_t bits[2] = {rng_u64(r), rng_u64(r)};
    memcpy(lease.bytes, bits, sizeof lease.bytes);
    bool pinned = rng_chance(r, 300);
    a->op.kind = CALL_POP;
    a->op.read = pop_read;
    a->op.pop = (struct pop_command){.tenant = work_tenant,
                                     .lease_id = lease,
                                     .scope = pinned ? POP_PARTITION : POP_QUEUE,
                                     .mode = rng_chance(r, 700) ? SUBSCRIBE_ALL : SUBSCRIBE_NEW,
                                     .auto_ack = rng_chance(r, 750), /* else the lease ends by itself */
                                     .batch = 1 + (uint32_t)rng_below(r, 8),
                                     .partitions = 1 + (uint32_t)rng_below(r, 3),
                                     .lease_us = rng_span(r, 1, 5) * 1000000,
                                     .group = any_of(r, groups, ASIDE_GROUPS),
                                     .queue = any_of(r, queues, ASIDE_QUEUES),
                                     .partition = pinned ? any_of(r, lanes, ASIDE_LANES) : slice_of(""),
                                     .name_space = slice_of(""),
                                     .task = slice_of("")};
    op_send(&a->op);
}

/* ---- operators ------------------------------------------------------------------------------------------------------ */

static void piece_read(struct op *o, struct call *c)
{
    struct admin *a = o->ctx;
    a->more = c->result.changed.more;
    a->piece = c->result.changed.next;
}

static void seek_go_on(struct admin *a)
{
    a->seek.piece = a->piece;
    a->op.read = piece_read;
    seek_encode(&a->op.command, &a->seek);
    op_send(&a->op);
}

static void seek_send(struct admin *a)
{
    struct rng *r = &a->client.rng;
    bool one = rng_chance(r, 300);
    a->seek = (struct seek_command){.tenant = work_tenant,
                                    .to_end = rng_chance(r, 300),
                                    .has_partition = one,
                                    .us = SIM_WALL_BASE_US + sim.now_us - rng_span(r, 0, 120000000),
                                    .group = any_of(r, groups, ASIDE_GROUPS),
                                    .queue = any_of(r, queues, ASIDE_QUEUES),
                                    .partition = one ? any_of(r, lanes, ASIDE_LANES) : slice_of("")};
    a->piece = (struct piece){.most = 1 + (uint32_t)rng_below(r, 3)};
    seek_go_on(a);
}

static void group_delete_send(struct admin *a)
{
    struct rng *r = &a->client.rng;
    struct group_delete_command d = {.tenant = work_tenant,
                                     .keep_registration = rng_chance(r, 500),
                                     .group = any_of(r, groups, ASIDE_GROUPS),
                                     .queue = any_of(r, queues, ASIDE_QUEUES)};
    group_delete_encode(&a->op.command, &d);
    op_send(&a->op);
}

static void configure_send(struct admin *a)
{
    struct rng *r = &a->client.rng;
    struct configure_command k = {.tenant = work_tenant, .queue = any_of(r, queues, ASIDE_QUEUES)};
    k.given = 1U << OPTION_RETENTION_ENABLED | 1U << OPTION_RETENTION_SECONDS | 1U << OPTION_COMPLETED_RETENTION_SECONDS |
              1U << OPTION_DEDUP_WINDOW_SECONDS;
    k.options.numbers[OPTION_RETENTION_ENABLED] = rng_chance(r, 800);
    k.options.numbers[OPTION_RETENTION_SECONDS] = (int32_t)rng_span(r, 0, 90);
    k.options.numbers[OPTION_COMPLETED_RETENTION_SECONDS] = (int32_t)rng_span(r, 0, 30);
    k.options.numbers[OPTION_DEDUP_WINDOW_SECONDS] = (int32_t)rng_span(r, 0, 60);
    configure_encode(&a->op.command, &k);
    op_send(&a->op);
}

static void queue_delete_send(struct admin *a)
{
    queue_delete_encode(&a->op.command, &(struct queue_delete_command){.tenant = work_tenant,
                                                                       .queue = any_of(&a->client.rng, queues, ASIDE_QUEUES)});
    op_send(&a->op);
}

static void admin_step(struct client *c)
{
    struct admin *a = (struct admin *)(void *)((char *)c - offsetof(struct admin, client));
    uint64_t what = rng_below(&c->rng, OFTEN);
    a->op.client = c;
    op_clear(&a->op);
    a->op.kind = CALL_WRITE;
    a->op.ctx = a;
    a->op.read = NULL;
    a->op.answered = answered;
    if (a->more)
        seek_go_on(a);
    else if (what < 450)
        push_send(a);
    else if (what < 800)
        pop_send(a);
    else if (what < 880)
        seek_send(a);
    else if (what < 920)
        group_delete_send(a);
    else if (what < 980)
        configure_send(a);
    else
        queue_delete_send(a);
}

void admin_work_start(void)
{
    for (uint32_t i = 0; i < ADMINS; i++) {
        admins[i].number = i;
        client_start(&admins[i].client, "admin", i, admin_step);
    }
}
