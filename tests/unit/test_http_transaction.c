/* The body of a transaction: what is read, in what order it is refused, and the command that is made of it. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

#include <cmocka.h>
#include <stdio.h>

#include "base/limits.h"
#include "broker/config.h"
#include "http/json.h"
#include "http/transaction.h"

#define LEASE "01a9c0de-1111-7abc-8def-00000000000a"
#define OTHER "01a9c0de-1111-7abc-8def-00000000000b"

static const struct uuid tenant = {{9}};

struct kit {
    struct config config;
    struct arena arena;
    struct buf text, command;
    struct transaction_input in;
    struct transaction_refusal why;
    struct step_command step;
};

static int kit_make(void **state)
{
    struct kit *k = calloc(1, sizeof *k);
    struct buf error = {0};
    assert_non_null(k);
    assert_true(config_read(&k->config, 0, NULL, &error));
    arena_init(&k->arena);
    *state = k;
    return 0;
}

static int kit_drop(void **state)
{
    struct kit *k = *state;
    arena_free(&k->arena);
    buf_free(&k->text);
    buf_free(&k->command);
    free(k);
    return 0;
}

static struct slice body(struct kit *k, struct slice text)
{
    buf_clear(&k->text);
    buf_slice(&k->text, text);
    memset(buf_reserve(&k->text, JSON_PAD), 0, JSON_PAD);
    return buf_view(&k->text);
}

static bool read(struct kit *k, struct slice text)
{
    memset(&k->why, 0, sizeof k->why);
    return body_transaction_read(body(k, text), &k->arena, &k->config, tenant, &k->in, &k->why) &&
           transaction_plan(&k->in, &k->arena, &k->why);
}

/* Reads, encodes, decodes. */
static void accept(struct kit *k, const char *text)
{
    if (!read(k, slice_of(text))) fail_msg("%s\nrefused: %s", text, k->why.text);
    if (transaction_is_empty(&k->in)) return;
    buf_clear(&k->command);
    transaction_encode(&k->in, tenant, &k->arena, &k->command);
    struct slice rest = buf_view(&k->command);
    struct command c;
    assert_true(command_next(&rest, &c) && rest.len == 0 && c.kind == COMMAND_STEP && step_decode(&c, &k->step));
    assert_true(uuid_equal(k->step.tenant, tenant));
    assert_int_equal(k->step.ack_items, k->in.ack_count);
}

static void refused(struct kit *k, struct slice text, uint32_t status, const char *reason, const char *says)
{
    if (read(k, text)) fail_msg("accepted: %.*s", (int)(text.len < 500 ? text.len : 500), text.at);
    bool right = k->why.status == status && (reason == NULL ? k->why.reason == NULL && k->why.code != NULL
                                                            : k->why.reason != NULL && strcmp(k->why.reason, reason) == 0);
    if (right && strstr(k->why.text, says) != NULL) return;
    fail_msg("%.*s\nwas refused with %u %s \"%s\"", (int)(text.len < 500 ? text.len : 500), text.at, k->why.status,
             k->why.reason == NULL ? k->why.code : k->why.reason, k->why.text);
}

static const struct transaction_slot *slot(struct kit *k, uint32_t index)
{
    const struct transaction_slot *s = k->in.slots;
    while (index-- > 0 && s != NULL) s = s->next;
    assert_non_null(s);
    return s;
}

/* ---- what is read ------------------------------------------------------------------------------------------------- */

static void test_all_parts(void **state)
{
    struct kit *k = *state;
    accept(k,
           "{\"operations\":["
           "{\"type\":\"ack\",\"transactionId\":\"scan-551\",\"partitionId\":\"17\",\"consumerGroup\":\"sorters\","
           "\"leaseId\":\"" LEASE "\",\"status\":\"Failed\",\"error\":\"torn\"},"
           "{\"items\":[{\"queue\":\"routed\",\"partition\":\"van-3\",\"transactionId\":\"r-1\",\"payload\": { \"van\" : 3 } },"
           "{\"queue\":\"routed\",\"payload\":null,\"traceId\":\"" OTHER "\"}],\"type\":\"push\"},"
           "{\"type\":\"push\",\"queue\":\"routed\",\"partition\":\"van-3\",\"payload\":1}],"
           "\"requiredLeases\":[\"" LEASE "\"],"
           "\"kv\":[{\"op\":\"putIfAbsent\",\"ns\":\"seen\",\"key\":\"k\",\"value\":1,\"ttlSeconds\":60,\"required\":true},"
           "{\"op\":\"get\",\"ns\":\"seen\",\"key\":\"k\"}],"
           "\"timers\":[{\"op\":\"schedule\",\"queue\":\"n\",\"timerKey\":\"t\",\"delayMs\":60000,\"txn\":\"n-1\",\"payload\":"
           "\"eyJhIjoxfQ==\"}],"
           "\"positions\":[{\"queue\":\"routed\",\"consumerGroup\":\"g\",\"offset\":7,\"metadata\":\"m\"}],"
           "\"next\":{\"queue\":\"parcels\",\"consumerGroup\":\"sorters\"},\"more\":{\"a\":[]}}");
    assert_int_equal(k->in.slot_count, 4);
    assert_int_equal(k->in.ack_count, 1);
    assert_int_equal(k->in.push_count, 3);
    const struct ack_item *ack = &slot(k, 0)->ack.item;
    assert_true(slice_is(slot(k, 0)->ack.group, "sorters") && slice_is(ack->transaction, "scan-551"));
    assert_true(ack->partition == 17 && ack->status == ACK_FAILED && ack->fenced && ack->has_error);
    assert_true(slice_is(ack->error, "torn"));
    assert_true(slice_is(slot(k, 1)->push.payload, "{ \"van\" : 3 }") && slice_is(slot(k, 1)->push.transaction, "r-1"));
    assert_true(slice_is(slot(k, 2)->push.partition, "Default") && slot(k, 2)->push.has_trace);
    assert_false(slot(k, 2)->push.has_transaction);
    assert_true(slice_is(slot(k, 3)->push.partition, "van-3") && slice_is(slot(k, 3)->push.payload, "1"));
    assert_true(k->step.has_push && k->step.has_kv && k->step.has_timers && k->step.has_positions && k->step.has_pop);

    /* Lanes in order of first appearance; their items in order. */
    struct push_command push;
    struct push_group g;
    struct push_item item;
    assert_true(push_decode(&k->step.push, &push) && push.group_count == 2);
    assert_true(push_group_next(&push.groups, &g) && g.item_count == 2 && slice_is(g.partition, "van-3"));
    push_group_item(&g, 1, &item);
    assert_true(slice_is(item.payload, "1"));
    assert_true(push_group_next(&push.groups, &g) && g.item_count == 1 && slice_is(g.partition, "Default"));
    push_group_item(&g, 0, &item);
    assert_true(slice_is(item.payload, "null") && item.flags == ITEM_TRACE);
    assert_int_equal(slot(k, 1)->number, 0);
    assert_int_equal(slot(k, 3)->number, 1);
    assert_int_equal(slot(k, 2)->number, 2);
    uint32_t index = 99;
    assert_ptr_equal(transaction_slot_find(&k->in, SLOT_PUSH, 2, &index), slot(k, 2));
    assert_int_equal(index, 2);
    assert_null(transaction_slot_find(&k->in, SLOT_ACK, 1, &index));

    struct positions_command positions;
    struct position_item p;
    assert_true(positions_decode(&k->step.positions, &positions) && position_next(&positions.items, &p));
    assert_true(slice_is(p.queue, "routed") && slice_is(p.partition, "Default") && p.offset == 7 && !p.forget);
    assert_true(p.has_metadata && slice_is(p.metadata, "m") && p.mode == SUBSCRIBE_NEW);
    struct pop_command pop;
    assert_true(pop_decode(&k->step.pop, &pop) && pop.scope == POP_QUEUE && pop.batch == POP_BATCH_DEFAULT);
    assert_true(uuid_equal(pop.lease_id, k->in.pop.lease_id) && slice_is(pop.group, "sorters"));
}

static void test_null_is_absent(void **state)
{
    struct kit *k = *state;
    accept(k, "{\"operations\":[{\"type\":\"ack\",\"transactionId\":null,\"partitionId\":\"1\",\"consumerGroup\":null,"
              "\"leaseId\":null,"
              "\"status\":null,\"error\":null,\"queue\":null,\"items\":null},"
              "{\"type\":\"push\",\"queue\":\"q\",\"partition\":null,\"transactionId\":null,\"traceId\":null,\"payload\":null,"
              "\"items\":null}],"
              "\"requiredLeases\":null,\"kv\":null,\"timers\":null,\"positions\":null,\"next\":null}");
    const struct transaction_slot *ack = slot(k, 0), *push = slot(k, 1);
    assert_true(slice_is(ack->ack.group, QUEUE_MODE_GROUP) && ack->ack.item.status == ACK_COMPLETED);
    assert_false(ack->ack.item.fenced || ack->ack.item.has_error || k->in.has_next);
    assert_true(slice_is(push->push.partition, "Default") && !push->push.has_transaction && !push->push.has_trace);
}

static void test_empty_names(void **state)
{
    struct kit *k = *state;
    accept(
        k,
        "{\"operations\":[{\"type\":\"ack\",\"partitionId\":\"1\",\"consumerGroup\":\"\",\"leaseId\":\"\"},"
        "{\"type\":\"push\",\"queue\":\"q\",\"partition\":\"\",\"transactionId\":\"\",\"traceId\":\"not one\",\"payload\":1},"
        "{\"type\":\"push\",\"items\":[{\"queue\":\"q\",\"partition\":\"\",\"payload\":1}]}]}");
    assert_true(slice_is(slot(k, 0)->ack.group, QUEUE_MODE_GROUP) && !slot(k, 0)->ack.item.fenced);
    assert_true(slot(k, 1)->push.has_transaction && slot(k, 1)->push.transaction.len == 0);
    assert_int_equal(k->in.lanes.count, 1);
}

/* Without an item there is nothing to do, and nothing is made of it. */
static void test_no_items(void **state)
{
    struct kit *k = *state;
    accept(k, "{\"operations\":[{\"type\":\"push\",\"items\":[]}]}");
    assert_true(transaction_is_empty(&k->in));
    accept(k, "{\"operations\":[{\"type\":\"push\",\"items\":[]}],\"next\":{\"queue\":\"q\"}}");
    assert_true(k->step.has_pop && !k->step.has_push);
    /* An ack has no items: whatever is called so is not read as such. */
    accept(k, "{\"operations\":[{\"items\":[{\"queue\":\"q\",\"payload\":1}],\"type\":\"ack\",\"partitionId\":\"1\"}]}");
    assert_int_equal(k->in.slot_count, 1);
    assert_int_equal(k->in.push_count, 0);
}

static void test_groups_are_sorted(void **state)
{
    struct kit *k = *state;
    accept(k, "{\"operations\":[{\"type\":\"ack\",\"partitionId\":\"1\",\"consumerGroup\":\"b\",\"transactionId\":\"1\"},"
              "{\"type\":\"push\",\"queue\":\"q\",\"payload\":1},"
              "{\"type\":\"ack\",\"partitionId\":\"2\",\"consumerGroup\":\"a\",\"transactionId\":\"2\"},"
              "{\"type\":\"ack\",\"partitionId\":\"3\",\"consumerGroup\":\"B\",\"transactionId\":\"3\"},"
              "{\"type\":\"ack\",\"partitionId\":\"4\",\"consumerGroup\":\"b\",\"transactionId\":\"4\"},"
              "{\"type\":\"ack\",\"partitionId\":\"5\",\"transactionId\":\"5\"},"
              "{\"type\":\"ack\",\"partitionId\":\"6\",\"consumerGroup\":\"ab\",\"transactionId\":\"6\"}]}");
    static const char *const groups[] = {"B", "__QUEUE_MODE__", "a", "ab", "b"};
    static const char *const ids[] = {"3", "5", "2", "6", "1", "4"};
    struct slice rest = k->step.acks;
    struct command c;
    unsigned group = 0, item = 0;
    while (command_next(&rest, &c)) {
        struct ack_command a;
        struct ack_item i;
        assert_true(ack_decode(&c, &a) && group < 5);
        assert_true(slice_is(a.group, groups[group++]));
        for (uint32_t n = 0; n < a.item_count; n++) {
            assert_true(ack_item_next(&a.items, &i) && slice_is(i.transaction, ids[item]));
            uint32_t index;
            const struct transaction_slot *s = transaction_slot_find(&k->in, SLOT_ACK, item, &index);
            assert_true(s != NULL && slice_is(s->ack.item.transaction, ids[item]));
            item++;
        }
    }
    assert_true(group == 5 && item == 6);
}

static void test_many_lanes_keep_their_order(void **state)
{
    enum { ITEMS = 3000, LANES = 300 };
    struct kit *k = *state;
    struct buf text = {0};
    buf_text(&text, "{\"operations\":[{\"type\":\"push\",\"items\":[");
    for (unsigned i = 0; i < ITEMS; i++) {
        unsigned lane = i * 7919u % LANES;
        buf_printf(&text, "%s{\"queue\":\"q%u\",\"partition\":\"p%u\",\"payload\":%u}", i == 0 ? "" : ",", lane % 7, lane, i);
    }
    buf_text(&text, "]}]}");
    buf_byte(&text, 0);
    accept(k, text.at);
    assert_int_equal(k->in.lanes.count, LANES);
    struct push_command push;
    struct push_group g;
    assert_true(push_decode(&k->step.push, &push) && push.group_count == LANES);
    uint32_t number = 0, index;
    for (unsigned lane = 0; lane < LANES; lane++) {
        char name[16];
        assert_true(push_group_next(&push.groups, &g) && g.item_count == ITEMS / LANES);
        snprintf(name, sizeof name, "p%u", lane * 7919u % LANES);
        assert_true(slice_is(g.partition, name));
        for (uint32_t i = 0; i < g.item_count; i++, number++) {
            struct push_item item;
            push_group_item(&g, i, &item);
            assert_int_equal(strtoul(item.payload.at, NULL, 10), lane + i * LANES);
            assert_non_null(transaction_slot_find(&k->in, SLOT_PUSH, number, &index));
            assert_int_equal(index, lane + i * LANES);
        }
    }
    buf_free(&text);
}

/* ---- leases ------------------------------------------------------------------------------------------------------- */

#define ACK(lease) "{\"type\":\"ack\",\"partitionId\":\"1\"" lease "}"
#define WITH(lease) ",\"leaseId\":\"" lease "\""

static void test_lending(void **state)
{
    struct kit *k = *state;
    struct uuid lease, other, none;
    assert_true(uuid_parse(slice_of(LEASE), &lease) && uuid_parse(slice_of(OTHER), &other));
    memset(&none, 0xff, sizeof none);
    const struct {
        const char *text;
        const struct uuid *first, *second; /* of the acks; NULL: not fenced */
    } cases[] = {
        {"{\"operations\":[" ACK("") "," ACK("") "]}", NULL, NULL},
        {"{\"operations\":[" ACK("") "," ACK("") "],\"requiredLeases\":[]}", NULL, NULL},
        {"{\"operations\":[" ACK("") "," ACK("") "],\"requiredLeases\":[\"\"]}", NULL, NULL},
        {"{\"operations\":[" ACK("") "," ACK("") "],\"requiredLeases\":[\"" LEASE "\"]}", &lease, &lease},
        {"{\"requiredLeases\":[\"" LEASE "\",\"" LEASE "\"],\"operations\":[" ACK("") "," ACK("") "]}", &lease, &lease},
        {"{\"operations\":[" ACK("") "," ACK("") "],\"requiredLeases\":[\"" LEASE "\",\"" OTHER "\"]}", NULL, NULL},
        {"{\"operations\":[" ACK(WITH(LEASE)) "," ACK("") "]}", &lease, &lease},
        {"{\"operations\":[" ACK(WITH(LEASE)) "," ACK("") "],\"requiredLeases\":[\"" LEASE "\"]}", &lease, &lease},
        {"{\"operations\":[" ACK(WITH(LEASE)) "," ACK("") "],\"requiredLeases\":[\"" OTHER "\"]}", &lease, NULL},
        {"{\"operations\":[" ACK(WITH(LEASE)) "," ACK(WITH(OTHER)) "]}", &lease, &other},
        /* One lease, however it is written. */
        {"{\"operations\":[" ACK(WITH("01A9C0DE-1111-7ABC-8DEF-00000000000A")) "," ACK("") "],\"requiredLeases\":[\"" LEASE
                                                                                           "\"]}",
         &lease, &lease},
        /* What is no lease matches none; it is one all the same. */
        {"{\"operations\":[" ACK(WITH("x")) "," ACK("") "]}", &none, &none},
        {"{\"operations\":[" ACK("") "," ACK("") "],\"requiredLeases\":[\"x\"]}", &none, &none},
        {"{\"operations\":[" ACK("") "," ACK("") "],\"requiredLeases\":[\"x\",\"y\"]}", NULL, NULL},
        {"{\"operations\":[" ACK(WITH("x")) "," ACK("") "],\"requiredLeases\":[\"" LEASE "\"]}", &none, NULL},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        accept(k, cases[i].text);
        const struct uuid *wanted[2] = {cases[i].first, cases[i].second};
        for (uint32_t n = 0; n < 2; n++) {
            const struct ack_item *item = &slot(k, n)->ack.item;
            if (item->fenced != (wanted[n] != NULL) || (item->fenced && !uuid_equal(item->lease, *wanted[n])))
                fail_msg("ack %u of %s", n, cases[i].text);
        }
    }
}

/* ---- refusals ----------------------------------------------------------------------------------------------------- */

struct refusal {
    const char *text;
    uint32_t status;
    const char *reason, *says;
};

static void all_refused(struct kit *k, const struct refusal *cases, size_t count)
{
    for (size_t i = 0; i < count; i++) refused(k, slice_of(cases[i].text), cases[i].status, cases[i].reason, cases[i].says);
}

#define REFUSED(cases) all_refused(*state, cases, sizeof cases / sizeof cases[0])
#define OPS(op) "{\"operations\":[" op "]}"

static void test_shape(void **state)
{
    static const struct refusal cases[] = {
        {"", 400, "bad_request", "body"},
        {"[]", 400, "bad_request", "body"},
        {"{} x", 400, "bad_request", "body"},
        {"{\"operations\":[]", 400, "bad_request", "body"},
        {"{\"operations\":{}}", 400, "bad_request", "operations: an array"},
        {"{\"kv\":{}}", 400, "bad_request", "kv: an array"},
        {"{\"timers\":\"x\"}", 400, "bad_request", "timers: an array"},
        {"{\"positions\":1}", 400, "bad_request", "positions: an array"},
        {"{\"requiredLeases\":\"x\"}", 400, "bad_request", "requiredLeases: an array"},
        {"{\"requiredLeases\":[1]}", 400, "bad_request", "requiredLeases: not a string"},
        {"{\"requiredLeases\":[null]}", 400, "bad_request", "requiredLeases: not a string"},
        {"{\"kv\":[],\"kv\":[]}", 400, "bad_request", "kv: given twice"},
        {"{\"operations\":[],\"operations\":[]}", 400, "bad_request", "operations: given twice"},
        {OPS("1"), 400, "bad_request", "operations[0]: not an object"},
        {OPS("{\"type\":\"ack\",\"partitionId\":17}"), 400, "bad_request", "operations[0].partitionId: not a string"},
        {OPS("{\"type\":\"ack\",\"transactionId\":1}"), 400, "bad_request", "operations[0].transactionId: not a string"},
        {OPS("{\"type\":\"ack\",\"consumerGroup\":[]}"), 400, "bad_request", "operations[0].consumerGroup: not a string"},
        {OPS("{\"type\":\"ack\",\"consumerGroup\":\"a\\nb\"}"), 400, "bad_request", "consumerGroup: a control character"},
        {OPS("{\"type\":\"ack\",\"leaseId\":1}"), 400, "bad_request", "operations[0].leaseId: not a string"},
        {OPS("{\"type\":\"ack\",\"status\":1}"), 400, "bad_request", "operations[0].status: not a string"},
        {OPS("{\"type\":\"ack\",\"error\":{}}"), 400, "bad_request", "operations[0].error: not a string"},
        {OPS("{\"type\":\"ack\",\"type\":\"ack\"}"), 400, "bad_request", "operations[0].type: given twice"},
        {OPS("{\"type\":\"ack\",\"partitionId\":\"1\"},{\"type\":1}"), 400, "bad_request", "operations[1].type: not a string"},
        {OPS("{\"type\":\"push\",\"items\":{}}"), 400, "bad_request", "operations[0].items: not an array"},
        {OPS("{\"type\":\"push\",\"items\":[1]}"), 400, "bad_request", "operations[0].items[0]: not an object"},
        {OPS("{\"type\":\"push\",\"items\":[{\"queue\":\"q\"}]}"), 400, "bad_request",
         "operations[0].items[0].payload: required"},
        {OPS("{\"type\":\"push\",\"items\":[{\"payload\":1}]}"), 400, "bad_request", "operations[0].items[0].queue"},
        {OPS("{\"type\":\"push\",\"items\":[{\"queue\":\"\",\"payload\":1}]}"), 400, "bad_request", "items[0].queue"},
        {OPS("{\"type\":\"push\",\"items\":[{\"queue\":\"a\\u0001\",\"payload\":1}]}"), 400, "bad_request",
         "a control character"},
        {OPS("{\"type\":\"push\",\"queue\":\"a\\u0001\",\"payload\":1}"), 400, "bad_request", "queue: a control character"},
        {OPS("{\"type\":\"push\",\"queue\":\"q\",\"transactionId\":\"a\\t\",\"payload\":1}"), 400, "bad_request",
         "operations[0].transactionId: a control character"},
        {OPS("{\"type\":\"push\",\"queue\":\"q\",\"partition\":1,\"payload\":1}"), 400, "bad_request",
         "operations[0].partition"},
        {OPS("{\"type\":\"push\",\"queue\":\"q\",\"payload\":01}"), 400, "bad_request", "operations"},
        {OPS("{\"type\":\"push\",\"queue\":\"q\",\"payload\":[1,]}"), 400, "bad_request", "operations[0].payload"},
        {OPS("{\"type\":\"push\" \"queue\":\"q\"}"), 400, "bad_request", "operations"},
        {OPS("{\"type\":\"push\",\"queue\":\"q\",\"payload\":1}{}"), 400, "bad_request", "operations"},
        {"{\"operations\":[],\"x\":tru}", 400, "bad_request", "body"},
        {"{\"kv\":[{\"op\":]}", 400, "bad_request", "kv"},
        {"{\"timers\":[{\"op\":]}", 400, "bad_request", "timers"},
        {"{\"positions\":[{\"queue\":]}", 400, "bad_request", "positions"},
    };
    REFUSED(cases);
}

static void test_operations_refused(void **state)
{
    static const struct refusal cases[] = {
        {OPS("{}"), 400, "bad_request", "operations[0].type: ack or push"},
        {OPS("{\"type\":null,\"queue\":\"q\",\"payload\":1}"), 400, "bad_request", "operations[0].type: ack or push"},
        {OPS("{\"type\":\"pop\"}"), 400, "bad_request", "operations[0].type: ack or push"},
        {OPS("{\"type\":\"kv\"}"), 400, "bad_request", "top level"},
        {OPS("{\"type\":\"timer\"}"), 400, "bad_request", "top level"},
        {OPS("{\"type\":\"timers\"}"), 400, "bad_request", "top level"},
        {OPS("{\"type\":\"push\"}"), 200, "bad_request", "a push needs a queue"},
        {OPS("{\"type\":\"push\",\"queue\":\"\",\"payload\":1}"), 200, "bad_request", "a push needs a queue"},
        {OPS("{\"type\":\"push\",\"queue\":\"q\"}"), 200, "bad_request", "a push needs a payload"},
        {OPS("{\"type\":\"ack\"}"), 200, "bad_request", "operations[0]: partitionId is not a partition id"},
        {OPS("{\"type\":\"ack\",\"partitionId\":\"\"}"), 200, "bad_request", "partitionId is not a partition id"},
        {OPS("{\"type\":\"ack\",\"partitionId\":\"-1\"}"), 200, "bad_request", "partitionId is not a partition id"},
        {OPS("{\"type\":\"ack\",\"partitionId\":\"1\"},{\"type\":\"ack\",\"partitionId\":\"p\"}"), 200, "bad_request",
         "operations[1]: partitionId"},
        /* In order of the operations. */
        {OPS("{\"type\":\"ack\",\"partitionId\":\"p\"},{\"type\":\"x\"}"), 200, "bad_request", "operations[0]: partitionId"},
        {OPS("{\"type\":\"x\"},{\"type\":\"ack\",\"partitionId\":\"p\"}"), 400, "bad_request", "operations[0].type"},
        {"{}", 200, "bad_request", "empty"},
        {"{\"operations\":[],\"kv\":[],\"timers\":[],\"positions\":[]}", 200, "bad_request", "empty"},
        {"{\"requiredLeases\":[\"" LEASE "\"],\"next\":{\"queue\":\"q\"}}", 200, "bad_request", "empty"},
    };
    REFUSED(cases);
}

#define PUT(key) "{\"op\":\"put\",\"ns\":\"n\",\"key\":\"" key "\",\"value\":1,\"forever\":true}"
#define TIMER(more)                                                                                                            \
    "{\"op\":\"schedule\",\"queue\":\"n\",\"timerKey\":\"t\",\"delayMs\":1,\"txn\":\"x\",\"payload\":\"MQ==\"" more "}"

static void test_riders_refused(void **state)
{
    static const struct refusal cases[] = {
        {"{\"kv\":[1]}", 400, "kv_bad_request", "QKV"},
        {"{\"kv\":[{\"op\":\"steal\"}]}", 400, "kv_unknown_op", "QKV"},
        {"{\"kv\":[" PUT("k") "," PUT("k") "]}", 400, "kv_duplicate_key_in_call", "QKV"},
        {"{\"kv\":[{\"op\":\"getPrefix\",\"ns\":\"n\",\"prefix\":\"a\"}]}", 400, "kv_get_prefix_not_allowed_in_transaction",
         "QKV"},
        {"{\"kv\":[{\"op\":\"put\",\"ns\":\"n\",\"key\":\"k\",\"value\":1}]}", 400, "kv_expiry_not_specified", "QKV"},
        {"{\"timers\":[1]}", 400, "bad_request", "QTIMER"},
        {"{\"timers\":[{\"op\":\"steal\"}]}", 400, "bad_request", "QTIMER"},
        {"{\"timers\":[" TIMER("") "," TIMER("") "]}", 400, "bad_request", "QTIMER"},
        {"{\"timers\":[" TIMER(",\"producerSub\":\"me\"") "]}", 400, "timers_server_owned_field", "QTIMER"},
        {"{\"timers\":[" TIMER(",\"_messageId\":\"x\"") "]}", 400, "timers_server_owned_field", "QTIMER"},
        {"{\"timers\":[" TIMER(",\"deliverAt\":\"x\"") "]}", 400, "bad_request", "QTIMER"},
    };
    REFUSED(cases);
}

#define POSITION(more) "{\"positions\":[{\"queue\":\"q\",\"consumerGroup\":\"g\"" more "}]}"

static void test_positions_refused(void **state)
{
    static const struct refusal cases[] = {
        {"{\"positions\":[1]}", 200, "bad_request", "positions[0]: not an object"},
        {"{\"positions\":[{\"consumerGroup\":\"g\",\"offset\":1}]}", 200, "bad_request", "positions[0].queue"},
        {"{\"positions\":[{\"queue\":\"q\",\"offset\":1}]}", 200, "bad_request", "positions[0].consumerGroup"},
        {"{\"positions\":[{\"queue\":\"q\",\"consumerGroup\":\"\",\"offset\":1}]}", 200, "bad_request", "consumerGroup"},
        {"{\"positions\":[{\"queue\":\"a\\u0002\",\"consumerGroup\":\"g\",\"offset\":1}]}", 200, "bad_request", "control"},
        {POSITION(""), 200, "bad_request", "positions[0].offset: required"},
        {POSITION(",\"offset\":-1"), 200, "bad_request", "positions[0].offset: negative"},
        {POSITION(",\"offset\":1.5"), 200, "bad_request", "positions[0].offset: not an integer"},
        {POSITION(",\"offset\":\"1\""), 200, "bad_request", "positions[0].offset: not an integer"},
        {POSITION(",\"offset\":9223372036854775808"), 200, "bad_request", "positions[0].offset"},
        {POSITION(",\"offset\":1,\"offset\":2"), 200, "bad_request", "positions[0].offset: given twice"},
        {POSITION(",\"offset\":1,\"metadata\":1"), 200, "bad_request", "positions[0].metadata: not a string"},
    };
    REFUSED(cases);
}

static void test_positions(void **state)
{
    struct kit *k = *state;
    accept(
        k,
        "{\"positions\":[{\"queue\":\"q\",\"consumerGroup\":\"g\",\"offset\":9223372036854775807,\"subscriptionMode\":\"ALL\"},"
        "{\"queue\":\"q\",\"consumerGroup\":\"__QUEUE_MODE__\",\"partition\":\"p\",\"offset\":null,\"subscriptionMode\":"
        "\"new\"}]}");
    const struct position_item *p = k->in.positions;
    assert_true(p[0].offset == INT64_MAX && p[0].mode == SUBSCRIBE_ALL && !p[0].forget && !p[0].has_metadata);
    assert_true(p[1].forget && p[1].mode == SUBSCRIBE_ALL && slice_is(p[1].partition, "p"));
}

/* Whatever is first in the body, the order of the checks is timers, KV, positions, emptiness, operations; shape before all. */
static void test_order_of_checks(void **state)
{
    static const char kv[] = "\"kv\":[{\"op\":\"steal\"}]", timers[] = "\"timers\":[{\"op\":\"steal\"}]",
                      positions[] = "\"positions\":[1]", operations[] = "\"operations\":[{\"type\":\"x\"}]",
                      shape[] = "\"requiredLeases\":1";
    static const char *const members[] = {operations, positions, kv, timers, shape};
    static const struct refusal wanted[] = {{"", 400, "bad_request", "operations[0].type"},
                                            {"", 200, "bad_request", "positions[0]"},
                                            {"", 400, "kv_unknown_op", "QKV"},
                                            {"", 400, "bad_request", "QTIMER"},
                                            {"", 400, "bad_request", "requiredLeases"}};
    struct kit *k = *state;
    for (unsigned low = 0; low < 5; low++) {
        for (unsigned high = low + 1; high < 5; high++) {
            for (unsigned turned = 0; turned < 2; turned++) {
                char text[256];
                snprintf(text, sizeof text, "{%s,%s}", members[turned ? low : high], members[turned ? high : low]);
                refused(k, slice_of(text), wanted[high].status, wanted[high].reason, wanted[high].says);
            }
        }
    }
}

static void filled(struct buf *text, size_t bytes)
{
    memset(buf_reserve(text, bytes), 'n', bytes);
    text->len += bytes;
}

static void test_long_names(void **state)
{
    struct kit *k = *state;
    struct buf text = {0};
    const struct {
        const char *before, *after;
        size_t fits; /* as many bytes between them; one more is refused */
        uint32_t status;
        const char *reason, *says;
    } cases[] = {
        {"{\"operations\":[{\"type\":\"push\",\"items\":[{\"payload\":1,\"queue\":\"", "\"}]}]}", 404, 413, NULL, "411"},
        {"{\"operations\":[{\"type\":\"push\",\"payload\":1,\"queue\":\"q\",\"partition\":\"", "\"}]}", 410, 413, NULL, "411"},
        {"{\"operations\":[{\"type\":\"push\",\"payload\":1,\"queue\":\"q\",\"transactionId\":\"", "\"}]}", 65535, 400, NULL,
         "65535"},
        {"{\"operations\":[{\"type\":\"push\",\"items\":[{\"payload\":1,\"queue\":\"q\",\"transactionId\":\"", "\"}]}]}", 65535,
         400, NULL, "65535"},
        {"{\"operations\":[{\"type\":\"ack\",\"partitionId\":\"1\",\"consumerGroup\":\"", "\"}]}", 411, 200, "name_too_long",
         "consumerGroup"},
        {"{\"operations\":[{\"type\":\"ack\",\"partitionId\":\"1\",\"transactionId\":\"", "\"}]}", 65535, 200, "rejected_ack",
         "QTXN"},
        {"{\"positions\":[{\"queue\":\"q\",\"consumerGroup\":\"g\",\"offset\":1,\"metadata\":\"", "\"}]}", 4096, 200,
         "too_large", "metadata"},
        {"{\"positions\":[{\"queue\":\"q\",\"offset\":1,\"consumerGroup\":\"", "\"}]}", 410, 200, "name_too_long",
         "positions[0]"},
        {"{\"operations\":[{\"type\":\"push\",\"items\":[]}],\"next\":{\"queue\":\"q\",\"consumerGroup\":\"", "\"}}", 410, 413,
         NULL, "next"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        for (size_t more = 0; more < 2; more++) {
            buf_clear(&text);
            buf_text(&text, cases[i].before);
            filled(&text, cases[i].fits + more);
            buf_text(&text, cases[i].after);
            if (more == 0 && !read(k, buf_view(&text))) fail_msg("%s...: %s", cases[i].before, k->why.text);
            if (more == 1) refused(k, buf_view(&text), cases[i].status, cases[i].reason, cases[i].says);
        }
    }
    buf_free(&text);
}

static void test_error_is_cut(void **state)
{
    struct kit *k = *state;
    struct buf text = {0};
    buf_text(&text, "{\"operations\":[{\"type\":\"ack\",\"partitionId\":\"1\",\"error\":\"");
    filled(&text, ERROR_TEXT_BYTES_MAX - 1);
    buf_text(&text, "\xc3\xa9\"}]}");
    buf_byte(&text, 0);
    accept(k, text.at);
    assert_int_equal(slot(k, 0)->ack.item.error.len, ERROR_TEXT_BYTES_MAX - 1);
    buf_free(&text);
}

static void test_counts(void **state)
{
    struct kit *k = *state;
    struct buf text = {0};
    for (unsigned count = 64; count <= 65; count++) {
        buf_clear(&text);
        buf_text(&text, "{\"kv\":[");
        for (unsigned i = 0; i < count; i++)
            buf_printf(&text, "%s{\"op\":\"get\",\"ns\":\"n\",\"key\":\"k%u\"}", i == 0 ? "" : ",", i);
        buf_text(&text, "]}");
        if (count == 64 && !read(k, buf_view(&text))) fail_msg("%s", k->why.text);
        if (count == 65) refused(k, buf_view(&text), 400, "kv_too_many_ops", "QKV");
    }
    for (unsigned count = 256; count <= 257; count++) {
        buf_clear(&text);
        buf_text(&text, "{\"kv\":[{\"op\":\"getMany\",\"ns\":\"n\",\"keys\":[");
        for (unsigned i = 0; i < count; i++) buf_printf(&text, "%s\"k%u\"", i == 0 ? "" : ",", i);
        buf_text(&text, "]}]}");
        if (count == 256 && !read(k, buf_view(&text))) fail_msg("%s", k->why.text);
        if (count == 257) refused(k, buf_view(&text), 400, "kv_too_many_keys", "QKV");
    }
    for (unsigned count = POSITIONS_MAX; count <= POSITIONS_MAX + 1; count++) {
        buf_clear(&text);
        buf_text(&text, "{\"positions\":[");
        for (unsigned i = 0; i < count; i++)
            buf_printf(&text, "%s{\"queue\":\"q\",\"partition\":\"p%u\",\"consumerGroup\":\"g\",\"offset\":%u}",
                       i == 0 ? "" : ",", i, i);
        buf_text(&text, "]}");
        if (count == POSITIONS_MAX && !read(k, buf_view(&text))) fail_msg("%s", k->why.text);
        if (count > POSITIONS_MAX) refused(k, buf_view(&text), 400, "bad_request", "positions: at most 16384");
    }
    assert_int_equal(k->in.position_count, 0);
    buf_free(&text);
}

/* ---- next --------------------------------------------------------------------------------------------------------- */

#define NEXT(next) "{\"operations\":[{\"type\":\"push\",\"items\":[]}],\"next\":" next "}"

static void test_next(void **state)
{
    struct kit *k = *state;
    const struct pop_command *p = &k->in.pop;
    accept(k, NEXT("{\"queue\":\"q\"}"));
    assert_true(p->scope == POP_QUEUE && p->batch == POP_BATCH_DEFAULT && p->partitions == 1 && p->lease_us == 0);
    assert_true(slice_is(p->group, QUEUE_MODE_GROUP) && p->mode == SUBSCRIBE_ALL && p->conflation == CONFLATION_ABSENT);
    assert_true(!k->in.wait && k->in.wait_us == 30000000 && !p->auto_ack && uuid_equal(p->tenant, tenant));
    accept(k, NEXT("{\"queue\":\"q\",\"partition\":\"p\",\"consumerGroup\":\"g\",\"batch\":10,\"partitions\":9,\"wait\":true,"
                   "\"timeout\":1500,\"leaseSeconds\":20,\"subscriptionMode\":\"all\",\"conflation\":false,\"autoAck\":false,"
                   "\"x\":1}"));
    assert_true(p->scope == POP_PARTITION && slice_is(p->partition, "p") && p->partitions == 1 && p->batch == 10);
    assert_true(k->in.wait && k->in.wait_us == 1500000 && p->lease_us == 20000000 && p->conflation == CONFLATION_OFF);
    assert_true(slice_is(p->group, "g") && p->mode == SUBSCRIBE_ALL);
    accept(
        k,
        NEXT("{\"queue\":\"q\",\"consumerGroup\":\"g\",\"batch\":0,\"partitions\":1000,\"timeout\":100000,\"leaseSeconds\":-5,"
             "\"subscriptionFrom\":\"2031-02-03T04:05:06.789Z\"}"));
    assert_true(p->batch == 1 && p->partitions == POP_PARTITIONS_MAX && k->in.wait_us == 60000000 && p->lease_us == 0);
    assert_true(p->mode == SUBSCRIBE_FROM && p->from_us == INT64_C(1927857906789000));
    accept(k, NEXT("{\"queue\":\"q\",\"consumerGroup\":\"g\",\"conflation\":true,\"batch\":7}"));
    assert_true(p->conflation == CONFLATION_ON && p->partitions == 7 && p->mode == SUBSCRIBE_NEW);
    accept(k, NEXT("{\"queue\":\"q\",\"partition\":null,\"consumerGroup\":null,\"batch\":null,\"wait\":null,\"namespace\":null,"
                   "\"autoAck\":null}"));
    assert_true(p->scope == POP_QUEUE && p->batch == POP_BATCH_DEFAULT);
    accept(k, NEXT("{\"queue\":\"q\",\"partition\":\"\"}"));
    assert_true(p->scope == POP_QUEUE);
}

static void test_next_refused(void **state)
{
    static const struct refusal cases[] = {
        {NEXT("1"), 400, "bad_request", "next: an object"},
        {NEXT("{}"), 400, "bad_request", "next.queue"},
        {NEXT("{\"queue\":\"\"}"), 400, "bad_request", "next.queue"},
        {NEXT("{\"queue\":1}"), 400, "bad_request", "next.queue: not a string"},
        {NEXT("{\"queue\":\"q\",\"queue\":\"r\"}"), 400, "bad_request", "next.queue: given twice"},
        {NEXT("{\"queue\":\"a\\u0001\"}"), 400, "bad_request", "next.queue: a control character"},
        {NEXT("{\"queue\":\"q\",\"batch\":\"10\"}"), 400, "bad_request", "next.batch: not an integer"},
        {NEXT("{\"queue\":\"q\",\"batch\":1.5}"), 400, "bad_request", "next.batch: not an integer"},
        {NEXT("{\"queue\":\"q\",\"wait\":\"true\"}"), 400, "bad_request", "next.wait: not true or false"},
        {NEXT("{\"queue\":\"q\",\"timeout\":-1}"), 400, "bad_request", "next.timeout"},
        {NEXT("{\"queue\":\"q\",\"namespace\":\"n\"}"), 400, "bad_request", "next.namespace"},
        {NEXT("{\"queue\":\"q\",\"task\":\"n\"}"), 400, "bad_request", "next.task"},
        {NEXT("{\"queue\":\"q\",\"autoAck\":true}"), 400, "bad_request", "next.autoAck"},
        {NEXT("{\"queue\":\"q\",\"commitOnDelivery\":true}"), 400, "bad_request", "next.commitOnDelivery"},
        {NEXT("{\"queue\":\"q\",\"consumerGroup\":\"\"}"), 400, "bad_request", "consumerGroup must not be empty"},
        {NEXT("{\"queue\":\"q\",\"conflation\":true}"), 400, "bad_request", "conflation needs a consumerGroup"},
        {NEXT("{\"queue\":\"q\",\"batch\":]}"), 400, "bad_request", "next"},
    };
    REFUSED(cases);
}

int main(void)
{
#define TEST(f) cmocka_unit_test_setup_teardown(f, kit_make, kit_drop)
    const struct CMUnitTest tests[] = {
        TEST(test_all_parts),
        TEST(test_null_is_absent),
        TEST(test_empty_names),
        TEST(test_no_items),
        TEST(test_groups_are_sorted),
        TEST(test_many_lanes_keep_their_order),
        TEST(test_lending),
        TEST(test_shape),
        TEST(test_operations_refused),
        TEST(test_riders_refused),
        TEST(test_positions_refused),
        TEST(test_positions),
        TEST(test_order_of_checks),
        TEST(test_long_names),
        TEST(test_error_is_cut),
        TEST(test_counts),
        TEST(test_next),
        TEST(test_next_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
