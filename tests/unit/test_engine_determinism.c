/* The engine is a function of its entries: random command streams give the same results and the same state in an engine that never
 * stops, in one whose rows are cut all the time, and in one that is dropped and recovered from its rows again and again. A log without
 * the steps that were refused gives the same state.
 *
 * QUEEN_SIM_SEEDS  how many streams (default 30); QUEEN_SIM_SEED  the first seed: a failing one replays exactly. */
#include "engine_kit.h"

enum { STEPS = 700, QUEUES = 3, LANES = 6, GROUPS = 2, IDS = 400 };

static uint64_t rng_state;

static uint32_t rng(uint32_t below)
{
    rng_state ^= rng_state << 13;
    rng_state ^= rng_state >> 7;
    rng_state ^= rng_state << 17;
    return (uint32_t)((rng_state >> 20) % below);
}

static struct slice name_of(struct arena *a, const char *prefix, uint32_t n)
{
    char text[32];
    int len = snprintf(text, sizeof text, "%s%u", prefix, n);
    return arena_copy(a, slice_make(text, (size_t)len));
}

/* What the stream knows of earlier answers: leases and message ids to use again. */
struct memory {
    uint32_t leases;
    uint32_t group; /* of the last pop; GROUPS = queue mode */
    struct {
        uint32_t partition, lease, group, id_count;
        char ids[10][UUID_TEXT];
        uint8_t id_lens[10];
    } claims[64];
    uint32_t claim_count;
    struct uuid auto_ids[64];
    uint32_t auto_count;
};

static struct slice random_id(struct arena *a, const struct memory *m)
{
    if (m->auto_count > 0 && rng(8) == 0) {
        char text[UUID_TEXT];
        uuid_text(m->auto_ids[rng(m->auto_count < 64 ? m->auto_count : 64)], text);
        return arena_copy(a, slice_make(text, UUID_TEXT));
    }
    return name_of(a, "id-", rng(IDS));
}

static struct slice group_name(struct arena *a, uint32_t group)
{
    return group == GROUPS ? slice_of(QUEUE_MODE_GROUP) : name_of(a, "group-", group);
}

static void random_push(struct buf *b, struct arena *a, const struct memory *m)
{
    struct push_writer w;
    uint32_t groups = 1 + rng(3);
    push_begin(&w, b, KIT_TENANT);
    for (uint32_t g = 0; g < groups; g++) {
        uint32_t items = 1 + rng(8);
        push_group_begin(&w, name_of(a, "queue-", rng(QUEUES)), name_of(a, "lane-", rng(LANES)), items);
        for (uint32_t i = 0; i < items; i++) {
            struct push_item item = {.payload = name_of(a, "", rng(1000))};
            if (rng(4) != 0) {
                item.flags |= ITEM_TRANSACTION;
                item.transaction = random_id(a, m);
            }
            if (rng(5) == 0) item.flags |= ITEM_TRACE;
            push_item_add(&w, &item);
        }
        push_group_end(&w);
    }
    push_end(&w);
}

static void random_pop(struct buf *b, struct arena *a, struct memory *m)
{
    struct pop_command p = {
        .tenant = KIT_TENANT, .lease_id = kit_lease(++m->leases), .batch = 1 + rng(10), .partitions = 1 + rng(4)};
    p.scope = (uint8_t)(rng(6) == 0 ? POP_DISCOVERY : rng(3) == 0 ? POP_PARTITION : POP_QUEUE);
    p.mode = (uint8_t)rng(3);
    p.from_us = INT64_C(1900000000000000) + rng(2000) * 1000000;
    p.conflation = rng(12) == 0 ? CONFLATION_ON : CONFLATION_ABSENT;
    p.auto_ack = rng(6) == 0;
    p.lease_us = rng(3) == 0 ? 0 : (1 + rng(30)) * 1000000;
    m->group = rng(GROUPS + 1);
    p.group = group_name(a, m->group);
    p.queue = name_of(a, "queue-", rng(QUEUES));
    p.partition = name_of(a, "lane-", rng(LANES));
    if (p.scope == POP_DISCOVERY) p.name_space = name_of(a, "queue-", rng(QUEUES));
    pop_encode(b, &p);
}

/* Mostly acks of a claim that was made, in order, whole or in part; sometimes anything. */
static void random_ack(struct buf *b, struct arena *a, const struct memory *m)
{
    uint32_t held = m->claim_count < 64 ? m->claim_count : 64,
             pick = held == 0 ? 0 : (m->claim_count - 1 - rng(held < 8 ? held : 8)) % 64;
    bool known = held > 0 && rng(6) != 0;
    uint32_t items = known ? 1 + rng(m->claims[pick].id_count) : 1 + rng(4);
    if (known && rng(2) == 0) items = m->claims[pick].id_count;
    bool calm = rng(2) == 0; /* all completed */
    ack_begin(b, KIT_TENANT, group_name(a, known ? m->claims[pick].group : rng(GROUPS + 1)), items);
    for (uint32_t i = 0; i < items; i++) {
        struct ack_item item = {.partition = 1 + rng(QUEUES * LANES + 2), .transaction = random_id(a, m)};
        uint32_t roll = rng(10);
        item.status = (uint8_t)(calm || roll < 5 ? ACK_COMPLETED : roll < 8 ? ACK_FAILED : roll < 9 ? ACK_RETRY : ACK_DLQ);
        if (known) {
            item.partition = m->claims[pick].partition;
            item.fenced = rng(6) != 0;
            item.lease = kit_lease(m->claims[pick].lease);
            if (rng(12) != 0) item.transaction = slice_make(m->claims[pick].ids[i], m->claims[pick].id_lens[i]);
        }
        if (rng(3) == 0) {
            item.has_error = 1;
            item.error = name_of(a, "error ", rng(10));
        }
        ack_item_add(b, &item);
    }
    ack_end(b, 0);
}

static void random_configure(struct buf *b, struct arena *a)
{
    struct configure_command c = {.tenant = KIT_TENANT, .queue = name_of(a, "queue-", rng(QUEUES)), .replace = rng(4) == 0};
    static const int options[] = {OPTION_LEASE_TIME,         OPTION_RETRY_LIMIT,   OPTION_DEDUP_WINDOW_SECONDS,
                                  OPTION_DELAYED_PROCESSING, OPTION_WINDOW_BUFFER, OPTION_DEAD_LETTER_QUEUE};
    for (size_t i = 0; i < sizeof options / sizeof options[0]; i++) {
        if (rng(3) != 0) continue;
        c.given |= 1U << options[i];
        c.options.numbers[options[i]] = (int32_t)rng(6);
    }
    configure_encode(b, &c);
}

static void random_kv(struct buf *b, struct arena *a, bool in_step)
{
    uint32_t count = 1 + rng(4), first = rng(30);
    size_t at = kv_begin(b, KIT_TENANT, count);
    for (uint32_t i = 0; i < count; i++) {
        struct kv_op op = {.kind = (uint8_t)rng(in_step ? KV_GET_PREFIX : KV_GET_PREFIX + 1), .value = name_of(a, "", rng(50))};
        op.name_space = name_of(a, "space-", rng(2));
        op.key = name_of(a, "key-", first + 2 * i + rng(2)); /* no key is written twice in a call */
        if (rng(3) == 0) op.flags |= KV_REQUIRED;
        if (op.kind == KV_CHECK || (op.kind != KV_INCR && kv_op_writes(op.kind) && rng(3) == 0)) {
            op.flags |= KV_EXPECT;
            op.expect = rng(2) == 0 ? 0 : rng(400);
        }
        if (op.kind == KV_PUT && rng(6) == 0) op.value = slice_of("{\"a\":1}");
        if (op.kind == KV_PUT && rng(3) == 0)
            op.value = name_of(a, "100000000000000000", rng(1000)); /* too long to stay in memory */
        if (op.kind == KV_INCR && rng(3) == 0) op.value = slice_of("-0.25");
        if (op.kind == KV_INCR && rng(4) == 0) {
            op.flags |= KV_HAS_MAX;
            op.max = slice_of("60");
        }
        op.ttl_us = rng(3) == 0 ? 0 : (1 + rng(rng(2) == 0 ? 20 : 400)) * INT64_C(1000000); /* some live long: they may rest */
        if (op.kind == KV_GET_MANY) {
            struct buf keys = {0};
            op.key_count = (uint16_t)(1 + rng(3));
            for (uint32_t k = 0; k < op.key_count; k++) kv_key_put(&keys, name_of(a, "key-", rng(40)));
            op.key = arena_copy(a, buf_view(&keys));
            buf_free(&keys);
        } else if (op.kind == KV_GET_PREFIX) {
            op.key = slice_of("key-");
            op.value = rng(2) == 0 ? slice_of("") : name_of(a, "key-", rng(40));
            op.limit = 1 + rng(20);
            if (rng(2) == 0) op.flags |= KV_KEYS_ONLY;
        }
        kv_op_add(b, &op);
    }
    kv_end(b, at);
}

static void random_timers(struct buf *b, struct arena *a)
{
    uint32_t count = 1 + rng(3);
    size_t at = timers_begin(b, KIT_TENANT, count);
    for (uint32_t i = 0; i < count; i++) {
        struct timer_op op = {.kind = rng(4) == 0 ? TIMER_CANCEL : TIMER_SCHEDULE, .key = name_of(a, "timer-", rng(40))};
        op.queue = name_of(a, "queue-", rng(QUEUES + 1));
        op.partition = name_of(a, "lane-", rng(LANES));
        op.delay_us = (int64_t)rng(6000000) - 100000;
        op.item = (struct push_item){.flags = ITEM_TRANSACTION | ITEM_ID, .payload = slice_of("1")};
        op.item.transaction = name_of(a, "id-", rng(IDS));
        op.item.id = kit_lease(1000000 + rng(1000000));
        timer_op_add(b, &op);
    }
    timers_end(b, at);
}

static void random_locks(struct buf *b, struct arena *a)
{
    uint32_t count = 1 + rng(3);
    size_t at = locks_begin(b, KIT_TENANT, count);
    for (uint32_t i = 0; i < count; i++) {
        struct lock_op op = {.kind = (uint8_t)rng(LOCK_GET + 1), .limit = 1 + rng(3), .slot = rng(3), .token = rng(400)};
        op.name = name_of(a, "lock-", rng(3));
        op.ttl_us = (1 + rng(rng(2) == 0 ? 10 : 300)) * INT64_C(1000000);
        op.has_owner = rng(4) != 0;
        op.owner = rng(2) == 0 ? slice_of("\"ann\"") : slice_of("\"bob the builder\"");
        lock_op_add(b, &op);
    }
    locks_end(b, at);
}

static void random_positions(struct buf *b, struct arena *a)
{
    size_t at = positions_begin(b, KIT_TENANT, 1);
    struct position_item item = {.forget = rng(5) == 0, .offset = rng(60), .mode = (uint8_t)rng(2)};
    item.queue = name_of(a, "queue-", rng(QUEUES));
    item.partition = name_of(a, "lane-", rng(LANES));
    item.group = group_name(a, rng(GROUPS + 1));
    position_add(b, &item);
    positions_end(b, at);
}

static void random_pop(struct buf *b, struct arena *a, struct memory *m);
static void random_ack(struct buf *b, struct arena *a, const struct memory *m);

static void part_append(struct buf *b, struct buf *part)
{
    buf_slice(b, buf_view(part));
    buf_free(part);
}

static void random_step(struct buf *b, struct arena *a, struct memory *m)
{
    size_t at = step_begin(b);
    struct buf part = {0};
    bool any = false;
    for (uint32_t i = rng(3); i > 0; i--, any = true) {
        random_ack(&part, a, m);
        part_append(b, &part);
    }
    if (rng(3) != 0 && (any = true)) {
        random_push(&part, a, m);
        part_append(b, &part);
    }
    if (rng(8) == 0 && (any = true)) {
        random_positions(&part, a);
        part_append(b, &part);
    }
    if ((!any || rng(2) == 0) && (any = true)) {
        random_kv(&part, a, true);
        part_append(b, &part);
    }
    if (rng(3) == 0) {
        random_timers(&part, a);
        part_append(b, &part);
    }
    if (rng(3) == 0) {
        random_pop(&part, a, m);
        part_append(b, &part);
    }
    step_end(b, at);
}

/* A dead letter's id and sequence: of one that is there, or any. */
static struct uuid random_letter(struct engine *e, uint64_t *sequence)
{
    struct dead_letter_view v;
    struct uuid id = kit_lease(rng(1000));
    uint64_t before = UINT64_MAX;
    *sequence = rng(100);
    for (uint32_t i = rng(4); engine_dead_letter_next(e, KIT_TENANT, slice_of(""), slice_of(""), &before, &v); i--) {
        id = v.id;
        *sequence = before;
        if (i == 0) break;
    }
    return id;
}

static void random_letter_move(struct buf *b, struct arena *a, struct engine *e)
{
    struct push_writer w;
    uint64_t ignored;
    size_t at = letter_move_begin(b, KIT_TENANT, random_letter(e, &ignored));
    push_begin(&w, b, KIT_TENANT);
    push_group_begin(&w, name_of(a, "queue-", rng(QUEUES)), name_of(a, "lane-", rng(LANES)), 1);
    struct push_item item = {.flags = ITEM_TRANSACTION, .transaction = name_of(a, "id-", rng(IDS)), .payload = slice_of("1")};
    push_item_add(&w, &item);
    push_group_end(&w);
    push_end(&w);
    letter_move_end(b, at);
}

/* What the last answer said about how a piece goes on; names are static text. */
static struct {
    bool seek, group_delete, subscription, letters;
    struct seek_command s;
    struct group_delete_command g;
    struct subscription_command u;
    struct letters_delete_command l;
} pending;
static uint8_t pending_kind; /* of the command written last */

static struct slice static_name(const char *prefix, uint32_t n)
{
    static char names[3][8][16];
    char *name = names[prefix[0] == 'q' ? 0 : prefix[0] == 'l' ? 1 : 2][n];
    snprintf(name, 16, "%s%u", prefix, n);
    return slice_of(name);
}

static void random_admin(struct buf *b, struct arena *a, struct engine *e)
{
    uint64_t sequence;
    struct slice queue = static_name("queue-", rng(QUEUES));
    uint32_t g = rng(GROUPS + 1);
    struct slice group = g == GROUPS ? slice_of(QUEUE_MODE_GROUP) : static_name("group-", g);
    switch (rng(6)) {
    case 0:
    case 1:
        if (!pending.seek || rng(4) == 0) {
            pending.s = (struct seek_command){.tenant = KIT_TENANT,
                                              .to_end = rng(2) == 0,
                                              .has_partition = rng(2) == 0,
                                              .us = INT64_C(1900000000000000) + rng(2000) * 1000000,
                                              .group = group,
                                              .queue = queue,
                                              .partition = static_name("lane-", rng(LANES)),
                                              .piece = {.most = 1 + rng(4)}};
        }
        pending.seek = false;
        pending_kind = COMMAND_SEEK;
        seek_encode(b, &pending.s);
        return;
    case 2:
        if (!pending.group_delete || rng(4) == 0) {
            pending.g = (struct group_delete_command){.tenant = KIT_TENANT,
                                                      .keep_registration = rng(2) == 0,
                                                      .group = group,
                                                      .queue = rng(3) == 0 ? slice_of("") : queue,
                                                      .piece = {.most = 1 + rng(4)}};
        }
        pending.group_delete = false;
        pending_kind = COMMAND_GROUP_DELETE;
        group_delete_encode(b, &pending.g);
        return;
    case 3:
        if (!pending.subscription || rng(4) == 0) {
            pending.u = (struct subscription_command){.tenant = KIT_TENANT,
                                                      .us = INT64_C(1900000000000000) + rng(2000) * 1000000,
                                                      .group = group,
                                                      .piece = {.most = 1 + rng(4)}};
        }
        pending.subscription = false;
        pending_kind = COMMAND_SUBSCRIPTION;
        subscription_encode(b, &pending.u);
        return;
    case 4:
        random_letter(e, &sequence);
        if (!pending.letters || rng(4) == 0) {
            pending.l = (struct letters_delete_command){.tenant = KIT_TENANT,
                                                        .count = rng(3) == 0 ? 0 : 1,
                                                        .sequences = (const char *)&sequence,
                                                        .queue = queue,
                                                        .group = rng(2) == 0 ? slice_of("") : group,
                                                        .piece = {.most = 1 + rng(4)}};
        }
        pending.letters = false;
        pending_kind = COMMAND_LETTERS_DELETE;
        letters_delete_encode(b, &pending.l);
        return;
    default:
        random_letter_move(b, a, e);
    }
}

static void remember_piece(const struct engine_result *r)
{
    if (r->kind != pending_kind || !r->changed.more) return;
    pending.seek |= r->kind == COMMAND_SEEK;
    pending.group_delete |= r->kind == COMMAND_GROUP_DELETE;
    pending.subscription |= r->kind == COMMAND_SUBSCRIPTION;
    pending.letters |= r->kind == COMMAND_LETTERS_DELETE;
    if (r->kind == COMMAND_SEEK) pending.s.piece = r->changed.next;
    if (r->kind == COMMAND_GROUP_DELETE) pending.g.piece = r->changed.next;
    if (r->kind == COMMAND_SUBSCRIPTION) pending.u.piece = r->changed.next;
    if (r->kind == COMMAND_LETTERS_DELETE) pending.l.piece = r->changed.next;
}

static struct engine *stream_engine; /* of the stream being made up */

static void random_trim(struct buf *b)
{
    struct trim_item items[3];
    uint32_t count = 1 + rng(3);
    for (uint32_t i = 0; i < count; i++) {
        items[i] = (struct trim_item){.partition = 1 + rng(QUEUES * LANES + 2), .start = rng(120)};
    }
    trim_encode(b, items, count);
}

static void random_command(struct buf *b, struct arena *a, struct memory *m)
{
    uint32_t roll = rng(174);
    if (roll >= 168) {
        random_trim(b);
    } else if (roll >= 160) {
        random_admin(b, a, stream_engine);
    } else if (roll >= 150) {
        tick_encode(b);
    } else if (roll >= 145) {
        random_locks(b, a);
    } else if (roll >= 138) {
        random_timers(b, a);
    } else if (roll >= 128) {
        random_kv(b, a, false);
    } else if (roll >= 100) {
        random_step(b, a, m);
    } else if (roll < 33) {
        random_push(b, a, m);
    } else if (roll < 62) {
        random_pop(b, a, m);
    } else if (roll < 88) {
        random_ack(b, a, m);
    } else if (roll < 92) {
        struct extend_command x = {.tenant = KIT_TENANT, .lease = kit_lease(1 + rng(m->leases + 1)), .seconds = 1 + rng(20)};
        extend_encode(b, &x);
    } else if (roll < 95) {
        claim_return_encode(b, kit_lease(1 + rng(m->leases + 1)));
    } else if (roll < 99) {
        if (rng(3) != 0) return random_push(b, a, m);
        random_configure(b, a);
    } else if (rng(3) != 0) {
        random_pop(b, a, m);
    } else {
        struct queue_delete_command d = {.tenant = KIT_TENANT, .queue = name_of(a, "queue-", rng(QUEUES))};
        queue_delete_encode(b, &d);
    }
}

/* The transaction ids of a claim's first messages, read from the log as a consumer would get them. */
static void remember_claim(struct memory *m, const struct kit_log *log, const struct claim *c)
{
    uint32_t at = m->claim_count++ % 64;
    m->claims[at].partition = c->partition;
    m->claims[at].lease = m->leases;
    m->claims[at].group = m->group;
    m->claims[at].id_count = 0;
    for (uint32_t i = 0; i < c->piece_count; i++) {
        const struct delivery_piece *p = &c->pieces[i];
        struct push_group g;
        assert_true(push_group_of(slice_make(log->bytes.at + p->where, p->block_bytes), &g));
        for (uint32_t j = 0; j < p->count && m->claims[at].id_count < 10; j++) {
            struct push_item item;
            uint32_t n = m->claims[at].id_count++;
            push_group_item(&g, p->item0 + j, &item);
            if (item.flags & ITEM_TRANSACTION) {
                memcpy(m->claims[at].ids[n], item.transaction.at, item.transaction.len);
                m->claims[at].id_lens[n] = (uint8_t)item.transaction.len;
            } else {
                uuid_text(message_id(0x1234567890abcdef, c->partition, p->first_offset + j, p->created_us),
                          m->claims[at].ids[n]);
                m->claims[at].id_lens[n] = UUID_TEXT;
            }
        }
    }
}

static void remember(struct memory *m, const struct kit_log *log, const struct engine_result *r)
{
    if (r->kind == COMMAND_POP) {
        for (uint32_t i = 0; i < r->pop.count; i++) remember_claim(m, log, &r->pop.claims[i]);
    } else if (r->kind == COMMAND_STEP && r->step.refusal == STEP_COMMITTED) {
        for (uint32_t i = 0; i < r->step.next.count; i++) remember_claim(m, log, &r->step.next.claims[i]);
    } else if (r->kind == COMMAND_PUSH) {
        for (uint32_t i = 0; i < r->push.count; i++) {
            if (rng(4) == 0) m->auto_ids[m->auto_count++ % 64] = r->push.items[i].id;
        }
    }
}

/* One stream, written down in the kit's log while it is applied. */
static void stream_run(struct kit *k, uint64_t *refused)
{
    struct memory m = {0};
    struct arena a;
    arena_init(&a);
    stream_engine = k->e;
    memset(&pending, 0, sizeof pending);
    for (int step = 0; step < STEPS; step++) {
        struct buf b = {0};
        uint32_t count = 1 + rng(3);
        for (uint32_t i = 0; i < count; i++) {
            struct buf one = {0};
            random_command(&one, &a, &m);
            buf_slice(&b, buf_view(&one));
            buf_free(&one);
        }
        arena_reset(&k->arena);
        kit_entry(k, buf_view(&b), count);
        refused[k->log->count - 1] = k->refused;
        remember(&m, k->log, &k->result);
        if (pending_kind != 0) remember_piece(&k->result);
        pending_kind = 0;
        kit_pass(k, rng(60) == 0 ? rng(900000000) : rng(4) == 0 ? rng(4000000) : rng(1000));
        buf_free(&b);
        arena_reset(&a);
        while (engine_housekeep(k->e)) continue;
    }
    arena_free(&a);
}

static uint64_t left_memory;    /* lanes that were only in the store at a cut, all cuts together */
static uint64_t kv_left_memory; /* KV rows, the same */
static uint64_t kv_expired;     /* looks at KV rows that were at rest when their time came, of all streams */
static uint64_t timers_left;    /* timers, when a cut was stored, of all streams */

struct other {
    struct kit kit;
    uint64_t cut_index; /* what its rows are a state of */
};

static void other_apply(struct kit *k, const struct kit_log *log, size_t n)
{
    struct engine_sink sink = {.ctx = k, .arena = kit_sink_arena, .result = kit_sink_result, .ready = kit_sink_ready};
    arena_reset(&k->arena);
    struct slice entry = slice_make(log->bytes.at + log->entries[n].at, log->entries[n].len);
    assert_null(engine_apply(k->e, log->entries[n].index, log->entries[n].at, entry, &sink));
}

static void timer_lane_seen(void *ctx, struct uuid tenant, struct slice queue, struct slice partition)
{
    (void)tenant, (void)queue;
    assert_true(partition.len > 0);
    ++*(uint32_t *)ctx;
}

/* Listings begin anywhere and are cut short; who is seen is in order, and as many as are counted. */
static void timers_read(struct engine *e, struct engine_now now)
{
    char name[16], key[16] = "";
    struct timer_view v;
    struct timer_tally tally = {0};
    uint32_t seen = 0, due = 0;
    snprintf(name, sizeof name, "queue-%u", rng(QUEUES + 1));
    struct slice queue = slice_of(name);
    while (engine_timers_count(e, KIT_TENANT, queue, slice_of("timer-"), 1 + rng(10), &tally)) continue;
    if (rng(2) == 0) snprintf(key, sizeof key, "timer-%u", rng(40));
    bool whole = key[0] == '\0';
    while (rng(50) != 0 && engine_timer_next(e, KIT_TENANT, queue, slice_of(key), &v)) {
        assert_true(v.key.len < sizeof key && slice_compare(slice_of(key), v.key) < 0);
        memcpy(key, v.key.at, v.key.len);
        key[v.key.len] = '\0';
        seen++;
    }
    assert_true(seen <= tally.count &&
                (!whole || seen == tally.count || engine_timer_next(e, KIT_TENANT, queue, slice_of(key), &v)));
    if (rng(3) == 0) snprintf(key, sizeof key, "timer-%u", rng(40));
    bool known = engine_timer_get(e, KIT_TENANT, queue, slice_of(key), &v);
    assert_true(!known || slice_is(v.key, key));
    now.wall_us += rng(6000000);
    uint32_t told = engine_timers_due(e, now, 1 + rng(20), timer_lane_seen, &due);
    assert_true(due <= told);
}

/* Reads change nothing, whatever they bring into memory. */
static void other_read(struct kit *k)
{
    struct engine_now now = {.log_us = k->log_us, .wall_us = engine_safe_time_us(k->e)};
    uint32_t number = 1 + rng(40), queue = 1 + rng(8);
    struct lane_counts counts;
    struct partition_view partition;
    struct lane_view lane;
    struct cursor_view cursor;
    struct trim_item items[4];
    uint32_t count;
    engine_lane_counts(k->e, number, now, &counts);
    engine_partition_get(k->e, number, now, &partition);
    engine_lane_get(k->e, KIT_TENANT, number, &lane);
    engine_cursor_get(k->e, number, 1 + rng(10), now, &cursor);
    for (uint32_t after = 0; rng(8) != 0 && engine_lane_next(k->e, queue, after, &lane);) after = lane.number;
    engine_trim_due(k->e, now, &(struct trim_limits){1 + rng(100), 4, 1 + rng(20)}, items, &count);
    timers_read(k->e, now);
    if (rng(2) == 0) engine_visits_over(k->e);
}

/* Of everything that holds bytes, a part, wherever it is by now: no result nor digest may tell. */
static uint64_t moves;

static void some_move(struct kit *k)
{
    struct kit_holders all = {0};
    kit_holders(k, 0, UINT64_MAX, &all);
    for (uint32_t i = 0; i < all.count; i++)
        if (rng(3) == 0) moves += kit_move(k, &all.at[i]);
    const char *wrong = engine_check(k->e);
    if (wrong != NULL) fail_msg("%s", wrong);
    free(all.at);
}

enum other_ways { RECOVERS = 1, FORGETS = 2 };

/* Applies the same log with cuts at random places. RECOVERS: drops the engine at random places and replays from its last cut. FORGETS:
 * what may leave memory does, at every cut and when nothing happens for a while, and reads bring some of it back. */
static void other_replay(struct other *o, struct kit_log *log, int ways)
{
    struct kit *k = &o->kit;
    *k = (struct kit){.log = log};
    bool recovers = ways & RECOVERS;
    if (ways & FORGETS) k->budget = (struct engine_budget){.lanes = 1, .dedup = 1 + rng(60000), .timers = 1 + rng(1000)};
    k->budget.kv_values = 1; /* values leave as soon as they are stored */
    arena_init(&k->arena);
    kit_engine_open(k);
    uint64_t revision = 0; /* of the last cut */
    for (size_t n = 0; n < log->count; n++) {
        other_apply(k, log, n);
        if (ways & FORGETS && rng(20) == 0) engine_idle(k->e);
        for (uint32_t i = rng(3) == 0 ? rng(400) : 0; i > 0; i--) engine_housekeep(k->e);
        int64_t from_us;
        if (rng(3) == 0 && engine_kv_expired(k->e, &from_us)) {
            engine_kv_expire(k->e, rng(2) == 0 ? INT64_MAX : from_us + 1 + rng(20000000), 1 + rng(8));
            kv_expired++;
        }
        if (ways & FORGETS && rng(6) == 0) other_read(k);
        if (rng(9) == 0) {
            revision = kit_cut_begin(k);
            o->cut_index = log->entries[n].index;
            struct engine_stats s;
            engine_stats(k->e, &s);
            left_memory += s.partitions - s.lanes_in_memory;
            kv_left_memory += s.kv_rows - s.kv_rows_in_memory;
        }
        if (revision != 0 && rng(4) == 0) {
            struct engine_stats s;
            engine_cut_stored(k->e, revision);
            engine_stats(k->e, &s);
            if (k->budget.timers > 0) timers_left += s.timers - s.timers_in_memory;
        }
        if (ways != 0 && rng(25) == 0) some_move(k);
        if (recovers && rng(60) == 0 && o->cut_index > 0) {
            struct buf text = k->text;
            k->text = (struct buf){0};
            kit_reload(k, o->cut_index);
            revision = 0;
            for (size_t again = (size_t)o->cut_index; again <= n; again++) other_apply(k, log, again);
            /* The replayed entries answered as they had answered. */
            assert_true(text.len >= k->text.len);
            assert_memory_equal(text.at + text.len - k->text.len, k->text.at, k->text.len);
            buf_free(&k->text);
            k->text = text;
        }
    }
}

/* Applies the log with every refused step left out (an INIT, which does nothing any more, stands in its place). */
static void other_without_refused(struct other *o, const struct kit_log *log, const uint64_t *refused)
{
    struct kit *k = &o->kit;
    *k = (struct kit){.log = calloc(1, sizeof *k->log)};
    arena_init(&k->arena);
    kit_engine_open(k);
    for (size_t n = 0; n < log->count; n++) {
        struct slice entry = slice_make(log->bytes.at + log->entries[n].at, log->entries[n].len);
        struct slice rest = slice_make(entry.at + ENTRY_HEAD_BYTES, entry.len - ENTRY_HEAD_BYTES);
        struct command c;
        size_t at = k->log->bytes.len;
        buf_put(&k->log->bytes, entry.at, ENTRY_HEAD_BYTES);
        for (uint32_t slot = 0; command_next(&rest, &c); slot++) {
            struct buf nothing = {0};
            init_encode(&nothing, 1);
            bool skipped = refused[n] >> slot & 1;
            buf_slice(&k->log->bytes, skipped ? buf_view(&nothing) : c.all);
            buf_free(&nothing);
        }
        struct engine_sink sink = {.ctx = k, .arena = kit_sink_arena};
        arena_reset(&k->arena);
        struct slice shorter = slice_make(k->log->bytes.at + at, k->log->bytes.len - at);
        assert_null(engine_apply(k->e, log->entries[n].index, at, shorter, &sink));
    }
}

static void other_close(struct other *o)
{
    engine_free(o->kit.e);
    while (o->kit.store.count > 0) kit_row_drop(&o->kit.store, o->kit.store.count - 1);
    free(o->kit.store.rows);
    arena_free(&o->kit.arena);
    buf_free(&o->kit.archive);
    buf_free(&o->kit.text);
}

static void assert_sound(struct kit *k, uint64_t seed)
{
    const char *wrong = engine_check(k->e);
    if (wrong != NULL) print_error("%s: QUEEN_SIM_SEED=%lu QUEEN_SIM_SEEDS=1\n", wrong, seed);
    assert_null(wrong);
}

static void assert_same(struct kit *a, struct kit *b, const char *what, uint64_t seed)
{
    assert_sound(b, seed);
    struct hash128_pair x = engine_digest(a->e), y = engine_digest(b->e);
    bool same = x.low == y.low && x.high == y.high && slice_equal(buf_view(&a->text), buf_view(&b->text));
    if (!same) print_error("%s differs: QUEEN_SIM_SEED=%lu QUEEN_SIM_SEEDS=1\n", what, seed);
    assert_true(slice_equal(buf_view(&a->text), buf_view(&b->text)));
    assert_true(same);
}

static void the_same_entries_give_the_same_results_and_state(void **state)
{
    (void)state;
    const char *count = getenv("QUEEN_SIM_SEEDS"), *first = getenv("QUEEN_SIM_SEED");
    uint64_t seeds = count == NULL ? 30 : strtoull(count, NULL, 10), seed = first == NULL ? 1 : strtoull(first, NULL, 10);
    for (uint64_t n = 0; n < seeds; n++, seed++) {
        struct kit k;
        struct other cut = {0}, recovered = {0}, forgotten = {0}, shorter = {0};
        static uint64_t refused[65536];
        rng_state = seed * UINT64_C(0x9e3779b97f4a7c15) + 1;
        kit_open(&k);
        memset(refused, 0, sizeof refused);
        stream_run(&k, refused);
        assert_sound(&k, seed);
        other_replay(&cut, k.log, 0);
        assert_same(&k, &cut.kit, "the engine that cuts", seed);
        other_replay(&recovered, k.log, RECOVERS);
        assert_same(&k, &recovered.kit, "the engine that recovers", seed);
        left_memory = kv_left_memory = 0;
        other_replay(&forgotten, k.log, RECOVERS | FORGETS);
        assert_same(&k, &forgotten.kit, "the engine whose lanes leave memory", seed);
        assert_true(left_memory > 0 && kv_left_memory > 0);
        other_without_refused(&shorter, k.log, refused);
        struct hash128_pair x = engine_digest(k.e), y = engine_digest(shorter.kit.e);
        if (x.low != y.low) print_error("a refused step left something: QUEEN_SIM_SEED=%lu QUEEN_SIM_SEEDS=1\n", seed);
        assert_true(x.low == y.low && x.high == y.high);
        buf_free(&shorter.kit.log->bytes);
        free(shorter.kit.log);
        other_close(&shorter);
        other_close(&cut);
        other_close(&recovered);
        other_close(&forgotten);
        kit_close(&k);
    }
    assert_true(moves > seeds * 50 && kv_expired > seeds * 20 && timers_left > seeds * 50);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(the_same_entries_give_the_same_results_and_state)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
