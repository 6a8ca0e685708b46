/* Timer ops in bodies: what is read, every refusal, and that what is encoded decodes to the same. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

#include <cmocka.h>
#include <stdio.h>
#include <zstd.h>

#include "base/limits.h"
#include "broker/config.h"
#include "http/data_ops.h"
#include "http/timer_payload.h"

#define SCHEDULE                                                                                                               \
    "{\"op\":\"schedule\",\"queue\":\"q\",\"timerKey\":\"k\",\"delayMs\":5,\"txn\":\"t\",\"payload\":\"eyJhIjoxfQ==\"}"

struct kit {
    struct arena arena;
    struct buf text;
    struct config config;
    struct timer_inputs in;
    struct ops_refusal why;
};

static int kit_make(void **state)
{
    struct kit *k = calloc(1, sizeof *k);
    assert_non_null(k);
    arena_init(&k->arena);
    k->config.timer_payload_bytes_max = TIMER_PAYLOAD_BYTES_MAX_DEFAULT;
    k->config.timer_horizon_s = 90 * 86400;
    k->config.body_bytes_max = BODY_BYTES_MAX_DEFAULT;
    *state = k;
    return 0;
}

static int kit_drop(void **state)
{
    struct kit *k = *state;
    arena_free(&k->arena);
    buf_free(&k->text);
    free(k);
    return 0;
}

static bool read_at(struct kit *k, enum ops_place place, struct slice text)
{
    struct json j;
    arena_reset(&k->arena);
    buf_clear(&k->text);
    buf_slice(&k->text, text);
    memset(buf_reserve(&k->text, JSON_PAD), 0, JSON_PAD);
    json_open(&j, buf_view(&k->text), &k->arena);
    k->why = (struct ops_refusal){0};
    return timer_ops_read(&j, place, &k->config, &k->in, &k->why) && json_end(&j);
}

static const struct timer_input *taken_at(struct kit *k, enum ops_place place, const char *text, uint32_t count)
{
    if (!read_at(k, place, slice_of(text))) fail_msg("%s: %s", text, k->why.detail);
    assert_int_equal(k->in.count, count);
    return k->in.items;
}

static const struct timer_input *taken(struct kit *k, const char *text, uint32_t count)
{
    return taken_at(k, OPS_ROUTE, text, count);
}

static void refused_at(struct kit *k, enum ops_place place, const char *text, uint32_t status, const char *error,
                       const char *reason)
{
    if (read_at(k, place, slice_of(text))) fail_msg("accepted: %s", text);
    bool same = k->why.status == status && strcmp(k->why.error, error) == 0 && strcmp(k->why.reason, reason) == 0;
    if (!same) fail_msg("%s: %u %s %s (%s)", text, k->why.status, k->why.error, k->why.reason, k->why.detail);
    if (strncmp(k->why.detail, "QTIMER ", 7) != 0) fail_msg("%s: said %s", text, k->why.detail);
}

static void bad(struct kit *k, const char *text, const char *reason)
{
    refused_at(k, OPS_ROUTE, text, 400, "timers_bad_request", reason);
    refused_at(k, OPS_TRANSACTION, text, 400, "timers_bad_request", reason);
}

/* A schedule with one member replaced or added; NULL: left out. */
static const char *with(const char *member, const char *value)
{
    static char text[8192];
    static const char *const members[][2] = {{"op", "\"schedule\""}, {"queue", "\"q\""}, {"timerKey", "\"k\""},
                                             {"delayMs", "5"},       {"txn", "\"t\""},   {"payload", "\"eyJhIjoxfQ==\""}};
    size_t len = (size_t)snprintf(text, sizeof text, "[{");
    bool replaced = false;
    for (size_t i = 0; i < sizeof members / sizeof members[0]; i++) {
        bool this_one = strcmp(members[i][0], member) == 0;
        const char *shown = this_one ? value : members[i][1];
        replaced |= this_one;
        if (shown == NULL) continue;
        len += (size_t)snprintf(text + len, sizeof text - len, "%s\"%s\":%s", len > 2 ? "," : "", members[i][0], shown);
    }
    if (!replaced) len += (size_t)snprintf(text + len, sizeof text - len, ",\"%s\":%s", member, value);
    snprintf(text + len, sizeof text - len, "}]");
    return text;
}

/* ---- what is read ------------------------------------------------------------------------------------------------- */

static void test_a_schedule_is_read(void **state)
{
    struct kit *k = *state;
    const struct timer_input *in = taken(k, "[" SCHEDULE "]", 1);
    assert_true(k->in.schedules);
    assert_int_equal(in->op.kind, TIMER_SCHEDULE);
    assert_int_equal(in->op.delay_us, 5000);
    assert_true(slice_is(in->op.queue, "q") && slice_is(in->op.key, "k") && slice_is(in->op.partition, "Default"));
    assert_true(slice_is(in->transaction, "t") && slice_is(in->op.item.transaction, "t"));
    assert_true(slice_is(in->op.item.payload, "{\"a\":1}"));
    assert_int_equal(in->op.item.flags, ITEM_TRANSACTION | ITEM_ID);
    assert_int_equal(in->op.item.id.bytes[6] >> 4, 7);
    in = taken(k, with("op", "\"reschedule\""), 1);
    assert_int_equal(in->op.kind, TIMER_SCHEDULE);
    in = taken(k, with("partition", "\"p\\u00e9/1\""), 1);
    assert_true(slice_is(in->op.partition, "p\xc3\xa9/1"));
    in = taken(k, with("partition", "null"), 1);
    assert_true(slice_is(in->op.partition, "Default"));
    in = taken(k, with("encrypted", "true"), 1);
    assert_int_equal(in->op.item.flags, ITEM_TRANSACTION | ITEM_ID | ITEM_ENCRYPTED);
    in = taken(k, with("encrypted", "false"), 1);
    assert_int_equal(in->op.item.flags, ITEM_TRANSACTION | ITEM_ID);
    taken(k, with("unknown", "{\"x\":[1,{}]}"), 1);
    taken(k, "[]", 0);
    assert_false(k->in.schedules);
}

static void test_a_cancel_is_read_and_ignores_the_rest(void **state)
{
    struct kit *k = *state;
    const struct timer_input *in = taken(k,
                                         "[{\"op\":\"cancel\",\"queue\":\"q\",\"timerKey\":\"a\"},{\"timerKey\":\"b\","
                                         "\"queue\":\"q\",\"txn\":\"x\",\"op\":\"cancel\","
                                         "\"partition\":\"\",\"delayMs\":\"soon\",\"payload\":7},{\"op\":\"cancel\",\"queue\":"
                                         "\"q\",\"timerKey\":\"c\",\"txn\":null}]",
                                         3);
    assert_false(k->in.schedules);
    assert_true(in[0].op.kind == TIMER_CANCEL && slice_is(in[0].op.key, "a") && in[0].transaction.at == NULL);
    assert_true(slice_is(in[1].op.key, "b") && slice_is(in[1].transaction, "x"));
    assert_null(in[2].transaction.at);
    bad(k, "[{\"op\":\"cancel\",\"queue\":\"q\",\"timerKey\":\"b\",\"txn\":1}]", "timers_bad_op");
    bad(k, "[{\"op\":\"cancel\",\"queue\":\"q\"}]", "timers_bad_op");
    bad(k, "[{\"op\":\"cancel\",\"timerKey\":\"b\"}]", "timers_queue_required");
}

static void test_payloads_are_kept_byte_for_byte(void **state)
{
    struct kit *k = *state;
    static const char *const texts[] = {"9007199254740993",
                                        "1e400",
                                        "0.1000",
                                        "-0",
                                        "1E5",
                                        "\"bare\"",
                                        "null",
                                        "true",
                                        "{\"b\":1,\"a\":2,\"a\":3}",
                                        "\"\\u00e9\xc3\xa9\"",
                                        "  [ 1 ,2 ]\n",
                                        "\"\\ud800\"",
                                        "[[[[]]]]"};
    for (size_t i = 0; i < sizeof texts / sizeof texts[0]; i++) {
        char value[256] = "\"";
        size_t len = strlen(texts[i]);
        base64_encode(slice_of(texts[i]), value + 1);
        memcpy(value + 1 + base64_length(len), "\"", 2);
        const struct timer_input *in = taken(k, with("payload", value), 1);
        if (!slice_is(in->op.item.payload, texts[i])) fail_msg("%s is not what was sent", texts[i]);
    }
}

static void test_zstd_payloads_are_unpacked(void **state)
{
    struct kit *k = *state;
    char packed[512], value[1024] = "\"";
    static const char json[] = "{\"text\":\"aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa\"}";
    size_t len = ZSTD_compress(packed, sizeof packed, json, sizeof json - 1, 3);
    assert_false(ZSTD_isError(len));
    base64_encode(slice_make(packed, len), value + 1);
    strcat(value, "\"");
    char op[2048];
    snprintf(op, sizeof op, "%s,\"payloadZstd\":true", value);
    const struct timer_input *in = taken(k, with("payload", op), 1);
    assert_true(slice_is(in->op.item.payload, json));
    bad(k, with("payload", value), "timers_payload_not_json");
    bad(k, with("payloadZstd", "true"), "timers_payload_not_zstd");
    bad(k, with("payloadZstd", "1"), "timers_bad_op");
    k->config.timer_payload_bytes_max = sizeof json - 2;
    snprintf(op, sizeof op, "%s,\"payloadZstd\":true", value);
    refused_at(k, OPS_ROUTE, with("payload", op), 413, "payload_too_large", "timers_payload_too_large");
    taken_at(k, OPS_TRANSACTION, with("payload", op), 1);
}

/* A small text that unpacks to far more: it is stopped at the limit, and costs no more memory than a few times that. */
static void test_a_zstd_bomb_is_stopped_at_the_limit(void **state)
{
    struct kit *k = *state;
    size_t full = 64 << 20;
    char *zeros = calloc(1, full), *packed = malloc(1 << 16);
    assert_true(zeros != NULL && packed != NULL);
    memset(zeros, ' ', full);
    size_t len = ZSTD_compress(packed, 1 << 16, zeros, full, 19);
    assert_false(ZSTD_isError(len));
    struct slice out;
    assert_int_equal(payload_unzstd(slice_make(packed, len), 1 << 20, &k->arena, &out), UNZSTD_TOO_LARGE);
    assert_true(k->arena.total < 4 << 20);
    assert_int_equal(payload_unzstd(slice_make(packed, len / 2), full, &k->arena, &out), UNZSTD_BAD);
    assert_int_equal(payload_unzstd(slice_make(packed, len), full, &k->arena, &out), UNZSTD_OK);
    assert_int_equal(out.len, full);
    free(zeros);
    free(packed);
}

/* ---- refusals ----------------------------------------------------------------------------------------------------- */

static void test_shapes_are_refused(void **state)
{
    struct kit *k = *state;
    static const char *const bodies[] = {
        "", "7", "{}", "[", "[" SCHEDULE, "[" SCHEDULE ",]", "[{\"op\":}]", "[{\"op\":\"\\ud800\"}]", "null"};
    for (size_t i = 0; i < sizeof bodies / sizeof bodies[0]; i++) bad(k, bodies[i], "timers_bad_body");
    bad(k, "[1]", "timers_bad_op");
    bad(k, "[null]", "timers_bad_op");
    bad(k, "[[]]", "timers_bad_op");
    bad(k, "[{}]", "timers_bad_op");
    bad(k, with("op", NULL), "timers_bad_op");
    bad(k, with("op", "\"SCHEDULE\""), "timers_bad_op");
    bad(k, with("op", "\"fire\""), "timers_bad_op");
    bad(k, with("op", "1"), "timers_bad_op");
    bad(k, with("txn", "\"t\",\"txn\":\"u\""), "timers_bad_op");
}

static void test_names_are_refused(void **state)
{
    struct kit *k = *state;
    static const char *const none[] = {NULL, "null", "\"\"", "7", "[]"};
    for (size_t i = 0; i < sizeof none / sizeof none[0]; i++) {
        bad(k, with("queue", none[i]), "timers_queue_required");
        bad(k, with("timerKey", none[i]), "timers_bad_op");
        bad(k, with("txn", none[i]), "timers_bad_op");
        if (i >= 2) bad(k, with("partition", none[i]), "timers_bad_op");
    }
    static const char *const named[] = {"queue", "timerKey", "txn", "partition"};
    for (size_t i = 0; i < sizeof named / sizeof named[0]; i++) {
        bad(k, with(named[i], "\"a\\u0000b\""), "timers_bad_op");
        bad(k, with(named[i], "\"a\\nb\""), "timers_bad_op");
    }
    char text[1024];
    snprintf(text, sizeof text, "\"%0512d\"", 1);
    taken(k, with("timerKey", text), 1);
    snprintf(text, sizeof text, "\"%0513d\"", 1);
    bad(k, with("timerKey", text), "timers_bad_op");
    snprintf(text, sizeof text, "\"%0404d\"", 1); /* and Default */
    taken(k, with("queue", text), 1);
    snprintf(text, sizeof text, "\"%0405d\"", 1);
    refused_at(k, OPS_ROUTE, with("queue", text), 413, "payload_too_large", "name_too_long");
    refused_at(k, OPS_TRANSACTION, with("queue", text), 413, "payload_too_large", "name_too_long");
}

static void test_a_txn_has_at_most_65535_bytes(void **state)
{
    struct kit *k = *state;
    struct buf text = {0};
    for (size_t len = TRANSACTION_ID_BYTES_MAX; len <= TRANSACTION_ID_BYTES_MAX + 1; len++) {
        buf_clear(&text);
        buf_text(&text,
                 "[{\"op\":\"schedule\",\"queue\":\"q\",\"timerKey\":\"k\",\"delayMs\":5,\"payload\":\"MQ==\",\"txn\":\"");
        for (size_t i = 0; i < len; i++) buf_byte(&text, 'x');
        buf_text(&text, "\"}]");
        assert_int_equal(read_at(k, OPS_ROUTE, buf_view(&text)), len == TRANSACTION_ID_BYTES_MAX);
    }
    assert_string_equal(k->why.reason, "timers_bad_op");
    buf_free(&text);
}

static void test_fields_of_the_broker_are_refused(void **state)
{
    struct kit *k = *state;
    static const char *const owned[] = {
        "producerSub",  "producer_sub",  "_messageId", "_",          "_tenant",     "messageId",
        "message_id",   "tenant",        "tenantId",   "tenant_id",  "deliverAt",   "deliver_at",
        "delaySeconds", "delay_seconds", "attempts",   "claimToken", "claim_token", "claimedUntil"};
    for (size_t i = 0; i < sizeof owned / sizeof owned[0]; i++) {
        const char *text = with(owned[i], "null");
        refused_at(k, OPS_ROUTE, text, 400, "timers_bad_request", "timers_server_owned_field");
        refused_at(k, OPS_TRANSACTION, text, 400, "timers_bad_request", i < 5 ? "timers_server_owned_field" : "timers_bad_op");
    }
    bad(k, "[{\"op\":\"cancel\",\"queue\":\"q\",\"timerKey\":\"k\",\"_x\":1}]", "timers_server_owned_field");
}

static void test_payloads_are_refused(void **state)
{
    struct kit *k = *state;
    static const char *const none[] = {NULL, "null", "7", "{\"a\":1}"};
    for (size_t i = 0; i < sizeof none / sizeof none[0]; i++) bad(k, with("payload", none[i]), "timers_payload_required");
    static const char *const texts[] = {"\"eyJhIjoxfQ\"", "\"eyJhIjoxfQ=\"", "\"eyJhIjoxfQ===\"",       "\"eyJhIjoxfR==\"",
                                        "\"====\"",       "\"e===\"",        "\"eyJh IjoxfQ\"",         "\"eyJhIjox-Q==\"",
                                        "\"MTEx\\n\"",    "\"MQ==MQ==\"",    "\"eyJhIjoxf\xc3\xa9==\"", "\"=\"",
                                        "\"M=Q=\""};
    for (size_t i = 0; i < sizeof texts / sizeof texts[0]; i++) bad(k, with("payload", texts[i]), "timers_payload_not_base64");
    static const char *const json[] = {"\"\"",     "\"eA==\"", "\"e30=\"", "\"ew==\"", "\"MSAy\"",
                                       "\"/w==\"", "\"IA==\"", "\"AA==\"", "\"MQA=\""};
    for (size_t i = 0; i < sizeof json / sizeof json[0]; i++) {
        if (i == 2) continue; /* {} */
        bad(k, with("payload", json[i]), "timers_payload_not_json");
    }
    taken(k, with("payload", json[2]), 1);
}

static void test_payloads_have_a_size_on_the_route(void **state)
{
    struct kit *k = *state;
    k->config.timer_payload_bytes_max = 7;
    taken(k, "[" SCHEDULE "]", 1);
    k->config.timer_payload_bytes_max = 6;
    refused_at(k, OPS_ROUTE, "[" SCHEDULE "]", 413, "payload_too_large", "timers_payload_too_large");
    taken_at(k, OPS_TRANSACTION, "[" SCHEDULE "]", 1);
}

static void test_a_call_fits_one_command(void **state)
{
    struct kit *k = *state;
    struct buf text = {0}, payload = {0};
    size_t len = 1 << 20;
    char *digits = malloc(len);
    assert_non_null(digits);
    memset(digits, '1', len);
    base64_encode(slice_make(digits, len), buf_reserve(&payload, base64_length(len)));
    payload.len = base64_length(len);
    for (int count = 95; count <= 96; count++) {
        buf_clear(&text);
        for (int i = 0; i < count; i++) {
            buf_printf(&text,
                       "%s{\"op\":\"schedule\",\"queue\":\"q\",\"timerKey\":\"%d\",\"delayMs\":5,\"txn\":\"t\",\"payload\":\"",
                       i == 0 ? "[" : ",", i);
            buf_slice(&text, buf_view(&payload));
            buf_text(&text, "\"}");
        }
        buf_byte(&text, ']');
        assert_int_equal(read_at(k, OPS_ROUTE, buf_view(&text)), count == 95);
        if (count == 96) break;
        struct buf command = {0};
        timer_ops_encode(&k->in, (struct uuid){{0}}, &command);
        assert_true(command.len <= COMMAND_BYTES_MAX);
        buf_free(&command);
    }
    assert_int_equal(k->why.status, 413);
    assert_string_equal(k->why.reason, "timers_call_too_large");
    buf_free(&text);
    buf_free(&payload);
    free(digits);
}

static void test_repeats_and_too_many_are_refused(void **state)
{
    struct kit *k = *state;
    struct buf text = {0};
    for (uint32_t count = TIMER_OPS_MAX; count <= TIMER_OPS_MAX + 1; count++) {
        buf_clear(&text);
        for (uint32_t i = 0; i < count; i++)
            buf_printf(&text, "%s{\"op\":\"cancel\",\"queue\":\"q\",\"timerKey\":\"%u\"}", i == 0 ? "[" : ",", i);
        buf_text(&text, "]");
        assert_int_equal(read_at(k, OPS_ROUTE, buf_view(&text)), count == TIMER_OPS_MAX);
        assert_true(read_at(k, OPS_TRANSACTION, buf_view(&text)));
    }
    read_at(k, OPS_ROUTE, buf_view(&text));
    assert_string_equal(k->why.reason, "timers_too_many_ops");
    buf_free(&text);
    bad(k, "[" SCHEDULE "," SCHEDULE "]", "timers_bad_op");
    bad(k, "[" SCHEDULE ",{\"op\":\"cancel\",\"queue\":\"q\",\"timerKey\":\"\\u006b\"}]", "timers_bad_op");
    taken(k,
          "[" SCHEDULE
          ",{\"op\":\"cancel\",\"queue\":\"r\",\"timerKey\":\"k\"},{\"op\":\"cancel\",\"queue\":\"q\",\"timerKey\":\"kk\"}]",
          3);
    taken(k,
          "[{\"op\":\"cancel\",\"queue\":\"ab\",\"timerKey\":\"c\"},{\"op\":\"cancel\",\"queue\":\"a\",\"timerKey\":\"bc\"}]",
          2);
}

/* ---- delays ------------------------------------------------------------------------------------------------------- */

static int64_t delay_of(struct kit *k, enum ops_place place, const char *number)
{
    return taken_at(k, place, with("delayMs", number), 1)->op.delay_us;
}

static void test_delays_are_exact(void **state)
{
    struct kit *k = *state;
    static const struct {
        const char *text;
        int64_t us;
    } cases[] = {
        {"0", 0},
        {"-0", 0},
        {"1", 1000},
        {"1.5", 1500},
        {"0.001", 1},
        {"0.0005", 1},
        {"0.00049999999999999999999999", 0},
        {"0.30000000000000004", 300},
        {"0.1", 100},
        {"1e3", 1000000},
        {"1E+3", 1000000},
        {"1.25e1", 12500},
        {"12500e-3", 12500},
        {"1e-400", 0},
        {"0e999999999999999999999", 0},
        {"0.000000000000000000000000001e27", 1000},
        {"100000000000000000000000e-20", 1000000},
        {"-5", -5000},
        {"-1.5", -1500},
        {"-1e300", -TIMER_DELAY_US_MAX},
        {"2142720000", INT64_C(2142720000000)}, /* 24.8 days: below 2^31 ms */
        {"2160000000", INT64_C(2160000000000)}, /* 25 days: above */
        {"4294967296.001", INT64_C(4294967296001)},
        {"7776000000", INT64_C(7776000000000)}, /* the horizon itself */
        {"7775999999.999", INT64_C(7775999999999)},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        int64_t us = delay_of(k, OPS_ROUTE, cases[i].text);
        if (us != cases[i].us) fail_msg("%s: %lld us", cases[i].text, (long long)us);
    }
}

static void test_far_delays(void **state)
{
    struct kit *k = *state;
    static const char *const far[] = {"7776000000.001", "7776000001", "1577847600000",          "9007199254740993",
                                      "1e19",           "1e400",      "1e99999999999999999999", "10000000000000000000"};
    for (size_t i = 0; i < sizeof far / sizeof far[0]; i++) {
        const char *text = with("delayMs", far[i]);
        refused_at(k, OPS_ROUTE, text, 403, "timer_horizon_exceeded", "timers_horizon");
        if (i < 3) continue;
        refused_at(k, OPS_TRANSACTION, text, 400, "timers_bad_request", "timers_bad_op");
    }
    assert_int_equal(delay_of(k, OPS_TRANSACTION, "1577847600000"), INT64_C(1577847600000000)); /* 50 years */
    assert_int_equal(delay_of(k, OPS_TRANSACTION, "250000000000000"), TIMER_DELAY_US_MAX);
    assert_int_equal(delay_of(k, OPS_TRANSACTION, "249999999999999.999"), TIMER_DELAY_US_MAX - 1);
    refused_at(k, OPS_TRANSACTION, with("delayMs", "250000000000000.001"), 400, "timers_bad_request", "timers_bad_op");
    k->config.timer_horizon_s = 1;
    assert_int_equal(delay_of(k, OPS_ROUTE, "1000"), 1000000);
    refused_at(k, OPS_ROUTE, with("delayMs", "1000.001"), 403, "timer_horizon_exceeded", "timers_horizon");
}

static void test_delays_that_are_no_numbers(void **state)
{
    struct kit *k = *state;
    static const char *const none[] = {NULL, "null", "\"5\"", "true", "[5]", "{}"};
    for (size_t i = 0; i < sizeof none / sizeof none[0]; i++) bad(k, with("delayMs", none[i]), "timers_delay_required");
    static const char *const broken[] = {"05", "1.", ".5", "+1", "1e", "NaN", "Infinity", "0x10"};
    for (size_t i = 0; i < sizeof broken / sizeof broken[0]; i++) bad(k, with("delayMs", broken[i]), "timers_bad_body");
}

/* ---- base64 ------------------------------------------------------------------------------------------------------- */

static void test_base64_goes_there_and_back(void **state)
{
    struct kit *k = *state;
    unsigned char bytes[300];
    char text[400];
    struct slice back;
    for (size_t i = 0; i < sizeof bytes; i++) bytes[i] = (unsigned char)(i * 167 + (i >> 3));
    for (size_t len = 0; len <= sizeof bytes; len++) {
        base64_encode(slice_make(bytes, len), text);
        assert_true(base64_decode(slice_make(text, base64_length(len)), &k->arena, &back));
        assert_true(slice_equal(back, slice_make(bytes, len)));
        assert_int_equal(back.at[len], 0);
    }
    assert_true(base64_decode(slice_of("+/+/AA=="), &k->arena, &back));
    assert_true(slice_equal(back, slice_make("\xfb\xff\xbf\x00", 4)));
}

/* ---- commands and answers ----------------------------------------------------------------------------------------- */

static void test_encoded_ops_decode_to_the_same(void **state)
{
    struct kit *k = *state;
    struct buf command = {0};
    struct uuid tenant = {{1, 2, 3}};
    taken(k, "[{\"op\":\"cancel\",\"queue\":\"q\",\"timerKey\":\"a/b\",\"txn\":\"x\"}," SCHEDULE "]", 2);
    timer_ops_encode(&k->in, tenant, &command);
    struct slice rest = buf_view(&command);
    struct command c;
    struct timers_command t;
    struct timer_op op;
    assert_true(command_next(&rest, &c) && rest.len == 0 && c.kind == COMMAND_TIMERS && timers_decode(&c, &t));
    assert_true(uuid_equal(t.tenant, tenant) && t.op_count == 2);
    assert_true(timer_op_next(&t.ops, &op));
    assert_true(op.kind == TIMER_CANCEL && slice_is(op.queue, "q") && slice_is(op.key, "a/b"));
    assert_true(timer_op_next(&t.ops, &op));
    assert_true(op.kind == TIMER_SCHEDULE && op.delay_us == 5000 && slice_is(op.partition, "Default"));
    assert_true(slice_is(op.item.transaction, "t") && slice_is(op.item.payload, "{\"a\":1}"));
    assert_true(uuid_equal(op.item.id, k->in.items[1].op.item.id));
    buf_free(&command);
}

static void element(struct kit *k, const char *text, struct timer_outcome o, const char *wanted)
{
    struct buf out = {0};
    timer_element_open(&out, taken(k, text, 1), &o);
    buf_byte(&out, 0);
    assert_string_equal(out.at, wanted);
    buf_free(&out);
}

static void test_result_elements(void **state)
{
    struct kit *k = *state;
    struct uuid id = {{1, 0xa9, 0xc0, 0xde, 0x44, 0x44, 0x7a, 0xbc, 0x8d, 0xef, 0, 0, 0, 0, 0, 1}};
    int64_t due_us = INT64_C(1927857966000001);
    element(k, "[" SCHEDULE "]", (struct timer_outcome){.status = TIMER_SCHEDULED, .due_us = due_us, .message = id},
            "{\"ok\":true,\"status\":\"scheduled\",\"queue\":\"q\",\"timerKey\":\"k\",\"txn\":\"t\",\"messageId\":\"01a9c0de-"
            "4444-7abc-8def-"
            "000000000001\",\"deliverAt\":\"2031-02-03T04:06:06.000001Z\"");
    element(k, "[" SCHEDULE "]", (struct timer_outcome){.status = TIMER_RESCHEDULED, .due_us = due_us, .message = id},
            "{\"ok\":true,\"status\":\"rescheduled\",\"queue\":\"q\",\"timerKey\":\"k\",\"txn\":\"t\",\"messageId\":\"01a9c0de-"
            "4444-7abc-8def-"
            "000000000001\",\"deliverAt\":\"2031-02-03T04:06:06.000001Z\"");
    static const char cancel[] = "[{\"op\":\"cancel\",\"queue\":\"q\\\"\",\"timerKey\":\"k\",\"txn\":\"mine\"}]";
    element(k, cancel, (struct timer_outcome){.status = TIMER_CANCELLED, .transaction = slice_of("theirs")},
            "{\"ok\":true,\"status\":\"cancelled\",\"queue\":\"q\\\"\",\"timerKey\":\"k\",\"txn\":\"theirs\"");
    element(k, cancel, (struct timer_outcome){.status = TIMER_ABSENT},
            "{\"ok\":false,\"status\":\"absent\",\"queue\":\"q\\\"\",\"timerKey\":\"k\",\"txn\":\"mine\"");
    element(k, "[{\"op\":\"cancel\",\"queue\":\"q\",\"timerKey\":\"k\"}]", (struct timer_outcome){.status = TIMER_ABSENT},
            "{\"ok\":false,\"status\":\"absent\",\"queue\":\"q\",\"timerKey\":\"k\",\"txn\":null");
}

#define CASE(f) cmocka_unit_test_setup_teardown(f, kit_make, kit_drop)

int main(void)
{
    const struct CMUnitTest tests[] = {
        CASE(test_a_schedule_is_read),
        CASE(test_a_cancel_is_read_and_ignores_the_rest),
        CASE(test_payloads_are_kept_byte_for_byte),
        CASE(test_zstd_payloads_are_unpacked),
        CASE(test_a_zstd_bomb_is_stopped_at_the_limit),
        CASE(test_shapes_are_refused),
        CASE(test_names_are_refused),
        CASE(test_a_txn_has_at_most_65535_bytes),
        CASE(test_fields_of_the_broker_are_refused),
        CASE(test_payloads_are_refused),
        CASE(test_payloads_have_a_size_on_the_route),
        CASE(test_a_call_fits_one_command),
        CASE(test_repeats_and_too_many_are_refused),
        CASE(test_delays_are_exact),
        CASE(test_far_delays),
        CASE(test_delays_that_are_no_numbers),
        CASE(test_base64_goes_there_and_back),
        CASE(test_encoded_ops_decode_to_the_same),
        CASE(test_result_elements),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
