/* Request bodies: shapes, defaults, refusals with the field named. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

#include <cmocka.h>
#include <stdio.h>

#include "base/limits.h"
#include "http/body.h"
#include "http/json.h"

enum { ITEMS_MAX = 1000 };

struct kit {
    struct arena arena;
    struct buf text, items;
    struct body_refusal why;
};

static int kit_make(void **state)
{
    struct kit *k = calloc(1, sizeof *k);
    assert_non_null(k);
    arena_init(&k->arena);
    *state = k;
    return 0;
}

static int kit_drop(void **state)
{
    struct kit *k = *state;
    arena_free(&k->arena);
    buf_free(&k->text);
    buf_free(&k->items);
    free(k);
    return 0;
}

/* The text with its padding, in memory of the kit. */
static struct slice body(struct kit *k, const char *text)
{
    buf_clear(&k->text);
    buf_clear(&k->items);
    buf_text(&k->text, text);
    memset(buf_reserve(&k->text, JSON_PAD), 0, JSON_PAD);
    return buf_view(&k->text);
}

static const struct push_input *push(struct kit *k, const char *text, size_t count)
{
    if (!body_push_read(body(k, text), ITEMS_MAX, &k->arena, &k->items, &k->why)) fail_msg("%s: %s", text, k->why.text);
    assert_int_equal(k->items.len, count * sizeof(struct push_input));
    return (const struct push_input *)(const void *)k->items.at;
}

static void push_refused(struct kit *k, const char *text, const char *why)
{
    if (body_push_read(body(k, text), ITEMS_MAX, &k->arena, &k->items, &k->why)) fail_msg("accepted: %s", text);
    if (strstr(k->why.text, why) == NULL) fail_msg("%s: said \"%s\", not \"%s\"", text, k->why.text, why);
    assert_string_equal(k->why.code, "bad_body");
}

static void test_more_items_than_there_is_memory_for(void **state)
{
    struct kit *k = *state;
    static const char three[] =
        "{\"items\":[{\"queue\":\"a\",\"payload\":1},{\"queue\":\"a\",\"payload\":1},{\"queue\":\"a\",\"payload\":1}]}";
    assert_true(body_push_read(body(k, three), 3, &k->arena, &k->items, &k->why));
    assert_false(body_push_read(body(k, three), 2, &k->arena, &k->items, &k->why));
    assert_string_equal(k->why.code, "too_many_items");
    assert_non_null(strstr(k->why.text, "QUEEN_MEMORY_MAX"));
}

static void test_push_items_are_read(void **state)
{
    struct kit *k = *state;
    const struct push_input *in =
        push(k,
             "{\"x\":{},\"items\":[{\"queue\":\"q\",\"partition\":\"p\",\"transactionId\":\"t\",\"payload\": { \"a\" : 1 } ,"
             "\"traceId\":\"01A9C0DE-0000-7abc-8def-000000000001\",\"producerSub\":\"me\"},{\"payload\":null,\"queue\":\"r\"}],"
             "\"y\":[1]}",
             2);
    assert_true(slice_is(in[0].queue, "q") && slice_is(in[0].partition, "p") && slice_is(in[0].transaction, "t"));
    assert_true(in[0].has_transaction && in[0].has_trace);
    assert_true(slice_is(in[0].payload, "{ \"a\" : 1 }"));
    assert_true(slice_is(in[1].queue, "r") && slice_is(in[1].partition, "Default") && slice_is(in[1].payload, "null"));
    assert_false(in[1].has_transaction || in[1].has_trace);
    push(k, "{\"items\":[]}", 0);
}

static void test_push_defaults(void **state)
{
    struct kit *k = *state;
    const struct push_input *in =
        push(k,
             "{\"items\":[{\"queue\":\"q\",\"payload\":1,\"partition\":null,\"transactionId\":null,\"traceId\":7},"
             "{\"queue\":\"q\",\"payload\":1,\"partition\":\"\",\"transactionId\":\"\",\"traceId\":\"x\"}]}",
             2);
    assert_true(slice_is(in[0].partition, "Default") && !in[0].has_transaction && !in[0].has_trace);
    assert_true(slice_is(in[1].partition, "Default") && in[1].has_transaction && in[1].transaction.len == 0 &&
                !in[1].has_trace);
}

static void test_push_names_are_unescaped_payloads_are_not(void **state)
{
    struct kit *k = *state;
    const struct push_input *in =
        push(k, "{\"it\\u0065ms\":[{\"qu\\u0065ue\":\"Bed\\u0026\\/\\ud83d\\ude00\",\"payload\":\"\\u0026\\ud800\"}]}", 1);
    assert_true(slice_is(in[0].queue, "Bed&/\xf0\x9f\x98\x80"));
    assert_true(slice_is(in[0].payload, "\"\\u0026\\ud800\""));
}

static void test_push_refusals_name_the_field(void **state)
{
    struct kit *k = *state;
    static const char *const cases[][2] = {
        {"", "body"},
        {"[]", "body"},
        {"{}", "items"},
        {"{\"items\":null}", "items"},
        {"{\"items\":{}}", "items"},
        {"{\"items\":[1]}", "items[0]"},
        {"{\"items\":[]} x", "body"},
        {"{\"items\":[],\"items\":[]}", "twice"},
        {"{\"items\":[]", "body"},
        {"{\"items\":[{\"payload\":1}]}", "items[0].queue"},
        {"{\"items\":[{\"queue\":\"\",\"payload\":1}]}", "items[0].queue"},
        {"{\"items\":[{\"queue\":null,\"payload\":1}]}", "items[0].queue"},
        {"{\"items\":[{\"queue\":3,\"payload\":1}]}", "items[0].queue"},
        {"{\"items\":[{\"queue\":\"q\",\"payload\":1},{\"queue\":\"q\"}]}", "items[1].payload"},
        {"{\"items\":[{\"queue\":\"q\",\"payload\":1,\"partition\":2}]}", "items[0].partition"},
        {"{\"items\":[{\"queue\":\"q\",\"payload\":1,\"transactionId\":2}]}", "items[0].transactionId"},
        {"{\"items\":[{\"queue\":\"q\",\"payload\":1,\"payload\":2}]}", "items[0].payload: given twice"},
        {"{\"items\":[{\"queue\":\"q\",\"queue\":\"q\",\"payload\":1}]}", "items[0].queue: given twice"},
        {"{\"items\":[{\"queue\":\"a\\u0000b\",\"payload\":1}]}", "items[0].queue: a control character"},
        {"{\"items\":[{\"queue\":\"q\",\"partition\":\"a\\nb\",\"payload\":1}]}", "items[0].partition: a control character"},
        {"{\"items\":[{\"queue\":\"q\",\"transactionId\":\"\\u001f\",\"payload\":1}]}",
         "items[0].transactionId: a control character"},
        {"{\"items\":[{\"queue\":\"\\ud800\",\"payload\":1}]}", "items[0].queue: half a surrogate pair"},
        {"{\"items\":[{\"queue\":\"q\",\"payload\":[1,]}]}", "items[0].payload"},
        {"{\"items\":[{\"queue\":\"q\",\"payload\":01}]}", "items"},
        {"{\"items\":[{\"queue\":\"q\",\"payload\":1,\"z\":[}]}", "items[0].a field"},
        {"{\"a\":tru,\"items\":[]}", "body"},
        {"{\"items\":[{\"queue\":\"q\",\"payload\":1}{\"queue\":\"q\",\"payload\":1}]}", "body"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) push_refused(k, cases[i][0], cases[i][1]);
}

static void test_push_id_length(void **state)
{
    struct kit *k = *state;
    for (size_t len = TRANSACTION_ID_BYTES_MAX; len <= TRANSACTION_ID_BYTES_MAX + 1; len++) {
        char *id = malloc(len + 1), *text = malloc(len + 100);
        assert_true(id != NULL && text != NULL);
        memset(id, 'x', len);
        id[len] = 0;
        snprintf(text, len + 100, "{\"items\":[{\"queue\":\"q\",\"payload\":1,\"transactionId\":\"%s\"}]}", id);
        if (len == TRANSACTION_ID_BYTES_MAX)
            assert_int_equal(push(k, text, 1)->transaction.len, len);
        else
            push_refused(k, text, "items[0].transactionId: longer");
        free(id);
        free(text);
    }
}

static const struct ack_input *ack(struct kit *k, const char *text, size_t count, const char *group)
{
    struct slice g = {0};
    if (!body_ack_read(body(k, text), &k->arena, &k->items, &g, &k->why)) fail_msg("%s: %s", text, k->why.text);
    assert_true(slice_is(g, group));
    assert_int_equal(k->items.len, count * sizeof(struct ack_input));
    return (const struct ack_input *)(const void *)k->items.at;
}

static void test_ack_bodies(void **state)
{
    struct kit *k = *state;
    const struct ack_input *in = ack(k,
                                     "{\"transactionId\":\"t\",\"partitionId\":\"17\",\"leaseId\":\"l\",\"consumerGroup\":"
                                     "\"g\",\"status\":\"FaiLed\",\"error\":\"e\"}",
                                     1, "g");
    assert_true(slice_is(in->transaction, "t") && slice_is(in->partition, "17") && slice_is(in->lease, "l") &&
                slice_is(in->error, "e"));
    assert_true(in->status == ACK_FAILED && in->has_error);
    in = ack(k,
             "{\"acknowledgments\":[{\"partitionId\":\"1\",\"status\":\"retry\"},{\"status\":\"DLQ\",\"error\":null,"
             "\"consumerGroup\":\"no\"},{\"status\":\"done\"}]}",
             3, QUEUE_MODE_GROUP);
    assert_true(in[0].status == ACK_RETRY && in[1].status == ACK_DLQ && in[2].status == ACK_COMPLETED && !in[1].has_error);
    in = ack(k, "{}", 1, QUEUE_MODE_GROUP);
    assert_int_equal(in->partition.len, 0);
    ack(k, "{\"acknowledgments\":[],\"partitionId\":\"4\"}", 1, QUEUE_MODE_GROUP);
    ack(k, "{\"acknowledgments\":null,\"consumerGroup\":null}", 1, QUEUE_MODE_GROUP);
}

static void test_ack_refusals(void **state)
{
    struct kit *k = *state;
    static const char *const cases[][2] = {
        {"[]", "bad_body"},
        {"{\"partitionId\":17}", "bad_body"},
        {"{\"transactionId\":1}", "bad_body"},
        {"{\"status\":1}", "bad_body"},
        {"{\"leaseId\":[]}", "bad_body"},
        {"{\"acknowledgments\":{}}", "bad_body"},
        {"{\"acknowledgments\":[1]}", "bad_body"},
        {"{\"acknowledgments\":[{\"partitionId\":1}]}", "bad_body"},
        {"{\"acknowledgments\":[{}],\"acknowledgments\":[]}", "bad_body"},
        {"{\"consumerGroup\":\"\"}", "bad_request"},
        {"{\"consumerGroup\":5}", "bad_body"},
        {"{\"consumerGroup\":\"a\\u0001\"}", "bad_body"},
        {"{\"status\":\"failed\",\"status\":\"failed\"}", "bad_body"},
        {"{\"a\":1}}", "bad_body"},
        {"", "bad_body"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct slice g = {0};
        if (body_ack_read(body(k, cases[i][0]), &k->arena, &k->items, &g, &k->why)) fail_msg("accepted: %s", cases[i][0]);
        assert_string_equal(k->why.code, cases[i][1]);
    }
}

static void test_extend_seconds(void **state)
{
    struct kit *k = *state;
    static const struct {
        const char *text;
        int64_t seconds;
    } cases[] = {
        {"", 60},
        {"{}", 60},
        {"{\"seconds\":5}", 5},
        {"{\"seconds\":0}", 1},
        {"{\"seconds\":-9}", 1},
        {"{\"seconds\":\"5\"}", 60},
        {"{\"seconds\":1.5}", 60},
        {"{\"seconds\":null}", 60},
        {"[5]", 60},
        {"{\"seconds\":5", 60},
        {"{\"seconds\":99999999999}", LEASE_SECONDS_MAX},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        assert_int_equal(body_extend_read(body(k, cases[i].text), &k->arena), cases[i].seconds);
    }
}

static struct configure_command configure(struct kit *k, const char *text)
{
    struct configure_command c;
    if (!body_configure_read(body(k, text), &k->arena, &c, &k->why)) fail_msg("%s: %s", text, k->why.text);
    return c;
}

static bool given(const struct configure_command *c, enum queue_option o)
{
    return (c->given >> o & 1) != 0;
}

static void test_configure_options_at_both_places(void **state)
{
    struct kit *k = *state;
    struct configure_command c =
        configure(k, "{\"queue\":\"q\",\"leaseTime\":9,\"ttl\":null,\"deadLetterQueue\":false,\"nope\":[1]}");
    assert_true(given(&c, OPTION_LEASE_TIME) && c.options.numbers[OPTION_LEASE_TIME] == 9 && !c.replace);
    assert_true(given(&c, OPTION_DEAD_LETTER_QUEUE) && c.options.numbers[OPTION_DEAD_LETTER_QUEUE] == 0);
    assert_true(c.reset == 1u << OPTION_TTL && !given(&c, OPTION_TTL));
    c = configure(k, "{\"ttl\":\"ignored\",\"queue\":\"q\",\"options\":{\"priority\":-5},\"namespace\":\"n\",\"task\":\"\","
                     "\"mode\":\"replace\"}");
    assert_true(c.replace && given(&c, OPTION_PRIORITY) && c.options.numbers[OPTION_PRIORITY] == -5 && !given(&c, OPTION_TTL));
    assert_true(given(&c, OPTION_NAMESPACE) && slice_is(c.options.name_space, "n") && !given(&c, OPTION_TASK));
    c = configure(k, "{\"queue\":\"q\",\"options\":{\"namespace\":5},\"namespace\":\"n\",\"mode\":null}");
    assert_true(given(&c, OPTION_NAMESPACE) && c.options.name_space.len == 0);
    c = configure(k, "{\"queue\":\"q\",\"options\":7,\"ttl\":4}");
    assert_true(given(&c, OPTION_TTL));
}

static void test_configure_ranges(void **state)
{
    struct kit *k = *state;
    struct configure_command c =
        configure(k, "{\"queue\":\"q\",\"minPopWaitTime\":70000,\"dedupWindowSeconds\":-4,\"retentionSinkHoldMaxSeconds\":60}");
    assert_int_equal(c.options.numbers[OPTION_MIN_POP_WAIT_TIME], 60000);
    assert_int_equal(c.options.numbers[OPTION_DEDUP_WINDOW_SECONDS], 0);
    assert_int_equal(c.options.numbers[OPTION_RETENTION_SINK_HOLD_MAX_SECONDS], 60);
    static const char *const bad[] = {
        "{\"queue\":\"q\",\"leaseTime\":\"9\"}",
        "{\"queue\":\"q\",\"leaseTime\":1.5}",
        "{\"queue\":\"q\",\"leaseTime\":2147483648}",
        "{\"queue\":\"q\",\"leaseTime\":true}",
        "{\"queue\":\"q\",\"deadLetterQueue\":1}",
        "{\"queue\":\"q\",\"retentionSinkHoldMaxSeconds\":59}",
        "{\"queue\":\"q\",\"retentionSinkHold\":\"a b\"}",
        "{\"queue\":\"q\",\"ttl\":1,\"ttl\":1}",
        "{\"queue\":\"\"}",
        "{\"queue\":7}",
        "{\"ttl\":1}",
        "{\"queue\":\"a\\u0000\"}",
        "{\"queue\":\"q\",\"namespace\":\"a\\nb\"}",
        "{\"queue\":\"q\",\"options\":{\"priority\":1e3}}",
    };
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        if (body_configure_read(body(k, bad[i]), &k->arena, &c, &k->why)) fail_msg("accepted: %s", bad[i]);
        assert_string_equal(k->why.code, "bad_request");
    }
    assert_false(body_configure_read(body(k, "{\"queue\":\"q\",\"mode\":\"x\"}"), &k->arena, &c, &k->why));
    assert_null(k->why.code);
    assert_false(body_configure_read(body(k, "{\"queue\":\"q\",\"queue\":\"q\"}"), &k->arena, &c, &k->why));
    assert_false(body_configure_read(body(k, "{\"queue\":\"q\"} {}"), &k->arena, &c, &k->why));
    assert_string_equal(k->why.code, "bad_body");
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, kit_make, kit_drop)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(test_push_items_are_read),
        TEST(test_more_items_than_there_is_memory_for),
        TEST(test_push_defaults),
        TEST(test_push_names_are_unescaped_payloads_are_not),
        TEST(test_push_refusals_name_the_field),
        TEST(test_push_id_length),
        TEST(test_ack_bodies),
        TEST(test_ack_refusals),
        TEST(test_extend_seconds),
        TEST(test_configure_options_at_both_places),
        TEST(test_configure_ranges),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
